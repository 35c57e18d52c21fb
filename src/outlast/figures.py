"""What `producer.metrics()` tells, under kafka-python's names where it means the same.

An observer counts facts into kafka-python's own `Metrics`, so that `raw=True` and
`metric_reporters` go on to work. Per batch, not per record. kafka-python's figures that outlast
does not take (compression rates, sizes, per-node latencies) are left out rather than shown as 0;
the whole picture is in the Prometheus metrics.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.metrics import AnonMeasurable, MetricConfig, Metrics
from kafka.metrics.stats import Rate

from outlast.engine.messages import (
    Fact,
    GapEnded,
    GapOpened,
    MetadataRefreshed,
    RecordsSettled,
)

GROUP = "producer-metrics"


class Figures:
    """Counts one producer's facts."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._config = MetricConfig(
            samples=values["metrics_num_samples"],
            time_window_ms=values["metrics_sample_window_ms"],
            tags={"client-id": values["client_id"]},
        )
        reporters = [reporter() for reporter in values["metric_reporters"]]
        self._metrics = Metrics(self._config, reporters)
        self._rates: dict[tuple[str, str], Rate] = {}
        self._sent = self._failed = self._gaps = self._gaps_ended = 0
        self._gap_seconds = 0.0
        self._refreshed_s: float | None = None
        self._rate("record-send-rate", GROUP, "Records delivered per second")
        self._rate("record-error-rate", GROUP, "Records failed per second")
        self._total("record-send-total", "Records delivered", lambda: self._sent)
        self._total("record-error-total", "Records failed", lambda: self._failed)
        self._total("gaps-total", "Rejection gaps opened", lambda: self._gaps)
        self._total("gaps-open", "Gaps open now", lambda: self._gaps - self._gaps_ended)
        self._total("gap-seconds-total", "Seconds of ended gaps", lambda: self._gap_seconds)
        self._total("metadata-age", "Seconds since metadata came", self._metadata_age_s)

    def __repr__(self) -> str:
        return f"<Figures sent={self._sent} failed={self._failed} gaps={self._gaps}>"

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Count these facts."""
        for fact in facts:
            match fact:
                case RecordsSettled():
                    self._settled(fact)
                case GapOpened():
                    self._gaps += 1
                case GapEnded():
                    self._gaps_ended += 1
                    self._gap_seconds += fact.gap.duration_s
                case MetadataRefreshed(ok=True):
                    self._refreshed_s = fact.at_s

    def read(self, *, raw: bool) -> dict[Any, Any]:
        """Values by group and name, or kafka-python's objects by MetricName."""
        metrics: dict[Any, Any] = self._metrics.metrics.copy()
        if raw:
            return metrics
        groups: dict[str, dict[str, float]] = {}
        for name, metric in metrics.items():
            groups.setdefault(name.group, {})[name.name] = metric.value()
        return groups

    def close(self) -> None:
        """Close the reporters; nothing is told from here on."""
        self._metrics.close()

    def _settled(self, fact: RecordsSettled) -> None:
        self._sent += fact.acked
        self._failed += fact.failed
        topic_group = f"producer-topic-metrics.{fact.topic}"
        for name, count in (("record-send-rate", fact.acked), ("record-error-rate", fact.failed)):
            if count:
                for group in (GROUP, topic_group):
                    rate = self._rate(name, group, f"{name} of {fact.topic}")
                    rate.record(self._config, count, fact.at_s * 1000)

    def _rate(self, name: str, group: str, description: str) -> Rate:
        rate = self._rates.get((name, group))
        if rate is None:
            rate = self._rates[name, group] = Rate()
            self._metrics.add_metric(self._metrics.metric_name(name, group, description), rate)
        return rate

    def _total(self, name: str, description: str, read: Any) -> None:
        self._metrics.add_metric(
            self._metrics.metric_name(name, GROUP, description),
            AnonMeasurable(lambda _config, _now: read()),
        )

    def _metadata_age_s(self) -> float:
        if self._refreshed_s is None:
            return float("nan")
        return time.monotonic() - self._refreshed_s
