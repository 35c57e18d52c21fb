"""Record batches as a broker sees them: the 61-byte header, the checks before the append.

Rules: the produce path reads the header and the checksum and never a record, unless a topic or a
setting asks for it; and nothing here trusts a byte. The checks come in the order a real broker
was seen to make them (docs/kafka-facts.md, "Order of checks"); who may append (leader, in-sync
replicas) and sequence numbers are not their business.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import calc_crc32c

from outlast.testing.cluster_settings import ClusterSettings
from outlast.testing.request_log import LogRecord

HEADER = struct.Struct(">qiibIhiqqqhii")
MAGIC_AT, CRC_AT, CRC_FROM, ATTRIBUTES_AT, MAX_TIMESTAMP_AT = 16, 17, 21, 21, 35
LOG_OVERHEAD = 12  # base offset and length come before what the length counts

CODEC_BITS, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, CONTROL_BIT = 0x07, 0x08, 0x10, 0x20
ZSTD = 4
ZSTD_PRODUCE_VERSION = 7
TIMESTAMP_AFTER_MAX_MS = 3_600_000  # message.timestamp.after.max.ms (S15)
SEQUENCES = 1 << 31

UNKNOWN_SERVER_ERROR = -1
CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
INVALID_TXN_STATE_WITHOUT_ID = 53  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED (C8)
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87


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
        "count",
        "leader_epoch",
        "log_append_time_ms",
        "node_id",
        "producer_epoch",
        "producer_id",
        "raw",
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

    def records(self) -> Iterator[LogRecord]:
        """Decode the records."""
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


def check_batch(
    raw: bytes,
    header: BatchHeader | None,
    rules: TopicRules,
    settings: ClusterSettings,
    version: int,
    now: float,
    transactional_id: str | None = None,
) -> Refusal | None:
    """What is wrong with one partition's record data; None if it may be appended."""
    if header is None:
        return Refusal(_code_of_fragment(raw))
    return (
        _check_format(raw, header, version, transactional_id)
        or _check_bytes(raw, header, rules, settings)
        or _check_records(raw, header, rules, settings, now)
    )


def _code_of_fragment(raw: bytes) -> int:
    if len(raw) > MAGIC_AT and raw[MAGIC_AT] > 2:
        return CORRUPT_MESSAGE
    return INVALID_RECORD


def _check_format(
    raw: bytes, header: BatchHeader, version: int, transactional_id: str | None
) -> Refusal | None:
    attributes = header.attributes
    codec = attributes & CODEC_BITS
    if header.magic not in (0, 1, 2):
        return Refusal(CORRUPT_MESSAGE)
    if (
        header.magic < 2
        or header.length + LOG_OVERHEAD != len(raw)  # truncated, or more than one batch
        or header.base_offset != 0
        or header.record_count <= 0
        or header.record_count != header.last_offset_delta + 1
        or attributes & CONTROL_BIT
        or (header.producer_id >= 0 and header.base_sequence < 0)
    ):
        return Refusal(INVALID_RECORD)
    if attributes & TRANSACTIONAL_BIT and transactional_id is None:
        return Refusal(INVALID_TXN_STATE_WITHOUT_ID)
    if codec == ZSTD and version < ZSTD_PRODUCE_VERSION:
        return Refusal(UNSUPPORTED_COMPRESSION_TYPE)
    return None


def _check_bytes(
    raw: bytes, header: BatchHeader, rules: TopicRules, settings: ClusterSettings
) -> Refusal | None:
    if settings.check_crc and calc_crc32c(memoryview(raw)[CRC_FROM:]) != header.crc:
        return Refusal(CORRUPT_MESSAGE)
    if len(raw) > rules.max_message_bytes:
        return Refusal(MESSAGE_TOO_LARGE)
    if header.attributes & CODEC_BITS > ZSTD:
        return Refusal(UNKNOWN_SERVER_ERROR)
    return None


def _check_records(
    raw: bytes,
    header: BatchHeader,
    rules: TopicRules,
    settings: ClusterSettings,
    now: float,
) -> Refusal | None:
    too_new_ms = None
    if settings.unix_offset_s is not None and not rules.log_append_time:
        too_new_ms = int((now + settings.unix_offset_s) * 1000) + TIMESTAMP_AFTER_MAX_MS
    may_be_too_new = too_new_ms is not None and header.max_timestamp > too_new_ms
    if not (may_be_too_new or rules.compacted or settings.check_records):
        return None
    try:
        records = list(DefaultRecordBatch(raw))
    except Exception:  # whatever the decoder makes of bytes that are no records (S16)
        return Refusal(UNKNOWN_SERVER_ERROR)
    if too_new_ms is not None and may_be_too_new:
        text = f"Timestamp is later than the limit {too_new_ms}"
        late = tuple((i, text) for i, r in enumerate(records) if r.timestamp > too_new_ms)
        if late:
            return Refusal(INVALID_TIMESTAMP, "Timestamps are out of range", late)
    if rules.compacted:
        text = "Compacted topic cannot accept message without key"
        keyless = tuple((i, text) for i, r in enumerate(records) if r.key is None)
        if keyless:
            shown = ", ".join(str(index) for index, _ in keyless[:3])
            return Refusal(INVALID_RECORD, f"Records without key: {shown}", keyless)
    return None


def _with_append_time(raw: bytes, header: BatchHeader, time_ms: int) -> bytes:
    """The batch with the broker's time for its records; the checksum is made anew."""
    data: Any = bytearray(raw)
    struct.pack_into(">h", data, ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME_BIT)
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, time_ms)
    struct.pack_into(">I", data, CRC_AT, calc_crc32c(memoryview(data)[CRC_FROM:]))
    return bytes(data)
