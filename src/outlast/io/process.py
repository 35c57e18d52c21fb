"""What the process does to its producers: it forks, and it ends.

Rules:
* Producers are known here by weak references only.
* Before a fork each producer is held for a moment, so that the child finds it between two steps;
  then what its thread uses while it tells, such as metrics: in the order in which that takes it.
  Where that takes too long (a callback that hangs) the fork goes on without, and so it does where
  a signal handler raises: Python drops what is raised there, but no lock may stay taken.
* At exit they deliver as long as outcomes come, in all `EXIT_LONGEST_S` at most, and together wait
  `EXIT_IDLE_S` in which none comes. What is lost then is told on stderr.
* A child draws other lots than its parent and its siblings, or all would reconnect in step.
* A child of `multiprocessing` ends without Python's exit handlers, but with finalizers of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import random
import sys
import threading
import time
import weakref
from typing import Protocol

log = logging.getLogger(__name__)

RNG = random.Random()  # one for all producers: each would hold 2.5 kB

EXIT_IDLE_S = 1.0  # kafka-python gives records that long
EXIT_LONGEST_S = 10.0
_EXIT_SHARE_S = 0.2  # for each, when others have used up the idle time


class Held(Protocol):
    """A lock that only its owner can release: `threading.RLock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it."""

    def release(self) -> None:
        """Give it back."""


class Forking(Protocol):
    """What threads may be in the midst of when the process forks."""

    def hold_for_fork(self, held: list[Held]) -> None:
        """Keep others out. The locks that it takes for that are in `held` before they are taken."""

    def become_child(self) -> None:
        """In the child: forget what belongs to the parent."""


class Leaving(Forking, Protocol):
    """A driver, as seen from here."""

    def unsettled(self) -> int:
        """How many records have no outcome yet."""

    def drained(self, timeout_s: float | None) -> bool:
        """Whether all have one within this time."""

    def close(self, timeout_s: float | None = None) -> None:
        """Close within this time."""


class _Exit:
    """The end of this process, once it has begun."""

    def __init__(self) -> None:
        self.last_s = time.monotonic() + EXIT_LONGEST_S
        self.idle_s = EXIT_IDLE_S
        self.lost = 0

    def __repr__(self) -> str:
        return f"<Exit idle={self.idle_s:.1f} s left, {self.lost} records lost>"

    def close(self, driver: Leaving) -> None:
        """Let it deliver what can be delivered."""
        left = driver.unsettled()
        while left:
            begun_s = time.monotonic()
            if begun_s >= self.last_s:
                break
            driver.drained(min(max(self.idle_s, _EXIT_SHARE_S), self.last_s - begun_s))
            before, left = left, driver.unsettled()
            if left >= before:
                self.idle_s -= time.monotonic() - begun_s
                break
        self.lost += left
        driver.close(0)


_drivers: dict[int, weakref.ref[Leaving]] = {}  # no WeakSet: other threads may begin one meanwhile
_used: list[Forking] = []
_held = threading.local()
_exit: _Exit | None = None
_finalized_pid = -1  # of the multiprocessing child that has our finalizer


def register(driver: Leaving) -> None:
    """From now on the driver, started just now, hears of forks and of the exit."""
    global _finalized_pid
    number = id(driver)
    _drivers[number] = weakref.ref(driver, lambda _: _drivers.pop(number, None))
    multiprocessing = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if multiprocessing and util and multiprocessing.parent_process() is not None:
        pid = os.getpid()
        if _finalized_pid != pid:
            _finalized_pid = pid
            util.Finalize(None, _close_all, exitpriority=0)


def hold_over_forks(used: Forking) -> None:
    """From now on this is held over forks, too, after the producers, whose threads use it."""
    if used not in _used:
        _used.append(used)


def _known() -> list[Leaving]:
    return [driver for known in list(_drivers.values()) if (driver := known()) is not None]


def close_at_exit(driver: Leaving) -> None:
    """The process ends, and this producer with it."""
    global _exit
    if _exit is None:
        _exit = _Exit()
        for other in _known():
            other.unsettled()  # they all stop lingering now
    _exit.close(driver)


@atexit.register
def _close_all() -> None:
    for driver in _known():
        close_at_exit(driver)
    # Where logging is not set up, the producers' own lines have been on stderr.
    if _exit is not None and _exit.lost and logging.getLogger("outlast").hasHandlers():
        lost, _exit.lost = _exit.lost, 0
        with contextlib.suppress(Exception):  # there may be no stderr
            sys.stderr.write(f"outlast: {lost} records were not acknowledged before the exit\n")


def _before_fork() -> None:
    held: list[Held] = []
    _held.locks = held
    for forking in (*_known(), *_used):
        forking.hold_for_fork(held)


def _after_fork_in_parent() -> None:
    for lock in getattr(_held, "locks", ()):
        with contextlib.suppress(RuntimeError):  # it was not to be had, or is released
            lock.release()


def _after_fork_in_child() -> None:
    global _exit
    _exit = None
    RNG.seed()
    for forking in (*_known(), *_used):
        _child(forking)


def _child(forking: Forking) -> None:
    try:
        forking.become_child()
    except Exception:
        log.exception("%r could not be left behind after a fork", forking)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
    # Once more, for what a signal handler's exception may have kept the other from.
    os.register_at_fork(after_in_parent=_after_fork_in_parent)
