"""Where the metrics of real producers are: the default registry, one of their own, or nowhere."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY, CollectorRegistry

from outlast import KafkaProducer
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer

LATE_S = 10.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with ClusterServer(MockCluster(1, rng=random.Random(1))) as server:
        for topic in ("default", "own", "off", "otel", "few"):
            server.create_topic(topic, 4)
        yield server.bootstrap


def acked(registry: CollectorRegistry, topic: str) -> float | None:
    labels = {"topic": topic, "result": "acked"}
    return registry.get_sample_value("outlast_records_total", labels)


def write(producer: KafkaProducer, topic: str, records: int = 4) -> None:
    for number in range(records):
        producer.send(topic, b"x", partition=number % 4)
    producer.flush(LATE_S)


def test_two_producers_share_the_default_registry(bootstrap: str) -> None:
    before = REGISTRY.get_sample_value("outlast_buffer_limit_bytes") or 0.0
    with (
        KafkaProducer(bootstrap_servers=bootstrap, buffer_memory=1_000_000) as one,
        KafkaProducer(bootstrap_servers=bootstrap, buffer_memory=2_000_000) as other,
    ):
        write(one, "default", 5)
        write(other, "default", 7)
        assert acked(REGISTRY, "default") == 12
        limit_bytes = REGISTRY.get_sample_value("outlast_buffer_limit_bytes")
        assert limit_bytes == before + 3_000_000
    assert REGISTRY.get_sample_value("outlast_buffer_limit_bytes") == before
    assert acked(REGISTRY, "default") == 12  # what was counted stays


def test_a_registry_of_its_own_has_all_and_the_default_none(bootstrap: str) -> None:
    registry = CollectorRegistry()
    labels = {"app": "billing"}
    with KafkaProducer(
        bootstrap_servers=bootstrap, metrics_registry=registry, metrics_labels=labels
    ) as producer:
        write(producer, "own")
        shown = {"topic": "own", "result": "acked", **labels}
        assert registry.get_sample_value("outlast_records_total", shown) == 4
        budget_s = registry.get_sample_value("outlast_delivery_timeout_seconds", labels)
        assert budget_s == 120.0
    assert acked(REGISTRY, "own") is None


def test_the_limit_is_the_settings(bootstrap: str) -> None:
    registry = CollectorRegistry()
    with KafkaProducer(
        bootstrap_servers=bootstrap, metrics_registry=registry, partition_metrics_limit=2
    ) as producer:
        write(producer, "few")
    [page] = [p for p in registry.collect() if p.name == "outlast_partition_gap_seconds"]
    assert sorted(s.labels["partition"] for s in page.samples) == ["0", "1", "_other"]


def test_opentelemetry_has_all_and_prometheus_none(bootstrap: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with KafkaProducer(
        bootstrap_servers=bootstrap, metrics="otel", meter_provider=provider
    ) as producer:
        write(producer, "otel")
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    [records] = [metric for metric in scope.metrics if metric.name == "outlast.records"]
    points = {(p.attributes or {})["outlast.result"]: p.value for p in records.data.data_points}
    assert points == {"acked": 4, "failed": 0}
    assert acked(REGISTRY, "otel") is None
    provider.shutdown()


def test_off_is_nowhere(bootstrap: str) -> None:
    with KafkaProducer(bootstrap_servers=bootstrap, metrics=None) as producer:
        write(producer, "off")
    assert acked(REGISTRY, "off") is None
