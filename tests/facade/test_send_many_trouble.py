"""`send_many` when something comes between: no room, a close, faults, forks, signals, threads."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import kafka
import pytest
from kafka.partitioner import Partitioner

from outlast import BlockedError, DeliveryError, KafkaProducer, Outcome, Undelivered
from outlast.engine.partitioner import keyed_partition
from outlast.testing.faults import CutAfter, Error, ErrorAfter, LoseResponse, Slow
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic
from tests.lifecycle.programs import run
from tests.lifecycle.test_signals import HandledError, interrupted, raise_it
from tests.net.test_fork import in_child
from tests.real.kafka_cluster import until
from tests.tcp.stories import TOPIC, calm_cluster

MakeProducer = Callable[..., KafkaProducer]

VALUES = [b"%05d" % n for n in range(2_000)]
METADATA, PRODUCE = 3, 0
BUFFER_BYTES = 40_000  # of 2 000 such records it has room for some 200


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with calm_cluster(3, detect_s=30.0) as server:  # nobody takes over from a node that pauses
        yield server


def strike(server: ClusterServer, *faults: Any) -> None:
    server.call(lambda cluster, _: cluster.faults.extend(faults))


def stored(server: ClusterServer, partition: int = 0, topic: str = TOPIC) -> list[bytes | None]:
    return [record.value for record in server.records(topic, partition)]


class Account:
    """What `on_undelivered` was given."""

    def __init__(self) -> None:
        self.given_back: list[Undelivered] = []

    def __call__(self, record: Undelivered) -> None:
        self.given_back.append(record)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.given_back]


# --- no room --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
def test_a_list_that_is_larger_than_the_buffer_waits_for_room(
    server: ClusterServer, make_producer: MakeProducer, keyed: bool
) -> None:
    producer = make_producer(server, buffer_memory=BUFFER_BYTES)
    many = producer.send_many(TOPIC, VALUES, keys=[b"k"] * 2_000 if keyed else None)
    places = [(m.partition, m.offset) for m in many.get(10)]
    logs = [stored(server, partition) for partition in range(3)]
    assert [logs[p][offset] for p, offset in places] == VALUES
    assert sum(map(len, logs)) == 2_000
    assert producer.health().buffer_bytes == 0


@pytest.mark.parametrize("keyed", [False, True])
def test_where_room_runs_out_the_rest_was_never_sent(
    server: ClusterServer, make_producer: MakeProducer, keyed: bool
) -> None:
    account = Account()
    producer = make_producer(
        server, buffer_memory=BUFFER_BYTES, max_block_ms=300, on_undelivered=account
    )
    producer.send(TOPIC, b"before", partition=0).get(10)
    for node in (1, 2, 3):
        server.pause(node)
    keys, partition = ([b"k"] * 2_000, None) if keyed else (None, 0)
    begun_s = time.monotonic()
    many = producer.send_many(TOPIC, VALUES, keys=keys, partition=partition)
    assert 0.25 < time.monotonic() - begun_s < 1.5
    assert not many.is_done
    with pytest.raises(BlockedError):
        many.failed(0)
    with pytest.raises(BlockedError):
        producer.send_many(TOPIC, VALUES[:3], keys=keys and keys[:3], partition=partition)
    for node in (1, 2, 3):
        server.resume(node)
    failed = many.failed(10)
    taken = 2_000 - len(failed)
    assert 100 < taken < 400
    assert [index for index, _ in failed] == list(range(taken, 2_000))
    assert len({id(error) for _, error in failed}) == 1
    error = failed[0][1]
    assert isinstance(error, kafka.errors.KafkaTimeoutError)
    assert (error.kind, error.outcome) == ("blocked", Outcome.NEVER_SENT)
    producer.flush(10)
    assert account.values == VALUES[taken:]
    assert account.given_back[0].key == (b"k" if keyed else None)
    place = many[0].get(10).partition
    assert stored(server, place)[-taken:] == VALUES[:taken]
    assert sum(len(stored(server, p)) for p in range(3)) == taken + 1
    assert producer.health().buffer_bytes == 0


@pytest.mark.parametrize("position", [0, 1, 500, 999])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_record_too_large_for_the_buffer_raises_and_sends_nothing(
    server: ClusterServer,
    make_producer: MakeProducer,
    position: int,
    keyed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    account = Account()
    producer = make_producer(server, buffer_memory=BUFFER_BYTES, on_undelivered=account)
    values = VALUES[:1_000]
    keys = values[:] if keyed else None
    for size, fits in ((BUFFER_BYTES - 900, True), (BUFFER_BYTES - 800, False)):
        values[position] = bytes(size)
        if fits:
            producer.send_many(TOPIC, values, keys).get(10)
            continue
        for call in (
            lambda: producer.send(TOPIC, values[position], key=keys and keys[position]),
            lambda: producer.send_many(TOPIC, values, keys),
        ):
            with pytest.raises(kafka.errors.MessageSizeTooLargeError, match="buffer_memory") as one:
                call()
        assert f"values[{position}]: " in str(one.value)
    producer.flush(10)
    assert sum(len(stored(server, p)) for p in range(3)) == 1_000
    assert not account.given_back
    assert "cannot write to topic" not in caplog.text


@pytest.mark.parametrize("keyed", [False, True])
def test_where_a_topic_loses_its_partition_the_rest_fails_and_nothing_raises(
    server: ClusterServer, make_producer: MakeProducer, keyed: bool
) -> None:
    """With a key, the rest goes to where that key belongs now."""
    account, done = Account(), []
    producer = make_producer(
        server, buffer_memory=BUFFER_BYTES, on_undelivered=account, max_block_ms=20_000
    )
    server.create_topic("shrinks", 6)
    key = next(b"%d" % n for n in range(100) if keyed_partition(b"%d" % n, range(6)) == 5)
    producer.send("shrinks", b"before", partition=5).get(10)
    keys, partition = ([key] * 2_000, None) if keyed else (None, 5)
    strike(server, Slow(0.5, api=PRODUCE, topic="shrinks"))
    thread = threading.Thread(
        target=lambda: done.append(
            producer.send_many("shrinks", VALUES, keys=keys, partition=partition)
        )
    )
    thread.start()
    until(lambda: producer.health().buffer_bytes > BUFFER_BYTES // 2, "the buffer is full")
    server.delete_topic("shrinks")
    server.create_topic("shrinks", 2)
    thread.join(30)
    [many] = done
    results = many.results(30)
    assert len(results) == 2_000
    failed = many.failed(0)
    assert [index for index, _ in failed] == sorted(index for index, _ in failed)
    producer.flush(10)
    assert account.values == [VALUES[index] for index, _ in failed]
    last = results[-1]
    if keyed:
        assert not isinstance(last, DeliveryError)
        assert last.partition == keyed_partition(key, range(2))
    else:
        assert isinstance(last, DeliveryError)
        assert last.outcome is Outcome.NEVER_SENT
        assert "Unrecognized partition: 5" in str(last)


def test_a_partition_that_is_held_up_takes_no_other_with_it(
    server: ClusterServer, make_producer: MakeProducer
) -> None:
    account = Account()
    producer = make_producer(
        server,
        buffer_memory=400_000,
        max_block_ms=1_500,
        ack_wait_ms=300,
        on_undelivered=account,
    )
    keys = [b"k%d" % (n % 600) for n in range(6_000)]
    producer.send_many(TOPIC, keys[:60], keys=keys[:60]).get(10)
    before = sum(len(stored(server, p)) for p in (1, 2))
    strike(server, Error(6, topic=TOPIC, partition=0))
    values = [b"%05d" % n * 40 for n in range(6_000)]
    begun_s = time.monotonic()
    many = producer.send_many(TOPIC, values, keys=keys)
    assert time.monotonic() - begun_s < 1.5 + 2.0, "one wait for all of them"
    server.call(lambda cluster, _: cluster.faults.clear())
    failed = many.failed(20)
    assert failed
    assert {keyed_partition(keys[index], range(3)) for index, _ in failed} == {0}
    assert {(e.kind, e.outcome) for _, e in failed} == {("blocked", Outcome.NEVER_SENT)}
    assert "max_block_ms=1500 " in str(failed[0][1])
    lost = {index for index, _ in failed}
    of_it = [n for n in range(6_000) if keyed_partition(keys[n], range(3)) == 0]
    assert [n for n in of_it if n in lost] == of_it[-len(lost) :], "those behind the first lost"
    assert sum(len(stored(server, p)) for p in (1, 2)) - before == 6_000 - len(of_it)
    producer.flush(10)
    assert account.values == [values[index] for index, _ in failed]
    assert producer.health().buffer_bytes == 0


def test_all_waiting_of_a_call_is_within_one_max_block_ms(
    server: ClusterServer, make_producer: MakeProducer
) -> None:
    producer = make_producer(server, buffer_memory=BUFFER_BYTES, max_block_ms=500)
    producer.send(TOPIC, b"before", partition=0).get(10)
    strike(server, Slow(0.2, api=PRODUCE, topic=TOPIC))
    begun_s = time.monotonic()
    many = producer.send_many(TOPIC, VALUES * 10, partition=0)
    assert 0.45 < time.monotonic() - begun_s < 1.5
    server.call(lambda cluster, _: cluster.faults.clear())
    lost = [index for index, _ in many.failed(20)]
    assert lost == list(range(lost[0], 20_000))
    assert lost[0] > 200, "it has waited more than once"


@pytest.mark.parametrize("how", ["no room", "partitioner", "topic"])
def test_what_fails_keeps_nothing_alive(
    server: ClusterServer, make_producer: MakeProducer, how: str
) -> None:
    class Odd(Partitioner):
        def partition(self, *record: Any) -> int:
            return 99 if record[3] == b"1" else 0

    producer = make_producer(
        server,
        buffer_memory=BUFFER_BYTES,
        max_block_ms=500,
        **({"partitioner": Odd()} if how == "partitioner" else {}),
    )
    producer.send(TOPIC, b"before", key=b"k").get(10)
    if how == "topic":
        strike(server, Error(29, api=METADATA, topic="forbidden"))
    elif how == "no room":
        for node in (1, 2, 3):
            server.pause(node)
    topic = "forbidden" if how == "topic" else TOPIC
    value = b"0%d" % time.time_ns()
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(value)
        many = producer.send_many(topic, [value] * 1_000 + [b"1"] * 3, keys=[value] * 1_003)
        assert sys.getrefcount(value) == before
        if how == "no room":
            with pytest.raises(BlockedError) as caught:
                producer.send_many(topic, [value] * 1_000)
            assert sys.getrefcount(value) > before, "in the frames of its traceback"
            del caught
            assert sys.getrefcount(value) == before
    finally:
        gc.enable()
    for node in (1, 2, 3):
        server.resume(node)
    assert many.failed(20)


def test_records_that_were_refused_are_given_back_on_the_io_thread(
    server: ClusterServer, make_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """One at a time, where nothing waits; and whatever it raises stays there."""
    threads: list[threading.Thread] = []
    took_s: list[float] = []
    inside = threading.Lock()

    def give_back(_: Undelivered) -> None:
        with_it = inside.acquire(blocking=False)
        assert with_it, "two at once"
        begun_s = time.monotonic()
        threads.append(threading.current_thread())
        with pytest.raises(BlockedError):
            producer.send(TOPIC, bytes(BUFFER_BYTES - 900), partition=0)
        took_s.append(time.monotonic() - begun_s)
        inside.release()
        sys.exit("from on_undelivered")

    producer = make_producer(
        server, buffer_memory=BUFFER_BYTES, max_block_ms=300, on_undelivered=give_back
    )
    producer.send(TOPIC, b"before", partition=0).get(10)
    for node in (1, 2, 3):
        server.pause(node)
    sent: list[Any] = []

    def send(partition: int) -> None:
        with suppress(BlockedError):  # the other may have got all room
            sent.append(producer.send_many(TOPIC, VALUES[:600], partition=partition))

    senders = [threading.Thread(target=send, args=(number,)) for number in range(2)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(10)
    assert sent
    until(lambda: caplog.text.count("SystemExit: from") >= len(sent), "it was logged", 10)
    assert len(set(threads)) == 1
    assert not {threading.current_thread(), *senders} & {*threads}
    assert max(took_s) < 0.2
    for node in (1, 2, 3):
        server.resume(node)
    producer.flush(20)
    lost = sum(len(many.failed(0)) for many in sent)
    assert lost == len(threads) > 0
    assert "AssertionError" not in caplog.text


def test_in_a_callback_it_never_waits(server: ClusterServer, make_producer: MakeProducer) -> None:
    account, sent = Account(), []
    producer = make_producer(server, buffer_memory=BUFFER_BYTES, on_undelivered=account)

    def send(_: object) -> None:
        begun_s = time.monotonic()
        many = producer.send_many(TOPIC, VALUES, partition=1)
        sent.append((many, time.monotonic() - begun_s))

    producer.send_many(TOPIC, [b"first"], partition=0).add_callback(send).get(10)
    until(lambda: sent, "the callback has run", 5)
    many, took_s = sent[0]
    assert took_s < 1.0
    taken = 2_000 - len(many.failed(10))
    assert 100 < taken < 400
    assert stored(server, 1) == VALUES[:taken]
    producer.flush(10)
    assert account.values == VALUES[taken:]


# --- the topic ------------------------------------------------------------------------------------


def test_a_topic_that_the_cluster_refuses_fails_all_as_their_futures_tell(
    server: ClusterServer, make_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    account = Account()
    strike(server, Error(29, api=METADATA, topic="forbidden"))
    producer = make_producer(server, on_undelivered=account)
    many = producer.send_many("forbidden", VALUES, headers=[("h", b"1")])
    assert many.is_done
    assert [index for index, _ in many.failed(0)] == list(range(2_000))
    with pytest.raises(kafka.errors.TopicAuthorizationFailedError, match="DESCRIBE and WRITE"):
        many.get(0)
    producer.flush(10)
    assert account.values == VALUES
    assert account.given_back[-1].headers == (("h", b"1"),)
    assert {record.outcome for record in account.given_back} == {Outcome.NEVER_SENT}
    told = [r for r in caplog.records if "cannot write to topic" in r.getMessage()]
    assert len(told) == 1


def test_an_unknown_topic_raises_when_its_time_is_up(
    server: ClusterServer, make_producer: MakeProducer
) -> None:
    producer = make_producer(server, max_block_ms=200, allow_auto_create_topics=False)
    with pytest.raises(BlockedError, match="nowhere"):
        producer.send_many("nowhere", VALUES)


class Fussy(Partitioner):
    """Has no place for some values."""

    def partition(self, *record: Any) -> Any:
        number = int(record[3])
        if number % 10 == 3:
            return 99
        if number % 10 == 5:
            return None
        if number % 10 == 7:
            raise ZeroDivisionError
        return 0


def test_a_record_that_its_partitioner_has_no_place_for_costs_no_other(
    server: ClusterServer, make_producer: MakeProducer
) -> None:
    account = Account()
    producer = make_producer(server, partitioner=Fussy(), on_undelivered=account)
    many = producer.send_many(TOPIC, VALUES[:20])
    lost = [n for n in range(20) if n % 10 in (3, 5, 7)]
    failed = many.failed(10)
    assert [index for index, _ in failed] == lost
    assert "Unrecognized partition: 99" in str(failed[0][1])
    assert "did not assign" in str(failed[1][1])
    assert {error.outcome for _, error in failed} == {Outcome.NEVER_SENT}
    producer.flush(10)
    assert account.values == [VALUES[n] for n in lost]
    assert stored(server) == [value for n, value in enumerate(VALUES[:20]) if n not in lost]
    with pytest.raises(ZeroDivisionError):
        producer.send_many(TOPIC, VALUES[7:10])
    producer.flush(5)
    assert len(stored(server)) == 20 - len(lost)


def test_what_a_partitioner_raises_is_its_own_and_what_is_not_there_is_looked_for_once(
    server: ClusterServer, make_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    class Unlucky(Partitioner):
        def partition(self, *record: Any) -> int:
            if int(record[3]) == 7:
                raise kafka.errors.UnknownTopicOrPartitionError("the partitioner's own")
            return 0 if int(record[3]) < 10 else 99

    producer = make_producer(server, partitioner=Unlucky())
    begun_s = time.monotonic()
    many = producer.send_many(TOPIC, VALUES[:100])
    assert time.monotonic() - begun_s < 3.0, "once, and not 90 times 0.1 s"
    assert [index for index, _ in many.failed(10)] == [7, *range(10, 100)]
    assert "cannot write to topic" not in caplog.text
    assert len(stored(server)) == 9
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError, match="the partitioner's own"):
        producer.send_many(TOPIC, VALUES[7:9])


# --- the brokers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_batch_that_is_split_on_its_way(
    make_cluster: Callable[..., ClusterServer], make_producer: MakeProducer, idempotent: bool
) -> None:
    server = make_cluster(max_message_bytes=2_000)
    topic = new_topic(server, 1)
    account = Account()
    told: list[object] = []
    producer = make_producer(
        server,
        linger_ms=20,
        enable_idempotence=idempotent,
        max_in_flight_requests_per_connection=5 if idempotent else 1,
        retry_backoff_ms=10,
        on_undelivered=account,
    )
    values = [*VALUES]
    for n in (0, 700, 1_999):
        values[n] = random.Random(n).randbytes(3_000)
    many = producer.send_many(topic, values).add_both(told.append)
    failed = many.failed(20)
    assert [index for index, _ in failed] == [0, 700, 1_999]
    assert all(isinstance(e, kafka.errors.MessageSizeTooLargeError) for _, e in failed)
    good = [value for n, value in enumerate(values) if n not in (0, 700, 1_999)]
    assert stored(server, 0, topic) == good
    results = many.results(0)
    assert [r.offset for r in results if not isinstance(r, DeliveryError)] == list(range(1_997))
    assert [results[index] for index, _ in failed] == [error for _, error in failed]
    assert account.values == [values[n] for n in (0, 700, 1_999)]
    assert many.node_id == server.leader(topic, 0)[0]
    producer.flush(5)
    assert told == [many]


def test_it_waits_for_each_piece_of_a_batch_that_is_split(
    make_cluster: Callable[..., ClusterServer], make_producer: MakeProducer
) -> None:
    server = make_cluster(max_message_bytes=2_000)
    topic, told = new_topic(server, 1), []
    producer = make_producer(server, linger_ms=50, max_in_flight_requests_per_connection=1)
    producer.send(topic, b"before").get(10)
    strike(server, Slow(0.2, api=PRODUCE, topic=topic))
    values = [b"%02d" % n * 50 for n in range(30)]
    for call in ("get", "results", "failed"):
        many = producer.send_many(topic, values)
        many.add_both(lambda m: told.append(m[-1].is_done))
        many[0].get(10)
        assert not many[-1].is_done
        assert not many.is_done
        assert (many[0].node_id > 0, many.node_id) == (True, -1)
        assert len(getattr(many, call)(10)) == (0 if call == "failed" else 30)
        assert many[-1].is_done
    producer.flush(10)
    assert told == [True] * 3


@pytest.mark.parametrize("keyed", [False, True])
def test_leaders_that_move_in_the_middle_lose_and_double_nothing(
    server: ClusterServer, make_producer: MakeProducer, keyed: bool
) -> None:
    producer = make_producer(
        server,
        buffer_memory=BUFFER_BYTES,
        batch_size=1_000,
        request_timeout_ms=1_000,
        retry_backoff_ms=10,
    )
    producer.send_many(TOPIC, VALUES[:10]).get(10)
    before = [len(stored(server, p)) for p in range(3)]
    strike(
        server,
        ErrorAfter(7, topic=TOPIC, partition=0, times=2),
        CutAfter(api=PRODUCE, topic=TOPIC, partition=1, times=2),
        LoseResponse(api=PRODUCE, topic=TOPIC, partition=2, times=1, after_s=0.2),
    )
    done: list[Any] = []

    def send() -> None:
        keys = VALUES if keyed else None
        done.append(producer.send_many(TOPIC, VALUES * 5, keys=keys and keys * 5))

    thread = threading.Thread(target=send)
    thread.start()
    for turn in range(6):
        for partition in range(3):
            server.move_leader(TOPIC, partition, (partition + turn) % 3 + 1, deny_s=0.02)
        thread.join(0.1)
    thread.join(60)
    [many] = done
    places = [(m.partition, m.offset) for m in many.get(60)]
    logs = [stored(server, p) for p in range(3)]
    assert [logs[p][offset] for p, offset in places] == VALUES * 5
    assert sum(map(len, logs)) == 10_000 + sum(before)
    for partition in range(3):
        offsets = [offset for p, offset in places if p == partition]
        assert offsets == sorted(offsets)
    assert many.gaps == tuple(sorted({number for f in many for number in f.gaps}))
    assert set(many.gaps) <= set(range(1, len(producer.gaps()) + 1))
    assert producer.health().buffer_bytes == 0


# --- the process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [0, 10])
def test_a_close_in_the_middle_fails_the_rest(
    server: ClusterServer, make_producer: MakeProducer, timeout_s: float
) -> None:
    account, done = Account(), []
    producer = make_producer(
        server, buffer_memory=BUFFER_BYTES, on_undelivered=account, max_block_ms=20_000
    )
    producer.send(TOPIC, b"before", partition=0).get(10)
    strike(server, Slow(0.4, api=PRODUCE, topic=TOPIC))
    thread = threading.Thread(
        target=lambda: done.append(producer.send_many(TOPIC, VALUES, partition=0))
    )
    thread.start()
    until(lambda: producer.health().buffer_bytes > BUFFER_BYTES // 2, "the buffer is full")
    producer.close(timeout_s)
    thread.join(5)
    [many] = done
    failed = many.failed(10)
    assert account.given_back
    assert sorted(account.values) == sorted(VALUES[index] for index, _ in failed)
    never = [index for index, error in failed if error.outcome is Outcome.NEVER_SENT]
    first = never[0]
    assert never == list(range(first, 2_000))
    assert {error.kind for _, error in failed} == {"closed"}
    acked = [VALUES[n] for n, future in enumerate(many) if future.succeeded()]
    until(lambda: len(stored(server)) > len(acked), "what was under way is there")
    assert stored(server)[1 : len(acked) + 1] == acked
    if timeout_s:
        assert acked == VALUES[:first]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_leaves_them_to_its_parent(
    server: ClusterServer, make_producer: MakeProducer
) -> None:
    told: list[str] = []
    producer = make_producer(server, linger_ms=300)
    producer.partitions_for(TOPIC)
    many = producer.send_many(TOPIC, VALUES[:50], partition=0)
    many.add_both(lambda _: told.append("told"))

    def child() -> Any:
        failed = many.failed(0)
        late: list[str] = []
        many.add_errback(lambda _: late.append("late"))
        places = [m.offset for m in producer.send_many(TOPIC, VALUES[:9], partition=1).get(10)]
        return [told, late, len(failed), failed[0][1].kind, failed[0][1].outcome.name, places]

    assert in_child(child) == [[], ["late"], 50, "forked", "UNKNOWN", list(range(9))]
    assert [m.offset for m in many.get(10)] == list(range(50))
    producer.flush(5)
    assert told == ["told"]
    assert (stored(server, 0), stored(server, 1)) == (VALUES[:50], VALUES[:9])


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_signal_handler_that_raises_at_any_step_breaks_nothing(
    server: ClusterServer, make_producer: MakeProducer, compression: str | None, keyed: bool
) -> None:
    producer = make_producer(server, compression_type=compression, batch_size=300)
    before = b"before %d"
    producer.send_many(TOPIC, [before % 0], partition=0).get(10)  # imports what it needs
    step, steps, sent, cut = 0, 1, [before % 0], 0
    doubtful: set[bytes] = set()
    while step <= steps:
        step += 1
        values = [b"%d %d" % (step, n) for n in range(12)]
        keys = [b"k"] * 12 if keyed else None
        sent.append(before % step)
        producer.send(TOPIC, sent[-1], partition=0)
        try:
            with interrupted(step, raise_it) as count:
                producer.send_many(TOPIC, values, keys, partition=None if keyed else 0)
            steps = max(steps, count[0])
            sent += values
        except HandledError:
            cut += 1
            steps = max(steps, step)
            doubtful.update(values)
        sent.append(b"after %d" % step)
        assert producer.send(TOPIC, sent[-1], partition=0).get(5).partition == 0
    assert cut > 100
    producer.flush(5)
    assert producer.health().buffer_bytes == 0
    found = [value for p in range(3) for value in stored(server, p)]
    assert len(set(found)) == len(found)
    assert set(sent) <= set(found) <= {*sent, *doubtful}
    if not keyed:
        assert [value for value in found if value not in doubtful] == sent
    by_step: dict[bytes, list[int]] = {}
    for value in found:
        if value in doubtful:
            number, n = value.split()
            by_step.setdefault(number, []).append(int(n))
    assert all(numbers == list(range(len(numbers))) for numbers in by_step.values())


def test_many_threads_each_in_its_order(server: ClusterServer, make_producer: MakeProducer) -> None:
    producer = make_producer(
        server, buffer_memory=BUFFER_BYTES, batch_size=2_000, linger_ms=1, max_block_ms=60_000
    )
    outcomes: list[list[Any]] = [[] for _ in range(8)]
    raised: list[BaseException] = []
    before = sys.getswitchinterval()

    def work(number: int) -> None:
        rng = random.Random(number)
        n = 0
        try:
            while n < 2_000:
                count = rng.choice([1, 3, 50, 200])
                values = [b"%d %d" % (number, i) for i in range(n, n + count)]
                n += count
                if rng.random() < 0.4:
                    futures = [producer.send(TOPIC, v, partition=number % 3) for v in values]
                else:
                    keys = None if rng.random() < 0.5 else values
                    futures = [*producer.send_many(TOPIC, values, keys, partition=number % 3)]
                outcomes[number] += zip(values, futures, strict=True)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not raised
    producer.flush(20)
    logs = [stored(server, partition) for partition in range(3)]
    assert sum(map(len, logs)) == sum(map(len, outcomes))
    for number, mine in enumerate(outcomes):
        places = [future.get(0) for _, future in mine]
        assert [logs[m.partition][m.offset] for m in places] == [value for value, _ in mine]
        offsets = [m.offset for m in places]
        assert offsets == sorted(offsets), number
    assert producer.health().buffer_bytes == 0


def test_a_callback_may_send_the_next_ones(
    server: ClusterServer, make_producer: MakeProducer
) -> None:
    producer, chain = make_producer(server), []

    def next_one(many: Any) -> None:
        chain.append(many)
        if len(chain) < 20:
            values = [b"%d" % len(chain)] * 100
            producer.send_many(TOPIC, values, partition=0).add_callback(next_one)

    producer.send_many(TOPIC, [b"0"] * 100, partition=0).add_callback(next_one)
    until(lambda: len(chain) == 20, "all have come", 10)
    counts = Counter(stored(server))
    assert counts == {b"%d" % n: 100 for n in range(20)}


GEVENT = """
import gevent
producer = made(batch_size=1000)
def work(number):
    sent = []
    for n in range(20):
        values = [b"%d %d %d" % (number, n, i) for i in range(20)]
        sent.append(producer.send_many("t", values, partition=number % 3))
        gevent.sleep(0)
    gevent.spawn(sent[-1].get, 10).get(timeout=10)
    return [len(many.get(10)) for many in sent]
jobs = [gevent.spawn(work, number) for number in range(50)]
gevent.joinall(jobs, raise_error=True)
assert all(job.value == [20] * 20 for job in jobs)
producer.close()
"""


def test_greenlets() -> None:
    with calm_cluster(3) as server:
        first = "import gevent.monkey; gevent.monkey.patch_all()\n"
        ended = run(GEVENT, server.bootstrap, first=first)
        assert (ended.code, ended.err) == (0, "")
        found = sorted(value or b"" for p in range(3) for value in stored(server, p))
        assert found == sorted(
            b"%d %d %d" % (number, n, i)
            for number in range(50)
            for n in range(20)
            for i in range(20)
        )


def test_errors_in_on_undelivered_stop_nothing(
    server: ClusterServer, make_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Undelivered) -> None:
        raise ZeroDivisionError

    strike(server, Error(29, api=METADATA, topic="forbidden"))
    producer = make_producer(server, on_undelivered=fail)
    assert len(producer.send_many("forbidden", VALUES[:5]).failed(0)) == 5
    producer.flush(10)
    logged = [r for r in caplog.records if r.getMessage() == "Error in on_undelivered"]
    assert len(logged) == 5
    assert all(record.levelno == logging.ERROR for record in logged)
