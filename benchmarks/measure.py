"""The producing process: does one job with one client, and prints what it cost as one JSON line.

    python -m benchmarks.measure '{"client": "outlast", "bootstrap": "host:9092", "topic": "t"}'

so that a profiler can be put before it. Jobs are the fields of `Job`; `kind` says what is done:

* `burst`: records one after the other, as fast as they are taken, then `flush()`. CPU is
  `time.process_time()`: this process with all its threads, without start, imports, connecting and
  a warm-up.
* `transactions`: one after the other, committed, each of `transaction_records`.
* `latency`: one record every so often; how long until its ack.
* `idle`: producers that have sent something once, and now do nothing.
* `memory`: records that nobody acknowledges, with what the application keeps to hear of them.
* `backlog`: a steady load while the cluster is away; when the last record was acknowledged.

The last two begin when a line comes in on stdin; before that they say `ready`.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

from benchmarks import codec_time
from benchmarks.clients import CLIENTS, Client, Load, Settings
from tests.real.load import Ledger

CHUNK_RECORDS = 1_000  # between two looks at the clock
DISTINCT_KEYS = 1_000
FLUSH_S = 120.0
WORDS = ["paid", "shipped", "order", "customer", "returned", "amount", "currency", "address"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a producing process is to do."""

    client: str
    bootstrap: str
    topic: str
    kind: str = "burst"

    linger_ms: int | None = None
    batch_bytes: int | None = None
    compression: str | None = None
    buffer_bytes: int | None = None
    buffer_records: int | None = None

    value_bytes: int = 100
    key_bytes: int = 0
    partitions: int = 12  # of the topic
    partition: int | None = None  # where all records go
    in_turn: bool = False  # the caller names the partitions, one after the other
    batch_records: int | None = None  # so many are to be in each batch, or the run has failed
    producers: int = 1
    threads: int = 1  # that send

    seconds: float = 2.0
    records: int | None = None  # so many, whatever time they take
    records_per_s: float = 1_000.0
    warm_up_records: int = 5_000
    transaction_records: int = 100  # in each
    codec_time: bool = False  # measure the codec alone as well

    def open(self) -> Client:
        """A producer with these settings."""
        settings = Settings(
            bootstrap=self.bootstrap,
            linger_ms=self.linger_ms,
            batch_bytes=self.batch_bytes,
            compression=self.compression,
            buffer_bytes=self.buffer_bytes,
            buffer_records=self.buffer_records,
            transactional_id=self.topic if self.kind == "transactions" else None,
        )
        client: Client = CLIENTS[self.client](settings)
        return client


# --- bursts ---------------------------------------------------------------------------------------


class Chunk:
    """The records that are sent again and again."""

    def __init__(self, job: Job) -> None:
        count = CHUNK_RECORDS
        self.partitions: int | Sequence[int] | None = job.partition
        if job.in_turn:
            rows = job.batch_records or max(1, CHUNK_RECORDS // job.partitions)
            count = job.partitions * rows
            self.partitions = [n % job.partitions for n in range(count)]
        rng = random.Random(1)
        self.keys: list[bytes] | None = None
        if job.key_bytes:
            keys = [rng.randbytes(job.key_bytes) for _ in range(DISTINCT_KEYS)]
            self.keys = [rng.choice(keys) for _ in range(count)]
        if job.compression is None:
            self.values = [b"v" * job.value_bytes] * count
        else:
            self.values = [_text(job.value_bytes, rng) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.values)

    def send(self, client: Client, topic: str) -> None:
        client.send_all(topic, self.values, self.keys, self.partitions)


def _text(size: int, rng: random.Random) -> bytes:
    """Something like JSON: what is compressed in earnest is text."""
    pairs: list[str] = []
    length = 0
    while length < size:
        pairs.append(f'"{rng.choice(WORDS)}": "{rng.randrange(10**6)}"')
        length += len(pairs[-1]) + 2
    return ("{" + ", ".join(pairs) + "}").encode()[:size]


def burst(job: Job) -> dict[str, Any]:
    """What records cost that are sent as fast as they are taken."""
    clients = [job.open() for _ in range(job.producers)]
    chunk = Chunk(job)
    sent = 0
    for client in clients:
        for _ in range(-(-job.warm_up_records // len(chunk) // job.producers) or 1):
            chunk.send(client, job.topic)
            sent += len(chunk)
        client.flush(FLUSH_S)
    cpu_before_s, before_s = time.process_time(), time.perf_counter()
    records = _send(job, clients, chunk)
    for client in clients:
        client.flush(FLUSH_S)
    cpu_s, wall_s = time.process_time() - cpu_before_s, time.perf_counter() - before_s
    sent += records
    result = {
        "records": records,
        "cpu_s": round(cpu_s, 4),
        "wall_s": round(wall_s, 4),
        "records_per_cpu_s": round(records / cpu_s),
        "records_per_s": round(records / wall_s),
        "us_per_record": round(1e6 * cpu_s / records, 3),
    }
    if job.codec_time:
        assert job.compression is not None
        with codec_time.listening(job.compression) as blocks:
            chunk.send(clients[0], job.topic)
            clients[0].flush(FLUSH_S)
        sent += len(chunk)
        codec_us = 1e6 * codec_time.replay(job.compression, blocks) / len(chunk)
        result["codec_us_per_record"] = round(codec_us, 3)
        rest_us = 1e6 * cpu_s / records - codec_us
        result["us_per_record_without_codec"] = round(rest_us, 3)
        result["records_per_cpu_s_without_codec"] = round(1e6 / rest_us)
    for client in clients:
        client.close()
    return result | {"sent": sent}


def _send(job: Job, clients: list[Client], chunk: Chunk) -> int:
    """Chunks, until there is enough or the time is over; how many records that were."""
    end_s = time.perf_counter() + job.seconds
    counts = [0] * job.threads

    def enough(sent: int) -> bool:
        if job.records is None:
            return time.perf_counter() >= end_s
        return sent >= job.records // job.threads

    def send(number: int) -> None:
        while not enough(counts[number]):
            for client in clients:
                chunk.send(client, job.topic)
                counts[number] += len(chunk)

    others = [threading.Thread(target=send, args=(number,)) for number in range(1, job.threads)]
    for thread in others:
        thread.start()
    send(0)
    for thread in others:
        thread.join()
    return sum(counts)


def transactions(job: Job) -> dict[str, Any]:
    """What records cost that are sent in small transactions, one after the other."""
    client: Any = job.open()
    size = job.transaction_records
    values = [b"v" * job.value_bytes] * size
    partitions = [n % job.partitions for n in range(size)] if job.in_turn else None
    warm_up = -(-job.warm_up_records // size)
    for _ in range(warm_up):
        client.transact(job.topic, values, partitions)
    count = 0
    cpu_before_s, before_s = time.process_time(), time.perf_counter()
    while time.perf_counter() - before_s < job.seconds:
        client.transact(job.topic, values, partitions)
        count += 1
    cpu_s, wall_s = time.process_time() - cpu_before_s, time.perf_counter() - before_s
    client.close()
    records = count * size
    return {
        "records": records,
        "records_per_cpu_s": round(records / cpu_s),
        "records_per_s": round(records / wall_s),
        "us_per_record": round(1e6 * cpu_s / records, 3),
        "ms_per_transaction": round(1e3 * wall_s / count, 3),
        "sent": records + warm_up * size,
    }


# --- the others -----------------------------------------------------------------------------------


def latency(job: Job) -> dict[str, Any]:
    """How long a record takes that comes alone, one every so often."""
    client = job.open()
    load = Load(job.topic, job.partitions, job.records_per_s, job.value_bytes)
    warm_up, ledger = Ledger(), Ledger()
    client.pace(load, warm_up, _after(1.0))
    client.flush(FLUSH_S)
    cpu_before_s, begin_s = time.process_time(), time.monotonic()
    client.pace(load, ledger, _after(job.seconds))
    client.flush(FLUSH_S)
    cpu_s = time.process_time() - cpu_before_s
    client.close()
    took_ms: list[float] = []
    late_ms: list[float] = []  # from the moment it was due: what a blocked `send` holds up, too
    for partition, acks in ledger.acks.items():
        for counter, ack in acks.items():
            due_s = begin_s + (counter * load.partitions + partition) / load.records_per_s
            took_ms.append(1000 * (ack.at_s - ledger.sent[partition][counter]))
            late_ms.append(1000 * (ack.at_s - due_s))
    sent = sum(map(len, ledger.sent.values()))
    if len(took_ms) != sent:
        raise SystemExit(f"{sent} records were sent, {len(took_ms)} acknowledged")
    at, at_due = quantiles(took_ms, n=1000), quantiles(late_ms, n=1000)
    return {
        "records": sent,
        "p50_ms": round(at[499], 3),
        "p99_ms": round(at[989], 3),
        "p999_ms": round(at[998], 3),
        "due_p99_ms": round(at_due[989], 3),
        "us_per_record": round(1e6 * cpu_s / sent, 1),
        "sent": sent + sum(map(len, warm_up.sent.values())),
    }


def _after(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


def idle(job: Job) -> dict[str, Any]:
    """What a process pays for connected producers that have nothing to do."""
    first = _connected(job)  # with what all share: modules, a loop
    rss_bytes = _rss_bytes()
    clients = [first, *(_connected(job) for _ in range(1, job.producers))]
    rss_each = (_rss_bytes() - rss_bytes) / (job.producers - 1)
    first.rest(2.0)
    cpu_before_s, before_s = time.process_time(), time.monotonic()
    first.rest(job.seconds)
    cpu_s, took_s = time.process_time() - cpu_before_s, time.monotonic() - before_s
    for client in clients:
        client.close()
    return {
        "producers": job.producers,
        "core_percent_each": round(100 * cpu_s / took_s / job.producers, 5),
        "rss_kib_each": round(rss_each / 1024, 1),
        "sent": job.producers,
    }


def _connected(job: Job) -> Client:
    client = job.open()
    client.send_all(job.topic, [b"v"])
    client.flush(FLUSH_S)
    return client


def memory(job: Job) -> dict[str, Any]:
    """What records weigh that nobody acknowledges."""
    assert job.records is not None
    client = job.open()
    client.send_all(job.topic, [b"v" * job.value_bytes] * 1_000)
    client.flush(FLUSH_S)
    gc.collect()
    before_bytes = _rss_bytes()
    _wait_for_go()
    kept = client.hold(job.topic, (b"%0*d" % (job.value_bytes, n) for n in range(job.records)))
    client.rest(1.0)
    grown_bytes = _rss_bytes() - before_bytes
    _held.extend((client, kept))
    return {
        "records": job.records,
        "rss_mib_per_100k": round(grown_bytes * 1e5 / job.records / 2**20, 2),
    }


def backlog(job: Job) -> dict[str, Any]:
    """When a load's last record is acknowledged that began as the cluster went away."""
    assert job.records is not None
    client = job.open()
    client.send_all(job.topic, [b"0"] * job.warm_up_records)
    client.flush(FLUSH_S)
    _wait_for_go()
    load = Load(
        job.topic,
        job.partitions,
        job.records_per_s,
        job.value_bytes,
        tick_s=0.01,
        records_max=job.records,
    )
    ledger = Ledger()

    def all_sent() -> bool:
        return sum(map(len, ledger.sent.values())) == job.records

    cpu_before_s = time.process_time()
    client.pace(load, ledger, all_sent)
    client.flush(FLUSH_S)
    cpu_s = time.process_time() - cpu_before_s
    client.close()
    acks = [ack.at_s for told in ledger.acks.values() for ack in told.values()]
    if len(acks) != job.records:
        raise SystemExit(f"{job.records} records were sent, {len(acks)} acknowledged")
    return {
        "records": job.records,
        "first_ack_s": min(acks),
        "last_ack_s": max(acks),
        "cpu_s": round(cpu_s, 3),
        "sent": job.records + job.warm_up_records,
    }


_held: list[Any] = []  # until the process ends: a producer that nobody holds would be closed


def _wait_for_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _rss_bytes() -> int:
    import psutil

    rss: int = psutil.Process().memory_info().rss
    return rss


KINDS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "burst": burst,
    "transactions": transactions,
    "latency": latency,
    "idle": idle,
    "memory": memory,
    "backlog": backlog,
}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    print(json.dumps(KINDS[job.kind](job)), flush=True)
    if job.kind == "memory":
        os._exit(0)  # nobody will ever acknowledge them


def command(job: Job) -> list[str]:
    """What runs a job in a process of its own."""
    said = {name: value for name, value in asdict(job).items() if value is not None}
    return [sys.executable, "-m", "benchmarks.measure", json.dumps(said)]


if __name__ == "__main__":
    main()
