"""The mock judged by clients that we did not write.

Each of kafka-python, confluent-kafka and aiokafka writes 10 000 records to six partitions while an
answer is lost, a leader moves, one is killed and comes back, one falls silent and wakes. Then each
of them reads the topic. Every record must be there once, in order, at the acknowledged offset.

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
from outlast.testing.coordinator_log import INTERNAL
from outlast.testing.faults import CutAfter
from outlast.testing.server import ClusterServer
from tests.mock.foreign_readers import READERS, agree
from tests.real.kafka_cluster import until

TOPIC = "orders"
PARTITIONS = 6
RECORDS = 10_000
SLICE = 250  # records handed over between two looks at the story
WINDOW = 1_000  # records that may be unacknowledged
PATIENCE_S = 15
TIMEOUT_MS = 1_000  # after which a producer gives a silent broker up; the default is 30 to 60 s

# kafka-python leaves the sockets of refused connects to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

Read = dict[int, list[tuple[int, bytes]]]  # partition → (offset, value) in the order they came


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(3, rng=random.Random(11))) as it:
        it.create_topic(TOPIC, PARTITIONS, replication=3, min_isr=2)
        it.call(lambda cluster, now: cluster.create_internal_topics(now))  # or closing takes long
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
            bootstrap_servers=bootstrap,
            reconnect_backoff_max_ms=500,
            request_timeout_ms=TIMEOUT_MS,
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
                "socket.timeout.ms": TIMEOUT_MS,
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
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, request_timeout_ms=TIMEOUT_MS
        )
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


# --- the row of three by three ------------------------------------------------------------------


class Events:
    """What befalls the cluster while records are sent: an answer is lost, a leader moves, another
    is killed and comes back, a third falls silent and wakes.
    """

    def __init__(self, server: ClusterServer) -> None:
        self._server = server
        self._victim = self._silent = -1
        steps = [self._cut, self._move, self._kill, self._start, self._pause, self._resume]
        self._at = {
            RECORDS * number // 8: step for number, step in enumerate(steps, start=1)
        }  # 1/8: the first, 2/8: the second, and so on

    def before(self, record: int) -> None:
        """Do what is to happen before this record is sent."""
        step = self._at.pop(record, None)
        if step is not None:
            step()

    def all_over(self) -> bool:
        return not self._at

    def _cut(self) -> None:
        self._server.call(lambda cluster, _now: cluster.faults.append(CutAfter(api=0, times=1)))

    def _move(self) -> None:
        leader, _ = self._server.leader(TOPIC, 0)
        self._server.move_leader(TOPIC, 0, to=leader % 3 + 1)

    def _kill(self) -> None:
        self._victim, _ = self._server.leader(TOPIC, 1)
        self._server.kill(self._victim)

    def _start(self) -> None:
        self._server.start(self._victim)
        until(lambda: agree(self._server, TOPIC), "the killed node is in sync again")

    def _pause(self) -> None:
        self._silent, _ = self._server.leader(TOPIC, 2)
        self._server.pause(self._silent)

    def _resume(self) -> None:
        self._server.resume(self._silent)


def produce_through(events: Events, producer: Producing) -> Read:
    """Returns what must be in the topic: every value at its acknowledged offset."""
    values = [(number % PARTITIONS, b"record %d" % number) for number in range(RECORDS)]
    for begin in range(0, RECORDS, SLICE):
        events.before(begin)
        producer.send(values[begin : begin + SLICE])
        producer.settle(SLICE if begin == 0 else max(0, begin + SLICE - WINDOW))
    producer.settle(RECORDS)
    assert events.all_over()
    expected: Read = {number: [] for number in range(PARTITIONS)}
    for (partition, value), offset in zip(values, producer.offsets, strict=True):
        expected[partition].append((offset, value))
    return expected


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("client", [KafkaPythonProducing, ConfluentProducing, AiokafkaProducing])
def test_records_arrive_once_and_in_order_whatever_happens(
    server: ClusterServer, client: type[Producing]
) -> None:
    with closing(client(server.bootstrap)) as producer:
        expected = produce_through(Events(server), producer)
    for partition, records in expected.items():
        assert [offset for offset, _ in records] == list(range(len(records))), partition
    until(lambda: agree(server, TOPIC), "the cluster is calm")
    for reader in READERS:
        found = reader(server.bootstrap, TOPIC, PARTITIONS)
        assert {p: [(s.offset, s.value) for s in seen] for p, seen in found.items()} == expected


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
    assert set(made) == {"made", *INTERNAL}
    partitions = made["made"].partitions
    assert [len(state.replicas) for state in partitions.values()] == [2, 2, 2, 2]
