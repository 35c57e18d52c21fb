"""The metrics in a Prometheus registry: plain counters, gauges and histograms, which work in
multiprocess mode, too.

* A registry has one set, whatever the number of producers: a second registration raises.
* Counters of topics and partitions come without `_created`, which would double their lines: a page
  of 1 000 partitions must be made in 20 ms.
* In multiprocess mode (a directory in PROMETHEUS_MULTIPROC_DIR, a file for each worker) gauges are
  of the workers that live, series cannot be taken away, and exemplars are not kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry.trace import SpanContext
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric as Page
from prometheus_client.registry import Collector

from outlast.observe.metric_set import NODES_SHOWN as NODES_SHOWN, MetricSet
from outlast.observe.metrics import METRICS, OTHER as OTHER, Kind, Metric
from outlast.observe.metrics_observer import (
    PARTITIONS_SHOWN as PARTITIONS_SHOWN,
    MetricsObserver,
    Spans,
)

EXEMPLAR_LIMIT = 128  # characters of all names and values together (OpenMetrics)
MULTIPROCESS_NAMES = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")

Family = Counter | Gauge | Histogram

_sets: WeakKeyDictionary[CollectorRegistry, MetricSet] = WeakKeyDictionary()
_lock = threading.Lock()


class PrometheusObserver(MetricsObserver):
    """Turns one producer's facts into metrics of `registry`. See `MetricsObserver`.

    Raises:
        ValueError: the registry has metrics of these names that are not ours.
        OSError: the directory of multiprocess mode cannot be written to.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        delivery_timeout_s: float | None = None,
        partition_limit: int = PARTITIONS_SHOWN,
        spans: Spans | None = None,
    ) -> None:
        super().__init__(
            _set_of(registry),
            delivery_timeout_s=delivery_timeout_s,
            partition_limit=partition_limit,
            spans=spans,
        )


def _set_of(registry: CollectorRegistry) -> MetricSet:
    with _lock:
        if registry not in _sets:
            backend = _Prometheus()
            try:
                backend.register(registry)
                _sets[registry] = MetricSet(backend)
            except BaseException:
                backend.unregister(registry)
                raise
        return _sets[registry]


class _Prometheus:
    """The metrics of one registry, which it does not keep alive."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._registered: list[Collector] = []
        self._multiprocess = any(name in os.environ for name in MULTIPROCESS_NAMES)

    def register(self, registry: CollectorRegistry) -> None:
        """Make the metrics and have them shown."""
        for metric in METRICS.values():
            family = self._families[metric.name] = _family(metric)
            shown: Collector = family
            if metric.kind is Kind.COUNTER and metric.labels[:1] == ("topic",):
                shown = _WithoutCreated(family)
            registry.register(shown)
            self._registered.append(shown)

    def unregister(self, registry: CollectorRegistry) -> None:
        """Leave a registry that would not have all of them."""
        while self._registered:
            registry.unregister(self._registered.pop())

    def child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        """See `Backend`."""
        family = self._families[metric.name]
        return family.labels(*labels) if labels else family

    def remove(self, metric: Metric, labels: tuple[str, ...]) -> None:
        """See `Backend`."""
        if not self._multiprocess:
            self._families[metric.name].remove(*labels)

    def exemplar(self, span: SpanContext | None) -> dict[str, str] | None:
        """See `Backend`. One that is too long would raise, after the value was counted."""
        if span is None or not span.trace_flags.sampled:
            return None
        labels = {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        size = sum(map(len, [*labels, *labels.values()]))
        return labels if size <= EXEMPLAR_LIMIT else None


class _WithoutCreated(Collector):
    """Shows a counter without the lines that tell when each of its series was made."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def __repr__(self) -> str:
        return f"<_WithoutCreated {self._family}>"

    def describe(self) -> Iterable[Page]:
        """The names, by which a registry tells collisions."""
        return self._family.describe()

    def collect(self) -> Iterable[Page]:
        """The series."""
        for page in self._family.collect():
            page.samples = [s for s in page.samples if not s.name.endswith("_created")]
            yield page


def _family(metric: Metric) -> Family:
    match metric.kind:
        case Kind.COUNTER:
            return Counter(metric.name, metric.help, metric.labels, registry=None)
        case Kind.GAUGE:
            mode: Any = f"live{metric.joins.value}"  # what a worker had ends with it
            return Gauge(
                metric.name, metric.help, metric.labels, registry=None, multiprocess_mode=mode
            )
        case Kind.HISTOGRAM:
            return Histogram(
                metric.name, metric.help, metric.labels, registry=None, buckets=metric.buckets
            )
