"""Outcomes to futures, facts to observers: where the user's code runs, and what it raises ends.

Called with the lock released, on the I/O thread as a rule.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from outlast.engine.batch import Batch, Result
from outlast.engine.messages import Fact
from outlast.engine.sender import Sender

log = logging.getLogger(__name__)

Observer = Callable[[Fact], object]


class Delivery(Protocol):
    """What the futures of one batch share (`outlast.future.Delivery`)."""

    def settle(self, batch: Batch) -> None:
        """Take over the outcome, and run callbacks."""

    def wait_told(self, count: int, timeout_s: float | None) -> bool:
        """Wait until the first `count` records are settled and their callbacks have run."""


def delivery_of(batch: Batch) -> Delivery:
    """What the driver has put into the batch's free slot."""
    assert batch.delivery is not None
    return cast("Delivery", batch.delivery)


def settle(batch: Batch) -> None:
    """Give a settled batch's outcome to its futures."""
    try:
        delivery_of(batch).settle(batch)
    except BaseException:  # SystemExit too: it would end the I/O thread, not the process
        log.exception("Error in a callback of %r", batch)


def fail_all(sender: Sender, kind: str, message: str, now: float) -> None:
    """Fail every record of an engine that will not do it itself."""
    for batch in sender.flush(now):
        batch.result = Result(failure=batch.failure(kind, None, message, time.time() - now))
        settle(batch)


class Observers:
    """Callables that get each fact. One that raises is logged once, and dropped."""

    __slots__ = ("_observers",)

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def __repr__(self) -> str:
        return f"<Observers {len(self._observers)}>"

    def tell(self, facts: Iterable[Fact]) -> None:
        """Call all observers with each fact."""
        for fact in facts:
            for observer in self._observers:
                self._tell(observer, fact)

    def _tell(self, observer: Observer, fact: Fact) -> None:
        try:
            observer(fact)
        except BaseException:
            log.exception("An observer raised, and is dropped: %r", observer)
            self._observers = tuple(o for o in self._observers if o is not observer)
