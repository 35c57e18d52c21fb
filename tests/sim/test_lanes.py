"""Four nodes, replication 2, every pair (leader, follower) has a partition, and one node fails:
partitions without a replica on it pay one ack wait, the others what the cluster takes.
"""

from __future__ import annotations

from functools import cache

import pytest

from outlast.engine.messages import GapOutcome, StallEnd
from tests.sim.lane_stories import (
    ACK_WAIT_S,
    PAIRS,
    assert_sound,
    longest_pause_s,
    pauses,
    placed,
    role_of,
    wire_by_partition,
)
from tests.sim.stories import load
from tests.sim.test_gap_truth import assert_truth

pytestmark = pytest.mark.timeout(300)

FAILS_AT_S = 2.7
LOAD_S = {1: 12.0, 4: 15.5}  # until some time after the cluster has decided


@cache
def four_nodes(seed: int, verb: str, *, interval_s: float, load_s: float, back_s: float = 0.0):
    """Twelve partitions under load; one node is killed or paused, and maybe resumed after a
    while. Returns the simulation and that node.
    """
    sim = placed(seed, PAIRS)
    node = 1 + seed % 4
    load(sim, interval_s=interval_s, count=int(load_s / interval_s))
    sim.at(FAILS_AT_S, lambda: getattr(sim, verb)(node))
    if back_s:
        sim.at(FAILS_AT_S + back_s, lambda: sim.resume(node))
    sim.run_until(sim.all_settled, 120.0)
    sim.run_for(2.0)  # and is in sync again
    return sim, node


def decided_s(sim) -> float:
    """When the cluster decided: one step for leaders and in-sync sets (A21)."""
    [decided] = {e.at_s for e in sim.cluster.elections if e.at_s > FAILS_AT_S}
    return decided


def groups(node: int) -> tuple[list[int], list[int], list[int]]:
    """Partitions that the node leads, follows, and has nothing of."""
    led = [p for p, pair in enumerate(PAIRS) if pair[0] == node]
    followed = [p for p, pair in enumerate(PAIRS) if pair[1] == node]
    untouched = [p for p, pair in enumerate(PAIRS) if node not in pair]
    return led, followed, untouched


def assert_untouched(sim, partitions) -> None:
    for partition in partitions:
        assert sim.gaps(partition) == []
        assert longest_pause_s(sim, partition) <= ACK_WAIT_S + 0.3, (sim.seed, partition)
        assert len(pauses(sim, partition, 0.1)) <= 1, (sim.seed, partition)


def assert_stalled(sim, partitions, until_s: float) -> None:
    """One stall each, for as long as the cluster needs, and no gap."""
    for partition in partitions:
        assert sim.gaps(partition) == []
        [stall] = [s for s in sim.sender.stalls(sim.now) if s.partition == partition]
        assert (stall.reason, stall.ended_by) == ("follower", StallEnd.ACK)
        assert longest_pause_s(sim, partition) <= until_s - FAILS_AT_S + 1.0, (sim.seed, partition)
        assert stall.duration_s >= until_s - FAILS_AT_S - 0.1


def assert_failed_over(sim, partitions, until_s: float) -> None:
    """One gap each, absorbed."""
    for partition in partitions:
        [gap] = sim.gaps(partition)
        assert gap.outcome is GapOutcome.ABSORBED
        assert longest_pause_s(sim, partition) <= until_s - FAILS_AT_S + 1.0, (sim.seed, partition)


def assert_open_again(sim, after_s: float) -> None:
    """The cluster has decided, and nobody is in a slow lane any more."""
    for partition, wire in wire_by_partition(sim).items():
        late = [a for a in wire if a.sent_at > after_s]
        assert {role_of(sim, a.request) for a in late} == {"open"}, (sim.seed, partition)


@pytest.mark.parametrize(("seed", "interval_s"), [(1, 0.002), (4, 0.009)])
def test_a_crash(seed: int, interval_s: float):
    """At 500 and at 110 records a second; node 1 is the active controller, too (A19)."""
    sim, node = four_nodes(seed, "kill", interval_s=interval_s, load_s=LOAD_S[seed])
    led, followed, untouched = groups(node)
    assert_untouched(sim, untouched)
    assert_stalled(sim, followed, decided_s(sim))
    assert_failed_over(sim, led, decided_s(sim))
    assert_open_again(sim, decided_s(sim) + 1.5)
    assert_sound(sim)
    assert_truth(sim)


def test_a_pause_that_nobody_notices():
    sim, node = four_nodes(3, "pause", interval_s=0.009, load_s=8.0, back_s=5.0)
    led, followed, untouched = groups(node)
    assert {e.at_s for e in sim.cluster.elections if e.at_s > FAILS_AT_S} == set()
    assert_untouched(sim, untouched)
    assert_stalled(sim, followed, FAILS_AT_S + 5.0)
    assert_failed_over(sim, led, FAILS_AT_S + 5.0)
    assert_sound(sim)


def test_a_pause_of_30_s():
    sim, node = four_nodes(2, "pause", interval_s=0.009, load_s=32.0, back_s=30.0)
    led, followed, untouched = groups(node)
    assert_untouched(sim, untouched)
    assert_stalled(sim, followed, decided_s(sim))
    assert_failed_over(sim, led, decided_s(sim))
    assert_sound(sim)
    leaders = [sim.leader(p) for p, _ in enumerate(PAIRS)]
    assert node not in leaders
    isrs = [set(sim.cluster.topics["t"].partitions[p].isr) for p, _ in enumerate(PAIRS)]
    assert isrs == [set(pair) for pair in PAIRS], "the woken one has every record as well"


def test_open_lanes_are_given_up_once_and_only_where_a_follower_died():
    """One 7 a leader in its open lane, whatever was in flight behind it."""
    sim, node = four_nodes(4, "kill", interval_s=0.009, load_s=LOAD_S[4])
    told: dict[int, set[float]] = {}
    for wire in wire_by_partition(sim).values():
        for attempt in wire:
            role = sim.network.connects[attempt.request.conn - 1].role
            if attempt.appended and role == "open":
                told.setdefault(attempt.request.node_id, set()).add(attempt.ended_at)
    assert told
    assert node not in told
    assert all(len(times) == 1 for times in told.values()), told
