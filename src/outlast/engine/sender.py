"""The engine's face: takes events and the time, gives back commands and facts.

A record's way out:  `append` → `intake` (metadata, partitioner, accumulator, partition); then
`outgoing.pump` → partitions that are due, by leader → `next_batch` → one `Send` for all that fit.
A refusal's way back: `responded` → `answers` → verdict → partition (rewind) → gap opens → the hint
is taken or a refresh is wanted → `pump` again, in the same step.

Rules:
* Every input ends in `now`; nothing here reads a clock, rolls dice or touches a socket.
* `next_deadline(now)` is later than `now`, or the driver would spin.
* Events of a connection that was given up are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

from outlast.engine.aftermath import Aftermath
from outlast.engine.answers import Answers
from outlast.engine.batch import Batch
from outlast.engine.brokers import Question
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.health import examine
from outlast.engine.hub import Hub
from outlast.engine.intake import Intake, Waiting
from outlast.engine.messages import (
    PRODUCE_ROLES,
    Complaint,
    Connection,
    ConnectionOpened,
    Gap,
    Health,
    Loss,
    Outbox,
    Outcome,
    Role,
    Settled,
    Stall,
    Throttled,
)
from outlast.engine.outgoing import Outgoing
from outlast.engine.pressure import Pressure
from outlast.engine.rng import Rng
from outlast.engine.settings import Settings
from outlast.engine.silence import WATCHED_ROLES, Silence
from outlast.engine.tidings import Tidings
from outlast.engine.transactions import Transactions
from outlast.engine.verdict import judge_loss, judge_timeout

SHORTEST_WAIT_S = 0.0005
NO_FEATURES: Mapping[str, int] = MappingProxyType({})

__all__ = ["Sender", "Waiting"]

Take = TypeVar("Take", bound=Callable[..., Any])


class Sender:
    """All decisions of one producer."""

    def __init__(self, settings: Settings, rng: Rng, now: float, unix_offset_s: float) -> None:
        self._hub = Hub(settings, rng, unix_offset_s)
        self._intake = Intake(self._hub)
        self._outgoing = Outgoing(self._hub)
        self._answers = Answers(self._hub)
        self._silence = Silence(self._hub, self._answers)
        self._tidings = Tidings(self._hub, self._intake)
        self._aftermath = Aftermath(self._hub)
        self._pressure = Pressure(self._hub.accumulator, now)
        self._closed = False
        self._advanced_s = now
        self.transactions: Transactions | None = None
        if settings.transactional_id is not None:
            self.transactions = self._hub.transactions = Transactions(
                self._hub, settings.transactional_id, settings.transaction_timeout_ms
            )
        # the application's side, where every call layer would be paid for each record
        self.append = self._guarded(self._intake.append, 7)
        self.append_run = self._guarded(self._intake.append_run, 3)
        self.partitions_for = self._intake.partitions_for

    def __repr__(self) -> str:
        return f"<Sender {self._hub!r}>"

    @property
    def attention(self) -> bool:
        """The driver should call `tick` soon: something new can be sent or must be asked."""
        return self._intake.attention

    # --- the application ------------------------------------------------------------------------

    def cancel_wait(self, ticket: int, now: float) -> int:
        """The caller gave up waiting. Returns a coordinator's last error code; 0: none."""
        if self.transactions is not None and ticket < 0:
            return self.transactions.gave_up(ticket, now)
        self._intake.cancel_wait(ticket, now)
        return 0

    def _guarded(self, take: Take, others: int) -> Take:
        """Records are taken within a transaction only, where there are transactions. The ticket is
        the last argument, behind so many others.
        """
        transactions = self.transactions
        if transactions is None:
            return take

        def guarded(*arguments: Any) -> Any:
            try:
                transactions.check_send()
            except BaseException:
                if len(arguments) > others:  # it has waited: what was kept for it goes to others
                    self._intake.forget(arguments[-1])
                raise
            return take(*arguments)

        return cast("Take", guarded)

    def keep_waiting(self, tickets: Collection[int]) -> None:
        """Nobody waits with any other ticket: its thread was cut off before it knew of it."""
        self._intake.keep_waiting(tickets)
        if self.transactions is not None:
            self.transactions.waiters.keep(tickets)

    def forget(self, ticket: int) -> None:
        """Nobody waits with this ticket any more."""
        if ticket >= 0:
            self._intake.forget(ticket)
        elif self.transactions is not None:
            self.transactions.waiters.forget(ticket)

    def flush(self, now: float) -> list[Batch]:  # noqa: ARG002
        """Let nothing linger any more; returns the batches that are not settled yet."""
        self._intake.attention = True
        unsettled: list[Batch] = []
        for place in self._hub.busy.values():
            place.queue.end_linger()
            unsettled += place.unsettled()
        self._hub.agenda.look_at_all(self._hub.busy)
        return unsettled

    def untaken(self) -> list[Batch]:
        """Settled batches that are in the next `take`."""
        return [done.batch for done in self._hub.out.completions if isinstance(done, Settled)]

    def close(self, now: float, *, fail_rest: bool) -> None:
        """Take no more time for lingering; with `fail_rest`, settle everything now."""
        unsettled = self.flush(now)
        if not fail_rest:
            return
        if unsettled:
            self._hub.out.facts.append(Complaint(now, "warning", _lost_at_close(unsettled)))
        why = FailureReason("closed", None, "the producer was closed before it was acknowledged")
        for place in list(self._hub.busy.values()):
            self._hub.settle(place, place.fail_all(why), now)
        for link in self._hub.brokers:
            self._hub.close_link(link, now)
        self._hub.tell(self._hub.stalls.close(now))
        self._hub.tell(self._hub.recorder.close(now))
        self._hub.tell(self._pressure.rest(now))
        self._hub.report(now)
        self._closed = True

    def compressed(self, batch: Batch, data: bytearray, now: float, *, more: bool = False) -> None:
        """The bytes that `Compress(batch)` asked for: `batch.compressed(codec)`. With `more` those
        of another batch come at once, and what can be sent is looked for then.
        """
        batch.seal(data)
        if not more:
            self._advance(now)

    # --- the network ----------------------------------------------------------------------------

    def connected(
        self,
        connection: Connection,
        api_versions: Mapping[int, tuple[int, int]],
        now: float,
        features: Mapping[str, int] = NO_FEATURES,
    ) -> None:
        """TCP, TLS, ApiVersions and SASL are through: the node has answered."""
        link = self._hub.brokers.current(connection)
        if link is None:
            return
        begun_s = link.begun_s
        if self.transactions is not None:
            self.transactions.learn(api_versions, features)
        self._hub.brokers.connected(link, api_versions, now)
        address = self._hub.address(connection.node_id)
        self._hub.out.facts.append(ConnectionOpened(now, connection, address, now - begun_s))
        if connection.role is Role.PROBE:
            self._silence.probe_answered(link, now)
        if connection.role in PRODUCE_ROLES:
            for tp in self._hub.recorder.open_partitions():
                leader = self._hub.metadata.leader(*tp)
                lane, _ = self._hub.lanes.of(tp)
                if leader is not None and (leader.node_id, lane) == (link.node_id, link.role):
                    self._hub.out.facts += self._hub.recorder.connecting(tp, begun_s, now)
        self._advance(now)

    def disconnected(
        self,
        connection: Connection,
        loss: Loss,
        detail: str,
        now: float,
        unsent: Collection[int] = (),
    ) -> None:
        """A connect failed, or the connection ended unasked."""
        link = self._hub.brokers.current(connection)
        if link is None:
            return
        was_ready = link.ready
        judgement = judge_loss(loss, sent=True)
        self._answers.ended(link, loss, detail, judgement, now, unsent)
        if connection.role is Role.PROBE:
            self._silence.probe_failed(link, now)
        if not was_ready and connection.role in WATCHED_ROLES:
            self._answers.unreachable(link, judgement, now)
        self._advance(now)

    def responded(self, connection: Connection, token: int, response: Any, now: float) -> None:
        """An answer came."""
        link = self._hub.brokers.current(connection)
        if link is None:
            return
        pending = self._hub.brokers.answered(link, token, now)
        if pending is None:
            return
        link.failures = 0
        match pending.question:
            case Question.PRODUCE:
                self._answers.produced(link, pending, response, now)
            case Question.METADATA:
                self._tidings.informed(link, pending, response, now)
            case Question.PRODUCER_ID:
                self._tidings.numbered(response, now)
            case Question.COORDINATOR:
                assert pending.about is not None
                assert self.transactions is not None
                self.transactions.errands.found(pending.about, response, now)
            case _:
                assert pending.question is Question.TRANSACTION
                assert self.transactions is not None
                self.transactions.errands.answered(link, pending, response, now)
        throttle_ms = getattr(response, "throttle_time_ms", 0) or 0
        if throttle_ms > 0:  # this answer came first, and at once (C21)
            link.throttled(throttle_ms / 1000, now)
            self._hub.out.facts.append(Throttled(now, connection, throttle_ms / 1000))
        self._advance(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._hub.expire(now)
        for link in self._hub.brokers.up():
            deadline_s = link.deadline_s(self._hub.settings.connections_max_idle_s)
            if deadline_s is not None and now >= deadline_s:
                if link.pending:
                    self._answers.give_up(link, judge_timeout(), "no answer in time", now)
                else:
                    self._hub.close_link(link, now)
        self._answers.steering.tick(now)
        self._hub.tell(self._hub.recorder.tick(now))
        self._hub.tell(self._hub.stalls.tick(now))
        self._advance(now)

    def step(self, now: float) -> None:
        """Records came, and nothing is due: send what can be sent."""
        self._advance(now)

    def take(self) -> Outbox:
        """Everything since the last take."""
        out, self._hub.out = self._hub.out, Outbox()
        return out

    def next_deadline(self, now: float) -> float | None:
        """When to call `tick`, if nothing comes before.

        A driver may come late: what fell due since anybody looked is due at once.
        """
        if self._closed:
            return None
        if self._intake.attention:
            return now + SHORTEST_WAIT_S
        looked_s = self._advanced_s
        times = [
            self._hub.inquiries.next_deadline(looked_s),
            self._hub.recorder.next_deadline(now),
            self._hub.stalls.next_deadline(now),
            self._outgoing.next_deadline(looked_s),
            self._hub.expiry_s if self._hub.busy else None,
            self._silence.next_deadline(looked_s),
            self._answers.steering.next_deadline(),
            self._aftermath.next_deadline(),
            self._pressure.next_deadline(),
            self._hub.lanes.next_deadline(),
            self.transactions.errands.next_deadline(looked_s) if self.transactions else None,
            self._hub.shares.due_at() if self._hub.accumulator.anybody_waits else None,
        ]
        idle_s = self._hub.settings.connections_max_idle_s
        times += [link.deadline_s(idle_s) for link in self._hub.brokers.up()]
        waits = [t for t in times if t is not None]
        return max(min(waits), now + SHORTEST_WAIT_S) if waits else None

    def available_partitions(self, topic: str) -> tuple[int, ...]:
        """The topic's partitions that have a leader to send to, as far as is known."""
        metadata = self._hub.metadata
        leaders = ((p, metadata.leader(topic, p)) for p in metadata.partitions(topic) or ())
        return tuple(p for p, leader in leaders if leader is not None and leader.usable)

    def begins_batch(self, topic: str, partition: int, size_bytes: int, now: float) -> bool:
        """Whether a record of this size would be the first of a batch there."""
        place = self._hub.partitions.get((topic, partition))
        return place is None or place.queue.joined(size_bytes, now) is None

    def inspected(self, connection: Connection, retransmits: int, now: float) -> None:
        """What the kernel says of a connection that was silent: segments sent again and again."""
        link = self._hub.brokers.current(connection)
        if link is not None:
            self._silence.inspected(link, retransmits, now)
            self._advance(now)

    def health(self, now: float) -> Health:
        """Open gaps and stalls, who is held up, how long the buffer lasts if nothing leaves it."""
        return examine(self._hub, self._pressure.headroom_s(now), now)

    def stalls(self, now: float) -> list[Stall]:
        """The last thousand stalls, open ones included."""
        return self._hub.stalls.stalls(now)

    def gaps(self, now: float) -> list[Gap]:
        """The last thousand gaps, open ones included."""
        return self._hub.recorder.gaps(now)

    def _advance(self, now: float) -> None:
        """After every event: send what can be sent, ask what must be asked."""
        self._intake.attention = False
        self._advanced_s = now
        if self._closed:
            return
        hub = self._hub
        self._silence.tick(now)
        if self.transactions is not None:
            self.transactions.step(now)
        self._outgoing.pump(now)
        if self.transactions is not None and self.transactions.attention:
            self.transactions.step(now)
        self._aftermath.tick(now)
        if now >= hub.shares.due_at():
            self._judge_shares(now)
        if hub.lanes.wants_look(hub.busy, now):
            hub.inquiries.clock.want(now)
        wants = (hub.newest_trouble_s(), self._intake.waiting_since_s(), self._silence.since_s())
        since = [s for s in wants if s is not None]
        hub.inquiries.clock.need(max(since) if since else None, now)
        hub.out.commands += hub.inquiries.step(now)
        hub.tell(self._pressure.look(self._intake.metadata_waiters(), now))
        hub.report(now)

    def _judge_shares(self, now: float) -> None:
        """Find out who is held up; who waits for room may get it now."""
        hub = self._hub
        gaps = hub.recorder.open_partitions()
        hub.shares.judge(hub.busy, gaps, hub.accumulator.reserved(), now)
        self._intake.choose_again()
        hub.grant(hub.accumulator.grant())


def _lost_at_close(unsettled: Collection[Batch]) -> str:
    count = sum(batch.count for batch in unsettled)
    unknown = sum(b.count for b in unsettled if b.outcome_if_failed is Outcome.UNKNOWN)
    text = f"{count} records were not acknowledged when the producer was closed"
    if unknown:
        text += f"; {'they' if unknown == count else f'{unknown} of them'} may be in the log"
    return text
