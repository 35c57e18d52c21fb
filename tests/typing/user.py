"""The whole public API as a user would write it. It is type-checked, and not run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from tenacity import stop_after_attempt, wait_exponential

import outlast
from outlast import (
    AttemptRecord,
    AttemptState,
    BlockedError,
    Cause,
    ClosedError,
    ConfigurationError,
    ConfigurationTypeError,
    Deliveries,
    DeliveryError,
    DeliveryFuture,
    Gap,
    GapEnd,
    GapOutcome,
    Health,
    HeldUp,
    KafkaProducer,
    MissingCodecError,
    Outcome,
    OutlastError,
    Phase,
    RecordMetadata,
    Stall,
    StallEnd,
    Undelivered,
)


def on_gap(gap: Gap) -> None:
    cause: Cause = gap.cause
    ended_by: GapEnd | None = gap.ended_by
    outcome: GapOutcome | None = gap.outcome
    phase: Phase | None = gap.phase
    seconds: list[float] = [gap.detecting_s, gap.unavailable_s, gap.cluster_s_max]
    print(gap.topic, gap.partition, gap.duration_s, cause, ended_by, outcome, phase, seconds)


def on_undelivered(record: Undelivered) -> None:
    again: bool = record.outcome is not Outcome.UNKNOWN
    attempts: Sequence[AttemptRecord] = record.attempts
    states: list[AttemptState] = [attempt.state for attempt in attempts]
    print(record.topic, record.partition, record.key, record.value, again, states, record.error)


def make() -> KafkaProducer:
    try:
        return KafkaProducer(
            bootstrap_servers=["broker:9092"],
            acks="all",
            retry_wait=wait_exponential(multiplier=0.1, max=2),
            retry_stop=stop_after_attempt(100),
            buffer_memory=64 << 20,
            on_gap=on_gap,
            on_undelivered=on_undelivered,
            metrics_registry=CollectorRegistry(),
        )
    except (ConfigurationTypeError, MissingCodecError, ConfigurationError) as error:
        raise SystemExit(str(error)) from error


def send(producer: KafkaProducer) -> int:
    future: DeliveryFuture = producer.send(
        "orders", b"value", b"key", headers=[("h", b"1")], partition=0, timestamp_ms=1
    )
    future.add_callback(print, "delivered").add_errback(print, "failed")
    try:
        metadata: RecordMetadata = future.get(timeout=10)
    except DeliveryError as error:
        outcome: Outcome = error.outcome
        again: bool = error.retriable
        print(again, outcome, error.attempts, error.kind, error.error_code, error.topic_partition)
        return -1
    except (BlockedError, ClosedError, OutlastError):
        return -2
    done: bool = future.is_done
    gaps: tuple[int, ...] = future.gaps
    print(done, gaps, future.succeeded(), future.failed(), future.retriable(), future.value)
    offset: int = metadata.offset
    return offset


def send_many(producer: KafkaProducer) -> list[int]:
    numbers = (b"%d" % n for n in range(10))
    many: Deliveries = producer.send_many("orders", numbers, headers=[("h", b"1")], timestamp_ms=1)
    many.add_callback(print, "delivered").add_errback(print, "failed").add_both(print, end="")
    first: DeliveryFuture = many[0]
    some: list[DeliveryFuture] = many[1:3]
    for future in many:
        print(future.is_done, future is first, len(many), len(some))
    failed: list[tuple[int, DeliveryError]] = many.failed(timeout=10)
    results: list[RecordMetadata | DeliveryError] = many.results()
    lost = [result.outcome for result in results if isinstance(result, DeliveryError)]
    done: bool = many.is_done and many.succeeded()
    node_id: int = many.node_id
    gaps: tuple[int, ...] = many.gaps
    print(failed, lost, done, node_id, gaps)
    keyed = producer.send_many("orders", [b"v", None], keys=[b"k", b"k"], partition=0)
    offsets: list[int] = [metadata.offset for metadata in keyed.get(timeout=10)]
    return offsets


async def send_in_a_loop(producer: KafkaProducer) -> RecordMetadata:
    future: DeliveryFuture = await producer.send_async("orders", b"value", key=b"key")
    first: RecordMetadata = await future
    rest = await asyncio.gather(*(producer.send("orders", b"value") for _ in range(3)))
    last: RecordMetadata = rest[-1]
    many = await asyncio.to_thread(producer.send_many, "orders", [b"v"] * 3)
    rest += await many
    await asyncio.to_thread(producer.flush, 5.0)
    return max(first, last, key=lambda metadata: int(metadata.offset))


def look(producer: KafkaProducer) -> None:
    gaps: list[Gap] = producer.gaps()
    stalls: list[Stall] = producer.stalls()
    ends: list[StallEnd | None] = [stall.ended_by for stall in stalls]
    health: Health = producer.health()
    held_up: tuple[HeldUp, ...] = health.held_up
    partitions: set[int] = producer.partitions_for("orders")
    print(gaps, ends, health.ok, health.headroom_s, held_up, partitions, health.to_dict())
    print(producer.metrics(), producer.config["acks"], producer.bootstrap_connected())


def main() -> None:
    with make() as producer:
        same: KafkaProducer = producer
        send(same)
        send_many(same)
        look(same)
        producer.flush(timeout=5.0)
        producer.close(timeout=1.5)
    outlast.install()
    outlast.uninstall()
    print(outlast.__all__)
