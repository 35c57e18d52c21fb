"""`send_many`: what `send` would have done with each record, in one call. What goes in, what comes
back. What happens on the way is in test_send_many_trouble.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import kafka
import pytest
from hypothesis import given, settings, strategies as st
from kafka.partitioner import DefaultPartitioner, Partitioner
from kafka.serializer import Serializer

from outlast import BlockedError, ClosedError, DeliveryError, KafkaProducer
from outlast.engine.partitioner import keyed_partition
from outlast.testing.faults import Error, Slow
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic, read_back
from tests.net.broker import until

MakeProducer = Callable[..., KafkaProducer]

VALUES = [b"%d" % n for n in range(1000)]
PRODUCE = 0


@pytest.fixture(scope="module")
def one(shared_cluster: ClusterServer) -> Iterator[KafkaProducer]:
    """A producer for all tests that change nothing of it."""
    with KafkaProducer(
        bootstrap_servers=shared_cluster.bootstrap, metrics_registry=None, retry_backoff_ms=10
    ) as producer:
        yield producer


def strike(server: ClusterServer, *faults: Any) -> None:
    server.call(lambda cluster, _: cluster.faults.extend(faults))


def values_in(server: ClusterServer, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in server.records(topic, partition)]


# --- what arrives ---------------------------------------------------------------------------------


def test_records_arrive_in_order_and_each_has_its_place(
    shared_cluster: ClusterServer, one: KafkaProducer
) -> None:
    topic = new_topic(shared_cluster, 1)
    many = one.send_many(topic, VALUES)
    assert [metadata.offset for metadata in many.get(10)] == list(range(1000))
    [stored] = read_back(shared_cluster, topic)
    assert [record.value for record in stored] == VALUES


@pytest.mark.parametrize("keyed", [False, True])
def test_the_io_thread_is_woken_for_them(
    shared_cluster: ClusterServer, one: KafkaProducer, keyed: bool
) -> None:
    topic = new_topic(shared_cluster, 1)
    one.send(topic, b"the topic is known").get(10)
    begun_s = time.monotonic()
    for _ in range(20):
        one.send_many(topic, VALUES[:3], keys=VALUES[:3] if keyed else None).get(10)
    assert time.monotonic() - begun_s < 3.0


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_each_codec_and_each_kind_of_acks(
    shared_cluster: ClusterServer, make_producer: MakeProducer, codec: str | None, acks: Any
) -> None:
    topic = new_topic(shared_cluster, 1)
    with make_producer(shared_cluster) as first:  # a new topic's leader may deny it, and hangs up
        first.send(topic, b"first").get(10)  # on acks=0
    producer = make_producer(
        shared_cluster,
        compression_type=codec,
        acks=acks,
        enable_idempotence=acks == "all",
        max_in_flight_requests_per_connection=5 if acks == "all" else 1,
        batch_size=2_000,
    )
    many = producer.send_many(topic, VALUES)
    producer.flush(10)
    assert many.succeeded()
    offsets = [metadata.offset for metadata in many.get(0)]
    assert offsets == ([-1] * 1000 if acks == 0 else list(range(1, 1001)))
    assert producer.health().buffer_bytes == 0
    producer.close()  # acks=0: what was handed over leaves, and is taken within ten seconds
    until(lambda: len(shared_cluster.records(topic, 0)) == 1001, 15.0)
    [[_, *stored]] = read_back(shared_cluster, topic)
    assert [record.value for record in stored] == VALUES


KEYS = [None, b"", b"a", b"b" * 300, b"c"]
SOME = [b"1", b"", None, b"4" * 5_000, b"5"]
HEADERS = [("trace", b"7"), ("ä", b"")]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("headers", [None, HEADERS])
@pytest.mark.parametrize("partition", [None, 1])
@pytest.mark.parametrize("timestamp_ms", [None, 1_700_000_000_000])
def test_a_record_and_its_metadata_are_those_of_send(
    shared_cluster: ClusterServer,
    make_producer: MakeProducer,
    keyed: bool,
    headers: Any,
    partition: int | None,
    timestamp_ms: int | None,
) -> None:
    values = [value if keyed else value or b"v" for value in SOME]
    values[0] = b"1"
    stored, told = [], []
    for in_one in (True, False):
        topic, producer = new_topic(shared_cluster, 3), make_producer(shared_cluster)
        begun_ms = time.time() * 1000 - 1
        rest = {"headers": headers, "partition": partition, "timestamp_ms": timestamp_ms}
        if in_one:
            keys = KEYS if keyed else None
            metadata = producer.send_many(topic, values, keys=keys, **rest).get(10)
        else:
            each = zip(values, KEYS if keyed else [None] * 5, strict=True)
            metadata = [producer.send(topic, v, key=k, **rest).get(10) for v, k in each]
        parts = read_back(shared_cluster, topic, 3)
        found = [parts[m.partition][m.offset] for m in metadata]
        times = {record.timestamp for record in found}
        assert times == {timestamp_ms} or begun_ms < min(times) <= max(times) < begun_ms + 9_000
        assert [record.timestamp for record in found] == [m.timestamp for m in metadata]
        key_bytes = [r.key for r in found]
        assert all(
            m.partition == (keyed_partition(key, (0, 1, 2)) if partition is None else partition)
            for m, key in zip(metadata, key_bytes, strict=True)
            if key is not None
        )
        stored.append([(r.key, r.value, r.headers) for r in found])
        told.append(
            [
                (m.serialized_key_size, m.serialized_value_size, m.serialized_header_size)
                for m in metadata
            ]
        )
    assert stored[0] == stored[1]
    assert told[0] == told[1]


def test_records_without_a_key_go_round_all_partitions(
    shared_cluster: ClusterServer, one: KafkaProducer
) -> None:
    topic = new_topic(shared_cluster, 3)
    metadata = one.send_many(topic, [b"v" * 1_000] * 600).get(10)
    counts = [sum(m.partition == p for m in metadata) for p in range(3)]
    assert min(counts) > 100
    turns = [len(list(turn)) for _, turn in itertools.groupby(m.partition for m in metadata)]
    assert max(turns) <= 16 * 2, "a batch each, of 16 KB"


@pytest.mark.parametrize(
    "kind", [list, tuple, iter, deque, lambda items: dict(enumerate(items)).values()]
)
def test_anything_will_do_that_gives_one_value_after_the_other(
    shared_cluster: ClusterServer, one: KafkaProducer, kind: Callable[[Any], Any]
) -> None:
    topic = new_topic(shared_cluster, 1)
    many = one.send_many(topic, kind(VALUES[:50]), keys=kind(VALUES[50:100]))
    assert len(many.get(10)) == 50
    assert values_in(shared_cluster, topic) == VALUES[:50]


def test_what_the_caller_changes_afterwards_changes_nothing(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    topic = new_topic(shared_cluster, 1)
    producer = make_producer(shared_cluster, linger_ms=100)
    values: list[Any] = [bytearray(b"one"), memoryview(bytearray(b"two")), b"three"]
    headers = [("h", b"1")]
    many = producer.send_many(topic, values, headers=headers)
    values[0][:] = b"???"
    values[1][:] = b"???"
    values.clear()
    headers.clear()
    many.get(10)
    assert values_in(shared_cluster, topic) == [b"one", b"two", b"three"]
    assert [list(r.headers) for r in shared_cluster.records(topic, 0)] == [[("h", b"1")]] * 3


def test_what_an_iterator_gives_again_and_again_is_taken_as_it_was(
    shared_cluster: ClusterServer, one: KafkaProducer, make_producer: MakeProducer
) -> None:
    topic = new_topic(shared_cluster, 1)

    def filled(buffer: Any) -> Iterator[Any]:
        for number in range(5):
            buffer[:] = b"%04d" % number
            yield buffer

    expected = [b"%04d" % n for n in range(5)]
    one.send_many(topic, filled(bytearray(4))).get(10)
    one.send_many(topic, filled(memoryview(bytearray(4)))).get(10)
    one.send_many(topic, [b"v"] * 5, keys=filled(bytearray(4))).get(10)
    one.send_many(topic, filled(bytearray(4)), keys=filled(bytearray(4))).get(10)
    stored = shared_cluster.records(topic, 0)
    assert [r.value for r in stored[:10]] == expected * 2
    assert [r.key for r in stored[10:15]] == expected
    assert [(r.key, r.value) for r in stored[15:]] == list(zip(expected, expected, strict=True))

    row: dict[str, int] = {}

    def rows() -> Iterator[dict[str, int]]:
        for number in range(5):
            row["n"] = number
            yield row

    class ByRow(Partitioner):
        def partition(self, *record: Any) -> Any:
            return record[3]["n"] % 2

    topic = new_topic(shared_cluster, 2)
    producer = make_producer(
        shared_cluster, value_serializer=Made(lambda r: b"%d" % r["n"]), partitioner=ByRow()
    )
    producer.send_many(topic, rows(), keys=(None for _ in rows())).get(10)
    assert values_in(shared_cluster, topic) == [b"0", b"2", b"4"]
    assert values_in(shared_cluster, topic, 1) == [b"1", b"3"]


def test_keys_are_put_in_order_of_their_partitions_and_keep_their_own(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    topic, count = new_topic(shared_cluster, 5), 10_000
    producer = make_producer(shared_cluster)
    strike(shared_cluster, Error(6, topic=topic, partition=4, times=1))  # only ids keep order then
    values = [b"%d" % n for n in range(count)]
    keys = [None if n % 7 == 3 else b"k%d" % (n * n % 300) for n in range(count)]
    many = producer.send_many(topic, values, keys)
    places = [(m.partition, m.offset) for m in many.get(10)]
    parts = [shared_cluster.records(topic, p) for p in range(5)]
    found = [parts[partition][offset] for partition, offset in places]
    assert [(r.key, r.value) for r in found] == list(zip(keys, values, strict=True))
    assert sum(map(len, parts)) == count
    assert [m.serialized_value_size for m in many.get(0)] == [len(value) for value in values]
    for n in (0, 1, 5_000, -1):
        assert (many[n].get(0).partition, many[n].get(0).offset) == places[n]
    by_key: dict[Any, list[int]] = {}
    for key, (_, offset) in zip(keys, places, strict=True):
        if key is not None:
            by_key.setdefault(key, []).append(offset)
    assert all(offsets == sorted(offsets) for offsets in by_key.values())
    strike(shared_cluster, Error(87, topic=topic, partition=2, times=2))
    bad = producer.send_many(topic, values, keys)
    failed = bad.failed(10)
    lost = [index for index, _ in failed]
    assert lost == sorted(lost)
    assert lost
    assert {keyed_partition(keys[n] or b"", range(5)) for n in lost if keys[n] is not None} == {2}
    assert [n for n, future in enumerate(bad) if future.failed()] == lost
    results = bad.results(0)
    assert all(results[index] is error for index, error in failed)


# --- what raises ----------------------------------------------------------------------------------

LARGE = b"v" * 1_100_000
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "one value": ({"values": b"abc"}, TypeError, "values must be a list"),
    "one text": ({"values": "abc"}, TypeError, "values must be a list"),
    "no list": ({"values": 7}, TypeError, "not iterable"),
    "a set": ({"values": {b"a"}}, TypeError, "in their order, and not a set"),
    "a frozen set": ({"values": frozenset([b"a"])}, TypeError, "and not a frozenset"),
    "a dict": ({"values": {b"k": b"v"}}, TypeError, "and not a dict"),
    "keys in a dict": ({"values": [b"v"], "keys": {b"k": 1}}, TypeError, "keys .* not a dict"),
    "keys in a set": ({"values": [b"v"], "keys": {b"k"}}, TypeError, "keys .* not a set"),
    "keys for ever": (
        {"values": [b"v"], "keys": itertools.repeat(b"k")},
        ValueError,
        "more keys than 1 values",
    ),
    "values for ever": (
        {"values": itertools.repeat(b"v"), "keys": [b"k"] * 3},
        ValueError,
        "3 keys for more values",
    ),
    "one key": ({"values": [b"v"], "keys": b"k"}, TypeError, "keys must be a list"),
    "fewer keys": ({"values": [b"v"] * 3, "keys": [b"k"] * 2}, ValueError, "2 keys for 3 values"),
    "more keys": ({"values": [b"v"], "keys": [b"k"] * 2}, ValueError, "2 keys for 1 values"),
    "nothing": ({"values": [b"v", None]}, ValueError, r"values\[1\]: Need at least one"),
    "no key either": (
        {"values": [b"v", None, None], "keys": [b"k", b"k", None]},
        ValueError,
        r"values\[2\]: Need at least one",
    ),
    "a text": ({"values": [b"v", b"v", "text"]}, TypeError, r"values\[2\]: .*value: .*str"),
    "a number as key": (
        {"values": [b"v"] * 2, "keys": [b"k", 7]},
        TypeError,
        r"keys\[1\]: .*key: .*int",
    ),
    "too large": (
        {"values": [b"v"] * 3 + [LARGE]},
        kafka.errors.MessageSizeTooLargeError,
        r"values\[3\]: .*max_request_size",
    ),
    "a large key": (
        {"values": [b"v"] * 3, "keys": [b"k", LARGE, b"k"]},
        kafka.errors.MessageSizeTooLargeError,
        r"values\[1\]: .*max_request_size",
    ),
    "large headers": (
        {"values": [b"v", b"v" * 900_000], "headers": [("h", b"w" * 200_000)]},
        kafka.errors.MessageSizeTooLargeError,
        r"values\[1\]: .*max_request_size",
    ),
    "headers": ({"values": [b"v"], "headers": [("h", "text")]}, TypeError, "headers items"),
    "partition": ({"values": [b"v"], "partition": -1}, ValueError, "partition must be >= 0"),
    "True": ({"values": [b"v"], "partition": True}, TypeError, "partition=True"),
    "no such": ({"values": [b"v"] * 9, "partition": 99}, ValueError, "Unrecognized partition: 99"),
    "time": ({"values": [b"v"], "timestamp_ms": -1}, ValueError, "timestamp_ms=-1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_raises_names_the_index_and_sends_nothing(
    shared_cluster: ClusterServer, one: KafkaProducer, name: str
) -> None:
    arguments, error, text = WRONG[name]
    topic = new_topic(shared_cluster, 1)
    one.send(topic, b"before").get(10)
    with pytest.raises(error, match=text):
        one.send_many(topic, **arguments)
    one.send(topic, b"after").get(10)
    assert values_in(shared_cluster, topic) == [b"before", b"after"]
    assert one.health().buffer_bytes == 0


def test_a_topic_name_is_checked_and_a_closed_producer_takes_nothing(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    producer = make_producer(shared_cluster)
    with pytest.raises(ValueError, match="illegal"):
        producer.send_many("no/topic", [b"v"])
    producer.close(1)
    with pytest.raises(ClosedError):
        producer.send_many("t", [])


def test_what_the_values_iterator_raises_comes_through(
    shared_cluster: ClusterServer, one: KafkaProducer
) -> None:
    topic = new_topic(shared_cluster, 1)
    with pytest.raises(ZeroDivisionError):
        one.send_many(topic, (b"%d" % (1 // n) for n in (1, 1, 0)))
    one.flush(10)
    assert values_in(shared_cluster, topic) == []


@settings(max_examples=200)
@given(
    limit=st.sampled_from([300, 20_000]),
    below=st.integers(-5, 60),
    key=st.none() | st.sampled_from([0, 5, 63, 64, 150]),
    header=st.none() | st.sampled_from([0, 50, 64]),
)
def test_the_largest_that_send_takes_is_the_largest_that_send_many_takes(
    limit: int, below: int, key: int | None, header: int | None
) -> None:
    with KafkaProducer(
        bootstrap_servers="127.0.0.1:9",
        max_block_ms=0,
        max_request_size=limit,
        metrics_enabled=False,
    ) as producer:
        headers = None if header is None else [("h", b"w" * header)]
        rest = limit - below - 93 - (header or 0) - (key or 0)
        value, key_bytes = b"v" * max(0, rest), None if key is None else b"k" * key

        def verdict(send: Callable[[], object]) -> type[Exception] | None:
            try:
                send()
            except Exception as error:
                return type(error)
            return None

        single = verdict(lambda: producer.send("t", value, key=key_bytes, headers=headers))
        keys = None if key is None else [key_bytes]
        many = verdict(lambda: producer.send_many("t", [value], keys, headers=headers))
        assert single is many
        assert single in (BlockedError, kafka.errors.MessageSizeTooLargeError)


# --- serializers and partitioners -----------------------------------------------------------------


class Made(Serializer):
    """By a function of the data."""

    def __init__(self, make: Callable[[Any], bytes | None]) -> None:
        self.make = make

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:  # noqa: ARG002
        return self.make(data)


class Numbers(Serializer):
    """Makes text of numbers, and tells how in a header."""

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
        if data is None:
            return None
        if data % 3 == 0:
            headers.append(("three", topic.encode()))
        return b"%d" % data


def test_serializers_see_each_record_and_may_add_headers_to_it(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    topic = new_topic(shared_cluster, 1)
    producer = make_producer(
        shared_cluster, value_serializer=Numbers(), key_serializer=Made(lambda key: key.encode())
    )
    given = [("h", b"1")]
    many = producer.send_many(topic, range(7), keys=[*"abcdefg"], headers=given)
    metadata = many.get(10)
    assert given == [("h", b"1")]
    [stored] = read_back(shared_cluster, topic)
    assert [(r.key, r.value) for r in stored] == [(b"%c" % (97 + n), b"%d" % n) for n in range(7)]
    three = ("three", topic.encode())
    assert [r.headers for r in stored] == [[*given, *([three] * (n % 3 == 0))] for n in range(7)]
    sizes = [2 + (5 + len(topic)) * (n % 3 == 0) for n in range(7)]
    assert [m.serialized_header_size for m in metadata] == sizes


def test_a_serializer_may_make_keys_where_there_are_none(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    topic = new_topic(shared_cluster, 3)
    producer = make_producer(shared_cluster, key_serializer=Made(lambda key: key or b"usual"))
    metadata = producer.send_many(topic, VALUES[:20]).get(10)
    assert {m.partition for m in metadata} == {keyed_partition(b"usual", (0, 1, 2))}
    assert {m.serialized_key_size for m in metadata} == {5}


@pytest.mark.parametrize("large", [False, True])
def test_what_a_serializer_does_wrong_sends_nothing_and_tells_where(
    shared_cluster: ClusterServer, make_producer: MakeProducer, large: bool
) -> None:
    topic = new_topic(shared_cluster, 1)
    producer = make_producer(
        shared_cluster,
        value_serializer=Made(lambda n: LARGE if large and n == 0 else b"%d" % (8 // n)),
    )
    if large:
        with pytest.raises(kafka.errors.MessageSizeTooLargeError, match=r"values\[2\]: "):
            producer.send_many(topic, [4, 2, 0, 1])
    else:
        with pytest.raises(ZeroDivisionError) as caught:
            producer.send_many(topic, [4, 2, 0, 1])
        if hasattr(caught.value, "__notes__"):  # from Python 3.11 on
            assert caught.value.__notes__ == ["It was values[2] of send_many()."]
    producer.flush(5)
    assert values_in(shared_cluster, topic) == []


def test_values_are_never_compared(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    """Arrays compare item by item, and have no truth."""

    class Array:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

    topic = new_topic(shared_cluster, 1)
    producer = make_producer(shared_cluster, value_serializer=Made(lambda _: b"array"))
    assert len(producer.send_many(topic, [Array(), Array()]).get(10)) == 2


class Noting(Partitioner):
    """Takes the next partition with each new batch, and notes its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.present = 0

    def partition(self, *record: Any) -> int:
        self.calls.append(record[1:5])
        return self.present

    def on_new_batch(self, *place: Any) -> None:
        self.calls.append(place[2])
        self.present = (self.present + 1) % 3


def test_a_partitioner_is_called_as_by_send(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    topic, calls = new_topic(shared_cluster, 3), []
    for in_one in (True, False):
        noting = Noting()
        producer = make_producer(
            shared_cluster,
            partitioner=noting,
            batch_size=300,
            linger_ms=200,
            value_serializer=Made(lambda value: value.encode()),
            key_serializer=Made(lambda key: key and key.encode()),
        )
        producer.partitions_for(topic)
        values, keys = ["v" * 50] * 20, [None, "k"] * 10
        if in_one:
            producer.send_many(topic, values, keys).get(10)
        else:
            for value, key in zip(values, keys, strict=True):
                producer.send(topic, value, key)
            producer.flush(10)
        calls.append(noting.calls)
    assert calls[0] == calls[1]
    assert calls[0][0] == (None, None, "v" * 50, b"v" * 50)
    assert sum(isinstance(call, int) for call in calls[0]) > 3


class Old:
    """kafka-python 2's, as an object."""

    def partition(self, topic: str, key: bytes | None, cluster: Any) -> int:
        return len(key or b"") % len(cluster.partitions_for_topic(topic))


def test_headers_of_serializers_and_places_of_a_partitioner_go_together(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    topic = new_topic(shared_cluster, 3)
    producer = make_producer(shared_cluster, partitioner=Noting(), value_serializer=Numbers())
    metadata = producer.send_many(topic, range(9), headers=[("h", b"1")]).get(10)
    parts = [shared_cluster.records(topic, partition) for partition in range(3)]
    found = [parts[m.partition][m.offset] for m in metadata]
    assert [record.value for record in found] == [b"%d" % n for n in range(9)]
    three = ("three", topic.encode())
    assert [list(r.headers) for r in found] == [
        [("h", b"1"), *([three] * (n % 3 == 0))] for n in range(9)
    ]


def test_headers_of_serializers_count_for_the_size(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    class Marking(Serializer):
        def serialize(self, _topic: str, headers: Any, data: int) -> bytes:
            headers.append(("h", b"w" * data))
            return b"v"

    topic = new_topic(shared_cluster, 1)
    producer = make_producer(shared_cluster, value_serializer=Marking(), max_request_size=500)
    with pytest.raises(kafka.errors.MessageSizeTooLargeError, match=r"values\[2\]: "):
        producer.send_many(topic, [100, 300, 500, 700])
    assert len(producer.send_many(topic, [100, 300]).get(10)) == 2


@pytest.mark.filterwarnings("ignore:partitioner does not implement:DeprecationWarning")
@pytest.mark.parametrize(
    "partitioner",
    [
        DefaultPartitioner(),
        Old(),
        lambda key, all_partitions, _: all_partitions[len(key or b"") % len(all_partitions)],
    ],
    ids=["default", "object", "function"],
)
def test_partitioners_of_all_forms(
    shared_cluster: ClusterServer, make_producer: MakeProducer, partitioner: Any
) -> None:
    topic = new_topic(shared_cluster, 3)
    producer = make_producer(shared_cluster, partitioner=partitioner)
    keys = [b"k" * n for n in range(30)]
    metadata = producer.send_many(topic, VALUES[:30], keys).get(10)
    expected = [keyed_partition(key, (0, 1, 2)) for key in keys]
    if not isinstance(partitioner, DefaultPartitioner):
        expected = [n % 3 for n in range(30)]
    assert [m.partition for m in metadata] == expected
    given = producer.send_many(topic, VALUES[:30], keys, partition=1).get(10)
    assert {m.partition for m in given} == {1}, "it is not asked"


# --- what comes back ------------------------------------------------------------------------------


class TestDeliveries:
    def test_it_is_a_sequence_of_futures(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 1)
        producer = make_producer(shared_cluster, batch_size=500)
        many = producer.send_many(topic, VALUES)
        assert len(many) == 1000
        assert many[7].get(10).offset == 7
        assert many[-1].get(10).offset == 999
        assert many[-1000].get(10).offset == 0
        assert [f.get(10).offset for f in many[10:30:5]] == [10, 15, 20, 25]
        assert [f.get(10).offset for f in many[-2:]] == [998, 999]
        assert [f.get(10).offset for f in many] == list(range(1000))
        assert [f.get(10).offset for f in reversed(many)] == list(range(999, -1, -1))
        assert [many[n].value.serialized_value_size for n in (0, 10, 100)] == [1, 2, 3]
        for index in (1000, -1001):
            with pytest.raises(IndexError, match=f"index {index} is out of range: 1000"):
                many[index]
        with pytest.raises(TypeError):
            many["1"]  # type: ignore[call-overload]

    def test_nothing_sent_is_done_at_once(self, one: KafkaProducer) -> None:
        told: list[object] = []
        many = one.send_many("no-topic-is-asked-about", []).add_both(told.append)
        assert (len(many), [*many], many[:]) == (0, [], [])
        assert (many.get(0), many.results(0), many.failed(0)) == ([], [], [])
        assert (many.is_done, many.succeeded(), many.node_id, many.gaps) == (True, True, -1, ())
        assert told == [many]
        assert repr(many) == "<Deliveries records=0 settled>"

    def test_it_keeps_no_record(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic, producer = new_topic(shared_cluster, 1), make_producer(shared_cluster)
        value = b"%d" % time.time_ns()
        before = sys.getrefcount(value)
        many = producer.send_many(topic, [value] * 10)
        keyed = producer.send_many(topic, [value] * 10, keys=[value] * 10)
        futures = [*many, *keyed]
        assert sys.getrefcount(value) == before
        assert all(future.get(10) for future in futures)

    def test_waiting_ends_in_time(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 1)
        producer = make_producer(shared_cluster)
        producer.send(topic, b"before").get(10)
        slow = Slow(0.6, api=PRODUCE, topic=topic, times=1)
        strike(shared_cluster, slow)
        many = producer.send_many(topic, VALUES)
        for call in (many.get, many.results, many.failed):
            for timeout_s in (0, 0.05):
                begun_s = time.monotonic()
                with pytest.raises(BlockedError, match=f"{timeout_s} secs"):
                    call(timeout_s)
                assert time.monotonic() - begun_s < 0.3
        assert not many.is_done
        assert not many.succeeded()
        assert repr(many) == "<Deliveries records=1000 pending>"
        assert (many.node_id, many.gaps) == (-1, ())
        assert [m.offset for m in many.get()] == list(range(1, 1001))
        assert many.succeeded()
        assert many.failed() == []
        assert many.node_id == shared_cluster.leader(topic, 0)[0]

    def test_its_time_is_for_all_and_not_for_each(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 1)
        producer = make_producer(
            shared_cluster, batch_size=500, max_in_flight_requests_per_connection=1
        )
        producer.send(topic, b"before").get(10)
        strike(shared_cluster, Slow(0.1, api=PRODUCE, topic=topic, times=12))
        many = producer.send_many(topic, VALUES)
        begun_s = time.monotonic()
        with pytest.raises(BlockedError):
            many.results(0.4)
        assert 0.3 < time.monotonic() - begun_s < 0.9
        assert len(many.results(10)) == 1000

    def test_a_batch_that_fails_is_told_by_index(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 1)
        producer = make_producer(shared_cluster, batch_size=1_000, enable_idempotence=False)
        producer.send(topic, b"before").get(10)
        strike(shared_cluster, Error(87, topic=topic, times=2))
        many = producer.send_many(topic, VALUES)
        failed = many.failed(10)
        lost = [index for index, _ in failed]
        stored = values_in(shared_cluster, topic)[1:]
        assert stored == [value for n, value in enumerate(VALUES) if n not in lost]
        assert 40 < len(lost) < 400
        assert len({id(error) for _, error in failed}) == 2, "one for each batch"
        results = many.results(0)
        assert all(results[index] is error for index, error in failed)
        good = [r.offset for r in results if not isinstance(r, DeliveryError)]
        assert good == list(range(1, len(stored) + 1))
        assert [n for n, future in enumerate(many) if future.failed()] == lost
        assert many.is_done
        assert not many.succeeded()
        for _ in range(2):
            with pytest.raises(DeliveryError) as caught:
                many.get(0)
            assert caught.value is failed[0][1]
        told: list[object] = []
        many.add_callback(told.append).add_errback(told.append)
        assert told == [many]

    def test_each_tells_of_its_own_records_in_a_batch_that_several_share(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 1)
        producer = make_producer(shared_cluster, linger_ms=200, enable_idempotence=False)
        producer.send(topic, b"before").get(10)
        strike(shared_cluster, Error(87, topic=topic, times=1))
        sent = [producer.send_many(topic, VALUES[:n]) for n in (3, 5, 4)]
        for many, count in zip(sent, (3, 5, 4), strict=True):
            assert [index for index, _ in many.failed(10)] == list(range(count))
            assert len(many.results(0)) == count
        assert len({id(error) for many in sent for _, error in many.failed(0)}) == 1
        sent = [producer.send_many(topic, VALUES[:n]) for n in (3, 5, 4)]
        offsets = [m.offset for many in sent for m in many.get(10)]
        assert offsets == list(range(1, 13))

    def test_callbacks_hear_once_of_all_on_the_io_thread(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 3)
        producer = make_producer(shared_cluster, batch_size=1_000)
        heard: list[Any] = []

        def hear(word: str, many: Any, *, end: str) -> None:
            heard.append((word + end, many, many.is_done, threading.current_thread()))

        many = producer.send_many(topic, VALUES, keys=VALUES)
        many.add_callback(hear, "good", end="!").add_errback(hear, "bad", end="!")
        many.add_both(hear, "both", end=".")
        producer.flush(10)
        assert sorted(word for word, *_ in heard) == ["both.", "good!"]
        assert all(what is many and done for _, what, done, _ in heard)
        assert all(thread is not threading.current_thread() for *_, thread in heard)
        many.add_callback(hear, "late", end="").add_errback(hear, "never", end="")
        assert [word for word, *_ in heard[2:]] == ["late"]

    def test_the_records_own_callbacks_run_first(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 1)
        producer = make_producer(shared_cluster, linger_ms=200)
        producer.send(topic, b"before").get(10)
        heard: list[Any] = []
        many = producer.send_many(topic, VALUES[:3]).add_both(lambda _: heard.append("all"))
        for n, future in enumerate(many):
            future.add_callback(lambda _, n=n: heard.append(n))
        many.add_both(lambda _: heard.append("all again"))
        producer.flush(10)
        assert heard == [0, 1, 2, "all", "all again"]
        here: list[Any] = []
        many.add_both(lambda _: here.append(threading.current_thread()))
        assert here == [threading.current_thread()], "it is settled: at once, where one asks"

    def test_a_records_futures_are_equal(
        self, shared_cluster: ClusterServer, one: KafkaProducer
    ) -> None:
        topic = new_topic(shared_cluster, 2)
        many = one.send_many(topic, VALUES[:50], keys=VALUES[:50])
        other = one.send_many(topic, VALUES[:50], keys=VALUES[:50])
        assert many[3] == many[3]
        assert many[3] != many[4]
        assert many[3] != other[3]
        assert many[3] != 3
        assert many[7] in many
        assert many[7] not in other
        assert (many.index(many[7]), many.count(many[7])) == (7, 1)
        assert len({*many, *many, *other}) == 100

    def test_callbacks_that_wait_hear_of_a_failure(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 1)
        producer = make_producer(shared_cluster, linger_ms=100, enable_idempotence=False)
        producer.send(topic, b"before").get(10)
        strike(shared_cluster, Error(87, topic=topic, times=1))
        heard: list[tuple[str, Any]] = []
        many = producer.send_many(topic, VALUES[:9])
        many.add_callback(lambda m: heard.append(("good", m)))
        many.add_errback(lambda m: heard.append(("bad", m)))
        many.add_both(lambda m: heard.append(("both", m)))
        assert heard == []
        producer.flush(10)
        assert sorted(heard) == [("bad", many), ("both", many)]

    def test_what_a_callback_raises_is_logged_and_others_run(
        self,
        shared_cluster: ClusterServer,
        make_producer: MakeProducer,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        topic = new_topic(shared_cluster, 1)
        heard: list[object] = []

        def fail(_: object) -> None:
            raise ZeroDivisionError

        producer = make_producer(shared_cluster)
        many = producer.send_many(topic, VALUES).add_both(fail).add_both(heard.append)
        producer.flush(10)
        many.add_callback(fail)
        assert heard == [many]
        logged = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert [record.getMessage() for record in logged] == [
            f"Error in a callback of {many!r}"
        ] * 2
        assert all(r.exc_info and r.exc_info[0] is ZeroDivisionError for r in logged)

    def test_waiting_in_a_callback_raises_instead_of_hanging(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic, raised = new_topic(shared_cluster, 3), []
        producer = make_producer(shared_cluster)
        producer.send_many(topic, VALUES, keys=VALUES).get(10)
        strike(shared_cluster, Slow(0.5, api=PRODUCE, topic=topic, partition=1, times=1))
        slow = producer.send_many(topic, VALUES, partition=1)

        def wait(_: object) -> None:
            with suppress(BlockedError):
                slow.get(0)
                raised.append("not blocked")
            for call in (slow.get, slow.results, slow.failed):
                with pytest.raises(kafka.errors.IllegalStateError, match="in a callback"):
                    call(5)
                raised.append(call.__name__)

        producer.send_many(topic, [b"v"], partition=0).add_callback(wait).get(10)
        producer.flush(10)
        assert raised == ["get", "results", "failed"]
        assert slow.succeeded()

    def test_it_can_be_awaited(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 1)
        producer = make_producer(shared_cluster, batch_size=1_000)

        async def app() -> None:
            many = await asyncio.to_thread(producer.send_many, topic, VALUES)
            assert [m.offset for m in await many] == list(range(1000))
            assert await many == many.get(0)
            first, second = await asyncio.gather(
                producer.send_many(topic, VALUES), producer.send_many(topic, VALUES)
            )
            assert [m.offset for m in (*first, *second)] == list(range(1000, 3000))
            assert await producer.send_many(topic, []) == []
            strike(shared_cluster, Error(87, topic=topic, times=1))
            bad = producer.send_many(topic, VALUES)
            with pytest.raises(DeliveryError):
                await bad
            assert bad.is_done
            strike(shared_cluster, Slow(0.3, api=PRODUCE, topic=topic, times=1))
            slow = producer.send_many(topic, VALUES)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.ensure_future(collected(slow)), 0.05)
            assert len(await slow) == 1000

        async def collected(many: Any) -> Any:
            return await many

        asyncio.run(app())


@pytest.mark.timed
def test_it_costs_a_fraction_of_as_many_sends(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    topic, values = new_topic(shared_cluster, 3), [b"v" * 100] * 20_000
    producer = make_producer(shared_cluster)
    producer.send_many(topic, values[:100]).get(10)
    single_s = many_s = float("inf")
    for _ in range(3):
        begin_s = time.thread_time()
        for value in values:
            producer.send(topic, value)
        single_s = min(single_s, time.thread_time() - begin_s)
        producer.flush()
        begin_s = time.thread_time()
        producer.send_many(topic, values)
        many_s = min(many_s, time.thread_time() - begin_s)
        producer.flush()
    print(f"{single_s / many_s:.1f} times as much")
    assert many_s < single_s / 2
