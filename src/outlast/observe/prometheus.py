"""The metrics in a Prometheus registry.

* A registry has one set, whatever the number of producers: a second registration raises.
* Usually the numbers are our own and a collector shows them. Beside prometheus_client's own objects
  that takes a third of the time for a batch and half of it for a page, and leaves the `_created`
  lines out.
* In multiprocess mode collectors are not asked: see `multiprocess`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry.trace import SpanContext
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric as Page
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from outlast.observe.metric_set import NODES_SHOWN as NODES_SHOWN, Backend, Labels, MetricSet, Sets
from outlast.observe.metrics import METRICS, OTHER as OTHER, Kind, Metric
from outlast.observe.metrics_observer import (
    PARTITIONS_SHOWN as PARTITIONS_SHOWN,
    MetricsObserver,
    Spans,
)
from outlast.observe.multiprocess import Files
from outlast.observe.numbers import Buckets, Number

EXEMPLAR_LIMIT = 128  # characters of all names and values together (OpenMetrics)
MULTIPROCESS_NAMES = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")

Key = tuple[str, ...]  # values of labels

_sets: WeakKeyDictionary[CollectorRegistry, Sets] = WeakKeyDictionary()
_lock = threading.Lock()


class PrometheusObserver(MetricsObserver):
    """Turns one producer's facts into metrics of `registry`. See `MetricsObserver`.

    Raises:
        ValueError: the registry has metrics of these names that are not ours.
        OSError: the folder of multiprocess mode cannot be written to.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        delivery_timeout_s: float | None = None,
        own_labels: Labels | None = None,
        partition_limit: int = PARTITIONS_SHOWN,
        spans: Spans | None = None,
    ) -> None:
        super().__init__(
            _set_of(registry, dict(sorted((own_labels or {}).items()))),
            delivery_timeout_s=delivery_timeout_s,
            partition_limit=partition_limit,
            spans=spans,
        )


def _set_of(registry: CollectorRegistry, own_labels: Labels) -> MetricSet:
    with _lock:
        if registry in _sets:
            return _sets[registry].of(own_labels)
        many = any(name in os.environ for name in MULTIPROCESS_NAMES)
        names = tuple(own_labels)
        backend = Files(names) if many else _Pages()
        registered: list[Collector] = []
        try:
            for collector in backend.collectors():
                registry.register(collector)
                registered.append(collector)
            sets = Sets(backend, names)
            first = sets.of(own_labels)
            _sets[registry] = sets
        except BaseException:  # none of it stays
            for collector in registered:
                registry.unregister(collector)
            raise
        return first


class _Pages(Backend, Collector):
    """Our own numbers, and the pages that show them."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, dict[Key, Number]] = {}
        self._buckets: dict[str, dict[Key, Buckets]] = {}
        for metric in METRICS.values():
            if metric.kind is Kind.HISTOGRAM:
                self._buckets[metric.name] = {}
            else:
                self._numbers[metric.name] = {}

    def collectors(self) -> Iterable[Collector]:
        """What is registered."""
        return [self]

    def child(self, metric: Metric, labels: Labels) -> Any:
        """See `Backend`."""
        key = tuple(labels.values())
        if metric.kind is Kind.HISTOGRAM:
            buckets = self._buckets[metric.name][key] = Buckets(labels, metric.buckets)
            return buckets
        number = self._numbers[metric.name][key] = Number(labels)
        return number

    def remove(self, metric: Metric, labels: Labels) -> None:
        """See `Backend`."""
        for series in (self._numbers, self._buckets):
            series.get(metric.name, {}).pop(tuple(labels.values()), None)

    def exemplar(self, span: SpanContext | None) -> tuple[dict[str, str], float] | None:
        """See `Backend`. One that is too long would cost the whole page."""
        if span is None or not span.trace_flags.sampled:
            return None
        labels = {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        size = sum(map(len, [*labels, *labels.values()]))
        return (labels, time.time()) if size <= EXEMPLAR_LIMIT else None

    def describe(self) -> list[Page]:
        """The names, by which a registry tells collisions."""
        return [_page(metric) for metric in METRICS.values()]

    def collect(self) -> Iterator[Page]:
        """What a scrape shows."""
        for metric in METRICS.values():
            page = _page(metric)
            if metric.kind is Kind.HISTOGRAM:
                for buckets in list(self._buckets[metric.name].values()):
                    page.samples += _bucket_samples(metric.name, buckets)
            else:
                page.samples = [
                    Sample(metric.name, number.labels, float(number.value))
                    for number in list(self._numbers[metric.name].values())
                ]
            yield page


def _page(metric: Metric) -> Page:
    return Page(metric.name.removesuffix("_total"), metric.help, metric.kind.value)


def _bucket_samples(name: str, buckets: Buckets) -> Iterator[Sample]:
    counts = list(buckets.counts)
    upper = [*map(str, map(float, buckets.edges)), "+Inf"]
    for index, (edge, count) in enumerate(zip(upper, accumulate(counts), strict=True)):
        exemplar = None
        if (known := buckets.exemplars.get(index)) is not None:
            (labels, at_unix_s), value = known
            exemplar = Exemplar(labels, value, at_unix_s)
        labelled = {**buckets.labels, "le": edge}
        yield Sample(f"{name}_bucket", labelled, float(count), None, exemplar)
    yield Sample(f"{name}_count", buckets.labels, float(sum(counts)))
    yield Sample(f"{name}_sum", buckets.labels, buckets.sum)
