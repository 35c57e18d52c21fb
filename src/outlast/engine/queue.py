"""Batches of one partition that have no number yet: filled at the end, sent from the head.

Rules:
* Only the last batch takes records, and only while it is open, has room and is young: a batch takes
  no record much younger than its first, so that none fails early at the batch's deadline (rule 10);
  but always those of two acks' time, so that what comes while one is waited for can leave after it.
* A batch is ready when it is closed, when another stands behind it, or when its linger is over.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat

from outlast.engine.batch import Batch
from outlast.engine.record_batch import Headers, record_bytes_max

AGE_IN_ACKS = 2  # a batch may hold the records of so many times that an ack takes
AGE_OF_TIMEOUT_MAX = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What all partitions of a producer share."""

    idempotent: bool
    window_batches: int  # from the oldest unsettled one
    batch_bytes: int
    compression: int
    linger_s: float
    batch_age_s: float  # a batch takes no record this much younger than its first (rule 10)
    delivery_timeout_s: float
    unix_offset_s: float


@dataclass(frozen=True, slots=True)
class FailureReason:
    """Why batches fail; the outcome and the attempts are each batch's own."""

    kind: str
    error_code: int | None
    message: str


class Run:
    """Records that one call brought, of one topic and time and with the same headers.

    Args:
        keys: None: no record has one.
    """

    __slots__ = ("_totals", "headers", "keys", "partition", "timestamp_ms", "topic", "values")

    def __init__(
        self,
        topic: str,
        partition: int | None,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        headers: Headers,
        timestamp_ms: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.keys = keys
        self.values = values
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        fixed = record_bytes_max(None, None, headers)
        sizes = [fixed + len(value or b"") for value in values]
        if keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
        self._totals = array("q", accumulate(sizes, initial=0))  # of the records before each

    def __repr__(self) -> str:
        return f"<Run {self.topic} partition={self.partition} records={len(self.values)}>"

    def key(self, index: int) -> bytes | None:
        """The key of one of them."""
        return None if self.keys is None else self.keys[index]

    def bytes_max(self, begin: int, end: int) -> int:
        """The most that these records add to a batch."""
        return self._totals[end] - self._totals[begin]

    def fitting(self, begin: int, batch_bytes: int, buffer_bytes: int, record_bytes: int) -> int:
        """The end of those from `begin` on that fit into so much of a batch, and of a buffer of
        which each takes `record_bytes` beside its own.
        """
        totals, before = self._totals, self._totals[begin]
        end = max(begin, bisect_right(totals, before + batch_bytes) - 1)
        return begin + bisect_right(
            range(begin, end),
            buffer_bytes,
            key=lambda i: totals[i + 1] - before + (i + 1 - begin) * record_bytes,
        )


class Queue:
    """The part of a partition that the application fills."""

    __slots__ = ("_hurried", "_limits", "_tp", "batch_age_s", "batch_bytes", "batches")

    def __init__(self, tp: tuple[str, int], limits: Limits) -> None:
        self._tp = tp
        self._limits = limits
        self._hurried = False  # the last batch does not linger, though it takes records
        self.batches: deque[Batch] = deque()
        self.batch_age_s = limits.batch_age_s  # more, where acks take longer
        self.batch_bytes = limits.batch_bytes  # less, once the broker has called one too large

    def __repr__(self) -> str:
        return f"<Queue {self._tp[0]}-{self._tp[1]} batches={len(self.batches)}>"

    @property
    def head(self) -> Batch | None:
        """The batch that is next to be numbered."""
        return self.batches[0] if self.batches else None

    def joined(self, size_bytes: int, now: float) -> Batch | None:
        """The batch that a record of this size joins; None: it begins another."""
        if not self.batches:
            return None
        batch = self.batches[-1]
        builder = batch.builder
        joins = (
            not batch.closed
            and builder is not None
            and builder.size_bytes + size_bytes <= self.batch_bytes
            and now - batch.created_s <= self.batch_age_s
        )
        return batch if joins else None

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        joins: Batch | None,
        now: float,
    ) -> Batch:
        """Take one record (`joins`: what `joined` said); it is now the last of its batch."""
        batch = self._begun(now) if joins is None else joins
        builder = batch.builder
        assert builder is not None
        builder.append(timestamp_ms, key, value, headers)
        batch.count += 1
        if builder.size_bytes >= self.batch_bytes:
            batch.closed = True
        return batch

    def extend(self, batch: Batch, run: Run, begin: int, end: int) -> None:
        """Let the last batch take more records, which fit into it."""
        builder = batch.builder
        assert builder is not None
        keys = repeat(None) if run.keys is None else run.keys[begin:end]
        builder.extend(run.timestamp_ms, keys, run.values[begin:end], run.headers)
        batch.count = builder.count
        if builder.size_bytes >= self.batch_bytes:
            batch.closed = True

    def _begun(self, now: float) -> Batch:
        self.end_linger()
        self._hurried = False
        batch = Batch(self._tp, now)
        self.batches.append(batch)
        return batch

    def mend(self) -> None:
        """An `append` was cut off: the last batch holds whole records, or is gone."""
        batch = self.batches[-1] if self.batches else None
        if batch is not None and batch.builder is not None and not batch.compressing:
            batch.builder.mend()
            batch.count = batch.builder.count
            if not batch.count:
                self.batches.pop()

    def learn_limit(self, pieces: Iterable[Batch]) -> None:
        """A batch was too large and was cut into these: fill none above their size any more.

        The topic's `max.message.bytes` is not told; what the pieces take before compression is
        the nearest that is known. One large record is no measure for others.
        """
        sizes = [piece.plain_bytes for piece in pieces if piece.count > 1]
        self.batch_bytes = min([self.batch_bytes, *sizes])

    def learn_pace(self, ack_s: float) -> None:
        """An ack took so long. A leader serves one request at a time, and a request takes one batch
        of a partition: a batch that held the records of a shorter time would be left behind ever
        more. What that makes a record fail early is little beside the delivery time-out.
        """
        most_s = self._limits.delivery_timeout_s * AGE_OF_TIMEOUT_MAX
        self.batch_age_s = max(self._limits.batch_age_s, min(AGE_IN_ACKS * ack_s, most_s))

    def end_linger(self) -> None:
        """What is queued waits no longer for more records (flush, close)."""
        if self.batches:
            self.batches[-1].closed = True

    def hurry(self) -> None:
        """The same where room is short, but what cannot be sent yet goes on taking records: else
        each record that finds room would be a batch of its own, and ever less would leave.
        """
        self._hurried = True

    def ready_s(self) -> float | None:
        """Since when (or from when on) the head is ready to be sent."""
        if not self.batches:
            return None
        head = self.batches[0]
        lingers = not (head.closed or self._hurried) and len(self.batches) == 1
        return head.created_s + (self._limits.linger_s if lingers else 0.0)
