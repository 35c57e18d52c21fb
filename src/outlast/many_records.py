"""The records of one `send_many`: read, checked and serialized before the first is taken.

Rules:
* What is wrong raises, and names the index.
* What an iterator gives is serialized, or copied, before the next is asked for: it may give the
  same object again, with something else in it. A list's items are each its own.
* Values are never compared, and no more keys are read than one too many.
"""

from __future__ import annotations

import copy
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from kafka.errors import MessageSizeTooLargeError

from outlast.arguments import (
    Headers,
    as_bytes,
    check_size,
    checked_partition,
    checked_timestamp,
    header_size,
)
from outlast.deliveries import Sizes
from outlast.engine.intake import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES
from outlast.engine.record_batch import HEADER_BYTES, record_bytes_max
from outlast.engine.run import Run

Serialize = Callable[[Headers, Any, Any], "tuple[Headers, Any, Any]"]
RecordParts = tuple[int, "bytes | None", "bytes | None", tuple[Any, ...]]

_OVERHEAD_BYTES = RECORD_OVERHEAD_BYTES + BATCH_OVERHEAD_BYTES


class Records:
    """The records of one call, checked and serialized.

    Args:
        headers: of all of them, checked.
        serialize: gives headers, key and value of a record as bytes; None: they are that already.
        limits: bytes that a record may have, in a request and in the buffer.
        keep: values and keys are wanted as they were before.

    Attributes:
        given: values and keys as they were before, which a partitioner is shown.
        each_headers: those of each record, where serializers added some; None: all have the same.

    Raises:
        TypeError, ValueError, MessageSizeTooLargeError: as `send`, with the record's index.
    """

    __slots__ = (
        "_headers",
        "each_headers",
        "given",
        "keys",
        "partition",
        "sizes",
        "timestamp_ms",
        "topic",
        "values",
    )

    def __init__(
        self,
        topic: str,
        values: Iterable[Any],
        headers: Headers,
        keys: Iterable[Any] | None,
        partition: int | None,
        timestamp_ms: int | None,
        serialize: Serialize | None,
        limits: tuple[int, int],
        *,
        keep: bool,
    ) -> None:
        _check_kind("values", values)
        if keys is not None:
            _check_kind("keys", keys)
        self.topic = topic
        self.partition = None if partition is None else checked_partition(partition)
        now_ms = time.time_ns() // 1_000_000
        self.timestamp_ms = now_ms if timestamp_ms is None else checked_timestamp(timestamp_ms)
        self._headers = copy.copy(headers)  # the caller may change them meanwhile
        self.each_headers: list[Headers] | None = None
        self.given: tuple[list[Any], list[Any] | None] | None = None
        if serialize is None and (keys is None or (_is_list(values) and _is_list(keys))):
            self._read_lists(values, keys, keep=keep)
        else:
            self._read_each(values, keys, serialize, keep=keep)
        self._measure(limits)

    def __len__(self) -> int:
        return len(self.values)

    def headers(self, index: int) -> Headers:
        """The headers of one record."""
        return self._headers if self.each_headers is None else self.each_headers[index]

    def key(self, index: int) -> bytes | None:
        """The key of one record."""
        return None if self.keys is None else self.keys[index]

    def at(self, indices: Iterable[int]) -> Iterator[RecordParts]:
        """These records: timestamp, key, value, headers of each."""
        for index in indices:
            headers = tuple(self.headers(index))
            yield self.timestamp_ms, self.key(index), self.values[index], headers

    def runs(self, partition: int | None, indices: Sequence[int]) -> list[Run]:
        """These records, in this order: as many as have the same headers together."""
        each = self.each_headers
        if each is None:
            return [self._run(partition, indices, self._headers)]
        runs, begin = [], 0
        for at, index in enumerate(indices):
            if each[index] != each[indices[begin]]:
                runs.append(self._run(partition, indices[begin:at], each[indices[begin]]))
                begin = at
        runs.append(self._run(partition, indices[begin:], each[indices[begin]]))
        return runs

    def _run(self, partition: int | None, indices: Sequence[int], headers: Headers) -> Run:
        values, keys = self.values, self.keys
        if len(indices) < len(values):
            values = [values[index] for index in indices]
            keys = None if keys is None else [keys[index] for index in indices]
        if partition is None:  # so none of these has one
            keys = None
        return Run(self.topic, partition, keys, values, headers, self.timestamp_ms)

    def one(self, index: int) -> Run:
        """This record, for the engine to find its place."""
        keys, headers = (self.key(index),), self.headers(index)
        return Run(self.topic, None, keys, (self.values[index],), headers, self.timestamp_ms)

    # --- what they are made of ---

    def _read_lists(self, values: Iterable[Any], keys: Any, *, keep: bool) -> None:
        values = [*values] if _is_list(values) else [*map(_as_it_is_now, values)]
        keys = None if keys is None else [*keys]
        if keys is not None and len(keys) != len(values):
            raise ValueError(
                f"{len(keys)} keys for {len(values)} values: there must be as many, or keys=None"
            )
        _need_key_or_value(keys, values)
        if keep:
            self.given = values, keys
        self.values: list[bytes | None] = _all_bytes("values", values)
        self.keys: list[bytes | None] | None = None if keys is None else _all_bytes("keys", keys)
        if self.keys is not None and bytes not in {*map(type, self.keys)}:
            self.keys = None

    def _read_each(
        self,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        serialize: Serialize | None,
        *,
        keep: bool,
    ) -> None:
        """One after the other, as they come: an iterator may give the same object again, with
        something else in it. Serializers may add headers to each record, and make a key of none.
        """
        self.values = []
        made_keys: list[bytes | None] = []
        each_headers: list[Headers] = []
        given: tuple[list[Any], list[Any]] = ([], [])
        as_kept: Callable[[Any], Any] = _unchanging if _is_list(values) else _as_it_is_now
        for index, (value, key) in enumerate(_pairs(values, keys)):
            if value is None and key is None:
                raise ValueError(f"values[{index}]: Need at least one: key or value")
            if keep:
                given[0].append(as_kept(value))
                given[1].append(as_kept(key))
            headers, key_bytes, value_bytes = self._headers, key, value
            if serialize is not None:
                headers, key_bytes, value_bytes = _serialized(serialize, headers, key, value, index)
            self.values.append(_bytes("values", index, value_bytes))
            made_keys.append(_bytes("keys", index, key_bytes))
            each_headers.append(headers)
        if keep:
            self.given = given[0], None if keys is None else given[1]
        if [headers for headers in each_headers if headers != self._headers]:
            self.each_headers = each_headers
        self.keys = made_keys if bytes in {*map(type, made_keys)} else None

    def _measure(self, limits: tuple[int, int]) -> None:
        """Remember sizes, and raise if a record is too large."""
        keys, values, each = self.keys, self.values, self.each_headers
        key_sizes = None if keys is None else _lengths(keys)
        value_sizes = _lengths(values)
        headers = self._headers
        headers_size = header_size(headers) if headers else -1
        each_size = None if each is None else [header_size(h) if h else -1 for h in each]
        self.sizes = Sizes(self.timestamp_ms, key_sizes, value_sizes, headers_size, each_size)
        if not values:
            return
        # no record is larger, if all have the same headers
        largest = max(value_sizes) + (max(key_sizes) if key_sizes else 0)
        most_bytes = (
            HEADER_BYTES + _OVERHEAD_BYTES + record_bytes_max(None, None, headers) + largest
        )
        if each is not None or most_bytes > min(limits):
            for index in range(len(values)):
                self._check_size(index, limits)

    def _check_size(self, index: int, limits: tuple[int, int]) -> None:
        request_bytes, buffer_bytes = limits
        key, value, headers = self.key(index), self.values[index], self.headers(index)
        try:
            check_size(key, value, headers, request_bytes)
        except MessageSizeTooLargeError as error:
            raise MessageSizeTooLargeError(f"values[{index}]: {error}") from None
        size_bytes = record_bytes_max(key, value, headers) + _OVERHEAD_BYTES
        if size_bytes > buffer_bytes:  # it would wait for ever
            raise MessageSizeTooLargeError(
                f"values[{index}]: The record takes {size_bytes} bytes of the send buffer, more "
                f"than all of it: buffer_memory is {buffer_bytes}; make it larger"
            )


def _is_list(items: object) -> bool:
    """Whether all its items are there at once."""
    return isinstance(items, (list, tuple))


def _check_kind(name: str, items: object) -> None:
    """Raise TypeError for a single value or key, and for what has no order of its own."""
    if isinstance(items, (str, bytes, bytearray, memoryview)):
        raise TypeError(
            f"{name} must be a list, or another iterable with one for each record, and not a "
            f"single {type(items).__name__}: for one record there is send()"
        )
    if isinstance(items, (set, frozenset, Mapping)):
        raise TypeError(
            f"{name} must be a list, or another iterable with one for each record in their order, "
            f"and not a {type(items).__name__}"
        )


_NONE_LEFT = object()


def _pairs(values: Iterable[Any], keys: Iterable[Any] | None) -> Iterator[tuple[Any, Any]]:
    """Each value and its key, as they come; of the keys no more than one too many.

    Raises:
        ValueError: there are not as many.
    """
    if keys is None:
        for value in values:
            yield value, None
        return
    keys_left, count = iter(keys), 0
    for value in values:
        key = next(keys_left, _NONE_LEFT)
        if key is _NONE_LEFT:
            raise ValueError(f"{count} keys for more values: there must be as many, or keys=None")
        count += 1
        yield value, key
    if next(keys_left, _NONE_LEFT) is not _NONE_LEFT:
        raise ValueError(f"more keys than {count} values: there must be as many, or keys=None")


def _serialized(
    serialize: Serialize, headers: Headers, key: Any, value: Any, index: int
) -> tuple[Headers, Any, Any]:
    try:
        return serialize(copy.copy(headers), key, value)
    except Exception as error:
        if hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(f"It was values[{index}] of send_many().")
        raise


def _unchanging(item: Any) -> Any:
    return item


def _as_it_is_now(item: Any) -> Any:
    """A copy of what an iterator may fill again, if it can be copied."""
    kind = type(item)
    if kind is bytes:
        return item
    if kind is memoryview:
        return memoryview(bytes(item))
    try:
        return copy.copy(item)
    except Exception:
        return item


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
