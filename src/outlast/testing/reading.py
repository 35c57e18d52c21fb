"""Logs read back, for a delivery ledger: from the mock cluster itself, or by a consumer.

Rules: everything up to the end that a partition has when the reading begins, or a TimeoutError:
a log that was read in part would make losses. A topic that does not exist holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from outlast.testing.mock_kafka import MockCluster

POLL_S = 0.2


Payload = tuple["bytes | None", "bytes | None"]  # key, value


class Found(NamedTuple):
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    headers: Sequence[tuple[str, bytes | None]]
    payload: Payload | None = None  # None: the source does not tell it


Reader = Callable[[str], Iterable[Found]]  # all records of a topic
Source = Any  # see `DeliveryLedger.verdict`


def reader_for(source: Source, timeout_s: float) -> Reader:
    """How to read from this source.

    Raises:
        TypeError: it is nothing that can be read from.
    """
    if isinstance(source, MockCluster):
        return lambda topic: _from_cluster(source, topic)
    if isinstance(source, str) or (
        isinstance(source, (list, tuple)) and all(isinstance(s, str) for s in source)
    ):
        return lambda topic: _from_servers(source, topic, timeout_s)
    if callable(getattr(source, "end_offsets", None)):
        return lambda topic: _from_kafka_python(source, topic, timeout_s)
    if callable(getattr(source, "get_watermark_offsets", None)):
        return lambda topic: _from_confluent(source, topic, timeout_s)
    if callable(source):
        return lambda topic: _from_function(source, topic)
    raise TypeError(
        f"cannot read from {source!r}; give a MockCluster, a consumer of kafka-python or "
        "confluent-kafka, bootstrap servers, or a function read(topic)"
    )


def _from_cluster(cluster: MockCluster, topic: str) -> Iterator[Found]:
    try:
        partitions = cluster.partitions(topic)
    except ValueError:  # deleted meanwhile
        return
    for status in partitions:
        for record in cluster.records(topic, status.partition):
            payload = record.key, record.value
            yield Found(topic, status.partition, record.offset, record.headers, payload)


def _from_function(read: Callable[[str], Iterable[Any]], topic: str) -> Iterator[Found]:
    for record in read(topic):
        payload = _payload(getattr(record, "key", ...), getattr(record, "value", ...))
        yield Found(topic, record.partition, record.offset, record.headers or (), payload)


def _from_servers(servers: Any, topic: str, timeout_s: float) -> list[Found]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id=None, bootstrap_timeout_ms=int(timeout_s * 1000)
    )
    try:
        return list(_from_kafka_python(consumer, topic, timeout_s))
    finally:
        consumer.close()


def _from_kafka_python(consumer: Any, topic: str, timeout_s: float) -> Iterator[Found]:
    from kafka import TopicPartition

    deadline_s = time.monotonic() + timeout_s
    partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
    if not partitions:
        return
    consumer.unsubscribe()
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions)
    while behind := [str(tp) for tp in partitions if consumer.position(tp) < ends[tp]]:
        _watch_time(deadline_s, timeout_s, behind)
        for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            for record in records:
                place = record.partition, record.offset
                payload = _payload(record.key, record.value)  # it may have deserializers
                yield Found(topic, *place, record.headers, payload)


def _from_confluent(consumer: Any, topic: str, timeout_s: float) -> Iterator[Found]:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    deadline_s = time.monotonic() + timeout_s
    known = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
    ends = {}
    for partition in known:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout_s)
        if low < high:
            ends[partition] = high
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
    while ends:
        _watch_time(deadline_s, timeout_s, [f"{topic}-{partition}" for partition in ends])
        for message in consumer.consume(500, timeout=POLL_S):
            if message.error() is not None:
                continue  # it tries again by itself
            partition, offset = message.partition(), message.offset()
            payload = _payload(message.key(), message.value())
            yield Found(topic, partition, offset, message.headers() or (), payload)
            if offset + 1 >= ends.get(partition, 0):
                ends.pop(partition, None)


def _payload(key: object, value: object) -> Payload | None:
    """None: not the bytes that are in the log."""
    if isinstance(key, bytes | None) and isinstance(value, bytes | None):
        return key, value
    return None


def _watch_time(deadline_s: float, timeout_s: float, behind: Sequence[str]) -> None:
    if time.monotonic() > deadline_s:
        raise TimeoutError(f"not read to the end within {timeout_s:g} s: {', '.join(behind)}")
