"""The usual `send`: bytes or None, no headers, and nothing of the user's own to be asked.

A file of its own, so that it can be compiled (docs/compiled.md). All else is the producer's, to
which this holds no reference: one that is let go of is collected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, final

from kafka.errors import BrokerResponseError

from outlast.arguments import MAX_TIMESTAMP_MS, NO_HEADERS
from outlast.errors import is_refusal


@final
class Sending:
    """What `send` needs for each usual record.

    Args:
        append: the driver's.
        refused: makes the delivery of a record that the cluster will not have.
        new_future: makes what `send` returns.
        wants_span: whether a record gets a span, and is not usual for it.
        topics: names that were found valid.
        surely_fits_bytes: beyond these, key and value together must be measured exactly.
        unusual: all records are: there are serializers, or a partitioner.
    """

    __slots__ = (
        "_append",
        "_new_future",
        "_refused",
        "_surely_fits_bytes",
        "_topics",
        "_unusual",
        "_wants_span",
    )

    def __init__(
        self,
        append: Callable[..., tuple[Any, int]],
        refused: Callable[..., Any],
        new_future: Callable[..., Any],
        wants_span: Callable[[], object],
        topics: set[str],
        *,
        surely_fits_bytes: int,
        unusual: bool,
    ) -> None:
        self._append = append
        self._refused = refused
        self._new_future = new_future
        self._wants_span = wants_span
        self._topics = topics
        self._surely_fits_bytes = surely_fits_bytes
        self._unusual = unusual

    def __repr__(self) -> str:
        return f"<Sending {'nothing' if self._unusual else 'what is usual'}>"

    def send(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        max_block_s: float,
    ) -> Any:
        """The record's future; None where something about it is unusual or wrong: then nothing was
        done.

        Raises: as `append`.
        """
        if self._unusual or headers is not None:
            return None
        key_size = value_size = -1
        if type(value) is bytes:
            value_size = len(value)
        elif value is not None or key is None:
            return None
        if type(key) is bytes:
            key_size = len(key)
        elif key is not None:
            return None
        if key_size + value_size > self._surely_fits_bytes or topic not in self._topics:
            return None
        if partition is not None and (type(partition) is not int or partition < 0):
            return None
        if self._wants_span():
            return None
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        elif type(timestamp_ms) is not int or not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
            return None
        try:
            batch, index = self._append(
                topic, partition, key, value, NO_HEADERS, timestamp_ms, max_block_s
            )
            delivery = batch.delivery
        except BrokerResponseError as error:
            if not is_refusal(error):
                raise
            record = timestamp_ms, key, value, ()
            delivery, index = self._refused(error, topic, partition, record), 0
        return self._new_future(delivery, index, timestamp_ms, key_size, value_size, -1)
