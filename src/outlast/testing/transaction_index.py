"""What a log tells of transactions: which are open, how far its data are stable, what was aborted.

Theory. A transaction is open in a partition from its first batch to its marker, a batch of one
control record that says commit or abort. Readers of committed data stop at the last stable offset:
the first record of the oldest open transaction, or of one whose marker is not safe yet, and never
beyond the high watermark. They are told which transactions in what they get were aborted.

Rule: all of it is learnt from batches, in order, so that a replica that reads its log again, after
a truncation or a restart, knows the same.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.record.util import calc_crc32c

from outlast.testing.batches import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    CRC_AT,
    CRC_FROM,
    PRODUCER_AT,
    TRANSACTIONAL_BIT,
    StoredBatch,
)

CONTROL_KEY = struct.Struct(">hh")  # version, and 0: abort, 1: commit
CONTROL_VALUE = struct.Struct(">hi")  # version, coordinator epoch
ABORT, COMMIT = 0, 1
MARKER_BYTES = 1 << 10


class Ended(NamedTuple):
    """A transaction's records lie in a log from `first` on, its marker at `marker`."""

    producer_id: int
    first: int
    marker: int
    committed: bool


class TransactionIndex:
    """The transactions of one log."""

    __slots__ = ("_coordinators", "_ended", "_open", "_own")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id → offset of its first record
        self._ended: list[Ended] = []  # in the order of their markers
        self._own: dict[int, list[Ended]] = {}  # the same by producer id
        self._coordinators: dict[int, int] = {}  # producer id → newest coordinator's epoch

    def learn(self, batch: StoredBatch) -> None:
        """Take in a transactional batch: it opens a transaction, belongs to it or ends it."""
        if not batch.control:
            self._open.setdefault(batch.producer_id, batch.base_offset)
            return
        (record,) = batch.decoded()
        _, kind = CONTROL_KEY.unpack_from(record.key)
        _, coordinator_epoch = CONTROL_VALUE.unpack_from(record.value)
        self._coordinators[batch.producer_id] = coordinator_epoch
        first = self._open.pop(batch.producer_id, None)
        if first is not None:
            ended = Ended(batch.producer_id, first, batch.base_offset, kind == COMMIT)
            self._ended.append(ended)
            self._own.setdefault(batch.producer_id, []).append(ended)

    def is_open(self, producer_id: int) -> bool:
        """Has this producer records here whose fate is open?"""
        return producer_id in self._open

    def is_fenced(self, producer_id: int, coordinator_epoch: int) -> bool:
        """Has a newer coordinator ended a transaction of this producer here?"""
        return coordinator_epoch < self._coordinators.get(producer_id, -1)

    def last_stable_offset(self, high_watermark: int) -> int:
        """How far a reader of committed data may read."""
        first = min(self._open.values(), default=high_watermark)
        for ended in reversed(self._ended):
            if ended.marker < high_watermark:
                break
            first = min(first, ended.first)
        return min(high_watermark, first)

    def is_aborted(self, batch: StoredBatch) -> bool:
        """Is this batch, of a transaction that has ended here, void?"""
        offset, own = batch.base_offset, self._own.get(batch.producer_id, [])
        index = bisect_right(own, offset, key=lambda ended: ended.first) - 1
        return index >= 0 and not own[index].committed and offset < own[index].marker

    def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions between two offsets."""
        index = bisect_left(self._ended, start, key=lambda ended: ended.marker)
        return [
            (ended.producer_id, ended.first)
            for ended in self._ended[index:]
            if not ended.committed and ended.first < end
        ]

    def __repr__(self) -> str:
        return f"<TransactionIndex open={self._open} ended={len(self._ended)}>"


def control_batch(
    producer_id: int, epoch: int, *, committed: bool, coordinator_epoch: int, now_ms: int
) -> bytes:
    """The marker that ends a transaction in a partition."""
    key = CONTROL_KEY.pack(0, COMMIT if committed else ABORT)
    value = CONTROL_VALUE.pack(0, coordinator_epoch)
    return plain_batch(producer_id, epoch, [(key, value)], now_ms, attributes=CONTROL_BIT)


def plain_batch(
    producer_id: int,
    epoch: int,
    records: list[tuple[bytes, bytes]],
    now_ms: int,
    *,
    attributes: int = 0,
) -> bytes:
    """A batch as brokers write it themselves: transactional if it has a producer, unnumbered."""
    builder = MemoryRecordsBuilder(2, 0, MARKER_BYTES + sum(len(k) + len(v) for k, v in records))
    for key, value in records:
        builder.append(now_ms, key, value)
    builder.close()
    raw = bytearray(builder.buffer())
    if producer_id >= 0:
        attributes |= TRANSACTIONAL_BIT
    struct.pack_into(">h", raw, ATTRIBUTES_AT, attributes)
    struct.pack_into(">qh", raw, PRODUCER_AT, producer_id, epoch)
    struct.pack_into(">I", raw, CRC_AT, calc_crc32c(memoryview(raw)[CRC_FROM:]))
    return bytes(raw)
