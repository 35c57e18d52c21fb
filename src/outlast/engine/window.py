"""The numbered batches of one partition: their order, their numbers, what is proved of them.

Batches stand in the order of their numbers, oldest first. One leaves when it and all before it are
proved; so a batch that was accepted behind a failed head stays, and so does one that failed: its
number is a *hole* until an answer proves it or the numbering is mended.

Rule: numbers are given, closed up and forgotten here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from outlast.engine.batch import NOT_NUMBERED, Batch
from outlast.engine.messages import AttemptState, Connection

SEQUENCES = 2**31
EPOCH_MAX = 32_767


def is_producer(producer_id: int, producer_epoch: int) -> bool:
    """Whether batches can be numbered under these."""
    return producer_id >= 0 and 0 <= producer_epoch <= EPOCH_MAX


def sequence_after(base_sequence: int, count: int) -> int:
    """The sequence that follows `count` records from `base_sequence` (KIP-98: wraps to 0)."""
    return (base_sequence + count) % SEQUENCES


class Window:
    """Sent batches of one partition under one producer id and epoch."""

    __slots__ = (
        "_batches",
        "_transactional",
        "last_offset",
        "next_sequence",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, *, transactional: bool = False) -> None:
        self._batches: list[Batch] = []  # few: the broker remembers five
        self._transactional = transactional
        self.producer_id = -1  # −1: none yet, or no idempotence: then no numbers are given
        self.producer_epoch = -1
        self.next_sequence = 0
        self.last_offset = -1  # of the last batch that left; −1: not known

    def __repr__(self) -> str:
        return (
            f"<Window batches={len(self._batches)} "
            f"producer={self.producer_id}/{self.producer_epoch} next={self.next_sequence}>"
        )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __bool__(self) -> bool:
        return bool(self._batches)

    # --- numbers ---

    def add(self, batch: Batch) -> None:
        """A batch is sent for the first time: the next number is its."""
        self._batches.append(batch)
        if self.producer_id >= 0:
            self._number(batch, self.next_sequence)
            self.next_sequence = sequence_after(self.next_sequence, batch.count)

    def _number(self, batch: Batch, sequence: int) -> None:
        batch.number(
            self.producer_id, self.producer_epoch, sequence, transactional=self._transactional
        )

    def renew(self, producer_id: int, producer_epoch: int) -> None:
        """Number from 0 under these; what is left of an aborted transaction is forgotten."""
        self.clear()
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0

    def clear(self) -> None:
        """Forget all batches: each has its outcome, and no number will be used again."""
        assert all(batch.result is not None for batch in self._batches)
        self._batches.clear()

    def replace(self, batch: Batch, pieces: tuple[Batch, ...]) -> None:
        """Pieces take the batch's place and its numbers, so that no other number changes."""
        sequence = batch.base_sequence
        kept: list[Batch] = []
        for other in self._batches:
            kept.extend(pieces if other is batch else (other,))
        if self.producer_id >= 0:
            for piece in pieces:
                self._number(piece, sequence)
                sequence = sequence_after(sequence, piece.count)
        self._batches = kept

    def close_hole(self, hole: int) -> None:
        """Drop what failed from here on and renumber the rest: nobody has seen these numbers."""
        sequence = self._batches[hole].base_sequence
        kept = [b for i, b in enumerate(self._batches) if i < hole or b.result is None]
        for batch in kept[hole:]:
            self._number(batch, sequence)
            sequence = sequence_after(sequence, batch.count)
        self.next_sequence = sequence
        self._batches = kept

    def restart(self, *, fresh_producer_id: bool) -> list[Batch]:
        """Forget the numbering; returns the batches without outcome, which have no number now.

        The next epoch begins at sequence 0; after the last one, or if wanted, another producer id
        must come first.
        """
        rest = [b for b in self._batches if b.proved is None and b.result is None]
        self.last_offset = self._offset_before(len(self._batches))
        for batch in rest:
            batch.base_sequence = NOT_NUMBERED
        self._batches.clear()
        self.next_sequence = 0
        if fresh_producer_id or self.producer_epoch >= EPOCH_MAX:
            self.producer_id = self.producer_epoch = -1
        elif self.producer_id >= 0:
            self.producer_epoch += 1
        return rest

    # --- proofs ---

    def is_head(self, batch: Batch) -> bool:
        """Whether no unproved batch stands before this one."""
        for other in self._batches:
            if other is batch:
                return True
            if other.proved is None:
                return False
        raise AssertionError(f"{batch} is not in {self}")

    def unproved_before(self, batch: Batch) -> list[Batch]:
        """The unproved batches before this one."""
        before = []
        for other in self._batches:
            if other is batch:
                break
            if other.proved is None:
                before.append(other)
        return before

    def prove_before(self, batch: Batch, connection: Connection) -> None:
        """The batch was accepted on this connection. So are those before it, unless one of them
        was refused on it: a refused one is never proved by a later 0 (rule 5).
        """
        before = self.unproved_before(batch)
        for other in before:
            last = other.attempts[-1] if other.attempts else None
            if last is None or last.connection != connection or last.state is AttemptState.REFUSED:
                return
        for other in before:
            other.proved = (other.attempts[-1].base_offset, -1)

    def drop_proved(self) -> None:
        """Batches at the front that are in the log for certain are done with."""
        while self._batches and self._batches[0].proved is not None:
            self.last_offset = self._offset_before(1)
            self._batches.pop(0)

    def drop_settled(self) -> None:
        """Without idempotence: whatever has its outcome and is not under way is done with."""
        kept = [b for b in self._batches if b.result is None or b.open_attempt is not None]
        self._batches = kept

    def hole(self) -> int | None:
        """Where the first batch stands that failed and is not proved."""
        for index, batch in enumerate(self._batches):
            if batch.result is not None and batch.proved is None:
                return index
        return None

    def begins_again(self, batch: Batch) -> bool:
        """Whether this accepted batch lies in another log than what was accepted before it: there
        the offsets grow with the numbers. Its topic was created again, or its log cut off.
        """
        assert batch.proved is not None
        offset = batch.proved[0]
        return 0 <= offset <= self._offset_before(self._batches.index(batch))

    def _offset_before(self, index: int) -> int:
        """Where the last batch before this place lies, of those that it is known of."""
        known = self.last_offset
        for batch in islice(self._batches, index):
            if batch.proved is not None and batch.proved[0] >= 0:
                known = batch.proved[0]
        return known

    def passed_over(self) -> list[Batch]:
        """What was refused each time, for certain, though a later batch is in the log (rule 5)."""
        accepted = [i for i, batch in enumerate(self._batches) if batch.proved is not None]
        before = islice(self._batches, accepted[-1]) if accepted else ()
        return [b for b in before if b.pending and not b.doubt]

    def accepted_behind(self, index: int) -> bool:
        """Whether a batch after this one is in the log, as if its number were not missing."""
        return any(b.proved is not None for b in islice(self._batches, index, None))

    def unseen_from(self, index: int) -> bool:
        """Whether every attempt of every batch from here on was refused (rule 7a)."""
        followers = [b for i, b in enumerate(self._batches) if i >= index]
        return all(not b.doubt and b.proved is None for b in followers)

    def __getitem__(self, index: int) -> Batch:
        return self._batches[index]
