"""A tracer provider whose spans can be looked at: those that were exported so far."""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler


def wait_for(condition: Callable[[], object], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "this did not come about in time"
        time.sleep(0.005)


class Recorded:
    """Everything is sampled, and exported where the span ends."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("app")

    def named(self, start: str = "") -> list[ReadableSpan]:
        """Those whose name begins like this, by their time of start."""
        found = [s for s in self.exporter.get_finished_spans() if s.name.startswith(start)]
        return sorted(found, key=lambda span: span.start_time or 0)
