"""Gaps and stalls as lines: one at the opening and one at the end, and one for many.

A dead broker opens a gap in each of its partitions, four hundred in one moment. So a line is held
for `FOLD_S`; what of its kind comes meanwhile joins it, and more than `SINGLE` partitions become
one line: "412 partitions of 3 topics take no records …".

Nothing is held for long. Time is the facts' own, and while a gap or stall is open a fact comes at
least every second; when none is open any more, everything held is told at once. So a gap that ends
alone is told when it ends. Lines keep their order: an end never comes before its opening.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from statistics import median
from typing import Any, NamedTuple

from outlast.engine.messages import (
    Fact,
    Gap,
    GapEnd,
    GapEnded,
    GapOpened,
    GapOutcome,
    GapSettled,
    Stall,
    StallEnd,
    StallEnded,
    StallOpened,
    place_name,
)

FOLD_S = 0.25
SINGLE = 3  # partitions that get a line each
NAMES_SHOWN = 3
TRIGGERS_SHOWN = 3

SpanOf = Callable[[int], "tuple[str, str] | None"]
Episode = Gap | Stall


class Line(NamedTuple):
    """One line, and what goes with it as attributes of the log record."""

    kind: str
    level: int
    text: str
    extra: dict[str, Any]


class GapLines:
    """The lines about one producer's gaps and stalls.

    Args:
        span_of: gives the trace and the span of a gap by its number, if it has them.
    """

    __slots__ = ("_held", "_open", "_span_of")

    def __init__(self, span_of: SpanOf | None = None) -> None:
        self._span_of = span_of or (lambda _: None)
        self._open: set[tuple[type, int]] = set()
        self._held: dict[str, tuple[float, list[Any]]] = {}  # kind → since when, what; oldest first

    def __repr__(self) -> str:
        return f"<GapLines open={len(self._open)} held={list(self._held)}>"

    @property
    def waits(self) -> bool:
        """Whether there is a line that falls due as time passes."""
        return bool(self._held)

    def hear(self, fact: Fact) -> Iterator[Line]:
        """What is due by the time of this fact; then the fact is taken in."""
        if self._held:
            yield from self._due(fact.at_s - FOLD_S)
        match fact:
            case GapOpened():
                self._open.add((Gap, fact.gap.number))
                self._hold("gap opened", fact.gap, fact.at_s)
            case StallOpened():
                self._open.add((Stall, fact.stall.number))
                self._hold("stall opened", fact.stall, fact.at_s)
            case GapEnded():
                yield from self._over("gap", fact.gap, fact.at_s)
            case StallEnded():
                yield from self._over("stall", fact.stall, fact.at_s)
            case GapSettled() if fact.gap.outcome is GapOutcome.REPORTED:
                self._hold("gap cost", fact.gap, fact.at_s)
                if not self._open:
                    yield from self.rest()

    def rest(self) -> Iterator[Line]:
        """All that is held."""
        yield from self._due(float("inf"))

    def _hold(self, kind: str, episode: Episode, at_s: float) -> None:
        self._held.setdefault(kind, (at_s, []))[1].append(episode)

    def _over(self, what: str, episode: Episode, at_s: float) -> Iterator[Line]:
        _, openings = self._held.get(f"{what} opened", (at_s, ()))
        if any(opened.number == episode.number for opened in openings):
            yield from self.rest()
        self._open.discard((type(episode), episode.number))
        reason = episode.ended_by.value if episode.ended_by else ""
        self._hold(f"{what} ended: {reason}", episode, at_s)
        if not self._open:
            yield from self.rest()

    def _due(self, since_s: float) -> Iterator[Line]:
        while self._held:
            kind = next(iter(self._held))
            if self._held[kind][0] > since_s:
                return
            _, episodes = self._held.pop(kind)
            yield from self._told(kind, episodes)

    def _told(self, kind: str, episodes: Sequence[Any]) -> Iterator[Line]:
        level, one, many = _WORDS[kind.partition(":")[0]]
        if len({(e.topic, e.partition) for e in episodes}) > SINGLE:
            spans = [span for e in episodes if (span := self._span(e)) is not None]
            numbers = [episode.number for episode in episodes]
            between = f"{min(numbers)}–{max(numbers)}"
            what = kind.split(maxsplit=1)[0]
            trace = f", first trace_id {spans[0][0]}" if spans else ""
            yield Line(
                kind,
                level,
                f"{many(episodes)} [{what}s {between}{trace}]",
                {
                    "trace_id": spans[0][0] if spans else None,
                    "span_id": spans[0][1] if spans else None,
                    "partitions": sorted({place_name(e.topic, e.partition) for e in episodes}),
                },
            )
            return
        for episode in episodes:
            yield self._single(kind, level, episode, one(episode))

    def _single(self, kind: str, level: int, episode: Episode, text: str) -> Line:
        what = kind.split(maxsplit=1)[0]
        trace_id, span_id = self._span(episode) or (None, None)
        trace = f", trace_id {trace_id}" if trace_id and kind == "gap opened" else ""
        extra = {
            "trace_id": trace_id,
            "span_id": span_id,
            "topic": episode.topic,
            "partition": episode.partition,
            what: episode.number,
        }
        return Line(kind, level, f"{text} [{what} {episode.number}{trace}]", extra)

    def _span(self, episode: Episode) -> tuple[str, str] | None:
        return self._span_of(episode.number) if isinstance(episode, Gap) else None


# --- the words ------------------------------------------------------------------------------------


def _opening(gap: Gap) -> str:
    return (
        f"{place_name(gap.topic, gap.partition)} takes no records since {_clock(gap)}: "
        f"{gap.trigger} from node {gap.old_leader} (epoch {gap.old_leader_epoch}); records wait"
    )


def _openings(gaps: Sequence[Gap]) -> str:
    nodes = sorted({gap.old_leader for gap in gaps})
    since = _clock(min(gaps, key=lambda gap: gap.begin_unix_s))
    triggers = Counter(gap.trigger for gap in gaps).most_common()
    told = ", ".join(f"{name} {count}" for name, count in triggers[:TRIGGERS_SHOWN])
    left_out = sum(count for _, count in triggers[TRIGGERS_SHOWN:])
    return (
        f"{_crowd(gaps)} take no records since {since}: {told}"
        f"{f', others {left_out}' if left_out else ''} "
        f"from node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes[:NAMES_SHOWN]))}"
        f"{' …' if len(nodes) > NAMES_SHOWN else ''}; records wait"
    )


def _ending(gap: Gap) -> str:
    match gap.ended_by:
        case GapEnd.ACK:
            what = "takes records again"
        case GapEnd.LEADER_USABLE:
            what = "has a usable leader again, nothing waits for it"
        case _:
            what = f"is watched no longer ({gap.ended_by.value if gap.ended_by else 'unknown'})"
    return (
        f"{place_name(gap.topic, gap.partition)} {what}, after {gap.duration_s:.3f} s: "
        f"detecting {gap.detecting_s:.3f}, "
        f"unavailable {gap.unavailable_s:.3f}, reconnecting {gap.reconnecting_s:.3f}, "
        f"resuming {gap.resuming_s:.3f}; node {gap.old_leader} → {gap.new_leader}, "
        f"epoch {gap.old_leader_epoch} → {gap.new_leader_epoch}, attempts {gap.attempts}"
    )


def _endings(gaps: Sequence[Gap]) -> str:
    match gaps[0].ended_by:
        case GapEnd.ACK:
            what = "take records again"
        case GapEnd.LEADER_USABLE:
            what = "have a usable leader again, nothing waits for them"
        case reason:
            what = f"are watched no longer ({reason.value if reason else 'unknown'})"
    return (
        f"{_crowd(gaps)} {what}, after {_lengths(gaps)}; in the median "
        f"detecting {median(gap.detecting_s for gap in gaps):.3f}, "
        f"unavailable {median(gap.unavailable_s for gap in gaps):.3f}, "
        f"reconnecting {median(gap.reconnecting_s for gap in gaps):.3f}, "
        f"resuming {median(gap.resuming_s for gap in gaps):.3f}"
    )


def _cost(gap: Gap) -> str:
    return (
        f"{place_name(gap.topic, gap.partition)}: records that met the gap were not all delivered: "
        f"{_fates([gap])}"
    )


def _costs(gaps: Sequence[Gap]) -> str:
    return f"{_crowd(gaps)}: records that met the gaps were not all delivered: {_fates(gaps)}"


def _fates(gaps: Sequence[Gap]) -> str:
    lost = {
        "expired": sum(gap.records_expired for gap in gaps),
        "failed": sum(gap.records_failed for gap in gaps),
        "refused by send()": sum(gap.records_refused for gap in gaps),
    }
    told = ", ".join(f"{count} {fate}" for fate, count in lost.items() if count)
    return f"{told or 'fate unknown'}, {sum(gap.records_delivered for gap in gaps)} delivered"


def _stalling(stall: Stall) -> str:
    why = "a follower is late" if stall.reason == "follower" else "it is slow"
    return (
        f"{stall.topic}-{stall.partition} stalls since {_clock(stall)}: its leader, node "
        f"{stall.node_id}, lives and has refused nothing, yet acknowledges nothing "
        f"({why}; {stall.lane} lane)"
    )


def _stallings(stalls: Sequence[Stall]) -> str:
    since = _clock(min(stalls, key=lambda stall: stall.begin_unix_s))
    late = sum(stall.reason == "follower" for stall in stalls)
    slow = len(stalls) - late
    why = [f"a follower is late for {late}"] if late else []
    why += [f"the leader is slow for {slow}"] if slow else []
    return (
        f"{_crowd(stalls)} stall since {since}: their leaders live and have refused nothing, yet "
        f"acknowledge nothing ({', '.join(why)})"
    )


def _going_on(stall: Stall) -> str:
    what = {
        StallEnd.ACK: "is acknowledged again",
        StallEnd.GAP: "stalls no longer, it is rejected",
        StallEnd.IDLE: "stalls no longer, nothing waits for it",
    }.get(stall.ended_by or StallEnd.CLOSED, "is watched no longer (closed)")
    return f"{stall.topic}-{stall.partition} {what}, after {stall.duration_s:.3f} s"


def _goings_on(stalls: Sequence[Stall]) -> str:
    what = {
        StallEnd.ACK: "are acknowledged again",
        StallEnd.GAP: "stall no longer, they are rejected",
        StallEnd.IDLE: "stall no longer, nothing waits for them",
    }.get(stalls[0].ended_by or StallEnd.CLOSED, "are watched no longer (closed)")
    return f"{_crowd(stalls)} {what}, after {_lengths(stalls)}"


def _crowd(episodes: Sequence[Episode]) -> str:
    """Such as: 412 partitions of 3 topics (a-0, a-1, a-2 and 409 more)."""
    names = sorted({(episode.topic, episode.partition) for episode in episodes})
    topics = len({topic for topic, _ in names})
    shown = ", ".join(place_name(topic, partition) for topic, partition in names[:NAMES_SHOWN])
    of = f"{topics} topics" if topics > 1 else names[0][0]
    return f"{len(names)} partitions of {of} ({shown} and {len(names) - NAMES_SHOWN} more)"


def _lengths(episodes: Sequence[Episode]) -> str:
    lengths = [episode.duration_s for episode in episodes]
    return f"{min(lengths):.3f} to {max(lengths):.3f} s"


def _clock(episode: Episode) -> str:
    return datetime.fromtimestamp(episode.begin_unix_s).isoformat(" ", "milliseconds")  # noqa: DTZ006 - as the log has it


_WORDS: dict[str, tuple[int, Callable[[Any], str], Callable[[Sequence[Any]], str]]] = {
    "gap opened": (logging.WARNING, _opening, _openings),
    "gap ended": (logging.INFO, _ending, _endings),
    "gap cost": (logging.WARNING, _cost, _costs),
    "stall opened": (logging.WARNING, _stalling, _stallings),
    "stall ended": (logging.INFO, _going_on, _goings_on),
}
