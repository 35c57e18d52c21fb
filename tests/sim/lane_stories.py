"""What the stories about lanes share: clusters in which some acks are late, and what may be said
about stalls, lanes and connections by those who only saw the wire.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from outlast.engine.messages import (
    LaneChanged,
    Role,
    Stall,
    StallAdvanced,
    StallEnd,
    StallEnded,
    StallOpened,
)
from outlast.testing.cluster import KRAFT
from outlast.testing.simulation import Simulation
from outlast.testing.wire import WireAttempt, WireRequest, attempts
from tests.sim.stories import simulation

ACK_WAIT_S = 1.0
SILENCE_S = 1.0
PRODUCE, METADATA = 0, 3
A_MOMENT_S = 1e-9
REAL = replace(KRAFT, deny_p=0.0)
PAIRS = [[leader, follower] for leader in (1, 2, 3, 4) for follower in (1, 2, 3, 4)]
PAIRS = [pair for pair in PAIRS if pair[0] != pair[1]]


def placed(seed: int, replicas: list[list[int]], **options) -> Simulation:
    """A topic `t` with these replicas of its partitions, leaders first; all of it has settled."""
    nodes = max(max(nodes) for nodes in replicas)
    sim = simulation(seed, **{"topics": {}, "nodes": nodes, "cluster": REAL, **options})
    sim.cluster.create_topic("t", len(replicas), assignment=replicas, now=sim.now)
    sim.topics["t"] = len(replicas)
    sim.run_for(2.0)
    return sim


def ack_times(sim: Simulation, partition: int, topic: str = "t") -> list[float]:
    """When the records of a partition were told to be delivered, in order."""
    return sorted(
        entry.settled_at
        for entry in sim.ledger.entries
        if (entry.topic, entry.partition) == (topic, partition) and entry.outcome == "acked"
    )


def pauses(sim: Simulation, partition: int, longer_s: float) -> list[tuple[float, float]]:
    """Begin and length of every time without an ack that was longer than this."""
    times = ack_times(sim, partition)
    return [(a, b - a) for a, b in pairwise(times) if b - a > longer_s]


def longest_pause_s(sim: Simulation, partition: int) -> float:
    """The longest ack gap of a partition under steady load."""
    return max(length for _, length in pauses(sim, partition, 0.0))


def latencies_s(sim: Simulation, partition: int, begin_s: float, end_s: float) -> list[float]:
    """From the sending of a record to its ack, of those sent in this time."""
    return [
        entry.settled_at - entry.sent_at
        for entry in sim.ledger.entries
        if entry.partition == partition and begin_s <= entry.sent_at < end_s
    ]


def wire_by_partition(sim: Simulation) -> dict[int, list[WireAttempt]]:
    """All attempts, by partition of `t`."""
    found: dict[int, list[WireAttempt]] = {p: [] for p in range(sim.topics["t"])}
    for attempt in attempts(sim.network.requests):
        found[attempt.tp[1]].append(attempt)
    return found


def all_stalls(sim: Simulation) -> list[Stall]:
    """Every stall that was told, in order, with its latest state. (The engine shows a thousand.)"""
    told = {
        fact.stall.number: fact.stall
        for fact in sim.facts
        if isinstance(fact, (StallOpened, StallAdvanced, StallEnded))
    }
    return [told[number] for number in sorted(told)]


def repeats(wire: list[WireAttempt]) -> int:
    """Attempts beyond the first of every batch."""
    return len(wire) - len({a.records for a in wire})


def role_of(sim: Simulation, request: WireRequest) -> str:
    """What the connection of a request was made for."""
    return sim.network.connects[request.conn - 1].role


def excursions(sim: Simulation) -> Counter[int]:
    """How often each partition went from the open lane into the slow one."""
    found: Counter[int] = Counter()
    lanes: dict[int, Role] = {}
    for fact in sim.facts:
        if isinstance(fact, LaneChanged):
            before, lanes[fact.partition] = lanes.get(fact.partition, Role.OPEN), fact.lane
            found[fact.partition] += (before, fact.lane) == (Role.OPEN, Role.SLOW)
    return +found


# --- what must hold of every story -------------------------------------------------------------


def assert_one_copy_in_every_log(sim: Simulation) -> None:
    """No replica holds a record twice, and all in-sync ones hold the same."""
    for topic, partition in sim.partitions():
        leader = sim.cluster.replica(topic, partition)
        for node_id in leader.state.isr:
            replica = sim.cluster.nodes[node_id].replicas[topic, partition]
            held = [record.value for batch in replica.batches for record in batch.records()]
            assert len(held) == len(set(held)), (sim.seed, replica)
            assert replica.batches == leader.batches, (sim.seed, replica)


def assert_stalls_true(sim: Simulation) -> None:
    """Every stall began when its oldest batch was first sent and ended when that was acked; every
    7 with an offset that no gap covers lies in one; none shares a moment with a gap.
    """
    for partition, wire in wire_by_partition(sim).items():
        stalls = [s for s in all_stalls(sim) if s.partition == partition]
        gaps = [(g.begin_s, g.begin_s + g.duration_s) for g in sim.gaps(partition)]
        spans = [(s.begin_s, s.begin_s + s.duration_s) for s in stalls]
        for stall, (begin_s, end_s) in zip(stalls, spans, strict=True):
            assert all(end_s <= g or begin_s >= h for g, h in gaps), (sim.seed, stall, gaps)
            if stall.ended_by is StallEnd.ACK:
                _assert_stall_true(wire, stall, begin_s, end_s)
        for attempt in wire:
            if attempt.appended:
                at_s = attempt.ended_at
                covered = [*spans, *gaps]
                assert any(b <= at_s <= e for b, e in covered), (sim.seed, attempt.tp, at_s)


def _assert_stall_true(wire, stall, begin_s, end_s) -> None:
    """Of batches that left at that moment any may be meant."""
    for oldest in {a.records for a in wire if abs(a.sent_at - begin_s) < A_MOMENT_S}:
        copies = [a for a in wire if a.records == oldest]
        acked_s = min(a.ended_at for a in copies if a.accepted)
        told = any(a.appended and a.ended_at <= acked_s for a in copies)
        long_enough = told or end_s - begin_s >= SILENCE_S
        if abs(acked_s - end_s) < A_MOMENT_S and long_enough:
            return
    raise AssertionError(f"no batch was sent and acked as this stall tells: {stall}")


def assert_lanes_kept(sim: Simulation) -> None:
    """Control requests never go over a produce lane; a produce lane is opened for Produce alone;
    never do two connections of one role carry a partition at once.
    """
    for request in sim.network.requests:
        role = role_of(sim, request)
        if request.token >= 0:  # else ApiVersions of the set-up
            produce = request.api_key == PRODUCE
            assert produce == (role in ("open", "slow")), (sim.seed, role, request.api_key)
    for partition, wire in wire_by_partition(sim).items():
        under_way: list[WireAttempt] = []
        for attempt in wire:
            under_way = [a for a in under_way if a.ended_at and a.ended_at > attempt.sent_at]
            conns = {a.request.conn for a in [*under_way, attempt]}
            assert len(conns) == 1, (sim.seed, partition, attempt.sent_at, conns)
            under_way.append(attempt)


def assert_sound(sim: Simulation) -> None:
    """Nothing failed, was lost, doubled or put out of order, and all that was said was true."""
    verdict = sim.check()
    assert verdict.failed == 0, sim.application.failures
    assert_lanes_kept(sim)
    assert_stalls_true(sim)
    assert_one_copy_in_every_log(sim)
