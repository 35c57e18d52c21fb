"""One partition: what every answer does to its order.

Two rules: what changes a partition's order is here or in the parts that it owns (`queue`, `window`,
`inquest`); and it knows neither leaders nor codes, it is told *accepted*, *refused* and so on.
Rules are numbered as in docs/architecture.md, Sequencing rules.

Theory
------
A broker keeps, per producer id and partition, the last sequence and the last five batches. It
takes a batch whose base sequence follows, answers a repeat of the five with the first offset, and
says 45 to anything else. So a record can be lost, doubled or reordered by the client only if a
sequence is used for two different records, or if a record is sent again under another sequence
while a copy of it may still be taken. Everything below exists to never do either.

::

    window                          queue
    [ head | … at most five … ]     [ … | the one that takes records ]
      numbered, oldest first          no numbers yet

* **Numbers** are given when a batch is first sent, and stay (rule 1). The window ends at five
  batches from the oldest unsettled one, since the broker remembers five (rule 2, S1).
* **One in flight until the first ack** on this leader epoch, producer epoch and connection, and
  again after 60 s without one: a broker without state takes *any* first sequence, so a second
  batch in the pipe could be taken while the first is refused (rule 3, S11, S12).
* **One connection at a time** (rule 4). Answers on it come in the order of sending.
* **Only the head decides** (rule 5). Whatever comes back for a batch behind a failed head is
  noise, save a 0: that batch is settled; and if no unproved batch before it was refused on that
  connection, all of them are written too. After a failure the partition *drains*: nothing is sent
  until every request on the connection is answered or the connection is gone; then the head goes
  first, alone.
* **A 0 behind a certain no**: the log knew nothing of us and began with that batch, for its topic
  was created again (S11). What was refused could only lie behind it now: it fails, *not accepted*.
* **45 for an unsure head** opens an inquest: what was written is asked from the newest batch on
  (rule 7, `inquest`). 45 for a head that was only ever refused, and nothing unsure behind it: the
  broker lost our numbering, and the partition restarts.
* **A hole** is a number whose batch failed for good. If every attempt of that batch and of all
  that follow was refused, the followers are renumbered in place: nobody has seen those numbers
  (7a). Otherwise the partition *restarts*: the next producer epoch begins at sequence 0 (rule 6).
  If the hole may be written or was passed over, unsure batches behind it fail as *unknown* (7b);
  if it was only refused, nothing can ever fill it or be taken behind it, and they go on (7c).
  All of this waits for the drain: what failed in flight may yet be answered 0, and is no hole.

Without idempotence there are no numbers: every answer decides for its own batch, and order is
kept only with one request in flight, as in Kafka (rule 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from outlast.engine import failure_reasons as reasons
from outlast.engine.batch import Attempt, Batch, Result
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.inquest import Inquest
from outlast.engine.messages import AttemptState, Connection
from outlast.engine.partition_state import PartitionState


class Partition(PartitionState):
    """One partition of one topic. Methods that settle batches return them, results set."""

    # --- answers ---

    def accept(
        self, batch: Batch, base_offset: int, log_append_time_ms: int, now: float
    ) -> list[Batch]:
        """A 0: the batch is written, and maybe those before it are proved by it (rule 5)."""
        attempt = self._end_attempt(batch, AttemptState.ACCEPTED, "")
        batch.proved = (base_offset, log_append_time_ms)
        settled: list[Batch] = []
        self.last_ack_s = now
        self.refusals = 0
        self.retry_at_s = 0.0
        if self.limits.idempotent:
            self.proven = (
                attempt.connection,
                attempt.leader_epoch,
                self.window.producer_id,
                self.window.producer_epoch,
            )
            if self.window.begins_again(batch):
                self.inquest = None
                unsure = [b for b in self.window.unproved_before(batch) if b.doubt]
                settled = self._fail(unsure, reasons.TOPIC_RECREATED)
            elif self.is_asked(batch):
                self._prove_all_before(batch)
            else:
                self.window.prove_before(batch, attempt.connection)
        return settled + self._settle_proved() + self._drained()

    def _prove_all_before(self, batch: Batch) -> None:
        """The newest in the log is found; numbers were taken in order, if none was passed over."""
        before = self.window.unproved_before(batch)
        if all(other.doubt for other in before):
            for other in before:
                other.proved = (-1, -1)
        self.inquest = None

    def _settle_proved(self) -> list[Batch]:
        settled = []
        for other in self.window:
            if other.proved is not None and other.result is None:
                other.result = Result(*other.proved)
                settled.append(other)
        self._drop()
        return settled

    def refuse(
        self, batch: Batch, state: AttemptState, error: str, base_offset: int
    ) -> list[Batch]:
        """A no that may be followed by a yes: the batch stays, and goes again after the drain."""
        self._end_attempt(batch, state, error).base_offset = base_offset
        self._rewind()
        return self._drained()

    def fail(
        self, batch: Batch, state: AttemptState, error: str, failure: FailureReason
    ) -> list[Batch]:
        """A final no for the head. (Behind a failed head it is noise: call `refuse`.)"""
        assert self.is_head(batch)
        self._end_attempt(batch, state, error)
        settled = self._fail((batch,), failure)
        self._rewind()
        return settled + self._drained()

    def split(
        self, batch: Batch, error: str, starts: Sequence[int], bad: Mapping[int, FailureReason]
    ) -> tuple[tuple[Batch, ...], list[Batch]]:
        """The head's every attempt was refused: cut it into the pieces that begin at `starts`,
        and fail those that begin at the indices in `bad`. Returns all pieces, and what is settled.
        """
        assert self.is_head(batch)
        assert not batch.doubt and batch.result is None  # noqa: PT018
        self._end_attempt(batch, AttemptState.REFUSED, error)
        pieces = batch.pieces(starts)
        settled: list[Batch] = []
        for start, piece in zip(starts, pieces, strict=True):
            piece.seal(piece.compressed(self.limits.compression))
            if start in bad:
                settled += self._fail((piece,), bad[start])
        self.window.replace(batch, pieces)
        self._rewind()
        return pieces, settled + self._drained()

    def deny(self, batch: Batch, error: str) -> list[Batch]:
        """45: the batch's number is not the one that follows in this leader's log."""
        assert self.is_asked(batch) or self.is_head(batch)
        attempt = self._end_attempt(batch, AttemptState.REFUSED, error)
        self._rewind()
        if self.inquest is not None and self.inquest.batch is batch:
            return self._asked_next(self.inquest) + self._drained()
        if any(b.unsure for b in self.window):
            self.inquest = Inquest(attempt.connection, attempt.leader_epoch, ())
        else:
            self.restart_reason = "resequence"
        return self._drained()

    def decline(
        self, batch: Batch, state: AttemptState, error: str, failure: FailureReason
    ) -> list[Batch]:
        """A final no to a question tells nothing of what is written: the next older is asked."""
        assert self.inquest is not None and self.inquest.batch is batch  # noqa: PT018
        self._end_attempt(batch, state, error)
        self._rewind()
        self.inquest.declined.append((batch, failure))
        return self._asked_next(self.inquest) + self._drained()

    def _asked_next(self, inquest: Inquest) -> list[Batch]:
        """Once nobody is left to ask: what was declined fails, and is a hole; or all restart."""
        if not inquest.exhausted():
            return []
        self.inquest = None
        if not inquest.declined:
            self.restart_reason = "resequence"
        return [b for batch, why in inquest.declined for b in self._fail((batch,), why)]

    def void(self) -> None:
        """An answer that says nothing about what was written: begin again with the head."""
        self.inquest = None

    def lose_producer(self, batch: Batch, error: str) -> list[Batch]:
        """The broker knows another producer: a fresh id, once drained. What was written cannot be
        asked any more, so unsure batches fail as *unknown* (rule 6).
        """
        assert self.is_head(batch)
        self._end_attempt(batch, AttemptState.REFUSED, error)
        self._rewind()
        self.inquest = None
        self.restart_reason = "resequence"
        self.fresh_producer_id = True
        return self._drained()

    def lose_connection(self, connection: Connection, error: str) -> list[Batch]:
        """The connection ended with requests unanswered: copies may be taken later (B16)."""
        if self.connection != connection or not self.in_flight:
            return []
        for batch in self.window:
            if batch.open_attempt is not None:
                self._end_attempt(batch, AttemptState.LEFT, error)
        assert self.in_flight == 0
        self.inquest = None
        self._rewind()
        return self._drained()

    def unsend(self, batch: Batch) -> list[Batch]:
        """The request never left the driver: there was no attempt."""
        batch.withdraw_attempt()
        self.in_flight -= 1
        self._rewind()
        return self._drained()

    def _end_attempt(self, batch: Batch, state: AttemptState, error: str) -> Attempt:
        attempt = batch.end_attempt(state, error)
        self.in_flight -= 1
        assert self.in_flight >= 0
        return attempt

    def _rewind(self) -> None:
        """Send nothing until what is in flight is answered; then the first unproved one, alone."""
        self.proven = None
        self.draining = self.limits.idempotent and self.in_flight > 0

    # --- failing ---

    def expire(self, now: float) -> list[Batch]:
        """Fail what has waited `delivery_timeout_s`."""
        settled: list[Batch] = []
        age_s = self.limits.delivery_timeout_s
        why = reasons.expired(age_s)
        for batch in self.window:
            if batch.proved is None and now >= batch.created_s + age_s:
                settled += self._fail((batch,), why)
        while self.queue.head is not None and now >= self.queue.head.created_s + age_s:
            settled += self._fail((self.queue.batches.popleft(),), why)
        if self.window.hole() is not None:
            self.draining = self.limits.idempotent and self.in_flight > 0
        self._drop()
        return settled + self._drained()

    def fail_all(self, failure: FailureReason) -> list[Batch]:
        """Fail everything that has no outcome yet (close)."""
        settled = self._fail(list(self.unsettled()), failure)
        self.queue.batches.clear()
        self.draining = self.limits.idempotent and self.in_flight > 0
        self._drop()
        return settled + self._drained()

    def fail_queue(self, failure: FailureReason) -> list[Batch]:
        """Fail what has no number yet (no producer id to be had, topic gone)."""
        settled = self._fail(self.queue.batches, failure)
        self.queue.batches.clear()
        return settled

    def leave_topic(self, failure: FailureReason) -> list[Batch]:
        """The topic was re-created: what may be in the old one fails, the rest goes to the new."""
        sent = [b for b in self.window if b.doubt or b.open_attempt is not None]
        settled = self._fail(sent, failure)
        self.restart_reason = reasons.RECREATED
        self.draining = self.limits.idempotent and self.in_flight > 0
        self.proven = None
        self.inquest = None
        return settled + self._drained()

    def _fail(self, batches: Iterable[Batch], why: FailureReason) -> list[Batch]:
        """Fail those that have no outcome yet; returns them."""
        settled = [batch for batch in batches if batch.result is None]
        for batch in settled:
            batch.result = Result(failure=batch.failure(why, self.limits.unix_offset_s))
        return settled

    # --- after the drain ---

    def _drop(self) -> None:
        if self.limits.idempotent:
            self.window.drop_proved()
        else:
            self.window.drop_settled()

    def _drained(self) -> list[Batch]:
        """Once nothing is in flight: fail what cannot go in order any more, and renumber."""
        if not self.limits.idempotent:
            self.window.drop_settled()
            return []
        if self.in_flight:
            return []
        self.draining = False
        return self._fail(self.window.passed_over(), reasons.PASSED_OVER) + self._renumber()

    def _renumber(self) -> list[Batch]:
        """Nothing is in flight: mend the numbering if it was lost or has a hole."""
        hole = self.window.hole()
        if self.restart_reason:
            unsure = "fail" if self.fresh_producer_id or hole is not None else "keep"
            return self._restart(self.restart_reason, unsure=unsure)
        if hole is not None:
            return self._mend(hole)
        if self.inquest is not None and self.inquest.batch is None:
            return self._open_inquest(self.inquest)
        return []

    def _mend(self, hole: int) -> list[Batch]:
        """A number whose batch failed for good (rules 7a, 7b, 7c)."""
        self.inquest = None
        if self.window.unseen_from(hole):
            self.window.close_hole(hole)
            return []
        failed = self.window[hole]
        assert failed.result is not None
        kind = failed.result.failure.kind if failed.result.failure is not None else ""
        doubt = any(b.doubt for b in self.window if b.result is not None and b.proved is None)
        fillable = doubt or self.window.accepted_behind(hole)
        reason = {reasons.EXPIRED: "expired", reasons.RECREATED: "recreated"}.get(kind, "refused")
        return self._restart(reason, unsure="fail" if fillable else "keep")

    def _open_inquest(self, opened: Inquest) -> list[Batch]:
        """The head got 45 and all else is answered: whom to ask, or what is known."""
        accepted = [b for b in self.window if b.proved is not None]
        if accepted:  # behind the head: as good as a 0 for the question
            self._prove_all_before(accepted[-1])
            return self._settle_proved()
        others = [b for b in islice(self.window, 1, None) if b.sent]
        if not others:
            self.inquest = None
            return self._restart("resequence", unsure="keep")
        self.inquest = opened.about(others)
        return []

    def _restart(self, reason: str, *, unsure: str) -> list[Batch]:
        """Number from 0 again under the next epoch; unsure batches 'fail', or 'keep' waiting."""
        assert self.in_flight == 0
        doubtful = [b for b in self.window if b.unsure and unsure == "fail"]
        settled = self._fail(doubtful, reasons.restarted(reason))
        rest = self.window.restart(fresh_producer_id=self.fresh_producer_id)
        if reason == reasons.RECREATED:
            self.window.last_offset = -1
        self.fresh_producer_id |= self.window.producer_id < 0 and self.limits.idempotent
        self.queue.batches.extendleft(reversed(rest))
        self.proven = None
        self.inquest = None
        self.restart_reason = ""
        self.restarted = reason
        return settled
