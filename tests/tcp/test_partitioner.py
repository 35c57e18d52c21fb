"""What a user's own partitioner is told."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outlast import KafkaProducer
from outlast.testing.cluster import MockCluster
from outlast.testing.faults import MetadataLeaderless
from outlast.testing.server import ClusterServer


def test_it_hears_which_partitions_have_a_leader() -> None:
    heard: list[tuple[list[int], list[int]]] = []

    def partitioner(_: bytes, everything: Sequence[int], available: Sequence[int]) -> int:
        heard.append((list(everything), list(available)))
        return available[0]

    with ClusterServer(MockCluster(3, rng=random.Random(1))) as server:
        server.create_topic("t", 3)
        server.call(
            lambda cluster, _: cluster.faults.append(MetadataLeaderless(topic="t", partition=0))
        )
        with pytest.warns(DeprecationWarning, match="partitioner"):
            producer = KafkaProducer(bootstrap_servers=server.bootstrap, partitioner=partitioner)
        with producer:
            assert producer.send("t", b"v").get(timeout=20).partition == 1
    assert heard == [([0, 1, 2], [1, 2])]
