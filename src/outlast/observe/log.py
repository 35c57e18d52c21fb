"""Facts as lines of the standard logger "outlast": few, and each worth reading.

WARNING when a gap opens and when one cost records, INFO when a partition takes records again, and
both again for a stall (a leader that lives and acknowledges nothing) and for a broker's slow lane.
Nothing is written per record, batch or attempt. What repeats is told once per episode: the same
loss of the same node, or the same complaint, again only after `EPISODE_S`, with the number of
repeats. What comes in crowds (a dead broker opens a gap in each of its partitions) is folded into
one line (`gap_lines.py`, `slow_lanes.py`) and bounded: `LINES_PER_WINDOW` lines of a kind in
`WINDOW_S`; the next line of that kind tells how many were left out. Time is the facts' own.

Lines about gaps carry `trace_id`, `span_id`, topic and partition as attributes of the log record.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.engine.messages import (
    Complaint,
    ConnectionLost,
    Fact,
    LeaderChanged,
    Loss,
    PartitionRestarted,
    RecordsSettled,
    Throttled,
)
from outlast.observe.gap_lines import GapLines, Line, SpanOf
from outlast.observe.slow_lanes import SlowLanes, Told

logger = logging.getLogger("outlast")

EPISODE_S = 60.0
EPISODES_KEPT = 256
WINDOW_S = 10.0
LINES_PER_WINDOW = 20

_GRAVE = frozenset({Loss.AUTHENTICATION, Loss.UNSUPPORTED})


class LogObserver:
    """Writes one producer's facts to the log.

    Args:
        span_of: gives the trace and the span of a gap by its number, if it has them.
    """

    hears_batches = True  # as the time that passes: lines that are held back fall due

    def __init__(self, span_of: SpanOf | None = None) -> None:
        self._span_of = span_of
        self._begin()

    def __repr__(self) -> str:
        return f"<LogObserver episodes={len(self._episodes)}>"

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._gap_lines = GapLines(self._span_of)
        self._slow_lanes = SlowLanes()
        self._crowds: dict[str, _Crowd] = {}
        self._episodes: dict[object, _Episode] = {}

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Write what is worth a line."""
        if self._pid != os.getpid():
            self._begin()  # forked: what was about to be told is the parent's
        for fact in facts:
            if type(fact) is RecordsSettled and not self._waits():
                continue  # it is but the time that passes
            for line in self._gap_lines.hear(fact):
                self._gap_line(line, fact.at_s)
            for told in self._slow_lanes.hear(fact):
                self._slow_lane(told, fact.at_s)
            match fact:
                case ConnectionLost():
                    key = (fact.connection.node_id, fact.loss)
                    self._episodic(key, fact.at_s, _level_of(fact), _loss(fact))
                case Throttled():
                    name = fact.connection.node_id, fact.connection.role
                    self._episodic(("throttled", *name), fact.at_s, logging.WARNING, _pause(fact))
                case Complaint():
                    level = logging.ERROR if fact.level == "error" else logging.WARNING
                    self._episodic(fact.text, fact.at_s, level, fact.text)
                case LeaderChanged():
                    self._crowded("leader", fact.at_s, logging.DEBUG, _leader_change(fact))
                case PartitionRestarted():
                    self._crowded("restart", fact.at_s, logging.INFO, _restart(fact))

    def _waits(self) -> bool:
        return self._gap_lines.waits or self._slow_lanes.waits

    def close(self) -> None:
        """Tell what was about to be told."""
        if self._pid != os.getpid():
            return
        for line in self._gap_lines.rest():
            self._gap_line(line, float("inf"))
        for told in self._slow_lanes.rest():
            self._slow_lane(told, float("inf"))

    def _gap_line(self, line: Line, at_s: float) -> None:
        self._crowded(line.kind, at_s, line.level, line.text, line.extra)

    def _slow_lane(self, told: Told, at_s: float) -> None:
        if told.begins:
            self._crowded("slow lane", at_s, logging.WARNING, told.text)
        else:
            self._crowded("slow lane empty", at_s, logging.INFO, told.text)

    def _crowded(
        self, kind: str, at_s: float, level: int, text: str, extra: Mapping[str, Any] | None = None
    ) -> None:
        if not logger.isEnabledFor(level):
            return
        crowd = self._crowds.setdefault(kind, _Crowd())
        if crowd.admits(at_s):
            _write(level, text + _left_out(crowd.taken()), extra)

    def _episodic(self, key: object, at_s: float, level: int, text: str) -> None:
        if not logger.isEnabledFor(level):
            return
        episode = self._episodes.get(key)
        if episode is not None and at_s - episode.told_s < EPISODE_S:
            episode.repeats += 1
            return
        repeats = 0 if episode is None else episode.repeats
        self._episodes.pop(key, None)
        self._episodes[key] = _Episode(at_s)
        if len(self._episodes) > EPISODES_KEPT:
            del self._episodes[next(iter(self._episodes))]
        logger.log(level, "%s%s", text, f" ({repeats} times more before)" if repeats else "")


class _Crowd:
    """Lines of one kind."""

    __slots__ = ("_left_out", "_lines", "_window_s")

    def __init__(self) -> None:
        self._window_s = float("-inf")
        self._lines = self._left_out = 0

    def admits(self, at_s: float) -> bool:
        """Whether one more line may be written now; if not, it is counted."""
        if at_s - self._window_s >= WINDOW_S:
            self._window_s, self._lines = at_s, 0
        self._lines += 1
        if self._lines > LINES_PER_WINDOW:
            self._left_out += 1
            return False
        return True

    def taken(self) -> int:
        """How many were left out since the last one written."""
        left_out, self._left_out = self._left_out, 0
        return left_out


class _Episode:
    """Something that keeps happening."""

    __slots__ = ("repeats", "told_s")

    def __init__(self, told_s: float) -> None:
        self.told_s = told_s
        self.repeats = 0


def _write(level: int, text: str, extra: Mapping[str, Any] | None) -> None:
    try:
        logger.log(level, "%s", text, extra=extra)
    except KeyError:  # the application's log records have an attribute of such a name already
        logger.log(level, "%s", text)


def _left_out(count: int) -> str:
    return f" ({count} lines like this were left out)" if count else ""


def _level_of(fact: ConnectionLost) -> int:
    if fact.loss in _GRAVE:
        return logging.ERROR
    idle = fact.loss is Loss.CLOSED and not fact.unanswered  # brokers close idle connections
    return logging.DEBUG if idle else logging.WARNING


def _loss(fact: ConnectionLost) -> str:
    detail = f": {fact.detail}" if fact.detail else ""
    unanswered = f", {fact.unanswered} requests unanswered" if fact.unanswered else ""
    return f"connection {fact.connection} to {fact.address} {fact.loss.value}{detail}{unanswered}"


def _pause(fact: Throttled) -> str:
    return (
        f"node {fact.connection.node_id} wants a pause of {fact.throttle_s:.3f} s on connection "
        f"{fact.connection}, for a quota: nothing is sent over it meanwhile"
    )


def _leader_change(fact: LeaderChanged) -> str:
    return (
        f"{fact.topic}-{fact.partition}: leader {fact.old_leader} → {fact.new_leader}, "
        f"epoch {fact.old_leader_epoch} → {fact.new_leader_epoch}, "
        f"told by {'a hint' if fact.by_hint else 'metadata'}"
    )


def _restart(fact: PartitionRestarted) -> str:
    return (
        f"{fact.topic}-{fact.partition} numbers from 0 again under producer id "
        f"{fact.producer_id}, epoch {fact.producer_epoch}: {fact.reason}"
    )
