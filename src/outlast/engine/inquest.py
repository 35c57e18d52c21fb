"""What was written? The question that a 45 raises where a batch is unsure, asked from the newest.

Theory. An unsure batch is sent again under its old number, and a broker that has it answers 0. But
after a broker's restart only the *last* batch is remembered (S1): a repeat of an older one gets 45
though it is in the log. 45 for the head therefore says: it is written and forgotten, or the one
before it is missing; and a head that was only ever refused may have been passed over by what is
unsure behind it (rule 5). Numbers are taken in order, so the batches that are written are the first
ones of the window, and the last of these is always remembered. Hence: repeat the sent, unsettled
batches from the newest to the oldest, one at a time, on this connection to this leader.

* The first 0 proves its batch and all before it, unless one of these was only ever refused: the
  log began behind that one (rule 5). Those after it were never written, or are not in
  this log: they are sent on, under their old numbers, and stay unsure.
* A batch that is accepted already, behind the head, is as good as a 0: no question is needed.
* 7 with an offset: in this leader's log, but not safe yet: the same batch again.
* 19, loading, throttling: the leader said nothing about the batch: the same again.
* 45 for all of them: none is in the log, and none can be taken later, as the number before the
  head's is missing: the partition restarts, and they are sent under new numbers (rule 7c).
* A no that is the batch's own (too large, invalid): brokers look at that before they look whether
  they know the batch, so nothing is told; the next older one is asked. If none is known then, it
  fails, and it is a hole that may be written (rule 7b).
* Anything else, another connection, another leader epoch: the question is void, begin again with
  the head. A 45 holds for one leader epoch on one connection only.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.engine.batch import Batch
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.messages import Connection


class Inquest:
    """The batches still to be asked about, on one connection at one leader epoch."""

    __slots__ = ("_connection", "_leader_epoch", "_remaining", "declined")

    def __init__(self, connection: Connection, leader_epoch: int, batches: Sequence[Batch]) -> None:
        """Ask about these, given in the order of their numbers."""
        self._connection = connection
        self._leader_epoch = leader_epoch
        self._remaining = list(batches)
        self.declined: list[tuple[Batch, FailureReason]] = []  # each with its final no

    def __repr__(self) -> str:
        return f"<Inquest on {self._connection} remaining={len(self._remaining)}>"

    @property
    def batch(self) -> Batch | None:
        """The batch to repeat now; None: all were denied."""
        return self._remaining[-1] if self._remaining else None

    def about(self, batches: Sequence[Batch]) -> Inquest:
        """The same question, now that it is known whom to ask."""
        return Inquest(self._connection, self._leader_epoch, batches)

    def holds(self, connection: Connection, leader_epoch: int) -> bool:
        """Whether answers on this connection, at this epoch, still speak of the same log."""
        return self._connection == connection and self._leader_epoch == leader_epoch

    def exhausted(self) -> bool:
        """This one is not the last in the log, or its answer does not say. True: none is left."""
        self._remaining.pop()
        return not self._remaining
