"""Transactional ids as their coordinator knows them: states, epochs, and who may do what.

Theory. A transaction is a value. Each request is a question to one of the functions here, which
gives an error code or the value that is to follow; the coordinator (`coordinator`) writes that to
its log and only then believes it. The states are Kafka's (KIP-98); the epochs are those of KIP-360
(a producer that gives its own id and epoch goes on after an error) and of KIP-890, where the end of
a transaction raises the epoch (EndTxn from version 5).

    EMPTY, COMPLETE_* → ONGOING → PREPARE_COMMIT → COMPLETE_COMMIT
                                → PREPARE_ABORT  → COMPLETE_ABORT

Taking over a transactional id whose transaction is ongoing aborts that at the next epoch, and the
new producer is told to come again (51). So does the coordinator when the time is up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from outlast.testing.codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
)

EPOCH_MAX = 32_767
LAST_EPOCH = EPOCH_MAX - 1  # the last that a producer is given; the next is for fencing it
NO_EPOCH = -1

Partition = tuple[str, int]


class State(Enum):
    """Where a transaction is."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def ending(self) -> bool:
        """Are markers being written?"""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def commits(self) -> bool:
        """Does or did it commit?"""
        return self in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)


class Producer(NamedTuple):
    """A producer id and epoch, as a client gives them."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id's present, as it stands in the coordinator's log."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_s: float
    state: State = State.EMPTY
    partitions: frozenset[Partition] = frozenset()
    started_s: float = 0.0
    last_epoch: int = NO_EPOCH  # whoever gives it repeats a request that had worked
    previous_id: int = -1  # the producer id before the epochs were used up
    next_id: int = -1  # while it ends: the producer id to go on with

    @property
    def producer(self) -> Producer:
        """Who it belongs to, once it has ended."""
        return Producer(self.next_id, 0) if self.next_id >= 0 else Producer(*self._present)

    @property
    def _present(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    @property
    def exhausted(self) -> bool:
        """Are the epochs of its producer id used up?"""
        return self.epoch >= LAST_EPOCH


Decision = Transaction | int


def begun(transactional_id: str, producer_id: int, timeout_s: float) -> Transaction:
    """A transactional id nobody has used."""
    return Transaction(transactional_id, producer_id, NO_EPOCH, timeout_s)


def take_over(
    known: Transaction, given: Producer | None, timeout_s: float, spare_id: int
) -> Decision:
    """InitProducerId. What follows is PREPARE_ABORT if a transaction must be aborted first."""
    if known.state.ending:
        return CONCURRENT_TRANSACTIONS
    if given is not None and not _is_known(known, given):
        return PRODUCER_FENCED
    if known.state is State.ONGOING:
        return fenced(known)
    free = replace(known, state=State.EMPTY, partitions=frozenset(), timeout_s=timeout_s)
    if known.exhausted and (given is None or given.epoch == known.epoch):
        last = known.epoch if given else NO_EPOCH
        return replace(
            free,
            producer_id=spare_id,
            epoch=0,
            previous_id=known.producer_id,
            last_epoch=last,
        )
    if given is None:
        return replace(free, epoch=known.epoch + 1, last_epoch=NO_EPOCH)
    if known.epoch in (NO_EPOCH, given.epoch):
        return replace(free, epoch=known.epoch + 1, last_epoch=known.epoch)
    if given.epoch == known.last_epoch:
        return free  # it had worked, and the answer was lost
    return PRODUCER_FENCED


def _is_known(known: Transaction, given: Producer) -> bool:
    if known.epoch == NO_EPOCH or given.producer_id == known.producer_id:
        return True
    return given.producer_id == known.previous_id and given.epoch >= LAST_EPOCH


def fenced(known: Transaction) -> Transaction:
    """An ongoing transaction that is aborted over its producer's head, at the next epoch."""
    return replace(known, state=State.PREPARE_ABORT, epoch=known.epoch + 1, last_epoch=known.epoch)


def add(
    known: Transaction | None, who: Producer, partitions: Collection[Partition], now: float
) -> Decision:
    """AddPartitionsToTxn and AddOffsetsToTxn; 0: they are in it already."""
    if known is not None and known.state.ending:
        return CONCURRENT_TRANSACTIONS
    code = stranger(known, who)
    if code or known is None:
        return code
    ongoing = known.state is State.ONGOING
    if ongoing and known.partitions.issuperset(partitions):
        return 0
    return replace(
        known,
        state=State.ONGOING,
        partitions=(known.partitions if ongoing else frozenset()).union(partitions),
        started_s=known.started_s if ongoing else now,
    )


def verify(known: Transaction | None, who: Producer, partition: Partition) -> int:
    """May this producer write to the partition? (A leader asks that before the first batch.)"""
    code = stranger(known, who)
    if code or known is None:
        return code
    if known.state.ending:
        return CONCURRENT_TRANSACTIONS
    return 0 if partition in known.partitions else TRANSACTION_ABORTABLE


def stranger(known: Transaction | None, who: Producer) -> int:
    """Why it is not this producer's; 0: it is."""
    if known is None or known.producer_id != who.producer_id:
        return INVALID_PRODUCER_ID_MAPPING
    return 0 if known.epoch == who.epoch else PRODUCER_FENCED


def end(known: Transaction | None, who: Producer, *, commit: bool) -> Decision:
    """EndTxn up to version 4: the epoch stays. 0: it has ended so before."""
    code = stranger(known, who)
    if code or known is None:
        return code
    if known.state is State.ONGOING:
        return replace(known, state=_prepare(commit))
    if known.state.ending:
        return CONCURRENT_TRANSACTIONS
    return INVALID_TXN_STATE if known.state is State.EMPTY or known.state.commits != commit else 0


def end_and_bump(
    known: Transaction | None, who: Producer, *, commit: bool, spare_id: int
) -> Decision:
    """EndTxn from version 5: the next transaction has the next epoch (KIP-890)."""
    if known is None:
        return INVALID_PRODUCER_ID_MAPPING
    if known.state.ending:
        return CONCURRENT_TRANSACTIONS
    rotated = known.previous_id == who.producer_id and who.epoch == LAST_EPOCH and known.epoch == 0
    if known.producer_id != who.producer_id and not rotated:
        return INVALID_PRODUCER_ID_MAPPING
    repeated = rotated or known.epoch == who.epoch + 1
    state = known.state
    complete = state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    present = who.epoch == known.epoch
    if not (present or (complete and repeated)):
        return PRODUCER_FENCED
    if state is State.ONGOING:
        return _bumped(known, _prepare(commit), spare_id)
    if complete and repeated:
        return 0 if state.commits == commit else INVALID_TXN_STATE
    if commit:
        return INVALID_TXN_STATE  # there is nothing to commit
    return _bumped(replace(known, partitions=frozenset()), State.PREPARE_ABORT, spare_id)


def _bumped(known: Transaction, state: State, spare_id: int) -> Transaction:
    return replace(
        known,
        state=state,
        epoch=known.epoch + 1,
        last_epoch=known.epoch,
        next_id=spare_id if known.exhausted else -1,
    )


def _prepare(commit: bool) -> State:
    return State.PREPARE_COMMIT if commit else State.PREPARE_ABORT


def completed(known: Transaction) -> Transaction:
    """All markers are written."""
    assert known.state.ending, known
    state = State.COMPLETE_COMMIT if known.state.commits else State.COMPLETE_ABORT
    done = replace(known, state=state, partitions=frozenset())
    if known.next_id < 0:
        return done
    return replace(
        done,
        producer_id=known.next_id,
        epoch=0,
        previous_id=known.producer_id,
        last_epoch=known.last_epoch,
        next_id=-1,
    )
