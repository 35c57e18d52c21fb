"""Was what was acknowledged delivered, once and in order? Judged by a client that is not ours.

Each record carries its number in its partition, counted from 0 in order of sending; each
acknowledgement is kept with the offset that it named. Then the topic is read back with
kafka-python's consumer and compared. Records that failed are not judged here: they were reported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

VALUE_BYTES = 100
NUMBER_DIGITS = 12


class ReadBackError(Exception):
    """The topic could not be read back to its end in time."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of the acknowledged records."""

    acknowledged: int
    lost: int  # acknowledged, and nowhere in the log
    misplaced: int  # in the log, but not at the offset that was acknowledged
    duplicated: int  # copies beyond the first
    out_of_order: int  # behind a record that was sent later

    def __bool__(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.misplaced or self.duplicated or self.out_of_order)

    def __str__(self) -> str:
        line = f"lost {self.lost} · duplicated {self.duplicated} · out of order {self.out_of_order}"
        return f"{line} · at another offset {self.misplaced}" if self.misplaced else line


def encode(number: int) -> bytes:
    """The value of a partition's record with this number."""
    return f"{number:0{NUMBER_DIGITS}d}".encode().ljust(VALUE_BYTES, b".")


def decode(value: bytes) -> int:
    """The number in a record's value."""
    return int(value[:NUMBER_DIGITS])


def compare(
    acknowledged: Mapping[int, Mapping[int, int]],
    read: Mapping[int, Sequence[tuple[int, int]]],
) -> Delivery:
    """Hold what was read against what was acknowledged.

    Args:
        acknowledged: by partition: the offset of each acknowledged number.
        read: by partition: (offset, number) of each record, in order of offset.
    """
    lost = misplaced = duplicated = out_of_order = 0
    for partition, offsets in acknowledged.items():
        found: dict[int, list[int]] = {}
        newest = -1
        for offset, number in read.get(partition, ()):
            if number in found:
                duplicated += 1
            elif number < newest:
                out_of_order += 1
            newest = max(newest, number)
            found.setdefault(number, []).append(offset)
        for number, offset in offsets.items():
            if number not in found:
                lost += 1
            elif offset not in found[number]:
                misplaced += 1
    count = sum(map(len, acknowledged.values()))
    return Delivery(count, lost, misplaced, duplicated, out_of_order)


def read_back(
    bootstrap_servers: str, topic: str, partitions: Sequence[int], timeout_s: float = 20.0
) -> dict[int, list[tuple[int, int]]]:
    """(offset, number) of every record of these partitions, up to their present ends.

    Raises:
        ReadBackError: the end was not reached within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    read: dict[int, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    assigned = [TopicPartition(topic, partition) for partition in partitions]
    try:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            bootstrap_timeout_ms=int(timeout_s * 1000),
            group_id=None,
            enable_auto_commit=False,
        )
    except KafkaError as error:
        raise ReadBackError(f"no broker answers at {bootstrap_servers}: {error}") from error
    try:
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        ends = consumer.end_offsets(assigned)
        while behind := [tp for tp in assigned if consumer.position(tp) < ends[tp]]:
            if time.monotonic() > deadline:
                where = ", ".join(f"{tp.partition} ends at {ends[tp]}" for tp in behind)
                raise ReadBackError(f"{topic} was not read to its end in {timeout_s} s: {where}")
            for tp, records in consumer.poll(timeout_ms=500).items():
                read[tp.partition] += [(record.offset, decode(record.value)) for record in records]
    except KafkaError as error:
        raise ReadBackError(f"{topic} could not be read: {error}") from error
    finally:
        consumer.close(autocommit=False)
    return read
