"""What a leader says to records that it cannot take, and that it takes none of them."""

from __future__ import annotations

import re
import struct
import time

import pytest
from kafka.record.util import calc_crc32c

from tests.contract import wire
from tests.contract.world import World
from tests.contract.writer import Writer

ALL = (1, 2, 3)
HOUR_MS = 3_600_000
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def patched(position: int, layout: str, value: int, raw: bytes | None = None, crc=True) -> bytes:
    """A batch with one field changed, its checksum made right again if `crc`."""
    data = bytearray(wire.batch() if raw is None else raw)
    struct.pack_into(layout, data, position, value)
    if crc:
        struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    return bytes(data)


def said(part, topic: str = "<topic>") -> str:
    """Code, records at fault, text."""
    errors = [f"record {e.batch_index}: {e.batch_index_error_message}" for e in part.record_errors]
    texts = [] if part.error_message is None else [f"text: {part.error_message}"]
    told = "; ".join([str(part.error_code), *errors, *texts])
    return re.sub(r"\d{10,}", "<ms>", told.replace(topic, "<topic>"))


@pytest.fixture
def writer(world: World) -> Writer:
    return Writer(world, world.create_topic(ALL))


BAD = {
    "a flipped byte (CRC)": lambda: patched(len(wire.batch()) - 1, ">B", 0xAA, crc=False),
    "a flipped CRC": lambda: patched(17, ">I", 1, crc=False),
    "magic 9": lambda: patched(16, ">b", 9),
    "magic -1": lambda: patched(16, ">b", -1),
    "magic 1": lambda: patched(16, ">b", 1),
    "magic 0": lambda: patched(16, ">b", 0),
    "codec 5": lambda: patched(21, ">h", 5),
    "codec 7": lambda: patched(21, ">h", 7),
    "gzip bit on plain bytes": lambda: patched(21, ">h", GZIP),
    "snappy bit on plain bytes": lambda: patched(21, ">h", SNAPPY),
    "lz4 bit on plain bytes": lambda: patched(21, ">h", LZ4),
    "zstd bit on plain bytes": lambda: patched(21, ">h", ZSTD),
    "two batches": lambda: wire.batch() * 2,
    "a batch and a stray byte": lambda: wire.batch() + b"\0",
    "a batch and 12 zero bytes": lambda: wire.batch() + bytes(12),
    "a batch and a second one cut short": lambda: wire.batch() + wire.batch()[:40],
    "a batch and a second one of magic 9": lambda: wire.batch() + patched(16, ">b", 9),
    "a truncated batch of magic 9": lambda: patched(16, ">b", 9)[:-3],
    "a truncated batch": lambda: wire.batch()[:-3],
    "a batch cut in its header": lambda: wire.batch()[:40],
    "eleven bytes": lambda: wire.batch()[:11],
    "an empty batch": lambda: b"",
    "length 1": lambda: patched(8, ">i", 1),
    "length 0": lambda: patched(8, ">i", 0),
    "length -1": lambda: patched(8, ">i", -1),
    "length 14": lambda: patched(8, ">i", 14),
    "length 48": lambda: patched(8, ">i", 48),
    "length 49": lambda: patched(8, ">i", 49),
    "length one too small": lambda: patched(8, ">i", len(wire.batch()) - 13),
    "length one too large": lambda: patched(8, ">i", len(wire.batch()) - 11),
    "length 2147483647": lambda: patched(8, ">i", 2_147_483_647),
    "record count 3 of 1": lambda: patched(57, ">i", 3),
    "record count 0 of 1": lambda: patched(57, ">i", 0),
    "record count -1": lambda: patched(57, ">i", -1),
    "count 2, last offset delta 1, of 1 record": lambda: patched(57, ">i", 2, patched(23, ">i", 1)),
    "count 1, last offset delta 0, of 2 records": lambda: patched(
        57, ">i", 1, patched(23, ">i", 0, wire.batch(count=2))
    ),
    "no records at all": lambda: patched(57, ">i", 0, patched(23, ">i", -1)),
    "last offset delta 1 of 1 record": lambda: patched(23, ">i", 1),
    "base offset 4": lambda: patched(0, ">q", 4),
    "partition leader epoch 9": lambda: patched(12, ">i", 9),
    "the control bit": lambda: patched(21, ">h", 0x20),
    "the delete horizon bit": lambda: patched(21, ">h", 0x40),
    "the log append time bit": lambda: patched(21, ">h", 0x08),
    "an unknown attribute bit": lambda: patched(21, ">h", 0x80),
    "an id without a sequence": lambda: patched(43, ">q", 5),
    "a sequence without an id": lambda: patched(53, ">i", 5),
    "an id with a sequence of -2": lambda: patched(43, ">q", 5, patched(53, ">i", -2)),
    "an id with epoch -1": lambda: patched(51, ">h", -1, wire.batch(5, 0, 0)),
    "the transactional bit": lambda: wire.batch(5, 0, 0, transactional=True),
    "the transactional bit without an id": lambda: patched(21, ">h", 0x10),
    "a record length beyond the batch": lambda: patched(61, ">B", 0x7E),
    "a record length of 0": lambda: patched(61, ">B", 0),
    "record attributes 1": lambda: patched(62, ">B", 1),
    "a record's offset delta 1 in place of 0": lambda: patched(64, ">B", 2),
    "max timestamp that no record has": lambda: patched(35, ">q", 5),
    "first timestamp of -1": lambda: wire.batch(timestamp_ms=-1),
    "timestamp of 1970": lambda: wire.batch(timestamp_ms=0),
    "a timestamp 50 minutes ahead": lambda: wire.batch(timestamp_ms=ahead_ms(50)),
    "null value": lambda: wire.batch(value=None),
    "null key and value": lambda: wire.batch(key=None, value=None),
}


def ahead_ms(minutes: int) -> int:
    return int(time.time() * 1000) + minutes * 60_000


def test_bad_batches(contract, writer) -> None:
    for name, raw in BAD.items():
        part = writer.send_raw(raw()).part()
        contract(name, said(part, writer.topic))


def test_bad_batches_leave_no_trace(contract, world, writer) -> None:
    for code in ("magic 9", "two batches", "codec 5", "record count 3 of 1"):
        writer.send_raw(BAD[code]()).part()
    contract("the log after four bad batches", world.log(1, writer.topic))
    contract("the offset of a good one after them", writer.told())


def test_good_beside_bad(contract, world) -> None:
    topic = world.create_topic(ALL, ALL)
    node = world.connect(1)
    for name in (
        "a flipped byte (CRC)",
        "two batches",
        "a batch and a second one of magic 9",
        "magic 9",
        "length 1",
        "length 14",
        "length 2147483647",
        "the transactional bit",
    ):
        call = node.send(wire.produce([(topic, 0, BAD[name]()), (topic, 1, wire.batch())]), 12)
        codes = [call.part(topic, index).error_code for index in (0, 1)]
        contract(f"in one request with a good batch: {name}", codes)


def test_keyless_on_compacted(contract, world) -> None:
    w = Writer(world, world.create_topic(ALL, cleanup_policy="compact"))
    keyless = wire.batch(w.producer_id, 0, 0, 5, key=None)
    told = said(w.send_raw(keyless).part(), w.topic)
    contract("5 records without key for a compacted topic", told)
    old = w.send_raw(keyless, version=7).part()
    contract("5 records without key, Produce v7", f"{old.error_code}, offset {old.base_offset}")
    contract("5 records without key: the log", world.log(1, w.topic))
    contract("5 records without key: their sequence is free", w.told(0, count=5))
    again = said(w.send_raw(keyless).part(), w.topic)
    contract("keyless, though the sequence is known: as above", again == told)
    contract("a tombstone for a compacted topic", w.told(5, value=None))
    zipped = w.send(6, count=2, key=None, codec=GZIP, value=LONG).part()
    contract("2 keyless records, gzip", said(zipped, w.topic))
    hole = w.send(90, key=None).part()
    contract("keyless, with a hole", said(hole, w.topic))


def test_timestamps(contract, writer) -> None:
    late = writer.send(timestamp_ms=ahead_ms(120), count=2).part()
    contract("timestamps 2 hours ahead", said(late, writer.topic))
    zipped = writer.send(timestamp_ms=ahead_ms(120), count=2, codec=GZIP, value=LONG).part()
    contract("timestamps 2 hours ahead, gzip", said(zipped, writer.topic))
    old = writer.send(timestamp_ms=ahead_ms(120), version=7).part()
    contract("timestamps 2 hours ahead, Produce v7", said(old, writer.topic))


def exactly(size: int) -> bytes:
    """A batch of so many bytes."""
    return next(raw for n in range(size) if len(raw := wire.batch(value=b"x" * n)) == size)


def test_large(contract, world) -> None:
    w = Writer(world, world.create_topic(ALL, max_message_bytes=1000))
    told = [w.send_raw(exactly(size)).told() for size in (1000, 1001)]
    contract("batches of max.message.bytes and of one byte more", ", ".join(told))
    w = Writer(world, world.create_topic(ALL, max_message_bytes=1000))
    large = {"value": b"x" * 1200}
    contract("a batch over max.message.bytes", said(w.send(0, **large).part()))
    many = {"count": 20, "value": b"x" * 60}
    contract("20 records over max.message.bytes together", w.told(0, **many))
    contract("20 records over it, small enough with gzip", w.told(0, codec=GZIP, **many))
    contract("after 20 records: the next sequence", w.told(20))
    contract("a known sequence, too large", w.told(20, **large))
    contract("too large, with a hole", w.told(90, **large))
    bad = patched(17, ">I", 1, wire.batch(**large), crc=False)
    contract("too large and a bad CRC", said(w.send_raw(bad).part()))
    counted = patched(57, ">i", 3, wire.batch(**large))
    contract("too large and a bad count", said(w.send_raw(counted).part()))


def test_order_of_checks(contract, world) -> None:
    w = Writer(world, world.create_topic(ALL, (2, 3, 1)))
    other = Writer(world, w.topic)
    other.partition = 1
    w.told(0)
    bad_count = patched(57, ">i", 3, wire.batch(w.producer_id, 0, 9))
    contract("a bad count and a hole", said(w.send_raw(bad_count).part()))
    bad_crc = patched(17, ">I", 1, patched(57, ">i", 3), crc=False)
    contract("a bad CRC and a bad count", said(w.send_raw(bad_crc).part()))
    based = patched(17, ">I", 1, patched(0, ">q", 4), crc=False)
    contract("a bad CRC and a base offset of 4", said(w.send_raw(based).part()))
    contract("acks=2 and magic 1", said(w.send_raw(BAD["magic 1"](), acks=2).part()))
    contract("acks=2 and a bad CRC", said(w.send_raw(BAD["a flipped CRC"](), acks=2).part()))
    for name in ("magic 9", "magic 1", "two batches", "an empty batch", "a flipped CRC"):
        part = other.send_raw(BAD[name]()).part()
        contract(f"at a follower: {name}", said(part))
    request = wire.produce([(w.topic, 9, BAD["magic 1"]())])
    contract("unknown partition and magic 1", w.wire.send(request, 12).told())
    request = wire.produce([(w.topic, 9, wire.batch())], acks=2)
    contract("unknown partition and acks=2", w.wire.send(request, 12).told())
    part = other.send(acks=2).part()
    contract("at a follower: acks=2", said(part))
    w.wire.expect_none(w.send_raw(BAD["magic 9"](), acks=0))
    contract("acks=0 and magic 9: the connection", w.wire.ended_within(5.0))


LONG = b"x" * 500  # worth compressing


def test_codecs(contract, writer) -> None:
    for codec, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        sent = {v: writer.send(codec=codec, value=LONG, version=v) for v in (3, 6, 7, 12)}
        told = [call.part().error_code for call in sent.values()]
        contract(f"codec {name}, Produce v3, v6, v7, v12", told)
    for codec, name in ((GZIP, "gzip"), (LZ4, "lz4"), (ZSTD, "zstd")):
        raw = wire.batch(codec=codec, value=LONG)
        broken = patched(len(raw) - 20, ">Q", 0x5555555555555555, raw)
        contract(f"{name}, damaged with the CRC right", said(writer.send_raw(broken).part()))
        counted = patched(57, ">i", 2, patched(23, ">i", 1, raw))
        contract(f"{name}, count 2 of 1 record", said(writer.send_raw(counted).part()))


def test_null_records(contract, world, writer) -> None:
    node = world.connect(1)
    node.send(wire.produce([(writer.topic, 0, None)]), 12)
    behind = node.send(wire.api_versions(), 3)
    told = "no answer" if node.is_silent(0.5) else behind.answer()
    contract("null records, and ApiVersions behind them", told)
