"""What must hold of a run beside the ledger: gaps and stalls that add up, times and bytes that end,
connections that are few and each for its purpose.

Rule: these are checks of what the producer says about itself, and of what the wire saw it do;
whether its records are where it says is the ledger's business, whether gaps agree with the wire is
`wire`'s, and whether any partition paid for another is `holdups`'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from math import inf, isclose

from outlast.engine.messages import Gap
from outlast.testing.codes import REQUEST_TIMED_OUT
from outlast.testing.simulation import Simulation
from outlast.testing.wire import TopicPartition, WireAttempt, WireRequest, attempts

A_MOMENT_S = 1e-6
PRODUCE, API_VERSIONS = 0, 18
LANES = ("open", "slow")
MOST = {
    "open": 1,
    "slow": 1,
    "probe": 1,
    "coordinator": 1,
    "control": 2,
}  # to one node; one of two by a bootstrap name
MOST_CONTROL = 3  # to all nodes together


def violations(sim: Simulation, *, late_s: float, settled: bool) -> list[str]:
    """All that is wrong, each in a sentence. `late_s`: how late the driver may have been.
    `settled`: all was healed and has had its time, so nothing may be open any more.
    """
    found = [*_gaps(sim), *_stalls(sim), *_settled_in_time(sim, late_s)]
    found += [*connections(sim), *lanes(sim)]
    if settled:
        found += _leftovers(sim)
    return [f"{sentence}. {sim.ledger.replay}" for sentence in found]


def _by_partition(sim: Simulation) -> dict[tuple[str, int], list[Gap]]:
    gaps: dict[tuple[str, int], list[Gap]] = {}
    for gap in sim.gaps():
        gaps.setdefault((gap.topic, gap.partition), []).append(gap)
    return gaps


def _gaps(sim: Simulation) -> Iterator[str]:
    for (topic, partition), gaps in _by_partition(sim).items():
        for gap in gaps:
            phases_s = gap.detecting_s + gap.unavailable_s + gap.reconnecting_s + gap.resuming_s
            if not isclose(phases_s, gap.duration_s, abs_tol=A_MOMENT_S):
                yield f"gap {gap.number} has phases of {phases_s} s and lasts {gap.duration_s} s"
            if min(gap.detecting_s, gap.unavailable_s, gap.reconnecting_s, gap.resuming_s) < 0:
                yield f"gap {gap.number} has a phase shorter than nothing: {gap}"
            if not 0 <= gap.cluster_s_min <= gap.cluster_s_max + A_MOMENT_S:
                yield f"gap {gap.number}'s bounds of the cluster's share cross: {gap}"
        for gap, later in pairwise(sorted(gaps, key=lambda gap: gap.begin_s)):
            if gap.begin_s + gap.duration_s > later.begin_s + A_MOMENT_S:
                yield f"gaps {gap.number} and {later.number} of {topic}-{partition} overlap"


def _stalls(sim: Simulation) -> Iterator[str]:
    gaps = _by_partition(sim)
    for stall in sim.sender.stalls(sim.now):
        end_s = stall.begin_s + stall.duration_s
        for gap in gaps.get((stall.topic, stall.partition), ()):
            shared_s = min(end_s, gap.begin_s + gap.duration_s) - max(stall.begin_s, gap.begin_s)
            if shared_s > A_MOMENT_S:
                yield (
                    f"stall {stall.number} and gap {gap.number} of {stall.topic}-{stall.partition} "
                    f"share {shared_s} s"
                )


def _settled_in_time(sim: Simulation, late_s: float) -> Iterator[str]:
    settings = sim.settings
    limit_s = settings.delivery_timeout_s + settings.request_timeout_s + late_s
    for entry in sim.ledger.entries:
        if entry.taken_at is not None and entry.settled_at is not None:
            took_s = entry.settled_at - entry.taken_at
            if took_s > limit_s + A_MOMENT_S:
                yield f"{entry} was settled after {took_s} s, and at most {limit_s} s are promised"


def connections(sim: Simulation) -> Iterator[str]:
    """How many there are at a time, to each node and in all."""
    steps: list[tuple[float, int, int, str]] = []
    for connect in sim.network.connects:
        steps.append((connect.began_at, 1, connect.node_id, connect.role))
        if connect.closed_at is not None:  # first those that end, then those that take their place
            steps.append((connect.closed_at, -1, connect.node_id, connect.role))
    standing: Counter[tuple[int, str]] = Counter()
    for at_s, step, node_id, role in sorted(steps, key=lambda s: s[:2]):
        standing[node_id, role] += step
        if step > 0 and standing[node_id, role] > MOST[role]:
            yield f"at {at_s} s node {node_id} has {standing[node_id, role]} {role} connections"
        control = sum(n for (_, kind), n in standing.items() if kind == "control")
        if step > 0 and control > MOST_CONTROL:
            yield f"at {at_s} s there are {control} control connections"
    if not sim.settings.idempotent and any(c.role == "slow" for c in sim.network.connects):
        yield "there is a slow lane, and without idempotence every repeat may be a second copy"


def lanes(sim: Simulation) -> Iterator[str]:
    """Produce requests go over lanes and nothing else does; nothing waits behind a stuck one."""
    roles = [connect.role for connect in sim.network.connects]  # `conn` counts from 1
    last: dict[int, WireRequest] = {}  # slow lane → its last request
    pairs = []
    for request in sim.network.requests:
        role = roles[request.conn - 1]
        if request.api_key != API_VERSIONS and (request.api_key == PRODUCE) != (role in LANES):
            yield f"at {request.sent_at} s API {request.api_key} goes over a {role} connection"
        if role == "slow" and request.api_key == PRODUCE:
            before = last.get(request.conn)
            if before is not None and request.sent_at < _ended_s(before):
                pairs.append((before, request))
            last[request.conn] = request
    if pairs:
        yield from _behind_the_stuck(sim, pairs)


def _ended_s(request: WireRequest) -> float:
    ended_s = request.failed_at if request.answered_at is None else request.answered_at
    return inf if ended_s is None else ended_s


def _behind_the_stuck(
    sim: Simulation, pairs: list[tuple[WireRequest, WireRequest]]
) -> Iterator[str]:
    """Requests sent over a slow lane while another was under way: all in both must be well. What a
    leader said ends with its time as leader.
    """
    carried: dict[int, list[WireAttempt]] = {}
    told: dict[tuple[int, TopicPartition], list[tuple[float, bool]]] = {}  # by a 7 with an offset?
    for attempt in attempts(sim.network.requests):
        carried.setdefault(id(attempt.request), []).append(attempt)
        if attempt.code is not None and attempt.ended_at is not None:
            at_node = told.setdefault((attempt.request.node_id, attempt.tp), [])
            stuck = attempt.code == REQUEST_TIMED_OUT and attempt.base_offset >= 0
            at_node.append((attempt.ended_at, stuck))
    elected_s: dict[TopicPartition, list[float]] = {}
    for election in sim.cluster.elections:
        elected_s.setdefault((election.topic, election.partition), []).append(election.at_s)
    for before, request in pairs:
        for attempt in carried[id(before)] + carried[id(request)]:
            by_s = request.sent_at
            since_s = max((s for s in elected_s.get(attempt.tp, ()) if s <= by_s), default=0.0)
            words = told.get((request.node_id, attempt.tp), ())
            known = [word for word in words if since_s <= word[0] <= by_s]
            if known and max(known, key=lambda word: word[0])[1]:
                yield (
                    f"at {request.sent_at} s a second request is under way in a slow lane, and "
                    f"{attempt.tp[0]}-{attempt.tp[1]} is stuck"
                )


def _leftovers(sim: Simulation) -> Iterator[str]:
    health = sim.sender.health(sim.now)
    if health.buffer_bytes:
        yield f"nothing is open, and {health.buffer_bytes} bytes of the buffer are taken"
    for gap in health.open_gaps:
        if gap.topic in sim.topics and gap.partition < sim.topics[gap.topic]:
            yield f"gap {gap.number} of {gap.topic}-{gap.partition} is open, and all is well: {gap}"
    for stall in health.open_stalls:
        yield f"stall {stall.number} of {stall.topic}-{stall.partition} is open: {stall}"
