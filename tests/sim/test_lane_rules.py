"""One rule of lanes and shares each, in the smallest cluster that shows it: what is broken here is
named by the story that fails. (The great stories are in `test_lanes`, `test_neighbours` and
`test_shares`.)
"""

from __future__ import annotations

from itertools import pairwise

from kafka.protocol.producer import ProduceRequest

from outlast.testing.faults import (
    Blackhole,
    ConnectionLimit,
    Error,
    ErrorAfter,
    MetadataLeaderless,
    Slow,
    SlowFollower,
)
from outlast.testing.simulation import Simulation
from tests.sim.lane_stories import (
    ACK_WAIT_S,
    PRODUCE,
    ack_times,
    assert_sound,
    excursions,
    longest_pause_s,
    pauses,
    placed,
    role_of,
    wire_by_partition,
)
from tests.sim.stories import simulation

FOREVER_S = float("inf")
NOT_LEADER = 6
BEGINS_S = 4.0


def one_stuck(*, newcomer_after_s: float | None = None, **options) -> Simulation:
    """Leader 1 has partition 0 with follower 2, which gets stuck for five seconds, partition 1 like
    it, to which one record is sent or none, and partition 2 with follower 3. Told to its end.
    """
    sim = placed(1, [[1, 2], [1, 2], [1, 3]], **options)
    sim.fault(SlowFollower(FOREVER_S, node=2, after_s=BEGINS_S, until_s=BEGINS_S + 5.0))
    for partition in (0, 2):
        sim.send_every(partition, 0.02, 350, start_s=sim.now + 0.003 * partition)
    if newcomer_after_s is not None:
        sim.at(BEGINS_S + newcomer_after_s, lambda: sim.send("t", 1))
    sim.run_until(sim.all_settled, 60.0)
    return sim


def test_what_waits_behind_a_stuck_one_waits_once():
    """Five requests are in flight at the first 7, and each would wait its turn."""
    sim = one_stuck()
    assert_sound(sim)
    assert len(pauses(sim, 2, 0.1)) == 1
    assert longest_pause_s(sim, 2) <= ACK_WAIT_S + 0.1
    assert excursions(sim) == {0: 1}
    assert sim.gaps() == []


def test_a_newcomer_with_the_same_follower_holds_nobody_up():
    """Its first record goes into the slow lane, since the follower is known to be late."""
    sim = one_stuck(newcomer_after_s=2.5)
    assert_sound(sim)
    assert len(pauses(sim, 2, 0.1)) == 1
    assert excursions(sim) == {0: 1, 1: 1}


def test_nobody_is_suspect_any_more_when_the_follower_is_well_again():
    """Who comes then begins in the open lane, though another follower is still late."""
    sim = placed(1, [[1, 2], [1, 2], [1, 3], [1, 4]])
    for node, ends_s in ((2, 9.0), (3, 16.0)):
        sim.fault(SlowFollower(FOREVER_S, node=node, after_s=BEGINS_S, until_s=ends_s))
    for partition in (0, 2, 3):
        sim.send_every(partition, 0.05, 260, start_s=sim.now + 0.003 * partition)
    sim.at(15.0, lambda: sim.send("t", 1))
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    assert excursions(sim) == {0: 1, 2: 1}


def test_a_slow_partition_that_nobody_writes_to_is_forgotten():
    """After a minute nothing is known of its follower any more."""
    sim = placed(1, [[1, 2]], metadata_max_age_ms=10_000_000)
    sim.fault(SlowFollower(3.0, node=2, until_s=10.0))
    sim.send("t", 0)
    sim.at(100.0, lambda: sim.send("t", 0))
    sim.run_until(sim.all_settled, 120.0)
    assert_sound(sim)
    assert [role_of(sim, a.request) for a in wire_by_partition(sim)[0]][-2:] == ["slow", "open"]


def test_an_ack_in_usual_time_leads_back():
    """And with it all that follows."""
    sim = one_stuck()
    roles = [role_of(sim, a.request) for a in wire_by_partition(sim)[0] if a.sent_at > BEGINS_S]
    assert "slow" in roles
    assert set(roles[-5:]) == {"open"}


def test_a_slow_lane_has_one_request_under_way():
    """A second one would wait its turn, and what might leave the lane with it."""
    sim = one_stuck(newcomer_after_s=2.5)
    slow = [r for r in sim.network.requests if r.token >= 0 and role_of(sim, r) == "slow"]
    assert len(slow) >= 5
    assert all(a.answered_at <= b.sent_at for a, b in pairwise(slow))


def test_a_broker_that_keeps_an_answer_for_the_ack_wait_is_not_silent():
    """Nobody asks how it does: that is what the ack wait is for."""
    sim = one_stuck(ack_wait_ms=1600)
    assert_sound(sim)
    assert "probe" not in {c.role for c in sim.network.connects}
    assert {s.reason for s in sim.sender.stalls(sim.now)} == {"follower"}


def test_a_node_that_we_cannot_reach_may_be_a_good_follower():
    """We get no answer from it, but acks that need it come in usual time: believe the acks."""
    sim = placed(1, [[1, 3], [1, 3], [1, 2], [3, 1]], delivery_timeout_ms=60_000)
    sim.fault(Blackhole(node=3, after_s=BEGINS_S, until_s=BEGINS_S + 10.0))
    for partition, interval_s in ((0, 0.05), (1, 1.0), (2, 0.05), (3, 0.05)):
        sim.send_every(partition, interval_s, int(12.0 / interval_s))
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    assert [longest_pause_s(sim, p) < 0.1 for p in (0, 2)] == [True, True]
    assert max(excursions(sim).values(), default=0) <= 1


def test_the_stuck_leave_others_of_their_lane_a_turn():
    """Partition 0 relapsed and is well, but not for long enough, while partition 1 is stuck."""
    sim = placed(1, [[1, 2], [1, 3]])
    for begin_s, end_s in ((4.0, 5.5), (8.0, 9.5)):
        sim.fault(SlowFollower(FOREVER_S, node=2, after_s=begin_s, until_s=end_s))
    sim.fault(SlowFollower(FOREVER_S, node=3, after_s=11.0, until_s=17.0))
    for partition in (0, 1):
        sim.send_every(partition, 0.05, 320, start_s=sim.now + 0.003 * partition)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    roles = {role_of(sim, a.request) for a in wire_by_partition(sim)[0] if 10 < a.sent_at < 17}
    assert roles == {"slow"}
    late = [length for at_s, length in pauses(sim, 0, 0.2) if at_s > 10.5]
    assert len(late) >= 3
    assert max(late) <= ACK_WAIT_S + 0.1


def test_a_broker_that_says_7_at_once_is_not_asked_at_once_again():
    """It should have waited, but did not: one repeat every 100 ms, not every round trip."""
    sim = placed(1, [[1, 2]])
    sim.fault(ErrorAfter(7, node=1, api=PRODUCE, after_s=BEGINS_S, until_s=BEGINS_S + 1.0))
    sim.at(BEGINS_S + 0.1, lambda: sim.send("t", 0))
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    assert 5 < len(wire_by_partition(sim)[0]) <= 11


def test_a_node_that_was_down_long_ago_may_be_followed():
    """Nobody has called it since: its leadership went elsewhere. Who is new begins as ever."""
    sim = placed(1, [[3, 1], [1, 3]])
    sim.send("t", 0)
    sim.run_for(1.0)
    sim.refuse(3)
    sim.send("t", 0)
    sim.run_for(1.0)
    sim.move_leader(0, 1)
    sim.run_until(sim.all_settled, 20.0)
    sim.accept(3)
    sim.at(60.0, lambda: sim.send("t", 1))
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    assert excursions(sim)[1] == 0


def ack_waits_ms(sim: Simulation) -> set[int]:
    """What Produce requests gave their brokers to wait for followers."""
    frames = [r for r in sim.network.requests if r.api_key == PRODUCE]
    asked = [ProduceRequest.decode(r.frame, version=r.api_version, header=True) for r in frames]
    return {request.timeout_ms for request in asked}


def test_many_stuck_ones_do_not_outvote_the_others():
    """Twenty acks that took three seconds come in one answer: one answer, one vote."""
    sim = placed(1, [[1, 2]] * 20 + [[1, 3]], linger_ms=20)
    sim.fault(SlowFollower(3.0, node=2, after_s=BEGINS_S, until_s=BEGINS_S + 5.0))
    for partition in range(20):
        sim.at(BEGINS_S + 0.5, lambda p=partition: sim.send("t", p))
    sim.send_every(20, 0.4, 40)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    assert ack_waits_ms(sim) == {1000}


def one_connection(delay_s: float, limit_ends_s: float) -> Simulation:
    """As `one_stuck`, but node 1 takes no more connections than it has. Told to its end."""
    sim = placed(1, [[1, 2], [1, 3], [3, 1]])
    sim.fault(SlowFollower(delay_s, node=2, after_s=BEGINS_S, until_s=BEGINS_S + 12.0))

    def limit() -> None:
        standing = len(sim.cluster.nodes[1].connections)
        sim.fault(ConnectionLimit(standing, node=1, until_s=limit_ends_s))

    sim.at(BEGINS_S, limit)
    for partition in range(3):
        sim.send_every(partition, 0.05, 300, start_s=sim.now + 0.003 * partition)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    return sim


def test_a_lane_that_cannot_be_opened_goes_over_the_other():
    """So the late one has its acks, late."""
    sim = one_connection(2.5, limit_ends_s=FOREVER_S)
    assert len({at_s for at_s in ack_times(sim, 0) if 6.0 < at_s < 16.0}) >= 2
    assert "slow" not in {c.role for c in sim.network.connects if c.loss is None}
    assert excursions(sim)[2] == 0, "node 1 is not down, and follows others as ever"


def test_what_a_7_held_back_is_no_measure():
    """Both lanes share one connection: many acks of the healthy come with somebody's 7."""
    assert ack_waits_ms(one_connection(FOREVER_S, limit_ends_s=FOREVER_S)) == {1000}


def test_it_is_tried_again_meanwhile():
    """And then has what is its own."""
    sim = one_connection(FOREVER_S, limit_ends_s=8.0)
    stuck = [a for a in wire_by_partition(sim)[0] if 10.0 < a.sent_at < 15.0]
    assert {role_of(sim, a.request) for a in stuck} == {"slow"}


def test_a_dead_partitions_waiter_holds_up_nobody_elses():
    """It came first, but it may take nothing: those behind it are served in their turn. Partition 1
    now and then needs more than the dead one leaves, and its leader takes its time.
    """
    sim = simulation(1, topics={"t": 2}, buffer_memory=400_000, delivery_timeout_ms=60_000)
    for partition in (0, 1):
        sim.send("t", partition)
    sim.run_until(sim.all_settled)
    window = {"topic": "t", "partition": 0, "after_s": sim.now, "until_s": sim.now + 10.0}
    sim.cluster.faults += [Error(NOT_LEADER, **window), MetadataLeaderless(**window)]
    sim.cluster.faults.append(Slow(node=sim.leader(1), api=PRODUCE, delay_s=0.03))
    sim.send_every(0, 0.01, 200, size_bytes=4000)
    for burst in range(3):
        start_s = sim.now + 3.0 + 2.0 * burst
        sim.send_every(1, 0.0001, 280, size_bytes=1000, start_s=start_s)
    sim.run_until(sim.all_settled, 90.0)
    sim.check()
    waits_s: dict[int, list[float]] = {0: [], 1: []}
    for entry in sim.ledger.entries:
        waits_s[entry.partition].append(entry.taken_at - entry.sent_at)
    assert max(waits_s[0]) > 5.0, "it waited meanwhile"
    assert 0.1 < max(waits_s[1]) < 1.0, "there was no room, but soon"


def test_a_follower_that_is_always_late_keeps_its_partition_slow():
    """Its acks come, but late: one of them is no reason to try the open lane again."""
    sim = placed(1, [[1, 2], [1, 3]])
    sim.fault(SlowFollower(3.0, node=2, after_s=BEGINS_S, until_s=BEGINS_S + 16.0))
    for partition in (0, 1):
        sim.send_every(partition, 0.05, 320, start_s=sim.now + 0.003 * partition)
    sim.run_until(sim.all_settled, 120.0)
    assert_sound(sim)
    assert excursions(sim) == {0: 1}
    assert len(pauses(sim, 1, 0.1)) == 1
