"""What a report says in words: times, shares, causes, and the headline with its verdict.

Rule: a sentence claims no more than is known. Without a read-back nothing is said of loss; while
records are under way nothing is said of all of them; the cluster's share is a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast.cli.shares import client_s, cluster_s
from outlast.engine.messages import Cause, Gap, GapOutcome, Phase, Stall, place_name

if TYPE_CHECKING:
    from outlast.cli.report import Run
    from outlast.cli.verify import Delivery

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
NOTHING_S = 0.000_05  # and less is told as 0
SPACE = "\u00a0"  # a number and its unit stay on one line


def seconds(value_s: float) -> str:
    """A length of time with two or three digits that count."""
    if value_s < NOTHING_S:
        return f"0{SPACE}ms"
    if value_s < 0.009_95:
        return f"{value_s * 1000:.1f}{SPACE}ms"
    if value_s < 0.999_5:
        return f"{value_s * 1000:.0f}{SPACE}ms"
    if value_s < 9.995:
        return f"{value_s:.2f}{SPACE}s"
    if value_s < 119.95:
        return f"{value_s:.1f}{SPACE}s".replace(".0", "")
    if value_s < 3599.5:
        return _two(round(value_s), 60, "min", "s")
    return _two(round(value_s / 60), 60, "h", "min")


def _two(number: int, base: int, unit: str, smaller: str) -> str:
    whole, rest = divmod(number, base)
    return f"{whole}{SPACE}{unit}" + (f"{SPACE}{rest}{SPACE}{smaller}" if rest else "")


def between(least_s: float, most_s: float) -> str:
    """A length of time that is known to lie in a range."""
    least, most = seconds(least_s), seconds(most_s)
    if least == most:
        return most
    if least_s < NOTHING_S:
        return f"at most {most}"
    number, _, unit = least.partition(SPACE)
    same = most.partition(SPACE)[2] == unit
    return f"{number if same else least} to {most}"


def name(it: Gap | Stall) -> str:
    """The partition, as Kafka writes it; without characters that would turn a sentence round."""
    topic = "".join(letter if letter.isprintable() else "\ufffd" for letter in it.topic)
    return place_name(topic, it.partition)


def node(number: int) -> str:
    """A broker's number; a dash if none is known."""
    return "–" if number < 0 else str(number)


def outcome(it: Gap | Stall) -> str:
    """What became of it, in one word."""
    if isinstance(it, Stall):
        return "waited" if it.ended_by else "open"
    if it.ended_by is None:
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
        return "bad", "Promise broken", _broken(run.delivery)
    paused = f"{_some(run.gaps, partitions)} stopped accepting"
    now = [gap for gap in run.gaps if gap.ended_by is None]
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
        when = f"{paused} for {_up_to(run.gaps)}, and" if run.gaps else "No gap, but"
        return "bad", "Records failed", f"{when} {_count(failed, 'record')} failed"
    if any(gap.outcome is GapOutcome.ABANDONED for gap in run.gaps):
        end = f"{paused}, and no end was seen of it"
        return "warning", "No end seen", end
    if run.gaps:
        for_long = f"{paused} for {_up_to(run.gaps)}"
        if _under_way(run):
            return "warning", "Not settled", f"{for_long}, and some records are still under way"
        return "good", "Absorbed", f"{for_long}, and {_kept(run)}"
    if run.stalls:
        who = _some(run.stalls, partitions, "all")
        waits = f"No gap, but {who} waited {_up_to(run.stalls)} for an ack"
        if any(stall.ended_by is None for stall in run.stalls):
            return "warning", "Stall open", f"{waits}, and some still wait"
        return "good", "No gap", waits
    if _under_way(run):
        return "warning", "Not settled", "No gap, but some records are still under way"
    return "good", "No gap", "No partition stopped accepting"


def _explained(run: Run) -> list[str]:
    """Sentences below the headline."""
    said = []
    if run.gaps:
        worst = max(run.gaps, key=lambda gap: gap.duration_s)
        took_over = (
            f"; node {worst.new_leader} took over from node {worst.old_leader}"
            if 0 <= worst.old_leader != worst.new_leader >= 0
            else ""
        )
        said.append(f"Longest on {name(worst)}: {CAUSES[worst.cause]}{took_over}.")
        if worst.ended_by is not None:
            said.append(
                f"The cluster’s share of it was {between(*cluster_s(worst))}, "
                f"the client’s {between(*client_s(worst))}."
            )
        if run.delivery_timeout_s:
            said.append(_budget(run.delivery_timeout_s, worst))
    if run.stalls:
        longest = max(run.stalls, key=lambda stall: stall.duration_s)
        named = {name(stall) for stall in run.stalls}
        who = f"{len(named):,} partitions" if len(named) > 1 else name(longest)
        said.append(
            f"{who} stalled for {_up_to(run.stalls)}: nothing was refused, but "
            f"{REASONS.get(longest.reason, longest.reason)}."
        )
    return said


def _budget(budget_s: float, worst: Gap) -> str:
    retried = f"Records are retried for {seconds(budget_s)}"
    left_s = budget_s - worst.duration_s
    if left_s <= 0:
        return f"{retried}: not long enough for it."
    if worst.ended_by is None:
        return f"{retried}: {seconds(left_s)} of it are left."
    times = budget_s / max(worst.duration_s, 0.001)
    if 2 <= times < 1000:
        return f"{retried}, {times:.0f} times as long."
    return f"{retried}, {seconds(left_s)} longer than that."


def _kept(run: Run) -> str:
    if run.delivery is not None:
        return "no record was lost"
    return "every record that met it was delivered"


def _broken(delivery: Delivery) -> str:
    counts = {
        "lost": delivery.lost,
        "there twice": delivery.duplicated,
        "out of order": delivery.out_of_order,
        "at another offset": delivery.misplaced,
    }
    found = [(count, said) for said, count in counts.items() if count]
    parts = [f"{count:,} {'is' if count == 1 else 'are'} {said}" for count, said in found]
    first = _count(found[0][0], "acknowledged record")
    return ", ".join([f"{first} {parts[0].partition(' ')[2]}", *parts[1:]])


def _under_way(run: Run) -> bool:
    if any(gap.outcome is None for gap in run.gaps):
        return True
    it = run.records
    return it is not None and it.acknowledged + it.failed < it.sent


def _failed(run: Run) -> int:
    met = sum(g.records_expired + g.records_failed + g.records_refused for g in run.gaps)
    return max(met, run.records.failed if run.records else 0)


def _some(them: Sequence[Gap] | Sequence[Stall], partitions: int, every: str = "All") -> str:
    named = {(it.topic, it.partition) for it in them}
    if len(named) == 1:
        return name(them[0])
    which = every if len(named) == partitions else f"{len(named):,} of"
    return f"{which} {partitions:,} partitions"


def _up_to(them: Sequence[Gap] | Sequence[Stall]) -> str:
    longest = seconds(max((it.duration_s for it in them), default=0.0))
    return longest if len(them) == 1 else f"up to {longest}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
