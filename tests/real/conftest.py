"""One real cluster for the whole run, whole again before each test; its logs beside a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.real.kafka_cluster import RealCluster
from tests.real.kafka_jars import missing

_running: list[RealCluster] = []


@pytest.fixture(scope="session")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    lacks = missing()
    if lacks:
        demanded = set(os.environ.get("OUTLAST_REQUIRE", "").split(",")) & set(lacks)
        reason = "no real Kafka: " + "; ".join(lacks.values())
        if demanded:
            pytest.fail(f"{reason} (OUTLAST_REQUIRE names {', '.join(sorted(demanded))})")
        pytest.skip(reason)
    cluster = RealCluster(tmp_path_factory.mktemp("kafka", numbered=True))
    _running.append(cluster)
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.close()
        _running.clear()


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed:
        for cluster in _running:
            for node in cluster.nodes.values():
                report.sections.append((f"the end of node {node.node_id}'s log", node.tail()))
    return report
