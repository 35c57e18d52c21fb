"""`send_many`: many records in one call.

Rules:
* Whatever can be wrong with a value, a key, a header or a size is found before the first record is
  taken: it raises, names the index, and nothing was sent.
* From the first record that was taken on nothing raises any more: the rest, if it cannot be taken,
  fails in the object that comes back, as *never sent*. So nobody sends again what is on its way.
* Records go into batches as `send` puts them there; those that have no key, or all go to one
  partition, in one pass for each batch.
"""

from __future__ import annotations

import copy
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kafka.errors import BrokerResponseError, MessageSizeTooLargeError

from outlast.arguments import (
    OVERHEAD_BYTES,
    Headers,
    as_bytes,
    check_size,
    checked_partition,
    checked_timestamp,
    header_size,
)
from outlast.deliveries import Deliveries, Part, Sizes
from outlast.delivery import Delivery
from outlast.engine.queue import Run

if TYPE_CHECKING:
    from outlast.io.thread import Driver
    from outlast.partitioning import UserPartitioner

Serialize = Callable[[Headers, Any, Any], "tuple[Headers, Any, Any]"]
Refused = Callable[..., Delivery]


class Records:
    """The records of one call, checked and serialized.

    Args:
        headers: of all of them, checked.
        serialize: gives headers, key and value of a record as bytes; None: they are that already.

    Raises:
        TypeError, ValueError, MessageSizeTooLargeError: as `send`, with the record's index.
    """

    __slots__ = ("each_headers", "given", "run", "sizes")

    def __init__(
        self,
        topic: str,
        values: Iterable[Any],
        headers: Headers,
        keys: Iterable[Any] | None,
        partition: int | None,
        timestamp_ms: int | None,
        serialize: Serialize | None,
        max_request_bytes: int,
    ) -> None:
        values = _listed("values", values)
        keys = None if keys is None else _listed("keys", keys)
        if keys is not None and len(keys) != len(values):
            raise ValueError(
                f"{len(keys)} keys for {len(values)} values: there must be as many, or keys=None"
            )
        partition = None if partition is None else checked_partition(partition)
        now_ms = time.time_ns() // 1_000_000
        timestamp_ms = now_ms if timestamp_ms is None else checked_timestamp(timestamp_ms)
        _need_key_or_value(keys, values)
        self.given = values, keys  # before serializing, for a partitioner
        self.each_headers: list[Headers] | None = None  # None: all have the same
        if serialize is not None:
            values, keys = self._serialized(values, keys, headers, serialize)
        values = _all_bytes("value", values)
        keys = None if keys is None else _all_bytes("key", keys)
        self.run = Run(topic, partition, keys, values, headers, timestamp_ms)
        self.sizes = Sizes(
            timestamp_ms,
            None if keys is None else _lengths(keys),
            _lengths(values),
            [header_size(h) if h else -1 for h in self.each_headers or [headers]],
        )
        largest = max(self.sizes.values, default=0) + max(self.sizes.keys or (), default=0)
        if headers or self.each_headers or largest + OVERHEAD_BYTES > max_request_bytes:
            self._check_sizes(max_request_bytes)

    def __len__(self) -> int:
        return len(self.run.values)

    def headers(self, index: int) -> Headers:
        """The headers of one record."""
        return self.each_headers[index] if self.each_headers else list(self.run.headers)  # type: ignore[arg-type]

    def record(self, index: int) -> tuple[Any, ...]:
        """One record: timestamp, key, value, headers."""
        run = self.run
        return run.timestamp_ms, run.key(index), run.values[index], tuple(self.headers(index))

    def _serialized(
        self, values: list[Any], keys: list[Any] | None, headers: Headers, serialize: Serialize
    ) -> tuple[list[Any], list[Any] | None]:
        """Serializers may add headers to each record."""
        each = []
        for index, value in enumerate(values):
            key = None if keys is None else keys[index]
            each.append(serialize(copy.copy(headers), key, value))
        if any(h != headers for h, _, _ in each):
            self.each_headers = [h for h, _, _ in each]
        made_keys = [key for _, key, _ in each]
        without = keys is None and not any(key is not None for key in made_keys)
        return [value for _, _, value in each], None if without else made_keys

    def _check_sizes(self, max_request_bytes: int) -> None:
        for index in range(len(self)):
            self._check_size(index, max_request_bytes)

    def _check_size(self, index: int, max_request_bytes: int) -> None:
        key, value = self.run.key(index), self.run.values[index]
        try:
            check_size(key, value, self.headers(index), max_request_bytes)
        except MessageSizeTooLargeError as error:
            raise MessageSizeTooLargeError(f"values[{index}]: {error}") from None


def take(
    records: Records,
    driver: Driver,
    partitioner: UserPartitioner | None,
    max_block_s: float,
    refused: Refused,
) -> Deliveries:
    """Put the records into the buffer, one after the other.

    Raises: as `send`, while none is taken.
    """
    run = records.run
    partitioned = run.partition is not None
    if partitioner is not None and not partitioned:
        take_some = _with_partitioner(records, driver, partitioner, max_block_s)
    elif records.each_headers or (run.keys is not None and not partitioned):
        take_some = _one_by_one(records, driver, max_block_s)
    else:

        def take_some(begin: int) -> Part:
            taken = driver.append_run(run, begin, max_block_s)
            return Part(taken.batch.delivery, taken.first, taken.count)  # type: ignore[arg-type]

    parts: list[Part] = []
    begin, end = 0, len(records)
    while begin < end:
        try:
            part = take_some(begin)
        except Exception as error:
            told = isinstance(error, BrokerResponseError)  # as the future of `send` tells it
            too_large = isinstance(error, MessageSizeTooLargeError)
            if begin == 0 and (too_large or not told):
                raise
            size = 1 if too_large else end - begin
            rest = [records.record(index) for index in range(begin, begin + size)]
            part = Part(refused(error, run.topic, run.partition, *rest), 0, size)
        _add(parts, part)
        begin += part.size
    return Deliveries(parts, records.sizes)


def _one_by_one(records: Records, driver: Driver, max_block_s: float) -> Callable[[int], Part]:
    run = records.run

    def take_one(index: int) -> Part:
        key, value, headers = run.key(index), run.values[index], records.headers(index)
        batch, first = driver.append(
            run.topic, run.partition, key, value, headers, run.timestamp_ms, max_block_s
        )
        return Part(batch.delivery, first, 1)  # type: ignore[arg-type]

    return take_one


def _with_partitioner(
    records: Records, driver: Driver, partitioner: UserPartitioner, max_block_s: float
) -> Callable[[int], Part]:
    run = records.run
    values, keys = records.given

    def take_one(index: int) -> Part:
        key = None if keys is None else keys[index]
        key_bytes, value_bytes, headers = run.key(index), run.values[index], records.headers(index)
        partition, left_s = partitioner.place(
            driver, max_block_s, run.topic, key, key_bytes, values[index], value_bytes, headers
        )
        batch, first = driver.append(
            run.topic, partition, key_bytes, value_bytes, headers, run.timestamp_ms, left_s
        )
        return Part(batch.delivery, first, 1)  # type: ignore[arg-type]

    return take_one


def _add(parts: list[Part], part: Part) -> None:
    """The next records; they may go on where the last ones end."""
    if parts:
        last = parts[-1]
        if last.delivery is part.delivery and last.first + last.size == part.first:
            parts[-1] = last._replace(size=last.size + part.size)
            return
    parts.append(part)


def _listed(name: str, items: Any) -> list[Any]:
    """All of them, before the first is used."""
    if isinstance(items, (str, bytes, bytearray, memoryview)):
        raise TypeError(
            f"{name} must be a list, or something else that gives one after the other, and not a "
            f"single {type(items).__name__}: for one record there is send()"
        )
    return list(items)


def _need_key_or_value(keys: list[Any] | None, values: list[Any]) -> None:
    if None in values:
        for index, value in enumerate(values):
            if value is None and (keys is None or keys[index] is None):
                raise ValueError(f"values[{index}]: Need at least one: key or value")


def _all_bytes(what: str, items: list[Any]) -> list[bytes | None]:
    if {*map(type, items)} <= {bytes, type(None)}:
        return items
    return [_bytes(what, index, item) for index, item in enumerate(items)]


def _bytes(what: str, index: int, item: Any) -> bytes | None:
    if item is None or type(item) is bytes:
        return item
    try:
        return as_bytes(what, item)
    except TypeError as error:
        raise TypeError(f"{what}s[{index}]: {error}") from None


def _lengths(items: Sequence[bytes | None]) -> array[int]:
    """-1 where there is none."""
    if None in items:
        return array("q", [-1 if item is None else len(item) for item in items])
    return array("q", map(len, items))  # type: ignore[arg-type]
