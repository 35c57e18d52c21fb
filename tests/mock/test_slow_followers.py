"""A follower that is late, or stuck: whose acks it holds up, and for how long."""

from __future__ import annotations

import pytest

from outlast.testing.faults import ConnectionLimit, SlowFollower
from tests.mock.bench import Bench, make_batch


@pytest.fixture
def pairs(make_bench) -> Bench:
    """Leader 1 with follower 2 (partition 0) and with follower 3 (partition 1)."""
    bench = make_bench()
    bench.cluster.create_topic("p", 2, assignment=[[1, 2], [1, 3]], now=bench.now)
    bench.run(1.0)
    return bench


def test_only_acks_that_need_the_slow_follower_are_late(pairs):
    pairs.cluster.faults.append(SlowFollower(3.0, node=3))
    one, two, three = (pairs.connect(1) for _ in range(3))
    slow = pairs.produce(one, 0, topic="p", partition=1)
    usual = pairs.produced(two, 0, topic="p", partition=0)
    weak = pairs.produced(three, 1, topic="p", partition=1, acks=1)
    pairs.until_answered(slow)
    assert slow.took_s == pytest.approx(3.0, abs=1e-6)
    assert usual.took_s < 0.01
    assert weak.took_s < 0.01
    assert [s.result for s in (slow, usual, weak)] == [(0, 0), (0, 0), (0, 1)]


def test_one_partition_of_a_follower_can_be_slow(pairs):
    pairs.cluster.create_topic("q", 1, assignment=[[1, 3]], now=pairs.now)
    pairs.run(1.0)
    pairs.cluster.faults.append(SlowFollower(3.0, node=3, topic="q", partition=0))
    one, two = pairs.connect(1), pairs.connect(1)
    slow = pairs.produce(one, 0, topic="q")
    assert pairs.produced(two, 0, topic="p", partition=1).took_s < 0.01
    pairs.until_answered(slow)
    assert slow.took_s == pytest.approx(3.0, abs=1e-6)


def test_every_ack_is_as_late_and_the_delay_can_be_changed(pairs):
    fault = SlowFollower(3.0, node=3)
    pairs.cluster.faults.append(fault)
    leader = pairs.connect(1)
    took_s = [pairs.produced(leader, n, topic="p", partition=1).took_s for n in range(3)]
    assert took_s == pytest.approx([3.0] * 3, abs=1e-6)
    fault.delay_s = 0.7
    assert pairs.produced(leader, 3, topic="p", partition=1).took_s == pytest.approx(0.7, abs=1e-6)
    pairs.cluster.faults.remove(fault)
    assert pairs.produced(leader, 4, topic="p", partition=1).took_s < 0.01


def test_a_batch_that_comes_during_a_fetch_waits_for_the_next(pairs):
    """As with a real follower, whose fetch has left when the batch is appended."""
    pairs.cluster.faults.append(SlowFollower(3.0, node=3))
    one, two = pairs.connect(1), pairs.connect(1)
    pairs.produce(one, 0, topic="p", partition=1)
    pairs.run(2.0)
    assert pairs.produced(two, 1, topic="p", partition=1).took_s == pytest.approx(4.0, abs=1e-6)


def test_a_stuck_follower_holds_acks_until_the_window_ends(pairs):
    until_s = pairs.now + 20.0
    pairs.cluster.faults.append(SlowFollower(float("inf"), node=3, until_s=until_s))
    leader = pairs.connect(1)
    sent = pairs.produced(leader, 0, topic="p", partition=1)
    assert sent.answered_s == pytest.approx(until_s, abs=0.01)
    assert pairs.produced(leader, 1, topic="p", partition=1).took_s < 0.01
    assert pairs.cluster.topics["p"].partitions[1].isr == (1, 3)


def test_s7_s8_only_its_own_connection_waits_for_a_slow_follower(pairs):
    pairs.cluster.faults.append(SlowFollower(3.0, node=3))
    one, two = pairs.connect(1), pairs.connect(1)
    slow = pairs.produce(one, 0, topic="p", partition=1)
    behind = pairs.produce(one, 0, topic="p", partition=0)
    beside = pairs.produced(two, 0, topic="p", partition=0)
    assert beside.took_s < 0.01
    pairs.until_answered(slow, behind)
    assert behind.answered_s >= slow.answered_s


def test_c19_a_slow_partition_gets_7_and_its_neighbour_0_in_one_answer(pairs):
    pairs.cluster.faults.append(SlowFollower(3.0, node=3))
    leader = pairs.connect(1)
    data = {("p", 0): make_batch(), ("p", 1): make_batch()}
    sent = pairs.produce_raw(leader, data, timeout_ms=1000)
    pairs.until_answered(sent)
    assert 1.0 < sent.took_s < 1.02
    codes = {key: (part.error_code, part.base_offset) for key, part in sent.parts.items()}
    assert codes == {("p", 0): (0, 0), ("p", 1): (7, 0)}


def test_b4_repeats_of_a_slow_batch_wait_as_well_and_are_no_second_copy(pairs):
    pairs.cluster.faults.append(SlowFollower(3.0, node=3))
    results, begin_s = [], pairs.now
    leader = pairs.connect(1)
    for _ in range(3):
        sent = pairs.produced(leader, 0, topic="p", partition=1, timeout_ms=900)
        results.append(sent.result)
    again = pairs.produced(pairs.connect(1), 0, topic="p", partition=1, timeout_ms=900)
    assert results == [(7, 0)] * 3
    assert again.result == (0, 0)
    assert again.answered_s - begin_s == pytest.approx(3.0, abs=1e-6)
    assert len(pairs.values("p", 1)) == 1


def test_b16_what_is_behind_a_slow_request_of_a_closed_connection_is_taken_after_it(pairs):
    """For as long as it waits, nothing behind it is looked at, and then it may be taken."""
    served_s = []
    pairs.cluster.faults.append(SlowFollower(3.0, node=3))
    for first in range(0, 60, 2):
        closed_s = pairs.now
        connection = pairs.connect(1)
        pairs.produce(connection, first, topic="p", partition=1)
        pairs.produce(connection, first // 2, topic="p", partition=0)
        pairs.cluster.closed(connection, pairs.now)
        pairs.run(20.0)
        served_s.append(pairs.cluster.request_log[-1].served_at_s - closed_s)
        pairs.produced(pairs.connect(1), first + 1, topic="p", partition=1)
    assert min(served_s) >= 3.0
    assert max(served_s) > 3.1, "not always at once"
    assert len(pairs.values("p", 0)) == 30


def test_a_node_at_its_connection_limit_closes_new_connections_at_once(bench):
    bench.cluster.faults.append(ConnectionLimit(2, node=1))
    one, two = bench.connect(1), bench.connect(1)
    three = bench.connect(1)
    elsewhere = [bench.connect(2) for _ in range(3)]
    bench.run(0.1)
    assert list(bench.closed) == [three]
    assert bench.produced(one).result == (0, 0)
    bench.cluster.closed(two, bench.now)
    assert bench.produced(bench.connect(1)).result == (0, 1)
    assert bench.named_leader(2)[0] == 1
    assert not set(elsewhere) & set(bench.closed)


def test_what_a_follower_said_long_ago_takes_back_nothing(make_bench):
    """Its word is under way for 10 s; it restarts meanwhile and says more, and is heard at once."""
    bench = make_bench()
    bench.cluster.create_topic("r", 1, assignment=[[1, 2, 3]], now=bench.now)
    bench.run(1.0)
    one, two = bench.connect(1), bench.connect(1)
    late = SlowFollower(20.0, node=3)
    bench.cluster.faults.append(late)
    first = bench.produce(one, 0, topic="r")
    bench.run(12.0)
    bench.cluster.faults.remove(late)
    bench.cluster.kill(3, bench.now)
    bench.cluster.start(3, bench.now)
    bench.until_answered(first)
    assert first.took_s < 19.0, "else this is another story"
    bench.cluster.faults.append(SlowFollower(10.0, node=2))
    second = bench.produce(two, 1, topic="r")
    bench.until_answered(second)
    assert second.took_s == pytest.approx(10.0, abs=1e-6)
