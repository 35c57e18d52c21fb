"""How full the buffer is and how long threads have waited in `send()`, for observers.

Both change with every record, and are told at most once a second: whoever looks wants to see them
move, not each move. Nothing here is decided by anybody.

Rules:
* Waiting is the number of waiters times the time between two looks; somebody looks after every
  event, so only the moments between a thread's coming and the I/O thread's waking are missed.
* What has not been told is told within a second, also if nothing else happens: a buffer that was
  full must not look full for ever. A level that moves by less than `FINEST` of the buffer wakes
  nobody, so that a producer of few records sleeps as long as without this file: that is told with
  the next event, or 11 s after the last record.
"""

from __future__ import annotations

import math

from outlast.engine.accumulator import Accumulator
from outlast.engine.inflow import SAMPLE_S, SAMPLES, Inflow
from outlast.engine.messages import BufferLevel, Fact, SendersBlocked

TOLD_EVERY_S = 1.0
FINEST = 1 / 128
_EBBED_S = (SAMPLES + 1) * SAMPLE_S  # after so long without records none come any more


class Pressure:
    """What the send buffer does to the application."""

    __slots__ = ("_blocked_s", "_due_s", "_inflow", "_looked_s", "_room", "_told", "_waiting")

    def __init__(self, room: Accumulator, now: float) -> None:
        self._room = room
        self._inflow = Inflow(now)
        self._waiting: dict[str, int] = {}  # by reason, at the last look
        self._blocked_s: dict[str, float] = {}  # by reason, not told yet
        self._looked_s = now
        self._due_s = now
        self._told = BufferLevel(-math.inf, -1, room.limit_bytes, None)

    def __repr__(self) -> str:
        return f"<Pressure waiting={self._waiting} {self._room!r}>"

    def headroom_s(self, now: float) -> float | None:
        """How long the buffer lasts if nothing leaves it; None: nothing comes."""
        bytes_per_s = self._inflow.bytes_per_s(self._room.taken_bytes, now)
        free_bytes = self._room.limit_bytes - self._room.used_bytes
        return free_bytes / bytes_per_s if bytes_per_s > 0 else None

    def look(self, metadata_waiters: int, now: float) -> list[Fact]:
        """After every event: what is worth telling now.

        Args:
            metadata_waiters: threads that wait for a topic's metadata.
            now: monotonic seconds.
        """
        self._inflow.sample(self._room.taken_bytes, now)
        if metadata_waiters or self._waiting or self._room.anybody_waits:
            self._count(metadata_waiters, now)
        self._looked_s = now
        return self._tell(now) if now >= self._due_s else []

    def rest(self, now: float) -> list[Fact]:
        """The last look, at close: what has not been told yet."""
        self._count(0, now)
        return self._tell(now)

    def next_deadline(self) -> float | None:
        """When to look again, if no event comes before."""
        if self._waiting or self._blocked_s:
            return self._due_s
        told = self._told
        if abs(self._room.used_bytes - told.used_bytes) > FINEST * told.limit_bytes:
            return self._due_s
        still = told.headroom_s is None and told.used_bytes == self._room.used_bytes
        return None if still else told.at_s + _EBBED_S

    def _count(self, metadata_waiters: int, now: float) -> None:
        for reason, count in self._waiting.items():
            waited_s = count * (now - self._looked_s)
            self._blocked_s[reason] = self._blocked_s.get(reason, 0.0) + waited_s
        counts = {**self._room.waiters(), "metadata": metadata_waiters}
        self._waiting = {reason: count for reason, count in counts.items() if count}

    def _tell(self, now: float) -> list[Fact]:
        room, told = self._room, self._told
        self._told = BufferLevel(now, room.used_bytes, room.limit_bytes, self.headroom_s(now))
        facts: list[Fact] = []
        if (told.used_bytes, told.headroom_s) != (self._told.used_bytes, self._told.headroom_s):
            facts.append(self._told)
        for reason in sorted(self._blocked_s):
            waiting = self._waiting.get(reason, 0)
            facts.append(SendersBlocked(now, reason, waiting, self._blocked_s[reason]))
        self._blocked_s.clear()
        self._due_s = now + TOLD_EVERY_S
        return facts
