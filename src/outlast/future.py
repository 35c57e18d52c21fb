"""Futures of single records, lazily made over what one batch came to.

A producer makes one future for each record, so they must cost little: 6 fields and no lock. What
they share is the `Delivery` of their batch. RecordMetadata is made when someone asks.

They can be awaited, in any number of asyncio's loops, and as often as one likes. A task that is
cancelled meanwhile takes nothing back: the record is on its way.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kafka.errors import RetriableError
from kafka.producer.future import FutureRecordMetadata, RecordMetadata

from outlast.delivery import (
    Callback,
    Delivery as Delivery,
    Hearing as Hearing,
    Listener,
    OnUndelivered as OnUndelivered,
    Piece,
    Undelivered as Undelivered,
)
from outlast.errors import BlockedError, DeliveryError, OutlastError, is_refusal
from outlast.io.waiting import Parked

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future


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

    def __eq__(self, other: object) -> bool:
        """Whether both tell of the same record."""
        if not isinstance(other, DeliveryFuture):
            return NotImplemented
        return self._delivery is other._delivery and self._index == other._index

    def __hash__(self) -> int:
        return hash((id(self._delivery), self._index))

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

    def succeeded(self) -> bool:
        """Whether the record is delivered."""
        piece = self._delivery.piece(self._index)
        return piece is not None and piece.failure_of(self._index) is None

    def failed(self) -> bool:
        """Whether the record has failed."""
        return self.exception is not None

    def retriable(self) -> bool:
        """Whether it failed with what kafka-python calls a retriable error."""
        return isinstance(self.exception, RetriableError)

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

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        """The record's metadata, or raise its error: in asyncio, and in kafka-python's own loop."""
        asyncio = sys.modules.get("asyncio.events")
        loop = None if asyncio is None else asyncio._get_running_loop()
        if loop is not None and not self.is_done:
            yield from _done_in(loop, self).__await__()
        elif not self.is_done:
            yield self  # kafka-python's loop goes on when it is settled
        return self.get(timeout=0)

    async def _taken(self, refused: Callable[..., Delivery]) -> DeliveryFuture:
        """For `send_async`: this, once its record is in the buffer."""
        parked: Any = self._delivery
        if not isinstance(parked, Parked):
            return self
        try:
            batch, index = await parked.answer()
            delivery = batch.delivery
        except BaseException as error:
            if not is_refusal(error):
                for listener in parked.listeners:
                    if not listener.wants_value:
                        listener.callback(error)
                raise
            delivery, index = refused(error, *parked.record()), 0
        self._delivery, self._index = delivery, index
        for listener in parked.listeners:
            delivery.listen(listener._replace(number=index))
        return self

    def metadata(self, piece: Piece) -> RecordMetadata:
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

    def add_both(self, f: Callback, *args: Any, **kwargs: Any) -> DeliveryFuture:
        """Call `f` with whatever it comes to, the metadata or the exception."""
        return self.add_callback(f, *args, **kwargs).add_errback(f, *args, **kwargs)

    def chain(self, future: Any) -> DeliveryFuture:
        """Settle another of kafka-python's futures like this one."""
        return self._add_cb_eb(future.success, future.failure)

    def _add_cb_eb(self, cb: Callback, eb: Callback) -> DeliveryFuture:
        return self.add_callback(cb).add_errback(eb)

    def _listen(
        self, f: Callback, args: tuple[Any, ...], kwargs: dict[str, Any], *, wants_value: bool
    ) -> DeliveryFuture:
        if args or kwargs:
            f = functools.partial(f, *args, **kwargs)
        self._delivery.listen(Listener(self._index, self, f, wants_value))
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


def _done_in(loop: AbstractEventLoop, future: DeliveryFuture) -> Future[None]:
    """What this loop can wait for. Each wait has its own, that may be cancelled."""
    done = loop.create_future()

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(set_result)

    def set_result() -> None:
        if not done.done():
            done.set_result(None)

    number, delivery = future._index, future._delivery
    listeners = [Listener(number, future, tell, wants_value) for wants_value in (True, False)]

    def ended(done: Future[None]) -> None:
        if done.cancelled():  # a loop of time-outs must not leave more and more behind
            for listener in listeners:
                delivery.unlisten(listener)

    for listener in listeners:
        delivery.listen(listener)
    done.add_done_callback(ended)
    return done
