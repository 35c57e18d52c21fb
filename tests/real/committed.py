"""Topics of transactions, read as an application reads them: by kafka-python's consumer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence

from kafka import KafkaConsumer, TopicPartition

PARTITIONS = 3  # of each of these topics

Values = list[list[bytes]]  # by partition


def places(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]


def consumer(
    bootstrap: Sequence[str], topic: str, group: str | None = None, *, committed: bool = True
) -> KafkaConsumer:
    """A consumer of all of the topic."""
    made = KafkaConsumer(
        bootstrap_servers=list(bootstrap),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if committed else "read_uncommitted",
    )
    made.assign(places(topic))
    return made


def ends(bootstrap: Sequence[str], topic: str) -> Mapping[TopicPartition, int]:
    """Where the partitions end, what is open included."""
    with contextlib.closing(consumer(bootstrap, topic, committed=False)) as reader:
        found: Mapping[TopicPartition, int] = reader.end_offsets(places(topic))
        return found


def seen(bootstrap: Sequence[str], topic: str, timeout_s: float) -> Values:
    """All that a reader of committed data sees, up to where the partitions end: a transaction that
    is left open is a TimeoutError.
    """
    end, give_up_s = ends(bootstrap, topic), time.monotonic() + timeout_s
    values: Values = [[] for _ in range(PARTITIONS)]
    with contextlib.closing(consumer(bootstrap, topic)) as reader:
        while behind := [place for place, at in end.items() if reader.position(place) < at]:
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"{behind} of {topic} are not read to {end}")
            for records in reader.poll(timeout_ms=200).values():
                for record in records:
                    values[record.partition].append(record.value)
    return values
