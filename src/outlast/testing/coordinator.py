"""The transaction coordinator: takes decisions about transactional ids down, and ends transactions.

Theory. What may be done is decided in `transactions`; here it is written to the log, believed once
it is safe there, and followed up. While one change of an id is being written, others wait (51).
A transaction that is to end is written so first, and that is when its producer is answered; then
every partition in it gets its marker from its leader, asked again until it has; then it is
complete, and the next one may begin. A coordinator that takes over goes on from what it reads.
A marker is refused where a newer coordinator, or a newer epoch of the producer, was heard of.

The leader of a partition asks the coordinator, too, before the first batch of a transaction: is the
partition in it (Produce up to 11)? Or adds it by that (from 12, KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from outlast.testing import coordinator_log, transactions
from outlast.testing.batches import BatchHeader, StoredBatch, read_header
from outlast.testing.cluster_settings import draw
from outlast.testing.codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    TRANSACTION_COORDINATOR_FENCED,
)
from outlast.testing.coordinator_log import TRANSACTIONS, Entry, Seat
from outlast.testing.errands import Done, Errand
from outlast.testing.replica import Replica
from outlast.testing.replication import wake_followers
from outlast.testing.transaction_index import control_batch
from outlast.testing.transactions import Decision, Partition, Producer, State, Transaction

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.node import Node


RETRY_S = 0.02  # a marker that could not be written is tried again
FINAL = (0, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED)  # no use in trying again

Decided = Callable[[int, Transaction | None, float], None]  # a code; what now holds; when


class TransactionSeat(Seat):
    """The transactional ids of one partition of `__transaction_state`."""

    __slots__ = ("known", "unmarked", "writing")

    def __init__(self, cluster: MockCluster, node: Node, replica: Replica) -> None:
        super().__init__(cluster, node, replica)
        self.known: dict[str, Transaction] = {}
        self.writing: set[str] = set()  # ids with a change that is not safe yet
        self.unmarked: dict[str, set[Partition]] = {}  # markers still to be written

    def load(self, now: float) -> None:
        """Read the log, and go on with what was begun."""
        for batch in self.replica.batches:
            assert isinstance(batch, Entry)
            self.known[batch.told.transactional_id] = batch.told
        super().load(now)
        for transaction in list(self.known.values()):
            self._follow_up(transaction, now)

    def decide(
        self,
        key: str,
        question: Callable[[Transaction | None], Decision],
        done: Decided,
        now: float,
    ) -> None:
        """Answer a question with a code, or with what follows once that is safe."""
        known = self.known.get(key)
        if key in self.writing:
            done(CONCURRENT_TRANSACTIONS, known, now)
            return
        decision = question(known)
        if isinstance(decision, Transaction):
            self._enact(decision, done, now)
        else:
            done(decision, known, now)

    def _enact(self, transaction: Transaction, done: Decided, now: float) -> None:
        key = transaction.transactional_id
        self.writing.add(key)

        def written(code: int, now: float) -> None:
            self.writing.discard(key)
            if code == 0:
                self.known[key] = transaction
                self._follow_up(transaction, now)
            done(code, transaction, now)

        self.write(key, transaction, written, now)

    def _follow_up(self, transaction: Transaction, now: float) -> None:
        if transaction.state is State.ONGOING:
            slack_s = draw(self.cluster.settings.transaction_expiry_s, self.cluster.rng)
            due_s = max(now, transaction.started_s + transaction.timeout_s + slack_s)
            self.node.at(due_s, self._expire, transaction)
        elif transaction.state.ending:
            key = transaction.transactional_id
            self.unmarked[key] = set(transaction.partitions)
            for partition in sorted(transaction.partitions):
                self._mark(transaction, partition, now)
            self._complete_if_marked(transaction, now)

    # --- time-out ---

    def _expire(self, begun: Transaction, now: float) -> None:
        """Its time is up: abort it, if it is the same transaction still."""
        known = self.known.get(begun.transactional_id)
        ongoing = known is not None and known.state is State.ONGOING
        if not self.held or known is None or not ongoing or known.producer != begun.producer:
            return
        if known.started_s != begun.started_s or known.partitions != begun.partitions:
            return  # another one, or grown: that has a timer of its own
        if begun.transactional_id in self.writing:
            self.node.at(now + RETRY_S, self._expire, begun)
            return

        def done(code: int, _: Transaction | None, now: float) -> None:
            if code == COORDINATOR_NOT_AVAILABLE:
                self.node.at(now + RETRY_S, self._expire, begun)

        self._enact(transactions.fenced(known), done, now)

    # --- markers ---

    def _mark(self, transaction: Transaction, partition: Partition, now: float) -> None:
        """Have the partition's leader write the marker."""
        if not self.held or partition not in self.unmarked.get(transaction.transactional_id, ()):
            return
        state = self.node.image.state(*partition)
        if state is None:
            self._marked(transaction, partition, 0, now)  # the topic is gone
            return
        work = partial(self._work, state.leader, transaction, partition)
        done = partial(self._marked, transaction, partition)
        Errand(self.cluster, self.node, state.leader, work, done, now)

    def _work(
        self, leader: int, transaction: Transaction, partition: Partition, reply: Done, now: float
    ) -> None:
        write_marker(self.cluster, leader, transaction, partition, self.epoch, reply, now)

    def _marked(
        self, transaction: Transaction, partition: Partition, code: int, now: float
    ) -> None:
        if code not in FINAL:
            self.node.at(now + RETRY_S, self._mark, transaction, partition)
            return
        self.unmarked.get(transaction.transactional_id, set()).discard(partition)
        self._complete_if_marked(transaction, now)

    def _complete_if_marked(self, transaction: Transaction, now: float) -> None:
        key = transaction.transactional_id
        if self.known.get(key) is not transaction or not self.held or key in self.writing:
            return
        if self.unmarked.get(key):
            return

        def done(code: int, _: Transaction | None, now: float) -> None:
            if code == COORDINATOR_NOT_AVAILABLE:
                self.node.at(now + RETRY_S, self._complete_if_marked, transaction)

        self._enact(transactions.completed(transaction), done, now)


coordinator_log.SEATS[TRANSACTIONS] = TransactionSeat


def write_marker(
    cluster: MockCluster,
    node_id: int,
    transaction: Transaction,
    partition: Partition,
    coordinator_epoch: int,
    reply: Done,
    now: float,
) -> None:
    """A leader ends a transaction in its log; it replies when that is safe, or why it cannot."""
    replica = cluster.nodes[node_id].replicas.get(partition)
    if replica is None or not replica.leading:
        reply(NOT_LEADER_OR_FOLLOWER, now)
        return
    if len(replica.state.isr) < replica.min_isr:
        reply(NOT_ENOUGH_REPLICAS, now)
        return
    entry = replica.producers.get(transaction.producer_id)
    if entry is not None and transaction.epoch < entry.epoch:
        reply(INVALID_PRODUCER_EPOCH, now)
        return
    if replica.transactions.is_fenced(transaction.producer_id, coordinator_epoch):
        reply(TRANSACTION_COORDINATOR_FENCED, now)
        return
    raw = control_batch(
        transaction.producer_id,
        transaction.epoch,
        committed=transaction.state.commits,
        coordinator_epoch=coordinator_epoch,
        now_ms=cluster.unix_ms(now),
    )
    header = read_header(raw)
    assert header is not None
    end, epoch = replica.log_end_offset, replica.state.epoch
    batch = StoredBatch(raw, header, end, epoch, node_id, now)
    replica.append(batch)
    replica.wait_for(batch.next_offset, reply)
    replica.advance(now)
    wake_followers(cluster, replica, now)


# --- what leaders ask ---------------------------------------------------------------------------


def admit(
    cluster: MockCluster,
    node: Node,
    transactional_id: str,
    header: BatchHeader,
    partitions: Sequence[Partition],
    *,
    adds: bool,
    done: Done,
    now: float,
) -> None:
    """Are these partitions in the producer's transaction? `adds`: from now on, if they may be."""
    who = Producer(header.producer_id, header.producer_epoch)
    state = node.image.state(
        TRANSACTIONS, coordinator_log.partition_at(node, TRANSACTIONS, transactional_id)
    )
    if state is None or state.leader < 0:
        done(COORDINATOR_NOT_AVAILABLE, now)
        return
    there = cluster.nodes[state.leader]

    def work(reply: Done, now: float) -> None:
        seat = coordinator_log.find_seat(there, TRANSACTIONS, transactional_id)
        if not isinstance(seat, TransactionSeat):
            reply(seat if isinstance(seat, int) else NOT_COORDINATOR, now)
        elif adds:
            seat.decide(
                transactional_id,
                lambda known: transactions.add(known, who, partitions, now),
                lambda code, _, now: reply(code, now),
                now,
            )
        else:
            known = seat.known.get(transactional_id)
            codes = [transactions.verify(known, who, partition) for partition in partitions]
            reply(next(filter(None, codes), 0), now)

    Errand(cluster, node, state.leader, work, done, now)
