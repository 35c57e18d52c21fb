"""The metrics in a Prometheus registry.

* A registry has one set, whatever the number of producers: a second registration raises.
* Usually the numbers are our own and a collector shows them. Beside prometheus_client's own objects
  that takes a third of the time for a batch and half of it for a page, and leaves the `_created`
  lines out.
* In multiprocess mode (a folder in PROMETHEUS_MULTIPROC_DIR, with files for each worker)
  collectors are not asked. There the metrics are plain counters, gauges and histograms of
  prometheus_client; gauges are of the workers that live, series cannot be taken away, and exemplars
  are not kept.
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
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric as Page
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from outlast.observe.metric_set import NODES_SHOWN as NODES_SHOWN, Backend, Labels, MetricSet, Sets
from outlast.observe.metrics import METRICS, OTHER as OTHER, RECORDS, SEND_DURATION, Kind, Metric
from outlast.observe.metrics_observer import (
    PARTITIONS_SHOWN as PARTITIONS_SHOWN,
    MetricsObserver,
    Spans,
)
from outlast.observe.numbers import Buckets, Number

EXEMPLAR_LIMIT = 128  # characters of all names and values together (OpenMetrics)
WRITE_EVERY_S = 0.1  # to the files of multiprocess mode
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
        backend = _Plain(names) if many else _Pages()
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


class _HeldCounter:
    """Additions that are not in the file yet."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._more = 0.0

    def inc(self, amount: float, /) -> None:
        """Add to it."""
        self._more += amount

    def write(self) -> None:
        """Add what has come together."""
        if self._more:
            self._counter.inc(self._more)
            self.drop()

    def drop(self) -> None:
        """Forget it."""
        self._more = 0.0


class _HeldHistogram:
    """Observations that are not in the file yet."""

    def __init__(self, histogram: Histogram, edges: tuple[float, ...]) -> None:
        self._histogram = histogram
        self._edges = edges
        self.drop()

    def observe(self, value: float, _exemplar: None = None, /) -> None:
        """One more."""
        self._more.observe(value)

    def write(self) -> None:
        """Add what has come together: `observe` would take one at a time."""
        counts = self._more.counts
        if any(counts):
            for bucket, count in zip(self._histogram._buckets, counts, strict=True):
                if count:
                    bucket.inc(count)
            self._histogram._sum.inc(self._more.sum)
            self.drop()

    def drop(self) -> None:
        """Forget it."""
        self._more = Buckets({}, self._edges)


class _Plain(Backend):
    """prometheus_client's own objects, which write files that another process reads. An addition
    to a file takes 1 µs, so what is counted for each batch is put together for `WRITE_EVERY_S`.
    """

    write_every_s = WRITE_EVERY_S

    def __init__(self, own_names: tuple[str, ...]) -> None:
        self._families = {metric.name: _family(metric, own_names) for metric in METRICS.values()}
        self._held: dict[tuple[str, Key], _HeldCounter | _HeldHistogram] = {}

    def collectors(self) -> Iterable[Collector]:
        """What is registered."""
        return self._families.values()

    def child(self, metric: Metric, labels: Labels) -> Any:
        """See `Backend`."""
        family = self._families[metric.name]
        child: Any = family.labels(**labels) if labels else family
        if metric is RECORDS:
            return self._held.setdefault((metric.name, tuple(labels.values())), _HeldCounter(child))
        if metric is SEND_DURATION:
            held = _HeldHistogram(child, metric.buckets)
            return self._held.setdefault((metric.name, tuple(labels.values())), held)
        return child

    def write(self) -> None:
        """See `Backend`."""
        for held in self._held.values():
            held.write()

    def begin_again(self) -> None:
        """See `Backend`: what is held is the parent's, which writes it."""
        for held in self._held.values():
            held.drop()

    def remove(self, metric: Metric, labels: Labels) -> None:
        """See `Backend`. It cannot be had: what was counted is in a file."""

    def exemplar(self, span: SpanContext | None) -> None:
        """See `Backend`. There are none in multiprocess mode."""


def _family(metric: Metric, own_names: tuple[str, ...]) -> Counter | Gauge | Histogram:
    name, said, labels = metric.name, metric.help, own_names + metric.labels
    match metric.kind:
        case Kind.COUNTER:
            return Counter(name, said, labels, registry=None)
        case Kind.GAUGE:
            mode: Any = f"live{metric.joins.value}"  # what a worker had ends with it
            return Gauge(name, said, labels, registry=None, multiprocess_mode=mode)
        case Kind.HISTOGRAM:
            return Histogram(name, said, labels, registry=None, buckets=metric.buckets)
