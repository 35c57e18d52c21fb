"""Lanes whose second connection is refused, hangs, is throttled or is not wanted at all; and room
that a partition which is held up may not have.
"""

from __future__ import annotations

import pytest

from outlast.engine.messages import (
    ConnectionClosed,
    LaneChanged,
    LaneReason,
    Role,
    StallEnd,
    Throttled,
)
from outlast.testing.faults import ConnectionLimit, Slow, SlowFollower, Throttle
from outlast.testing.network import NetworkSettings, SimNetwork
from tests.sim.lane_stories import (
    ACK_WAIT_S,
    PRODUCE,
    excursions,
    latencies_s,
    pauses,
    placed,
    role_of,
)

LATE_S = 60.0


def late_follower(sim, node: int, after_s: float, until_s: float) -> None:
    """Acks that need this node come only afterwards."""
    sim.fault(SlowFollower(LATE_S, node=node, after_s=after_s, until_s=until_s))


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_a_connect_that_failed_long_ago_is_forgotten(seed: int):
    """The open lane came back first, so nobody has dialled the slow one since."""
    sim = placed(seed, [[1, 2], [1, 3], [1, 4]])
    begun_s = sim.now
    for partition in range(3):
        sim.send_every(partition, 0.02, 2000)
    late_follower(sim, 2, begun_s + 1.0, begun_s + 4.0)
    sim.at(begun_s + 3.0, lambda: sim.network.refuse(1, sim.now))
    sim.at(begun_s + 4.5, lambda: sim.network.accept(1))
    sim.run_for(30.0)
    again_s = sim.now
    late_follower(sim, 2, again_s, again_s + 6.0)
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    for partition in (1, 2):
        after = [length for at_s, length in pauses(sim, partition, 0.2) if at_s > again_s - 0.1]
        assert len(after) == 1, after
        assert after[0] <= ACK_WAIT_S + 0.1


def test_an_idle_open_lane_takes_what_the_slow_one_cannot():
    """Its broker takes no further connection, and this is its only partition: nothing is sent over
    the open lane that an answer could prove it alive by.
    """
    sim = placed(2, [[1, 3], [3, 2], [2, 4]])
    for partition in range(3):
        sim.send("t", partition)
    sim.run_for(3.0)
    begun_s = sim.now
    standing = sum(c.node_id == 1 for c in sim.network.standing())
    sim.fault(ConnectionLimit(standing, node=1))
    sim.at(begun_s + 1.0, lambda: sim.kill(3))
    sim.at(begun_s + 1.5, lambda: sim.send("t", 1))  # so that the client learns of it
    sim.at(begun_s + 2.0, lambda: sim.send("t", 0))
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    assert sim.gaps(0) == []
    [stall] = [s for s in sim.sender.stalls(sim.now) if s.partition == 0]
    assert stall.begin_s == pytest.approx(begun_s + 2.0, abs=0.05)
    assert stall.ended_by is StallEnd.ACK


def test_a_slow_lane_that_hangs_in_its_connect_is_no_silent_node(monkeypatch):
    """A firewall swallows every further connection to a node that answers on the open lane."""
    connect = SimNetwork.connect

    def swallow(network, connection, host, port, now):
        connect(network, connection, host, port, now)
        if connection.role is Role.SLOW:
            network.deafen(connection)

    monkeypatch.setattr(SimNetwork, "connect", swallow)
    sim = placed(2, [[1, 2], [1, 3], [3, 1]])
    begun_s = sim.now
    for partition in range(3):
        sim.send_every(partition, 0.05, 300)
    late_follower(sim, 2, begun_s + 1.0, begun_s + 10.0)
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    assert [c for c in sim.network.connects if c.role == "slow"], "it was tried"
    assert sim.gaps() == []
    assert excursions(sim)[2] == 0, "its follower, broker 1, answers all the time"


def test_a_throttled_slow_lane_is_not_idle():
    """Else it would be closed and dialled anew, and the quota evaded."""
    sim = placed(2, [[1, 2], [1, 3]])
    begun_s = sim.now
    for partition in range(2):
        sim.send_every(partition, 0.05, 800)
    late_follower(sim, 2, begun_s + 1.0, begun_s + 35.0)

    def throttle() -> None:
        [slow] = {r.conn for r in sim.network.requests if role_of(sim, r) == "slow"}
        sim.fault(Throttle(25.0, node=1, api=PRODUCE, connection=slow, times=1))

    sim.at(begun_s + 5.0, throttle)
    sim.run_for(36.0)
    [throttled] = [f for f in sim.facts if isinstance(f, Throttled)]
    assert throttled.connection.role is Role.SLOW
    muted = (throttled.at_s, throttled.at_s + throttled.throttle_s)
    closed = [f.at_s for f in sim.facts if isinstance(f, ConnectionClosed)]
    sent = [r.sent_at for r in sim.network.requests if role_of(sim, r) == "slow"]
    assert not [at_s for at_s in (*closed, *sent) if muted[0] < at_s < muted[1] - 0.01]
    assert [at_s for at_s in sent if at_s >= muted[1]], "and it goes on afterwards"


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_without_idempotence_a_follower_that_is_down_changes_no_lane(acks):
    """The client alone cannot reach it: it stays in sync."""
    sim = placed(3, [[1, 3], [3, 1]], acks=acks, enable_idempotence=False)
    sim.send_every(0, 0.01, 1000)
    sim.send_every(1, 0.01, 50)
    sim.at(sim.now + 1.0, lambda: sim.network.refuse(3, sim.now))
    sim.at(sim.now + 1.2, lambda: sim.send("t", 1))
    sim.run_for(10.0)
    produce = [r for r in sim.network.requests if r.api_key == PRODUCE]
    assert {role_of(sim, request) for request in produce} == {"open"}
    assert [c for c in sim.network.connects if c.role == "slow"] == []


def test_without_a_key_nobody_waits_for_a_partition_that_is_held_up():
    """All three brokers are away when two hundred threads begin to wait; two come back."""
    sim = placed(3, [[1], [2], [3], [3], [3], [3]], buffer_memory=100_000, max_block_s=60.0)
    for partition in range(6):
        sim.send("t", partition)
    sim.run_until(sim.all_settled)
    begun_s = sim.now
    for node in (1, 2, 3):
        sim.network.refuse(node, sim.now)
    for thread in range(200):
        sim.at(
            begun_s + 0.5 + 0.001 * thread,
            lambda thread=thread: sim.send("t", None, size_bytes=1000, thread=f"{thread}"),
        )

    def two_return() -> None:
        for node in (1, 2):
            sim.network.accept(node)

    back_s = begun_s + 4.0
    sim.at(back_s, two_return)
    sim.run_for(10.0)
    taken = [entry.taken_at for entry in sim.ledger.entries]
    assert None not in taken
    assert max(taken) <= back_s + 1.0


def test_room_is_kept_for_who_delivers_even_where_all_are_late():
    """The application is faster than the cluster, so the living are a second behind as well; the
    dead one does not take their room in its turns.
    """
    sim = placed(1, [[1], [2], [3]], buffer_memory=1_000_000, delivery_timeout_ms=120_000)
    for partition in range(3):
        sim.send("t", partition)
    sim.run_until(sim.all_settled)
    sim.kill(1)
    sim.fault(Slow(api=PRODUCE, delay_s=0.15))
    sim.send_every(0, 0.01, 1500, size_bytes=1000)
    for partition in (1, 2):
        sim.send_every(partition, 0.005, 3000, size_bytes=1000)
    held = []
    for _ in range(15):
        sim.run_for(1.0)
        health = sim.sender.health(sim.now)
        held.append(sum(h.buffer_bytes for h in health.held_up if h.partition == 0))
    assert health.buffer_bytes > 950_000, "it is full"
    assert {h.partition for h in health.held_up} == {0, 1, 2}, "and all are late"
    assert held[-1] == held[5], held
    assert held[-1] < 400_000


def test_hiccups_of_a_follower_cost_its_neighbours_no_more_than_two():
    """It stops for a second and a half every four. The first relapse is news, the others are not;
    and once it is well for long enough its partition is back in the open lane.
    """
    sim = placed(2, [[1, 2], [1, 3]])
    begun_s = sim.now
    for partition in range(2):
        sim.send_every(partition, 0.02, 3000)
    for hiccup in range(8):
        at_s = begun_s + 1.0 + 4.0 * hiccup
        late_follower(sim, 2, at_s, at_s + 1.5)
    sim.run_until(sim.all_settled, 120.0)
    assert sim.check().failed == 0
    assert excursions(sim) == {0: 2}
    assert len(pauses(sim, 1, 0.3)) == 2
    [*_, last] = (fact for fact in sim.facts if isinstance(fact, LaneChanged))
    assert last.lane is Role.OPEN
    assert 10.0 <= last.at_s - at_s - 1.5 <= 11.0


def test_a_partition_that_is_rarely_used_is_remembered_while_it_is_used():
    """One record every seven seconds, its follower late for four minutes; and forgotten when
    nothing is written to it for a minute.
    """
    sim = placed(2, [[1, 2], [1, 3]])
    begun_s = sim.now
    sim.fault(SlowFollower(3.0, node=2, after_s=begun_s + 1.0))
    sim.send_every(0, 7.0, 34)
    sim.send_every(1, 0.1, 4000)
    sim.run_for(240.0)
    assert len(pauses(sim, 1, 0.3)) == 1
    assert excursions(sim) == {0: 1}
    sim.run_for(100.0)
    assert [f.reason for f in sim.facts if isinstance(f, LaneChanged)][-1] is LaneReason.IDLE


def test_who_is_on_probation_takes_turns_with_the_stuck():
    """Its traffic is steady: ahead of them in every turn it would leave them none."""
    sim = placed(2, [[1, 2], [1, 3]])
    begun_s = sim.now
    sim.send_every(0, 0.002, 12_000)
    sim.send_every(1, 0.05, 480)
    for hiccup in (1.0, 5.0, 9.0):
        late_follower(sim, 2, begun_s + hiccup, begun_s + hiccup + 1.5)
    late_follower(sim, 3, begun_s + 12.0, begun_s + 16.0)
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    reasons = [f.reason for f in sim.facts if isinstance(f, LaneChanged) and f.partition == 0]
    assert LaneReason.SUSPECT in reasons, "it is on probation"
    [stuck] = [(at, length) for at, length in pauses(sim, 1, 0.3) if at > begun_s + 11.0]
    assert stuck[1] <= 4.0 + 0.1, stuck


def test_a_stuck_partition_whose_records_expire_is_remembered_as_well():
    """It is never acked, but answered 7 a moment ago."""
    sim = placed(2, [[1, 2], [1, 3]], delivery_timeout_ms=5000, request_timeout_ms=4000)
    sim.fault(SlowFollower(LATE_S, node=2, after_s=sim.now + 1.0))
    sim.send_every(0, 7.0, 28)
    sim.send_every(1, 0.1, 2000)
    sim.run_for(200.0)
    assert len(pauses(sim, 1, 0.3)) == 1


def test_on_probation_a_busy_partition_keeps_its_rate():
    """50 ms there and back, 500 kB/s: one batch a round trip would not do."""
    far = NetworkSettings(latency_s=(0.025, 0.025))
    sim = placed(2, [[1, 2], [1, 3]], network=far)
    begun_s = sim.now
    sim.send_every(0, 0.002, 5000, size_bytes=1000)
    for hiccup in (1.0, 4.0):
        late_follower(sim, 2, begun_s + hiccup, begun_s + hiccup + 1.5)
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    assert sim.sender.health(sim.now).held_up == ()
    [*_, last] = (f for f in sim.facts if isinstance(f, LaneChanged))
    assert last.reason is LaneReason.SUSPECT, "it is on probation to the end"
    assert max(latencies_s(sim, 0, begun_s + 7.0, begun_s + 10.0)) <= 0.2


@pytest.mark.parametrize("late_s", [1.2, 3.0])
def test_records_leave_as_fast_as_they_come_however_long_acks_take(late_s: float):
    """A leader serves one request at a time, so what came during one must fit into the next."""
    sim = placed(1, [[1, 2]])
    sim.fault(SlowFollower(late_s, node=2))
    sim.send_every(0, 0.02, 2000)
    sim.run_for(40.0)
    sim.run_until(sim.all_settled, 120.0)
    assert sim.check().failed == 0
    waits = [entry.settled_at - entry.sent_at for entry in sim.ledger.entries]
    assert max(waits) <= 6 * late_s + 0.5, "five are under way, one after the other"
