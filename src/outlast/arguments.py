"""The arguments of `send`, checked as kafka-python checks them, apart from the hot path."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any, Final

from kafka.errors import MessageSizeTooLargeError
from kafka.record.default_records import DefaultRecordBatchBuilder

Headers = list[tuple[str, bytes]]

OVERHEAD_BYTES = 61 + 21 + 11  # of a batch's header, a record, and varints of key and value
NO_HEADERS: Final[Headers] = []  # never handed out to code that could change it
MAX_TIMESTAMP_MS: Final = 2**63 - 1


def bound_serializer(serializer: Any, name: str) -> Callable[..., Any] | None:
    """Give `serialize(topic, headers, data)`. Whether it takes the headers is asked once, here:
    kafka-python finds out by calling it twice, and so hides a TypeError from inside of it.
    """
    if serializer is None:
        return None
    serialize: Callable[..., Any] = serializer.serialize
    try:
        signature = inspect.signature(serialize)
    except (TypeError, ValueError):  # some builtins have none
        return serialize
    try:
        signature.bind("topic", [], None)
    except TypeError:
        warnings.warn(
            f"{name} does not implement serialize(topic, headers, data)",
            category=DeprecationWarning,
            stacklevel=3,  # whoever calls KafkaProducer
        )
        return lambda topic, _headers, data: serialize(topic, data)
    return serialize


def checked_headers(headers: Any) -> Headers:
    """Raise TypeError unless it is a list of (str, bytes) tuples."""
    if not isinstance(headers, list):
        raise TypeError(f"headers must be list-type, not {type(headers).__name__}")
    for item in headers:
        if (
            not isinstance(item, tuple)
            or len(item) != 2
            or not isinstance(item[0], str)
            or not isinstance(item[1], bytes)
        ):
            raise TypeError(f"All headers items must be (str, bytes) tuples, not {_kind(item)}")
    return headers


def _kind(item: Any) -> str:
    """Types in words, not contents: what is in a record belongs into no log."""
    if isinstance(item, tuple):
        return f"({', '.join(type(part).__name__ for part in item)})"
    return type(item).__name__


def header_size(headers: Headers) -> int:
    """Bytes of names and values, as RecordMetadata tells them."""
    return sum(len(name.encode("utf-8")) + len(value) for name, value in headers)


def as_bytes(what: str, data: Any) -> bytes:
    """Copy what is not bytes: the caller may change a bytearray once send() is back."""
    if type(data) not in (bytes, bytearray, memoryview):
        raise TypeError(f"Unsupported type for serialized {what}: {type(data)}")
    return bytes(data)


def checked_partition(partition: Any) -> int:
    """A partition, also as something else than an int, such as numpy's; True is no partition."""
    if isinstance(partition, bool) or not hasattr(partition, "__index__"):
        raise TypeError(f"partition={partition!r} is not allowed: it must be an int ≥ 0, or None")
    number = operator.index(partition)
    if number < 0:
        raise ValueError(f"partition must be >= 0, not {number}")
    return number


def checked_timestamp(timestamp_ms: Any) -> int:
    """A record's own time."""
    if type(timestamp_ms) is int and 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        return timestamp_ms
    error = ValueError if type(timestamp_ms) is int else TypeError
    raise error(
        f"timestamp_ms={timestamp_ms!r} is not allowed: it must be milliseconds since the epoch, "
        "an int ≥ 0, or None for now"
    )


def check_size(
    key: bytes | None, value: bytes | None, headers: Headers, max_request_bytes: int
) -> None:
    """Raise if the record is too large by kafka-python's estimate."""
    size = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers)
    if size > max_request_bytes:
        raise MessageSizeTooLargeError(
            f"The message is {size} bytes when serialized which is larger than the maximum "
            "request size you have configured with the max_request_size configuration "
            f"({max_request_bytes})"
        )
