"""The mock's transactions judged by clients that we did not write.

kafka-python and confluent-kafka write in transactions: they commit, abort, fence one another, take
offsets along, lose a coordinator, a leader. kafka-python and confluent-kafka read committed data.
Whoever writes and whoever reads, what is seen is each committed transaction whole, and no other.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import closing
from time import monotonic
from typing import Any, ClassVar, Protocol

import confluent_kafka
import kafka
import kafka.errors
import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition

from outlast.testing.cluster import MockCluster
from outlast.testing.coordinator_log import TRANSACTIONS, partition_of
from outlast.testing.server import ClusterServer
from tests.real.kafka_cluster import until

IN, OUT = "in", "out"
ID = "shop"
LAST = b"last"
PATIENCE_S = 15.0

# kafka-python leaves the sockets of refused connects to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(3, rng=random.Random(5))) as it:
        it.create_topic(OUT, 2, replication=3, min_isr=2)
        it.create_topic(IN, 1, replication=3, min_isr=2)
        it.call(lambda cluster, now: cluster.create_internal_topics(now))  # or closing takes long
        yield it
    gc.collect()  # what a client left behind is its own affair, not that of the tests that follow


# --- two producers ------------------------------------------------------------------------------


class Producing(Protocol):
    Fenced: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, bootstrap: str) -> None:
        """Take the transactional id over."""

    def begin(self) -> None: ...

    def send(self, value: bytes, partition: int = 0) -> None: ...

    def flush(self) -> None:
        """Wait until all is acknowledged."""

    def take(self, group: str, offset: int) -> None:
        """Take a group's offset in partition 0 of topic `in` along."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class KafkaPython:
    # What it makes of 47 is a state that it cannot commit from.
    Fenced: ClassVar[tuple[type[Exception], ...]] = (kafka.errors.KafkaError,)

    def __init__(self, bootstrap: str) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=ID,
            request_timeout_ms=1_000,
            reconnect_backoff_max_ms=200,
            max_block_ms=PATIENCE_S * 1000,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, value: bytes, partition: int = 0) -> None:
        self._producer.send(OUT, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(PATIENCE_S)

    def take(self, group: str, offset: int) -> None:
        offsets = {TopicPartition(IN, 0): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


class Confluent:
    Fenced: ClassVar[tuple[type[Exception], ...]] = (confluent_kafka.KafkaException,)

    def __init__(self, bootstrap: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": ID,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "linger.ms": 0,
        }
        self._producer = confluent_kafka.Producer(settings)
        self._producer.init_transactions(PATIENCE_S)
        # An offset is committed by what a consumer says of its group.
        self._consumers: list[confluent_kafka.Consumer] = []
        self._bootstrap = bootstrap

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, value: bytes, partition: int = 0) -> None:
        self._producer.produce(OUT, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(PATIENCE_S)

    def take(self, group: str, offset: int) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": group}
        )
        self._consumers.append(consumer)
        offsets = [confluent_kafka.TopicPartition(IN, 0, offset)]
        self._producer.send_offsets_to_transaction(
            offsets, consumer.consumer_group_metadata(), PATIENCE_S
        )

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()
        del self._producer  # it has no close


PRODUCERS: list[type[Producing]] = [KafkaPython, Confluent]
parametrized = pytest.mark.parametrize("kind", PRODUCERS, ids=lambda kind: kind.__name__)


# --- two readers --------------------------------------------------------------------------------


def read(server: ClusterServer, isolation: str = "read_committed") -> list[list[bytes]]:
    """The values of topic `out` by partition, up to `last` in both, as kafka-python reads them."""
    partitions = [TopicPartition(OUT, index) for index in range(2)]
    found: list[list[bytes]] = [[], []]
    with closing(
        kafka.KafkaConsumer(
            bootstrap_servers=server.bootstrap,
            isolation_level=isolation,
            fetch_max_wait_ms=50,
        )
    ) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        deadline = monotonic() + PATIENCE_S
        while not all(LAST in values for values in found):
            assert monotonic() < deadline, found
            for records in consumer.poll(timeout_ms=50).values():
                for record in records:
                    found[record.partition].append(record.value)
    return found


def read_by_confluent(server: ClusterServer) -> list[list[bytes]]:
    """The same by confluent-kafka, which is asked for committed data."""
    settings = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 50,
        "check.crcs": True,
    }
    found: list[list[bytes]] = [[], []]
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(OUT, index, 0) for index in range(2)])
        deadline = monotonic() + PATIENCE_S
        while not all(LAST in values for values in found):
            assert monotonic() < deadline, found
            for message in consumer.consume(100, timeout=0.05):
                assert message.error() is None, message.error()
                partition = message.partition()
                assert partition is not None
                found[partition].append(message.value())
    return found


def committed_offset(server: ClusterServer, group: str) -> int | None:
    partition = TopicPartition(IN, 0)
    with closing(
        kafka.KafkaConsumer(bootstrap_servers=server.bootstrap, group_id=group)
    ) as consumer:
        consumer.assign([partition])
        found: Any = consumer.committed(partition)
        return found if found is None else int(found)


def coordinator(server: ClusterServer) -> int:
    def look(cluster: MockCluster, _now: float) -> int:
        partitions = cluster.topics[TRANSACTIONS].partitions
        return partitions[partition_of(ID, len(partitions))].leader

    return server.call(look)


# --- the tests ----------------------------------------------------------------------------------


def finish(producer: Producing) -> None:
    """A transaction that readers wait for."""
    producer.begin()
    producer.send(LAST)
    producer.send(LAST, 1)
    producer.commit()


@parametrized
def test_commit_and_abort(server: ClusterServer, kind: type[Producing]) -> None:
    with closing(kind(server.bootstrap)) as producer:
        producer.begin()
        for number in range(4):
            producer.send(b"kept-%d" % number, number % 2)
        producer.commit()
        producer.begin()
        producer.send(b"dropped")
        producer.send(b"dropped", 1)
        producer.flush()
        producer.abort()
        finish(producer)
    committed = [[b"kept-0", b"kept-2", LAST], [b"kept-1", b"kept-3", LAST]]
    assert read(server) == read_by_confluent(server) == committed
    everything = [
        [b"kept-0", b"kept-2", b"dropped", LAST],
        [b"kept-1", b"kept-3", b"dropped", LAST],
    ]
    assert read(server, "read_uncommitted") == everything


@parametrized
def test_a_second_producer_fences_the_first(server: ClusterServer, kind: type[Producing]) -> None:
    with closing(kind(server.bootstrap)) as old:
        old.begin()
        old.send(b"lost")
        old.flush()
        with closing(kind(server.bootstrap)) as new:
            old.send(b"lost too")
            with pytest.raises(old.Fenced):
                old.commit()
            finish(new)
    assert read(server) == read_by_confluent(server) == [[LAST], [LAST]]


@parametrized
def test_consume_transform_produce(server: ClusterServer, kind: type[Producing]) -> None:
    with closing(kind(server.bootstrap)) as producer:
        producer.begin()
        producer.send(b"one")
        producer.take("group", 1)
        producer.commit()
        assert committed_offset(server, "group") == 1
        producer.begin()
        producer.send(b"dropped")
        producer.take("group", 2)
        producer.abort()
        assert committed_offset(server, "group") == 1
        producer.begin()
        producer.take("group", 3)
        producer.commit()
        assert committed_offset(server, "group") == 3
        finish(producer)
    assert read(server) == [[b"one", LAST], [LAST]]


def test_the_coordinator_dies(server: ClusterServer) -> None:
    """Not with kafka-python, which loses its EndTxn when it cannot connect, and waits for ever."""
    with closing(Confluent(server.bootstrap)) as producer:
        producer.begin()
        producer.send(b"one")
        producer.flush()
        victim = coordinator(server)
        server.kill(victim)
        producer.send(b"two")
        producer.commit()
        assert coordinator(server) != victim
        finish(producer)
    assert read(server) == [[b"one", b"two", LAST], [LAST]]


@parametrized
def test_the_coordinator_moves(server: ClusterServer, kind: type[Producing]) -> None:
    with closing(kind(server.bootstrap)) as producer:
        producer.begin()
        producer.send(b"one")
        to = coordinator(server) % 3 + 1
        server.move_leader(TRANSACTIONS, partition_of(ID, 3), to)
        producer.send(b"two", 1)
        producer.commit()
        server.move_leader(OUT, 0, 2)
        finish(producer)
    until(lambda: coordinator(server) == to, "it has moved")
    assert read(server) == [[b"one", LAST], [b"two", LAST]]
