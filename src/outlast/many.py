"""`send_many`: many records in one call.

Rules:
* Whatever can be wrong with a value, a key, a header or a size is found before the first record is
  taken: it raises, names the index, and nothing was sent.
* Once a record was taken nothing raises any more: what cannot be taken fails in the object that
  comes back, as *never sent*. So nobody sends again what is on its way.
* What is wrong with one record alone, such as its size, costs no other.
* Records go into batches as `send` puts them there; those that have no key, or all go to one
  partition, in one pass for each batch.
"""

from __future__ import annotations

import copy
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from kafka.errors import BrokerResponseError, IllegalStateError, MessageSizeTooLargeError

from outlast.arguments import (
    Headers,
    as_bytes,
    check_size,
    checked_partition,
    checked_timestamp,
    header_size,
)
from outlast.deliveries import Deliveries, Part, Sizes
from outlast.delivery import Delivery
from outlast.engine.record_batch import HEADER_BYTES, record_bytes_max
from outlast.engine.run import Run
from outlast.errors import BlockedError

if TYPE_CHECKING:
    from outlast.engine.batch import Batch
    from outlast.io.thread import Driver
    from outlast.partitioning import UserPartitioner

Serialize = Callable[[Headers, Any, Any], "tuple[Headers, Any, Any]"]
Refused = Callable[..., Delivery]
TakeSome = Callable[[int], Part]  # the record at this index, and some that follow it


class Records:
    """The records of one call, checked and serialized.

    Args:
        headers: of all of them, checked.
        serialize: gives headers, key and value of a record as bytes; None: they are that already.

    Attributes:
        given: values and keys as they were before, which a partitioner is shown.
        each_headers: those of each record, where serializers added some; None: all have the same.

    Raises:
        TypeError, ValueError, MessageSizeTooLargeError: as `send`, with the record's index.
    """

    __slots__ = ("_headers", "each_headers", "given", "run", "sizes")

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
        values = listed("values", values)
        keys = None if keys is None else listed("keys", keys)
        if keys is not None and len(keys) != len(values):
            raise ValueError(
                f"{len(keys)} keys for {len(values)} values: there must be as many, or keys=None"
            )
        partition = None if partition is None else checked_partition(partition)
        now_ms = time.time_ns() // 1_000_000
        timestamp_ms = now_ms if timestamp_ms is None else checked_timestamp(timestamp_ms)
        _need_key_or_value(keys, values)
        self.given = values, keys
        self._headers = headers = copy.copy(headers)  # the caller may change them meanwhile
        self.each_headers: list[Headers] | None = None
        if serialize is not None:
            values, keys = self._serialized(values, keys, serialize)
        values = _all_bytes("values", values)
        keys = None if keys is None else _all_bytes("keys", keys)
        self.run = Run(topic, partition, keys, values, headers, timestamp_ms)
        self.sizes = Sizes(
            timestamp_ms,
            None if keys is None else _lengths(keys),
            _lengths(values),
            [header_size(h) if h else -1 for h in self.each_headers or [headers]],
        )
        if self.each_headers is not None or self._bytes_max() > max_request_bytes:
            self._check_sizes(max_request_bytes)

    def __len__(self) -> int:
        return len(self.run.values)

    def headers(self, index: int) -> Headers:
        """The headers of one record."""
        return self._headers if self.each_headers is None else self.each_headers[index]

    def record(self, index: int) -> tuple[Any, ...]:
        """One record: timestamp, key, value, headers."""
        run = self.run
        return run.timestamp_ms, run.key(index), run.values[index], tuple(self.headers(index))

    def _serialized(
        self, values: list[Any], keys: list[Any] | None, serialize: Serialize
    ) -> tuple[list[Any], list[Any] | None]:
        """Serializers may add headers to each record, and make a key of none."""
        headers, each = self._headers, []
        for index, value in enumerate(values):
            key = None if keys is None else keys[index]
            try:
                each.append(serialize(copy.copy(headers), key, value))
            except Exception as error:
                if hasattr(error, "add_note"):  # from Python 3.11 on
                    error.add_note(f"It was values[{index}] of send_many().")
                raise
        if any(h != headers for h, _, _ in each):
            self.each_headers = [h for h, _, _ in each]
        made_keys = [key for _, key, _ in each]
        without = keys is None and all(key is None for key in made_keys)
        return [value for _, _, value in each], None if without else made_keys

    def _bytes_max(self) -> int:
        """No record is larger, if all have the same headers."""
        largest = max(self.sizes.values, default=0) + max(self.sizes.keys or (), default=0)
        return HEADER_BYTES + record_bytes_max(None, None, self._headers) + largest

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

    Raises: as `send`, where the first one cannot be taken. And whatever a signal handler raises.
    """
    run = records.run
    take_some = _way_in(records, driver, partitioner, max_block_s)
    parts: list[Part] = []
    begin, end = 0, len(records)
    while begin < end:
        try:
            part = take_some(begin)
        except _NOT_TAKEN as not_taken:
            error = not_taken.error if isinstance(not_taken, _NoPlaceError) else not_taken
            if begin == 0 and not isinstance(error, BrokerResponseError):  # which futures tell
                raise error from None
            alone = isinstance(not_taken, (_NoPlaceError, MessageSizeTooLargeError))
            size = 1 if alone else end - begin
            lost = [records.record(index) for index in range(begin, begin + size)]
            part = Part(refused(error, run.topic, run.partition, *lost), 0, size)
        _add(parts, part)
        begin += part.size
    return Deliveries(parts, records.sizes)


class _NoPlaceError(Exception):
    """A partitioner failed, or named a partition that is not there. The next record may fare
    better.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


# After these nothing of the record is in the buffer. Of what else is raised nobody knows: a signal
# handler may come in at any step.
_NOT_TAKEN = (BlockedError, IllegalStateError, BrokerResponseError, _NoPlaceError)


def _way_in(
    records: Records, driver: Driver, partitioner: UserPartitioner | None, max_block_s: float
) -> TakeSome:
    run = records.run
    if partitioner is not None and run.partition is None:
        return _with_partitioner(records, driver, partitioner, max_block_s)
    if records.each_headers is not None or (run.keys is not None and run.partition is None):
        return _one_by_one(records, driver, max_block_s)
    return _together(run, driver, max_block_s)


def _together(run: Run, driver: Driver, max_block_s: float) -> TakeSome:
    def take_some(index: int) -> Part:
        taken = driver.append_run(run, index, max_block_s)
        return _part(taken.batch, taken.first, taken.count)

    return take_some


def _one_by_one(records: Records, driver: Driver, max_block_s: float) -> TakeSome:
    run = records.run

    def take_one(index: int) -> Part:
        key, value, headers = run.key(index), run.values[index], records.headers(index)
        batch, first = driver.append(
            run.topic, run.partition, key, value, headers, run.timestamp_ms, max_block_s
        )
        return _part(batch, first)

    return take_one


def _with_partitioner(
    records: Records, driver: Driver, partitioner: UserPartitioner, max_block_s: float
) -> TakeSome:
    run = records.run
    values, keys = records.given

    def take_one(index: int) -> Part:
        key = None if keys is None else keys[index]
        key_bytes, value_bytes, headers = run.key(index), run.values[index], records.headers(index)
        try:
            partition, left_s = partitioner.place(
                driver, max_block_s, run.topic, key, key_bytes, values[index], value_bytes, headers
            )
        except _NOT_TAKEN:
            raise
        except Exception as error:
            raise _NoPlaceError(error) from error
        try:
            batch, first = driver.append(
                run.topic, partition, key_bytes, value_bytes, headers, run.timestamp_ms, left_s
            )
        except ValueError as error:
            raise _NoPlaceError(error) from error
        return _part(batch, first)

    return take_one


def _part(batch: Batch, first: int, size: int = 1) -> Part:
    return Part(cast(Delivery, batch.delivery), first, size)


def _add(parts: list[Part], part: Part) -> None:
    """The next records; they may go on where the last ones end."""
    if parts:
        last = parts[-1]
        if last.delivery is part.delivery and last.first + last.size == part.first:
            parts[-1] = last._replace(size=last.size + part.size)
            return
    parts.append(part)


def listed(name: str, items: Any) -> list[Any]:
    """All of them, before the first is used.

    Raises:
        TypeError: it is a single value or key.
    """
    if isinstance(items, (str, bytes, bytearray, memoryview)):
        raise TypeError(
            f"{name} must be a list, or another iterable with one for each record, and not a "
            f"single {type(items).__name__}: for one record there is send()"
        )
    return list(items)


def _need_key_or_value(keys: list[Any] | None, values: list[Any]) -> None:
    if type(None) not in {*map(type, values)}:  # never by ==, which is the values' own
        return
    for index, value in enumerate(values):
        if value is None and (keys is None or keys[index] is None):
            raise ValueError(f"values[{index}]: Need at least one: key or value")


def _all_bytes(name: str, items: list[Any]) -> list[bytes | None]:
    if {*map(type, items)} <= {bytes, type(None)}:
        return items
    return [_bytes(name, index, item) for index, item in enumerate(items)]


def _bytes(name: str, index: int, item: Any) -> bytes | None:
    if item is None or type(item) is bytes:
        return item
    try:
        return as_bytes(name[:-1], item)
    except TypeError as error:
        raise TypeError(f"{name}[{index}]: {error}") from None


def _lengths(items: Sequence[bytes | None]) -> array[int]:
    """-1 where there is none."""
    if None in items:
        return array("q", [-1 if item is None else len(item) for item in items])
    return array("q", map(len, cast("Sequence[bytes]", items)))
