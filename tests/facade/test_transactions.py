"""Transactions on the mock cluster: kafka-python's calls, through everything that may happen."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import (
    IllegalStateError,
    InvalidTransactionTimeoutError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

from outlast import (
    Cause,
    DeliveryError,
    DeliveryFuture,
    GapOutcome,
    KafkaProducer,
    Outcome,
)
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.coordinator_log import TRANSACTIONS, coordinator_of
from outlast.testing.faults import CutAfter, Error
from outlast.testing.server import ClusterServer
from tests.net.broker import until

TOPIC, ID = "orders", "shop"
PRODUCE, FIND_COORDINATOR, INIT, END_TXN, ADD_PARTITIONS, TXN_OFFSET_COMMIT = 0, 10, 22, 26, 24, 28
Make = Callable[..., KafkaProducer]


@pytest.fixture(params=[1, 2], ids=["KIP-98", "KIP-890"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterServer]:
    """Three nodes that speak one of the two protocols."""
    settings = ClusterSettings(transaction_version=request.param)
    with ClusterServer(MockCluster(3, settings=settings, rng=random.Random(2))) as server:
        yield server


@pytest.fixture
def make(cluster: ClusterServer, make_producer: Callable[..., KafkaProducer]) -> Make:
    """Makes a producer that may begin."""
    cluster.create_topic(TOPIC, 3, min_isr=2)
    cluster.call(lambda mock, now: mock.create_internal_topics(now))

    def make_one(transactional_id: str = ID, **keywords: Any) -> KafkaProducer:
        producer = make_producer(cluster, transactional_id=transactional_id, **keywords)
        until_done(producer.init_transactions)
        return producer

    return make_one


def until_done(call: Callable[[], object]) -> None:
    """Make the call again while it runs into its time-out."""

    def done() -> bool:
        try:
            call()
        except KafkaTimeoutError:
            return False
        return True

    until(done, 20.0)


def write(producer: KafkaProducer, word: str, count: int = 9) -> list[DeliveryFuture]:
    return [producer.send(TOPIC, f"{word}{n}".encode(), partition=n % 3) for n in range(count)]


def transact(producer: KafkaProducer, word: str) -> None:
    """Write it in a transaction of its own, and commit that."""
    producer.begin_transaction()
    write(producer, word)
    producer.commit_transaction()


def seen(cluster: ClusterServer) -> list[bytes]:
    """What readers of committed data see, sorted."""
    found = [cluster.call(lambda mock, _, n=n: mock.committed(TOPIC, n)) for n in range(3)]
    return sorted(record.value for log in found for record in log)


def until_seen(cluster: ClusterServer, *written: str) -> None:
    """Exactly these words' records, each once."""
    wanted = sorted(f"{word}{n}".encode() for word in written for n in range(9))
    until(lambda: len(seen(cluster)) >= len(wanted))
    assert seen(cluster) == wanted


def coordinator(cluster: ClusterServer) -> int:
    def look(mock: Any, now: float) -> int:
        node = next(node for node in mock.nodes.values() if node.running)
        return int(coordinator_of(mock, node, TRANSACTIONS, ID, now))

    return cluster.call(look)


# --- what it is for -----------------------------------------------------------------------------


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(
    cluster: ClusterServer, make: Make
) -> None:
    producer = make()
    for word, commits in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        futures = write(producer, word)
        if commits:
            producer.commit_transaction()
            assert all(future.succeeded() for future in futures)
        else:
            producer.flush()
            producer.abort_transaction()
    until_seen(cluster, "a", "c")


def test_nothing_is_seen_before_the_commit(cluster: ClusterServer, make: Make) -> None:
    producer = make()
    producer.begin_transaction()
    write(producer, "a")
    producer.flush()
    assert seen(cluster) == []
    producer.commit_transaction()
    until_seen(cluster, "a")


def test_an_empty_transaction_asks_nobody(cluster: ClusterServer, make: Make) -> None:
    producer = make()
    for _ in range(3):
        producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
    assert not any(
        r.api_key == END_TXN for r in cluster.call(lambda mock, _: list(mock.request_log))
    )


def test_what_is_aborted_before_it_was_sent_never_is(cluster: ClusterServer, make: Make) -> None:
    producer = make(linger_ms=60_000)
    producer.begin_transaction()
    futures = write(producer, "a")
    producer.abort_transaction()
    for future in futures:
        with pytest.raises(DeliveryError, match="aborted") as caught:
            future.get(timeout=5)
        assert caught.value.outcome is Outcome.NEVER_SENT
    assert all(cluster.records(TOPIC, n) == [] for n in range(3))


def test_many_records_in_one_call(cluster: ClusterServer, make: Make) -> None:
    producer = make()
    with pytest.raises(IllegalStateError, match="READY"):
        producer.send_many(TOPIC, [b"too early"])
    producer.begin_transaction()
    producer.send_many(TOPIC, [f"a{n}".encode() for n in range(9)])
    producer.commit_transaction()
    until_seen(cluster, "a")


def test_offsets_go_with_the_transaction(cluster: ClusterServer, make: Make) -> None:
    producer = make()
    place, group = TopicPartition(TOPIC, 0), "readers"

    def committed() -> int | None:
        consumer = kafka_consumer(cluster, group)
        try:
            return consumer.committed(place)
        finally:
            consumer.close()

    for offset, commits in ((5, True), (7, False)):
        producer.begin_transaction()
        offsets = {place: OffsetAndMetadata(offset, "note", -1)}
        producer.send_offsets_to_transaction(offsets, group)
        producer.commit_transaction() if commits else producer.abort_transaction()
        until(lambda: committed() == 5)


def kafka_consumer(cluster: ClusterServer, group: str) -> Any:
    import kafka

    return kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, group_id=group, enable_auto_commit=False
    )


# --- two of one id ------------------------------------------------------------------------------


def test_the_older_of_two_is_fenced_and_nothing_of_it_is_seen(
    cluster: ClusterServer, make: Make
) -> None:
    older = make()
    older.begin_transaction()
    write(older, "a")
    older.flush()
    newer = make()
    for _ in range(2):
        with pytest.raises(ProducerFencedError, match=f"transactional_id='{ID}'"):
            older.commit_transaction()
    with pytest.raises(ProducerFencedError):
        older.begin_transaction()
    with pytest.raises(ProducerFencedError):
        older.send(TOPIC, b"too late")
    with pytest.raises(ProducerFencedError):
        older.abort_transaction()
    newer.begin_transaction()
    write(newer, "b")
    newer.commit_transaction()
    until_seen(cluster, "b")


def test_a_transaction_that_takes_too_long_is_aborted_and_the_producer_goes_on(
    cluster: ClusterServer, make: Make
) -> None:
    producer = make(transaction_timeout_ms=200)
    producer.begin_transaction()
    write(producer, "a")
    producer.flush()
    until(lambda: all(cluster.call(has_marker)))
    with pytest.raises(KafkaError, match="transaction_timeout_ms=200") as caught:
        producer.commit_transaction()
    assert not isinstance(caught.value, ProducerFencedError)
    producer.abort_transaction()
    transact(producer, "b")
    until_seen(cluster, "b")


def has_marker(mock: Any, _now: float) -> list[bool]:
    return [any(batch.control for batch in mock.batches(TOPIC, n)) for n in range(3)]


# --- wrong order, bad input ---------------------------------------------------------------------


def test_calls_in_the_wrong_order_name_the_state(
    cluster: ClusterServer, make: Make, make_producer: Callable[..., KafkaProducer]
) -> None:
    early = make_producer(cluster, transactional_id="another")
    with pytest.raises(IllegalStateError, match=r"UNINITIALIZED: call init_transactions\(\) first"):
        early.begin_transaction()
    with pytest.raises(IllegalStateError, match="UNINITIALIZED"):
        early.send(TOPIC, b"v")
    producer = make()
    producer.init_transactions()  # as in kafka-python: nothing to do
    for call in (producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(IllegalStateError, match="READY"):
            call()
    with pytest.raises(IllegalStateError, match="READY"):
        producer.send_offsets_to_transaction({}, "readers")
    producer.begin_transaction()
    with pytest.raises(IllegalStateError, match="IN_TRANSACTION: commit or abort the present one"):
        producer.begin_transaction()
    write(producer, "a")
    producer.commit_transaction()
    until_seen(cluster, "a")


GOOD = {TopicPartition(TOPIC, 0): OffsetAndMetadata(1, "", -1)}


@pytest.mark.parametrize(
    ("offsets", "group", "error"),
    [
        (GOOD, None, TypeError),
        (GOOD, 3, TypeError),
        ([1], "readers", TypeError),
        ({("t", 0): OffsetAndMetadata(1, "", -1)}, "readers", TypeError),
        ({TopicPartition(TOPIC, 0): 1}, "readers", TypeError),
    ],
)
def test_bad_offsets_are_refused_and_change_nothing(
    cluster: ClusterServer, make: Make, offsets: Any, group: Any, error: type[Exception]
) -> None:
    producer = make()
    producer.begin_transaction()
    write(producer, "a")
    with pytest.raises(error):
        producer.send_offsets_to_transaction(offsets, group)
    producer.commit_transaction()
    until_seen(cluster, "a")


def test_what_the_cluster_will_not_have_can_be_mended(
    cluster: ClusterServer, make_producer: Callable[..., KafkaProducer]
) -> None:
    producer = make_producer(cluster, transactional_id=ID, transaction_timeout_ms=10**9)
    for _ in range(2):
        with pytest.raises(InvalidTransactionTimeoutError, match="InitProducerId was refused"):
            producer.init_transactions()


def test_without_a_transactional_id_there_are_no_transactions(
    cluster: ClusterServer, make_producer: Callable[..., KafkaProducer]
) -> None:
    producer = make_producer(cluster)
    calls: Sequence[Callable[[], object]] = (
        producer.init_transactions,
        producer.begin_transaction,
        lambda: producer.send_offsets_to_transaction({}, "readers"),
        producer.commit_transaction,
        producer.abort_transaction,
    )
    for call in calls:
        with pytest.raises(IllegalStateError):
            call()


# --- what fails ---------------------------------------------------------------------------------


def test_a_record_that_fails_fails_its_transaction_alone(
    cluster: ClusterServer, make: Make
) -> None:
    producer = make()
    cluster.call(
        lambda mock, _: mock.faults.append(Error(api=PRODUCE, code=87, topic=TOPIC, times=1))
    )
    producer.begin_transaction()
    write(producer, "a")
    with pytest.raises(KafkaError, match=r"cannot be committed: orders-\d: INVALID_RECORD"):
        producer.commit_transaction()
    with pytest.raises(KafkaError, match="abort_transaction"):
        producer.send(TOPIC, b"not any more")
    with pytest.raises(KafkaError, match="abort_transaction"):
        producer.commit_transaction()
    producer.abort_transaction()
    transact(producer, "b")
    until_seen(cluster, "b")


@pytest.mark.parametrize("code", [45, 47, 48, 59, 120])
def test_lost_numbering_fails_the_transaction_and_the_next_one_numbers_anew(
    cluster: ClusterServer, make: Make, code: int
) -> None:
    producer = make()
    transact(producer, "a")
    cluster.call(
        lambda mock, _: mock.faults.append(Error(api=PRODUCE, code=code, topic=TOPIC, times=3))
    )
    producer.begin_transaction()
    with pytest.raises(KafkaError):
        write(producer, "b")  # the first may be refused before the last is sent
        producer.commit_transaction()
    producer.abort_transaction()
    cluster.call(lambda mock, _: mock.faults.clear())
    for word in "cd":
        transact(producer, word)
    until_seen(cluster, "a", "c", "d")


@pytest.mark.parametrize("commits", [True, False])
def test_an_end_whose_answer_is_lost_is_asked_for_again(
    cluster: ClusterServer, make: Make, commits: bool
) -> None:
    producer = make()
    cluster.call(lambda mock, _: mock.faults.append(CutAfter(api=END_TXN, times=2)))
    producer.begin_transaction()
    write(producer, "a")
    producer.flush()
    producer.commit_transaction() if commits else producer.abort_transaction()
    transact(producer, "b")
    until_seen(cluster, *("ab" if commits else "b"))
    *_, gap = [gap for gap in producer.gaps() if gap.topic == f"txn:{ID}"]
    assert (gap.partition, gap.cause, gap.outcome) == (
        -1,
        Cause.CONNECTION_LOST,
        GapOutcome.ABSORBED,
    )


@pytest.mark.parametrize(
    "fault", [Error(api=END_TXN, code=120), Error(api=FIND_COORDINATOR, code=53)], ids=str
)
def test_a_commit_that_may_have_been_done_is_not_told_as_undone(
    cluster: ClusterServer, make: Make, fault: Error
) -> None:
    """It was asked for, and its answer was lost; then there are other answers only."""
    producer = make()
    producer.begin_transaction()
    write(producer, "a")
    producer.flush()
    other = replace(fault, times=1)
    cluster.call(lambda mock, _: mock.faults.extend([CutAfter(api=END_TXN, times=1), other]))
    try:
        producer.commit_transaction()
    except KafkaError as error:
        assert "It may have been committed" in str(error)  # noqa: PT017
        producer.abort_transaction()
    until_seen(cluster, "a")


def test_a_commit_that_the_coordinator_cannot_tell_of_is_not_told_as_undone(
    cluster: ClusterServer, make: Make
) -> None:
    """UNKNOWN_SERVER_ERROR says nothing of what was done."""
    producer = make()
    producer.begin_transaction()
    write(producer, "a")
    producer.flush()
    cluster.call(lambda mock, _: mock.faults.append(Error(api=END_TXN, code=-1, times=3)))
    with pytest.raises(KafkaError, match="It may have been committed"):
        producer.commit_transaction()
    producer.abort_transaction()
    transact(producer, "b")
    until_seen(cluster, "b")


@pytest.mark.parametrize("code", [47, 59, 90])
def test_who_has_no_epoch_yet_cannot_be_fenced(
    cluster: ClusterServer, make: Make, code: int
) -> None:
    cluster.call(lambda mock, _: mock.faults.append(Error(api=INIT, code=code, times=2)))
    producer = make()
    transact(producer, "a")
    until_seen(cluster, "a")


@pytest.mark.parametrize("code", [14, 15, 16, 51, 52])
@pytest.mark.parametrize("api", [ADD_PARTITIONS, END_TXN])
def test_a_coordinator_that_cannot_answer_yet_is_asked_again(
    cluster: ClusterServer, make: Make, api: int, code: int
) -> None:
    producer = make()
    cluster.call(lambda mock, _: mock.faults.append(Error(api=api, code=code, times=3)))
    transact(producer, "a")
    until_seen(cluster, "a")


# --- several at once ----------------------------------------------------------------------------


def test_two_threads_that_end_one_transaction_end_no_other(
    cluster: ClusterServer, make: Make
) -> None:
    """The first may begin the next before the second is awake."""
    producer = make()
    for number in range(10):
        producer.begin_transaction()
        write(producer, f"a{number}-")
        with ThreadPoolExecutor(2) as pool:
            ends = [pool.submit(producer.commit_transaction) for _ in range(2)]
            first = next(as_completed(ends))
            first.result()
            producer.begin_transaction()
            write(producer, f"b{number}-")
            for end in ends:
                assert not isinstance(end.exception(10), AssertionError)
            write(producer, f"c{number}-")
            producer.commit_transaction()
    until_seen(cluster, *(f"{word}{number}-" for word in "abc" for number in range(10)))


def test_a_fenced_one_leaves_the_open_transaction_of_the_newer_alone(
    cluster: ClusterServer, make: Make
) -> None:
    older = make()
    older.begin_transaction()
    write(older, "a")
    older.flush()
    newer = make()
    newer.begin_transaction()
    write(newer, "b")
    newer.flush()
    with pytest.raises(ProducerFencedError):
        older.commit_transaction()
    newer.commit_transaction()
    until_seen(cluster, "b")


def test_a_record_that_is_refused_at_once_fails_its_transaction(
    cluster: ClusterServer, make: Make
) -> None:
    producer = make()
    producer.begin_transaction()
    write(producer, "a")
    cluster.call(lambda mock, _: mock.faults.append(Error(api=3, code=29, topic="closed")))
    assert producer.send("closed", b"v").failed()
    with pytest.raises(KafkaError, match="abort_transaction"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert seen(cluster) == []


def test_no_offsets_are_no_transaction(make: Make) -> None:
    producer = make()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({}, "readers")
    producer.commit_transaction()


@pytest.mark.parametrize("moment", ["within", "commit"])
def test_what_cannot_be_added_is_left_by_an_abort(
    cluster: ClusterServer, make: Make, moment: str
) -> None:
    """Offsets of a partition that no coordinator knows."""
    producer = make(max_block_ms=400)
    producer.begin_transaction()
    write(producer, "a")
    fault = Error(api=28, code=3)
    cluster.call(lambda mock, _: mock.faults.append(fault))
    with pytest.raises(KafkaTimeoutError):
        producer.send_offsets_to_transaction(GOOD, "readers")
    if moment == "commit":
        with pytest.raises(KafkaTimeoutError):
            producer.commit_transaction()
    until_done(producer.abort_transaction)
    cluster.call(lambda mock, _: mock.faults.clear())
    producer.begin_transaction()
    write(producer, "b")
    until_done(producer.commit_transaction)
    until_seen(cluster, "b")


def test_health_tells_of_a_coordinator_that_is_away(cluster: ClusterServer, make: Make) -> None:
    producer = make(max_block_ms=300)
    producer.begin_transaction()
    write(producer, "a")
    producer.flush()
    cluster.call(lambda mock, _: mock.faults.append(Error(api=END_TXN, code=15)))
    with pytest.raises(KafkaTimeoutError):
        producer.commit_transaction()
    assert [gap.topic for gap in producer.health().open_gaps] == [f"txn:{ID}"]
    cluster.call(lambda mock, _: mock.faults.clear())
    until_done(producer.commit_transaction)
    until(lambda: not producer.health().open_gaps)


# --- coordinators and leaders that are lost -----------------------------------------------------

STRIKES: dict[str, Callable[[ClusterServer, int], None]] = {
    "kill": ClusterServer.kill,
    "stop": ClusterServer.stop,
    "pause": ClusterServer.pause,
}


@pytest.mark.parametrize("moment", ["before", "within", "commit", "abort"])
@pytest.mark.parametrize("strike", list(STRIKES))
@pytest.mark.parametrize("who", ["coordinator", "leader"])
def test_who_is_lost_costs_time_only(
    cluster: ClusterServer, make: Make, who: str, strike: str, moment: str
) -> None:
    producer = make()
    transact(producer, "a")

    def hit() -> None:
        node = coordinator(cluster) if who == "coordinator" else cluster.leader(TOPIC, 0)[0]
        STRIKES[strike](cluster, node)

    begun_s = time.monotonic()
    if moment == "before":
        hit()
    producer.begin_transaction()
    first = [producer.send(TOPIC, f"b{n}".encode(), partition=n % 3) for n in range(5)]
    if moment == "within":
        hit()
    second = [producer.send(TOPIC, f"b{n}".encode(), partition=n % 3) for n in range(5, 9)]
    if moment in ("commit", "abort"):
        producer.flush()
        hit()
    if moment == "abort":
        producer.abort_transaction()
    else:
        producer.commit_transaction()
        assert all(future.succeeded() for future in first + second)
    assert time.monotonic() - begun_s < 10.0
    transact(producer, "c")
    until_seen(cluster, *("ac" if moment == "abort" else "abc"))


# --- time ---------------------------------------------------------------------------------------


def test_a_call_keeps_its_time_and_may_be_made_again(cluster: ClusterServer, make: Make) -> None:
    producer = make(max_block_ms=300)
    producer.begin_transaction()
    write(producer, "a")
    producer.flush()
    nodes = [1, 2, 3]
    for node in nodes:
        cluster.pause(node)
    begun_s = time.monotonic()
    with pytest.raises(KafkaTimeoutError, match="make the same call again"):
        producer.commit_transaction()
    assert time.monotonic() - begun_s < 1.0
    with pytest.raises(IllegalStateError, match="may have been done"):
        producer.abort_transaction()
    for node in nodes:
        cluster.resume(node)
    until_done(producer.commit_transaction)
    until_seen(cluster, "a")
    producer.begin_transaction()
    until_done(producer.abort_transaction)


def test_a_call_that_ran_into_its_time_names_the_answer_that_it_got(
    cluster: ClusterServer, make: Make
) -> None:
    """A topic may be there soon: what its offsets wait for can be seen meanwhile."""
    producer = make(max_block_ms=300)
    producer.begin_transaction()
    offsets = {TopicPartition("nowhere", 0): OffsetAndMetadata(5, "", -1)}
    with pytest.raises(KafkaTimeoutError, match="only answered UnknownTopicOrPartitionError"):
        producer.send_offsets_to_transaction(offsets, "readers")
    until_done(producer.abort_transaction)
    transact(producer, "a")
    until_seen(cluster, "a")


def test_it_names_what_kept_the_coordinator_from_being_found(
    cluster: ClusterServer, make_producer: Callable[..., KafkaProducer]
) -> None:
    fault = Error(api=FIND_COORDINATOR, code=15)
    cluster.call(lambda mock, _: mock.faults.append(fault))
    producer = make_producer(cluster, transactional_id=ID, max_block_ms=300)
    with pytest.raises(KafkaTimeoutError, match="only answered CoordinatorNotAvailableError"):
        producer.init_transactions()


# --- what joins -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [2], ids=["KIP-890"], indirect=True)
@pytest.mark.parametrize("linger_ms", [0, 2])
def test_offsets_and_partitions_do_not_join_at_one_broker_at_once(
    cluster: ClusterServer, make: Make, linger_ms: int
) -> None:
    """A broker that asks the coordinator twice at a time drops the earlier question (KIP-890)."""

    def pace(mock: Any, _now: float) -> None:
        mock.settings = replace(mock.settings, between_brokers_s=(0.004, 0.008))

    cluster.call(pace)
    producer = make(linger_ms=linger_ms)
    for n in range(20):
        producer.begin_transaction()
        write(producer, "a")
        producer.send_offsets_to_transaction(
            {TopicPartition(TOPIC, 0): OffsetAndMetadata(n, "", -1)}, f"group-{n % 5}"
        )
        producer.commit_transaction()
    requests = cluster.call(lambda mock, _: list(mock.request_log))
    offsets = [r for r in requests if (r.api_key, r.version >= 5) == (TXN_OFFSET_COMMIT, True)]
    firsts = [
        r
        for r in requests
        if r.api_key == PRODUCE and any(p.base_sequence == 0 for p in r.partitions)
    ]
    at_once = [
        (one.node_id, one.received_at_s)
        for one in offsets
        for other in firsts
        if one.node_id == other.node_id
        and one.received_at_s < other.answered_at_s
        and other.received_at_s < one.answered_at_s
    ]
    assert len(offsets) >= 20
    assert len(firsts) >= 20
    assert at_once == []
