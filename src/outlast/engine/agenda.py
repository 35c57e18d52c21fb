"""Which partitions are to be looked at by `outgoing`: changed ones, and those whose time has come.

Rules:
* Whoever changes what a partition would send, or when, says so: `changed`. Too often is harmless,
  too seldom leaves records lying.
* A partition has one time noted, the earliest that was asked for; when that comes it is looked at,
  and the look notes the next. So batches that left before their linger was over leave nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from math import inf

from outlast.engine.partition import Partition

TopicPartition = tuple[str, int]


class Agenda:
    """Whom to look at, and when."""

    __slots__ = ("_changed", "_timed", "_times", "all_anew")

    def __init__(self) -> None:
        self._changed: dict[TopicPartition, Partition] = {}
        self._times: list[tuple[float, TopicPartition]] = []  # a heap
        self._timed: dict[TopicPartition, tuple[float, Partition]] = {}  # when, and who
        self.all_anew = False  # all that are busy are among the changed

    def __repr__(self) -> str:
        return f"<Agenda changed={len(self._changed)} timed={len(self._timed)}>"

    def changed(self, place: Partition) -> None:
        """What it would send next, or when, may be something else than before."""
        self._changed[place.tp] = place

    def look_at_all(self, busy: Mapping[TopicPartition, Partition]) -> None:
        """It may be something else for each of them."""
        self._changed.update(busy)
        self.all_anew = True

    def look_at(self, place: Partition, at_s: float) -> None:
        """It has something to send from then on."""
        timed = self._timed.get(place.tp)
        if timed is None or at_s < timed[0]:
            self._timed[place.tp] = at_s, place
            heappush(self._times, (at_s, place.tp))

    def take(self, now: float) -> list[Partition]:
        """Whom to look at now."""
        while self._times and self._times[0][0] <= now:
            at_s, tp = heappop(self._times)
            timed = self._timed.get(tp)
            if timed is not None and timed[0] == at_s:
                del self._timed[tp]
                self._changed[tp] = timed[1]
        places, self._changed = list(self._changed.values()), {}
        self.all_anew = False
        return places

    def next_s(self) -> float:
        """When the next one's time comes; infinite if none's does."""
        while self._times:
            at_s, tp = self._times[0]
            timed = self._timed.get(tp)
            if timed is not None and timed[0] == at_s:
                due_s = timed[1].due_s()
                if due_s == at_s:
                    return at_s
                del self._timed[tp]  # what it was noted for has left, or was put off
                if due_s is not None and due_s > at_s:
                    self.look_at(timed[1], due_s)
            heappop(self._times)
        return inf
