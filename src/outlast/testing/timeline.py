"""Virtual time of the mock cluster: what is to happen, in order of time.

Rules: nobody reads a clock; a callback is told the time it was due at as its last argument, not
the time somebody got round to running it. So a run depends on the inputs and their times only,
never on how often `tick` is called. Callbacks due at the same time run in the order they were set.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Timer:
    """One thing to happen. `cancel()` forgets it."""

    __slots__ = ("args", "at_s", "callback")

    def __init__(self, at_s: float, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.at_s = at_s
        self.callback: Callable[..., None] | None = callback
        self.args = args

    def cancel(self) -> None:
        """Never run it; harmless if it has run."""
        self.callback = None
        self.args = ()

    def run(self) -> None:
        """Run it, unless cancelled."""
        callback, args = self.callback, self.args
        if callback is not None:
            self.cancel()
            callback(*args, self.at_s)

    def __repr__(self) -> str:
        name = getattr(self.callback, "__name__", "cancelled")
        return f"<Timer {self.at_s:.6f} {name}>"


class Timeline:
    """A heap of timers and the latest time that was reached."""

    __slots__ = ("_heap", "_serial", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._serial = 0

    def at(self, at_s: float, callback: Callable[..., None], *args: Any) -> Timer:
        """Call `callback(*args, at_s)` once the time has come."""
        timer = Timer(at_s, callback, args)
        self._serial += 1
        heapq.heappush(self._heap, (at_s, self._serial, timer))
        return timer

    def pop_due(self, now: float) -> Timer | None:
        """The next timer that is due at `now`, or None; moves the time on to it."""
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            if timer.callback is not None:
                self.now = max(self.now, timer.at_s)
                return timer
        return None

    def next_deadline(self) -> float | None:
        """When the next timer is due."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __repr__(self) -> str:
        return f"<Timeline now={self.now:.6f} timers={len(self._heap)}>"
