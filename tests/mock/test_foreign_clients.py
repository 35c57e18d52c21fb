"""The mock judged by clients that we did not write.

Each of kafka-python, confluent-kafka and aiokafka writes 10 000 records to six partitions while an
answer is lost, a leader moves and another is killed and comes back; then each of them reads the
topic. Every record must be there once, in order, at the offset that was acknowledged.

The load keeps clear of what these clients are known to get wrong: all are idempotent, the first
records of a partition are acknowledged before more follow (S11), and no partition is away for
anywhere near a delivery time-out.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from time import monotonic
from typing import Any, Protocol

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.admin
import kafka.errors
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka.admin import AdminClient, NewTopic

from outlast.testing.cluster import MockCluster
from outlast.testing.faults import CutAfter
from outlast.testing.server import ClusterServer

TOPIC = "orders"
PARTITIONS = 6
RECORDS = 10_000
SLICE = 250  # records handed over between two looks at the story
WINDOW = 1_000  # records that may be unacknowledged
PATIENCE_S = 15

# kafka-python leaves the sockets of refused connects to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

Read = dict[int, list[tuple[int, bytes]]]  # partition → (offset, value) in the order they came


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(3, rng=random.Random(11))) as it:
        it.create_topic(TOPIC, PARTITIONS, replication=3, min_isr=2)
        yield it
    gc.collect()  # what a client left behind is its own affair, not that of the tests that follow


# --- three producers ----------------------------------------------------------------------------


class Producing(Protocol):
    offsets: list[int]  # of each record, once acknowledged

    def __init__(self, bootstrap: str) -> None: ...

    def send(self, values: Sequence[tuple[int, bytes]]) -> None:
        """Hand over (partition, value) pairs."""

    def settle(self, count: int) -> None:
        """Wait until the first `count` records are acknowledged, and note their offsets."""

    def close(self) -> None: ...


class KafkaPythonProducing:
    def __init__(self, bootstrap: str) -> None:
        # Its reconnect back-off would else grow to 30 s on the dead node.
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, reconnect_backoff_max_ms=500
        )
        self._futures: list[Any] = []
        self.offsets: list[int] = []

    def send(self, values: Sequence[tuple[int, bytes]]) -> None:
        for partition, value in values:
            self._futures.append(self._producer.send(TOPIC, value, partition=partition))

    def settle(self, count: int) -> None:
        for future in self._futures[len(self.offsets) : count]:
            self.offsets.append(future.get(timeout=PATIENCE_S).offset)

    def close(self) -> None:
        self._producer.close(timeout=PATIENCE_S)


class ConfluentProducing:
    def __init__(self, bootstrap: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._results: list[int | None] = []
        self.offsets: list[int] = []

    def send(self, values: Sequence[tuple[int, bytes]]) -> None:
        for partition, value in values:
            index = len(self._results)
            self._results.append(None)

            def delivered(error: Any, message: Any, index: int = index) -> None:
                assert error is None, error
                self._results[index] = message.offset()

            self._producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)

    def settle(self, count: int) -> None:
        deadline = monotonic() + PATIENCE_S
        while None in self._results[len(self.offsets) : count]:
            assert monotonic() < deadline, "not acknowledged"
            self._producer.poll(0.05)
        self.offsets += [o for o in self._results[len(self.offsets) : count] if o is not None]

    def close(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0


class AiokafkaProducing:
    def __init__(self, bootstrap: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._futures: list[asyncio.Future[Any]] = []
        self.offsets: list[int] = []
        self._producer = self._loop.run_until_complete(self._start(bootstrap))

    async def _start(self, bootstrap: str) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        return producer

    def send(self, values: Sequence[tuple[int, bytes]]) -> None:
        self._loop.run_until_complete(self._send(values))

    async def _send(self, values: Sequence[tuple[int, bytes]]) -> None:
        for partition, value in values:
            self._futures.append(await self._producer.send(TOPIC, value, partition=partition))

    def settle(self, count: int) -> None:
        waited = asyncio.wait_for(self._settle(count), PATIENCE_S)
        self._loop.run_until_complete(waited)

    async def _settle(self, count: int) -> None:
        for future in self._futures[len(self.offsets) : count]:
            self.offsets.append((await future).offset)

    def close(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()


# --- three consumers ----------------------------------------------------------------------------


def read_with_kafka_python(bootstrap: str) -> Read:
    partitions = [kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    found: Read = {number: [] for number in range(PARTITIONS)}
    deadline = monotonic() + PATIENCE_S
    with closing(kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(p) < ends[p] for p in partitions):
            assert monotonic() < deadline, "kafka-python did not reach the end"
            for records in consumer.poll(timeout_ms=100).values():
                for record in records:
                    found[record.partition].append((record.offset, record.value))
    return found


def read_with_confluent(bootstrap: str) -> Read:
    settings = {"bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True}
    found: Read = {number: [] for number in range(PARTITIONS)}
    at_end: set[int] = set()
    deadline = monotonic() + PATIENCE_S
    with closing(confluent_kafka.Consumer({**settings, "enable.auto.commit": False})) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
        while len(at_end) < PARTITIONS:
            assert monotonic() < deadline, "confluent-kafka did not reach the end"
            for message in consumer.consume(1_000, timeout=0.1):
                if message.error() is None:
                    found[message.partition()].append((message.offset(), message.value()))
                else:
                    assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                    at_end.add(message.partition())
    return found


def read_with_aiokafka(bootstrap: str) -> Read:
    async def read() -> Read:
        partitions = [aiokafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        found: Read = {number: [] for number in range(PARTITIONS)}
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign(partitions)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(partitions)
            while any([await consumer.position(p) < ends[p] for p in partitions]):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        found[record.partition].append((record.offset, record.value))
        return found

    return asyncio.run(asyncio.wait_for(read(), PATIENCE_S))


# --- the row of three by three ------------------------------------------------------------------


def produce_through_a_move_and_a_kill(server: ClusterServer, producer: Producing) -> Read:
    """Returns what must be in the topic: every value at its acknowledged offset."""
    values = [(number % PARTITIONS, b"record %d" % number) for number in range(RECORDS)]
    victim = -1
    for begin in range(0, RECORDS, SLICE):
        if begin == RECORDS // 8:
            server.call(lambda cluster, _now: cluster.faults.append(CutAfter(api=0, times=1)))
        elif begin == RECORDS // 4:
            leader, _ = server.leader(TOPIC, 0)
            server.move_leader(TOPIC, 0, to=leader % 3 + 1)
        elif begin == RECORDS // 2:
            victim, _ = server.leader(TOPIC, 1)
            server.kill(victim)
        elif begin == RECORDS * 3 // 4:
            server.start(victim)
        producer.send(values[begin : begin + SLICE])
        producer.settle(SLICE if begin == 0 else max(0, begin + SLICE - WINDOW))
    producer.settle(RECORDS)
    expected: Read = {number: [] for number in range(PARTITIONS)}
    for (partition, value), offset in zip(values, producer.offsets, strict=True):
        expected[partition].append((offset, value))
    return expected


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("client", [KafkaPythonProducing, ConfluentProducing, AiokafkaProducing])
def test_records_arrive_once_and_in_order_through_a_move_and_a_kill(
    server: ClusterServer, client: type[Producing]
) -> None:
    with closing(client(server.bootstrap)) as producer:
        expected = produce_through_a_move_and_a_kill(server, producer)
    for partition, records in expected.items():
        assert [offset for offset, _ in records] == list(range(len(records))), partition
    assert read_with_kafka_python(server.bootstrap) == expected
    assert read_with_confluent(server.bootstrap) == expected
    assert read_with_aiokafka(server.bootstrap) == expected


# --- administration -----------------------------------------------------------------------------


def administer_with_kafka_python(bootstrap: str) -> None:
    with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.create_topics([kafka.admin.NewTopic("made", 4, 2)])
        assert len(admin.describe_cluster()["brokers"]) == 3
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics([kafka.admin.NewTopic("made", 4, 2)])
        admin.delete_topics([TOPIC])


def administer_with_confluent(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    make = [NewTopic("made", num_partitions=4, replication_factor=2)]
    admin.create_topics(make)["made"].result(PATIENCE_S)
    assert len(admin.describe_cluster().result(PATIENCE_S).nodes) == 3
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.create_topics(make)["made"].result(PATIENCE_S)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([TOPIC])[TOPIC].result(PATIENCE_S)


def administer_with_aiokafka(bootstrap: str) -> None:
    async def administer() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        make = [aiokafka.admin.NewTopic("made", 4, 2)]
        await admin.create_topics(make)
        assert len((await admin.describe_cluster())["brokers"]) == 3
        refused = await admin.create_topics(make)
        assert refused.topic_errors[0][1] == aiokafka.errors.TopicAlreadyExistsError.errno
        await admin.delete_topics([TOPIC])
        await admin.close()

    asyncio.run(asyncio.wait_for(administer(), PATIENCE_S))


@pytest.mark.parametrize(
    "administer",
    [administer_with_kafka_python, administer_with_confluent, administer_with_aiokafka],
)
def test_topics_are_made_and_deleted(
    server: ClusterServer, administer: Callable[[str], None]
) -> None:
    administer(server.bootstrap)
    made = server.call(lambda cluster, _now: dict(cluster.topics))
    assert list(made) == ["made"]
    partitions = made["made"].partitions
    assert [len(state.replicas) for state in partitions.values()] == [2, 2, 2, 2]
