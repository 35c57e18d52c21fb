"""A mock cluster on TCP ports, producers on it, and kafka-python's consumer to read back."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import kafka
import pytest

from outlast import KafkaProducer
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.server import ClusterServer

_topics = itertools.count(1)


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[ClusterServer]:
    """Three nodes for tests that disturb nothing."""
    with ClusterServer(MockCluster(3, rng=random.Random(1))) as server:
        yield server


@pytest.fixture
def cluster() -> Iterator[ClusterServer]:
    """Three nodes of a test's own."""
    with ClusterServer(MockCluster(3, rng=random.Random(2))) as server:
        yield server


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., ClusterServer]]:
    """Make a cluster with settings of its own."""
    with ExitStack() as servers:

        def make(nodes: int = 3, **settings: Any) -> ClusterServer:
            chosen = ClusterSettings(**settings)
            mock = MockCluster(nodes, settings=chosen, rng=random.Random(3))
            return servers.enter_context(ClusterServer(mock))

        yield make


@pytest.fixture
def make_producer() -> Iterator[Callable[..., KafkaProducer]]:
    """Make producers that are closed at the end, whatever happened."""
    made: list[KafkaProducer] = []

    def make(server: ClusterServer, **keywords: Any) -> KafkaProducer:
        producer = KafkaProducer(
            bootstrap_servers=server.bootstrap, **{"metrics_registry": None, **keywords}
        )
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(timeout=1)


def new_topic(server: ClusterServer, partitions: int = 1, **options: Any) -> str:
    """A topic that no other test uses."""
    name = f"topic-{next(_topics)}"
    server.create_topic(name, partitions, **options)
    return name


def read_back(server: ClusterServer, topic: str, partitions: int = 1) -> list[list[Any]]:
    """Each partition's records, as kafka-python's consumer reads them."""
    places = [kafka.TopicPartition(topic, number) for number in range(partitions)]
    found: list[list[Any]] = [[] for _ in places]
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap, group_id=None, enable_auto_commit=False
    )
    with closing(consumer):
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for records in consumer.poll(timeout_ms=100).values():
                for record in records:
                    found[record.partition].append(record)
    return found
