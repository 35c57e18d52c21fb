"""A user's own partitioner, in each form that kafka-python has had.

* a `kafka.partitioner.Partitioner` (kafka-python 3): `partition(topic, key, serialized_key, value,
  serialized_value, cluster)`;
* an object with `partition(topic, serialized_key, cluster)`: deprecated there and here;
* a callable `(serialized_key, all_partitions, available)` (kafka-python 1 and 2).

The default ones are not called at all: the engine does the same by itself, and better, for it
knows which partitions are held up by a gap.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from kafka.partitioner import DefaultPartitioner, Partitioner, StickyPartitioner

from outlast.arguments import checked_partition

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


class UserPartitioner:
    """One way to ask a user's partitioner, whatever its form."""

    __slots__ = ("_choose", "_clusters", "_on_new_batch", "_sticky")

    def __init__(self, partitioner: Any) -> None:
        self._choose = _bound(partitioner)
        self._on_new_batch = getattr(partitioner, "on_new_batch", None)
        self._clusters: dict[str, ClusterView] = {}  # as last seen
        self._sticky: dict[str, int | None] = {}  # where the last batch of a topic was begun

    def __repr__(self) -> str:
        return f"<UserPartitioner {self._choose}>"

    def choose(
        self,
        cluster: ClusterView,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
    ) -> int:
        """The partition for this record.

        Raises:
            ValueError: the partitioner gave none, or a negative one.
            TypeError: it gave something that is no number.
        """
        self._clusters[topic] = cluster
        partition = self._choose(topic, key, key_bytes, value, value_bytes, cluster)
        if partition is None:
            raise ValueError(f"Partitioner did not assign a partition for topic {topic}!")
        return checked_partition(partition)

    def appended(self, topic: str, partition: int | None, index: int) -> None:
        """A record without a key went to this place in a batch. If it began the next batch of the
        same partition, a sticky partitioner hears of it and moves on (KIP-480).
        """
        if self._on_new_batch is None or index != 0:
            return
        if self._sticky.get(topic) == partition and topic in self._clusters:
            self._on_new_batch(topic, self._clusters[topic], partition)
        self._sticky[topic] = partition


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
        stacklevel=4,  # whoever calls KafkaProducer
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
