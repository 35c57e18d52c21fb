"""One replica of one partition: its log, its high watermark, what it knows of producers.

Theory. A log is a list of batches; replicas share the batch objects, so "the same batch" is "the
same object", and two logs agree up to the last position where both hold the same object. The
leader alone moves the high watermark, to the smallest log end of the in-sync replicas it knows
of; it stops below `min_isr` (S4). That is Kafka, `acks_all` is "isr"; with "majority" it moves to
where most replicas are, with "store" to where the store is. Everything a producer may repeat is
decided by the replica's own producer state, and that state is learnt from the log: by appending,
by replication, by reading the log again after a truncation. A restart leaves one known batch per
producer (S1), as the snapshot it starts from has no more.

Rules: no time is read and no message sent here. What became of waiting requests is told through
`Wait.done`, set by whoever waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from outlast.testing.batches import (
    TRANSACTIONAL_BIT,
    BatchHeader,
    StoredBatch,
    sequence_plus,
)
from outlast.testing.codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
)
from outlast.testing.transaction_index import TransactionIndex

CACHED_BATCHES = 5
STORE = 0  # in `follower_ends`: no node has this id


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as the controller decided it. `version` grows with every decision."""

    leader: int
    epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    elr: tuple[int, ...] = ()  # eligible leader replicas (KIP-966)
    version: int = 0


NOTHING_KNOWN = PartitionState(leader=-1, epoch=-1, isr=(), replicas=(), version=-1)


class ProducerEntry:
    """What a replica knows of one producer id: its epoch and last batches."""

    __slots__ = ("batches", "epoch", "last_at_s")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[StoredBatch] = []
        self.last_at_s = 0.0

    def learn(self, batch: StoredBatch) -> None:
        """Take one more batch in."""
        if batch.producer_epoch != self.epoch:
            self.epoch = batch.producer_epoch
            self.batches.clear()
        self.last_at_s = batch.appended_at_s
        if batch.control:
            return  # a marker may raise the epoch, and has no number
        self.batches.append(batch)
        if len(self.batches) > CACHED_BATCHES:
            del self.batches[0]

    def find(self, header: BatchHeader) -> StoredBatch | None:
        """The known batch with these very sequence numbers."""
        for batch in self.batches:
            if batch.base_sequence == header.base_sequence and batch.count == header.record_count:
                return batch
        return None

    @property
    def next_sequence(self) -> int:
        """The only sequence that may follow."""
        if not self.batches:
            return 0  # a marker raised the epoch
        last = self.batches[-1]
        return sequence_plus(last.base_sequence, last.count)

    def __repr__(self) -> str:
        return f"<ProducerEntry epoch={self.epoch} batches={self.batches}>"


class Verification:
    """A producer's first batch of a transaction waits to hear whether it may be appended.

    `lowest` is the lowest sequence that waited: none above it goes first.
    """

    __slots__ = ("epoch", "lowest")

    def __init__(self, header: BatchHeader) -> None:
        self.epoch = header.producer_epoch
        self.lowest = header.base_sequence

    def renew(self, header: BatchHeader) -> None:
        """One more batch waits."""
        if header.producer_epoch == self.epoch:
            self.lowest = min(self.lowest, header.base_sequence)
        elif header.producer_epoch > self.epoch:
            self.epoch, self.lowest = header.producer_epoch, header.base_sequence


class Wait:
    """Somebody waits for the high watermark to reach `offset`; `done(code, now)` comes once."""

    __slots__ = ("done", "offset")

    def __init__(self, offset: int, done: Callable[[int, float], None]) -> None:
        self.offset = offset
        self.done = done


class Replica:
    """One node's copy of a partition."""

    __slots__ = (
        "acks_all",
        "backing_off",
        "batches",
        "epoch_start",
        "follower_ends",
        "follows",
        "high_watermark",
        "idle_followers",
        "leading",
        "log_epoch",
        "log_start_offset",
        "min_isr",
        "node_id",
        "not_ready",
        "partition",
        "producers",
        "snapshot",
        "state",
        "stop_below_min_isr",
        "storing",
        "topic",
        "topic_id",
        "transactions",
        "verifications",
        "waits",
        "watchers",
    )

    def __init__(
        self,
        node_id: int,
        topic: str,
        topic_id: UUID,
        partition: int,
        *,
        min_isr: int,
        stop_below_min_isr: bool,
        acks_all: Literal["isr", "majority", "store"] = "isr",
    ) -> None:
        self.node_id = node_id
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.min_isr = min_isr
        self.stop_below_min_isr = stop_below_min_isr
        self.acks_all = acks_all
        self.state = NOTHING_KNOWN  # as this node knows it
        self.batches: list[StoredBatch] = []
        self.log_epoch = -1  # of the leader whose log this one last agreed with, its own included
        self.log_start_offset = 0
        self.high_watermark = 0
        self.producers: dict[int, ProducerEntry] = {}
        self.transactions = TransactionIndex()
        self.verifications: dict[int, Verification] = {}  # by producer id
        self.snapshot = 0  # batches the last restart found: only the last of each producer counts
        self.leading = False
        self.not_ready = False  # named leader of a new topic, not yet taken up (A39)
        self.follower_ends: dict[int, int] = {}  # leader: log ends heard of, by node
        self.backing_off: dict[int, float] = {}  # leader: followers that come only then (S3)
        self.epoch_start = 0  # leader: its log's end when it took up its epoch
        self.idle_followers: dict[int, tuple[Replica, int]] = {}  # wait here (follower, follows)
        self.storing = False  # leader: a write to the store is under way
        self.follows = 0  # follower: counts the leaders it followed; older fetches are void
        self.waits: list[Wait] = []
        self.watchers: list[Callable[[float], None]] = []

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will have."""
        return self.batches[-1].next_offset if self.batches else self.log_start_offset

    # --- appending ---

    def check_sequence(
        self,
        header: BatchHeader,
        now: float,
        expiry_s: float,
        rule: Literal["any", "zero"],
    ) -> StoredBatch | int | None:
        """A known batch that this one repeats, an error code, or None: it may be appended.

        The order: epoch (47), duplicate, sequence (45), a plain batch in a transaction (48).
        """
        entry = self.producers.get(header.producer_id)
        open_here = self.transactions.is_open(header.producer_id)
        if entry is not None and entry.last_at_s + expiry_s < now and not open_here:
            del self.producers[header.producer_id]
            entry = None
        asked = self.verifications.get(header.producer_id)
        behind = asked is not None and header.base_sequence > asked.lowest
        if entry is None:
            fresh = rule == "zero" and self.log_end_offset == 0 and header.base_sequence != 0
            return OUT_OF_ORDER_SEQUENCE_NUMBER if fresh or behind else None
        if header.producer_epoch < entry.epoch:
            return INVALID_PRODUCER_EPOCH
        if header.producer_epoch > entry.epoch:
            return None if header.base_sequence == 0 else OUT_OF_ORDER_SEQUENCE_NUMBER
        known = entry.find(header)
        if known is not None:
            return known
        if header.base_sequence != entry.next_sequence or behind:
            return OUT_OF_ORDER_SEQUENCE_NUMBER
        if open_here and not header.attributes & TRANSACTIONAL_BIT:
            return INVALID_TXN_STATE
        return None

    def in_transaction(self, header: BatchHeader) -> bool:
        """Has this producer, at this epoch, a transaction open here?"""
        entry = self.producers.get(header.producer_id)
        return (
            entry is not None
            and entry.epoch == header.producer_epoch
            and self.transactions.is_open(header.producer_id)
        )

    def verify(self, header: BatchHeader) -> Verification:
        """Its coordinator is asked about a batch; what this gives is for `is_verified`."""
        waiting = self.verifications.setdefault(header.producer_id, Verification(header))
        waiting.renew(header)
        return waiting

    def is_verified(self, header: BatchHeader, asked: Verification) -> bool:
        """May the batch be appended, after an answer that says so?"""
        still = self.verifications.get(header.producer_id) is asked
        return still or self.in_transaction(header)

    @property
    def last_stable_offset(self) -> int:
        """How far readers of committed data may read."""
        return self.transactions.last_stable_offset(self.high_watermark)

    def append(self, batch: StoredBatch) -> None:
        """Put a batch at the end of the log and learn its producer's state."""
        assert batch.base_offset == self.log_end_offset, (batch, self)
        self.batches.append(batch)
        self._learn(batch)

    def _learn(self, batch: StoredBatch) -> None:
        if batch.producer_id < 0:
            return
        if batch.transactional:
            self.transactions.learn(batch)
            self.verifications.pop(batch.producer_id, None)
        entry = self.producers.get(batch.producer_id)
        if entry is None:
            entry = self.producers[batch.producer_id] = ProducerEntry(batch.producer_epoch)
        entry.learn(batch)

    # --- leading ---

    def wait_for(self, offset: int, done: Callable[[int, float], None]) -> Wait:
        """Call `done` with 0 at the high watermark, or with the reason why it will not come."""
        wait = Wait(offset, done)
        self.waits.append(wait)
        return wait

    def advance(self, now: float) -> None:
        """Move the high watermark to where all are known to be that acks=all waits for."""
        if not self.leading:
            return
        if self.stop_below_min_isr and len(self.state.isr) < self.min_isr:
            return
        end = self._end_of_enough()
        if end > self.high_watermark:
            self.high_watermark = end
            self._release(now)

    def _end_of_enough(self) -> int:
        ends = self.follower_ends
        if self.acks_all == "store":
            return ends.get(STORE, -1)
        if self.acks_all == "majority":
            others = [ends.get(n, -1) for n in self.state.replicas if n != self.node_id]
            needed = len(self.state.replicas) // 2  # beside the leader
            return sorted([*others, self.log_end_offset], reverse=True)[needed]
        end = self.log_end_offset
        for node_id in self.state.isr:
            if node_id != self.node_id:
                end = min(end, ends.get(node_id, -1))
        return end

    def _release(self, now: float) -> None:
        if self.waits:
            reached = [wait for wait in self.waits if wait.offset <= self.high_watermark]
            self.waits = [wait for wait in self.waits if wait.offset > self.high_watermark]
            for wait in reached:
                wait.done(0, now)
        self._tell_watchers(now)

    def _tell_watchers(self, now: float) -> None:
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher(now)

    def watch(self, watcher: Callable[[float], None]) -> None:
        """Call `watcher(now)` once, when the high watermark has moved or the role has changed."""
        self.watchers.append(watcher)

    def lead(self, state: PartitionState, now: float) -> None:
        """Become the leader of this epoch."""
        self.state = state
        self.leading = True
        self.not_ready = False
        self.log_epoch = state.epoch
        self.epoch_start = self.log_end_offset
        self.follower_ends = {STORE: self.log_end_offset} if self.acks_all == "store" else {}
        self.storing = False
        self.backing_off = {}
        self.advance(now)
        self._tell_watchers(now)

    def step_down(self, code: int, now: float) -> None:
        """Lead no longer: every waiting request gets `code`."""
        self.leading = False
        self.not_ready = False
        waits, self.waits = self.waits, []
        for wait in waits:
            wait.done(code, now)
        self._tell_watchers(now)

    # --- following ---

    def agrees_until(self, leader: Replica) -> int:
        """How many batches at the start of both logs are the same."""
        index = min(len(self.batches), len(leader.batches))
        while index and self.batches[index - 1] is not leader.batches[index - 1]:
            index -= 1
        return index

    def truncate(self, count: int) -> None:
        """Keep the first `count` batches; producer state is read from them again."""
        if count == len(self.batches):
            return
        del self.batches[count:]
        if self.snapshot > count:
            self.snapshot = 0  # the snapshot goes with what it describes; the log is read from 0
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        self._reload()

    def fetch_from(self, leader: Replica) -> None:
        """Take what the leader has, its high watermark included."""
        self.truncate(self.agrees_until(leader))
        for batch in leader.batches[len(self.batches) :]:
            self.append(batch)
        self.log_epoch = leader.log_epoch
        self.high_watermark = min(leader.high_watermark, self.log_end_offset)

    # --- a node's life ---

    def crash(self) -> None:
        """The process is gone: nobody is answered any more. The log stays on disk."""
        self.leading = False
        self.not_ready = False
        self.follows += 1
        self.waits = []
        self.watchers = []
        self.idle_followers = {}

    def restart(self) -> None:
        """Read the log again: of each producer only the last batch is still known (S1)."""
        self.state = NOTHING_KNOWN
        self.snapshot = len(self.batches)
        self._reload()

    def _reload(self) -> None:
        self.producers = {}
        self.transactions = TransactionIndex()
        self.verifications = {}
        for index, batch in enumerate(self.batches):
            if index == self.snapshot:
                self._forget_all_but_last()
            self._learn(batch)
        if self.snapshot == len(self.batches):
            self._forget_all_but_last()

    def _forget_all_but_last(self) -> None:
        for entry in self.producers.values():
            del entry.batches[:-1]

    # --- reading ---

    def committed(self) -> list[StoredBatch]:
        """What a reader of committed data gets of it all, markers and aborted data left out."""
        end = self.last_stable_offset
        return [
            batch
            for batch in self.batches
            if batch.next_offset <= end and not batch.control
            if not (batch.transactional and self.transactions.is_aborted(batch))
        ]

    def first_batch_from(self, offset: int) -> int:
        """The index of the batch that holds `offset`, or the number of batches."""
        return bisect_right(self.batches, offset, key=lambda batch: batch.next_offset)

    def __repr__(self) -> str:
        role = "leader" if self.leading else f"follows {self.state.leader}"
        return (
            f"<Replica {self.topic}-{self.partition} on {self.node_id} {role} "
            f"epoch={self.state.epoch} end={self.log_end_offset} hw={self.high_watermark} "
            f"isr={list(self.state.isr)}>"
        )
