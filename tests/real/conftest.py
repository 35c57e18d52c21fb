"""The real cluster (see tests/conftest.py), whole again before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.kafka_cluster import RealCluster


@pytest.fixture
def cluster(one_cluster: RealCluster) -> RealCluster:
    """The cluster with all nodes up and all replicas in sync."""
    one_cluster.heal()
    return one_cluster


@pytest.fixture(scope="module")
def four_nodes(one_cluster: RealCluster) -> Iterator[RealCluster]:
    """The cluster with a fourth broker."""
    one_cluster.heal()
    with one_cluster.joined():
        yield one_cluster
