"""`DeliveryLedger` with `send_many` and `send_async`: each record is followed, though those of one
call share a header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pytest
from kafka.serializer import Serializer

import outlast
from outlast.testing import DeliveryLedger, DeliveryVerdict, Error, MockCluster
from outlast.testing.delivery import HEADER

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

COUNT = 40


class Record(NamedTuple):
    partition: int
    offset: int
    headers: Any
    key: Any = None
    value: Any = None


Log = list[Record]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(topics={"orders": 2}) as it:
        yield it


def producer_of(cluster: MockCluster, **settings: Any) -> outlast.KafkaProducer:
    return outlast.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)


def log_of(cluster: MockCluster) -> Log:
    return [
        Record(partition, r.offset, r.headers, r.key, r.value)
        for partition in (0, 1)
        for r in cluster.records("orders", partition)
    ]


def judged(ledger: DeliveryLedger, log: Log) -> DeliveryVerdict:
    return ledger.verdict(lambda _topic: log, timeout_s=0)


def found(verdict: DeliveryVerdict) -> dict[str, list[int]]:
    kinds = ("lost", "duplicated", "reordered", "misplaced", "contradicted", "unsettled")
    numbers = {kind: [record.number for record in getattr(verdict, kind)] for kind in kinds}
    return {kind: records for kind, records in numbers.items() if records}


def alike(_number: int) -> bytes:
    return b"v"


def own(number: int) -> bytes:
    return b"%d" % number


@pytest.mark.parametrize("keys", [None, [b"%d" % (n % 7) for n in range(COUNT)]])
@pytest.mark.parametrize("partition", [None, 1])
@pytest.mark.parametrize("value", [alike, own])
def test_every_record_of_a_call_is_followed(
    cluster: MockCluster, keys: Any, partition: int | None, value: Callable[[int], bytes]
) -> None:
    ledger = DeliveryLedger()
    cluster.faults.append(Error(6, topic="orders", times=2))
    with ledger.watch(producer_of(cluster, batch_size=500)) as producer:
        values = (value(number) for number in range(COUNT))
        many = producer.send_many("orders", values, keys, [("mine", b"1")], partition)
        assert isinstance(many, outlast.Deliveries)
        assert len(many.get(timeout=20)) == COUNT
        producer.send("orders", b"one by one")
    assert [r.value for r in ledger.records[:COUNT]] == [value(n) for n in range(COUNT)]
    assert [r.offset for r in ledger.records[:COUNT]] == [m.offset for m in many.get(timeout=0)]
    for source in (cluster, cluster.bootstrap_servers, log_of(cluster).copy):
        read: Any = source if not callable(source) else lambda _topic, log=source: log()
        verdict = ledger.verdict(read)
        assert verdict, verdict
        assert verdict.acked == COUNT + 1
    assert [name for name, _ in cluster.records("orders", 1)[0].headers] == ["mine", HEADER]


@pytest.mark.parametrize("value", [alike, own])
def test_one_of_them_that_is_lost_or_doubled_is_found(
    cluster: MockCluster, value: Callable[[int], bytes]
) -> None:
    ledger = DeliveryLedger()
    with ledger.watch(producer_of(cluster)) as producer:
        producer.send_many("orders", [value(n) for n in range(COUNT)], partition=0)
    log = log_of(cluster)
    assert found(judged(ledger, [r for r in log if r.offset != 7])) == {"lost": [7]}
    doubled = found(judged(ledger, [*log, log[7]._replace(offset=COUNT)]))
    assert list(doubled) == ["duplicated"]
    assert value is alike or doubled == {"duplicated": [7]}


def test_a_lost_one_is_not_hidden_by_one_that_is_doubled(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    with ledger.watch(producer_of(cluster)) as producer:
        producer.send_many("orders", [own(n) for n in range(COUNT)], partition=0)
    log = log_of(cluster)
    log[7] = log[8]._replace(offset=7)
    assert found(judged(ledger, log)) == {"lost": [7], "duplicated": [8]}
    keys = log_of(cluster)
    keys[7] = keys[7]._replace(key=b"of another")
    assert judged(ledger, keys), "it is where it was told to be; what is in it is not judged"


def test_two_that_changed_places_are_found(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    with ledger.watch(producer_of(cluster)) as producer:
        producer.send_many("orders", [own(n) for n in range(COUNT)], partition=0)
    log = log_of(cluster)
    log[3], log[4] = log[4]._replace(offset=3), log[3]._replace(offset=4)
    assert found(judged(ledger, log)) == {"reordered": [3], "misplaced": [3, 4]}


class Backwards:
    """A producer that is wrong about the order of a call."""

    def __init__(self, producer: outlast.KafkaProducer) -> None:
        self.producer = producer

    def send_many(self, topic: str, values: list[bytes], **rest: Any) -> Any:
        return list(self.producer.send_many(topic, values[::-1], **rest))[::-1]


@pytest.mark.parametrize("value", [alike, own])
def test_a_call_that_is_written_backwards_is_found(
    cluster: MockCluster, value: Callable[[int], bytes]
) -> None:
    ledger = DeliveryLedger()
    with producer_of(cluster) as producer:
        ledger.watch(Backwards(producer)).send_many("orders", [value(n) for n in (0, 1, 2)], None)
        ledger.watch(producer).send_many("orders", [b"3", b"4"], partition=0)
    log = log_of(cluster)
    assert len({r.partition for r in log if r.value == value(0)}) == 1, "or they have no order"
    assert found(judged(ledger, log)) == {"reordered": [1, 0]}


def test_calls_follow_each_other_and_overlapping_ones_have_no_order(cluster: MockCluster) -> None:
    class Between(outlast.KafkaProducer):
        """While it is called others send."""

        def send_many(self, topic: str, values: Any, *args: Any, **rest: Any) -> Any:
            if values == [b"outer"]:
                stand_in.send_many("orders", [b"inner"], partition=0)
                stand_in.send("orders", b"inner", partition=0)
            return super().send_many(topic, values, *args, **rest)

    ledger = DeliveryLedger()
    with Between(bootstrap_servers=cluster.bootstrap_servers) as producer:
        stand_in = ledger.watch(producer)
        stand_in.send_many("orders", [b"outer"], partition=0)
        assert [r.value for r in ledger.records] == [b"outer", b"inner", b"inner"]
        producer.flush()
        assert ledger.verdict(cluster), "the inner ones came first"
        stand_in.send_many("orders", [b"last"], partition=0).get(timeout=20)
    log = log_of(cluster)
    log[2], log[3] = log[3]._replace(offset=2), log[2]._replace(offset=3)
    assert "reordered" in found(judged(ledger, log))


class Text(Serializer):
    def serialize(self, topic: str, headers: Any, data: str) -> bytes:  # noqa: ARG002
        return data.encode()


def test_with_a_serializer_places_tell_which_is_which(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    with ledger.watch(producer_of(cluster, value_serializer=Text())) as producer:
        producer.send_many("orders", ["a", "b", "c"], partition=0)
    assert ledger.verdict(cluster)
    log = log_of(cluster)
    assert found(judged(ledger, log[:1] + log[2:])) == {"lost": [1]}
    assert list(found(judged(ledger, [*log, log[1]._replace(offset=3)]))) == ["duplicated"]


def test_a_source_that_tells_no_values_will_do(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    with ledger.watch(producer_of(cluster)) as producer:
        producer.send_many("orders", [b"a", b"b", b"c"], partition=0)
    log = [(r.partition, r.offset, r.headers) for r in log_of(cluster)]

    class Bare(NamedTuple):
        partition: int
        offset: int
        headers: Any

    assert ledger.verdict(lambda _topic: [Bare(*place) for place in log])
    verdict = ledger.verdict(lambda _topic: [Bare(*place) for place in log[1:]], timeout_s=0)
    assert found(verdict) == {"lost": [0]}


def test_what_was_told_to_have_failed_must_not_be_there(cluster: MockCluster) -> None:
    cluster.faults.append(Error(29, topic="orders"))
    ledger = DeliveryLedger()
    with ledger.watch(producer_of(cluster)) as producer:
        producer.send_many("orders", [b"a", b"b"], partition=0)
        producer.flush()
    verdict = ledger.verdict(cluster)
    assert verdict
    assert verdict.failed == 2
    cluster.faults.clear()
    with ledger.watch(producer_of(cluster)) as producer:
        producer.send_many("orders", [b"c"], partition=0).get(timeout=20)
    (log,) = cluster.records("orders", 0)
    (mark, token), *_ = log.headers
    assert token is not None
    late = [(mark, token.replace(b"-2+1", b"-0+2"))]  # of the first call
    assert found(judged(ledger, [*log_of(cluster), Record(0, 1, late, None, b"b")])) == {
        "contradicted": [1]
    }


def test_a_call_that_raises_is_refused_and_raises(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    producer = ledger.watch(producer_of(cluster))
    with pytest.raises(TypeError, match="values must be a list"):
        producer.send_many("orders", b"single")
    with pytest.raises(ValueError, match="1 keys for 2 values"):
        producer.send_many("orders", [b"a", b"b"], [b"k"])
    assert len(producer.send_many("orders", [])) == 0
    producer.close()
    with pytest.raises(outlast.ClosedError):
        producer.send_many("orders", [b"a"])
    assert [r.state for r in ledger.failures()] == ["refused"] * 3
    assert ledger.verdict(cluster)


def test_after_a_signal_nobody_knows_what_was_taken(cluster: MockCluster) -> None:
    class Interrupted(outlast.KafkaProducer):
        def send_many(self, *args: Any, **keywords: Any) -> Any:
            super().send_many(*args, **keywords).get(timeout=20)
            raise KeyboardInterrupt

    ledger = DeliveryLedger()
    with Interrupted(bootstrap_servers=cluster.bootstrap_servers) as producer:
        with pytest.raises(KeyboardInterrupt):
            ledger.watch(producer).send_many("orders", [b"a", b"b"], partition=0)
        verdict = ledger.verdict(cluster)
    assert verdict, verdict
    assert verdict.failed == 2


# --- send_async -----------------------------------------------------------------------------------


def test_send_async_is_followed(cluster: MockCluster) -> None:
    async def run(producer: Any) -> None:
        futures = [
            await producer.send_async("orders", own(n), headers=[("mine", b"1")], partition=n % 2)
            for n in range(COUNT)
        ]
        for number, future in enumerate(futures):
            assert (await future).partition == number % 2

    ledger = DeliveryLedger()
    with ledger.watch(producer_of(cluster)) as producer:
        asyncio.run(run(producer))
    verdict = ledger.verdict(cluster)
    assert verdict, verdict
    assert verdict.acked == COUNT
    log = log_of(cluster)
    assert [name for name, _ in log[0].headers] == ["mine", HEADER]
    assert found(judged(ledger, log[1:])) == {"lost": [0]}
    assert found(judged(ledger, [*log, log[-1]._replace(offset=99)])) == {"duplicated": [COUNT - 1]}
    log[3], log[4] = log[4]._replace(offset=3), log[3]._replace(offset=4)
    assert found(judged(ledger, log)) == {"reordered": [6], "misplaced": [6, 8]}


def test_a_send_async_that_raises_is_refused_and_raises(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    producer = ledger.watch(producer_of(cluster))
    producer.close()
    with pytest.raises(outlast.ClosedError):
        asyncio.run(producer.send_async("orders", b"x"))
    assert [r.state for r in ledger.failures()] == ["refused"]


# --- what cannot be followed ----------------------------------------------------------------------


def test_a_way_to_send_that_takes_no_header_raises(cluster: MockCluster) -> None:
    ledger = DeliveryLedger()
    servers = cluster.bootstrap_servers
    with pytest.raises(TypeError, match=r"produce_batch\(\) takes no headers"):
        ledger.watch(confluent_kafka.Producer({"bootstrap.servers": servers})).produce_batch(
            "orders", [{"value": b"x"}]
        )
    assert not hasattr(ledger.watch(kafka.KafkaProducer(bootstrap_servers=servers)), "send_many")

    async def run() -> None:
        async with ledger.watch(aiokafka.AIOKafkaProducer(bootstrap_servers=servers)) as producer:
            with pytest.raises(TypeError, match=r"before send_batch\(\) is called"):
                await producer.send_batch(producer.create_batch(), "orders", partition=0)

    asyncio.run(run())
    assert ledger.records == []
