"""When the next metadata request is due."""

from __future__ import annotations

from outlast.engine.retry import Schedules
from outlast.engine.settings import Settings

NEWS_FOR_S = 0.2
NEWS_PACE_S = 0.02


class RefreshClock:
    """When the next metadata request is due: one at a time, shared by all who want it.

    * A signal (`want`) asks at once, but not sooner than `metadata_wait` after the last request.
    * While waiting records have no usable leader (`need`), requests follow each other at that
      pace: 100 ms for the first 15 s of the newest such gap, then doubling to 1 s: a partition
      that stays dead must not slow the recovery of the next one.
    * When the cluster shows that it has just acted (`news`), the answer is about to be another one:
      then 20 ms are the pace, for 0.2 s.
    * A request that failed is repeated at that pace too. Else age alone makes one due.
    """

    __slots__ = (
        "_answered_s",
        "_failing_since_s",
        "_max_age_s",
        "_need_since_s",
        "_news_until_s",
        "_next_s",
        "_schedules",
        "_started_s",
        "_wanted_s",
        "attempts",
        "in_flight",
    )

    def __init__(self, settings: Settings, schedules: Schedules) -> None:
        self._schedules = schedules
        self._max_age_s = settings.metadata_max_age_s
        self._wanted_s: float | None = None
        self._need_since_s: float | None = None
        self._failing_since_s: float | None = None
        self._answered_s: float | None = None
        self._started_s = 0.0
        self._next_s: float | None = None  # not before
        self._news_until_s = 0.0
        self.attempts = 0  # requests so far in the present want of a leader
        self.in_flight = False

    def __repr__(self) -> str:
        state = "in flight" if self.in_flight else "waiting"
        return (
            f"<RefreshClock {state} wanted={self._wanted_s} need_since={self._need_since_s}"
            f" attempts={self.attempts} not_before={self._next_s}>"
        )

    def want(self, now: float) -> None:
        """Something we know is out of date: ask soon, once."""
        self._wanted_s = now

    def need(self, oldest_since_s: float | None, now: float) -> None:  # noqa: ARG002
        """Since when, at the longest, waiting records have had no usable leader; None: all have."""
        self._need_since_s = oldest_since_s

    def news(self, now: float) -> None:
        """The cluster has just acted: who has no leader yet may have one any moment."""
        self._wanted_s = now
        self._news_until_s = now + NEWS_FOR_S
        if self._next_s is not None:
            self._next_s = min(self._next_s, max(now, self._started_s + NEWS_PACE_S))

    def due_at(self, now: float) -> float | None:
        """When to ask; past or present means now. None: a request is under way, or none is due."""
        if self.in_flight:
            return None
        if self._wanted_s is not None or self._need_since_s is not None:
            return now if self._next_s is None else self._next_s
        if self._answered_s is None:
            return None
        assert self._next_s is not None
        return max(self._answered_s + self._max_age_s, self._next_s)

    def started(self, now: float) -> None:
        """A request was sent (a hedge to a second broker is not another one)."""
        self.in_flight = True
        self._started_s = now
        self.attempts += 1
        since = [s for s in (self._need_since_s, self._failing_since_s) if s is not None]
        trouble_s = now - min(since, default=now)
        delay_s = self._schedules.metadata_delay_s(self.attempts, max(0.0, trouble_s))
        if now < self._news_until_s:
            delay_s = min(delay_s, NEWS_PACE_S)
        self._next_s = now + delay_s

    def finished(self, ok: bool, now: float) -> None:
        """It was answered, or nobody asked will answer it."""
        self.in_flight = False
        if not ok:
            if self._failing_since_s is None:
                self._failing_since_s = self._started_s
            return
        self._answered_s = now
        self._failing_since_s = None
        if self._wanted_s is not None and self._wanted_s <= self._started_s:
            self._wanted_s = None
        if self._need_since_s is None:
            self.attempts = 0
