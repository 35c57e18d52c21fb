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
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.real.kafka_cluster import RealCluster, until
from tests.real.load import AckGap, Ledger, account, read_back

TICK_S = 0.01  # records leave in bursts of what is due: four brokers share a small machine
BEFORE_S = 5.0  # of steady acks before the crash
USUAL_S = 2.0  # of those tell how it usually goes
WARM_UP_S = 10.0  # of load once, before the first run: the brokers' machine code is made
AFTER_S = 3.0  # of steady acks after the cluster has recovered
RECOVERY_S = 90.0  # a partition without an ack for that long is given up


@dataclass(frozen=True, slots=True)
class Job:
    """What a producing process is to do."""

    bootstrap: list[str]
    topic: str
    partitions: int
    rate: float  # records a second on each partition

    def due(self, begin_s: float) -> int:
        """How many records each partition should have got by now."""
        return int((time.monotonic() - begin_s) * self.rate)


# --- one adapter per client: send what is due until told to stop, then flush ----------------------

Stopping = Callable[[], bool]
Send = Callable[[int, int], None]  # partition and counter, which is the record's value


def _steadily(job: Job, stopping: Stopping, send: Send, after_burst: Callable[[], object]) -> None:
    """Send all that is due, again and again, from this one thread."""
    begin_s, sent = time.monotonic(), 0
    while not stopping():
        due = job.due(begin_s)
        for counter in range(sent, due):
            for partition in range(job.partitions):
                send(partition, counter)
        sent = max(sent, due)
        after_burst()


def _kafka_python_like(producer_class: Any, job: Job, ledger: Ledger, stopping: Stopping) -> None:
    producer = producer_class(bootstrap_servers=job.bootstrap, acks="all", enable_idempotence=True)

    def send(partition: int, counter: int) -> None:
        future = producer.send(job.topic, b"%d" % counter, partition=partition)
        future.add_callback(lambda told: ledger.acked(partition, counter, told.offset))
        future.add_errback(lambda error: _failed(ledger, partition, counter, error))
        ledger.sent[partition].append(time.monotonic())

    with contextlib.closing(producer):
        _steadily(job, stopping, send, lambda: time.sleep(TICK_S))
        producer.flush(timeout=RECOVERY_S)


def outlast(job: Job, ledger: Ledger, stopping: Stopping) -> None:
    from outlast import KafkaProducer

    _kafka_python_like(KafkaProducer, job, ledger, stopping)


def kafka_python(job: Job, ledger: Ledger, stopping: Stopping) -> None:
    from kafka import KafkaProducer

    _kafka_python_like(KafkaProducer, job, ledger, stopping)


def confluent_kafka(job: Job, ledger: Ledger, stopping: Stopping) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": ",".join(job.bootstrap), "enable.idempotence": True})

    def send(partition: int, counter: int) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                ledger.acked(partition, counter, message.offset())
            else:
                _failed(ledger, partition, counter, error)

        producer.produce(job.topic, b"%d" % counter, partition=partition, on_delivery=delivered)
        ledger.sent[partition].append(time.monotonic())

    def deliver() -> None:
        until_s = time.monotonic() + TICK_S
        while (rest_s := until_s - time.monotonic()) > 0:
            producer.poll(rest_s)

    _steadily(job, stopping, send, deliver)
    producer.flush(RECOVERY_S)


def aiokafka(job: Job, ledger: Ledger, stopping: Stopping) -> None:
    from aiokafka import AIOKafkaProducer

    async def one_partition(producer: Any, partition: int) -> None:
        """Its `send` waits for room in that partition's batch: one task for each partition."""
        begin_s, sent = time.monotonic(), 0
        while not stopping():
            for counter in range(sent, job.due(begin_s)):
                sent_s = time.monotonic()
                future = await producer.send(job.topic, b"%d" % counter, partition=partition)
                ledger.sent[partition].append(sent_s)
                future.add_done_callback(lambda told, c=counter: settled(partition, c, told))
                sent = counter + 1
            await asyncio.sleep(TICK_S)

    def settled(partition: int, counter: int, future: Any) -> None:
        if (error := future.exception()) is None:
            ledger.acked(partition, counter, future.result().offset)
        else:
            _failed(ledger, partition, counter, error)

    async def produce() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=job.bootstrap, enable_idempotence=True)
        await producer.start()
        try:
            await asyncio.gather(*(one_partition(producer, p) for p in range(job.partitions)))
            await asyncio.wait_for(producer.flush(), RECOVERY_S)
        finally:
            await producer.stop()

    asyncio.run(produce())


CLIENTS = {
    "outlast": outlast,
    "kafka-python": kafka_python,
    "confluent-kafka": confluent_kafka,
    "aiokafka": aiokafka,
}


def _failed(ledger: Ledger, partition: int, counter: int, error: Any) -> None:
    ledger.failed(partition, counter, RuntimeError(repr(error)))  # plain: it changes processes


# --- the producing process ------------------------------------------------------------------------


def produce(client: str, job: Job, pipe: Connection) -> None:
    """Produce until told to stop, answering meanwhile since when all partitions have acks."""
    ledger = Ledger(sent={partition: [] for partition in range(job.partitions)})
    stop = threading.Event()
    thread = threading.Thread(target=CLIENTS[client], args=(job, ledger, stop.is_set), daemon=True)
    thread.start()
    while pipe.recv() == "last acks":
        if not thread.is_alive():
            raise SystemExit(f"{client} ended early")  # it said why; the other side sees the end
        pipe.send([ledger.last_ack_s(partition) for partition in range(job.partitions)])
    stop.set()
    thread.join(RECOVERY_S * 1.5)
    pipe.send(ledger)


class Producing:
    """The measuring process's view of a producing process."""

    def __init__(self, client: str, job: Job) -> None:
        self._pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=produce, args=(client, job, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def flowing_since(self, at_s: float) -> bool:
        """Whether every partition has an ack that came after `at_s`."""
        self._pipe.send("last acks")
        return min(self._pipe.recv()) > at_s

    def stop(self) -> Ledger:
        """Have it send no more and flush; what the application was told by then."""
        self._pipe.send("stop")
        ledger: Ledger = self._pipe.recv()
        self._process.join(20)
        return ledger

    def end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


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


def victim_of(cluster: RealCluster, kill: str, run: int) -> int:
    """The active controller, or else one of the others, each in its turn."""
    controller = cluster.controller()
    others = [node_id for node_id in cluster.nodes if node_id != controller]
    return controller if kill == "controller" else others[run % len(others)]


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
        until(lambda: producing.flowing_since(flows), "every partition has acks")
        at_s = time.monotonic()
        cluster.sigkill(victim)
        new = [watch.wait_leader_change(p, newer_than=0).at_s for p in parts["led"]]
        shrunk = [watch.wait_out_of_sync(p, victim) for p in parts["followed"]]
        recovered_s = max(new + shrunk)
        with contextlib.suppress(AssertionError):  # given up: its gap ends where we stop looking
            until(lambda: producing.flowing_since(recovered_s + AFTER_S), "acks", RECOVERY_S)
        return Crash(at_s, recovered_s, time.monotonic())


def create_topic(cluster: RealCluster, name: str) -> list[tuple[int, int]]:
    """A topic with a partition for every leader and follower; gives them by partition."""
    pairs = list(itertools.permutations(cluster.nodes, 2))
    cluster.create_topic(name, assignment=dict(enumerate(pairs)), min_isr=1)
    return pairs


def warm_up(cluster: RealCluster, rate: float) -> None:
    """Load without a crash, not measured."""
    pairs = create_topic(cluster, "warm-up")
    producing = Producing("kafka-python", Job(cluster.bootstrap, "warm-up", len(pairs), rate))
    try:
        flows = time.monotonic() + WARM_UP_S
        until(lambda: producing.flowing_since(flows), "every partition has acks")
        producing.stop()
    finally:
        producing.end()
    cluster.delete_topic("warm-up")


def measure(cluster: RealCluster, client: str, run: int, options: argparse.Namespace) -> dict:
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
    producing = Producing(client, Job(cluster.bootstrap, topic, len(pairs), options.rate))
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


def usual(ledger: Ledger, before_s: float) -> dict[str, float]:
    """Rate of acks and median time from send to ack, just before the crash."""
    took = [
        ack.at_s - ledger.sent[partition][counter]
        for partition, acks in ledger.acks.items()
        for counter, ack in acks.items()
        if before_s - USUAL_S < ack.at_s <= before_s
    ]
    return {
        "records_per_s": round(len(took) / USUAL_S),
        "usual_ms": round(statistics.median(took) * 1000, 1),
    }


def summarize(results: dict[str, list[dict]]) -> str:
    """Median, smallest and largest longest ack gap per client; records summed over its runs."""
    kinds, counts = ("untouched", "followed", "led"), ("lost", "duplicated", "out_of_order")
    counts += ("failed", "unsettled")
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
        default=list(CLIENTS),
        help=f"comma-separated, of {', '.join(CLIENTS)} (all)",
    )
    parser.add_argument("--runs", type=int, default=5, help="of each client")
    parser.add_argument("--rate", type=float, default=500, help="records/s on each partition")
    parser.add_argument(
        "--kill",
        choices=["bystander", "controller"],
        default="bystander",
        help="a broker that is not the active controller (each in its turn), or the one that is",
    )
    options = parser.parse_args(arguments)
    unknown = set(options.clients) - set(CLIENTS)
    if unknown:
        parser.error(f"--clients: {', '.join(sorted(unknown))}; known are {', '.join(CLIENTS)}")
    return options


def main() -> None:
    options = parse()
    results: dict[str, list[dict]] = {client: [] for client in options.clients}
    with four_brokers() as cluster:
        warm_up(cluster, options.rate)
        for run in range(options.runs):
            for client in options.clients:
                results[client].append(measure(cluster, client, run, options))
                print(json.dumps(results[client][-1]), flush=True)
    print(summarize(results), file=sys.stderr)


if __name__ == "__main__":
    main()
