"""The metrics in multiprocess mode of prometheus_client: its own objects, which write files.

The mode is one where PROMETHEUS_MULTIPROC_DIR names a folder; there each worker has files, and the
one that is scraped reads all of them. Gauges are of the workers that live, series cannot be taken
away, and exemplars are not kept.

An addition to a file takes 1 µs, and a batch has three to five. So what is counted for each batch
is put together, and a thread adds it up `WRITE_EVERY_S` after the first of it. (The next fact could
do that, but it may be minutes away.) Nothing is lost when a producer is closed or a program ends; a
process that is killed loses what it has not written yet.

Rules:
* The thread holds the lock of the backend while it writes, and a fork takes that lock before: a
  child never finds prometheus_client in the midst of a write. What the parent held is the parent's.
* What prometheus_client raises in the thread, the next one who counts raises: an observer that does
  is dropped with one line in the log.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from opentelemetry.trace import SpanContext
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from outlast.observe.metric_set import Backend, Labels
from outlast.observe.metrics import METRICS, RECORDS, SEND_DURATION, Kind, Metric
from outlast.observe.numbers import Buckets

WRITE_EVERY_S = 0.1


class _Held(Protocol):
    """A series with additions that are not in its file yet."""

    def write(self) -> None:
        """Add what has come together."""

    def drop(self) -> None:
        """Forget it."""


class Files(Backend):
    """prometheus_client's own objects."""

    def __init__(self, own_names: tuple[str, ...]) -> None:
        super().__init__()
        self._families = {metric.name: _family(metric, own_names) for metric in METRICS.values()}
        self._held: list[_Held] = []
        self._asks: queue.SimpleQueue[bool] | None = None  # True: write soon; False: end
        self._error: Exception | None = None  # what came of it

    def collectors(self) -> Iterable[Collector]:
        """What is registered."""
        return self._families.values()

    def child(self, metric: Metric, labels: Labels) -> Any:
        """See `Backend`."""
        family = self._families[metric.name]
        child: Any = family.labels(**labels) if labels else family
        if metric is RECORDS:
            return _HeldCounter(child, self._hold)
        if metric is SEND_DURATION and _takes_many(child, metric.buckets):
            return _HeldHistogram(child, metric.buckets, self._hold)
        return child

    def remove(self, metric: Metric, labels: Labels) -> None:
        """See `Backend`. It cannot be had: what was counted is in a file."""

    def exemplar(self, span: SpanContext | None) -> None:
        """See `Backend`. There are none in multiprocess mode."""

    def rest(self) -> None:
        """See `Backend`."""
        self._write()
        if self._asks is not None:
            self._asks.put(False)
            self._asks = None

    def begin_again(self) -> None:
        """See `Backend`: without the parent's thread and what it will write."""
        super().begin_again()
        for held in self._held:
            held.drop()
        self._held.clear()
        self._asks = None

    def _hold(self, held: _Held) -> None:
        """This one has something to write now, and had nothing before."""
        if self._error is not None:
            raise self._error
        self._held.append(held)
        if self._asks is None:
            self._start()
        elif len(self._held) == 1:
            self._asks.put(True)

    def _start(self) -> None:
        asks: queue.SimpleQueue[bool] = queue.SimpleQueue()
        asks.put(True)
        thread = threading.Thread(
            target=self._write_when_asked, args=(asks,), name="outlast-metrics", daemon=True
        )
        with suppress(RuntimeError):  # no new threads: the next tries again, or `rest` writes
            thread.start()
            self._asks = asks

    def _write_when_asked(self, asks: queue.SimpleQueue[bool]) -> None:
        while asks.get():
            with suppress(queue.Empty):
                if not asks.get(timeout=WRITE_EVERY_S):
                    return
            with self.lock:
                try:
                    self._write()
                except Exception as error:
                    self._error = error

    def _write(self) -> None:
        held, self._held = self._held, []
        for each in held:
            each.write()


class _HeldCounter:
    def __init__(self, counter: Counter, hold: Callable[[_Held], None]) -> None:
        self._counter = counter
        self._hold = hold
        self._more = 0.0

    def inc(self, amount: float, /) -> None:
        """Add to it."""
        if not self._more:
            self._hold(self)
        self._more += amount

    def write(self) -> None:
        """See `_Held`."""
        more, self._more = self._more, 0.0
        self._counter.inc(more)

    def drop(self) -> None:
        """See `_Held`."""
        self._more = 0.0


class _HeldHistogram:
    def __init__(
        self, histogram: Histogram, edges: tuple[float, ...], hold: Callable[[_Held], None]
    ) -> None:
        self._histogram = histogram
        self._edges = edges
        self._hold = hold
        self._more: Buckets | None = None

    def observe(self, value: float, _exemplar: None = None, /) -> None:
        """One more."""
        if self._more is None:
            self._hold(self)
            self._more = Buckets({}, self._edges)
        self._more.observe(value)

    def write(self) -> None:
        """See `_Held`. By private names, as `observe` takes one at a time."""
        more, self._more = self._more, None
        if more is not None:
            for bucket, count in zip(self._histogram._buckets, more.counts, strict=True):
                if count:
                    bucket.inc(count)
            self._histogram._sum.inc(more.sum)

    def drop(self) -> None:
        """See `_Held`."""
        self._more = None


def _takes_many(histogram: Histogram, edges: tuple[float, ...]) -> bool:
    """Whether this prometheus_client has the parts that `_HeldHistogram` writes to (0.19 to 0.26
    have). Without them each batch is written for itself.
    """
    buckets = getattr(histogram, "_buckets", ())
    parts = [*buckets, getattr(histogram, "_sum", None)]
    return len(buckets) == len(edges) + 1 and all(hasattr(part, "inc") for part in parts)


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
