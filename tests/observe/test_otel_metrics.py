"""The same facts as OpenTelemetry metrics: the same numbers, under the names of the list."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from inspect import signature
from typing import Any

import pytest
from opentelemetry.metrics import Histogram, Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import REGISTRY, CollectorRegistry

from outlast import KafkaProducer
from outlast.engine.gap import GapRecorder
from outlast.engine.messages import BufferLevel, Fact, PartitionSeen, RecordsSettled, TopicGone
from outlast.observe.metrics import ATTRIBUTES, METRICS, Kind, Metric
from outlast.observe.otel import OtelObserver
from outlast.observe.otel_metrics import SENDS_A_SECOND, OtelMetricsObserver
from outlast.observe.prometheus import PrometheusObserver
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer
from tests.observe.test_metrics_shared import TP, ending, opening
from tests.observe.test_metrics_story import failed_over

LATE_S = 10.0


class Export:
    """What an exporter gets."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        [resource] = data.resource_metrics
        [scope] = resource.scope_metrics
        assert scope.scope.name == "outlast"
        names = [metric.name for metric in scope.metrics]
        assert len(names) == len(set(names))
        return {metric.name: metric for metric in scope.metrics}

    def points(self, metric: Metric) -> dict[frozenset[tuple[str, str]], Any]:
        found = self.metrics().get(metric.otel)
        points = [] if found is None else found.data.data_points
        assert len({frozenset(p.attributes.items()) for p in points}) == len(points)
        return {frozenset(point.attributes.items()): point for point in points}


@pytest.fixture
def export() -> Iterator[Export]:
    export = Export()
    yield export
    export.provider.shutdown()


# what the OpenTelemetry at hand can do: all of it since 1.30
OWN_BUCKETS = "explicit_bucket_boundaries_advisory" in signature(Meter.create_histogram).parameters
EXEMPLARS = "context" in signature(Histogram.record).parameters


def test_a_failover_gives_the_numbers_that_prometheus_shows(export: Export) -> None:
    facts = failed_over().facts
    registry = CollectorRegistry()
    PrometheusObserver(registry, delivery_timeout_s=120.0)(facts)
    OtelMetricsObserver(export.provider, delivery_timeout_s=120.0)(facts)
    pages = {page.name: page for page in registry.collect()}
    exported = export.metrics()
    for name, metric in METRICS.items():
        page = pages[name.removesuffix("_total")]
        points = export.points(metric)
        for sample in page.samples:
            attributes = {ATTRIBUTES[k]: v for k, v in sample.labels.items() if k != "le"}
            point = points.get(frozenset(attributes.items()))
            if metric.kind is Kind.HISTOGRAM:
                if sample.name.endswith("_count") and sample.value and "send" not in name:
                    assert point is not None
                    assert point.count == sample.value
                    assert (tuple(point.explicit_bounds) == metric.buckets) is OWN_BUCKETS
            elif sample.value == float("inf"):
                assert point is None  # infinity is no measurement
            else:
                assert point is not None, (name, sample.labels)
                assert point.value == pytest.approx(sample.value)
        if page.samples and metric.otel in exported:
            shown = exported[metric.otel]
            assert (shown.unit, shown.description) == (metric.unit, metric.help)
    assert {metric.otel for metric in METRICS.values()} >= exported.keys()
    assert len(exported) >= len(METRICS) - 2


def test_names_are_no_name_spaces_of_others() -> None:
    names = sorted(metric.otel for metric in METRICS.values())
    assert len(set(names)) == len(names)
    for name in names:
        assert name.startswith("outlast.")
        assert not [other for other in names if other.startswith(f"{name}.")]
    labels = {label for metric in METRICS.values() for label in metric.labels}
    assert labels == ATTRIBUTES.keys()
    assert len(set(ATTRIBUTES.values())) == len(ATTRIBUTES)


def records(export: Export) -> float:
    labels = {"messaging.destination.name": "orders", "outlast.result": "acked"}
    points = export.points(METRICS["outlast_records_total"])
    return float(points[frozenset(labels.items())].value)


def test_two_producers_share_the_instruments(export: Export, caplog: Any) -> None:
    one, other = OtelMetricsObserver(export.provider), OtelMetricsObserver(export.provider)
    one([RecordsSettled(1.0, *TP, 3, 0, 0.1), BufferLevel(1.0, 10, 100, 5.0)])
    other([RecordsSettled(1.0, *TP, 4, 0, 0.1), BufferLevel(1.0, 20, 100, 3.0)])
    assert records(export) == 7
    [level] = export.points(METRICS["outlast_buffer_bytes"]).values()
    assert level.value == 30
    [headroom] = export.points(METRICS["outlast_buffer_headroom_seconds"]).values()
    assert headroom.value == 3.0
    other.close()
    [level] = export.points(METRICS["outlast_buffer_bytes"]).values()
    assert level.value == 10
    assert not caplog.records  # the SDK complains of instruments made twice


def test_labels_of_the_applications_own_are_attributes(export: Export) -> None:
    observe = OtelMetricsObserver(export.provider, own_labels={"app": "billing"})
    observe([RecordsSettled(1.0, *TP, 1, 0, 0.1)])
    for metric in METRICS.values():
        assert all(("app", "billing") in attributes for attributes in export.points(metric))


def test_series_of_a_deleted_topic_go_away(export: Export) -> None:
    observe = OtelMetricsObserver(export.provider)
    observe([PartitionSeen(0.0, *TP), PartitionSeen(0.0, "kept", 0)])
    seconds = METRICS["outlast_partition_gap_seconds_total"]
    assert len(export.points(seconds)) == 2
    observe([TopicGone(1.0, "orders")])
    [labels] = export.points(seconds)
    assert dict(labels)["messaging.destination.name"] == "kept"


def test_a_gaps_duration_has_its_trace_for_an_example(export: Export) -> None:
    spans = OtelObserver(TracerProvider())
    observe = OtelMetricsObserver(export.provider, spans=spans)
    gaps = GapRecorder(0.0)
    facts: list[Fact] = [*opening(gaps), *ending(gaps)]
    for fact in facts:
        spans([fact])
        observe([fact])
    [point] = export.points(METRICS["outlast_gap_duration_seconds"]).values()
    if not EXEMPLARS:
        assert not getattr(point, "exemplars", ())
        return
    [exemplar] = point.exemplars
    context = spans.span_context(1)
    assert context is not None
    assert (exemplar.trace_id, exemplar.span_id) == (context.trace_id, context.span_id)
    spans.close()


def test_of_the_time_to_the_ack_a_sample_is_taken(export: Export) -> None:
    observe = OtelMetricsObserver(export.provider)
    batch = RecordsSettled(1.0, *TP, 1, 0, 0.004)
    began_s = time.monotonic()
    for _ in range(20 * SENDS_A_SECOND):
        observe([batch])
    seconds = int(time.monotonic() - began_s) + 1
    [point] = export.points(METRICS["outlast_send_duration_seconds"]).values()
    assert SENDS_A_SECOND <= point.count <= (seconds + 1) * SENDS_A_SECOND
    assert point.sum == pytest.approx(point.count * 0.004)
    assert records(export) == 20 * SENDS_A_SECOND


def test_sets_of_providers_do_not_mix_and_are_not_kept_alive(export: Export) -> None:
    other = Export()
    OtelMetricsObserver(other.provider)([RecordsSettled(1.0, *TP, 5, 0, 0.1)])
    OtelMetricsObserver(export.provider)([RecordsSettled(1.0, *TP, 1, 0, 0.1)])
    assert (records(export), records(other)) == (1, 5)
    other.provider.shutdown()
    gone = weakref.ref(other.provider)
    del other
    gc.collect()
    assert gone() is None


LATE_PROVIDER = """
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from outlast.engine.messages import RecordsSettled
from outlast.observe.otel_metrics import OtelMetricsObserver
before = OtelMetricsObserver()
before([RecordsSettled(1.0, "orders", 3, 2, 0, 0.1)])
reader = InMemoryMetricReader()
provider = MeterProvider([reader])
set_meter_provider(provider)
after = OtelMetricsObserver()
named = OtelMetricsObserver(provider)
for observe in (before, after, named):
    observe([RecordsSettled(1.0, "orders", 3, 1, 0, 0.1)])
[resource] = reader.get_metrics_data().resource_metrics
[scope] = resource.scope_metrics
[metric] = [metric for metric in scope.metrics if metric.name == "outlast.records"]
print(sorted(point.value for point in metric.data.data_points))
"""


def test_the_global_provider_may_be_set_later_and_has_one_set() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE_PROVIDER],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[0.0, 5.0]\n"
    assert done.stderr == ""  # nothing was made twice


class HangingExporter(MetricExporter):
    """Never comes back, until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()
        self.go_on = threading.Event()

    def export(self, *_: Any, **__: Any) -> MetricExportResult:
        self.called.set()
        self.go_on.wait(60)
        return MetricExportResult.SUCCESS

    def force_flush(self, *_: Any, **__: Any) -> bool:
        return True

    def shutdown(self, *_: Any, **__: Any) -> None:
        self.go_on.set()


def test_an_exporter_that_hangs_holds_nobody_up() -> None:
    exporter = HangingExporter()
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=20)
    provider = MeterProvider([reader])
    with ClusterServer(MockCluster(1, rng=random.Random(1))) as server:
        server.create_topic("hanging", 1)
        with KafkaProducer(
            bootstrap_servers=server.bootstrap, metrics="otel", meter_provider=provider
        ) as producer:
            producer.send("hanging", b"before").get(LATE_S)
            assert exporter.called.wait(LATE_S)
            began_s = time.monotonic()
            for _ in range(200):
                future = producer.send("hanging", b"during")
            future.get(LATE_S)
            assert time.monotonic() - began_s < LATE_S
            assert not exporter.go_on.is_set()
    exporter.go_on.set()
    provider.shutdown()
    hung = {"topic": "hanging", "result": "acked"}
    assert REGISTRY.get_sample_value("outlast_records_total", hung) is None  # not in both
