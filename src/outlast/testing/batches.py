"""Record batches as a broker sees them: the 61-byte header, the checks before the append.

Rules: the produce path reads the header and the checksum and never a record, unless a topic or a
setting asks for it; and nothing here trusts a byte. The checks come in the order a real broker
was seen to make them (docs/contract.md): the whole request (`refuse_request`), the partition's
format (`check_format`, before anybody asks who leads), the batch (`check_batch`). Who may append
(leader, in-sync replicas) and sequence numbers are not their business.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import calc_crc32c

from outlast.testing.cluster_settings import ClusterSettings
from outlast.testing.codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from outlast.testing.request_log import LogRecord

HEADER = struct.Struct(">qiibIhiqqqhii")
MAGIC_AT, CRC_AT, CRC_FROM, ATTRIBUTES_AT, MAX_TIMESTAMP_AT = 16, 17, 21, 21, 35
PRODUCER_AT = 43  # its id, and then its epoch
LENGTH, LENGTH_AT, SMALLEST_LENGTH = struct.Struct(">i"), 8, 14  # 14: the oldest format's
LOG_OVERHEAD = 12  # base offset and length come before what the length counts

CODEC_BITS, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, CONTROL_BIT = 0x07, 0x08, 0x10, 0x20
ZSTD = 4
ZSTD_PRODUCE_VERSION = 7
TIMESTAMP_AFTER_MAX_MS = 3_600_000  # message.timestamp.after.max.ms (S15)
SEQUENCES = 1 << 31
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
DECODERS: dict[int, Callable[[bytes], Any]] = {
    1: gzip_decode,
    2: snappy_decode,
    3: lz4_decode,
    ZSTD: zstd_decode,
}
REJECTED = "One or more records have been rejected due to"

INVALID_TXN_STATE_WITHOUT_ID = 53  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED (C8)


class BatchHeader(NamedTuple):
    """The fixed part of a record batch, magic 2."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a batch cannot be appended: code, text, and the records at fault (index, text)."""

    code: int
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What a topic's configuration asks of records."""

    max_message_bytes: int
    compacted: bool = False
    log_append_time: bool = False


class StoredBatch:
    """One batch in a log. Replicas share the object: the same batch is the same object."""

    __slots__ = (
        "appended_at_s",
        "base_offset",
        "base_sequence",
        "control",
        "count",
        "leader_epoch",
        "log_append_time_ms",
        "node_id",
        "producer_epoch",
        "producer_id",
        "raw",
        "transactional",
    )

    def __init__(
        self,
        raw: bytes,
        header: BatchHeader,
        base_offset: int,
        leader_epoch: int,
        node_id: int,
        now: float,
        log_append_time_ms: int = -1,
    ) -> None:
        if log_append_time_ms >= 0:
            raw = _with_append_time(raw, header, log_append_time_ms)
        # Both fields lie before what the checksum covers.
        self.raw = b"".join(
            (
                struct.pack(">q", base_offset),
                raw[8:12],
                struct.pack(">i", leader_epoch),
                raw[MAGIC_AT:],
            )
        )
        self.base_offset = base_offset
        self.transactional = bool(header.attributes & TRANSACTIONAL_BIT)
        self.control = bool(header.attributes & CONTROL_BIT)  # no client's data: a marker
        self.count = header.record_count
        self.leader_epoch = leader_epoch
        self.node_id = node_id
        self.producer_id = header.producer_id
        self.producer_epoch = header.producer_epoch
        self.base_sequence = header.base_sequence
        self.appended_at_s = now
        self.log_append_time_ms = log_append_time_ms

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.count

    def decoded(self) -> list[Any]:
        """The records as kafka-python has them, those of markers included."""
        return list(DefaultRecordBatch(self.raw))

    def records(self) -> Iterator[LogRecord]:
        """Decode the records; markers of transactions have none that a consumer sees."""
        if self.control:
            return
        for index, record in enumerate(DefaultRecordBatch(self.raw)):
            yield LogRecord(
                offset=record.offset,
                key=record.key,
                value=record.value,
                headers=tuple(record.headers),
                timestamp_ms=record.timestamp,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                sequence=sequence_plus(self.base_sequence, index),
            )

    def __repr__(self) -> str:
        return (
            f"<StoredBatch offset={self.base_offset} count={self.count} "
            f"epoch={self.leader_epoch} producer={self.producer_id}/{self.producer_epoch} "
            f"sequence={self.base_sequence}>"
        )


def sequence_plus(sequence: int, count: int) -> int:
    """The sequence `count` records later; after 2³¹ − 1 comes 0 (B15)."""
    return (sequence + count) % SEQUENCES if sequence >= 0 else sequence


def read_header(raw: bytes) -> BatchHeader | None:
    """The header of the first batch in `raw`, or None if there is not enough of it."""
    if len(raw) < HEADER.size:
        return None
    return BatchHeader._make(HEADER.unpack_from(raw))


def refuse_request(raw: bytes, transactional_id: str | None) -> Refusal | None:
    """What spoils the whole request, not only this partition: a broker looks at the first batch of
    each partition, for the transactional bit, before it does anything else.
    """
    end = _frame_end(raw, 0)
    if isinstance(end, Refusal):
        return end
    transactional = end is not None and raw[MAGIC_AT] == 2 and raw[ATTRIBUTES_AT + 1]
    if transactional and transactional & TRANSACTIONAL_BIT and transactional_id is None:
        return Refusal(INVALID_TXN_STATE_WITHOUT_ID)
    return None


def check_format(raw: bytes, version: int) -> Refusal | int:
    """Where the partition's only batch ends, or why that is none. What follows it is dropped if it
    cannot be the head of another one.
    """
    end = _frame_end(raw, 0)
    if isinstance(end, Refusal):
        return Refusal(end.code)
    if end is None or raw[MAGIC_AT] != 2:
        return Refusal(INVALID_RECORD)
    if raw[ATTRIBUTES_AT + 1] & CODEC_BITS == ZSTD and version < ZSTD_PRODUCE_VERSION:
        return Refusal(UNSUPPORTED_COMPRESSION_TYPE)
    if len(raw) - end >= LOG_OVERHEAD:
        second = _frame_end(raw, end)
        if second is not None:
            return Refusal(second.code if isinstance(second, Refusal) else INVALID_RECORD)
    return end


def _frame_end(raw: bytes, start: int) -> int | Refusal | None:
    """Where the batch at `start` ends; None: not all of it is there; or why nobody can tell."""
    left = len(raw) - start
    if left < LOG_OVERHEAD:
        return None
    (length,) = LENGTH.unpack_from(raw, start + LENGTH_AT)
    if length < SMALLEST_LENGTH:
        text = f"Record size {length} is less than the minimum record overhead ({SMALLEST_LENGTH})"
        return Refusal(CORRUPT_MESSAGE, text)
    if left <= MAGIC_AT:
        return None
    if raw[start + MAGIC_AT] > 2:
        (magic,) = struct.unpack_from(">b", raw, start + MAGIC_AT)
        return Refusal(CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    if length > INT_MAX - LOG_OVERHEAD:
        return Refusal(UNKNOWN_SERVER_ERROR)  # a broker's sum overflows
    return start + LOG_OVERHEAD + length if LOG_OVERHEAD + length <= left else None


def check_batch(
    raw: bytes,
    header: BatchHeader | None,
    rules: TopicRules,
    settings: ClusterSettings,
    now: float,
    place: str = "",
) -> Refusal | None:
    """What is wrong with a batch of good format; None if it may be appended. `place` is its topic
    and partition, for the texts.
    """
    if header is None or len(raw) < HEADER.size:
        return Refusal(CORRUPT_MESSAGE)
    return _check_header(raw, header, rules, settings) or _check_records(
        raw, header, rules, settings, now, place
    )


def _check_header(
    raw: bytes, header: BatchHeader, rules: TopicRules, settings: ClusterSettings
) -> Refusal | None:
    if header.base_offset != 0:
        return Refusal(INVALID_RECORD)
    if len(raw) > rules.max_message_bytes:
        return Refusal(MESSAGE_TOO_LARGE)
    if settings.check_crc and calc_crc32c(memoryview(raw)[CRC_FROM:]) != header.crc:
        return Refusal(CORRUPT_MESSAGE)
    if header.attributes & CODEC_BITS > ZSTD:
        return Refusal(UNKNOWN_SERVER_ERROR)
    if (
        header.record_count <= 0
        or header.record_count != header.last_offset_delta + 1
        or header.attributes & CONTROL_BIT
        or (header.producer_id >= 0 and header.base_sequence < 0)
    ):
        return Refusal(INVALID_RECORD)
    return None


def _check_records(
    raw: bytes,
    header: BatchHeader,
    rules: TopicRules,
    settings: ClusterSettings,
    now: float,
    place: str,
) -> Refusal | None:
    now_ms = latest_ms = None
    if settings.unix_offset_s is not None and not rules.log_append_time:
        now_ms = int((now + settings.unix_offset_s) * 1000)
        latest_ms = now_ms + TIMESTAMP_AFTER_MAX_MS
    may_be_late = latest_ms is not None and header.max_timestamp > latest_ms
    if not (may_be_late or rules.compacted or settings.check_records):
        return None
    records = _decoded(raw, header)
    if isinstance(records, Refusal):
        return records
    if now_ms is not None and latest_ms is not None and may_be_late:
        allowed = f"[{now_ms - LONG_MAX}, {latest_ms}]"
        late = tuple(
            (
                index,
                f"Timestamp {record.timestamp} of message with offset {index} is out of range. "
                f"The timestamp should be within {allowed}",
            )
            for index, record in enumerate(records)
            if record.timestamp > latest_ms
        )
        if late:
            return Refusal(INVALID_TIMESTAMP, f"{REJECTED} invalid timestamp", late)
    if rules.compacted:
        text = f"Compacted topic cannot accept message without key in topic partition {place}"
        keyless = tuple((i, text) for i, record in enumerate(records) if record.key is None)
        if keyless:
            return Refusal(INVALID_RECORD, _rejected(keyless), keyless)
    return None


def _decoded(raw: bytes, header: BatchHeader) -> list[Any] | Refusal:
    """The records. What cannot be decompressed and what is no record differ (S16)."""
    unzip = DECODERS.get(header.attributes & CODEC_BITS)
    try:
        if unzip is not None:
            unzip(raw[HEADER.size :])
    except Exception:  # whatever the decoder makes of such bytes
        return Refusal(UNKNOWN_SERVER_ERROR)
    try:
        return list(DefaultRecordBatch(raw))
    except Exception:  # likewise
        return Refusal(INVALID_RECORD)


def _rejected(errors: Sequence[tuple[int, str]]) -> str:
    """A broker's words for bad records; it names three of them at most."""
    shown = ", ".join(f"RecordError(batchIndex={i}, message='{text}')" for i, text in errors[:3])
    return (
        f"{REJECTED} {len(errors)} record errors in total, and only showing the first three errors "
        f"at most: [{shown}]"
    )


def _with_append_time(raw: bytes, header: BatchHeader, time_ms: int) -> bytes:
    """The batch with the broker's time for its records; the checksum is made anew."""
    data: Any = bytearray(raw)
    struct.pack_into(">h", data, ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME_BIT)
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, time_ms)
    struct.pack_into(">I", data, CRC_AT, calc_crc32c(memoryview(data)[CRC_FROM:]))
    return bytes(data)
