"""Which of a broker's two produce connections a partition's requests go over, and for how long a
broker may keep an answer back.

Theory
------
A broker serves one request at a time per connection, and an acks=all request waits for its slowest
partition (S8). So when one follower dies, *every* partition that shares a request or a connection
with an affected one stalls until the ISR shrinks, 8–12 s later. Two things confine that:

* **The broker says who is stuck.** A Produce request's own time-out is the *ack wait*: at least
  `ack_wait_ms`, and four times what acks of this broker usually take. After it the stuck partition
  gets 7 with an offset (appended, not replicated: a stall, no rejection), its neighbours their 0
  (C19).
* **Two lanes.** The stuck partition goes on in the broker's *slow* lane. The *open* lane is aborted
  at that 7: requests behind it would each wait their turn. What was unanswered there is sent again,
  byte for byte; a repeat is recognized, and waits if it must (B4).

Which lane:

* *Stuck*: answered 7 with an offset. *Suspect*: shares a follower with a stuck partition of this
  broker, and nothing that was sent since that one's request has been acked. A follower that has
  kept one stuck, and nothing acked since, is enough to blame for the next, and so is one that is
  known to be down or silent: its other followers are not. *Follower down*: its in-sync replicas
  name a node that is known to be down or silent, likewise without an ack since.
* In the slow lane one request is under way at a time, so that a 7 there closes nothing; suspects go
  in a request of their own before the others. An ack within the ack wait leads back, and stands
  until metadata shows other in-sync replicas. Whoever is stuck again soon afterwards (its follower
  has hiccups) stays until its acks have been usual for 10 s, and for twice as long each time: on
  probation it takes turns with the stuck, and where there are none the lane works like an open one.
* Acks that are late by less make nobody stuck, but what shares a request with them or stands in
  line behind it is late, too (`lateness`): then less is in flight (`outgoing`), and the line that
  stands when it begins is left (`answers`).
* But for aborts, a lane changes only with nothing in flight.
* Where one of the two connections cannot be opened, both lanes share the other.
* Without idempotence a repeat would be a second copy: one lane, and no ack wait.

*Usual* is the median of the broker's last 15 answers with an ack, each from the *first* sending
that the broker may have served (a 7 is a serving, an aborted connection is not) to its 0, in any
lane. One sample an answer: forty stuck partitions in one request do not outvote the healthy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from outlast.engine.batch import Attempt, Batch
from outlast.engine.brokers import Brokers, Link
from outlast.engine.lateness import Lateness
from outlast.engine.messages import AttemptState, LaneChanged, LaneReason, Role
from outlast.engine.metadata import Metadata
from outlast.engine.partition import Partition
from outlast.engine.settings import Settings

USUAL_ANSWERS = 15
LATE_PART = 5  # of the ack wait: an answer that takes longer than the quickest by more is late
USUAL_TIMES = 4  # the ack wait is at least so many times the usual answer time
LOOK_S = 1.0  # a shrinking ISR raises no epoch (A8): metadata is asked so often meanwhile
FORGET_S = 60.0  # a partition that nothing is written to any more
RELAPSE_WITHIN_S = 60.0  # of the return: then acks must be usual for longer
PROBATION_S = 10.0
PROBATION_MAX_S = 300.0

TopicPartition = tuple[str, int]


class _Slow:
    """Why a partition is in a node's slow lane, and when the request that shows it was sent."""

    __slots__ = ("node_id", "probation_s", "reason", "seen_s", "since_s", "usual_since_s")

    def __init__(
        self, node_id: int, reason: LaneReason, since_s: float, probation_s: float
    ) -> None:
        self.node_id = node_id
        self.reason = reason
        self.since_s = self.seen_s = since_s
        self.probation_s = probation_s  # for so long acks must be usual
        self.usual_since_s: float | None = None


class Lanes:
    """The lanes of one producer's partitions."""

    __slots__ = (
        "_ack_wait_s",
        "_acked",
        "_blamed",
        "_brokers",
        "_changed_nodes",
        "_down",
        "_look_s",
        "_metadata",
        "_proved",
        "_returned",
        "_settings",
        "_slow",
        "_trusted_isr",
        "_usual",
        "changes",
        "enabled",
        "lateness",
    )

    def __init__(self, settings: Settings, metadata: Metadata, brokers: Brokers) -> None:
        self.enabled = settings.idempotent
        self.changes: list[LaneChanged] = []  # until the hub has told
        self.lateness = Lateness()
        self._settings = settings
        self._metadata = metadata
        self._brokers = brokers
        self._slow: dict[TopicPartition, _Slow] = {}
        self._blamed: dict[int, dict[int, float]] = {}  # node → follower of stuck ones, since
        self._changed_nodes: set[int] = set()  # whose stuck ones are others than were reckoned with
        self._down: tuple[int, ...] = ()  # those that were reckoned with
        self._proved: dict[int, dict[int, float]] = {}  # node → follower that acked what was sent
        self._acked: dict[TopicPartition, float] = {}  # when the last acked attempt was sent
        self._trusted_isr: dict[TopicPartition, Sequence[int]] = {}
        self._usual: dict[int, list[float]] = {}
        self._ack_wait_s: dict[int, float] = {}
        self._returned: dict[TopicPartition, tuple[float, float]] = {}  # when, after what probation
        self._look_s = 0.0

    def __repr__(self) -> str:
        reasons = [slow.reason.value for slow in self._slow.values()]
        counts = {reason: reasons.count(reason) for reason in sorted(set(reasons))}
        return f"<Lanes slow={counts} blamed={self._blamed}>"

    # --- which lane ---

    def steer(self, place: Partition, node_id: int, now: float) -> None:
        """Put the partition into the lane of its next request to its leader."""
        if self.calm:
            return
        slow = self._slow.get(place.tp)
        if slow is not None and slow.node_id != node_id:
            self._leave(place.tp, node_id, LaneReason.MOVED, now)
        reason = self._starts_slow(place, node_id)
        if reason is not None:
            self._enter(place.tp, node_id, reason, now, now)

    def own_link(self, place: Partition, node_id: int) -> Link:
        """The connection of the partition's lane at its leader."""
        return self._brokers.link(node_id, self._role(place, node_id))

    def link(self, own: Link) -> Link:
        """The connection that takes what belongs on this one: itself, or the other lane's."""
        if not self.enabled or own.unreachable_since_s is None:
            return own
        other = self.other(own)
        return other if self.shared(other) else own

    def shared(self, link: Link) -> bool:
        """Whether partitions of the other lane go over this connection, since theirs cannot be
        opened.
        """
        if not self.enabled or not link.ready:
            return False
        since_s = self.other(link).unreachable_since_s
        if since_s is None:
            return False
        return link.answered_s >= since_s or not link.pending  # an idle one will show if it lives

    def may_share(self, link: Link) -> bool:
        """Whether the node's other lane is up, or coming up and not known to be in vain."""
        other = self.other(link)
        return self.enabled and not other.down and other.unreachable_since_s is None

    def other(self, link: Link) -> Link:
        """The other produce connection of the same node."""
        role = Role.OPEN if link.role is Role.SLOW else Role.SLOW
        return self._brokers.link(link.node_id, role)

    @property
    def calm(self) -> bool:
        """Whether all partitions belong into open lanes."""
        return not self.enabled or not (self._slow or self._brokers.down)

    def _role(self, place: Partition, node_id: int) -> Role:
        if self.calm:
            return Role.OPEN
        slow = self._slow.get(place.tp)
        if slow is not None and slow.node_id == node_id:
            return Role.SLOW
        return Role.OPEN if self._starts_slow(place, node_id) is None else Role.SLOW

    def _starts_slow(self, place: Partition, node_id: int) -> LaneReason | None:
        """Why a partition of the open lane belongs into the slow one before it was answered 7."""
        tp, down = place.tp, self._brokers.down
        if place.in_flight or tp in self._slow:
            return None
        blamed = self._blamed_followers(node_id)
        if not (blamed or down):
            return None
        isr = self._metadata.isr(*tp)
        acked_s = self._acked.get(tp, -inf)
        for follower in isr:
            if follower == node_id:
                continue
            if blamed and acked_s < blamed.get(follower, acked_s):
                return LaneReason.SUSPECT
            since_s = down.get(follower)
            if since_s is not None and (
                acked_s <= since_s or self._trusted_isr.get(tp, isr) != isr
            ):
                return LaneReason.FOLLOWER_DOWN
        return None

    def in_turn(
        self, link: Link, due: Sequence[tuple[Partition, int]]
    ) -> list[Sequence[tuple[Partition, int]]]:
        """Who may share the next request of a slow lane: suspects first, alone, and of them those
        last that were late before. Guests, who would wait for the stuck in every request, take
        turns with them: those whose open lane cannot be had, and those whose acks are usual but
        have not been so for long enough.
        """
        suspects: list[tuple[Partition, int]] = []
        guests: list[tuple[Partition, int]] = []
        stuck: list[tuple[Partition, int]] = []
        for entry in due:
            slow = self._slow.get(entry[0].tp)
            if slow is None or slow.usual_since_s is not None:
                guests.append(entry)
            elif slow.reason is LaneReason.SUSPECT:
                suspects.append(entry)
            else:
                stuck.append(entry)
        held_back = link.stalled_s == link.answered_s
        turns = (guests, stuck) if held_back else (stuck, guests)
        return [group for group in (*self.lateness.apart(suspects), *turns) if group]

    def all_well(self, node_id: int) -> bool:
        """Whether everybody in the node's slow lane is only on probation: it is as good as an open
        one then.
        """
        return all(
            slow.usual_since_s is not None
            for slow in self._slow.values()
            if slow.node_id == node_id
        )

    def of(self, tp: TopicPartition) -> tuple[Role, LaneReason | None]:
        """The partition's lane, and why it is in the slow one."""
        slow = self._slow.get(tp)
        return (Role.OPEN, None) if slow is None else (Role.SLOW, slow.reason)

    # --- what answers say ---

    def ack_wait_s(self, node_id: int) -> float:
        """How long this broker may keep a Produce answer back."""
        known_s = self._ack_wait_s.get(node_id)
        return self._bounded(self._settings.ack_wait_s) if known_s is None else known_s

    def answered(self, link: Link, tps: Collection[TopicPartition], now: float) -> None:
        """An answer with acks came, and no 7 that held it back; it may have been late."""
        quickest_s = min(link.quickest_s, self.other(link).quickest_s)
        late = link.served_s - quickest_s > self.ack_wait_s(link.node_id) / LATE_PART
        self.lateness.answered(tps, link.served_s, late=late, now=now)

    def _bounded(self, ack_wait_s: float) -> float:
        return min(ack_wait_s, self._settings.request_timeout_s / 2)

    def sample(self, node_id: int, waits_s: Sequence[float]) -> None:
        """How long the acks of one answer took, as `served_since_s` tells."""
        times_s = self._usual.setdefault(node_id, [])
        times_s.append(_median(waits_s))
        del times_s[:-USUAL_ANSWERS]
        self._ack_wait_s[node_id] = self._bounded(
            max(self._settings.ack_wait_s, USUAL_TIMES * _median(times_s))
        )

    def acked(self, tp: TopicPartition, node_id: int, sent_s: float) -> None:
        """A request sent then was acked."""
        self._acked[tp] = sent_s
        if self._slow:
            self._prove(tp, node_id, sent_s)

    def acked_while_slow(
        self, tp: TopicPartition, sent_s: float, *, usual: bool, now: float
    ) -> None:
        """A request of a partition of the slow lane was acked, in usual time or not."""
        slow = self._slow[tp]
        slow.seen_s = sent_s
        if not usual:
            slow.usual_since_s = None
            return
        if slow.usual_since_s is None:
            slow.usual_since_s = now
        if now - slow.usual_since_s < slow.probation_s:
            if slow.reason is LaneReason.STUCK:  # it need not wait for those who are
                self._rename(tp, slow, LaneReason.SUSPECT, now)
            return
        if slow.reason is LaneReason.STUCK or slow.probation_s:
            self._returned[tp] = now, slow.probation_s
        self._trusted_isr[tp] = self._metadata.isr(*tp)
        self._leave(tp, slow.node_id, LaneReason.USUAL, now)

    def stuck(self, tp: TopicPartition, node_id: int, sent_s: float, now: float) -> bool:
        """A request sent then was answered 7 with an offset. True if that is news."""
        slow = self._slow.get(tp)
        if slow is not None and slow.reason is LaneReason.STUCK and slow.node_id == node_id:
            slow.seen_s = sent_s
            return False
        probation_s = 0.0 if slow is None else slow.probation_s
        if not probation_s and tp in self._returned:
            returned_s, before_s = self._returned[tp]
            if now - returned_s <= RELAPSE_WITHIN_S:
                probation_s = min(max(2 * before_s, PROBATION_S), PROBATION_MAX_S)
        self._enter(tp, node_id, LaneReason.STUCK, sent_s, now, probation_s)
        return True

    # --- time ---

    def wants_look(self, busy: Collection[TopicPartition], now: float) -> bool:
        """Whether metadata should be asked: once a second while somebody is stuck."""
        if not self._slow or now < self._look_s:
            return False
        self._look_s = now + LOOK_S
        for tp, slow in list(self._slow.items()):
            if tp not in busy and now - slow.seen_s > FORGET_S:
                self._leave(tp, slow.node_id, LaneReason.IDLE, now)
        return any(tp in busy for tp, slow in self._slow.items() if slow.reason is LaneReason.STUCK)

    def next_deadline(self) -> float | None:
        """When to look again."""
        return self._look_s if self._slow else None

    # --- changes ---

    def _enter(
        self,
        tp: TopicPartition,
        node_id: int,
        reason: LaneReason,
        since_s: float,
        now: float,
        probation_s: float = 0.0,
    ) -> None:
        self._slow[tp] = slow = _Slow(node_id, reason, since_s, probation_s)
        self._rename(tp, slow, reason, now)

    def _rename(self, tp: TopicPartition, slow: _Slow, reason: LaneReason, now: float) -> None:
        before, slow.reason = slow.reason, reason
        self.changes.append(LaneChanged(now, *tp, slow.node_id, Role.SLOW, reason))
        if LaneReason.STUCK in (before, reason):
            self._changed_nodes.add(slow.node_id)

    def _leave(self, tp: TopicPartition, node_id: int, reason: LaneReason, now: float) -> None:
        slow = self._slow.pop(tp)
        self.changes.append(LaneChanged(now, *tp, node_id, Role.OPEN, reason))
        if slow.reason is LaneReason.STUCK:
            self._changed_nodes.add(slow.node_id)

    def _blamed_followers(self, node_id: int) -> dict[int, float]:
        """Which followers keep partitions of this node stuck, and since when. Reckoned once for all
        that an answer changed, or that a node went down or is up again.
        """
        down = self._brokers.down
        if tuple(down) != self._down:
            self._down = tuple(down)
            self._changed_nodes.update(self._blamed)
        if node_id not in self._changed_nodes:
            return self._blamed.get(node_id, {})
        self._changed_nodes.discard(node_id)
        blamed: dict[int, float] = {}
        proved = self._proved.get(node_id, {})
        stuck = [
            (slow.since_s, tp)
            for tp, slow in self._slow.items()
            if slow.node_id == node_id and slow.reason is LaneReason.STUCK
        ]
        for since_s, tp in sorted(stuck):
            followers = [follower for follower in self._metadata.isr(*tp) if follower != node_id]
            known = [f for f in followers if f in blamed and proved.get(f, -inf) < blamed[f]]
            gone = [f for f in followers if f in down and proved.get(f, -inf) < down[f]]
            for follower in known or gone or followers:
                blamed[follower] = since_s
        self._blamed[node_id] = blamed
        return blamed

    def _prove(self, tp: TopicPartition, node_id: int, sent_s: float) -> None:
        """An ack shows that all of the partition's followers were there after it was sent."""
        proved, blamed = self._proved.setdefault(node_id, {}), self._blamed.get(node_id, {})
        for follower in self._metadata.isr(*tp):
            before_s = proved.get(follower, -inf)
            if follower == node_id or sent_s <= before_s:
                continue
            proved[follower] = sent_s
            if before_s < blamed.get(follower, -inf) <= sent_s:
                self._changed_nodes.add(node_id)


def served_since_s(batch: Batch, attempt: Attempt) -> float:
    """When this attempt of the batch, or the first one before it that the same leader may have
    served and not refused, was sent.
    """
    return _first_sent_s(batch, attempt, (AttemptState.DOUBTFUL,))


def owed_since_s(batch: Batch, attempt: Attempt) -> float:
    """The same, but counting attempts whose connection ended, too: since when an ack is owed."""
    return _first_sent_s(batch, attempt, (AttemptState.DOUBTFUL, AttemptState.LEFT))


def _first_sent_s(batch: Batch, attempt: Attempt, states: Collection[AttemptState]) -> float:
    since_s = attempt.sent_s
    if len(batch.attempts) == 1:
        return since_s
    for other in reversed(batch.attempts):
        if other is attempt:
            continue
        if other.state not in states or not other.same_leader(attempt):
            break
        since_s = other.sent_s
    return since_s


def _median(values: Collection[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
