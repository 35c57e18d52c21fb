"""Rejection gaps: when a partition stopped taking records, whose time it was, what became of them.

The hub reports what happened to one partition; `GapRecorder` keeps at most one open gap for it and
gives back facts. Every input ends in `now` and returns the facts that it caused, in order. What one
gap knows, how its phases are told apart and the cluster's share bounded: `gap_state.py`.

**Records.** A batch meets a gap if it waits when the gap opens or comes while it is open: the hub
calls `joined` for each and keeps the number for `settled`. The duration is published when the gap
ends, the outcome when all that met it are settled.
"""

from __future__ import annotations

from math import inf

from outlast.engine.gap_state import OpenGap, TopicPartition
from outlast.engine.messages import (
    Cause,
    Fact,
    Gap,
    GapAdvanced,
    GapEnd,
    GapEnded,
    GapOpened,
    GapOutcome,
    GapSettled,
)

TICK_S = 1.0  # an open gap is told again this often, so that counters advance
IDLE_LIMIT_S = 300.0  # how long a gap is watched after the last record that met it was settled

# signals that are a leader's own answer, and so prove that it did not accept
_ANSWERED = frozenset(
    {Cause.NOT_LEADER, Cause.LEADER_UNAVAILABLE, Cause.NOT_ENOUGH_REPLICAS, Cause.STORAGE_ERROR}
)
_CONNECTION = frozenset({Cause.CONNECTION_LOST, Cause.SILENT, Cause.REQUEST_TIMEOUT})
_CENSORED = frozenset({GapEnd.ABANDONED, GapEnd.CLOSED, GapEnd.TOPIC_GONE})


class GapRecorder:
    """The gaps of one producer: at most one open per partition, the last `limit` to look at."""

    __slots__ = (
        "_ended",
        "_ended_at",
        "_limit",
        "_next_number",
        "_open",
        "_tick_at",
        "_unix_offset_s",
        "_unsettled",
    )

    def __init__(self, unix_offset_s: float, limit: int = 1000) -> None:
        self._unix_offset_s = unix_offset_s
        self._limit = limit
        self._open: dict[TopicPartition, OpenGap] = {}
        self._unsettled: dict[int, OpenGap] = {}  # by number: open ones, and ended without outcome
        self._ended: list[OpenGap] = []  # the oldest are dropped
        self._ended_at: dict[TopicPartition, float] = {}
        self._next_number = 1
        self._tick_at = 0.0

    def __repr__(self) -> str:
        return f"<GapRecorder open={len(self._open)} unsettled={len(self._unsettled)}>"

    # --- what went wrong --------------------------------------------------------------------

    def refused(
        self,
        tp: TopicPartition,
        *,
        cause: Cause,
        trigger: str,
        sent_s: float,
        lane: str = "",
        leader: int,
        leader_epoch: int,
        last_ack_s: float | None,
        now: float,
    ) -> list[Fact]:
        """An attempt was refused, lost or came to nothing. Opens the gap as of its sending.

        Where several attempts end at once (a lost connection), report the oldest first.
        """
        gap = self._open.get(tp)
        opens = gap is None
        if gap is None:
            gap = self._opened(tp, cause, trigger, sent_s, leader, leader_epoch, last_ack_s, now)
        before = gap.phases.current
        if not opens:
            gap.phases.refused(sent_s, (leader, leader_epoch), now)
        gap.attempts += 1
        gap.lane = gap.lane or lane
        gap.note_error(trigger)
        if cause in _ANSWERED:
            gap.note_no((leader, leader_epoch), sent_s)
        return [GapOpened(now, gap.snapshot(now))] if opens else gap.changed_from(before, now)

    def unreachable(
        self,
        tp: TopicPartition,
        *,
        cause: Cause,
        trigger: str,
        ready_s: float,
        leader: int,
        leader_epoch: int,
        last_ack_s: float | None,
        now: float,
    ) -> list[Fact]:
        """Nothing can be sent (connect refused, no leader) while records wait since `ready_s`."""
        gap = self._open.get(tp)
        opens = gap is None
        if gap is None:
            gap = self._opened(tp, cause, trigger, ready_s, leader, leader_epoch, last_ack_s, now)
        before = gap.phases.current
        if not opens:
            gap.phases.unreachable(now)
        gap.note_error(trigger)
        return [GapOpened(now, gap.snapshot(now))] if opens else gap.changed_from(before, now)

    def send_refused(self, tp: TopicPartition, now: float) -> list[Fact]:
        """`send()` raised for a record of this partition while its gap was open."""
        gap = self._open.get(tp)
        if gap is not None:
            gap.refused += 1
            gap.idle_since_s = now  # somebody still wants to write
        return []

    # --- what gave hope ---------------------------------------------------------------------

    def evidence(
        self, tp: TopicPartition, *, leader: int, leader_epoch: int, now: float
    ) -> list[Fact]:
        """Metadata, a hint or an answer named a leader that will be tried.

        Not for a connection that came up, nor for a retry on a timer: those need no evidence but
        the last signal. Naming the same leader again changes nothing.
        """
        gap = self._open.get(tp)
        if gap is None:
            return []
        before = gap.phases.current
        gap.phases.evidence((leader, leader_epoch), now)
        gap.note_named((leader, leader_epoch), float("-inf"), now)
        return gap.changed_from(before, now)

    def leader_seen(
        self, tp: TopicPartition, *, leader: int, leader_epoch: int, asked_s: float, now: float
    ) -> list[Fact]:
        """A metadata answer to a request sent at `asked_s` named this leader, or none (-1).

        For the cluster's share only: report every answer, also of those that change nothing.
        """
        gap = self._open.get(tp)
        if gap is not None:
            gap.note_named((leader, leader_epoch), asked_s, now)
        return []

    def refreshed(self, now: float) -> list[Fact]:  # noqa: ARG002 (every input ends in now)
        """A metadata refresh was asked for: counted by every open gap."""
        for gap in self._open.values():
            gap.metadata_refreshes += 1
        return []

    def connecting(self, tp: TopicPartition, begun_s: float, done_s: float) -> list[Fact]:
        """A connection to the leader was made between these moments, authentication included."""
        gap = self._open.get(tp)
        if gap is not None:
            gap.phases.connecting(begun_s, done_s)
        return []

    def sent(self, tp: TopicPartition, now: float) -> list[Fact]:
        """An attempt is under way."""
        gap = self._open.get(tp)
        if gap is None:
            return []
        before = gap.phases.current
        gap.phases.sent(now)
        return gap.changed_from(before, now)

    # --- how it ended -----------------------------------------------------------------------

    def accepted(
        self, tp: TopicPartition, *, sent_s: float, leader: int, leader_epoch: int, now: float
    ) -> list[Fact]:
        """An attempt was acknowledged: the gap is over."""
        gap = self._open.get(tp)
        if gap is None:
            return []
        gap.attempts += 1
        gap.phases.accepted(sent_s, now)
        return self._over(gap, GapEnd.ACK, now, leader, leader_epoch, accepting_s=sent_s)

    def leader_usable(
        self, tp: TopicPartition, *, leader: int = -1, leader_epoch: int = -1, now: float
    ) -> list[Fact]:
        """Nothing waits, and a leader that should accept was named and has answered."""
        gap = self._open.get(tp)
        if gap is None:
            return []
        return self._over(gap, GapEnd.LEADER_USABLE, now, leader, leader_epoch)

    def abandon(self, tp: TopicPartition, reason: GapEnd, now: float) -> list[Fact]:
        """The gap is watched no longer, though no end was seen."""
        gap = self._open.get(tp)
        return [] if gap is None else self._over(gap, reason, now)

    def close(self, now: float) -> list[Fact]:
        """The producer is closed: every open gap ends, every outcome is told. Call this last."""
        facts = [
            fact
            for gap in list(self._open.values())
            for fact in self._over(gap, GapEnd.CLOSED, now)
        ]
        for gap in list(self._unsettled.values()):
            facts += self._settle(gap, now, closing=True)
        return facts

    # --- the records that met it ------------------------------------------------------------

    def met(self, tp: TopicPartition) -> int | None:
        """The number of the open gap, which a batch that meets it keeps for `settled`."""
        gap = self._open.get(tp)
        return None if gap is None else gap.number

    def joined(self, number: int) -> None:
        """One more batch waits with this gap."""
        gap = self._unsettled.get(number)
        if gap is not None:
            gap.outstanding += 1

    def settled(
        self, number: int, fate: str, records: int, now: float, *, last: bool = True
    ) -> list[Fact]:
        """Records of a batch that met this gap are 'delivered', 'expired' or 'failed'.

        `last` is False where the rest of the batch goes on and will be settled later.
        """
        gap = self._unsettled.get(number)
        if gap is None:
            return []
        match fate:
            case "delivered":
                gap.delivered += records
            case "expired":
                gap.expired += records
            case _:
                assert fate == "failed", fate
                gap.failed += records
        if last:
            assert gap.outstanding > 0, gap
            gap.outstanding -= 1
            gap.idle_since_s = now
        return self._settle(gap, now)

    # --- time -------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Fact]:
        """Once a second: tell every open gap again, give up those that nobody waits for."""
        if not self._open or now < self._tick_at:
            return []
        self._tick_at = now + TICK_S
        facts: list[Fact] = []
        for gap in list(self._open.values()):
            if not gap.outstanding and now - gap.idle_since_s >= IDLE_LIMIT_S:
                facts += self._over(gap, GapEnd.ABANDONED, now)
            else:
                facts.append(GapAdvanced(now, gap.snapshot(now)))
        return facts

    def next_deadline(self, now: float) -> float | None:
        """When to `tick`; always later than `now`."""
        return max(self._tick_at, now + 0.001) if self._open else None

    # --- views ------------------------------------------------------------------------------

    def open(self, tp: TopicPartition) -> bool:
        """Whether the partition has a gap now."""
        return tp in self._open

    def ended_s(self, tp: TopicPartition) -> float:
        """When the partition's last gap ended; long ago if it had none."""
        return self._ended_at.get(tp, -inf)

    def open_partitions(self) -> list[TopicPartition]:
        """The partitions that have a gap now, in order of opening."""
        return list(self._open)

    def idle(self) -> list[TopicPartition]:
        """The partitions that have a gap now, and nothing that waits for its end."""
        return [tp for tp, gap in self._open.items() if not gap.outstanding]

    def may_end(
        self, tp: TopicPartition, leader: int, leader_epoch: int, answered_s: float
    ) -> bool:
        """Whether this leader, whose last answer came at `answered_s`, ends an idle gap.

        It must be another than the one that refused, or the same at another epoch; any, where it
        was not the leader that refused but its connection that failed. And it must have answered
        since the gap began.
        """
        gap = self._open[tp]
        same = (leader, leader_epoch) == (gap.old_leader, gap.old_leader_epoch)
        return self.heard(tp, answered_s) and (not same or gap.cause in _CONNECTION)

    def heard(self, tp: TopicPartition, answered_s: float) -> bool:
        """Whether a node whose last answer came then has answered since the open gap began."""
        return answered_s >= self._open[tp].begin_s

    def gaps(self, now: float) -> list[Gap]:
        """The open gaps and the last ended ones, `limit` together, by number."""
        shown = [*self._ended, *self._open.values()][-self._limit :]
        return [gap.snapshot(now) for gap in sorted(shown, key=lambda gap: gap.number)]

    def open_gaps(self, now: float) -> list[Gap]:
        """All that are open, however many, in order of opening."""
        return [gap.snapshot(now) for gap in self._open.values()]

    # --- opening, ending, settling ----------------------------------------------------------

    def _opened(
        self,
        tp: TopicPartition,
        cause: Cause,
        trigger: str,
        begin_s: float,
        leader: int,
        leader_epoch: int,
        last_ack_s: float | None,
        now: float,
    ) -> OpenGap:
        # not before the end of the one before: no second belongs to two gaps
        begin_s = min(max(begin_s, self._ended_at.get(tp, begin_s)), now)
        gap = OpenGap(
            tp=tp,
            number=self._next_number,
            cause=cause,
            trigger=trigger,
            begin_s=begin_s,
            begin_unix_s=begin_s + self._unix_offset_s,
            first_signal_s=now,
            last_ack_age_s=None if last_ack_s is None else max(0.0, begin_s - last_ack_s),
            old_leader=leader,
            old_leader_epoch=leader_epoch,
        )
        self._next_number += 1
        if not self._open:
            self._tick_at = now + TICK_S
        self._open[tp] = self._unsettled[gap.number] = gap
        return gap

    def _over(
        self,
        gap: OpenGap,
        reason: GapEnd,
        now: float,
        leader: int = -1,
        leader_epoch: int = -1,
        accepting_s: float | None = None,
    ) -> list[Fact]:
        del self._open[gap.tp]
        self._ended.append(gap)
        del self._ended[: -self._limit]
        self._ended_at[gap.tp] = now
        if reason is not GapEnd.ACK:
            gap.phases.ended(now)
        gap.ended(reason, (leader, leader_epoch), now if accepting_s is None else accepting_s, now)
        return [GapEnded(now, gap.snapshot(now)), *self._settle(gap, now)]

    def _settle(self, gap: OpenGap, now: float, *, closing: bool = False) -> list[Fact]:
        """Tell the outcome, if the gap is over and nothing that met it is outstanding.

        Closing, what is still outstanding will never be told of, and so was not absorbed.
        """
        if gap.ended_by is None or (gap.outstanding and not closing):
            return []
        del self._unsettled[gap.number]
        if gap.ended_by in _CENSORED:
            gap.outcome = GapOutcome.ABANDONED
        elif gap.expired or gap.failed or gap.refused or gap.outstanding:
            gap.outcome = GapOutcome.REPORTED
        else:
            gap.outcome = GapOutcome.ABSORBED
        return [GapSettled(now, gap.snapshot(now))]
