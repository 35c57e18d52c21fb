"""Consumers that we did not write follow the mock's logs through a move, a death and a silence.

Each of kafka-python, confluent-kafka and aiokafka tails three partitions that outlast writes to.
After each event (the leader moves, dies, comes back, falls silent, wakes) more is written, and the
consumer must come by it before the next one: each record once, in order, at its offset.

They read by `assign()`: the mock coordinates no groups (docs/kafka-facts.md).
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
import pytest

from outlast import KafkaProducer
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer
from tests.mock.foreign_readers import agree
from tests.real.kafka_cluster import until

TOPIC = "orders"
PARTITIONS = 3
SLICE = 30  # records written to each partition after each event
TIMEOUT_MS = 700  # after which a consumer gives a silent broker up

# kafka-python leaves the sockets of refused connects to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

Records = dict[int, list[tuple[int, bytes]]]  # partition → (offset, value), in order


class Consuming(Protocol):
    def __init__(self, bootstrap: str) -> None: ...

    def poll(self) -> Iterable[tuple[int, int, bytes]]:
        """Partition, offset and value of what has come within some 100 ms."""

    def close(self) -> None: ...


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._next = {kafka.TopicPartition(TOPIC, number): 0 for number in range(PARTITIONS)}
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> kafka.KafkaConsumer:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            request_timeout_ms=TIMEOUT_MS,
            reconnect_backoff_max_ms=500,  # by default it grows to 30 s on the dead node
            metadata_max_age_ms=1_000,  # it asks nobody while a new connect to the silent one hangs
        )
        consumer.assign(list(self._next))
        for place, offset in self._next.items():
            consumer.seek(place, offset)
        return consumer

    def poll(self) -> Iterable[tuple[int, int, bytes]]:
        try:
            polled = self._consumer.poll(timeout_ms=100)
        except kafka.errors.UnknownBrokerIdError:
            # It followed a hint to a node that its old list of brokers lacks, and takes a fetch to
            # that node for pending ever after (`Fetcher._send_fetches_async` of 3.0.12).
            self._consumer.close()
            self._consumer = self._new_consumer()
            return
        for place, records in polled.items():
            for record in records:
                self._next[place] = record.offset + 1
                yield record.partition, record.offset, record.value

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    def __init__(self, bootstrap: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "socket.timeout.ms": TIMEOUT_MS,
            "reconnect.backoff.max.ms": 500,
        }
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.assign(
            [confluent_kafka.TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)]
        )

    def poll(self) -> Iterable[tuple[int, int, bytes]]:
        for message in self._consumer.consume(1_000, timeout=0.1):
            error = message.error()
            if error is None:
                yield message.partition(), message.offset(), message.value()
            else:
                assert error.retriable() or error.code() in AWAY, error

    def close(self) -> None:
        self._consumer.close()


AWAY = (
    confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
    confluent_kafka.KafkaError._TIMED_OUT,
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
)


class Aiokafka:
    def __init__(self, bootstrap: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(self._start(bootstrap))

    async def _start(self, bootstrap: str) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            request_timeout_ms=TIMEOUT_MS,
        )
        await consumer.start()
        assigned = [aiokafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        consumer.assign(assigned)
        for partition in assigned:
            consumer.seek(partition, 0)
        return consumer

    def poll(self) -> Iterable[tuple[int, int, bytes]]:
        polled: dict[Any, Any] = self._loop.run_until_complete(
            self._consumer.getmany(timeout_ms=100)
        )
        for records in polled.values():
            for record in records:
                yield record.partition, record.offset, record.value

    def close(self) -> None:
        # A fetch that it gives up while it pauses before another try cancels stop() itself.
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


class Story:
    """What was written, what was read, and that the one becomes the other."""

    def __init__(self, server: ClusterServer, producer: KafkaProducer, client: Consuming) -> None:
        self._server = server
        self._producer = producer
        self._client = client
        self._written: Records = {number: [] for number in range(PARTITIONS)}
        self._read: Records = {number: [] for number in range(PARTITIONS)}

    def goes_on(self, after: str) -> None:
        """More is written, and read."""
        futures = [
            (partition, value, self._producer.send(TOPIC, value, partition=partition))
            for partition in range(PARTITIONS)
            for value in (b"%d after %s" % (n, after.encode()) for n in range(SLICE))
        ]
        for partition, value, future in futures:
            self._written[partition].append((future.get(timeout=20).offset, value))
        until(self._all_read, f"everything is read after {after}", timeout_s=20.0)
        assert self._read == self._written

    def _all_read(self) -> bool:
        for partition, offset, value in self._client.poll():
            self._read[partition].append((offset, value))
        return self._lengths(self._read) >= self._lengths(self._written)

    def _lengths(self, records: Records) -> int:
        return sum(len(entries) for entries in records.values())


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(3, rng=random.Random(13))) as it:
        it.create_topic(TOPIC, PARTITIONS, min_isr=2)
        it.call(lambda cluster, now: cluster.create_internal_topics(now))  # or closing takes long
        yield it
    gc.collect()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("client", [KafkaPython, Confluent, Aiokafka])
def test_a_consumer_follows_the_log_wherever_it_goes(
    server: ClusterServer, client: type[Consuming]
) -> None:
    with (
        KafkaProducer(bootstrap_servers=server.bootstrap, metrics_registry=None) as producer,
        closing(client(server.bootstrap)) as consumer,
    ):
        story = Story(server, producer, consumer)
        story.goes_on("the beginning")
        server.move_leader(TOPIC, 0, to=2)
        story.goes_on("a move")
        victim, _ = server.leader(TOPIC, 2)
        server.kill(victim)
        story.goes_on("a death")
        server.start(victim)
        story.goes_on("a return")
        silent, _ = server.leader(TOPIC, 0)
        server.pause(silent)
        story.goes_on("a silence")
        server.resume(silent)
        story.goes_on("a wake-up")
        until(lambda: agree(server, TOPIC), "who was silent is in sync again")
        server.move_leader(TOPIC, 0, to=silent)
        story.goes_on("its return to the lead")
