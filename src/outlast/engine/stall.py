"""Stalls: acks that do not come though nothing was rejected.

A stall begins when the partition's oldest unacknowledged batch was sent, and is told once that has
waited for the silence time-out *and* the leader was heard of since (it answered a probe, or said
itself that a follower is late: 7 with an offset). It ends with the first ack, with a gap, or when
nothing waits. A gap that follows begins at the leader's last sign of life: no second is in both.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.engine.messages import (
    Fact,
    Stall,
    StallAdvanced,
    StallEnd,
    StallEnded,
    StallOpened,
)

TopicPartition = tuple[str, int]
TICK_S = 1.0
BROKER_SAYS = "follower"  # a reason: the leader's own word, which a probe's answer does not change


@dataclass(slots=True)
class _Open:
    number: int
    node_id: int
    lane: str
    reason: str
    begin_s: float
    alive_s: float  # the leader's last sign of life


class StallRecorder:
    """The stalls of one producer: at most one open per partition, the last `limit` to look at."""

    __slots__ = (
        "_ended",
        "_ended_at",
        "_limit",
        "_next_number",
        "_open",
        "_tick_at",
        "_unix_offset_s",
    )

    def __init__(self, unix_offset_s: float, limit: int = 1000) -> None:
        self._unix_offset_s = unix_offset_s
        self._limit = limit
        self._open: dict[TopicPartition, _Open] = {}
        self._ended: list[Stall] = []  # the oldest are dropped
        self._ended_at: dict[TopicPartition, float] = {}
        self._next_number = 1
        self._tick_at = 0.0

    def __repr__(self) -> str:
        return f"<StallRecorder open={len(self._open)}>"

    def alive(
        self,
        tp: TopicPartition,
        *,
        node_id: int,
        lane: str,
        reason: str,
        sent_s: float,
        now: float,
    ) -> list[Fact]:
        """The leader lives and owes this partition an ack for a batch sent at `sent_s`."""
        stall = self._open.get(tp)
        if stall is not None:
            stall.alive_s = now
            if reason == BROKER_SAYS:
                stall.reason = reason
            return []
        self._open[tp] = _Open(self._next_number, node_id, lane, reason, sent_s, now)
        self._next_number += 1
        if len(self._open) == 1:
            self._tick_at = now + TICK_S
        return [StallOpened(now, self._snapshot(tp, now, None))]

    def end(self, tp: TopicPartition, reason: StallEnd, now: float) -> list[Fact]:
        """The partition does not stall any more, whether it did or not."""
        stall = self._open.get(tp)
        if stall is None:
            return []
        end_s = stall.alive_s if reason is StallEnd.GAP else now
        ended = self._snapshot(tp, end_s, reason)
        del self._open[tp]
        self._ended.append(ended)
        del self._ended[: -self._limit]
        self._ended_at[tp] = end_s
        return [StallEnded(now, ended)]

    def lane_changed(self, tp: TopicPartition, lane: str) -> None:
        """What is unacknowledged goes over another lane."""
        stall = self._open.get(tp)
        if stall is not None:
            stall.lane = lane

    def alive_s(self, tp: TopicPartition) -> float | None:
        """The leader's last sign of life in an open stall, or when the last one ended: a gap that
        follows begins no earlier.
        """
        stall = self._open.get(tp)
        return self._ended_at.get(tp) if stall is None else stall.alive_s

    def close(self, now: float) -> list[Fact]:
        """The producer is closed."""
        return [fact for tp in list(self._open) for fact in self.end(tp, StallEnd.CLOSED, now)]

    def tick(self, now: float) -> list[Fact]:
        """Once a second: tell of every open stall what is sure. What follows the leader's last sign
        of life may yet turn out to be a gap's.
        """
        if not self._open or now < self._tick_at:
            return []
        self._tick_at = now + TICK_S
        return [
            StallAdvanced(now, self._snapshot(tp, stall.alive_s, None))
            for tp, stall in self._open.items()
        ]

    def next_deadline(self, now: float) -> float | None:
        """When to `tick`; always later than `now`."""
        return max(self._tick_at, now + 0.001) if self._open else None

    def stalls(self, now: float) -> list[Stall]:
        """The open stalls and the last ended ones, by number."""
        shown = [*self._ended, *self.open_stalls(now)][-self._limit :]
        return sorted(shown, key=lambda stall: stall.number)

    def open_stalls(self, now: float) -> list[Stall]:
        """All that are open, however many, in order of opening."""
        return [self._snapshot(tp, now, None) for tp in self._open]

    def _snapshot(self, tp: TopicPartition, until_s: float, ended_by: StallEnd | None) -> Stall:
        stall = self._open[tp]
        return Stall(
            topic=tp[0],
            partition=tp[1],
            number=stall.number,
            node_id=stall.node_id,
            lane=stall.lane,
            reason=stall.reason,
            begin_s=stall.begin_s,
            begin_unix_s=stall.begin_s + self._unix_offset_s,
            duration_s=until_s - stall.begin_s,
            ended_by=ended_by,
        )
