"""`outlast.testing.DeliveryLedger`: what it finds, and what it must not find."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pytest

import outlast
from outlast.testing import DeliveryLedger, Error, MockCluster, SentRecord, Slow, SlowFollower
from outlast.testing.delivery import HEADER

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


class Record(NamedTuple):
    partition: int
    offset: int
    headers: Sequence[tuple[str, bytes | None]]


class World:
    """A ledger and logs that a test writes by hand."""

    def __init__(self) -> None:
        self.ledger = DeliveryLedger()
        self.log: list[Record] = []
        self.headers: dict[int, tuple[str, bytes]] = {}

    def call(self) -> SentRecord:
        record, header = self.ledger.sending("t", partition=0)
        self.headers[record.number] = header
        return record

    def send(self) -> SentRecord:
        record = self.call()
        self.ledger.taken(record)
        return record

    def append(self, record: SentRecord, partition: int = 0) -> int:
        offset = len(self.log)
        self.log.append(Record(partition, offset, [self.headers[record.number]]))
        return offset

    def deliver(self, *records: SentRecord) -> None:
        for record in records:
            self.ledger.acked(record, 0, self.append(record))

    def verdict(self) -> Any:
        return self.ledger.verdict(lambda _topic: self.log, timeout_s=0)


@pytest.fixture
def world() -> World:
    return World()


def found(verdict: Any) -> dict[str, list[int]]:
    kinds = ("lost", "duplicated", "reordered", "misplaced", "contradicted", "unsettled")
    return {
        kind: [record.number for record in getattr(verdict, kind)]
        for kind in kinds
        if getattr(verdict, kind)
    }


def test_what_is_as_it_was_told_is_good(world: World) -> None:
    world.deliver(world.send(), world.send())
    world.ledger.failed(world.send(), TimeoutError("late"))
    verdict = world.verdict()
    assert verdict
    assert str(verdict) == "sent 3 · acked 2 · failed 1; lost 0 · duplicated 0 · reordered 0"


def test_an_acknowledged_record_in_no_log_is_lost(world: World) -> None:
    world.deliver(world.send(), world.send())
    del world.log[0]
    verdict = world.verdict()
    assert not verdict
    assert found(verdict) == {"lost": [0]}
    assert "lost 1" in str(verdict)
    assert "  lost: record 0 (t-0, key None, acked at offset 0)" in str(verdict)


def test_two_copies_are_a_duplicate_also_of_a_record_that_failed(world: World) -> None:
    first, second = world.send(), world.send()
    world.deliver(first)
    world.append(first)
    world.append(second)
    world.append(second)
    world.ledger.failed(second, TimeoutError())
    assert found(world.verdict()) == {"duplicated": [0, 1]}


def test_a_record_behind_a_later_one_is_reordered(world: World) -> None:
    first, second, third = world.send(), world.send(), world.send()
    world.deliver(second, first, third)
    assert found(world.verdict()) == {"reordered": [0]}


@pytest.mark.parametrize("returned", [(0, 1), (1, 0)])
@pytest.mark.parametrize("logged", [(0, 1), (1, 0)])
def test_sends_that_overlap_have_no_order(
    world: World, returned: tuple[int, int], logged: tuple[int, int]
) -> None:
    calls = [world.call(), world.call()]
    for number in returned:
        world.ledger.taken(calls[number])
    world.deliver(*(calls[number] for number in logged))
    assert world.verdict()


def test_each_producer_has_its_own_order(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    servers = cluster.bootstrap_servers
    slow = ledger.watch(outlast.KafkaProducer(bootstrap_servers=servers, linger_ms=60_000))
    quick = ledger.watch(outlast.KafkaProducer(bootstrap_servers=servers))
    slow.send("orders", b"first", partition=0)
    quick.send("orders", b"second", partition=0).get(timeout=20)
    slow.close()
    quick.close()
    assert [r.value for r in cluster.records("orders", 0)] == [b"second", b"first"]
    assert ledger.verdict(cluster)


def test_each_partition_has_its_own_order(world: World) -> None:
    first, second = world.send(), world.send()
    world.ledger.acked(second, 1, world.append(second, 1))
    world.ledger.acked(first, 0, world.append(first, 0))
    assert world.verdict()


@pytest.mark.parametrize(("partition", "offset"), [(0, 7), (1, 0)])
def test_a_record_at_another_place_is_misplaced(world: World, partition: int, offset: int) -> None:
    record = world.send()
    world.append(record)
    world.ledger.acked(record, partition, offset)
    assert found(world.verdict()) == {"misplaced": [0]}


def test_an_offset_that_was_not_told_is_no_other_place(world: World) -> None:
    record = world.send()
    world.append(record)
    world.ledger.acked(record, 0, -1)
    assert world.verdict()


def test_what_was_told_not_to_be_written_must_not_be_there(world: World) -> None:
    class ToldError(Exception):
        def __init__(self, outcome: outlast.Outcome) -> None:
            self.outcome = outcome

    refused, never, not_accepted, unknown, silent = (world.send() for _ in range(5))
    world.ledger.refused(refused, BufferError("full"))
    world.ledger.failed(never, ToldError(outlast.Outcome.NEVER_SENT))
    world.ledger.failed(not_accepted, ToldError(outlast.Outcome.NOT_ACCEPTED))
    world.ledger.failed(unknown, ToldError(outlast.Outcome.UNKNOWN))
    for record in (refused, never, not_accepted, unknown, silent):
        world.append(record)
    assert found(world.verdict()) == {"contradicted": [0, 1, 2], "unsettled": [4]}


def test_records_of_others_are_passed_over(world: World) -> None:
    lost = world.send()
    world.ledger.acked(lost, 0, 1)
    other, header = DeliveryLedger().sending("t")
    world.log += [Record(0, 0, []), Record(0, 1, [header]), Record(0, 2, [(HEADER, None)])]
    assert other.number == lost.number
    assert found(world.verdict()) == {"lost": [lost.number]}


def test_the_first_word_counts(world: World) -> None:
    record = world.send()
    world.deliver(record)
    world.ledger.failed(record, TimeoutError())
    assert world.ledger.acknowledged() == [record]
    assert world.ledger.failures() == []


def test_many_findings_are_cut_short(world: World) -> None:
    for _ in range(30):
        world.send()
    lines = str(world.verdict()).splitlines()
    assert len(lines) == 12
    assert lines[-1] == "  unsettled: 20 more"


def test_what_cannot_be_watched_or_read_from_is_told() -> None:
    ledger = DeliveryLedger()
    with pytest.raises(TypeError, match=r"neither send\(\) nor produce\(\)"):
        ledger.watch(object())
    with pytest.raises(TypeError, match="cannot read from 7"):
        ledger.verdict(7)

    class Awaited:
        async def produce(self) -> None: ...

    with pytest.raises(TypeError, match="without await"):
        ledger.watch(Awaited())
    with MockCluster() as cluster:
        producer = ledger.watch(outlast.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers))
        with producer, pytest.raises(TypeError, match="watched already"):
            ledger.watch(producer)


# --- real producers and consumers -----------------------------------------------------------------

COUNT = 60
SAFE = {"enable.idempotence": True}  # else it doubles and swaps records, and the ledger tells it


def send_all(producer: Any) -> None:
    for number in range(COUNT):
        producer.send("orders", b"%d" % number, partition=number % 2, headers=[("mine", b"1")])
    producer.flush()


def by_outlast(bootstrap: str, ledger: DeliveryLedger) -> None:
    with ledger.watch(outlast.KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        send_all(producer)


def by_kafka_python(bootstrap: str, ledger: DeliveryLedger) -> None:
    producer = ledger.watch(kafka.KafkaProducer(bootstrap_servers=bootstrap))
    send_all(producer)
    producer.close()


def by_confluent(bootstrap: str, ledger: DeliveryLedger) -> None:
    told: list[int] = []
    producer = ledger.watch(confluent_kafka.Producer({"bootstrap.servers": bootstrap, **SAFE}))
    for number in range(COUNT):
        producer.produce(
            "orders",
            b"%d" % number,
            partition=number % 2,
            headers={"mine": b"1"},
            on_delivery=lambda _error, message: told.append(message.offset()),
        )
    assert len(producer) == COUNT
    assert producer.flush(20) == 0
    assert len(told) == COUNT


def by_confluent_serializing(bootstrap: str, ledger: DeliveryLedger) -> None:
    def encode(number: int, _context: object) -> bytes:
        return b"%d" % number

    settings = {"bootstrap.servers": bootstrap, **SAFE, "value.serializer": encode}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is told to be experimental, in a warning
        producer = ledger.watch(confluent_kafka.SerializingProducer(settings))
    for number in range(COUNT):
        producer.produce("orders", b"key", number, number % 2, headers=[("mine", b"1")])
    assert producer.flush(20) == 0


def by_aiokafka(bootstrap: str, ledger: DeliveryLedger) -> None:
    async def run() -> None:
        aio = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        async with ledger.watch(aio) as producer:
            for number in range(COUNT - 1):
                await producer.send(
                    "orders", b"%d" % number, partition=number % 2, headers=[("mine", b"1")]
                )
            await producer.send_and_wait(
                "orders", b"%d" % (COUNT - 1), partition=1, headers=[("mine", b"1")]
            )
            await producer.flush()

    asyncio.run(run())


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(topics={"orders": 2}) as it:
        yield it


@pytest.mark.parametrize(
    "write",
    [by_outlast, by_kafka_python, by_confluent, by_confluent_serializing, by_aiokafka],
)
def test_producers_of_all_kinds_are_followed(
    cluster: MockCluster, write: Callable[[str, DeliveryLedger], None]
) -> None:
    ledger = DeliveryLedger()
    cluster.faults.append(Error(6, topic="orders", times=2))
    write(cluster.bootstrap_servers, ledger)
    verdict = ledger.verdict(cluster)
    assert verdict, verdict
    assert verdict.acked == COUNT
    record = cluster.records("orders", 1)[-1]
    assert record.value == b"%d" % (COUNT - 1)
    assert [name for name, _ in record.headers] == ["mine", HEADER]


def test_every_source_sees_what_the_cluster_sees(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    by_outlast(cluster.bootstrap_servers, ledger)
    servers = cluster.bootstrap_servers
    record, header = ledger.sending("orders", partition=0)
    with outlast.KafkaProducer(bootstrap_servers=servers) as producer:
        producer.send("orders", b"x", partition=0, headers=[header])
    ledger.refused(record, BufferError("not true"))
    theirs = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "judge"})
    ours = kafka.KafkaConsumer(bootstrap_servers=servers, group_id=None)
    for source in (cluster, servers, servers.split(","), ours, theirs):
        verdict = ledger.verdict(source)
        assert found(verdict) == {"contradicted": [COUNT]}, source
        assert verdict.acked == COUNT
    theirs.close()
    ours.close()


def test_acks_1_is_read_once_followers_have_it(cluster: MockCluster) -> None:
    late = SlowFollower(0.3)
    cluster.faults.append(late)
    ledger = DeliveryLedger()
    with ledger.watch(
        outlast.KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, acks=1, enable_idempotence=False
        )
    ) as producer:
        producer.send("orders", b"x", partition=0).get(timeout=20)
        assert not ledger.verdict(cluster, timeout_s=0)
        assert ledger.verdict(cluster)


def test_a_send_that_raises_is_refused_and_raises(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    producer = ledger.watch(outlast.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers))
    producer.close()
    with pytest.raises(outlast.ClosedError):
        producer.send("orders", b"x")
    (record,) = ledger.failures()
    assert record.state == "refused"
    assert ledger.verdict(cluster)


def test_a_failed_record_keeps_its_error(cluster: MockCluster) -> None:
    cluster.faults.append(Error(29, topic="orders"))
    ledger = DeliveryLedger()
    with ledger.watch(
        outlast.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    ) as producer:
        producer.send("orders", b"x", partition=0)
        producer.flush()
    (record,) = ledger.failures()
    assert isinstance(record.error, outlast.DeliveryError)
    assert record.error.outcome is outlast.Outcome.NOT_ACCEPTED
    verdict = ledger.verdict(cluster)
    assert verdict
    assert verdict.failed == 1


def test_the_verdict_waits_for_what_is_unsettled(cluster: MockCluster) -> None:
    cluster.faults.append(Slow(0.3, api=0, times=1))
    ledger = DeliveryLedger()
    with ledger.watch(
        outlast.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    ) as producer:
        producer.send("orders", b"x", partition=0)
        assert len(ledger.unsettled()) == 1
        verdict = ledger.verdict(cluster)
    assert verdict, verdict
    assert verdict.acked == 1


def test_a_topic_that_was_deleted_has_lost_its_records(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    by_outlast(cluster.bootstrap_servers, ledger)
    cluster.delete_topic("orders")
    assert len(ledger.verdict(cluster, timeout_s=0).lost) == COUNT
