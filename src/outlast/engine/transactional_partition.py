"""A partition of a transactional producer: its numbers are those of the whole producer.

Rule 6 of the sequencing rules, the next epoch for one partition, is not to be had where all have
one epoch. So where another partition would restart its numbering, this one gives its records up,
and is *broken*: its transaction has failed. Once that is aborted the producer has its next epoch,
and every partition is renewed.
"""

from __future__ import annotations

from outlast.engine.batch import Batch
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.partition import Partition


class TransactionalPartition(Partition):
    """One partition of one topic, under the producer's id and epoch."""

    def renew(self, producer_id: int, producer_epoch: int) -> None:
        """Number under these from 0 on, if they are not the present ones."""
        window = self.window
        if (window.producer_id, window.producer_epoch) == (producer_id, producer_epoch):
            return
        assert self.in_flight == 0
        window.renew(producer_id, producer_epoch)
        self.proven = None
        self.draining = False
        self.inquest = None
        self.restart_reason = ""

    def _restart(self, reason: str, *, unsure: str) -> list[Batch]:  # noqa: ARG002
        """Everything fails: what was sent may be in the log, but will never be committed."""
        assert self.in_flight == 0
        why = FailureReason(
            "aborted",
            None,
            "its transaction has failed: its partition would have to restart its numbering "
            f"({reason})",
        )
        settled = self._fail(list(self.unsettled()), why)
        self.queue.batches.clear()
        self.window.clear()
        self.fresh_producer_id = False
        self.proven = None
        self.inquest = None
        self.restart_reason = ""
        self.broken = reason
        return settled
