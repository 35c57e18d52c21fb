"""What the README shows of failovers: a few figures for each client, on a real cluster.

Medians of the lines that `benchmarks.failover` and `benchmarks.neighbours` leave. Their spread is
in docs/performance.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.summary import Run

CLIENTS = {
    "outlast": "**outlast**",
    "kafka-python": "kafka-python",
    "aiokafka": "aiokafka",
    "confluent-kafka": "confluent-kafka",
    "java": "Java",
}
NEIGHBOURS = "neighbours"  # the variant of lines that have none


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: what happened, and the figure that tells what it cost."""

    words: str
    variant: str
    figure: Callable[[Sequence[Run]], str]


def _seconds(metric: str, unit_s: float) -> Callable[[Sequence[Run]], str]:
    def cell(runs: Sequence[Run]) -> str:
        came = [run[metric] * unit_s for run in runs if run.get(metric) is not None]
        if len(came) <= len(runs) / 2:
            return "never"
        median_s = max(0.0, statistics.median(came))
        return f"{median_s:.2f} s" if median_s < 1 else f"{median_s:.1f} s"

    return cell


ACKS = "nothing is acknowledged for"
LATE = "first ack after the new leader is there"
LINES = (
    Line(f"a leader is stopped in order: {ACKS}", "Kafka, SIGTERM", _seconds("gap_ms", 1e-3)),
    Line(f"a leader crashes: {LATE}", "Kafka, SIGKILL", _seconds("over_ms", 1e-3)),
    Line(f"a leader falls silent: {LATE}", "Kafka, SIGSTOP, SIGCONT", _seconds("over_ms", 1e-3)),
    Line(
        f"one of four brokers crashes: where it had no replica, {ACKS}",
        NEIGHBOURS,
        _seconds("untouched_s", 1.0),
    ),
)


def table(failovers: Sequence[Run], neighbours: Sequence[Run]) -> str:
    """In Markdown: a column for each client."""
    runs = [*failovers, *({"variant": NEIGHBOURS, **run} for run in neighbours)]
    rows = [["on Apache Kafka", *CLIENTS.values()], ["---"] * (1 + len(CLIENTS))]
    for line in LINES:
        its = [run for run in runs if run["variant"] == line.variant]
        by_client = ([run for run in its if run["client"] == client] for client in CLIENTS)
        rows.append([line.words, *(line.figure(found) if found else "–" for found in by_client)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
