"""Record batches, format 2: written one record at a time, sealed once, stamped when sent.

    0  base offset (8)      8  length (4)        12  leader epoch (4)    16  magic (1)
   17  CRC-32C (4)         21  attributes (2)    23  last offset delta   27  first timestamp (8)
   35  max timestamp (8)   43  producer id (8)   51  producer epoch (2)  53  base sequence (4)
   57  record count (4)    61  records, compressed as one block

The encoder exists for speed: one bytearray per batch, a table of varints, no object per record.
Its output is byte for byte what kafka-python's `MemoryRecordsBuilder` writes (tests hold it to
that), except that gzip's header carries no time of day: equal records give equal bytes.

Rules of this file:

* A batch is sealed once: compression runs once, and retries are byte-identical (rule 1).
* Producer id, epoch and sequence are not the encoder's: `stamp` writes them into the header of a
  sealed batch. The CRC covers them and is written again; the records are not touched.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kafka import codec
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record import MemoryRecords
from kafka.record.util import calc_crc32c

HEADER_BYTES: Final = 61
MAGIC: Final = 2

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PRODUCER: Final = struct.Struct(">qhi")
_UINT32: Final = struct.Struct(">I")
_LENGTH_END: Final = 12  # the length field counts what follows it
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_ATTRIBUTES_END: Final = 22
_TRANSACTIONAL: Final = 0x10
_PRODUCER_AT: Final = 43

Headers = Sequence[tuple[str, bytes | None]]


def _encode_varint(value: int) -> bytes:
    """A signed integer as a zigzag varint.

    Raises:
        OverflowError: it does not fit into 64 bits.
    """
    if not -1 << 63 <= value < 1 << 63:
        raise OverflowError(f"{value} does not fit into 64 bits")
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(0x80 | (rest & 0x7F))
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


_TABLE_SIZE: Final = 1 << 14
_VARINTS: Final = [_encode_varint(n) for n in range(_TABLE_SIZE)]
_NULL: Final = _encode_varint(-1)  # the length of a missing key or value
_NO_HEADERS: Final = b"\x00"


def _varint(value: int) -> bytes:
    return _VARINTS[value] if 0 <= value < _TABLE_SIZE else _encode_varint(value)


class RecordBatchBuilder:
    """One batch being filled. Trusts its caller about types and sizes.

    Attributes:
        count: records so far.
        size_bytes: size of the batch so far, header included, before compression. It keeps its
            value when the batch is sealed.
    """

    __slots__ = ("_base_ms", "_buffer", "_max_ms", "count", "size_bytes")

    def __init__(self) -> None:
        self._buffer: bytearray | None = bytearray(HEADER_BYTES)
        self._base_ms = 0
        self._max_ms = 0
        self.count = 0
        self.size_bytes = HEADER_BYTES

    def __repr__(self) -> str:
        state = "sealed" if self._buffer is None else "open"
        return f"<RecordBatchBuilder {state} records={self.count} bytes={self.size_bytes}>"

    def append(
        self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Add a record.

        Raises:
            OverflowError: the timestamp is not within 64 bits of the batch's first one.
                Nothing was added.
        """
        buffer = self._buffer
        assert buffer is not None, "a sealed batch takes no record"
        index = self.count
        if index == 0:
            self._base_ms = self._max_ms = timestamp_ms
        delta = timestamp_ms - self._base_ms
        varints = _VARINTS
        body = b"".join(
            (
                b"\x00",
                varints[delta] if 0 <= delta < _TABLE_SIZE else _encode_varint(delta),
                varints[index] if index < _TABLE_SIZE else _encode_varint(index),
                _NULL if key is None else _varint(len(key)),
                key or b"",
                _NULL if value is None else _varint(len(value)),
                value or b"",
                _encode_headers(headers) if headers else _NO_HEADERS,
            )
        )
        if timestamp_ms > self._max_ms:
            self._max_ms = timestamp_ms
        size = len(body)
        buffer += varints[size] if size < _TABLE_SIZE else _encode_varint(size)
        buffer += body
        self.size_bytes = len(buffer)
        self.count = index + 1

    def extend(
        self,
        timestamp_ms: int,
        keys: Iterable[bytes | None],
        values: Iterable[bytes | None],
        headers: Headers,
    ) -> None:
        """Add records of one time and with the same headers: byte for byte what `append` makes,
        but what stands around keys and values is made once for all that are as long as the last.

        Raises:
            OverflowError: as `append`; nothing was added.
        """
        buffer = self._buffer
        assert buffer is not None, "a sealed batch takes no record"
        if self.count == 0:
            self._base_ms = self._max_ms = timestamp_ms
        begin = b"\x00" + _varint(timestamp_ms - self._base_ms)
        end = _encode_headers(headers) if headers else _NO_HEADERS
        fixed_size = len(begin) + len(end)
        key_size = value_size = offset_size = -2  # of the last record
        lead = key_head = value_head = b""
        parts: list[bytes] = []
        index = self.count
        for key, value in zip(keys, values, strict=False):
            offset = _VARINTS[index] if index < _TABLE_SIZE else _encode_varint(index)
            index += 1
            k = -1 if key is None else len(key)
            v = -1 if value is None else len(value)
            if k != key_size or v != value_size or len(offset) != offset_size:
                key_size, value_size, offset_size = k, v, len(offset)
                key_head, value_head = _varint(k), _varint(v)
                size = fixed_size + offset_size + len(key_head) + len(value_head)
                lead = _varint(size + max(k, 0) + max(v, 0)) + begin
            parts += (lead, offset, key_head, key or b"", value_head, value or b"", end)
        if timestamp_ms > self._max_ms:
            self._max_ms = timestamp_ms
        buffer += b"".join(parts)
        self.size_bytes = len(buffer)
        self.count = index

    def mend(self) -> None:
        """Take away what an `append` that was cut off has left behind. It may leave the batch's
        newest time a record too late, which nobody can tell from a record that was sent.
        """
        buffer = self._buffer
        if buffer is not None:
            del buffer[self.size_bytes :]

    def seal(self, codec_bits: int) -> bytearray:
        """End the batch and return its bytes, without a producer id (see `stamp`).

        A block that compression would not make smaller stays uncompressed.

        Args:
            codec_bits: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.

        Raises:
            UnsupportedCodecError: the codec's library is not installed. The batch stays open.
        """
        batch = self._buffer
        assert batch is not None, "a batch is sealed once"
        assert self.count, "an empty batch is never sent"
        if codec_bits:
            with memoryview(batch) as view, view[HEADER_BYTES:] as records:
                block = _compress(codec_bits, records)
            if len(block) < len(batch) - HEADER_BYTES:
                batch = bytearray(HEADER_BYTES)
                batch += block
            else:
                codec_bits = 0
        _HEADER.pack_into(
            batch,
            0,
            0,
            len(batch) - _LENGTH_END,
            0,
            MAGIC,
            0,
            codec_bits,
            self.count - 1,
            self._base_ms,
            self._max_ms,
            -1,
            -1,
            -1,
            self.count,
        )
        _write_crc(batch)
        self._buffer = None
        return batch


def _encode_headers(headers: Headers) -> bytes:
    parts = [_varint(len(headers))]
    for name, value in headers:
        name_bytes = name.encode()
        parts += (_varint(len(name_bytes)), name_bytes)
        parts += (_NULL,) if value is None else (_varint(len(value)), value)
    return b"".join(parts)


def _compress(codec_bits: int, records: memoryview) -> bytes:
    if codec_bits == 1:
        block: bytes = codec.gzip_encode(records)
        return block[:4] + bytes(4) + block[8:]  # MTIME (RFC 1952): 0 is "no time stamp"
    encode, present = {
        2: (codec.snappy_encode, codec.has_snappy()),
        3: (codec.lz4_encode, codec.has_lz4()),
        4: (codec.zstd_encode, codec.has_zstd()),
    }[codec_bits]
    if not present:
        name = ("snappy", "lz4", "zstd")[codec_bits - 2]
        raise UnsupportedCodecError(
            f"compression_type={name!r} needs a library that is not installed:"
            f" install outlast[{name}] or choose another codec"
        )
    return bytes(encode(records))


def _write_crc(batch: bytearray) -> None:
    with memoryview(batch) as view, view[_CRC_FROM:] as covered:
        _UINT32.pack_into(batch, _CRC_AT, calc_crc32c(covered))


def stamp(
    batch: bytearray,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    transactional: bool = False,
) -> None:
    """Write who sends this sealed batch and under which number; -1, -1, -1 for nobody."""
    if transactional:
        batch[_ATTRIBUTES_END] |= _TRANSACTIONAL
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _write_crc(batch)


# beside key and value: 1, and varints: length, time, offset, key, value, headers
RECORD_BYTES_MAX: Final = 1 + 5 + 10 + 5 + 5 + 5 + 5


def record_bytes_max(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The most that `append` can add for this record. At most 29 B too many without headers,
    8 B more for each header.
    """
    return RECORD_BYTES_MAX + len(key or b"") + len(value or b"") + headers_bytes_max(headers)


def headers_bytes_max(headers: Headers) -> int:
    """The headers' part of it."""
    size = 0
    for name, content in headers:
        size += 10 + (len(name) if name.isascii() else len(name.encode()))
        if content is not None:
            size += len(content)
    return size


@dataclass(frozen=True, slots=True)
class Record:
    """A record read back from a batch."""

    offset_delta: int
    timestamp_ms: int
    key: bytes | None = field(repr=False)  # what is in a record belongs into no log
    value: bytes | None = field(repr=False)
    headers: tuple[tuple[str, bytes | None], ...] = field(repr=False)


def read_records(batch: bytes | bytearray | memoryview) -> list[Record]:
    """The records of one sealed batch.

    Raises:
        CorruptRecordError: these bytes are not exactly one whole, intact batch.
        UnsupportedCodecError: the codec's library is not installed.
    """
    try:
        return _read_records(bytes(batch))
    except (CorruptRecordError, UnsupportedCodecError):
        raise
    except Exception as error:  # struct, index and value errors, and those of five codecs
        raise CorruptRecordError(f"not a record batch: {error!r}") from error


def _read_records(data: bytes) -> list[Record]:
    if len(data) < HEADER_BYTES or data[16] != MAGIC:
        raise CorruptRecordError(f"not a record batch of format {MAGIC}: {len(data)} bytes")
    records = MemoryRecords(data)
    batch = records.next_batch()
    if batch is None or batch.size_in_bytes != len(data):
        raise CorruptRecordError(f"{len(data)} bytes are not exactly one record batch")
    if not batch.validate_crc():
        raise CorruptRecordError(f"CRC of a record batch of {len(data)} bytes does not match")
    base_offset = batch.base_offset
    return [
        Record(r.offset - base_offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch
    ]
