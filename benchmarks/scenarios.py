"""What is measured, with whom, and what is to be reached: the one list for all clients.

A scenario is a list of cases, each a job for one client on one cluster. Cases of the same `variant`
are compared: in each round they run one right after the other. A target compares two figures of the
same round, or holds one figure to a number; it is met when the median over the rounds is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

SMALL = {"value_bytes": 100}
TUNED = {"linger_ms": 5, "batch_bytes": 128 * 1024}
SUBTRACTED = ("gzip", "zstd")  # the codec's own time is taken off both clients
PYTHONIC = ("outlast", "kafka-python")
ALL = ("outlast", "outlast-send-many", "kafka-python", "aiokafka", "confluent-kafka")
BATCH = "confluent-kafka-batch"

ROUND_TRIP_S = 0.02
# Ten of 100 B are written as 1,151 with the batch's head, and an eleventh counts for 136 at most.
TEN_RECORDS_BYTES = 1_230
OUTAGE_RECORDS_PER_S = 3_000

Cluster = Literal["mock", "kafka", "relay"]


@dataclass(frozen=True, slots=True)
class Case:
    """One job of one client."""

    variant: str
    client: str
    cluster: Cluster
    job: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A figure in the scenario's table."""

    metric: str
    head: str
    shown: Callable[[float], str] = "{:,.2f}".format
    records_min: int = 0  # a run of fewer records does not tell it


@dataclass(frozen=True, slots=True)
class Target:
    """A client's figure of a variant, held against another's in the same round, or to a number.
    With `slack` not the ratio counts, which small figures do not have, but the difference.
    """

    words: str
    variant: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    client: str = "outlast"
    against: str | None = None  # a client; None: the figure itself is held to the number
    slack: float = 0.0  # so much more than the other's is still met
    against_variant: str | None = None  # None: the same
    or_variant: str | None = None  # the other's figure there, where that is the better one


@dataclass(frozen=True, slots=True)
class Curve:
    """How the figures are drawn: the variants are numbers on the axis."""

    metric: str
    axis: str
    log: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """Cases that make one table, or one plot."""

    name: str
    title: str
    cases: tuple[Case, ...]
    columns: tuple[Column, ...]
    targets: tuple[Target, ...] = ()
    runs: int = 5
    curve: Curve | None = None
    outage_s: float = 0.0  # of the cluster


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of it: as a whole these take 25 minutes, or 3."""

    runs_max: int = 5
    seconds: float = 1.5  # of each burst
    transactions_s: float = 1.0
    latency_s: float = 3.0
    many_partitions: int = 10_000
    many_batches: int = 5  # to each of these
    round_trip_records: int = 30_000
    memory_records: int = 100_000
    outage_s: float = 10.0
    idle_s: float = 5.0
    idle_producers: int = 100
    codecs: tuple[str | None, ...] = (None, "snappy", "lz4", "gzip", "zstd")
    tuned_mock: bool = True
    curve_seconds: float = 1.0


FULL = Scale()
SHORT = Scale(
    runs_max=1,
    seconds=0.5,
    transactions_s=0.5,
    latency_s=2.0,
    many_partitions=2_000,  # a controller takes a minute to make and delete the others
    many_batches=2,
    round_trip_records=10_000,
    memory_records=30_000,
    outage_s=3.0,
    idle_s=3.0,
    idle_producers=10,
    codecs=(None, "lz4", "gzip"),
    tuned_mock=False,
)


def _cases(clients: Iterable[str], variant: str, cluster: Cluster, **job: Any) -> tuple[Case, ...]:
    return tuple(Case(variant, client, cluster, job) for client in clients)


def _count(figure: float) -> str:
    return f"{figure:,.0f}"


BURST = (
    Column("records_per_cpu_s", "records per CPU second", _count),
    Column("us_per_record", "µs of CPU per record"),
    Column("records_per_s", "records/s, wall", _count),
)


def throughput(scale: Scale) -> Scenario:
    cases: tuple[Case, ...] = ()
    targets: list[Target] = []
    job = {"seconds": scale.seconds, **SMALL}
    places: tuple[tuple[Cluster, str], ...] = (("kafka", "Kafka"), ("mock", "mock"))
    for cluster, where in places:
        defaults, tuned = f"{where}, defaults", f"{where}, linger 5 ms, 128 KiB"
        clients = (*ALL, BATCH) if cluster == "kafka" else ALL
        cases += _cases(clients, defaults, cluster, **job)
        measured = [defaults]
        if cluster == "kafka":
            keyed = f"{defaults}, 16 B keys"
            cases += _cases(("outlast", "outlast-send-many"), keyed, cluster, **job, key_bytes=16)
        if cluster == "kafka" or scale.tuned_mock:
            cases += _cases(clients, tuned, cluster, **job, **TUNED)
            measured.append(tuned)
        per_cpu = "records_per_cpu_s"
        words = "records per CPU second"
        for variant in measured:
            factor = 5.0 if variant == defaults else 8.0
            # its batches are of 1 MB unless it is told otherwise: 128 KiB may be a handicap
            better = None if variant == defaults else defaults
            targets += [
                Target(words, variant, per_cpu, factor, against="kafka-python"),
                Target(words, variant, per_cpu, 2.5, against="aiokafka"),
                Target(words, variant, per_cpu, 0.6, against="confluent-kafka", or_variant=better),
            ]
            targets += [
                Target(
                    words,
                    variant,
                    per_cpu,
                    1.0,
                    client="outlast-send-many",
                    against=other,
                    or_variant=better,
                )
                for other in ("confluent-kafka", BATCH)
                if other in clients
            ]
            if cluster == "kafka":  # the mock shares two cores with the producer, and is Python
                targets.append(
                    Target("records/s, wall", variant, "records_per_s", 5.0, against="kafka-python")
                )
    return Scenario("throughput", "Throughput, 100 B", cases, BURST, tuple(targets))


def codecs(scale: Scale) -> Scenario:
    cases: tuple[Case, ...] = ()
    targets = []
    for codec in scale.codecs:
        subtracted = codec in SUBTRACTED
        job: dict[str, Any] = {"value_bytes": 1_000, "key_bytes": 16, "compression": codec}
        job |= {"seconds": scale.seconds, "codec_time": subtracted}
        variant = codec or "none"
        cases += _cases(PYTHONIC, variant, "mock", **job)
        metric = "records_per_cpu_s" + ("_without_codec" if subtracted else "")
        words = "records per CPU second, 1 kB, 16 B keys"
        words += ", the codec's own time taken off" if subtracted else ""
        targets.append(Target(words, variant, metric, 3.0, against="kafka-python"))
    columns = (
        BURST[1],
        Column("codec_us_per_record", "of which the codec alone"),
        Column("us_per_record_without_codec", "without it"),
        BURST[2],
    )
    title = "1 kB values, 16-byte keys, codecs"
    return Scenario("codecs", title, cases, columns, tuple(targets), runs=3)


def many_partitions(scale: Scale) -> Scenario:
    """On a real Kafka: a batch takes the mock 0.2 ms, and a request of thousands seems lost."""
    cases: tuple[Case, ...] = ()
    many = scale.many_partitions
    for partitions in (12, many):
        job = {"partitions": partitions, "in_turn": True, **SMALL}
        job |= {"batch_bytes": TEN_RECORDS_BYTES, "linger_ms": 10_000, "buffer_bytes": 2**28}
        job |= {"records": 10 * many * scale.many_batches, "batch_records": 10}
        cases += _cases(("outlast",), f"{partitions:,}", "kafka", **job)
    target = Target(
        f"CPU per record, {many:,} partitions against 12, 10 records a batch",
        f"{many:,}",
        "us_per_record",
        at_most=1.3,
        against="outlast",
        against_variant="12",
    )
    title = f"{many:,} partitions against 12"
    columns = (*BURST, Column("records_per_batch", "records in a batch", "{:g}".format))
    return Scenario("many-partitions", title, cases, columns, (target,), runs=2)


def transactions(scale: Scale) -> Scenario:
    """Without keys, as each client spreads records then; and over all partitions with all."""
    job: dict[str, Any] = {"kind": "transactions", "seconds": scale.transactions_s, **SMALL}
    job["warm_up_records"] = 2_000
    cases = _cases(ALL, "Kafka, no keys", "kafka", **job)
    cases += _cases(ALL, "Kafka, over 12 partitions", "kafka", **job, in_turn=True)
    words, per_cpu = "records per CPU second, transactions of 100", "records_per_cpu_s"
    targets = tuple(
        Target(words, variant, per_cpu, 3.0, client=client, against="kafka-python")
        for variant in dict.fromkeys(case.variant for case in cases)
        for client in ("outlast", "outlast-send-many")
    )
    columns = (*BURST, Column("ms_per_transaction", "ms for a transaction", "{:,.1f}".format))
    title = "Transactions of 100 records"
    return Scenario("transactions", title, cases, columns, targets, runs=3)


def latency(scale: Scale) -> Scenario:
    clients = ("outlast", "kafka-python", "confluent-kafka", "aiokafka")
    job = {"kind": "latency", "linger_ms": 0, "seconds": scale.latency_s}
    cases = _cases(clients, "Kafka", "kafka", **job)
    words = "send to ack, 1 000 records/s, linger 0"
    targets = (
        Target(f"{words}, p50", "Kafka", "p50_ms", at_most=1.0, against="kafka-python"),
        Target(f"{words}, p99", "Kafka", "p99_ms", at_most=1.0, against="kafka-python"),
        Target(f"{words}, p99", "Kafka", "p99_ms", at_most=1.5, against="confluent-kafka"),
    )
    columns = (
        Column("p50_ms", "p50, ms"),
        Column("p99_ms", "p99, ms"),
        Column("p999_ms", "p99.9, ms", records_min=100_000),
        Column("due_p99_ms", "p99 since it was due, ms"),
        Column("us_per_record", "µs of CPU per record", "{:,.0f}".format),
    )
    return Scenario("latency", "Send to ack, 1 000 records/s, linger 0", cases, columns, targets)


def idle(scale: Scale) -> Scenario:
    clients = ("outlast", "kafka-python", "confluent-kafka")
    count = scale.idle_producers
    job = {"kind": "idle", "producers": count, "seconds": scale.idle_s}
    variant, metric = f"{count} producers", "core_percent_each"
    cases = _cases(clients, variant, "kafka", **job)
    words = "an idle producer's share of a core, %"
    targets = (
        Target(words, variant, metric, at_most=1.0, against="kafka-python", slack=0.001),
        Target(words, variant, metric, at_most=0.02),
    )
    columns = (
        Column("core_percent_each", "% of a core each", "{:.4f}".format),
        Column("rss_kib_each", "RSS each, KiB", _count),
    )
    return Scenario(
        "idle", f"{count} connected producers, no traffic", cases, columns, targets, runs=3
    )


def memory(scale: Scale) -> Scenario:
    job = {"kind": "memory", "records": scale.memory_records, **SMALL}
    job |= {"buffer_bytes": 2**28, "buffer_records": 200_000}
    clients = [client for client in ALL if client != "aiokafka"]  # its `send` waits for acks
    cases = _cases(clients, "futures kept", "mock", **job)
    target = Target(
        "RSS per 100 000 unacknowledged records",
        "futures kept",
        "rss_mib_per_100k",
        at_most=0.4,
        against="kafka-python",
    )
    columns = (Column("rss_mib_per_100k", "RSS per 100 000, MiB", "{:,.1f}".format),)
    title = "Unacknowledged records of 100 B, with futures"
    return Scenario("memory", title, cases, columns, (target,), runs=3)


def backlog(scale: Scale) -> Scenario:
    records = round(OUTAGE_RECORDS_PER_S * scale.outage_s)
    job = {"kind": "backlog", "records": records, "records_per_s": OUTAGE_RECORDS_PER_S}
    job |= {"value_bytes": 1_000, "buffer_bytes": 2**26}
    variant = f"{records:,} × 1 kB"
    cases = _cases(("outlast", "kafka-python", "confluent-kafka"), variant, "relay", **job)
    words = f"backlog after {scale.outage_s:g} s of outage, time until it is gone"
    targets = tuple(
        Target(words, variant, "gone_s", at_most=1.0, against=other)
        for other in ("kafka-python", "confluent-kafka")
    )
    columns = (
        Column("gone_s", "until the last ack, s"),
        Column("first_s", "until the first ack, s"),
        Column("cpu_s", "CPU s, outage included"),
    )
    title = f"A backlog after {scale.outage_s:g} s of outage"
    return Scenario("backlog", title, cases, columns, targets, runs=3, outage_s=scale.outage_s)


def round_trip(scale: Scale) -> Scenario:
    job = {"partition": 0, "records": scale.round_trip_records, **SMALL}
    variant = "20 ms, 16 KiB"
    clients = ("outlast", "kafka-python", "aiokafka", "confluent-kafka")
    cases = _cases(clients, variant, "relay", **job, batch_bytes=16_384)
    # the others' batches are of 16 KiB anyway, but for confluent-kafka's, of 1 MB
    cases += _cases(("outlast", "confluent-kafka"), "20 ms, defaults", "relay", **job)
    words = "one partition at 20 ms round trip, 16 KiB batches, records/s"
    target = Target(words, variant, "records_per_s", 4.0, against="kafka-python")
    title = "One partition at 20 ms round trip"
    return Scenario("round-trip", title, cases, (BURST[2], BURST[1]), (target,), runs=3)


# --- curves: cost per record against one thing at a time ------------------------------------------


def _curve(
    scale: Scale,
    name: str,
    title: str,
    axis: str,
    points: dict[int, dict[str, Any]],
    *,
    log: bool = True,
    only: Mapping[int, tuple[str, ...]] | None = None,
) -> Scenario:
    cases: tuple[Case, ...] = ()
    for point, its in points.items():
        clients = PYTHONIC if only is None else only.get(point, PYTHONIC)
        job = {"seconds": scale.curve_seconds, **SMALL, **its}
        cases += _cases(clients, str(point), "mock", **job)
    curve = Curve("us_per_record", axis, log)
    return Scenario(name, title, cases, (BURST[1],), runs=1, curve=curve)


def by_size(scale: Scale) -> Scenario:
    points = {size: {"value_bytes": size} for size in (10, 100, 1_000, 10_000)}
    return _curve(scale, "by-size", "by record size", "bytes of a value", points)


def by_partitions(scale: Scale) -> Scenario:
    # kafka-python's partitioner looks at all partitions for every record
    points = {count: {"partitions": count} for count in (1, 12, 100, 1_000, 10_000)}
    only = {10_000: ("outlast",)}
    return _curve(
        scale, "by-partitions", "by partitions", "partitions of the topic", points, only=only
    )


def by_batch(scale: Scale) -> Scenario:
    sizes = (1_024, 4_096, 16_384, 65_536, 262_144)
    points = {size: {"batch_bytes": size, "linger_ms": 5} for size in sizes}
    return _curve(scale, "by-batch", "by batch size", "batch_size, linger 5 ms", points)


def by_threads(scale: Scale) -> Scenario:
    points = {count: {"threads": count} for count in (1, 2, 4, 8)}
    return _curve(scale, "by-threads", "by sending threads", "threads that call send()", points)


def by_producers(scale: Scale) -> Scenario:
    points = {count: {"producers": count} for count in (1, 2, 5, 10)}
    axis = "producers that one thread sends with"
    return _curve(scale, "by-producers", "by producers", axis, points)


SCENARIOS: dict[str, Callable[[Scale], Scenario]] = {
    "throughput": throughput,
    "latency": latency,
    "transactions": transactions,
    "codecs": codecs,
    "many-partitions": many_partitions,
    "round-trip": round_trip,
    "backlog": backlog,
    "idle": idle,
    "memory": memory,
    "by-size": by_size,
    "by-partitions": by_partitions,
    "by-batch": by_batch,
    "by-threads": by_threads,
    "by-producers": by_producers,
}
