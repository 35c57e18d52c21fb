"""Batches of one partition that have no number yet: filled at the end, sent from the head.

Rules:
* Only the last batch takes records, and only while it is open, has room and is young: a batch takes
  no record much younger than its first, so that none fails early at the batch's deadline (rule 10);
  but always those of two acks' time, so that what comes while one is waited for can leave after it.
* A batch is ready when it is closed, when another stands behind it, or when its linger is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from outlast.engine.batch import Batch

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
    transactional: bool = False


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

    def begin(self, now: float) -> Batch:
        """A new batch behind the others, for a record that joins none."""
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
