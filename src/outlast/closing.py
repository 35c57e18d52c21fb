"""The end of a producer: closed by its user, collected, or at exit. Never twice, never by halves.

Rules:
* Nothing here knows the producer: it would never be collected.
* First a transaction that is open is brought to its end, then the records: within one time.
* The second of two closes waits for the first one, within its own time, or cuts it short.
* The collector may run on any thread and under any lock, the driver's own included: what it begins
  goes on in a thread of its own.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from outlast.io import process
from outlast.io.thread import Driver

log = logging.getLogger(__name__)

LEFT_S = 1.0  # kafka-python gives records that long when their producer is collected


class Closing:
    """Ends one producer's open transaction, closes its driver, and then the rest: observers,
    serializers.
    """

    def __init__(
        self,
        driver: Driver,
        rest: Sequence[Any],
        end_open: Callable[[float | None], None] | None,
    ) -> None:
        self._driver = driver
        self._rest = rest
        self._end_open = end_open
        self._none_open = None if end_open is None else threading.Event()
        self._closer = 0  # the thread that was the first to close
        self._lock = threading.RLock()  # a signal handler may close it, too
        self._begun = self._done = False
        atexit.register(self._at_exit)

    def __repr__(self) -> str:
        state = "done" if self._done else "begun" if self._begun else "not begun"
        return f"<Closing {state}>"

    def close(self, timeout: float | None) -> None:
        """Close within this time. Where this thread would wait for itself, elsewhere: in a
        callback, and in a signal handler that came in between a call of this producer.
        """
        if self._begin():
            if self._is_within_a_call():
                self._elsewhere(timeout)
            else:
                self._close_all(self._in_turn, timeout)
        elif not self._done:
            mine = self._closer == threading.get_ident()  # a signal handler came in between
            if self._none_open is not None and not (mine or self._is_within_a_call()):
                timeout = _left(timeout, self._none_open.wait)
            self._driver.close(timeout)

    def _is_within_a_call(self) -> bool:
        """In a callback, or in a signal handler that came in between a call of this producer."""
        return self._driver.in_callback or self._driver.is_inside()

    def collected(self) -> None:
        """Nobody has the producer any more."""
        if self._begin():
            self._elsewhere(LEFT_S)

    def _at_exit(self) -> None:
        if self._begin():
            self._close_all(self._exit, LEFT_S)

    def _exit(self, timeout: float) -> None:
        self._open_ended(timeout)
        process.close_at_exit(self._driver)

    def _in_turn(self, timeout: float | None) -> None:
        self._driver.close(self._open_ended(timeout))

    def _open_ended(self, timeout: float | None) -> float | None:
        """Whatever comes of it, others wait for it no longer. Returns what is left of the time."""
        if self._end_open is None or self._none_open is None:
            return timeout
        try:
            return _left(timeout, self._end_open)
        finally:
            self._none_open.set()

    def _begin(self) -> bool:
        """Whether this call is the first."""
        with self._lock:
            begun, self._begun = self._begun, True
            if not begun:
                self._closer = threading.get_ident()
        if not begun:
            atexit.unregister(self._at_exit)
        return not begun

    def _close_all(self, close: Callable[..., None], argument: object) -> None:
        try:
            close(argument)
            self._done = True
        finally:
            close_each(self._rest)

    def _elsewhere(self, timeout: float | None) -> None:
        """In a thread of its own; the interpreter waits for it if it ends in known time."""
        self._closer = 0
        thread = threading.Thread(
            target=self._close_all,
            args=(self._in_turn, timeout),
            name="outlast-close",
            daemon=timeout is None,
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending: no new threads
            self._close_all(self._in_turn, timeout)


def _left(timeout: float | None, first: Callable[[float | None], object]) -> float | None:
    """Do that, within this time; returns what is left of it."""
    begin_s = time.monotonic()
    first(timeout)
    return None if timeout is None else max(0.0, timeout - (time.monotonic() - begin_s))


def close_each(things: Sequence[Any]) -> None:
    """Close what can be closed. One that cannot is logged."""
    for thing in things:
        close = getattr(thing, "close", None)
        if close is not None:
            try:
                close()
            except Exception:
                log.exception("Error while closing %r", thing)
