"""Who hears the facts of one producer, according to its settings."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import REGISTRY

from outlast.config import DEFAULT_REGISTRY
from outlast.engine.messages import ConnectionOpened, Fact, Gap, GapSettled
from outlast.figures import Figures
from outlast.io import process
from outlast.observe import metric_set
from outlast.observe.log import LogObserver
from outlast.observe.otel import OtelObserver
from outlast.observe.otel_metrics import OtelMetricsObserver
from outlast.observe.prometheus import MULTIPROCESS_NAMES, PrometheusObserver

log = logging.getLogger(__name__)

process.hold_over_forks(metric_set)


class Observer(Protocol):
    """Hears facts on the I/O thread; one that raises is dropped."""

    hears_batches: bool  # wants `RecordsSettled`, the one fact that comes with each batch

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Hear these facts, in order."""

    def close(self) -> None:
        """No more facts come."""


class GapCallback:
    """`on_gap`: called once for each gap, when its outcome is final."""

    hears_batches = False

    def __init__(self, on_gap: Callable[[Gap], object]) -> None:
        self._on_gap = on_gap

    def __repr__(self) -> str:
        return f"<GapCallback {self._on_gap}>"

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Pass on what is settled; what the callback raises is logged, and the next gap comes."""
        for fact in facts:
            if isinstance(fact, GapSettled):
                try:
                    self._on_gap(fact.gap)
                except Exception:
                    log.exception("Error in on_gap")

    def close(self) -> None:
        """Nothing is held back."""


class Bootstrap:
    """`bootstrap_timeout_ms`, if it is given: until a broker is reached, calls of this producer
    block for no longer than that; then for as long as `max_block_ms` says.
    """

    hears_batches = False

    def __init__(self, producer: Any, max_block_s: float) -> None:
        self._producer = weakref.ref(producer)
        self._max_block_s = max_block_s

    def __repr__(self) -> str:
        return f"<Bootstrap max_block_s={self._max_block_s}>"

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Look for the first connection."""
        producer = self._producer()
        if producer is not None and any(isinstance(fact, ConnectionOpened) for fact in facts):
            producer._max_block_s = self._max_block_s

    def close(self) -> None:
        """Nothing is held back."""


class OneByOne:
    """The driver tells facts one at a time, so that an observer that raises is dropped alone."""

    __slots__ = ("hears_batches", "together")

    def __init__(self, observer: Observer) -> None:
        self.together = observer
        self.hears_batches = observer.hears_batches

    def __repr__(self) -> str:
        return repr(self.together)

    def __call__(self, fact: Fact) -> None:
        """Pass it on."""
        self.together((fact,))


def observers_for(
    values: Mapping[str, Any], figures: Figures | None, spans: OtelObserver
) -> list[Observer]:
    """Log, traces, metrics, figures and `on_gap`."""
    observers: list[Observer] = [spans, LogObserver(spans.span_of)]
    metrics = _metrics_observer(values, spans)
    if metrics is not None:
        observers.append(metrics)
    if figures is not None:
        observers.append(figures)
    if values["on_gap"] is not None:
        observers.append(GapCallback(values["on_gap"]))
    return observers


_said: set[str] = set()  # why there are no metrics, in this process


def _metrics_observer(values: Mapping[str, Any], spans: OtelObserver) -> Observer | None:
    """Metrics that cannot be had are no reason not to deliver."""
    backend, registry = values["metrics"], values["metrics_registry"]
    if backend is None or (backend == "prometheus" and registry is None):
        return None
    common: dict[str, Any] = {
        "delivery_timeout_s": values["delivery_timeout_ms"] / 1000,
        "own_labels": dict(values["metrics_labels"]),
        "partition_limit": values["partition_metrics_limit"],
        "spans": spans,
    }
    try:
        if backend == "otel":
            return OtelMetricsObserver(values["meter_provider"], **common)
        return PrometheusObserver(REGISTRY if registry is DEFAULT_REGISTRY else registry, **common)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if text not in _said:
            _said.add(text)
            log.warning("No metrics=%r: they cannot be set up. %s%s", backend, text, _hint(error))
        return None


def _hint(error: Exception) -> str:
    folder = next((os.environ[name] for name in MULTIPROCESS_NAMES if name in os.environ), None)
    if isinstance(error, OSError) and folder is not None:
        return f"; {MULTIPROCESS_NAMES[0]}={folder!r} must be a folder that may be written to"
    if isinstance(error, ValueError):
        return "; give a metrics_registry of its own, or metrics=None"
    return ""
