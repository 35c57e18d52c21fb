"""Rules about time: do the producer's time-outs and buffer outlast the cluster's failures?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from outlast.cli.check_findings import (
    Finding,
    Known,
    Section,
    Severity,
    ok,
    rule,
    seconds,
    unread,
)
from outlast.cli.check_model import (
    FETCH_BACKOFF,
    HEARTBEAT,
    SESSION,
    ZOOKEEPER_SESSION,
    Kind,
    Worst,
)
from outlast.cli.check_view import Cluster, partitions
from outlast.config import LONGEST_S

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
LONG_SESSION_MS = 20_000
LONG_BACKOFF_MS = 200
LONG_AGE_S = 900.0
SHORT_AGE_S = 10.0
LONG_RECONNECT_S = 5.0
MEBIBYTE = 2**20
TWICE = 2.0  # the successor may die as well: a rolling restart that goes wrong


def margin_s(known: Known, worst: Worst) -> float:
    """How much of `delivery_timeout_ms` is left when such a failure is over."""
    settings = known.producer.settings
    return settings.delivery_timeout_s - settings.linger_s - worst.seconds


@rule(
    Section.TIME,
    "Does delivery_timeout_ms outlast the longest time without acks?",
    ERROR,
    WARNING,
    NOTE,
    why="A record that is sent as a failure begins waits all of it, and fails at "
    "delivery_timeout_ms though the cluster is about to be well. There should be time for two: the "
    "new leader may go down too.",
)
def delivery_timeout(known: Known) -> Iterator[Finding]:
    """The retry budget, for the worst kind of failure."""
    settings = known.producer.settings
    if settings.acks == 0:
        yield Finding(NOTE, "acks=0: nothing is waited for, so nothing is outlasted")
        return
    worst = max(known.worst, key=lambda worst: worst.seconds)
    left_s = margin_s(known, worst)
    said = (
        f"delivery_timeout_ms={_ms(settings.delivery_timeout_s)}, and up to "
        f"{seconds(worst.seconds)} pass without an ack ({worst.kind.said})"
    )
    advice = f"delivery_timeout_ms={_ms(max(120.0, _up(TWICE * worst.seconds, 10)))}"
    if left_s < 0:
        yield Finding(ERROR, f"{said}: {seconds(-left_s)} too short", advice)
    elif settings.delivery_timeout_s < TWICE * worst.seconds:
        yield Finding(WARNING, f"{said}: only {seconds(left_s)} to spare", advice)
    else:
        yield ok(f"{said}: {seconds(left_s)} to spare")


@rule(
    Section.TIME,
    "Does the send buffer hold what comes during the longest gap?",
    ERROR,
    WARNING,
    NOTE,
    why="When buffer_memory is full, send() waits for room, max_block_ms at most, and then raises: "
    "the application stands still, or loses what it could not hand over.",
)
def buffer(known: Known) -> Iterator[Finding]:
    """buffer_memory and max_block_ms at the rate that was told."""
    settings = known.producer.settings
    if known.rate is None:
        said = f"buffer_memory={settings.buffer_bytes:,}: how long that lasts depends on the rate"
        yield Finding(NOTE, said, "--rate 5000, or --rate 2MB")
        return
    need_s, last_s = known.worst_gap_s, lasts_s(known)
    said = f"buffer_memory={settings.buffer_bytes:,} lasts {seconds(last_s)} at {known.rate.said}"
    share, node = affected(known.cluster, followers=settings.acks == -1)
    if share < 1.0:
        said += f" ({share:.0%} of the partitions wait if node {node} dies)"
    if last_s >= need_s:
        yield ok(f"{said}; {seconds(need_s)} are needed")
        return
    bytes_needed = settings.buffer_bytes * need_s / last_s
    advice = f"buffer_memory={_up(bytes_needed * 1.2, MEBIBYTE):,.0f}".replace(",", "_")
    block_s = known.producer.values["max_block_ms"] / 1000
    if need_s - last_s > block_s:
        said += (
            f"; {seconds(need_s)} are needed: after max_block_ms={_ms(block_s)} "
            "send() raises and records are refused"
        )
        yield Finding(ERROR, said, advice)
    else:
        said += f"; {seconds(need_s)} are needed: send() waits for {seconds(need_s - last_s)}"
        yield Finding(WARNING, said, advice)


def lasts_s(known: Known) -> float:
    """How long the buffer takes what the partitions that wait are given.

    While others deliver, those that wait may have half of it together.
    """
    assert known.rate is not None
    limit = known.producer.settings.buffer_bytes
    share, _ = affected(known.cluster, followers=known.producer.settings.acks == -1)
    if known.rate.bytes_per_s <= 0:
        return math.inf
    everything_s = limit / known.rate.bytes_per_s
    if not 0.0 < share < 1.0:
        return everything_s
    return everything_s / 2 / share


def affected(cluster: Cluster, *, followers: bool) -> tuple[float, int]:
    """The largest share of partitions that wait when one node dies, and that node.

    Args:
        followers: acks=all waits for these too (S7).
    """
    hit: dict[int, int] = {}
    total = 0
    for _, _, partition in partitions(cluster.topics):
        total += 1
        for node in partition.replicas if followers else (partition.leader,):
            hit[node] = hit.get(node, 0) + 1
    if not hit:
        return 1.0, -1
    node = max(sorted(hit), key=lambda node: hit[node])
    return hit[node] / total, node


@rule(
    Section.TIME,
    "Is a dead broker given up in reasonable time?",
    WARNING,
    NOTE,
    why="A crashed broker's partitions have no other leader before its session has expired, and "
    "acks=all waits as long on all partitions that it follows. Under three heartbeats a session "
    "ends by a mere hiccup.",
    facts="A18, S7",
)
def session_timeout(known: Known) -> Iterator[Finding]:
    """broker.session.timeout.ms, or ZooKeeper's."""
    cluster = known.cluster
    name = ZOOKEEPER_SESSION if cluster.kraft is False else SESSION
    told = cluster.numbers(name)
    if not told:
        yield unread(f"{name} could not be read; Kafka's default is assumed")
        return
    session_ms, beat_ms = max(told.values()), max(cluster.numbers(HEARTBEAT).values(), default=0)
    if name == SESSION and session_ms < 3 * beat_ms:
        said = f"{name}={session_ms} is less than three heartbeats of {beat_ms} ms"
        yield Finding(WARNING, said, f"{name}={3 * beat_ms} or more")
    elif session_ms > LONG_SESSION_MS:
        yield Finding(WARNING, f"{name}={session_ms}: so long nobody leads", f"{name}=9000")
    elif len(set(told.values())) > 1:
        said = f"{name} differs between brokers: {_each(told)}"
        yield Finding(NOTE, said, f"{name}={min(told.values())} everywhere")
    else:
        yield ok(f"{name}={session_ms}")
    if name == SESSION and cluster.controllers_apart:
        said = f"{name} counts on the controllers; what brokers tell may be another value"
        yield Finding(NOTE, said, reason="The controllers run apart from the brokers here.")


@rule(
    Section.TIME,
    "Does a planned move cost more than it must?",
    NOTE,
    why="After half of all moves a follower has asked the new leader too early and waits that long "
    "before it asks again; acks=all waits with it.",
    facts="S3",
)
def fetch_backoff(known: Known) -> Iterator[Finding]:
    """replica.fetch.backoff.ms."""
    if known.producer.settings.acks != -1:
        return
    told = known.cluster.numbers(FETCH_BACKOFF)
    if not told:
        yield unread(f"{FETCH_BACKOFF} could not be read")
    elif max(told.values()) > LONG_BACKOFF_MS:
        yield Finding(NOTE, f"{FETCH_BACKOFF}={max(told.values())}", f"{FETCH_BACKOFF}=100")
    else:
        yield ok(f"{FETCH_BACKOFF}={max(told.values())}")


@rule(
    Section.TIME,
    "Do leaders go back to their brokers after a restart?",
    NOTE,
    WARNING,
    why="Without it leaders stay where a restart has left them, until few brokers lead everything "
    "and one failure hits it all. With it they move back by themselves, which is a planned move.",
)
def leader_rebalance(known: Known) -> Iterator[Finding]:
    """auto.leader.rebalance.enable, and controlled.shutdown.enable which hands leaders over."""
    cluster = known.cluster
    if "false" in cluster.texts("controlled.shutdown.enable").values():
        said = "controlled.shutdown.enable=false: a restart is a crash to all producers"
        yield Finding(WARNING, said, "controlled.shutdown.enable=true")
    told = cluster.texts("auto.leader.rebalance.enable")
    planned = next((seconds(w.seconds) for w in known.worst if w.kind is Kind.PLANNED), "")
    if not told:
        yield unread("auto.leader.rebalance.enable could not be read")
    elif "false" in told.values():
        said = "auto.leader.rebalance.enable=false: leaders stay where a restart leaves them"
        advice = "true, or a preferred leader election after each restart"
        yield Finding(NOTE, said, advice)
    else:
        every = max(
            cluster.numbers("leader.imbalance.check.interval.seconds").values(), default=300
        )
        yield ok(f"leaders move back within {every} s of a restart, each a gap of ≤ {planned}")


@rule(
    Section.TIME,
    "Is `retries` no narrower than the time-outs?",
    WARNING,
    why="Waiting for a leader uses up none of it, but a broker that has too few in-sync replicas "
    "refuses (NOT_ENOUGH_REPLICAS), and each of these counts. The time-out is bound enough.",
)
def retries(known: Known) -> Iterator[Finding]:
    """retries, as a time."""
    settings = known.producer.settings
    if math.isinf(settings.retries):
        yield ok("retries are bounded by time alone")
        return
    pause_s, total_s = settings.retry_backoff_s, 0.0
    for _ in range(min(int(settings.retries), 10_000)):
        total_s += pause_s
        pause_s = min(2 * pause_s, settings.retry_backoff_max_s)
    if total_s < min(known.worst_s, settings.delivery_timeout_s):
        said = f"retries={settings.retries:g} may be used up after {seconds(total_s)} of refusals"
        yield Finding(WARNING, said, "leave retries at its default")
    else:
        yield ok(f"retries={settings.retries:g} last {seconds(total_s)}")


@rule(
    Section.TIME,
    "Is an answer waited for as long as brokers hold it back?",
    WARNING,
    why="After a follower's crash acks=all is answered when the cluster has given it up, not "
    "before. Whoever has closed the connection by then sends everything again, and without "
    "idempotence that is a second copy.",
    facts="S7",
)
def request_timeout(known: Known) -> Iterator[Finding]:
    """request_timeout_ms; with idempotence brokers are made to say who is stuck (ack_wait_ms)."""
    settings = known.producer.settings
    if settings.acks != -1:
        return
    held_s = max(w.seconds for w in known.worst if w.kind is Kind.CRASH)
    said = f"request_timeout_ms={_ms(settings.request_timeout_s)}"
    if settings.idempotent or settings.request_timeout_s >= held_s:
        yield ok(said)
    else:
        said += f", and acks=all may be held back for {seconds(held_s)}"
        yield Finding(WARNING, said, f"request_timeout_ms={_ms(_up(2 * held_s, 10))}")


@rule(
    Section.TIME,
    "Is a broker that is back found without delay?",
    WARNING,
    why="A failed connect is tried again after a pause that doubles up to this; kafka-python's "
    "default of 30 s keeps a producer off a broker that has long been back.",
)
def reconnect_backoff(known: Known) -> Iterator[Finding]:
    """reconnect_backoff_max_ms."""
    longest_s = known.producer.settings.reconnect_backoff_max_s
    said = f"reconnect_backoff_max_ms={_ms(longest_s)}"
    if longest_s > LONG_RECONNECT_S:
        yield Finding(WARNING, said, "reconnect_backoff_max_ms=1000")
    else:
        yield ok(said)


@rule(
    Section.TIME,
    "Is metadata asked anew now and then?",
    WARNING,
    NOTE,
    why="A leader that moves is found by the first refusal, whatever the age. Added partitions and "
    "replaced brokers are seen when metadata is asked anew; a producer that has not done so for "
    "long may find none of the brokers that it knows.",
)
def metadata_age(known: Known) -> Iterator[Finding]:
    """metadata_max_age_ms."""
    age_s = known.producer.settings.metadata_max_age_s
    said = f"metadata_max_age_ms={_ms(age_s)}: added partitions are seen after that at the latest"
    advice = "metadata_max_age_ms=300000"
    if age_s > LONG_AGE_S:
        yield Finding(WARNING, said, advice)
    elif age_s < SHORT_AGE_S:
        said = f"metadata_max_age_ms={_ms(age_s)}: every producer asks so often"
        yield Finding(NOTE, said, advice)
    else:
        yield ok(said)


def _ms(value_s: float) -> str:
    return "inf" if value_s >= LONGEST_S else f"{value_s * 1000:.0f}"


def _up(value: float, step: float) -> float:
    return math.ceil(value / step) * step


def _each(told: dict[int, int]) -> str:
    return ", ".join(f"{value} on node {node}" for node, value in sorted(told.items()))
