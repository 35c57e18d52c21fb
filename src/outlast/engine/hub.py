"""The hub's state, and what its parts do in common: settle records, keep gaps, doubt leaders.

The hub is the files that share one `Hub`: `intake` (records in), `outgoing` (requests out),
`answers` and `steering` (what comes back), `silence` and `aftermath` (what does not), `health` (a
view) and `sender` (events, time, the public face). Only they know the other parts of the engine;
those return values and never call each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from outlast.engine.accumulator import Accumulator
from outlast.engine.agenda import Agenda
from outlast.engine.batch import Attempt, Batch
from outlast.engine.brokers import Brokers, Link
from outlast.engine.failure_reasons import EXPIRED
from outlast.engine.gap import GapRecorder
from outlast.engine.inquiries import Inquiries
from outlast.engine.lanes import Lanes
from outlast.engine.messages import (
    AttemptFailed,
    Cause,
    Complaint,
    Compress,
    Connection,
    ConnectionClosed,
    Disconnect,
    Fact,
    GapOpened,
    Granted,
    LeaderChanged,
    Outbox,
    PartitionRestarted,
    PartitionSeen,
    RecordsSettled,
    Settled,
    StallEnd,
)
from outlast.engine.metadata import LeaderChange, Metadata
from outlast.engine.partition import Partition
from outlast.engine.partitioner import StickyPartitioner
from outlast.engine.queue import Limits
from outlast.engine.retry import Schedules
from outlast.engine.rng import Rng
from outlast.engine.settings import Settings
from outlast.engine.shares import Shares
from outlast.engine.stall import StallRecorder
from outlast.engine.transactional_partition import TransactionalPartition
from outlast.engine.verdict import Judgement

if TYPE_CHECKING:
    from outlast.engine.transactions import Transactions

WINDOW_BATCHES = 5  # the broker remembers five (S1)
BATCH_AGE_S = 0.5  # rule 10

TopicPartition = tuple[str, int]


class Hub:
    """Everything that the hub's files share."""

    def __init__(self, settings: Settings, rng: Rng, unix_offset_s: float) -> None:
        self.settings = settings
        self.schedules = Schedules(settings, rng)
        self.metadata = Metadata(settings)
        self.brokers = Brokers()
        self.inquiries = Inquiries(settings, self.schedules, self.brokers, self.metadata)
        self.lanes = Lanes(settings, self.metadata, self.brokers)
        self.shares = Shares(settings.linger_s)
        self.accumulator = Accumulator(settings.buffer_bytes, self.shares)
        self.sticky = StickyPartitioner(settings.batch_bytes, rng)
        self.recorder = GapRecorder(unix_offset_s)
        self.stalls = StallRecorder(unix_offset_s)
        self.limits = Limits(
            idempotent=settings.idempotent,
            window_batches=WINDOW_BATCHES if settings.idempotent else settings.max_in_flight,
            batch_bytes=settings.batch_bytes,
            compression=settings.compression,
            linger_s=settings.linger_s,
            batch_age_s=max(settings.linger_s, BATCH_AGE_S),
            delivery_timeout_s=settings.delivery_timeout_s,
            unix_offset_s=unix_offset_s,
            transactional=settings.transactional_id is not None,
        )
        self.transactions: Transactions | None = None
        self.partitions: dict[TopicPartition, Partition] = {}
        self.busy: dict[TopicPartition, Partition] = {}  # those with unsettled batches
        self.troubled: dict[TopicPartition, float] = {}  # no usable leader, since when
        self.agenda = Agenda()
        self.expiry_s = math.inf  # no unsettled batch expires before
        self.out = Outbox()

    def __repr__(self) -> str:
        return (
            f"<Hub busy={len(self.busy)} troubled={len(self.troubled)} "
            f"{self.accumulator!r} {self.inquiries!r}>"
        )

    def tell(self, facts: Iterable[Fact]) -> None:
        """Facts for the observers."""
        self.out.facts += facts

    def report(self, now: float) -> None:
        """What parts of the hub noted for observers: lanes, connections, odd schedules."""
        if self.lanes.changes:
            for change in self.lanes.changes:
                self.stalls.lane_changed((change.topic, change.partition), change.lane.value)
            self.out.facts += self.lanes.changes
            self.lanes.changes.clear()
        if self.brokers.closed:
            self.out.facts += [ConnectionClosed(*ended) for ended in self.brokers.closed]
            self.brokers.closed.clear()
        for text in self.schedules.complaints:
            self.out.facts.append(Complaint(now, "warning", text))
        self.schedules.complaints.clear()

    def new_partition(self, tp: TopicPartition, now: float) -> Partition:
        """The object of a partition that gets its first record."""
        kind = TransactionalPartition if self.limits.transactional else Partition
        place = self.partitions[tp] = kind(*tp, self.limits)
        self.out.facts.append(PartitionSeen(now, *tp))
        return place

    def seen_again(self, topic: str, now: float) -> None:
        """A topic that was forgotten is in use again: its partitions keep their numbering, and
        observers begin anew.
        """
        self.tell(PartitionSeen(now, *tp) for tp in self.partitions if tp[0] == topic)

    # --- records --------------------------------------------------------------------------------

    def settle(self, place: Partition, batches: Iterable[Batch], now: float) -> None:
        """After anything that was done to a partition: tell outcomes, give room back."""
        self.agenda.changed(place)
        for batch in batches:
            self._settle_batch(batch, now)
        if place.restarted:
            self.out.facts.append(
                PartitionRestarted(
                    now,
                    *place.tp,
                    place.window.producer_id,
                    place.window.producer_epoch,
                    place.restarted,
                )
            )
            place.restarted = ""
        if place.broken:
            assert self.transactions is not None
            self.transactions.lost_numbering()
            place.broken = ""
        if place.idle:
            self.busy.pop(place.tp, None)
            self.tell(self.stalls.end(place.tp, StallEnd.IDLE, now))

    def _settle_batch(self, batch: Batch, now: float) -> None:
        result = batch.result
        assert result is not None
        self.out.completions.append(Settled(batch))
        self.grant(self.accumulator.refund(batch.tp, batch.charge_bytes))
        batch.charge_bytes = 0
        failed = batch.count if result.failure is not None else len(result.record_failures)
        delivered = batch.count - failed
        if delivered:
            self.shares.delivered(batch.tp, now)
        if failed and self.transactions is not None:
            self.transactions.record_failed(batch)
        self.out.facts.append(
            RecordsSettled(now, *batch.tp, delivered, failed, now - batch.created_s)
        )
        expired = result.failure is not None and result.failure.kind == EXPIRED
        for number in batch.gaps:
            if failed and delivered:
                self.tell(self.recorder.settled(number, "failed", failed, now, last=False))
            fate = "delivered" if delivered else "expired" if expired else "failed"
            self.tell(self.recorder.settled(number, fate, delivered or failed, now))

    def batch_begun(self, place: Partition, batch: Batch, now: float) -> None:
        """A batch got its first record."""
        self.busy[place.tp] = place
        self.agenda.changed(place)
        self.expiry_s = min(self.expiry_s, batch.created_s + self.limits.delivery_timeout_s)
        self.metadata.interest(place.tp[0], now)
        self.meet_gap(batch)

    def expire(self, now: float) -> None:
        """Fail what has waited for the delivery time-out."""
        if now < self.expiry_s:
            return
        self.expiry_s = math.inf
        for place in list(self.busy.values()):
            deadline_s = place.deadline_s()
            if deadline_s is not None and now >= deadline_s:
                self.settle(place, place.expire(now), now)
                deadline_s = place.deadline_s()
            if deadline_s is not None:
                self.expiry_s = min(self.expiry_s, deadline_s)

    def recount(self) -> None:
        """An `append` was cut off in the middle: make what was begun whole, and count anew what
        records hold, so that none of them is forgotten and no room is lost.
        """
        used_bytes = 0
        for tp, place in self.partitions.items():
            place.queue.mend()
            if not place.idle:
                self.busy[tp] = place
                used_bytes += sum(batch.charge_bytes for batch in place.unsettled())
        self.expiry_s = 0.0  # look
        self.agenda.look_at_all(self.busy)
        self.grant(self.accumulator.recount(used_bytes))
        self.shares.changed()

    def grant(self, tickets: Iterable[int]) -> None:
        """Room was set aside for these."""
        self.out.completions += [Granted(ticket) for ticket in tickets]

    def compress(self, batch: Batch) -> None:
        """Ask the driver for a closed batch's bytes, once."""
        if not batch.compressing:
            batch.compressing = True
            self.out.completions.append(Compress(batch))

    # --- gaps -----------------------------------------------------------------------------------

    def meet_gap(self, batch: Batch) -> None:
        """A batch that waits while its partition has a gap will tell the gap what became of it."""
        number = self.recorder.met(batch.tp)
        if number is not None and number not in batch.gaps:
            batch.gaps += (number,)
            self.recorder.joined(number)

    def _tell_gap(self, place: Partition, facts: list[Fact], now: float) -> None:
        self.tell(self.stalls.end(place.tp, StallEnd.GAP, now))
        self.tell(facts)
        if any(isinstance(fact, GapOpened) for fact in facts):
            self.shares.changed()
            for batch in place.unsettled():
                self.meet_gap(batch)

    def attempt_failed(self, place: Partition, judgement: Judgement, now: float) -> None:
        """Tell of an answer, or of a connection's end, that did not deliver."""
        verdict = judgement.verdict.name.lower()
        self.out.facts.append(AttemptFailed(now, *place.tp, verdict, judgement.name))

    def gap_refused(
        self, place: Partition, attempt: Attempt, cause: Cause, name: str, now: float
    ) -> None:
        """An attempt was refused or came to nothing. (With acks=0 none ever is: see `outgoing`.)"""
        facts = self.recorder.refused(
            place.tp,
            cause=cause,
            trigger=name,
            sent_s=max(attempt.sent_s, self.stalls.alive_s(place.tp) or attempt.sent_s),
            lane=attempt.connection.role.value,
            leader=attempt.connection.node_id,
            leader_epoch=attempt.leader_epoch,
            last_ack_s=place.last_ack_s,
            now=now,
        )
        self._tell_gap(place, facts, now)

    def gap_unreachable(
        self,
        place: Partition,
        cause: Cause,
        name: str,
        now: float,
        *,
        since_s: float | None = None,
    ) -> None:
        """Nothing can be sent while records wait: since the oldest is ready, if not told."""
        ready_s = place.ready_s() if since_s is None else since_s
        if self.settings.acks == 0 or ready_s is None:
            return
        ready_s = max(ready_s, self.stalls.alive_s(place.tp) or ready_s)
        leader = self.metadata.leader(*place.tp)
        facts = self.recorder.unreachable(
            place.tp,
            cause=cause,
            trigger=name,
            ready_s=min(ready_s, now),
            leader=-1 if leader is None else leader.node_id,
            leader_epoch=-1 if leader is None else leader.epoch,
            last_ack_s=place.last_ack_s,
            now=now,
        )
        self._tell_gap(place, facts, now)

    def stalled(
        self, place: Partition, connection: Connection, reason: str, sent_s: float, now: float
    ) -> None:
        """The leader lives and owes an ack. While a gap is open that changes nothing."""
        if self.settings.acks != 0 and not self.recorder.open(place.tp):
            sent_s = max(sent_s, self.recorder.ended_s(place.tp))  # what came before was the gap's
            facts = self.stalls.alive(
                place.tp,
                node_id=connection.node_id,
                lane=connection.role.value,
                reason=reason,
                sent_s=sent_s,
                now=now,
            )
            self.tell(facts)

    # --- leaders --------------------------------------------------------------------------------

    def waiting_for(self, link: Link, now: float) -> list[Partition]:
        """Partitions with something due that this connection would take, were it up."""
        places = []
        for tp, place in self.busy.items():
            due_s = place.due_s()
            if due_s is None or due_s > now:
                continue
            leader = self.metadata.leader(*tp)
            if leader is None or leader.node_id != link.node_id:
                continue
            if self.lanes.link(self.lanes.own_link(place, link.node_id)) is link:
                places.append(place)
        return places

    def trouble(self, tp: TopicPartition, now: float) -> None:
        """Its leader refuses or cannot be reached: metadata is wanted until that changes."""
        self.metadata.stale(*tp, now)
        self.troubled.setdefault(tp, now)
        self.inquiries.clock.want(now)

    def newest_trouble_s(self) -> float | None:
        """Since when the last partition to lose its leader, with records waiting, has had none.

        The newest, not the oldest: one that stays dead must not slow the others' recovery down.
        """
        if not self.troubled:
            return None
        for tp in list(self.troubled):
            leader = self.metadata.leader(*tp)
            usable = leader is not None and leader.usable
            if tp not in self.busy or (usable and self.metadata.stale_since_s(*tp) is None):
                del self.troubled[tp]
        return max(self.troubled.values(), default=None)

    def no_leader(self, place: Partition, now: float) -> None:
        """Records wait and nobody is known to lead."""
        self.gap_unreachable(place, Cause.LEADER_UNAVAILABLE, "LEADER_NOT_AVAILABLE", now)
        self.trouble(place.tp, now)

    def leader_changed(self, change: LeaderChange, now: float, *, by_hint: bool) -> None:
        """Another leader, or another epoch: what was held back by the old one goes at once."""
        tp = (change.topic, change.partition)
        old, new = change.old, change.new
        self.out.facts.append(
            LeaderChanged(
                now,
                *tp,
                -1 if old is None else old.node_id,
                -1 if old is None else old.epoch,
                new.node_id if new is not None and new.usable else -1,
                -1 if new is None else new.epoch,
                by_hint,
            )
        )
        place = self.partitions.get(tp)
        if place is not None:
            self.agenda.changed(place)
        if new is not None and new.usable:
            if place is not None:
                place.retry_at_s = 0.0
                place.refusals = 0
            self.brokers.revive(new.node_id, now)
            self.tell(
                self.recorder.evidence(tp, leader=new.node_id, leader_epoch=new.epoch, now=now)
            )
        elif tp in self.busy:
            self.no_leader(self.busy[tp], now)

    def close_link(self, link: Link, now: float) -> None:
        """Nobody needs the connection any more; what is unanswered on it comes to nothing."""
        if link.connection is not None:
            self.out.commands.append(Disconnect(link.connection, abort=bool(link.pending)))
            self.brokers.drop(link, now)

    def address(self, node_id: int) -> str:
        """host:port of a node or of a bootstrap address, for people."""
        node = self.metadata.nodes.get(node_id)
        if node is not None:
            return f"{node.host}:{node.port}"
        if 0 < -node_id <= len(self.settings.bootstrap):
            host, port = self.settings.bootstrap[-node_id - 1]
            return f"{host}:{port}"
        return f"node {node_id}"
