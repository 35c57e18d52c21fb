"""A leader killed under load, seen through all observers at once: they tell one story."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from outlast import KafkaProducer
from outlast.engine.messages import GapOutcome, Role, StallEnd
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.server import ClusterServer

TOPIC, PARTITIONS, DETECT_S = "orders", 3, 1.5
SECONDS = "outlast_partition_gap_seconds_total"
STALLED = "outlast_partition_stalled_seconds_total"


def wait_for(condition: Callable[[], object], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "this did not come about in time"
        time.sleep(0.01)


def test_metrics_spans_and_log_tell_of_the_same_gaps_and_stalls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="outlast")
    registry, exporter, provider = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def seconds(partition: int, name: str = SECONDS) -> float | None:
        return registry.get_sample_value(name, {"topic": TOPIC, "partition": str(partition)})

    cluster = MockCluster(3, settings=ClusterSettings(detect_s=DETECT_S), rng=random.Random(1))
    with ClusterServer(cluster) as server:
        server.create_topic(TOPIC, PARTITIONS)
        producer = KafkaProducer(
            bootstrap_servers=server.bootstrap, metrics_registry=registry, tracer_provider=provider
        )
        try:
            for partition in range(PARTITIONS):
                producer.send(TOPIC, b"before", partition=partition).get(10)
            for name in (SECONDS, STALLED):
                assert [seconds(p, name) for p in range(PARTITIONS)] == [0.0] * PARTITIONS
            killed, _ = server.leader(TOPIC, 0)
            hit = [p for p in range(PARTITIONS) if server.leader(TOPIC, p)[0] == killed]
            server.kill(killed)
            futures = [producer.send(TOPIC, b"during", partition=p) for p in range(PARTITIONS)]
            wait_for(lambda: all(seconds(p) for p in hit))  # told while the gaps are open
            assert not exporter.get_finished_spans()
            assert all(gap.phase is not None for gap in producer.gaps())
            for future in futures:
                future.get(10)
        finally:
            producer.close(10)

    gaps = producer.gaps()
    assert sorted(gap.partition for gap in gaps) == hit
    assert all(gap.outcome is GapOutcome.ABSORBED for gap in gaps)
    for partition in range(PARTITIONS):
        own = [gap.duration_s for gap in gaps if gap.partition == partition]
        assert seconds(partition) == pytest.approx(sum(own))
        assert all(duration_s > DETECT_S / 2 for duration_s in own)
    # acks=all of the other partitions wait for the dead follower meanwhile
    stalls = producer.stalls()
    assert sorted(stall.partition for stall in stalls) == [
        p for p in range(PARTITIONS) if p not in hit
    ]
    for stall in stalls:
        assert stall.ended_by is StallEnd.ACK
        assert stall.duration_s > DETECT_S / 2
        assert seconds(stall.partition, STALLED) == pytest.approx(stall.duration_s)
    assert [seconds(partition, STALLED) for partition in hit] == [0.0] * len(hit)
    assert registry.get_sample_value(
        "outlast_records_total", {"topic": TOPIC, "result": "acked"}
    ) == (2 * PARTITIONS)
    for gap in gaps:
        labels = {"topic": TOPIC, "cause": gap.cause.value}
        same = [other for other in gaps if other.cause is gap.cause]
        told = registry.get_sample_value("outlast_gaps_total", {**labels, "outcome": "absorbed"})
        assert told == len(same)
        assert registry.get_sample_value(
            "outlast_gap_duration_seconds_sum", labels
        ) == pytest.approx(sum(other.duration_s for other in same))

    spans = {
        span.attributes["outlast.gap.number"]: span
        for span in exporter.get_finished_spans()
        if span.attributes and span.name == f"partition_gap {TOPIC}"
    }
    assert sorted(spans) == [gap.number for gap in gaps]
    for gap in gaps:
        span = spans[gap.number]
        assert span.start_time is not None
        assert span.end_time is not None
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(gap.duration_s, abs=1e-6)
        assert abs(span.end_time / 1e9 - time.time()) < 60  # wall-clock time
    page = openmetrics_latest(registry).decode()
    samples = (s for family in text_string_to_metric_families(page) for s in family.samples)
    examples = {s.exemplar.labels["trace_id"] for s in samples if s.exemplar}
    traces = {f"{spans[gap.number].context.trace_id:032x}" for gap in gaps}
    assert examples
    assert examples <= traces
    lines = [record.getMessage() for record in caplog.records if record.name == "outlast"]
    for partition in hit:
        own_lines = [line for line in lines if line.startswith(f"{TOPIC}-{partition} ")]
        assert ["takes no records since" in line for line in own_lines] == [True, False]
        assert "trace_id" in own_lines[0]
        assert "takes records again" in own_lines[1]
    for node_id in {stall.node_id for stall in stalls}:
        (line,) = [line for line in lines if f"node {node_id}: a follower is " in line]
        assert all(f"{TOPIC}-{s.partition}" in line for s in stalls if s.node_id == node_id)
    for role in Role:
        assert registry.get_sample_value("outlast_connections", {"role": role.value}) == 0.0
    for stall in stalls:
        assert stall.lane == "slow"
        own_lines = [line for line in lines if line.startswith(f"{TOPIC}-{stall.partition} ")]
        assert [line.split()[1] for line in own_lines] == ["stalls", "is"]
