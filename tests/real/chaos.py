"""A seeded soak on a real Apache Kafka: nodes suffer, topics change, and every promise is checked.

    make chaos MINUTES=60 SEED=7            # or: python -m tests.real.chaos --minutes 60 --seed 7

Five producers, one for each codec, each used by three threads (keyed, keyless, explicit partition),
write to topics that must keep everything; two threads more write to one that is deleted and created
again, over and over; and two applications make transactions (`chaos_transactions`). What is done to
the cluster is a plan that follows from the seed (`chaos_plan`).

At the end: of what was acknowledged nothing is lost, doubled or out of order, says a foreign
consumer; every future is settled, and what was told not to be written is not; no byte stays charged
to the buffer, and no thread is left. Records of the deleted topic are judged by their futures, and
none may be in the last log twice, out of order, or against what was told. Of transactions a reader
of committed data sees what was told of them, and what went in comes out once and in order.
"""

from __future__ import annotations

import argparse
import functools
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

from outlast import Gap, KafkaProducer, Stall
from outlast.testing import DeliveryLedger
from outlast.testing.coordinator_log import OFFSETS, TRANSACTIONS
from outlast.testing.delivery import DeliveryVerdict
from outlast.testing.reading import Found, reader_for
from tests.real import chaos_transactions
from tests.real.chaos_plan import Deeds, Step, plan
from tests.real.chaos_transactions import Application
from tests.real.committed import PARTITIONS
from tests.real.kafka_cluster import RealCluster

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
STYLES = ("keyed", "keyless", "explicit")
RATE = 20.0  # records/s of each thread
READ_S = 300.0
LONGEST = 4  # gaps of each topic that are told one by one
SAFE_FINDINGS = ("lost", "duplicated", "reordered", "misplaced", "contradicted", "unsettled")
DOOMED_FINDINGS = ("duplicated", "reordered", "contradicted", "unsettled")


# --- the load ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Client:
    """A producer, what it was told, and the threads that use it."""

    name: str
    producer: Any
    safe: DeliveryLedger = field(default_factory=DeliveryLedger)
    doomed: DeliveryLedger = field(default_factory=DeliveryLedger)
    threads: list[threading.Thread] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def use(self, topic: str, ledger: DeliveryLedger, style: str, rng: random.Random) -> None:
        """Prepare a thread that sends until `stopping` is set."""
        producer = ledger.watch(self.producer)

        def once() -> None:
            try:
                _send(producer, topic, style, rng)
            except Exception as error:  # a deleted topic may raise; the ledger has the record
                if ledger is self.safe:
                    self.errors.append(error)

        def run() -> None:
            while not _stopping.wait(rng.expovariate(RATE)):
                once()

        thread = threading.Thread(target=run, name=f"{self.name}-{style}", daemon=True)
        self.threads.append(thread)


_stopping = threading.Event()


def _send(producer: Any, topic: str, style: str, rng: random.Random) -> None:
    size = rng.randrange(8000, 20_000) if rng.random() < 0.02 else rng.randrange(5, 300)
    value: bytes | None = rng.randbytes(size // 2) + b"x" * (size // 2)  # half of it compresses
    if style == "keyed":
        value = None if rng.random() < 0.03 else value
        producer.send(topic, value, key=b"%d" % rng.randrange(50))
    elif style == "keyless":
        producer.send(topic, value)
    else:
        producer.send(topic, value, partition=rng.choice(sorted(producer.partitions_for(topic))))


def clients_for(bootstrap: Sequence[str], safe: str, doomed: str, seed: int) -> list[Client]:
    """The producers with their threads, not yet started."""
    made = []
    for number, codec in enumerate(CODECS):
        rng = random.Random(f"{seed}-{codec}")
        producer = KafkaProducer(
            bootstrap_servers=list(bootstrap),
            client_id=f"chaos-{codec}",
            compression_type=codec,
            linger_ms=rng.choice((0, 0, 5, 25)),
            batch_size=rng.choice((2000, 16_384, 65_536)),
            buffer_memory=rng.choice((500_000, 33_554_432)),
            metadata_max_age_ms=rng.choice((5_000, 300_000)),
        )
        client = Client(str(codec), producer)
        for style in STYLES:
            client.use(safe, client.safe, style, random.Random(rng.random()))
        if number < 2:
            client.use(doomed, client.doomed, STYLES[number], random.Random(rng.random()))
        made.append(client)
    return made


# --- the account ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Report:
    """What came of it. `faults()` is empty when every promise was kept."""

    seed: int
    topics: tuple[str, ...]  # the safe one, the doomed one, those of transactions
    begin_s: float  # monotonic
    took_s: float = 0.0
    steps: list[Step] = field(default_factory=list)
    safe: dict[str, DeliveryVerdict] = field(default_factory=dict)
    doomed: dict[str, DeliveryVerdict] = field(default_factory=dict)
    applications: tuple[Application, ...] = ()
    errors: list[str] = field(default_factory=list)
    charges: dict[str, int] = field(default_factory=dict)
    threads: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What no chaos excuses."""
        found = [f"{name}: {verdict}" for name, verdict in self.safe.items() if not verdict]
        found += [f"{n}: failed or refused: {v}" for n, v in self.safe.items() if v.failed]
        for name, verdict in self.doomed.items():
            bad = [kind for kind in DOOMED_FINDINGS if getattr(verdict, kind)]
            found += [f"{name}, deleted topic: {', '.join(bad)}: {verdict}"] if bad else []
        found += self.errors
        found += [f"{name}: {n} bytes stay charged" for name, n in self.charges.items() if n]
        found += [f"thread left: {name}" for name in self.threads]
        return found

    def __str__(self) -> str:
        total = dict.fromkeys(("sent", "acked", "failed"), 0)
        for verdict in self.safe.values():
            for kind in total:
                total[kind] += getattr(verdict, kind)
        kinds = [
            f"{k} {sum(len(getattr(v, k)) for v in self.safe.values())}" for k in SAFE_FINDINGS
        ]
        told = sum(v.acked for v in self.doomed.values())
        gone = sum(v.failed for v in self.doomed.values())
        return "\n".join(
            [
                f"chaos: seed {self.seed}, {self.took_s / 60:.1f} minutes, {len(self.steps)} steps",
                "  " + " · ".join(f"{kind} {n}" for kind, n in total.items()),
                "  " + " · ".join(kinds),
                f"  deleted topic: acked {told} · failed or refused {gone}",
                *map(str, self.applications),
                f"  charge {sum(self.charges.values())} · threads left {len(self.threads)}",
                *(_suffered("gaps", topic, self.gaps, _gap_kind) for topic in self.topics),
                *(_suffered("stalls", topic, self.stalls, _stall_kind) for topic in self.topics),
                *(self._told(gap) for topic in self.topics for gap in self._longest(topic)),
                *(f"  FAULT {fault}" for fault in self.faults()),
            ]
        )

    def _longest(self, topic: str) -> list[Gap]:
        gaps = [gap for gap in self.gaps if gap.topic == topic]
        return sorted(gaps, key=lambda gap: gap.duration_s)[: -LONGEST - 1 : -1]

    def _told(self, gap: Gap) -> str:
        phases = ("detecting", "unavailable", "reconnecting", "resuming")
        times = ", ".join(f"{p} {getattr(gap, p + '_s'):.1f} s" for p in phases)
        errors = ", ".join(f"{n} × {error}" for error, n in Counter(gap.errors).items())
        return (
            f"  {gap.topic}-{gap.partition} at {gap.begin_s - self.begin_s:.1f} s for "
            f"{gap.duration_s:.1f} s: {_gap_kind(gap)}, {gap.attempts} attempts, {times}; "
            f"node {gap.old_leader} to {gap.new_leader}; {errors}"
        )


def _gap_kind(gap: Gap) -> str:
    return f"{gap.cause.value} ({gap.outcome.value if gap.outcome else 'open'})"


def _stall_kind(stall: Stall) -> str:
    return f"{stall.lane} lane, {stall.reason}"


def _suffered(what: str, topic: str, events: Sequence[Any], kind: Callable[[Any], str]) -> str:
    """How many of each kind on the topic, and the longest."""
    by_kind: dict[str, list[float]] = {}
    for event in events:
        if event.topic == topic:
            by_kind.setdefault(kind(event), []).append(event.duration_s)
    parts = [f"{k}: {len(v)}, longest {max(v):.1f} s" for k, v in sorted(by_kind.items())]
    return f"  {what} on {topic}: {'; '.join(parts) or 'none'}"


def soak(cluster: RealCluster, minutes: float, seed: int, *, say: Callable[[str], Any]) -> Report:
    """The whole of it. `say` gets a line for each step."""
    say(f"chaos: seed {seed}; again: make chaos MINUTES={minutes:g} SEED={seed}")
    safe, doomed = f"chaos-safe-{seed}", f"chaos-doomed-{seed}"
    before = set(threading.enumerate())
    cluster.create_topic(safe, 4)
    cluster.create_topic(doomed, 3)
    of_transactions = (f"chaos-in-{seed}", f"chaos-out-{seed}")
    for topic in of_transactions:
        cluster.create_topic(topic, PARTITIONS)
    _stopping.clear()
    begin_s = time.monotonic()
    clients = clients_for(cluster.bootstrap, safe, doomed, seed)
    source, mill = chaos_transactions.applications(
        cluster.bootstrap, of_transactions, _stopping, seed
    )
    units = tuple(f"txn:{it.transactional_id}" for it in (source, mill))
    report = Report(seed, (safe, doomed, *of_transactions, *units), begin_s)
    report.applications = (source, mill)
    moved = (*of_transactions, TRANSACTIONS, OFFSETS)
    deeds = Deeds(cluster, safe, doomed, moved, random.Random(f"{seed}-deeds"))
    report.steps = deeds.done
    try:
        for it in report.applications:
            it.thread.start()
        for client in clients:
            for thread in client.threads:
                thread.start()
        for step in plan(seed):
            if time.monotonic() - begin_s > minutes * 60:
                break
            say(f"  {time.monotonic() - begin_s:6.1f} s  {step}")
            deeds.do(step)
        cluster.heal()
    finally:
        _stopping.set()
        for client in clients:
            _end(client, report)
        for it in report.applications:
            _end_application(it, report)
    report.took_s = time.monotonic() - begin_s
    report.threads = [t.name for t in threading.enumerate() if t not in before]
    _judge(cluster, clients, report)
    report.errors += chaos_transactions.judge(cluster.bootstrap, source, mill, READ_S)
    say(str(report))
    return report


def _end(client: Client, report: Report) -> None:
    """Stop its threads, deliver the rest, note what remains, close."""
    for thread in client.threads:
        thread.join(timeout=90)
        if thread.is_alive():
            report.errors.append(f"{thread.name}: send() still blocks")
    try:
        client.producer.flush(timeout=150)
    except KafkaError as error:
        report.errors.append(f"{client.name}: flush: {error!r}")
    report.charges[client.name] = client.producer.health().buffer_bytes
    report.gaps += client.producer.gaps()
    report.stalls += client.producer.stalls()
    report.errors += [f"{client.name}: send() raised {error!r}" for error in client.errors[:5]]
    client.producer.close(timeout=60)


def _end_application(it: Application, report: Report) -> None:
    """Wait for its end; what remains is noted by itself."""
    it.thread.join(timeout=chaos_transactions.END_S)
    if it.thread.is_alive():
        report.errors.append(f"{it.name}: its thread does not end")
    report.charges[it.name] = it.charges
    report.gaps += it.gaps
    report.stalls += it.stalls


def _judge(cluster: RealCluster, clients: Sequence[Client], report: Report) -> None:
    """Read each topic once, and let each ledger find its own records."""
    read = reader_for(cluster.bootstrap, READ_S)

    @functools.cache
    def everything(topic: str) -> list[Found]:
        return list(read(topic))

    for client in clients:
        report.safe[client.name] = client.safe.verdict(everything)
        if client.doomed.records:
            report.doomed[client.name] = client.doomed.verdict(everything)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    logging.getLogger("outlast").setLevel(logging.ERROR)  # gaps are the order of the day here
    with tempfile.TemporaryDirectory(prefix="outlast-chaos-") as folder:
        cluster = RealCluster(Path(folder) / "kafka")
        try:
            cluster.open()
            say = functools.partial(print, flush=True)
            report = soak(cluster, chosen.minutes, chosen.seed, say=say)
        finally:
            cluster.close()
    return 1 if report.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
