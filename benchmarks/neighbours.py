"""One broker of four crashes: what do partitions pay that have no replica on it?

Four real brokers, replication 2, a partition for every ordered pair (leader, follower), a steady
load on all twelve, then SIGKILL for one broker. Of the partitions it led 3, followed in 3, and had
nothing to do with 6. Each client is a process of its own; all take their turns on one cluster,
which is whole again before every run: every replica in sync, every leader the preferred one.

One JSON line per run, then a table: the longest time between two acks of any partition of each
kind, and what the log says afterwards about lost, doubled and reordered records.

    python -m benchmarks.neighbours --clients outlast,kafka-python --runs 5
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients import CLIENTS, Load
from benchmarks.steady import JAVA, Producing, add_options, flowing_since, start, usual
from benchmarks.three_nodes import victim_of
from tests.real.kafka_cluster import RealCluster, until
from tests.real.load import AckGap, account, read_back

BEFORE_S = 5.0  # of steady acks before the crash
WARM_UP_S = 10.0  # of load once, before the first run: the brokers' machine code is made
AFTER_S = 3.0  # of steady acks after the cluster has recovered
RECOVERY_S = 90.0  # a partition without an ack for that long is given up


# --- the measuring process ------------------------------------------------------------------------


@contextlib.contextmanager
def four_brokers() -> Iterator[RealCluster]:
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
        cluster = RealCluster(Path(folder) / "kafka")
        try:
            cluster.open()
            with cluster.joined():
                yield cluster
        finally:
            cluster.close()


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash, and what the clients of the cluster could have known of it."""

    at_s: float  # monotonic
    recovered_s: float  # an admin client saw that all partitions have what they need
    settled_s: float  # the client had acks on every partition again, or was given up


def crash(
    cluster: RealCluster, producing: Producing, topic: str, victim: int, parts: dict[str, list[int]]
) -> Crash:
    """Kill the broker under load, and wait until the client has recovered (or is given up)."""
    with cluster.watch(topic, without=[victim], pause_s=0.05) as watch:
        flows = time.monotonic() + BEFORE_S
        until(lambda: flowing_since(flows, [producing]), "every partition has acks")
        at_s = time.monotonic()
        cluster.sigkill(victim)
        new = [watch.wait_leader_change(p, newer_than=0).at_s for p in parts["led"]]
        shrunk = [watch.wait_out_of_sync(p, victim) for p in parts["followed"]]
        recovered_s = max(new + shrunk)
        with contextlib.suppress(AssertionError):  # given up: its gap ends where we stop looking
            until(lambda: flowing_since(recovered_s + AFTER_S, [producing]), "acks", RECOVERY_S)
        return Crash(at_s, recovered_s, time.monotonic())


def create_topic(cluster: RealCluster, name: str) -> list[tuple[int, int]]:
    """A topic with a partition for every leader and follower; gives them by partition."""
    pairs = list(itertools.permutations(cluster.nodes, 2))
    cluster.create_topic(name, assignment=dict(enumerate(pairs)), min_isr=1)
    return pairs


def begin(client: str, cluster: RealCluster, topic: str, pairs: Sized, rate: float) -> Producing:
    """A load on all partitions, in bursts: four brokers share a small machine."""
    load = Load(topic, len(pairs), rate * len(pairs), tick_s=0.01)
    return start(client, ",".join(cluster.bootstrap), load)


def warm_up(cluster: RealCluster, rate: float) -> None:
    """Load without a crash, not measured."""
    pairs = create_topic(cluster, "warm-up")
    producing = begin("kafka-python", cluster, "warm-up", pairs, rate)
    try:
        flows = time.monotonic() + WARM_UP_S
        until(lambda: flowing_since(flows, [producing]), "every partition has acks")
        producing.stop()
    finally:
        producing.end()
    cluster.delete_topic("warm-up")


def measure(
    cluster: RealCluster, client: str, run: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One run of one client."""
    cluster.heal()
    topic = f"neighbours-{run}-{client}"
    pairs = create_topic(cluster, topic)
    victim = victim_of(cluster, options.kill, run)
    parts = {
        "untouched": [p for p, pair in enumerate(pairs) if victim not in pair],
        "followed": [p for p, (_, follower) in enumerate(pairs) if follower == victim],
        "led": [p for p, (leader, _) in enumerate(pairs) if leader == victim],
    }
    producing = begin(client, cluster, topic, pairs, options.rate)
    try:
        seen = crash(cluster, producing, topic, victim, parts)
        ledger = producing.stop()
    finally:
        producing.end()
    cluster.heal()
    found = account(ledger, read_back(cluster.bootstrap, topic, RECOVERY_S))
    cluster.delete_topic(topic)

    def longest(kind: str) -> AckGap:
        gaps = [ledger.longest_ack_gap(p, seen.at_s, seen.settled_s) for p in parts[kind]]
        return max(gaps, key=lambda gap: gap.duration_s)

    return {
        "client": client,
        "run": run,
        "killed": victim,
        **usual(ledger, seen.at_s),
        "cluster_s": round(seen.recovered_s - seen.at_s, 2),
        **{f"{kind}_s": round(longest(kind).duration_s, 2) for kind in parts},
        "untouched_wait_s": round(
            max(ledger.longest_wait(p, seen.at_s).duration_s for p in parts["untouched"]), 2
        ),
        "led_over_s": round(longest("led").end_s - seen.recovered_s, 2),
        "sent": sum(map(len, ledger.sent.values())),
        "lost": len(found.lost),
        "duplicated": len(found.duplicated),
        "out_of_order": len(found.out_of_order),
        "failed": len(found.failed),
        "unsettled": found.unsettled,
    }


def summarize(results: dict[str, list[dict[str, Any]]]) -> str:
    """Median, smallest and largest longest ack gap per client; records summed over its runs."""
    kinds = ("untouched", "followed", "led")
    counts = ("lost", "duplicated", "out_of_order", "failed", "unsettled")
    head = "".join(f"{kind:>18}" for kind in kinds) + "".join(f"{what:>14}" for what in counts)
    lines = [f"{'longest ack gap, s':<18}{head}"]
    for client, runs in results.items():
        cells = []
        for kind in kinds:
            figures = [run[f"{kind}_s"] for run in runs]
            spread = f"({min(figures):.1f}–{max(figures):.1f})"
            cells.append(f"{f'{statistics.median(figures):.2f} {spread}':>18}")
        cells += [f"{sum(run[what] for run in runs):>14}" for what in counts]
        lines.append(f"{client:<18}{''.join(cells)}")
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clients",
        type=lambda text: text.split(","),
        default=["outlast", "kafka-python", "confluent-kafka", "aiokafka"],
        help=f"comma-separated, of {', '.join((*CLIENTS, JAVA))}",
    )
    parser.add_argument("--runs", type=int, default=5, help="of each client")
    add_options(parser)
    options = parser.parse_args(arguments)
    unknown = set(options.clients) - {*CLIENTS, JAVA}
    if unknown:
        parser.error(f"--clients: {', '.join(sorted(unknown))} unknown")
    return options


def main() -> None:
    options = parse()
    results: dict[str, list[dict[str, Any]]] = {client: [] for client in options.clients}
    with four_brokers() as cluster:
        warm_up(cluster, options.rate)
        for run in range(options.runs):
            for client in options.clients:
                results[client].append(measure(cluster, client, run, options))
                print(json.dumps(results[client][-1]), flush=True)
    print(summarize(results), file=sys.stderr)


if __name__ == "__main__":
    main()
