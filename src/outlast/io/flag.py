"""An event for one thread that waits, which no exception of a signal handler can break.

`threading.Event` and `Condition` are written in Python: an exception between two of their steps may
leave their lock taken, and then whoever sets them hangs. Here each step is one call of C.
"""

from __future__ import annotations

import threading
from contextlib import suppress


class Flag:
    """Set once, from any thread; one thread waits for it."""

    __slots__ = ("_lock", "_set")

    def __init__(self) -> None:
        self._set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def __repr__(self) -> str:
        return f"<Flag {'set' if self._set else 'not set'}>"

    def is_set(self) -> bool:
        """Whether it is."""
        return self._set

    def set(self) -> bool:
        """Wake who waits: True, for that thread is there."""
        self._set = True
        with suppress(RuntimeError):  # it was set before
            self._lock.release()
        return True

    def wait(self, timeout_s: float) -> bool:
        """Whether it is set, after so long at most."""
        return self._set or self._lock.acquire(timeout=timeout_s)
