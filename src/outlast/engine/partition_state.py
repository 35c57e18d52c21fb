"""One partition: what it holds, and what may be sent when.

Rule: nothing here takes an answer; what those do to the order is in `partition`, with the theory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from outlast.engine.batch import Attempt, Batch
from outlast.engine.inquest import Inquest
from outlast.engine.messages import Connection
from outlast.engine.queue import Limits, Queue
from outlast.engine.window import Window

PROVEN_FOR_S = 60.0  # then the broker may have forgotten us: one in flight again (S12)


class PartitionState:
    """One partition of one topic, as far as it decides what may go out."""

    def __init__(self, topic: str, index: int, limits: Limits) -> None:
        self.tp = (topic, index)
        self.limits = limits
        self.window = Window(transactional=limits.transactional)
        self.queue = Queue(self.tp, limits)
        self.fresh_producer_id = False  # the next id must not be the one shared by all
        self.in_flight = 0
        self.connection: Connection | None = None  # of what is in flight
        self.proven: tuple[Connection, int, int, int] | None = None
        self.last_ack_s: float | None = None
        self.draining = False
        self.inquest: Inquest | None = None
        self.restart_reason = ""  # set: restart once drained
        self.restarted = self.broken = ""  # why it just did, until the hub has told
        self.retry_at_s = 0.0
        self.refusals = 0  # in a row

    def __repr__(self) -> str:
        state = "draining" if self.draining else "open"
        return f"<Partition {state} {self.window!r} {self.queue!r} in_flight={self.in_flight}>"

    # --- views ---

    def unsettled(self) -> Iterator[Batch]:
        """All batches whose records have no outcome yet, oldest first."""
        for batch in self.window:
            if batch.result is None:
                yield batch
        yield from self.queue.batches

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not (self.window or self.queue.batches)

    def ready_s(self) -> float | None:
        """Since when (or from when on) the oldest waiting batch is ready to be sent."""
        if self.in_flight < len(self.window):
            for batch in self.window:
                if batch.pending:
                    return batch.created_s  # it lingered before it was first sent
        return self.queue.ready_s()

    def due_s(self) -> float | None:
        """When the next batch may go, as far as this partition knows (None: nothing waits)."""
        ready_s = self.ready_s()
        if ready_s is None or self.draining:
            return None
        return max(ready_s, self.retry_at_s)

    def deadline_s(self) -> float | None:
        """When the oldest unsettled batch expires."""
        oldest = next(self.unsettled(), None)
        return None if oldest is None else oldest.created_s + self.limits.delivery_timeout_s

    def needs_producer_id(self) -> bool:
        """Numbers are wanted and there is no producer id to number under."""
        return self.limits.idempotent and self.window.producer_id < 0

    def may_pipeline(self, connection: Connection, leader_epoch: int, now: float) -> bool:
        """Whether a second batch may follow one in flight (rule 3)."""
        if not self.limits.idempotent:
            return True
        window = self.window
        current = (connection, leader_epoch, window.producer_id, window.producer_epoch)
        return (
            self.proven == current
            and self.last_ack_s is not None
            and now - self.last_ack_s <= PROVEN_FOR_S
        )

    def next_batch(self, connection: Connection, leader_epoch: int, now: float) -> Batch | None:
        """The batch that may go out on this connection now, if any."""
        due_s = self.due_s()
        if due_s is None or now < due_s or self.needs_producer_id():
            return None
        if self.in_flight and (
            connection != self.connection or not self.may_pipeline(connection, leader_epoch, now)
        ):
            return None
        if self.inquest is not None:
            if self.inquest.holds(connection, leader_epoch):
                return self.inquest.batch
            self.inquest = None  # void: begin again with the head
        if self.in_flight < len(self.window):
            for batch in islice(self.window, self.limits.window_batches):
                if batch.pending:
                    return batch
        if len(self.window) >= self.limits.window_batches:
            return None
        return self.queue.head

    # --- sending ---

    def use_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Number under this id from 0 on. Only for a partition that has none."""
        assert self.window.producer_id < 0, self
        assert not self.window, self
        self.window.producer_id = producer_id
        self.window.producer_epoch = producer_epoch
        self.fresh_producer_id = False

    def send(self, batch: Batch, attempt: Attempt) -> None:
        """`next_batch()` was handed to its connection."""
        assert not self.draining
        assert not self.in_flight or self.connection == attempt.connection
        if batch is self.queue.head:
            assert len(self.window) < self.limits.window_batches
            self.queue.batches.popleft()
            self.window.add(batch)
        batch.begin_attempt(attempt)
        self.in_flight += 1
        self.connection = attempt.connection

    def is_head(self, batch: Batch) -> bool:
        """Whether this batch's answer decides: no unproved batch stands before it."""
        return not self.limits.idempotent or self.window.is_head(batch)

    def is_asked(self, batch: Batch) -> bool:
        """Whether this batch's answer is the inquest's."""
        return self.inquest is not None and self.inquest.batch is batch
