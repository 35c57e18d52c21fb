"""A user's partitioner is called as kafka-python calls it: the same calls, in the same order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka.partitioner import Partitioner, StickyPartitioner
from kafka.serializer import Serializer

import outlast
from outlast.testing import MockCluster

Call = tuple[Any, ...]


@pytest.fixture(scope="module")
def kafka_3() -> Iterator[MockCluster]:
    with MockCluster(3, topics={"t": 4}) as cluster:
        yield cluster


class Recording(Partitioner):
    """Takes the partitions in turn, moving on with each new batch, and notes how it was called."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.partition_now = 0

    def partition(
        self,
        topic: str,
        key: Any,
        serialized_key: bytes | None,
        value: Any,
        serialized_value: bytes | None,
        cluster: Any,
    ) -> int:
        seen = (
            cluster.topics() >= {topic},
            cluster.partitions_for_topic(topic),
            cluster.available_partitions_for_topic(topic),
            cluster.partitions_for_topic("no such topic"),
        )
        self.calls.append(("partition", topic, key, serialized_key, value, serialized_value, *seen))
        return self.partition_now

    def on_new_batch(self, topic: str, cluster: Any, prev_partition: int) -> None:
        known = cluster.partitions_for_topic(topic)
        self.calls.append(("on_new_batch", topic, known, prev_partition))
        self.partition_now = (prev_partition + 1) % len(known)


class Text(Serializer):
    def serialize(self, topic: str, headers: Any, data: str | None) -> bytes | None:  # noqa: ARG002
        return None if data is None else data.encode()


def calls_of(
    producer_class: Any, cluster: MockCluster, use: Callable[[Any], None], **keywords: Any
) -> tuple[list[Call], list[int]]:
    """How the partitioner was called, and where the records went."""
    partitioner = Recording()
    producer = producer_class(
        bootstrap_servers=cluster.bootstrap_servers,
        partitioner=partitioner,
        key_serializer=Text(),
        value_serializer=Text(),
        **keywords,
    )
    futures: list[Any] = []
    with producer:
        use(lambda *arguments, **more: futures.append(producer.send("t", *arguments, **more)))
        producer.flush()
    return partitioner.calls, [future.get(10).partition for future in futures]


def without_keys(send: Callable[..., None]) -> None:
    for number in range(6):
        send(f"value-{number}")


def with_keys(send: Callable[..., None]) -> None:
    for number in range(4):
        send("v", f"key-{number}")
    send(None, "tombstone")


def with_partitions(send: Callable[..., None]) -> None:
    send("v", partition=2)
    send("v", "k", partition=1)
    send("v")


class TestCalledAsByKafkaPython:
    @pytest.mark.parametrize("use", [without_keys, with_keys, with_partitions])
    @pytest.mark.parametrize(
        "keywords",
        [{"linger_ms": 2_000}, {"batch_size": 1, "linger_ms": 2_000}],
        ids=["one-batch", "a-batch-each"],
    )
    def test_the_same_calls_and_places(
        self, kafka_3: MockCluster, use: Callable[..., None], keywords: dict[str, Any]
    ) -> None:
        theirs = calls_of(kafka.KafkaProducer, kafka_3, use, **keywords)
        ours = calls_of(outlast.KafkaProducer, kafka_3, use, **keywords, metrics_registry=None)
        assert ours == theirs
        assert ours[0]

    def test_there_is_something_to_compare(self, kafka_3: MockCluster) -> None:
        calls, places = calls_of(
            outlast.KafkaProducer, kafka_3, without_keys, batch_size=1, metrics_registry=None
        )
        assert [call[0] for call in calls] == ["partition", "on_new_batch", "partition"] * 6
        assert len(set(places)) == 4

    def test_a_sticky_partitioner_of_the_users_moves_on(self, kafka_3: MockCluster) -> None:
        class Sticky(StickyPartitioner):
            """Not kafka-python's own: outlast asks it."""

        with outlast.KafkaProducer(
            bootstrap_servers=kafka_3.bootstrap_servers,
            partitioner=Sticky(),
            batch_size=1,
            metrics_registry=None,
        ) as producer:
            places = [producer.send("t", b"v").get(10).partition for _ in range(8)]
        assert all(a != b for a, b in itertools.pairwise(places))
