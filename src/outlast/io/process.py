"""What the process does to its producers: it forks, and it ends.

Rules:
* Producers are known here by weak references only.
* Before a fork each engine is held for a moment, so that the child finds it between two steps.
  Where that takes too long (a fork out of the lock itself) the fork goes on without.
* At exit all producers share the one second that kafka-python gives to each.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from typing import Protocol

log = logging.getLogger(__name__)

EXIT_S = 1.0


class Forking(Protocol):
    """A driver, as seen from here."""

    def hold_for_fork(self) -> bool:
        """Keep others out of the engine; False if that cannot be had."""

    def go_on_after_fork(self) -> None:
        """In the parent, after `hold_for_fork` said True."""

    def become_child(self) -> None:
        """In the child: forget what belongs to the parent."""

    def close(self, timeout_s: float | None = None) -> None:
        """Close within this time."""


_drivers: weakref.WeakSet[Forking] = weakref.WeakSet()
_held = threading.local()


def register(driver: Forking) -> None:
    """From now on the driver hears of forks and of the exit."""
    _drivers.add(driver)


@atexit.register
def _close_all() -> None:
    last_s = time.monotonic() + EXIT_S
    for driver in list(_drivers):
        driver.close(max(0.0, last_s - time.monotonic()))


def _before_fork() -> None:
    _held.drivers = [driver for driver in list(_drivers) if driver.hold_for_fork()]


def _after_fork_in_parent() -> None:
    for driver in _held.drivers:
        driver.go_on_after_fork()


def _after_fork_in_child() -> None:
    for driver in list(_drivers):
        _child(driver)


def _child(driver: Forking) -> None:
    try:
        driver.become_child()
    except Exception:
        log.exception("%r could not be left behind after a fork", driver)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
