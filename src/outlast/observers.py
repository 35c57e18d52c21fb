"""Who hears the facts of one producer, according to its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import REGISTRY

from outlast.config import DEFAULT_REGISTRY
from outlast.engine.messages import Fact, Gap, GapSettled
from outlast.figures import Figures
from outlast.observe.log import LogObserver
from outlast.observe.otel import OtelObserver
from outlast.observe.prometheus import PrometheusObserver

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Hears facts on the I/O thread; one that raises is dropped."""

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Hear these facts, in order."""

    def close(self) -> None:
        """No more facts come."""


class GapCallback:
    """`on_gap`: called once for each gap, when its outcome is final."""

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


def one_by_one(observer: Observer) -> Callable[[Fact], None]:
    """The driver tells facts one at a time, so that an observer that raises is dropped alone."""
    return lambda fact: observer((fact,))


def observers_for(
    values: Mapping[str, Any], figures: Figures | None, spans: OtelObserver
) -> list[Observer]:
    """Log, traces, metrics, figures and `on_gap`."""
    observers: list[Observer] = [spans, LogObserver(spans.trace_id)]
    registry = values["metrics_registry"]
    if registry is DEFAULT_REGISTRY:
        registry = REGISTRY
    if registry is not None:
        observers.append(PrometheusObserver(registry))
    if figures is not None:
        observers.append(figures)
    if values["on_gap"] is not None:
        observers.append(GapCallback(values["on_gap"]))
    return observers
