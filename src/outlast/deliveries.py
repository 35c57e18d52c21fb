"""What `send_many` returns: one future for many records.

It holds, for each run of records that joined one batch, that batch's `Delivery`; and of each record
its sizes, in arrays. What is made for one record (its future, its metadata) is made when asked for.

Rules:
* Outcomes are those of the single records, in the order of the values that were given.
* A callback hears of all records at once, when the last of them is settled: on the I/O thread,
  behind the records' own; where they are settled already, at once on the caller's.
"""

from __future__ import annotations

import logging
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, overload

from kafka.producer.future import RecordMetadata

from outlast.delivery import Delivery, Listener, Piece
from outlast.errors import BlockedError, DeliveryError
from outlast.future import DeliveryFuture

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """Records one after the other, that joined one batch."""

    delivery: Delivery
    first: int  # index among the delivery's records
    size: int  # how many


class Sizes(NamedTuple):
    """What RecordMetadata tells of records beside their place."""

    timestamp_ms: int
    keys: array[int] | None  # bytes of each; None: no record has a key
    values: array[int]  # -1: no value
    headers: int  # of all records
    each_headers: Sequence[int] | None = None  # where they differ


class Deliveries(Sequence[DeliveryFuture]):
    """The outcomes of the records that one `send_many` took, in their order.

    `deliveries[i]` is the future of record i. Callbacks get this object, once, when all records
    are settled.

    Args:
        numbers: of the records of all parts, one after the other. None: they are in order.
    """

    __slots__ = ("_looked", "_numbers", "_parts", "_places", "_sizes", "_starts")

    def __init__(
        self, parts: Sequence[Part], sizes: Sizes, numbers: array[int] | None = None
    ) -> None:
        self._parts = parts
        self._sizes = sizes
        self._numbers = numbers
        self._places: array[int] | None = None  # of each record, its place among the parts'
        self._starts = array("q")
        start = 0
        for part in parts:
            self._starts.append(start)
            start += part.size
        self._looked = 0  # all parts before this one are settled

    def __repr__(self) -> str:
        state = "settled" if self.is_done else "pending"
        return f"<Deliveries records={len(self)} {state}>"

    def __len__(self) -> int:
        return len(self._sizes.values)

    @overload
    def __getitem__(self, index: int) -> DeliveryFuture: ...
    @overload
    def __getitem__(self, index: slice) -> list[DeliveryFuture]: ...
    def __getitem__(self, index: int | slice) -> DeliveryFuture | list[DeliveryFuture]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"index {index} is out of range: {len(self)} records were sent")
        place = self._place_of(number)
        at = bisect_right(self._starts, place) - 1
        part = self._parts[at]
        return self._future(part, number, part.first + place - self._starts[at])

    def __iter__(self) -> Iterator[DeliveryFuture]:
        return map(self.__getitem__, range(len(self))) if self._numbers else self._by_part()

    def _by_part(self) -> Iterator[DeliveryFuture]:
        place = 0
        for part in self._parts:
            for index in range(part.first, part.first + part.size):
                yield self._future(part, self._number_of(place), index)
                place += 1

    def _number_of(self, place: int) -> int:
        """Of the record that has this place among those of all parts."""
        return place if self._numbers is None else self._numbers[place]

    def _place_of(self, number: int) -> int:
        if self._numbers is None:
            return number
        if self._places is None:
            places = array("I", bytes(self._numbers.itemsize * len(self)))
            for place, its_number in enumerate(self._numbers):
                places[its_number] = place
            self._places = places
        return self._places[number]

    def _future(self, part: Part, number: int, index: int) -> DeliveryFuture:
        sizes = self._sizes
        key_size = -1 if sizes.keys is None else sizes.keys[number]
        header_size = sizes.headers if sizes.each_headers is None else sizes.each_headers[number]
        return DeliveryFuture(
            part.delivery, index, sizes.timestamp_ms, key_size, sizes.values[number], header_size
        )

    # --- outcomes ---

    @property
    def is_done(self) -> bool:
        """Whether all records are delivered or failed."""
        return self._unsettled() is None

    def succeeded(self) -> bool:
        """Whether all records are delivered."""
        return self.is_done and not self.failed(timeout=0)

    def results(self, timeout: float | None = None) -> list[RecordMetadata | DeliveryError]:
        """What became of each record, in order: its metadata, or why it failed.

        Args:
            timeout: seconds to wait for the last of them; None waits as long as it takes.

        Raises:
            BlockedError: not all are settled in time (a KafkaTimeoutError).
            IllegalStateError: it would wait in a callback, that is for itself.
        """
        self._wait(timeout)
        return [future.exception or future.get(timeout=0) for future in self]

    def failed(self, timeout: float | None = None) -> list[tuple[int, DeliveryError]]:
        """Which records failed, by their index, and why. Waits and raises as `results`."""
        self._wait(timeout)
        failed: list[tuple[int, DeliveryError]] = []
        for place, indices, piece in self._settled():
            if piece.failure is not None or piece.record_failures:
                for at, error in enumerate(map(piece.error, indices), place):
                    if error is not None:
                        failed.append((self._number_of(at), error))
        failed.sort(key=itemgetter(0))
        return failed

    def get(self, timeout: float | None = None) -> list[RecordMetadata]:
        """The metadata of all records. Waits and raises as `results`.

        Raises:
            DeliveryError: that of the first record that failed.
        """
        self._wait(timeout)
        return [future.get(timeout=0) for future in self]

    def __await__(self) -> Generator[Any, Any, list[RecordMetadata]]:
        """As `get`, in asyncio."""
        while (unsettled := self._unsettled()) is not None:
            with suppress(DeliveryError):  # of this record: the others are waited for, too
                yield from _bare_future(*unsettled).__await__()
        return self.get(timeout=0)

    @property
    def node_id(self) -> int:
        """The broker that all of them were last sent to; -1: to several, or not yet."""
        nodes = {piece.node_id for _, _, piece in self._settled()} if self.is_done else {-1}
        return nodes.pop() if len(nodes) == 1 else -1

    @property
    def gaps(self) -> tuple[int, ...]:
        """Numbers of the gaps that held any of the records up, as far as these are settled."""
        return tuple(sorted({n for _, _, piece in self._settled() for n in piece.gaps}))

    def _settled(self) -> Iterator[tuple[int, range, Piece]]:
        """Records that share an outcome: the first one's place here, their indices in the delivery,
        the outcome.
        """
        for start, part in zip(self._starts, self._parts, strict=True):
            index, end = part.first, part.first + part.size
            while index < end:
                piece = part.delivery.piece(index)
                next_index = index + 1 if piece is None else min(end, piece.end)
                if piece is not None:
                    yield start + index - part.first, range(index, next_index), piece
                index = next_index

    def _unsettled(self) -> tuple[Delivery, int] | None:
        """The first record without an outcome."""
        for at in range(self._looked, len(self._parts)):
            part = self._parts[at]
            index, end = part.first, part.first + part.size
            while index < end:
                piece = part.delivery.piece(index)
                if piece is None:
                    return part.delivery, index
                index = piece.end
            self._looked = max(self._looked, at + 1)
        return None

    def _wait(self, timeout: float | None) -> None:
        last_s = None if timeout is None else time.monotonic() + timeout
        while (unsettled := self._unsettled()) is not None:
            delivery, index = unsettled
            left_s = None if last_s is None else max(0.0, last_s - time.monotonic())
            if delivery.wait(index, left_s) is None:
                raise BlockedError(f"Timeout after waiting for {timeout} secs.")

    # --- callbacks ---

    def add_callback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Deliveries:
        """Call `f(*args, deliveries, **kwargs)` when all records are delivered."""
        return self._listen(partial(f, *args, **kwargs), told_if=(True,))

    def add_errback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Deliveries:
        """Call it when all records are settled, and at least one has failed."""
        return self._listen(partial(f, *args, **kwargs), told_if=(False,))

    def add_both(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Deliveries:
        """Call it when all records are settled, whatever they came to."""
        return self._listen(partial(f, *args, **kwargs), told_if=(True, False))

    def _listen(self, call: Callable[[Deliveries], Any], told_if: tuple[bool, ...]) -> Deliveries:
        """Wait for one record after the other: the next that has no outcome when one has its."""

        def look(_: object = None) -> None:
            unsettled = self._unsettled()
            if unsettled is not None:
                delivery, index = unsettled
                for wants_value in (True, False):
                    future = _bare_future(delivery, index)
                    delivery.listen(Listener(index, future, look, wants_value, of_many=True))
            elif self.succeeded() in told_if:
                try:
                    call(self)
                except Exception:
                    log.exception("Error in a callback of %r", self)

        look()
        return self


def _bare_future(delivery: Delivery, index: int) -> DeliveryFuture:
    """Of a record, to wait for."""
    return DeliveryFuture(delivery, index, -1, -1, -1, -1)
