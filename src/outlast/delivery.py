"""What the futures of one batch share: its outcome, and who waits for it.

Outcomes come in *pieces*: usually one for the whole batch, several if the batch was split on its
way; a record is settled when its piece is.

Rules:
* `settle` runs on the I/O thread, with no lock held while callbacks run. It keeps no reference to
  the batch, so that the records' bytes are freed while users still hold futures.
* Callbacks run in the records' order, those of many records at once behind them. Whoever waits in
  `get()` is woken after them, as in kafka-python; whoever comes while they run is answered at once.
* A callback must not wait for the thread it runs on: `get()` raises there instead of hanging.
* What is settled is read without the lock. In a forked child its holder may be gone.
* The lock may be taken twice by one thread: a signal handler may come in between.
* Exceptions are made when someone asks. All records that failed for one reason share one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafka.errors import IllegalStateError
from kafka.structs import TopicPartition

from outlast.errors import DeliveryError, error_for
from outlast.io.flag import Flag

if TYPE_CHECKING:
    from outlast.engine.batch import Batch, Result
    from outlast.engine.outcomes import AttemptRecord, Failure, Outcome
    from outlast.engine.record_batch import Record

log = logging.getLogger(__name__)

Callback = Callable[[Any], Any]


class Future(Protocol):
    """A record's future, as seen from here (`outlast.future.DeliveryFuture`)."""

    error_on_callbacks: bool

    def metadata(self, piece: Piece) -> Any:
        """What a success callback gets."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A record that failed, given back to `on_undelivered`.

    Attributes:
        timestamp_ms: the record's own timestamp, in milliseconds since the epoch.
        outcome: `Outcome.NEVER_SENT`, `NOT_ACCEPTED` or `UNKNOWN`; only after *unknown* may the
            record be in the log, so sending it again may write it twice.
        error: what the record's future raises.
        attempts: tries to deliver its batch, the first seven and the last seven.
    """

    topic: str
    partition: int | None
    key: bytes | None = field(repr=False)  # what is in a record belongs into no log
    value: bytes | None = field(repr=False)
    headers: tuple[tuple[str, bytes | None], ...] = field(repr=False)
    timestamp_ms: int
    outcome: Outcome
    error: DeliveryError
    attempts: tuple[AttemptRecord, ...]


OnUndelivered = Callable[[Undelivered], object]

# The producer whose callbacks this thread is running, as its Hearing.
_running = threading.local()
if hasattr(os, "register_at_fork"):  # a child that is forked in a callback has gone out of it
    # each thread has a __dict__ of its own: it is looked up there and then
    os.register_at_fork(after_in_child=lambda: _running.__dict__.clear())  # noqa: PLW0108


class Hearing:
    """What the deliveries of one producer share: who gets failed records back."""

    __slots__ = ("on_undelivered",)

    def __init__(self, on_undelivered: OnUndelivered | None = None) -> None:
        self.on_undelivered = on_undelivered


class Piece:
    """The outcome of the records [first, end) of a delivery."""

    __slots__ = (
        "_errors",
        "base_offset",
        "end",
        "failure",
        "first",
        "gaps",
        "log_append_time_ms",
        "node_id",
        "record_failures",
        "told",
        "topic_partition",
    )

    def __init__(
        self, first: int, count: int, topic_partition: TopicPartition, result: Result
    ) -> None:
        self.first = first
        self.end = first + count
        self.told = False  # whether its callbacks have run
        self.gaps: tuple[int, ...] = ()
        self.node_id = -1
        self.topic_partition = topic_partition
        self.base_offset = result.base_offset
        self.log_append_time_ms = result.log_append_time_ms
        self.failure: Failure | None = result.failure
        self.record_failures: Mapping[int, Failure] = result.record_failures
        self._errors: dict[int, DeliveryError] = {}

    def __repr__(self) -> str:
        return f"<Piece {self.first}–{self.end - 1} {self.failure or self.base_offset}>"

    def failure_of(self, index: int) -> Failure | None:
        """Why this record failed, if it did."""
        return self.record_failures.get(index - self.first, self.failure)

    def error(self, index: int) -> DeliveryError | None:
        """The exception of this record; one instance for each failure."""
        failure = self.failure_of(index)
        if failure is None:
            return None
        made = self._errors.get(id(failure))
        # setdefault: two threads that ask at once must get the same one.
        return made or self._errors.setdefault(
            id(failure), error_for(failure, self.topic_partition)
        )


class Listener(NamedTuple):
    """A callback of one record: it wants the value, or else the exception."""

    number: int  # the record's index in the delivery
    future: Future
    callback: Callback
    wants_value: bool
    of_many: bool = False  # it hears of other records, too: after those who hear of one


class Delivery:
    """What the futures of one batch share: its outcome, and who waits for it."""

    __slots__ = ("_flags", "_hearing", "_listeners", "_lock", "_pieces")

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._pieces: tuple[Piece, ...] = ()
        self._lock = threading.RLock()
        self._listeners: dict[int, Listener] | None = None  # by id: one may leave
        self._flags: list[Flag] | None = None  # of threads that wait

    @classmethod
    def refused(
        cls,
        topic_partition: TopicPartition,
        failure: Failure,
        count: int,
        hearing: Hearing,
    ) -> Delivery:
        """The delivery of records that failed before they could join a batch. Whoever is to have
        them back gets them by `give_back`.
        """
        from outlast.engine.batch import Result  # it is there: who refuses has an engine

        delivery = cls(hearing)
        piece = Piece(0, count, topic_partition, Result(failure=failure))
        piece.told = hearing.on_undelivered is None
        delivery._pieces = (piece,)
        return delivery

    def give_back(self, records: list[Record]) -> None:
        """On the I/O thread: tell `on_undelivered` of records that were refused. Logs what it
        raises.
        """
        [piece] = self._pieces
        before = getattr(_running, "hearing", None)
        _running.hearing = self._hearing
        try:
            if self._hearing.on_undelivered is not None:
                _give_back(records, piece, self._hearing.on_undelivered)
        except BaseException:  # SystemExit too: it would end the I/O thread, not the process
            log.exception("Error in on_undelivered")
        finally:
            _running.hearing = before
            self._told(piece)

    def __repr__(self) -> str:
        pieces = ", ".join(f"{piece.first}–{piece.end - 1}" for piece in self._pieces)
        return f"<Delivery settled: {pieces or 'nothing'}>"

    def piece(self, index: int) -> Piece | None:
        """The outcome that covers this record, if there is one yet."""
        for piece in self._pieces:
            if piece.first <= index < piece.end:
                return piece
        return None

    def settle(self, batch: Batch) -> None:
        """Take over the outcome of a settled batch, or of a piece of a split one.

        Raises:
            Exception: what a callback raised, if `Future.error_on_callbacks` is set.
        """
        piece = _piece_of(batch)
        with self._lock:
            self._pieces = (*self._pieces, piece)
            due = self._take_listeners(piece)
        on_undelivered = self._hearing.on_undelivered
        before = getattr(_running, "hearing", None)
        _running.hearing = self._hearing
        try:
            try:
                if on_undelivered is not None and (piece.failure or piece.record_failures):
                    _give_back(batch.records(), piece, on_undelivered)
            finally:
                tell(due, piece)
        finally:
            _running.hearing = before
            self._told(piece)

    def _told(self, piece: Piece) -> None:
        """Its callbacks have run: wake who waits."""
        with self._lock:
            piece.told = True
            flags, self._flags = self._flags or (), None
        for flag in flags:
            flag.set()

    def inherit(self, batch: Batch) -> None:
        """In a forked child: the outcome there, for those who ask. Callbacks are the parent's, and
        the lock may be held by a thread that is not here.
        """
        self._lock, self._flags, self._listeners = threading.RLock(), None, None
        piece = _piece_of(batch)
        piece.told = True
        self._pieces = (*self._pieces, piece)

    def wait(self, index: int, timeout_s: float | None) -> Piece | None:
        """Block until this record is settled; None if that took longer than `timeout_s`.

        Raises:
            IllegalStateError: called from a callback of the same producer, whose thread it is that
                would settle the record.
        """
        piece = self.piece(index)
        if piece is None:
            self._wait_for(lambda: self.piece(index) is not None, timeout_s)
            piece = self.piece(index)
        return piece

    def wait_told(self, count: int, timeout_s: float | None) -> bool:
        """Block until the first `count` records are settled and their callbacks have run."""

        def all_told() -> bool:
            told = (p.end - p.first for p in self._pieces if p.told and p.first < count)
            return sum(told) >= count

        return all_told() or self._wait_for(all_told, timeout_s)

    def listen(self, listener: Listener) -> None:
        """Run a callback once its record is settled; at once if it is."""
        piece = self.piece(listener.number)
        if piece is None:
            with self._lock:
                piece = self.piece(listener.number)
                if piece is None:
                    if self._listeners is None:
                        self._listeners = {}
                    self._listeners[id(listener)] = listener
                    return
        tell([listener], piece)

    def unlisten(self, listener: Listener) -> None:
        """It need not hear of its record any more."""
        with self._lock:
            if self._listeners is not None:
                self._listeners.pop(id(listener), None)

    def _wait_for(self, reached: Callable[[], bool], timeout_s: float | None) -> bool:
        if getattr(_running, "hearing", None) is self._hearing and timeout_s != 0:
            raise IllegalStateError(
                "get() in a callback would wait for the thread that it runs on; use timeout=0, or "
                "add a callback to that future"
            )
        last_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            flag = Flag()
            with self._lock:
                if reached():
                    return True
                self._flags = [*(self._flags or ()), flag]
            left_s = threading.TIMEOUT_MAX if last_s is None else last_s - time.monotonic()
            try:
                if left_s <= 0 or not flag.wait(min(left_s, threading.TIMEOUT_MAX)):
                    return reached()
            finally:
                with self._lock:
                    self._flags = [other for other in self._flags or () if other is not flag]

    def _take_listeners(self, piece: Piece) -> list[Listener]:
        if not self._listeners:
            return []
        due = [e for e in self._listeners.values() if piece.first <= e.number < piece.end]
        for entry in due:
            del self._listeners[id(entry)]
        due.sort(key=lambda entry: (entry.of_many, entry.number))
        return due


def _piece_of(batch: Batch) -> Piece:
    assert batch.result is not None, f"{batch} is not settled"
    topic_partition = TopicPartition(batch.topic, batch.partition)
    piece = Piece(batch.first_index, batch.count, topic_partition, batch.result)
    piece.gaps = batch.gaps
    piece.node_id = batch.attempts[-1].connection.node_id if batch.attempts else -1
    return piece


def _give_back(records: list[Record], piece: Piece, on_undelivered: OnUndelivered) -> None:
    """Call `on_undelivered` for each record that failed. What it raises is logged, for other
    records wait behind this one; what is no `Exception` is raised when they all had their turn.
    """
    ending: BaseException | None = None
    for index, record in enumerate(records, piece.first):
        error = piece.error(index)
        if error is None:
            continue
        undelivered = Undelivered(
            topic=piece.topic_partition.topic,
            partition=piece.topic_partition.partition,
            key=record.key,
            value=record.value,
            headers=tuple(record.headers),
            timestamp_ms=record.timestamp_ms,
            outcome=error.outcome,
            error=error,
            attempts=error.attempts,
        )
        try:
            on_undelivered(undelivered)
        except Exception:
            log.exception("Error in on_undelivered")
        except BaseException as raised:
            ending = ending or raised
    if ending is not None:
        raise ending


def tell(listeners: list[Listener], piece: Piece) -> None:
    """Run callbacks, all of them: others may wait for theirs for ever. What they raise is logged;
    the first is raised at the end if `Future.error_on_callbacks` asks for it (kafka-python's own
    tests do), or if it is no `Exception`: `sys.exit()`, or Ctrl-C where this is the main thread.
    """
    first_error: BaseException | None = None
    for index, future, callback, wants_value, _ in listeners:
        error = piece.error(index)
        if wants_value is not (error is None):
            continue
        try:
            callback(future.metadata(piece) if error is None else error)
        except Exception as raised:
            log.exception("Error processing %s", "callback" if wants_value else "errback")
            if future.error_on_callbacks:
                first_error = first_error or raised
        except BaseException as raised:
            first_error = first_error or raised
    if first_error is not None:
        raise first_error
