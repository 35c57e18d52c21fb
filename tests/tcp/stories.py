"""What the stories over TCP share: a calm cluster, a load that keeps account, the wire's truth."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outlast import KafkaProducer
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.server import ClusterServer, Peer
from tests.real.load import Entry, Log

TOPIC = "t"
PRODUCE, API_VERSIONS = 0, 18


@contextmanager
def calm_cluster(partitions: int = 3, **settings: Any) -> Iterator[ClusterServer]:
    """Three nodes without chance, and a topic on them."""
    chosen = ClusterSettings(
        **{"fetch_backoff_p": 0.0, "deny_p": 0.0, "creation_deny_p": 0.0, **settings}
    )
    with ClusterServer(MockCluster(3, settings=chosen, rng=random.Random(1))) as server:
        server.create_topic(TOPIC, partitions)
        yield server


@contextmanager
def warm_producer(
    server: ClusterServer, partitions: int = 3, **keywords: Any
) -> Iterator[KafkaProducer]:
    """A producer that knows every leader. Its connections are up."""
    with KafkaProducer(
        bootstrap_servers=server.bootstrap, metrics_registry=None, **keywords
    ) as producer:
        for partition in range(partitions):
            producer.send(TOPIC, b"-1", partition=partition)
        producer.flush(timeout=20)
        yield producer


def log_of(server: ClusterServer, partitions: int = 3) -> Log:
    """What the leaders hold, without the records that came before the load."""
    return {
        p: [Entry(r.offset, -1, int(r.value or b"-1")) for r in server.records(TOPIC, p)][1:]
        for p in range(partitions)
    }


def visible_s(server: ClusterServer, partition: int) -> float | None:
    """When the first node named the partition's present leader; None: none has."""

    def read(cluster: MockCluster, _: float) -> float | None:
        _, epoch = cluster.leader(TOPIC, partition)
        return min(cluster.visible_at_s(TOPIC, partition, epoch).values(), default=None)

    return server.call(read)


def copies_on_the_wire(server: ClusterServer) -> int:
    """How often a batch was sent that had been sent before."""

    def read(cluster: MockCluster, _: float) -> int:
        sent = Counter(
            (share.partition, share.producer_id, share.producer_epoch, share.base_sequence)
            for request in cluster.request_log
            for share in request.partitions
            if request.api_key == PRODUCE
        )
        return sum(sent.values()) - len(sent)

    return server.call(read)


def produce_connections(server: ClusterServer, node_id: int | None = None) -> list[Peer]:
    """The connections that carried Produce requests to a node or to all, in order of first use."""

    def read(cluster: MockCluster, _: float) -> list[Any]:
        used = (
            request.connection
            for request in cluster.request_log
            if request.api_key == PRODUCE and node_id in (None, request.node_id)
        )
        return list(dict.fromkeys(used))

    return server.call(read)


def connections_made(server: ClusterServer) -> int:
    """How many there have been: each begins with one ApiVersions request."""
    return server.call(
        lambda cluster, _: sum(r.api_key == API_VERSIONS for r in cluster.request_log)
    )
