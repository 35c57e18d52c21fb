"""What comes back: an answer or none, judged, and what follows from it.

Rules:
* One `match` acts on verdicts (`_answered`); there is no other place that knows what an error of
  a batch means.
* A signal does everything in one step: attempt ended, gap opened, hint taken or refresh wanted.
  The caller sends again right after.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from outlast.engine.batch import Attempt, Batch
from outlast.engine.brokers import NARROW_FOR_S, Link, Pending, Question
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.hub import Hub
from outlast.engine.lanes import owed_since_s
from outlast.engine.messages import (
    Cause,
    Connection,
    ConnectionLost,
    Disconnect,
    Loss,
    MetadataRefreshed,
    Role,
    StallEnd,
)
from outlast.engine.metadata import Node
from outlast.engine.partition import Partition
from outlast.engine.produce import Answer, read_answers
from outlast.engine.steering import Steering, Told
from outlast.engine.verdict import SOON_S, Judgement, Verdict, judge, judge_abort

UNKNOWN_SERVER_ERROR = -1
_OWN = frozenset({Verdict.SPLIT, Verdict.FAIL_BATCH})  # of a batch's own: nothing else is told so


class Answers:
    """What the answers and losses of Produce requests do."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.steering = Steering(hub, self._clear_lane)

    def __repr__(self) -> str:
        return "<Answers>"

    def produced(self, link: Link, pending: Pending, response: Any, now: float) -> None:
        """A Produce answer: each of its partitions has its own."""
        answers = read_answers(response, (batch for _, batch in pending.batches))
        told: list[Told] = []
        for place, batch in pending.batches:
            attempt = batch.open_attempt
            assert attempt is not None
            told.append((place, batch, attempt))
        for place, batch, attempt in told:
            self._answered(place, batch, attempt, answers.get(place.tp), now)
        if self._hub.lanes.enabled:
            self.steering.steer(link, pending.sent_s, told, now)

    def _clear_lane(self, link: Link, now: float) -> None:
        """Abort a lane behind a stuck request: what waits there would be served one by one, each
        for as long. All of it is sent again, each in its own lane.
        """
        connection = link.connection
        assert connection is not None
        self._hub.out.commands.append(Disconnect(connection, abort=True))
        unanswered = self._hub.brokers.drop(link, now)
        link.retry_s = now
        self._lost(link, connection, unanswered, judge_abort(), now, ())

    def _answered(
        self,
        place: Partition,
        batch: Batch,
        attempt: Attempt,
        answer: Answer | None,
        now: float,
    ) -> None:
        if answer is None:  # its partition is missing from the answer: anything may be true
            judgement, base_offset = self._judge(UNKNOWN_SERVER_ERROR, -1, batch), -1
        else:
            judgement = self._judge(answer.error_code, answer.base_offset, batch)
            base_offset = answer.base_offset
        verdict, name, state = judgement.verdict, judgement.name, judgement.state
        if verdict is Verdict.DELIVERED:
            assert answer is not None
            self._delivered(place, batch, attempt, answer, now)
            return
        self._hub.attempt_failed(place, judgement, now)
        attempt.stalled = judgement.stall
        if judgement.stall:
            since_s = owed_since_s(batch, attempt)
            self._hub.stalled(place, attempt.connection, "follower", since_s, now)
        asked = place.is_asked(batch)
        if not asked and not place.is_head(batch):  # noise behind a failed head (rule 5)
            self._hub.settle(place, place.refuse(batch, state, name, base_offset), now)
            return
        final = self._exhausted(batch, judgement, now)
        if asked and not final and not self._speaks_of_the_question(judgement):
            place.void()
        kind = "retries" if final and judgement.tries_max is None else "broker"
        why = FailureReason(kind, judgement.error_code, (answer.message if answer else "") or name)
        if judgement.cause is not None:
            self._hub.gap_refused(place, attempt, judgement.cause, name, now)
        match verdict:
            case Verdict.REFRESH | Verdict.RETRY | Verdict.UNSURE if not final:
                settled = place.refuse(batch, state, name, base_offset)
            case Verdict.RESEQUENCE if not judgement.fresh_producer_id:
                settled = place.deny(batch, name)
            case _ if asked and (final or verdict in _OWN):
                settled = place.decline(batch, state, name, why)
            case _ if asked:  # it is the producer's, and the head will be told so too
                settled = place.refuse(batch, state, name, base_offset)
            case Verdict.RESEQUENCE:
                settled = place.lose_producer(batch, name)
            case Verdict.SPLIT if not batch.doubt and batch.result is None:
                settled = self._cut(place, batch, name, (0, batch.count // 2), {})
            case Verdict.FAIL_BATCH if answer is not None and self._some_only(batch, answer):
                settled = self._fail_some(place, batch, judgement, answer)
            case _:
                if verdict in (Verdict.ABORT, Verdict.FAIL_PRODUCER):
                    assert self._hub.transactions is not None
                    self._hub.transactions.lost_numbering()
                settled = place.fail(batch, state, name, why)
        self._hub.settle(place, settled, now)
        if judgement.stale_leader:
            self._doubt_leader(place, attempt, answer, now)
        elif verdict is Verdict.RESEQUENCE:
            if place.inquest is None:  # its few questions need no pause; restarts without end do
                place.refusals += 1
                place.retry_at_s = now + self._hub.schedules.denied_delay_s(place.refusals)
        elif judgement.stall and self._hub.lanes.enabled:
            # the broker has waited already; one that answers at once is not asked at once again
            place.retry_at_s = attempt.sent_s + self._hub.settings.retry_backoff_s
        elif judgement.soon:
            place.retry_at_s = now + SOON_S
        elif not final:
            place.retry_at_s = now + self._hub.schedules.retry_delay_s(
                max(1, batch.retries), now - batch.created_s, name
            )

    def _judge(self, error_code: int, base_offset: int, batch: Batch) -> Judgement:
        transactional = self._hub.limits.transactional
        return judge(error_code, base_offset, records=batch.count, transactional=transactional)

    @staticmethod
    def _speaks_of_the_question(judgement: Judgement) -> bool:
        """Whether an inquest goes on after this answer to it (see `inquest`)."""
        if judgement.verdict is Verdict.RESEQUENCE:
            return not judgement.fresh_producer_id
        return judgement.stall or judgement.verdict is Verdict.RETRY or judgement.verdict in _OWN

    @staticmethod
    def _some_only(batch: Batch, answer: Answer) -> bool:
        """Whether the answer blames some records, so that the others can go without them."""
        blamed = {index for index, _ in answer.record_errors if 0 <= index < batch.count}
        return not batch.doubt and batch.result is None and 0 < len(blamed) < batch.count

    def _fail_some(
        self, place: Partition, batch: Batch, judgement: Judgement, answer: Answer
    ) -> list[Batch]:
        """KIP-467: only the blamed records fail, each with its own text; the rest is sent again."""
        bad = {
            index: FailureReason(
                "broker", judgement.error_code, text or answer.message or judgement.name
            )
            for index, text in answer.record_errors
            if 0 <= index < batch.count
        }
        starts = sorted({0, *bad, *(index + 1 for index in bad)} - {batch.count})
        return self._cut(place, batch, judgement.name, starts, bad)

    def _cut(
        self,
        place: Partition,
        batch: Batch,
        name: str,
        starts: Sequence[int],
        bad: Mapping[int, FailureReason],
    ) -> list[Batch]:
        pieces, settled = place.split(batch, name, starts, bad)
        if not bad:
            place.queue.learn_limit(pieces)
        for number in batch.gaps:  # several wait where one did
            for _ in pieces[1:]:
                self._hub.recorder.joined(number)
        return settled

    def _delivered(
        self,
        place: Partition,
        batch: Batch,
        attempt: Attempt,
        answer: Answer,
        now: float,
    ) -> None:
        settled = place.accept(batch, answer.base_offset, answer.log_append_time_ms, now)
        ended = self._hub.stalls.end(place.tp, StallEnd.ACK, now)
        if ended and self._hub.troubled:  # the cluster gave up whom both waited for
            self._hub.inquiries.clock.news(now)
        self._hub.tell(ended)
        self._hub.metadata.fresh(*place.tp)
        if self._hub.recorder.open(place.tp):
            self._hub.shares.changed()
        self._hub.out.facts += self._hub.recorder.accepted(
            place.tp,
            sent_s=attempt.sent_s,
            leader=attempt.connection.node_id,
            leader_epoch=attempt.leader_epoch,
            now=now,
        )
        self._hub.settle(place, settled, now)

    def _exhausted(self, batch: Batch, judgement: Judgement, now: float) -> bool:
        """Count an answer against `retries`. Waiting for a leader does not use them up."""
        if judgement.verdict not in (Verdict.RETRY, Verdict.UNSURE):
            return False
        if judgement.stall or judgement.stale_leader or judgement.soon:
            return False
        batch.retries += 1
        if judgement.tries_max is not None:
            batch.unknown_errors += 1
            if batch.unknown_errors >= judgement.tries_max:
                return True
        return self._hub.schedules.retry_stops(batch.retries, now - batch.created_s, judgement.name)

    def _doubt_leader(
        self, place: Partition, attempt: Attempt, answer: Answer | None, now: float
    ) -> None:
        """A leader said no: go where the hint says, or where metadata already does, or ask."""
        if answer is not None and answer.leader_id >= 0:
            endpoint = (
                Node(answer.leader_id, *answer.leader_endpoint) if answer.leader_endpoint else None
            )
            change = self._hub.metadata.hint(
                *place.tp,
                answer.leader_id,
                answer.leader_epoch,
                endpoint,
                now,
                topic_id=attempt.topic_id,
            )
            if change is not None:
                self._hub.inquiries.clock.want(now)
                self._hub.leader_changed(change, now, by_hint=True)
                return
        leader = self._hub.metadata.leader(*place.tp)
        if leader is not None and leader.usable and leader.epoch > attempt.leader_epoch:
            return  # known already: it goes there at once
        place.refusals += 1
        place.retry_at_s = now + self._hub.schedules.denied_delay_s(place.refusals)
        self._hub.trouble(place.tp, now)

    def _back_off(self, link: Link, was_ready: bool, now: float) -> None:
        """The first reconnect after a good connection is at once; then by schedule."""
        at_once = was_ready and not link.failures
        self._hub.brokers.fail(link, now)
        if not was_ready:
            self._hub.brokers.unreachable(link, now)
        link.retry_s = now
        if not at_once:
            link.retry_s += self._hub.schedules.reconnect_delay_s(
                link.failures, now - link.failing_since_s
            )

    def give_up(self, link: Link, judgement: Judgement, detail: str, now: float) -> None:
        """Abort a connection that owes answers: what has not left this host never will."""
        assert link.connection is not None
        self._hub.out.commands.append(Disconnect(link.connection, abort=True))
        self.ended(link, Loss.CLOSED, detail, judgement, now)

    def ended(
        self,
        link: Link,
        loss: Loss,
        detail: str,
        judgement: Judgement,
        now: float,
        unsent: Collection[int] = (),
    ) -> None:
        """A connection is over, by itself or given up; `unsent` was never handed to it."""
        connection, was_ready = link.connection, link.ready
        assert connection is not None
        unanswered = self._hub.brokers.drop(link, now)
        address = self._hub.address(link.node_id)
        self._hub.out.facts.append(
            ConnectionLost(now, connection, address, loss, detail, len(unanswered))
        )
        self._back_off(link, was_ready, now)
        if not was_ready:
            link.cut_bytes = 0  # it was restarted, or is gone
        elif judgement.cause is Cause.CONNECTION_LOST:
            self._narrow(link, [k for k in unanswered if k.question is Question.PRODUCE], now)
        if self._hub.settings.acks == 0 and connection.role is Role.OPEN:
            self._hub.inquiries.clock.want(now)  # a close is all that a refusal says then (S18)
        self._lost(link, connection, unanswered, judgement, now, unsent)

    def _narrow(self, link: Link, produces: Sequence[Pending], now: float) -> None:
        settings = self._hub.settings
        if produces and link.cut(produces, settings.batch_bytes, now):
            self._hub.schedules.complaints.append(
                f"{self._hub.address(link.node_id)} closes connections instead of answering: for "
                f"{NARROW_FOR_S:g} s requests to it hold {link.narrow_bytes} bytes at most (is its "
                f"socket.request.max.bytes below max_request_size={settings.max_request_bytes}?)"
            )

    def _lost(
        self,
        link: Link,
        connection: Connection,
        unanswered: Iterable[Pending],
        judgement: Judgement,
        now: float,
        unsent: Collection[int],
    ) -> None:
        """What was unanswered on a connection that is gone: left, or never handed over."""
        left: dict[tuple[str, int], Partition] = {}
        for pending in unanswered:
            match pending.question:
                case Question.METADATA:
                    self._hub.out.facts.append(
                        MetadataRefreshed(
                            now, link.node_id, now - pending.sent_s, False, judgement.name
                        )
                    )
                    self._hub.out.commands += self._hub.inquiries.metadata_ended(link, False, now)
                case Question.PRODUCER_ID:
                    self._hub.inquiries.producer_id_failed(loading=False, now=now)
                case Question.COORDINATOR:
                    assert pending.about is not None
                    self._hub.inquiries.coordinator_told(pending.about, ok=False, now=now)
                case Question.TRANSACTION:
                    assert self._hub.transactions is not None
                    self._hub.transactions.errands.lost(
                        pending, link.node_id, judgement, now, sent=pending.token not in unsent
                    )
                case Question.PRODUCE if pending.token in unsent:
                    for place, batch in pending.batches:
                        self._hub.settle(place, place.unsend(batch), now)
                case _:  # Produce, and it was handed over
                    for place, _ in pending.batches:
                        left.setdefault(place.tp, place)
        for place in left.values():
            self._hub.attempt_failed(place, judgement, now)
            if judgement.cause is not None:
                oldest = next(b.open_attempt for b in place.window if b.open_attempt is not None)
                self._hub.gap_refused(place, oldest, judgement.cause, judgement.name, now)
            self._hub.settle(place, place.lose_connection(connection, judgement.name), now)
            if judgement.stale_leader:
                self._hub.trouble(place.tp, now)

    def unreachable(self, link: Link, judgement: Judgement, now: float) -> None:
        """A leader cannot be connected while records wait for it, or a coordinator."""
        assert judgement.cause is not None
        if link.role is Role.COORDINATOR:
            assert self._hub.transactions is not None
            self._hub.transactions.errands.unreachable(link, judgement, now)
            return
        if self._hub.lanes.may_share(link):
            return
        for place in self._hub.waiting_for(link, now):
            self._hub.gap_unreachable(place, judgement.cause, judgement.name, now)
            self._hub.trouble(place.tp, now)
