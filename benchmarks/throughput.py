"""Records per CPU second of the producing process: outlast beside other clients.

Each run is a producing process of its own against a mock cluster of its own in a second process.
Runs alternate between the clients, so that what else happens on the machine meets all of them.
Every run is checked: the topic must hold exactly the records that were sent.

One JSON line per run, then a summary: median and spread, and the ratio to the last client named.

    python benchmarks/throughput.py --clients outlast,kafka-python --runs 5
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TOPIC = "throughput"
WARM_UP_RECORDS = 5_000
REPLICATION_S = (0.0003, 0.0008)  # followers on loopback: the cluster is not to be the limit


# --- one adapter per client: send `count` values and return when all are acknowledged -------------

Sender = Callable[[int], None]


@contextlib.contextmanager
def _kafka_python_like(producer_class: Any, options: argparse.Namespace) -> Iterator[Sender]:
    producer = producer_class(
        bootstrap_servers=options.bootstrap,
        acks="all",
        linger_ms=options.linger_ms,
        batch_size=options.batch_bytes,
    )
    value = b"v" * options.value_bytes

    def send(count: int) -> None:
        for _ in range(count):
            producer.send(TOPIC, value)
        producer.flush()

    with contextlib.closing(producer):
        yield send


def outlast(options: argparse.Namespace) -> contextlib.AbstractContextManager[Sender]:
    from outlast import KafkaProducer

    return _kafka_python_like(KafkaProducer, options)


def outlast_one_lane(options: argparse.Namespace) -> contextlib.AbstractContextManager[Sender]:
    """outlast without what it does for neighbours: what lanes cost where nothing is wrong."""
    from outlast import KafkaProducer
    from outlast.engine import hub

    class NoLanes(hub.Lanes):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            self.enabled = False

    hub.Lanes = NoLanes  # type: ignore[misc]
    return _kafka_python_like(KafkaProducer, options)


def kafka_python(options: argparse.Namespace) -> contextlib.AbstractContextManager[Sender]:
    from kafka import KafkaProducer

    return _kafka_python_like(KafkaProducer, options)


@contextlib.contextmanager
def confluent_kafka(options: argparse.Namespace) -> Iterator[Sender]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "enable.idempotence": True,
            "linger.ms": options.linger_ms,
            "batch.size": options.batch_bytes,
        }
    )
    value = b"v" * options.value_bytes

    def send(count: int) -> None:
        for _ in range(count):
            while True:
                try:
                    producer.produce(TOPIC, value)
                    break
                except BufferError:  # its queue is full: let it deliver
                    producer.poll(0.01)
        producer.flush()

    yield send


@contextlib.contextmanager
def aiokafka(options: argparse.Namespace) -> Iterator[Sender]:
    from aiokafka import AIOKafkaProducer

    value = b"v" * options.value_bytes

    async def start() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=options.bootstrap,
            enable_idempotence=True,
            linger_ms=options.linger_ms,
            max_batch_size=options.batch_bytes,
        )
        await producer.start()
        return producer

    async def send(count: int) -> None:
        for _ in range(count):
            await producer.send(TOPIC, value)
        await producer.flush()

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        producer = loop.run_until_complete(start())
        try:
            yield lambda count: loop.run_until_complete(send(count))
        finally:
            loop.run_until_complete(producer.stop())


CLIENTS = {
    "outlast": outlast,
    "outlast-one-lane": outlast_one_lane,
    "kafka-python": kafka_python,
    "confluent-kafka": confluent_kafka,
    "aiokafka": aiokafka,
}


# --- the producing process ------------------------------------------------------------------------


def produce(options: argparse.Namespace) -> None:
    """Produce once and print what it cost as one JSON line."""
    with CLIENTS[options.produce](options) as send:
        send(WARM_UP_RECORDS)  # connections, metadata, producer id, imports
        cpu_before_s, before_s = time.process_time(), time.perf_counter()
        send(options.records)
        cpu_s, wall_s = time.process_time() - cpu_before_s, time.perf_counter() - before_s
    result = {
        "client": options.produce,
        "records": options.records,
        "value_bytes": options.value_bytes,
        "cpu_s": round(cpu_s, 4),
        "wall_s": round(wall_s, 4),
        "records_per_cpu_s": round(options.records / cpu_s),
        "records_per_s": round(options.records / wall_s),
        "rss_max_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(result), flush=True)


# --- the measuring process ------------------------------------------------------------------------


@contextlib.contextmanager
def mock_cluster(options: argparse.Namespace) -> Iterator[str]:
    """A mock cluster in another process; yields its bootstrap string."""
    command = [sys.executable, "-m", "outlast.testing.server", "--nodes", str(options.nodes)]
    command += [
        "--topic",
        f"{TOPIC}:{options.partitions}",
        "--set",
        f"replication_s={REPLICATION_S}",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdin is not None
        assert it.stdout is not None
        try:
            yield it.stdout.readline().strip()
        finally:
            it.stdin.close()  # it ends when its stdin does


def count_records(bootstrap: str) -> int:
    """How many records the topic holds, told by a consumer that is not ours."""
    from kafka import KafkaConsumer, TopicPartition

    with contextlib.closing(KafkaConsumer(bootstrap_servers=bootstrap)) as consumer:
        partitions = [TopicPartition(TOPIC, p) for p in consumer.partitions_for_topic(TOPIC)]
        return sum(consumer.end_offsets(partitions).values())


def measure(client: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run of one client. Ends the program if it failed or lost or doubled a record."""
    with mock_cluster(options) as bootstrap:
        command = [sys.executable, str(Path(__file__).resolve()), "--produce", client]
        command += ["--bootstrap", bootstrap]
        for name in ("records", "value_bytes", "linger_ms", "batch_bytes"):
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        run = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if run.returncode:
            raise SystemExit(f"{client}: the producing process failed; it said why above")
        result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        found, expected = count_records(bootstrap), WARM_UP_RECORDS + options.records
        if found != expected:
            raise SystemExit(f"{client}: {expected} records sent, {found} in the topic")
    return result


def summarize(results: dict[str, list[dict[str, Any]]]) -> str:
    """Median and spread per client, and how often the last client's figure it reaches."""
    reference = [r["records_per_cpu_s"] for r in list(results.values())[-1]]
    title = "records per CPU second"
    lines = [f"{title:<24}{'median':>10}{'min':>10}{'max':>10}{'µs each':>9}{'ratio':>7}"]
    for client, runs in results.items():
        figures = [r["records_per_cpu_s"] for r in runs]
        median = statistics.median(figures)
        ratio = statistics.median(
            mine / other for mine, other in zip(figures, reference, strict=True)
        )
        lines.append(
            f"{client:<24}{median:>10,.0f}{min(figures):>10,}{max(figures):>10,}"
            f"{1e6 / median:>9.2f}{ratio:>7.2f}"
        )
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clients",
        type=lambda text: text.split(","),
        default=["outlast", "kafka-python"],
        help=f"comma-separated, of {', '.join(CLIENTS)}",
    )
    parser.add_argument("--runs", type=int, default=5, help="of each client")
    parser.add_argument("--records", type=int, default=200_000, help="of each run")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--linger-ms", type=int, default=0)
    parser.add_argument("--batch-bytes", type=int, default=16_384)
    parser.add_argument("--produce", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.clients) - set(CLIENTS)
    if unknown:
        parser.error(f"--clients: {', '.join(sorted(unknown))}; known are {', '.join(CLIENTS)}")
    return options


def main() -> None:
    options = parse()
    if options.produce:
        produce(options)
        return
    results: dict[str, list[dict[str, Any]]] = {client: [] for client in options.clients}
    for _ in range(options.runs):
        for client in options.clients:
            results[client].append(measure(client, options))
            print(json.dumps(results[client][-1]), flush=True)
    print(summarize(results), file=sys.stderr)


if __name__ == "__main__":
    main()
