"""Counters, gauges and histograms that are nothing but numbers, for whoever shows them.

They are written under the lock of their `MetricSet` and read without it, by a scrape or an exporter
on a thread of its own: each number is right, and two that are read one after the other may be a
batch apart. An addition takes 0.1 µs; a library's own counter takes 0.3 (Prometheus) to 7 µs (an
OpenTelemetry SDK).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any


class Number:
    """A counter or a gauge, with its labels."""

    __slots__ = ("labels", "value")

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.value = 0.0

    def __repr__(self) -> str:
        return f"<Number {self.value} {self.labels}>"

    def inc(self, amount: float, /) -> None:
        """Add to it."""
        self.value += amount

    def set(self, value: float, /) -> None:
        """It is this now."""
        self.value = value


class Buckets:
    """A histogram, with its labels. `counts` has one more than there are edges, for the rest."""

    __slots__ = ("counts", "edges", "exemplars", "labels", "sum")

    def __init__(self, labels: dict[str, str], edges: tuple[float, ...]) -> None:
        self.labels = labels
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.exemplars: dict[int, Any] = {}  # by bucket, the last
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"<Buckets {sum(self.counts)} {self.labels}>"

    def observe(self, value: float, exemplar: Any = None, /) -> None:
        """One more. It belongs to the first bucket whose edge is not below it."""
        bucket = bisect_left(self.edges, value)
        self.counts[bucket] += 1
        self.sum += value
        if exemplar is not None:
            self.exemplars[bucket] = (exemplar, value)
