"""Futures of single records, lazily made over what one batch came to.

A producer makes one future for each record, so they must cost little: 6 fields and no lock. What
they share is the `Delivery` of their batch. It hears of outcomes in *pieces*: usually one for the
whole batch, several if the batch was split on its way; a record is settled when its piece is.

Rules:
* `settle` runs on the I/O thread, with no lock held while callbacks run. It keeps no reference to
  the batch, so that the records' bytes are freed while users still hold futures.
* Callbacks run in the records' order. Whoever waits in `get()` is woken after them, as in
  kafka-python; whoever comes while they run is answered at once.
* A callback must not wait for the thread it runs on: `get()` raises there instead of hanging.
* RecordMetadata and exceptions are made when someone asks. All records that failed for one reason
  share one exception.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka.errors import IllegalStateError
from kafka.producer.future import FutureRecordMetadata, RecordMetadata
from kafka.structs import TopicPartition

from outlast.engine.batch import Batch, Result
from outlast.engine.messages import AttemptRecord, Failure, Outcome
from outlast.engine.record_batch import Record
from outlast.errors import BlockedError, DeliveryError, OutlastError, error_for

log = logging.getLogger(__name__)

Callback = Callable[[Any], Any]


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


class Hearing:
    """What the deliveries of one producer share: who gets failed records back."""

    __slots__ = ("on_undelivered",)

    def __init__(self, on_undelivered: OnUndelivered | None = None) -> None:
        self.on_undelivered = on_undelivered


class _Piece:
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

    def failure_of(self, index: int) -> Failure | None:
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


class _Listener(NamedTuple):
    """A callback of one record: it wants the value, or else the exception."""

    number: int  # the record's index in the delivery
    future: DeliveryFuture
    callback: Callback
    wants_value: bool


class Delivery:
    """What the futures of one batch share: its outcome, and who waits for it."""

    __slots__ = ("_changed", "_hearing", "_listeners", "_lock", "_pieces")

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._pieces: tuple[_Piece, ...] = ()
        self._lock = threading.Lock()
        self._listeners: list[_Listener] | None = None
        self._changed: threading.Condition | None = None

    @classmethod
    def refused(
        cls,
        topic_partition: TopicPartition,
        failure: Failure,
        record: Record,
        hearing: Hearing,
    ) -> Delivery:
        """The delivery of one record that failed before it could join a batch."""
        delivery = cls(hearing)
        piece = _Piece(0, 1, topic_partition, Result(failure=failure))
        piece.told = True
        delivery._pieces = (piece,)
        if hearing.on_undelivered is not None:
            _give_back([record], piece, hearing.on_undelivered)
        return delivery

    def __repr__(self) -> str:
        pieces = ", ".join(f"{piece.first}–{piece.end - 1}" for piece in self._pieces)
        return f"<Delivery settled: {pieces or 'nothing'}>"

    def piece(self, index: int) -> _Piece | None:
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
        assert batch.result is not None, f"{batch} is not settled"
        topic_partition = TopicPartition(batch.topic, batch.partition)
        piece = _Piece(batch.first_index, batch.count, topic_partition, batch.result)
        piece.gaps = batch.gaps
        piece.node_id = batch.attempts[-1].connection.node_id if batch.attempts else -1
        with self._lock:
            self._pieces = (*self._pieces, piece)
            due = self._take_listeners(piece)
        on_undelivered = self._hearing.on_undelivered
        before = getattr(_running, "hearing", None)
        _running.hearing = self._hearing
        try:
            if on_undelivered is not None and (piece.failure or piece.record_failures):
                _give_back(batch.records(), piece, on_undelivered)
            _tell(due, piece)
        finally:
            _running.hearing = before
            with self._lock:
                piece.told = True
                if self._changed is not None:
                    self._changed.notify_all()

    def wait(self, index: int, timeout_s: float | None) -> _Piece | None:
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

    def listen(self, listener: _Listener) -> None:
        """Run a callback once its record is settled; at once if it is."""
        with self._lock:
            piece = self.piece(listener.number)
            if piece is None:
                if self._listeners is None:
                    self._listeners = []
                self._listeners.append(listener)
                return
        _tell([listener], piece)

    def _wait_for(self, reached: Callable[[], bool], timeout_s: float | None) -> bool:
        if getattr(_running, "hearing", None) is self._hearing and timeout_s != 0:
            raise IllegalStateError(
                "get() in a callback would wait for the thread that it runs on; use timeout=0, or "
                "add a callback to that future"
            )
        if timeout_s is not None:
            timeout_s = min(timeout_s, threading.TIMEOUT_MAX)
        with self._lock:
            if self._changed is None:
                self._changed = threading.Condition(self._lock)
            return self._changed.wait_for(reached, timeout_s)

    def _take_listeners(self, piece: _Piece) -> list[_Listener]:
        if not self._listeners:
            return []
        due = [entry for entry in self._listeners if piece.first <= entry.number < piece.end]
        self._listeners = [e for e in self._listeners if not piece.first <= e.number < piece.end]
        due.sort(key=lambda entry: entry.number)
        return due


def _give_back(records: list[Record], piece: _Piece, on_undelivered: OnUndelivered) -> None:
    """Call `on_undelivered` for each record that failed. What it raises is logged, for other
    records wait behind this one.
    """
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


def _tell(listeners: list[_Listener], piece: _Piece) -> None:
    """Run callbacks. What they raise is logged; the first is raised at the end if
    `Future.error_on_callbacks` asks for it (kafka-python's own tests do).
    """
    first_error: Exception | None = None
    for index, future, callback, wants_value in listeners:
        error = piece.error(index)
        if wants_value is not (error is None):
            continue
        try:
            callback(future.metadata(piece) if error is None else error)
        except Exception as raised:
            log.exception("Error processing %s", "callback" if wants_value else "errback")
            if future.error_on_callbacks:
                first_error = first_error or raised
    if first_error is not None:
        raise first_error


class DeliveryFuture(FutureRecordMetadata):  # type: ignore[misc]
    """The future that `KafkaProducer.send` returns: a kafka-python `FutureRecordMetadata`.

    `get(timeout)` waits and returns the `RecordMetadata` or raises the `DeliveryError`;
    `is_done`, `value` and `exception` tell the same without waiting.
    """

    # The parent has eight slots for state that a Delivery holds here. They are used again under
    # names of our own: 48 bytes less for each of the many records that wait.
    __slots__ = tuple[str, ...]()
    _delivery: Delivery = FutureRecordMetadata._produce_future
    _index: int = FutureRecordMetadata.is_done
    _timestamp_ms: int = FutureRecordMetadata._lock
    _key_size: int = FutureRecordMetadata._callbacks
    _value_size: int = FutureRecordMetadata._errbacks
    _header_size: int = FutureRecordMetadata.value

    def __init__(
        self,
        delivery: Delivery,
        index: int,
        timestamp_ms: int,
        key_size: int,
        value_size: int,
        header_size: int,
    ) -> None:
        self._delivery = delivery
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._key_size = key_size
        self._value_size = value_size
        self._header_size = header_size

    def __repr__(self) -> str:
        piece = self._delivery.piece(self._index)
        if piece is None:
            return "<DeliveryFuture pending>"
        return f"<DeliveryFuture {piece.error(self._index) or self.metadata(piece)!r}>"

    @property
    def is_done(self) -> bool:
        """Whether the record is delivered or failed."""
        return self._delivery.piece(self._index) is not None

    @property
    def value(self) -> RecordMetadata | None:
        """The record's metadata once it is delivered, else None."""
        piece = self._delivery.piece(self._index)
        if piece is None or piece.failure_of(self._index) is not None:
            return None
        return self.metadata(piece)

    @property
    def exception(self) -> DeliveryError | None:
        """Why the record failed, or None."""
        piece = self._delivery.piece(self._index)
        return None if piece is None else piece.error(self._index)

    @property
    def gaps(self) -> tuple[int, ...]:
        """Numbers of the gaps that held the record up, once it is delivered or failed."""
        piece = self._delivery.piece(self._index)
        return () if piece is None else piece.gaps

    @property
    def node_id(self) -> int:
        """The broker that the record was last sent to, once it is delivered or failed; else -1."""
        piece = self._delivery.piece(self._index)
        return -1 if piece is None else piece.node_id

    @property
    def args(self) -> tuple[int, int, None, int, int, int]:
        """As in kafka-python: index in the batch, timestamp, checksum, sizes."""
        return (
            self._index,
            self._timestamp_ms,
            None,
            self._key_size,
            self._value_size,
            self._header_size,
        )

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the outcome, `timeout` seconds at most (None: as long as it takes).

        Raises:
            DeliveryError: the record failed; also of the class that kafka-python raises.
            BlockedError: it is not settled in time (a KafkaTimeoutError).
            IllegalStateError: called in a callback, where it would wait for itself.
        """
        piece = self._delivery.wait(self._index, timeout)
        if piece is None:
            raise BlockedError(f"Timeout after waiting for {timeout} secs.")
        error = piece.error(self._index)
        if error is not None:
            # Shared by many: without this its traceback would grow with each get().
            raise error.with_traceback(None)
        return self.metadata(piece)

    def metadata(self, piece: _Piece) -> RecordMetadata:
        """What kafka-python tells of a delivered record; offset -1 where no broker told it."""
        offset = piece.base_offset
        if offset != -1:
            offset += self._index - piece.first
        timestamp_ms = piece.log_append_time_ms
        if timestamp_ms == -1:
            timestamp_ms = self._timestamp_ms
        return RecordMetadata(
            piece.topic_partition.topic,
            piece.topic_partition.partition,
            piece.topic_partition,
            offset,
            timestamp_ms,
            None,
            self._key_size,
            self._value_size,
            self._header_size,
        )

    def add_callback(self, f: Callback, *args: Any, **kwargs: Any) -> DeliveryFuture:
        """Call `f(*args, metadata, **kwargs)` when the record is delivered, on the I/O thread."""
        return self._listen(f, args, kwargs, wants_value=True)

    def add_errback(self, f: Callback, *args: Any, **kwargs: Any) -> DeliveryFuture:
        """Call `f(*args, exception, **kwargs)` when the record fails, on the I/O thread."""
        return self._listen(f, args, kwargs, wants_value=False)

    def _add_cb_eb(self, cb: Callback, eb: Callback) -> DeliveryFuture:
        return self.add_callback(cb).add_errback(eb)

    def _listen(
        self, f: Callback, args: tuple[Any, ...], kwargs: dict[str, Any], *, wants_value: bool
    ) -> DeliveryFuture:
        if args or kwargs:
            f = functools.partial(f, *args, **kwargs)
        self._delivery.listen(_Listener(self._index, self, f, wants_value))
        return self

    def success(self, value: Any) -> DeliveryFuture:
        """Not for users: only the producer settles it."""
        raise OutlastError(f"only the producer settles {self!r}, not with {value!r}")

    def failure(self, e: Any) -> DeliveryFuture:
        """Not for users: only the producer settles it."""
        raise OutlastError(f"only the producer settles {self!r}, not with {e!r}")

    def rebind(self, new_produce_future: Any, new_batch_index: int) -> None:
        """Not for users: a split batch keeps its records' Delivery."""
        raise OutlastError(f"{self!r} keeps its delivery: {new_produce_future}, {new_batch_index}")
