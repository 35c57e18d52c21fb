"""What the metrics cost: CPU per batch, per gap and per scrape.

    python -m benchmarks.metrics [--runs 9] [--partitions 1000]

One JSON line per figure on stdout, a table on stderr. CPU time of this process, in runs that take
turns; the median, the least and the most. No producer, no cluster: what is measured is what the
observer adds to a fact that would have been told anyway.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_latest

from outlast.engine.gap import GapRecorder
from outlast.engine.messages import Cause, Fact, PartitionSeen, RecordsSettled
from outlast.observe.metrics_observer import MetricsObserver
from outlast.observe.otel_metrics import OtelMetricsObserver
from outlast.observe.prometheus import PrometheusObserver
from outlast.observers import OneByOne

BATCHES = 20_000
GAPS = 500
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


@contextmanager
def cpu(into: list[float], count: int) -> Iterator[None]:
    """CPU seconds of this process for each of `count` things."""
    gc.collect()
    gc.disable()
    begin_s = time.process_time()
    try:
        yield
    finally:
        into.append((time.process_time() - begin_s) / count)
        gc.enable()


def per_batch(observer: MetricsObserver, into: list[float]) -> None:
    """Batches of 160 records, acknowledged after 4 ms."""
    tell = OneByOne(observer)
    tell(PartitionSeen(0.0, "orders", 0))
    fact = RecordsSettled(1.0, "orders", 0, 160, 0, 0.004)
    tell(fact)
    with cpu(into, BATCHES):
        for _ in range(BATCHES):
            tell(fact)


def gap_facts(partition: int) -> list[Fact]:
    """A gap from its opening to its end, with one tick."""
    recorder, tp = GapRecorder(0.0), ("orders", partition)
    facts = recorder.refused(
        tp,
        cause=Cause.NOT_LEADER,
        trigger="NOT_LEADER_OR_FOLLOWER",
        sent_s=1.0,
        leader=1,
        leader_epoch=1,
        last_ack_s=0.9,
        now=1.01,
    )
    facts += recorder.tick(2.5)
    facts += recorder.evidence(tp, leader=2, leader_epoch=2, now=3.0)
    return facts + recorder.accepted(tp, sent_s=3.1, leader=2, leader_epoch=2, now=3.2)


def per_gap(observer: MetricsObserver, into: list[float]) -> None:
    """Gaps of many partitions that all had one before."""
    tell = OneByOne(observer)
    stories = [gap_facts(partition) for partition in range(GAPS)]
    for story in stories:
        for fact in story:
            tell(fact)
    with cpu(into, GAPS):
        for story in stories:
            for fact in story:
                tell(fact)


def written_to(partitions: int, *, failed_over: bool) -> CollectorRegistry:
    """The page of a producer that writes to so many partitions."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    for partition in range(partitions):
        observer([PartitionSeen(0.0, "orders", partition)])
        observer([RecordsSettled(1.0, "orders", partition, 160, 0, 0.004)])
        if failed_over:
            observer(gap_facts(partition))
    return registry


def per_page(registry: CollectorRegistry, make: Callable[..., bytes], into: list[float]) -> None:
    """One scrape."""
    with cpu(into, 1):
        make(registry)


def as_prometheus_3_asks(registry: CollectorRegistry) -> bytes:
    """Prometheus 3 asks for names as they are; for 2, prometheus_client >= 0.24 looks at each
    character of each name (older ones know no other way, and no such look).
    """
    if "escaping" not in inspect.signature(openmetrics_latest).parameters:
        return openmetrics_latest(registry)
    return openmetrics_latest(registry, escaping="allow-utf-8")


def in_worker() -> None:
    """Multiprocess mode is fixed when prometheus_client is imported: a process of its own."""
    seconds: list[float] = []
    per_batch(PrometheusObserver(CollectorRegistry()), seconds)
    print(seconds[0])


def multiprocess(into: list[float]) -> None:
    """Batches of one worker of many."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.metrics", "--worker"],
            env={**os.environ, MULTIPROCESS: folder},
            capture_output=True,
            text=True,
            check=True,
        )
    into.append(float(done.stdout))


def measures(partitions: int) -> dict[str, tuple[str, float, Callable[[list[float]], None]]]:
    """Name → unit, its number in a second, and how it is measured."""
    reader = InMemoryMetricReader()
    prometheus = PrometheusObserver(CollectorRegistry())
    otel_bare = OtelMetricsObserver()
    otel = OtelMetricsObserver(MeterProvider([reader]))
    pages = {
        f"scrape, {form}{state}": ("ms", 1e3, partial(per_page, registry, make))
        for state, registry in (
            ("", written_to(partitions, failed_over=False)),
            (", all failed over", written_to(partitions, failed_over=True)),
        )
        for form, make in (
            ("text", generate_latest),
            ("Prometheus 3", as_prometheus_3_asks),
            ("Prometheus 2", openmetrics_latest),
        )
    }
    return {
        "batch, prometheus": ("µs", 1e6, partial(per_batch, prometheus)),
        "batch, prometheus, multiprocess": ("µs", 1e6, multiprocess),
        "batch, otel without SDK": ("µs", 1e6, partial(per_batch, otel_bare)),
        "batch, otel with SDK": ("µs", 1e6, partial(per_batch, otel)),
        "gap, prometheus": ("µs", 1e6, partial(per_gap, prometheus)),
        **pages,
    }


def main() -> None:
    """Measure all in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        in_worker()
        return
    todo = measures(arguments.partitions)
    seconds: dict[str, list[float]] = {name: [] for name in todo}
    for _ in range(arguments.runs):
        for name, (_, _, measure) in todo.items():
            measure(seconds[name])
    for name, (unit, per_s, _) in todo.items():
        figures = sorted(value * per_s for value in seconds[name])
        row = {
            "what": name,
            "unit": unit,
            "median": round(statistics.median(figures), 3),
            "least": round(figures[0], 3),
            "most": round(figures[-1], 3),
            "runs": arguments.runs,
        }
        print(json.dumps(row, ensure_ascii=False))
        print(
            f"{name:40} {row['median']:8} {unit}  ({row['least']} to {row['most']})",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
