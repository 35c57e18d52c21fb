"""A user's own partitioner, in each form that kafka-python has had.

* a `kafka.partitioner.Partitioner` (kafka-python 3): `partition(topic, key, serialized_key, value,
  serialized_value, cluster)`;
* an object with `partition(topic, serialized_key, cluster)`: deprecated there and here;
* a callable `(serialized_key, all_partitions, available)` (kafka-python 1 and 2).

The default ones are not called at all: the engine does the same by itself, and better, for it
knows which partitions are held up by a gap.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kafka.partitioner import DefaultPartitioner, Partitioner, StickyPartitioner

from outlast.arguments import Headers, checked_partition
from outlast.engine.record_batch import record_bytes_max
from outlast.io.waiting import plainly

Choose = Callable[[str, Any, "bytes | None", Any, "bytes | None", "ClusterView"], Any]


class ClusterView:
    """What a partitioner may ask of kafka-python's ClusterMetadata, for one topic, frozen."""

    __slots__ = ("_all", "_available", "_topic")

    def __init__(self, topic: str, all_partitions: Sequence[int], available: Sequence[int]) -> None:
        self._topic = topic
        self._all = all_partitions
        self._available = available

    def topics(self) -> set[str]:
        """The topics known here."""
        return {self._topic}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """All partitions; None for another topic."""
        return set(self._all) if topic == self._topic else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Partitions with a known leader; None for another topic."""
        return set(self._available) if topic == self._topic else None


class Places(Protocol):
    """What a driver tells of a topic's partitions."""

    def partitions_for(self, topic: str, max_block_s: float) -> frozenset[int]:
        """All of them; may wait."""

    def available_partitions(self, topic: str) -> tuple[int, ...]:
        """Those with a leader."""

    def begins_batch(self, topic: str, partition: int, size_bytes: int) -> bool:
        """Whether a record of this size would be the first of a batch there."""


class UserPartitioner:
    """One way to ask a user's partitioner, whatever its form."""

    __slots__ = ("_choose", "_on_new_batch")

    def __init__(self, partitioner: Any) -> None:
        self._choose = _bound(partitioner)
        self._on_new_batch = getattr(partitioner, "on_new_batch", None)

    def __repr__(self) -> str:
        return f"<UserPartitioner {self._choose}>"

    def place(
        self,
        places: Places,
        max_block_s: float,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        headers: Headers,
    ) -> tuple[int, float]:
        """The partition for this record, and how long `send` may still wait: the time that the
        partitioner takes is not counted.

        A record without a key that would begin a batch has the partitioner told so, and asked once
        more, as kafka-python does it (KIP-480): a sticky one moves on.

        Raises:
            ValueError: the partitioner gave none, or a negative one.
            TypeError: it gave something that is no number.
        """
        began_s = time.monotonic()
        all_partitions = sorted(places.partitions_for(topic, max_block_s))
        left_s = max(0.0, max_block_s - (time.monotonic() - began_s))
        cluster = ClusterView(topic, all_partitions, places.available_partitions(topic))
        record = topic, key, key_bytes, value, value_bytes, cluster
        partition = self._ask(*record)
        if key_bytes is None and self._on_new_batch is not None:
            size_bytes = record_bytes_max(None, value_bytes, headers)
            if places.begins_batch(topic, partition, size_bytes):
                plainly(self._on_new_batch, topic, cluster, partition)
                partition = self._ask(*record)
        return partition, left_s

    def _ask(self, topic: str, *record: Any) -> int:
        partition = plainly(self._choose, topic, *record)
        if partition is None:
            raise ValueError(f"Partitioner did not assign a partition for topic {topic}!")
        return checked_partition(partition)


def is_default(partitioner: Any) -> bool:
    """Whether the engine does what it does: murmur2 of the key, sticky without one."""
    return type(partitioner) in (DefaultPartitioner, StickyPartitioner)


def _bound(partitioner: Any) -> Choose:
    if isinstance(partitioner, Partitioner):
        chosen: Choose = partitioner.partition
        return chosen
    warnings.warn(
        "partitioner does not implement kafka.partitioner.Partitioner",
        category=DeprecationWarning,
        stacklevel=5,  # whoever calls KafkaProducer
    )
    if hasattr(partitioner, "partition"):
        return lambda topic, _key, key_bytes, _value, _value_bytes, cluster: partitioner.partition(
            topic, key_bytes, cluster
        )
    return lambda topic, _key, key_bytes, _value, _value_bytes, cluster: partitioner(
        key_bytes,
        sorted(cluster.partitions_for_topic(topic) or ()),
        sorted(cluster.available_partitions_for_topic(topic) or ()),
    )
