"""What a topic holds, as three consumers tell it: kafka-python, confluent-kafka and aiokafka.

All three check the CRC of what they read. They read by `assign()`, from the beginning to the end
that the partition had when they came; nobody needs a group.

Before they come the brokers should agree (`agree`): kafka-python's consumer, if it asks for offsets
by old metadata and is told that the leader is another, asks the same broker until its time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer

PATIENCE_S = 30

Headers = tuple[tuple[str, bytes | None], ...]


class Seen(NamedTuple):
    """A record as a consumer tells it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


Contents = dict[int, list[Seen]]  # by partition, in the order the records came
Reader = Callable[[str, str, int], Contents]  # bootstrap, topic, partitions


def kafka_python(bootstrap: str, topic: str, partitions: int) -> Contents:
    assigned = [kafka.TopicPartition(topic, number) for number in range(partitions)]
    found: Contents = {number: [] for number in range(partitions)}
    deadline = monotonic() + PATIENCE_S
    with closing(kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)) as consumer:
        consumer.assign(assigned)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(assigned)
        while any(consumer.position(p) < ends[p] for p in assigned):
            assert monotonic() < deadline, "kafka-python did not reach the end"
            for records in consumer.poll(timeout_ms=100).values():
                for r in records:
                    found[r.partition].append(_seen(r))
    return found


def aiokafka_(bootstrap: str, topic: str, partitions: int) -> Contents:
    async def read() -> Contents:
        assigned = [aiokafka.TopicPartition(topic, number) for number in range(partitions)]
        found: Contents = {number: [] for number in range(partitions)}
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign(assigned)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(assigned)
            while any([await consumer.position(p) < ends[p] for p in assigned]):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for r in records:
                        found[r.partition].append(_seen(r))
        return found

    return asyncio.run(asyncio.wait_for(read(), PATIENCE_S))


def confluent(bootstrap: str, topic: str, partitions: int) -> Contents:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "check",  # asked for, and not used
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "check.crcs": True,
    }
    found: Contents = {number: [] for number in range(partitions)}
    at_end: set[int] = set()
    deadline = monotonic() + PATIENCE_S
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
        while len(at_end) < partitions:
            assert monotonic() < deadline, "confluent-kafka did not reach the end"
            for message in consumer.consume(1_000, timeout=0.1):
                error = message.error()
                if error is None:
                    partition = message.partition()
                    assert partition is not None
                    found[partition].append(_seen_by_confluent(message))
                else:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    at_end.add(message.partition())
    return found


def _seen(record: Any) -> Seen:
    return Seen(
        record.offset, record.timestamp, record.key, record.value, tuple(record.headers or ())
    )


def _seen_by_confluent(message: Any) -> Seen:
    _, timestamp_ms = message.timestamp()
    headers = tuple(message.headers() or ())
    return Seen(message.offset(), timestamp_ms, message.key(), message.value(), headers)


READERS: list[Reader] = [kafka_python, confluent, aiokafka_]


def agree(server: ClusterServer, topic: str) -> bool:
    """Whether every node of the mock is up, is in sync and names the leaders that there are."""

    def look(cluster: MockCluster, _now: float) -> bool:
        truth = cluster.topics[topic].partitions
        return all(sorted(state.isr) == sorted(state.replicas) for state in truth.values()) and all(
            node.view.state(topic, index) == state
            for node in cluster.nodes.values()
            for index, state in truth.items()
        )

    return server.call(look)
