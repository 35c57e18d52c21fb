"""Whose acks are late by less than the ack wait.

Theory
------
Nobody is stuck then, and no 7 comes. But a broker serves one request after the other, so whoever
shares a request with a late partition, or stands in line behind it, is late with it. An answer does
not tell for whom it took long: all of its partitions are held to be late until an answer of theirs
was prompt. They share no request with others, and go behind them. (So who was answered together
with a late one, and always has a record when that has one, stays with it: nothing tells the two.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from outlast.engine.brokers import Pending
from outlast.engine.partition import Partition

LATE_FOR_S = 10.0  # is somebody who was late and gets no other answer

Entry = TypeVar("Entry", bound=tuple[Partition, object])


class Lateness:
    """The partitions whose last answer was late, and what it took."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], tuple[float, float]] = {}  # what it took and when

    def __contains__(self, tp: object) -> bool:
        """Whether that partition is."""
        return tp in self._of

    def __bool__(self) -> bool:
        """Whether anybody is."""
        return bool(self._of)

    def __repr__(self) -> str:
        return f"<Lateness of {len(self._of)}>"

    def answered(
        self, tps: Iterable[tuple[str, int]], took_s: float, *, late: bool, now: float
    ) -> None:
        """An answer with acks came; it took so long, apart from those before it."""
        if not (self._of or late):
            return
        for tp in tps:
            self._of.pop(tp, None)
            if late:
                self._of[tp] = took_s, now
        while self._of and now - next(iter(self._of.values()))[1] > LATE_FOR_S:
            del self._of[next(iter(self._of))]

    def expected_s(self, pending: Pending, unknown_s: float = 0.0) -> float:
        """What this request may take: as long as the last answer of its slowest partition did."""
        known = (self._of.get(place.tp) for place, _ in pending.batches)
        return max([unknown_s, *(took_s for took_s, _ in filter(None, known))])

    def line_s(self, line: Collection[Pending], unknown_s: float) -> float:
        """What these requests may take one after the other."""
        if not self._of:
            return unknown_s * len(line)
        return sum(self.expected_s(pending, unknown_s) for pending in line)

    def apart(self, due: Sequence[Entry]) -> tuple[Sequence[Entry], Sequence[Entry]]:
        """The others, and the late."""
        if not self._of:
            return due, ()
        late = [entry for entry in due if entry[0].tp in self._of]
        return [entry for entry in due if entry[0].tp not in self._of], late
