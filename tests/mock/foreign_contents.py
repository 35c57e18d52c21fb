"""What outlast writes for others to read, on the mock and on a real Kafka: the same stories.

A story writes to a topic and knows what must be read there: each record with the offset and the
timestamp that its future told. `assert_all_read` holds three foreign consumers to that. Codecs and
producer epochs are read from the log itself, so that a story that misses its point fails.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing
from typing import Any, NamedTuple, Protocol

import kafka.admin
import pytest
from kafka.errors import MessageSizeTooLargeError
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record.default_records import DefaultRecordBatchBuilder

from outlast import DeliveryError, KafkaProducer
from outlast.engine.record_batch import RecordBatchBuilder
from tests.mock.foreign_readers import READERS, Contents, Headers, Seen

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]  # in the order of their bits on the wire
MAX_REQUEST_BYTES = 1_048_576
SETTLED_S = 30.0


class Judged(Protocol):
    """A cluster: the mock over TCP, or a real one."""

    @property
    def bootstrap(self) -> str: ...

    def log(self, topic: str, partition: int) -> bytes:
        """The batches of a partition as its leader keeps them."""

    def silenced(self, topic: str) -> AbstractContextManager[None]:
        """The leader of partition 0 says nothing meanwhile, and nobody takes its place."""

    def crash_and_return(self, topic: str) -> None:
        """Kill the leader of partition 0, see it gone, and start it again."""


# --- the log itself -------------------------------------------------------------------------------


class Header(NamedTuple):
    """What a batch in the log tells of itself."""

    codec: int
    producer_id: int
    epoch: int
    sequence: int
    count: int  # type: ignore[assignment]  # of its records, and not tuple's


def headers_in(log: bytes) -> list[Header]:
    """Of every batch, in order."""
    found, at = [], 0
    while at < len(log):
        (length,) = struct.unpack_from(">i", log, at + 8)
        (attributes,) = struct.unpack_from(">h", log, at + 21)
        producer_id, epoch, sequence, count = struct.unpack_from(">qhii", log, at + 43)
        found.append(Header(attributes & 7, producer_id, epoch, sequence, count))
        at += 12 + length
    return found


# --- writing --------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """A record to be written."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


SHAPES = [
    Wanted(b"value", b"key", (("a", b"1"), ("b", b"2"))),
    Wanted(b"no key"),
    Wanted(None, b"tombstone"),
    Wanted(b"", b""),
    Wanted(None, b""),
    Wanted(b"empty header", b"k", (("", b""), ("name", b""))),
    Wanted(b"repeated", b"k", (("a", b"1"), ("a", b"2"), ("ü", b"\0\xff"), ("a", b"1"))),
    Wanted(b"many headers", b"k", tuple((f"h{n}", b"%d" % n) for n in range(130))),
    Wanted(b"early", b"k", (), 1),
    Wanted(b"later", b"k", (), 1_600_000_000_000),
    Wanted(b"earlier again", b"k", (), 1_234_567),
    Wanted(b"compressible " * 4_000, b"long"),
    *(Wanted(b"%d" % n, b"k%d" % (n % 7), (), 1_700_000_000_000 - 37 * n) for n in range(300)),
]


def make_topic(world: Judged, name: str, partitions: int, **configs: str) -> str:
    """With three replicas, by kafka-python's admin; a config's dots are written as underscores."""
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=world.bootstrap)) as admin:
        admin.create_topics([kafka.admin.NewTopic(name, partitions, 3, topic_configs=dotted)])
        admin.wait_for_topics([name])
    return name


def write(
    producer: KafkaProducer, topic: str, partition: int, wanted: Iterable[Wanted]
) -> list[Seen]:
    """Send the records; returns what their futures say is in the log."""
    wanted = list(wanted)
    futures = [
        producer.send(
            topic,
            w.value,
            key=w.key,
            headers=list(w.headers),
            partition=partition,
            timestamp_ms=w.timestamp_ms,
        )
        for w in wanted
    ]
    told = [future.get(timeout=SETTLED_S) for future in futures]
    return [
        Seen(metadata.offset, metadata.timestamp, w.key, w.value, w.headers)
        for w, metadata in zip(wanted, told, strict=True)
    ]


def producer_of(world: Judged, **keywords: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=world.bootstrap, metrics_registry=None, **keywords)


def append(world: Judged, topic: str, batch: bytes) -> int:
    """Produce a batch to partition 0 by hand, at whichever node leads; returns its offset."""
    entry = ProduceRequest.TopicProduceData
    part = entry.PartitionProduceData(index=0, records=batch)
    for address in world.bootstrap.split(","):
        host, _, port = address.rpartition(":")
        topic_data = [entry(name=topic, partition_data=[part])]
        request = ProduceRequest(version=9, acks=-1, timeout_ms=10_000, topic_data=topic_data)
        request.with_header(correlation_id=1, client_id="by-hand")
        with socket.create_connection((host, int(port)), 10) as wire, wire.makefile("rb") as answer:
            wire.sendall(request.encode(version=9, header=True, framed=True))
            (size,) = struct.unpack(">i", answer.read(4))
            response = ProduceResponse.decode(answer.read(size), version=9, header=True)
        (told,) = response.responses[0].partition_responses
        if told.error_code == 0:
            return told.base_offset
    raise AssertionError(f"no node takes it: {told}")


def assert_all_read(world: Judged, topic: str, expected: Contents) -> None:
    """Each foreign consumer reads these records, at these offsets, and nothing else."""
    for reader in READERS:
        found = reader(world.bootstrap, topic, len(expected))
        for partition, records in expected.items():
            assert [_short(s) for s in found[partition]] == [_short(s) for s in records], (
                reader.__name__,
                partition,
            )
            assert found[partition] == records, (reader.__name__, partition)


def _short(seen: Seen) -> Any:
    """What a failure need not print is left out."""
    return seen._replace(value=seen.value and (len(seen.value), seen.value[:20]))


# --- stories --------------------------------------------------------------------------------------


def every_shape_in_every_codec(world: Judged) -> None:
    """Partition = codec: keys, tombstones, headers and timestamps of every kind, in few batches."""
    topic = make_topic(world, "shapes", len(CODECS))
    expected = {}
    for partition, codec in enumerate(CODECS):
        with producer_of(
            world, compression_type=codec, linger_ms=50, batch_size=40_000
        ) as producer:
            expected[partition] = write(producer, topic, partition, SHAPES)
        kept = headers_in(world.log(topic, partition))
        assert partition in {header.codec for header in kept}
        assert max(header.count for header in kept) > 100
        assert [seen.offset for seen in expected[partition]] == list(range(len(SHAPES)))
        for seen, wanted in zip(expected[partition], SHAPES, strict=True):
            assert wanted.timestamp_ms in (None, seen.timestamp_ms)
    assert_all_read(world, topic, expected)


def big_records(world: Judged) -> None:
    """Partition = codec: the largest that `send` takes, as chance wrote them and all alike."""
    topic = make_topic(world, "big", len(CODECS))
    estimate = DefaultRecordBatchBuilder.estimate_size_in_bytes
    size = MAX_REQUEST_BYTES
    while estimate(b"key", bytes(size), []) > MAX_REQUEST_BYTES:
        size -= 1
    rng = random.Random(1)
    expected = {}
    for partition, codec in enumerate(CODECS):
        values = [rng.randbytes(size), b"x" * size, b"small", rng.randbytes(size // 2)]
        with producer_of(world, compression_type=codec) as producer:
            wanted = [Wanted(value, b"key") for value in values]
            expected[partition] = write(producer, topic, partition, wanted)
            with pytest.raises(MessageSizeTooLargeError):
                producer.send(topic, rng.randbytes(size + 1), key=b"key", partition=partition)
    assert_all_read(world, topic, expected)


def header_without_value(world: Judged) -> None:
    """`send` refuses it, as kafka-python does; Kafka knows it, and so does the encoder."""
    topic = make_topic(world, "no-value", 1)
    headers = [("none", None), ("empty", b""), ("none", None)]
    with producer_of(world) as producer:
        records = write(producer, topic, 0, [Wanted(b"before")])
        with pytest.raises(TypeError, match="None"):
            producer.send(topic, b"value", headers=headers, partition=0)
    builder = RecordBatchBuilder()
    for value in (b"1", None):
        builder.append(1_600_000_000_000, b"key", value, headers)
        records.append(Seen(len(records), 1_600_000_000_000, b"key", value, tuple(headers)))
    assert append(world, topic, bytes(builder.seal(0))) == 1
    assert_all_read(world, topic, {0: records})


def bigger_than_a_fetch(world: Judged) -> None:
    """Records of three times what a consumer asks for at once, where the topic takes them."""
    topic = make_topic(world, "bigger", 1, max_message_bytes=str(4 << 20))
    value = random.Random(2).randbytes(3 << 20)
    with producer_of(world, max_request_size=4 << 20) as producer:
        expected = {0: write(producer, topic, 0, [Wanted(value), Wanted(b"small"), Wanted(value)])}
    assert_all_read(world, topic, expected)


def time_of_the_log(world: Judged) -> None:
    """Where brokers write the timestamps, the futures tell theirs."""
    begin_ms = time.time_ns() // 1_000_000
    topic = make_topic(world, "appended", 1, message_timestamp_type="LogAppendTime")
    with producer_of(world, linger_ms=20, compression_type="lz4") as producer:
        expected = {0: write(producer, topic, 0, SHAPES)}
    assert min(seen.timestamp_ms for seen in expected[0]) >= begin_ms
    assert_all_read(world, topic, expected)


def epochs_and_restarts(world: Judged) -> None:
    """A producer that must begin a new epoch, as the end of a record stays unknown; a crash of the
    leader; and another producer after it.
    """
    topic = make_topic(world, "epochs", 1)
    records: list[Seen] = []

    def numbered() -> list[Wanted]:
        return [Wanted(b"%d" % (len(records) + n), b"key") for n in range(100)]

    unknown = Wanted(b"unknown", b"key", (), 1_600_000_000_000)
    with producer_of(world, delivery_timeout_ms=3000, request_timeout_ms=1000) as producer:
        records += write(producer, topic, 0, numbered())
        with world.silenced(topic):
            future = producer.send(
                topic, unknown.value, unknown.key, partition=0, timestamp_ms=unknown.timestamp_ms
            )
            with pytest.raises(DeliveryError):
                future.get(timeout=SETTLED_S)
        after = write(producer, topic, 0, numbered())
    if after[0].offset > len(records):  # it was in a socket of the silent broker
        records.append(Seen(100, 1_600_000_000_000, unknown.key, unknown.value, ()))
    records += after
    world.crash_and_return(topic)
    with producer_of(world) as producer:
        records += write(producer, topic, 0, numbered())
    stamps = {(header.producer_id, header.epoch) for header in headers_in(world.log(topic, 0))}
    assert len(stamps) == 3, stamps
    assert [seen.offset for seen in records] == list(range(len(records)))
    assert_all_read(world, topic, {0: records})


STORIES = [
    every_shape_in_every_codec,
    big_records,
    header_without_value,
    bigger_than_a_fetch,
    time_of_the_log,
    epochs_and_restarts,
]
