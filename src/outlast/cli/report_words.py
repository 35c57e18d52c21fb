"""What a report says in words: times, shares, causes, and the headline with its verdict.

Rule: a sentence claims no more than is known. Without a read-back nothing is said of loss; while
records are under way nothing is said of all of them; the cluster's share is a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast.engine.messages import Cause, Gap, GapOutcome, Phase, Stall

if TYPE_CHECKING:
    from outlast.cli.report import Run

CAUSES = {
    Cause.NOT_LEADER: "the leader had moved",
    Cause.LEADER_UNAVAILABLE: "there was no leader",
    Cause.NOT_ENOUGH_REPLICAS: "too few replicas were in sync",
    Cause.CONNECTION_LOST: "the connection to the leader was lost",
    Cause.SILENT: "the leader fell silent",
    Cause.REQUEST_TIMEOUT: "the leader did not answer in time",
    Cause.STORAGE_ERROR: "the leader could not write",
    Cause.OTHER: "the leader said no",
}
REASONS = {"follower": "a follower was late", "leader": "the leader was slow"}
PHASES = {
    Phase.DETECTING: "from sending to the first refusal: the client's and the network's",
    Phase.UNAVAILABLE: "no leader that accepts: the cluster's",
    Phase.RECONNECTING: "a leader is known, we are on our way: the client's",
    Phase.RESUMING: "sent to the new leader, until its ack",
}
NOTHING_S = 0.000_5  # not told


def seconds(value_s: float) -> str:
    """A length of time with three digits or so."""
    if value_s < NOTHING_S:
        return "0 ms"
    if value_s < 0.999_5:
        return f"{value_s * 1000:.0f} ms"
    if value_s < 9.995:
        return f"{value_s:.2f} s"
    if value_s < 119.95:
        return f"{value_s:.1f} s"
    whole_s = round(value_s)
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60:02} s"
    whole_min = round(value_s / 60)
    return f"{whole_min // 60} h {whole_min % 60:02} min"


def between(least_s: float, most_s: float) -> str:
    """A length of time that is known to lie in a range."""
    least, most = seconds(least_s), seconds(most_s)
    if least == most:
        return most
    if least_s < NOTHING_S:
        return f"at most {most}"
    number, _, unit = least.rpartition(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def name(it: Gap | Stall) -> str:
    """The partition, as Kafka writes it."""
    return f"{it.topic}-{it.partition}"


def node(number: int) -> str:
    """A broker's number; a dash if none is known."""
    return "–" if number < 0 else str(number)


def cluster_s(gap: Gap) -> tuple[float, float]:
    """The cluster's share of a gap, least and most."""
    most_s = min(gap.cluster_s_max, gap.duration_s)
    return min(gap.cluster_s_min, most_s), most_s


def client_s(gap: Gap) -> tuple[float, float]:
    """What is left of a gap for the client, least and most."""
    least_s, most_s = cluster_s(gap)
    return gap.duration_s - most_s, gap.duration_s - least_s


def outcome(it: Gap | Stall) -> str:
    """What became of it, in one word."""
    if isinstance(it, Stall):
        return "waited" if it.ended_by else "open"
    if it.phase is not None:
        return "open"
    return it.outcome.value if it.outcome else "unsettled"


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict: its colour, its word, the sentence, and what explains it."""

    state: str  # 'good', 'warning' or 'bad'
    word: str
    sentence: str
    more: str


def headline(run: Run, partitions: int) -> Headline:
    """What somebody on call must know first.

    Args:
        partitions: how many there are in all.
    """
    state, word, sentence = _verdict(run, partitions)
    return Headline(state, word, f"{sentence}.", " ".join(_explained(run)))


def _verdict(run: Run, partitions: int) -> tuple[str, str, str]:
    if run.delivery is not None and not run.delivery:
        return "bad", "Promise broken", f"Of what was acknowledged, {_broken(run)}"
    paused = f"{_some(run.gaps, partitions)} stopped accepting"
    longest_s = max((gap.duration_s for gap in run.gaps), default=0.0)
    now = [gap for gap in run.gaps if gap.phase is not None]
    failed = _failed(run)
    if now:
        so_far = seconds(max(gap.duration_s for gap in now))
        refuse = "does" if len({name(gap) for gap in now}) == 1 else "do"
        told = f", and {_count(failed, 'record')} failed" if failed else ""
        return (
            "bad",
            "Gap open",
            f"{_some(now, partitions)} {refuse} not accept records, for {so_far} so far{told}",
        )
    if failed:
        when = f"{paused} for up to {seconds(longest_s)}, and" if run.gaps else "No gap, but"
        return "bad", "Records failed", f"{when} {_count(failed, 'record')} failed"
    if any(gap.outcome is GapOutcome.ABANDONED for gap in run.gaps):
        end = f"{paused}, and no end was seen of it"
        return "warning", "No end seen", end
    if run.gaps:
        for_long = f"{paused} for {'up to ' if len(run.gaps) > 1 else ''}{seconds(longest_s)}"
        if any(gap.outcome is None for gap in run.gaps):
            return "warning", "Not settled", f"{for_long}; some records are still under way"
        return "good", "Absorbed", f"{for_long}, and {_kept(run)}"
    if run.stalls:
        longest_s = max(stall.duration_s for stall in run.stalls)
        who = _some(run.stalls, partitions)
        waits = f"No gap, but {who} waited up to {seconds(longest_s)} for an ack"
        if any(stall.ended_by is None for stall in run.stalls):
            return "warning", "Stall open", f"{waits}, and some still wait"
        return "good", "No gap", waits
    return "good", "No gap", "No partition stopped accepting"


def _explained(run: Run) -> list[str]:
    """Sentences below the headline."""
    if not run.gaps:
        return []
    worst = max(run.gaps, key=lambda gap: gap.duration_s)
    why = CAUSES[worst.cause]
    took_over = (
        f"; node {worst.new_leader} took over from node {worst.old_leader}"
        if 0 <= worst.old_leader != worst.new_leader >= 0
        else ""
    )
    said = [f"Longest on {name(worst)}: {why}{took_over}."]
    if worst.phase is None:
        said.append(
            f"The cluster's share of it was {between(*cluster_s(worst))}, "
            f"the client's {between(*client_s(worst))}."
        )
    if run.delivery_timeout_s:
        said.append(_budget(run.delivery_timeout_s, worst.duration_s))
    return said


def _budget(budget_s: float, longest_s: float) -> str:
    if longest_s >= budget_s:
        return f"Records are retried for {seconds(budget_s)}: not long enough for it."
    times = budget_s / longest_s if longest_s else 0.0
    if 2 <= times < 1000:
        return f"Records are retried for {seconds(budget_s)}, {times:.0f} times as long."
    return (
        f"Records are retried for {seconds(budget_s)}, {seconds(budget_s - longest_s)} more than "
        "that."
    )


def _kept(run: Run) -> str:
    if run.delivery is not None:
        return "no record was lost"
    return "every record that met it was delivered"


def _broken(run: Run) -> str:
    assert run.delivery is not None
    counts = {
        "is lost": run.delivery.lost,
        "is there twice": run.delivery.duplicated,
        "is out of order": run.delivery.out_of_order,
        "is at another offset": run.delivery.misplaced,
    }
    return ", ".join(
        f"{count:,} {said if count == 1 else said.replace('is', 'are', 1)}"
        for said, count in counts.items()
        if count
    )


def _failed(run: Run) -> int:
    met = sum(g.records_expired + g.records_failed + g.records_refused for g in run.gaps)
    return max(met, run.records.failed if run.records else 0)


def _some(them: Sequence[Gap] | Sequence[Stall], partitions: int) -> str:
    named = {(it.topic, it.partition) for it in them}
    if len(named) == 1:
        return name(them[0])
    which = "All" if len(named) == partitions else f"{len(named):,} of"
    return f"{which} {partitions:,} partitions"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
