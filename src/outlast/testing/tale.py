"""A run told in plain lines, for whoever has to find out what went wrong in it.

The trace has every step; this has what happened to the cluster and what the producer made of it.
"""

from __future__ import annotations

from outlast.engine.messages import (
    Complaint,
    ConnectionLost,
    Fact,
    GapEnded,
    GapOpened,
    LaneChanged,
    LeaderChanged,
    PartitionRestarted,
    StallOpened,
    Throttled,
)
from outlast.testing.simulation import Simulation

TIME_WIDTH = 12  # of a trace line's time
STORY = " STORY "
UNSET = ("=None", "=inf", "=-inf", "used=0")


def tell(sim: Simulation) -> list[str]:
    """What happened, in order of time: accidents, leaders, lost connections, gaps, failed records.
    Needs a run with `trace=True`.
    """
    assert sim.trace is not None, "the tale needs the trace"
    lines = [
        (float(line[:TIME_WIDTH]), _accident(line[TIME_WIDTH + len(STORY) :]))
        for line in sim.trace
        if line.startswith(STORY, TIME_WIDTH)
    ]
    for election in sim.cluster.elections:
        where = f"{election.topic}-{election.partition}"
        lines.append(
            (
                election.at_s,
                f"  cluster: node {election.leader} leads {where} (epoch {election.epoch})",
            )
        )
    lines += [(fact.at_s, f"    {words}") for fact in sim.facts if (words := _fact(fact))]
    for entry in sim.ledger.entries:
        if entry.outcome != "acked" and entry.settled_at is not None:
            lines.append((entry.settled_at, f"    {entry} is told '{entry.outcome}'"))
    lines.sort(key=lambda line: line[0])
    return [f"{at_s:{TIME_WIDTH}.6f} {words}" for at_s, words in lines]


def _accident(words: str) -> str:
    """A fault without what it does not set."""
    name, bracket, fields = words.partition("(")
    kept = [f for f in fields.rstrip(")").split(", ") if not f.endswith(UNSET)]
    return name + bracket + ", ".join(kept) + (")" if bracket else "")


def _fact(fact: Fact) -> str:
    match fact:
        case LeaderChanged():
            source = "a hint" if fact.by_hint else "metadata"
            return (
                f"producer: {fact.topic}-{fact.partition} is led by node {fact.new_leader} at "
                f"epoch {fact.new_leader_epoch}, says {source}"
            )
        case GapOpened(gap=gap):
            return f"producer: gap {gap.number} of {gap.topic}-{gap.partition}, {gap.trigger}"
        case GapEnded(gap=gap):
            end = gap.ended_by.value if gap.ended_by else "?"
            return f"producer: gap {gap.number} is over after {gap.duration_s:.3f} s ({end})"
        case StallOpened(stall=stall):
            return f"producer: {stall.topic}-{stall.partition} stalls at node {stall.node_id}"
        case LaneChanged():
            return (
                f"producer: {fact.topic}-{fact.partition} goes over the {fact.lane.value} lane to "
                f"node {fact.node_id} ({fact.reason.value})"
            )
        case Throttled():
            return f"producer: {fact.connection} is throttled for {fact.throttle_s:g} s"
        case PartitionRestarted():
            return (
                f"producer: {fact.topic}-{fact.partition} restarts as {fact.producer_id}/"
                f"{fact.producer_epoch} ({fact.reason})"
            )
        case ConnectionLost() if fact.unanswered:
            return (
                f"producer: {fact.connection} is lost with {fact.unanswered} unanswered "
                f"({fact.detail})"
            )
        case Complaint():
            return f"producer: {fact.level}: {fact.text}"
    return ""
