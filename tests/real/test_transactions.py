"""Consume, transform, produce on a real Kafka that loses nodes: each record comes out exactly once.

An application reads `in`, writes what it makes of each record to `out`, and commits how far it read
with the same transaction. A node is struck in the middle of one; later the application reads on
from the offsets that the group has. Then `out` must hold, for who reads committed data, every
record of `in` once and in order, and nothing of a transaction that was aborted.

Which node coordinates a transactional id or a group follows from the name: names are picked so that
the struck node has exactly the parts that a test is about. What the consumer reads from is spared,
as it is not ours.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from outlast import Cause, GapOutcome, KafkaProducer
from outlast.testing.coordinator_log import OFFSETS, TRANSACTIONS, partition_of
from tests.real import committed as committed_reads
from tests.real.kafka_cluster import RealCluster, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

PARTITIONS = 3
RECORDS = 80  # of each partition of `in` that are to come out
AT_ONCE = 30  # records of a transaction
READ_S = 30.0
ABORTED = b"never"

Offsets = dict[TopicPartition, int]


# --- reading, by kafka-python's consumer ----------------------------------------------------------


@contextmanager
def reader(
    bootstrap: Sequence[str], topic: str, group: str | None = None, committed: bool = True
) -> Iterator[KafkaConsumer]:
    """A consumer of all of the topic; of a group it begins where that is."""
    with closing(
        committed_reads.consumer(bootstrap, topic, group, committed=committed)
    ) as consumer:
        yield consumer


def some(consumer: KafkaConsumer, until_: Offsets, records_max: int) -> list[Any]:
    """The next records before those offsets; none if there are none."""
    deadline = time.monotonic() + READ_S
    while any(consumer.position(place) < end for place, end in until_.items()):
        assert time.monotonic() < deadline, f"read to {positions(consumer)} of {until_}"
        if found := consumer.poll(timeout_ms=200, max_records=records_max):
            return list(itertools.chain.from_iterable(found.values()))
    return []


def positions(consumer: KafkaConsumer) -> Offsets:
    return {place: consumer.position(place) for place in consumer.assignment()}


def seen(bootstrap: Sequence[str], topic: str) -> list[list[bytes]]:
    """All that a reader of committed data sees, by partition."""
    until_ = committed_reads.ends(bootstrap, topic)
    values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    with reader(bootstrap, topic) as consumer:
        while records := some(consumer, until_, 500):
            for record in records:
                values[record.partition].append(record.value)
    return values


def group_offsets(consumer: KafkaConsumer) -> Offsets:
    """What is committed for the consumer's group; 0 where nothing is."""
    return {place: consumer.committed(place) or 0 for place in consumer.assignment()}


# --- the application ------------------------------------------------------------------------------


class Shop:
    """Reads `in`, writes `out`, and commits offsets with what it wrote."""

    def __init__(self, producer: KafkaProducer, consumer: KafkaConsumer, out: str) -> None:
        self.producer = producer
        self.consumer = consumer
        self.committed: Offsets = {}  # with the last transaction that was
        self._out = out
        self._ends: Offsets = consumer.end_offsets(list(consumer.assignment()))

    def transact(
        self,
        *,
        commits: bool = True,
        sending: Callable[[], None] | None = None,
        ending: Callable[[], None] | None = None,
    ) -> bool:
        """One transaction; False if nothing was left to read."""
        records = some(self.consumer, self._ends, AT_ONCE)
        if not records:
            return False
        self.producer.begin_transaction()
        half = len(records) // 2
        offsets = self._write(records[:half], commits)
        if sending is not None:
            self.producer.flush()
            sending()
        offsets |= self._write(records[half:], commits)
        if ending is not None or not commits:
            self.producer.flush()
        if ending is not None:
            ending()
        if commits:
            self.producer.commit_transaction()
            self.committed |= offsets
        else:
            self.producer.abort_transaction()
            self.rewind()
        return True

    def rewind(self) -> None:
        """Read on from where the group is."""
        for place, offset in group_offsets(self.consumer).items():
            self.consumer.seek(place, offset)

    def _write(self, records: Sequence[Any], commits: bool) -> Offsets:
        """Write what is made of the records, and commit how far that is."""
        for record in records:
            value = b"made of %s" % record.value if commits else ABORTED
            self.producer.send(self._out, value, partition=record.partition)
        offsets = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
        self.producer.send_offsets_to_transaction(
            {place: OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()},
            self.consumer.group_metadata(),
        )
        return offsets


def fill(bootstrap: Sequence[str], topic: str) -> None:
    """Write `in`: two transactions, and one between them that is aborted."""
    with KafkaProducer(bootstrap_servers=list(bootstrap), transactional_id=topic) as producer:
        producer.init_transactions()
        for begin, commits in ((0, True), (0, False), (RECORDS // 2, True)):
            producer.begin_transaction()
            for n in range(RECORDS // 2):
                for partition in range(PARTITIONS):
                    value = b"%d" % (begin + n) if commits else ABORTED
                    producer.send(topic, value, partition=partition)
            if commits:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()


WANTED = [[b"made of %d" % n for n in range(RECORDS)]] * PARTITIONS


# --- who is lost ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strike:
    """What happens to a node, what it is, and when."""

    signal: str
    coordinates: bool  # the transactional id; else it leads `out`, and coordinates the group
    moment: str


STRIKES = {
    "the coordinator is killed": Strike("sigkill", True, "sending"),
    "leader and group coordinator are killed": Strike("sigkill", False, "sending"),
    "the coordinator is silent": Strike("sigstop", True, "ending"),
}


@pytest.fixture
def level(cluster: RealCluster) -> RealCluster:
    """The cluster, with the internal topics' leaderships on all its nodes."""
    fill_first = f"warm-up-{time.monotonic_ns()}"
    with (
        KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=fill_first) as producer,
        closing(KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id="any")) as consumer,
    ):
        producer.init_transactions()
        consumer.committed(TopicPartition("any", 0))
    for topic in (TRANSACTIONS, OFFSETS):
        cluster.spread_leaders(topic)
        until(lambda topic=topic: len(_leaders(cluster, topic)) == 3, f"three lead {topic}")
    return cluster


def _leaders(cluster: RealCluster, topic: str) -> dict[int, int]:
    """Node → a partition that it leads."""
    return {view.leader: n for n, view in cluster.topic(topic).partitions.items()}


def named(cluster: RealCluster, topic: str, word: str, node: int) -> str:
    """A name with that word in it that the node coordinates."""
    leaders = _leaders(cluster, topic)
    names = (f"{word}-{n}" for n in itertools.count())
    return next(name for name in names if partition_of(name, len(leaders)) == leaders[node])


@pytest.mark.parametrize("case", STRIKES)
def test_each_record_comes_out_once_whoever_is_lost(level: RealCluster, case: str) -> None:
    strike, tag = STRIKES[case], f"{list(STRIKES).index(case)}"
    victim, other, spared = 1, 2, 3
    coordinator, leader = (victim, other) if strike.coordinates else (other, victim)
    source, out = f"in-{tag}", f"out-{tag}"
    replicas = {node: [node, *(n for n in (1, 2, 3) if n != node)] for node in (1, 2, 3)}
    level.create_topic(source, assignment=dict.fromkeys(range(PARTITIONS), replicas[spared]))
    level.create_topic(out, assignment=dict.fromkeys(range(PARTITIONS), replicas[leader]))
    transactional_id = named(level, TRANSACTIONS, f"shop-{tag}", coordinator)
    group = named(level, OFFSETS, f"readers-{tag}", leader)
    fill(level.bootstrap, source)
    spared_bootstrap = [f"127.0.0.1:{level.nodes[node].port}" for node in (other, spared)]
    with (
        KafkaProducer(
            bootstrap_servers=level.bootstrap, transactional_id=transactional_id
        ) as producer,
        reader(spared_bootstrap, source, group) as consumer,
    ):
        producer.init_transactions()
        shop = Shop(producer, consumer, out)
        shop.transact()
        shop.transact(commits=False)
        struck_s: list[float] = []

        def strike_now() -> None:
            level.wait_ready()
            struck_s.append(time.monotonic())
            getattr(level, strike.signal)(victim)

        shop.transact(**{strike.moment: strike_now})
        print(f"\n{case}: the transaction took {time.monotonic() - struck_s[0]:.1f} s more")
        gaps = [gap for gap in producer.gaps() if gap.begin_s + gap.duration_s > struck_s[0]]
        shop.transact(commits=False)
        shop.transact()
        level.sigcont(victim) if strike.signal == "sigstop" else level.start(victim)
        shop.rewind()
        while shop.transact():
            pass
    assert seen(spared_bootstrap, out) == WANTED
    with reader(spared_bootstrap, source, group) as consumer:
        assert group_offsets(consumer) == shop.committed
        assert some(consumer, committed_reads.ends(spared_bootstrap, source), AT_ONCE) == []
    unit = f"txn:{transactional_id}"
    assert {gap.topic for gap in gaps} == ({unit} if strike.coordinates else {unit, out})
    assert {gap.outcome for gap in gaps} == {GapOutcome.ABSORBED}
    assert (gaps[0].cause is Cause.SILENT) == (strike.signal == "sigstop")


# --- two of one id, and one that is late ----------------------------------------------------------


def test_the_older_of_two_is_fenced_and_nothing_of_it_is_seen(cluster: RealCluster) -> None:
    topic, place = "fenced", TopicPartition("fenced", 0)
    cluster.create_topic(topic, PARTITIONS)
    with (
        KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="twice") as older,
        KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="twice") as newer,
    ):
        older.init_transactions()
        older.begin_transaction()
        older.send(topic, b"old", partition=0).get(timeout=30)
        older.send_offsets_to_transaction({place: OffsetAndMetadata(5, "", -1)}, "fenced")
        newer.init_transactions()
        newer.begin_transaction()  # the older one's end must not be this one's
        newer.send(topic, b"new", partition=0).get(timeout=30)
        with pytest.raises(ProducerFencedError):
            older.commit_transaction()
        for call in (older.begin_transaction, lambda: older.send(topic, b"late", partition=0)):
            with pytest.raises(ProducerFencedError):
                call()
        newer.send_offsets_to_transaction({place: OffsetAndMetadata(7, "", -1)}, "fenced")
        newer.commit_transaction()
    assert seen(cluster.bootstrap, topic) == [[b"new"], [], []]
    with reader(cluster.bootstrap, topic, "fenced") as consumer:
        assert consumer.committed(place) == 7


def test_a_transaction_that_outlives_its_time_is_aborted_and_the_producer_goes_on(
    cluster: RealCluster,
) -> None:
    topic, place = "late", TopicPartition("late", 0)
    cluster.create_topic(topic, PARTITIONS)
    with KafkaProducer(
        bootstrap_servers=cluster.bootstrap, transactional_id="late", transaction_timeout_ms=1_000
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"slow", partition=0).get(timeout=30)
        with reader(cluster.bootstrap, topic, committed=False) as consumer:
            until(lambda: consumer.end_offsets([place])[place] == 2, "its marker is written")
        with pytest.raises(KafkaError, match="transaction_timeout_ms=1000") as caught:
            producer.commit_transaction()
        assert not isinstance(caught.value, ProducerFencedError)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"quick", partition=0)
        producer.commit_transaction()
    assert seen(cluster.bootstrap, topic) == [[b"quick"], [], []]
