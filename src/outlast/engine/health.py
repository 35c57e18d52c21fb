"""How a producer does now, for `health()`: gaps, stalls, who is held up and why, the buffer."""

from __future__ import annotations

from outlast.engine.hub import Hub, TopicPartition
from outlast.engine.messages import Gap, Health, HeldUp, Stall


def examine(hub: Hub, headroom_s: float | None, now: float) -> Health:
    """The present condition.

    Args:
        hub: the producer's state.
        headroom_s: how long the send buffer lasts if nothing leaves it; None: nothing comes.
        now: monotonic seconds.
    """
    gaps = {(gap.topic, gap.partition): gap for gap in hub.recorder.open_gaps(now)}
    stalls = {(stall.topic, stall.partition): stall for stall in hub.stalls.open_stalls(now)}
    room = hub.accumulator
    return Health(
        open_gaps=tuple(gaps.values()),
        open_stalls=tuple(stalls.values()),
        held_up=tuple(
            _held_up(hub, tp, gaps.get(tp), stalls.get(tp), now)
            for tp in sorted(hub.shares.held_up(now, hub.busy, gaps) & hub.partitions.keys())
        ),
        buffer_bytes=room.used_bytes,
        buffer_limit_bytes=room.limit_bytes,
        headroom_s=headroom_s,
    )


def _held_up(
    hub: Hub, tp: TopicPartition, gap: Gap | None, stall: Stall | None, now: float
) -> HeldUp:
    place = hub.partitions[tp]
    waiting = list(place.unsettled())
    lane, lane_reason = hub.lanes.of(tp)
    reason = "waiting"
    if gap is not None:
        reason = f"gap: {gap.cause.value}"
    elif stall is not None:
        reason = f"stall: {stall.reason}"
    return HeldUp(
        topic=tp[0],
        partition=tp[1],
        reason=reason,
        lane=lane.value,
        lane_reason="" if lane_reason is None else lane_reason.value,
        oldest_age_s=now - waiting[0].created_s if waiting else 0.0,
        buffer_bytes=sum(batch.charge_bytes for batch in waiting),
    )
