"""Outcomes to futures, facts to observers: where the user's code runs, and what it raises ends.

Called with the lock released, on the I/O thread as a rule.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol, TypeVar, cast

from outlast.engine.batch import Batch, Result
from outlast.engine.failure_reasons import EXPIRED, FailureReason
from outlast.engine.messages import Completion, Fact, Outcome, RecordsSettled, Settled
from outlast.engine.sender import Sender

log = logging.getLogger(__name__)

Observer = Callable[[Fact], object]
T = TypeVar("T")


class Delivery(Protocol):
    """What the futures of one batch share (`outlast.future.Delivery`)."""

    def settle(self, batch: Batch) -> None:
        """Take over the outcome, and run callbacks."""

    def inherit(self, batch: Batch) -> None:
        """In a forked child: take over the outcome there. Nobody is called back."""

    def wait_told(self, count: int, timeout_s: float | None) -> bool:
        """Wait until the first `count` records are settled and their callbacks have run."""


def records_of(batches: Iterable[Batch]) -> dict[Delivery, int]:
    """The deliveries of these batches: until which record, counted from 1, each is concerned."""
    counts: dict[Delivery, int] = {}
    for batch in batches:
        delivery = _delivery_of(batch)
        if delivery is not None:
            counts[delivery] = max(counts.get(delivery, 0), batch.first_index + batch.count)
    return counts


def settled_of(completions: Iterable[Completion]) -> list[Batch]:
    """The batches that these tell the outcome of."""
    return [done.batch for done in completions if isinstance(done, Settled)]


def settle(batch: Batch, trouble: Callable[[float], str] = lambda _since_s: "") -> None:
    """Give a settled batch's outcome to its futures; `trouble`: what there was since then."""
    failure = batch.result.failure if batch.result else None
    if failure is not None and failure.kind == EXPIRED and (told := trouble(batch.created_s)):
        failure = replace(failure, message=f"{failure.message}; {told}")
        batch.result = replace(batch.result, failure=failure)  # type: ignore[type-var]
    delivery = _delivery_of(batch)
    if delivery is None:
        return
    try:
        delivery.settle(batch)
    except BaseException:  # SystemExit too: it would end the I/O thread, not the process
        log.exception("Error in a callback of %r", batch)


def fail_all(sender: Sender, kind: str, message: str, now: float) -> None:
    """Fail every record of an engine that will not do it itself."""
    for batch in sender.flush(now):
        why = FailureReason(kind, None, message)
        batch.result = Result(failure=batch.failure(why, time.time() - now))
        settle(batch)


def leave_behind(sender: Sender, untold: Iterable[Completion], now: float) -> None:
    """In a forked child: its copies of the futures get an outcome, for nobody will settle them
    there. What is settled and not told yet has its own; the parent goes on with the rest, and it
    is the parent that calls back.
    """
    settled = settled_of((*untold, *sender.take().completions))
    unsettled = sender.flush(now)
    why = FailureReason("forked", None, "the process that forked this one goes on with it")
    for batch in unsettled:
        failure = batch.failure(why, time.time() - now)
        batch.result = Result(failure=replace(failure, outcome=Outcome.UNKNOWN))
    for batch in (*settled, *unsettled):
        delivery = _delivery_of(batch)
        if delivery is not None:
            delivery.inherit(batch)


def _delivery_of(batch: Batch) -> Delivery | None:
    """What the driver has put into the batch's free slot.

    None: nobody has a future of it. (Ctrl-C may come between the engine's append and the slot.)
    """
    return cast("Delivery | None", batch.delivery)


class Observers:
    """Callables that get each fact. One that raises is logged once, and dropped.

    One whose `hears_batches` is False is not called for the one fact that comes with each batch.
    Of these one may come for each of a hundred batches that an answer settles: who has `together`
    is given such a run at once, by that.
    """

    __slots__ = ("_observers", "_of_batches")

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._keep(observers)

    def _keep(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        hearing = [o for o in self._observers if getattr(o, "hears_batches", True)]
        self._of_batches = tuple((o, getattr(o, "together", None)) for o in hearing)

    def __repr__(self) -> str:
        return f"<Observers {len(self._observers)}>"

    def tell(self, facts: Iterable[Fact]) -> None:
        """Call all observers with each fact."""
        for kind, run in groupby(facts, type):
            if kind is RecordsSettled:
                self._tell_of_batches(tuple(run))
                continue
            for fact in run:
                for observer in self._observers:
                    self._tell(observer, observer, fact)

    def _tell_of_batches(self, run: Sequence[Fact]) -> None:
        for observer, together in self._of_batches:
            if together is not None:
                self._tell(observer, together, run)
                continue
            for fact in run:
                self._tell(observer, observer, fact)

    def _tell(self, observer: Observer, call: Callable[[T], object], told: T) -> None:
        try:
            call(told)
        except BaseException:
            log.exception("An observer raised, and is dropped: %r", observer)
            self._keep(o for o in self._observers if o is not observer)
