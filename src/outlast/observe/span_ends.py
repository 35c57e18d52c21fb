"""Spans are ended on a thread of their own, and what goes wrong with them is told once.

`Span.end` may run an exporter, and an exporter may take any time or for ever: on the I/O thread it
would hold up every record. So ends are queued. Whoever tells the time of an end knows it already,
and a late one is none.

Rules:
* The queue holds `WAITING` ends, as many as an SDK's own; further ones are dropped and the spans
  are lost. That is told once, or when another end comes after one has taken `HANGS_S`.
* The thread is a daemon, starts with the first end and knows nothing of the producer. `close` gives
  it `CLOSE_S`.
* A forked child has no such thread, and its parent ends what the parent began.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType

from opentelemetry.trace import Span

logger = logging.getLogger("outlast")

WAITING = 2048
CLOSE_S = 0.5
HANGS_S = 10.0

Work = queue.SimpleQueue[Callable[[], object] | None]


class Trouble:
    """Around every call of a tracer: `with trouble: …`. What is raised ends here."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"<Trouble told={sorted(self._told)}>"

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.tell(
            "The tracer raised; spans may be missing, records are not affected "
            "(further errors of this kind are not told)",
            error,
        )
        return True

    def tell(self, text: str, error: Exception | None = None) -> None:
        """Write this to the log, if it is the first time."""
        if text not in self._told:
            self._told.add(text)
            logger.warning(text, exc_info=error)


class SpanEnds:
    """The queue of one producer, and its thread."""

    __slots__ = ("_lock", "_pid", "_since_s", "_thread", "_trouble", "_work")

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._begin()

    def __repr__(self) -> str:
        return f"<SpanEnds waiting={self._work.qsize()}>"

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._work: Work = queue.SimpleQueue()  # gevent may have put its own there
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._since_s = float("inf")  # when the end that is going on began

    def end(self, span: Span, end_ns: int) -> None:
        """End the span, soon: it lasted until `end_ns` (Unix time)."""
        if self._pid != os.getpid():
            self._begin()
        if time.monotonic() - self._since_s > HANGS_S:
            self._hangs()
        if self._work.qsize() >= WAITING:
            self._hangs()
            return
        self._work.put(partial(span.end, end_ns))
        if self._thread is None:
            self._start()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was queued so far is ended; whether that was in time."""
        if self._thread is None or self._pid != os.getpid():
            return True
        ended = threading.Event()
        self._work.put(ended.set)
        return ended.wait(timeout_s)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End what is queued, and the thread, in this time at most; a later end makes another."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        self._work.put(None)
        thread.join(timeout_s)
        if thread.is_alive():
            self._hangs()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="outlast-spans", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending: no new threads
                self._work.put(None)
                self._run()
            else:
                self._thread = thread

    def _run(self) -> None:
        while (end := self._work.get()) is not None:
            self._since_s = time.monotonic()
            with self._trouble:
                end()
            self._since_s = float("inf")

    def _hangs(self) -> None:
        self._trouble.tell(
            "A span exporter hangs; spans are dropped, records are not affected (this is told once)"
        )
