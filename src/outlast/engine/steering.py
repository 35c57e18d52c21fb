"""What answers say about lanes: whose acks are usual, who is stuck, and which line is too long.

Which lane a partition is in, and why, is `lanes`; here is what an answer to Produce tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from outlast.engine.batch import Attempt, Batch
from outlast.engine.brokers import Link
from outlast.engine.hub import Hub
from outlast.engine.lanes import owed_since_s, served_since_s
from outlast.engine.messages import AttemptState, LaneReason, Role
from outlast.engine.partition import Partition

LINE_GRACE_S = 0.05  # within it the next answer comes, unless that is late, too

Told = tuple[Partition, Batch, Attempt]  # whom an answer told of


class Steering:
    """The hub's ear for lanes.

    Args:
        hub: what is shared.
        clear_lane: aborts a connection, so that what waits there goes again at once.
    """

    def __init__(self, hub: Hub, clear_lane: Callable[[Link, float], None]) -> None:
        self._hub = hub
        self._clear_lane = clear_lane

    def __repr__(self) -> str:
        return f"<Steering {self._hub.lanes!r}>"

    def steer(self, link: Link, sent_s: float, told: Sequence[Told], now: float) -> None:
        """What an answer says about lanes: whose acks are usual, and who is stuck.

        An answer waits for its slowest partition and for the requests before it (C18, C19): where
        a 7 held it back, the time of its acks is no measure. Yet each 0 in it came within the ack
        wait, or it were a 7.
        """
        lanes, node_id = self._hub.lanes, link.node_id
        stuck = held_back = False
        for place, _, attempt in told:
            if attempt.stalled:
                held_back = True
                stuck |= lanes.stuck(place.tp, node_id, attempt.sent_s, now)
        behind = sent_s < max(link.stalled_s, link.throttled_until_s)
        waits_s: list[float] = []
        for place, batch, attempt in told:
            if attempt.state is AttemptState.ACCEPTED:
                since_s = served_since_s(batch, attempt)
                waits_s.append(now - since_s)
                place.queue.learn_pace(now - since_s)
                lanes.acked(place.tp, node_id, attempt.sent_s)
                reason = lanes.of(place.tp)[1]
                if reason is None:
                    continue
                if reason is LaneReason.STUCK:
                    since_s = owed_since_s(batch, attempt)  # a copy may have been there for long
                if held_back:
                    usual = since_s == attempt.sent_s
                else:
                    usual = not behind and now - since_s <= lanes.ack_wait_s(node_id)
                lanes.acked_while_slow(place.tp, attempt.sent_s, usual=usual, now=now)
        if held_back:
            link.stalled_s = now
        elif waits_s and not behind:
            lanes.sample(node_id, waits_s)
        tps = [place.tp for place, _, _ in told]
        if waits_s and not held_back:
            lanes.answered(link, tps, now)
        if link.pending and stuck:
            self._clear_lane(link, now)
        elif link.pending:
            link.line_after = tps
            if self._is_long_line(link, now):
                begun_s = max(now, link.pending[0].sent_s + link.quickest_s)
                link.line_due_s = begun_s + LINE_GRACE_S

    def tick(self, now: float) -> None:
        """Leave lines whose next request is not answered at once, either. (It is where a node, the
        network or this process stood still, or where only the one answer was late.)
        """
        for link in self._hub.brokers:
            if now >= link.line_due_s:
                link.line_due_s = inf
                if self._is_long_line(link, now):
                    self._clear_lane(link, now)

    def next_deadline(self) -> float | None:
        """When to `tick`, if nothing comes before."""
        due = (link.line_due_s for link in self._hub.brokers if link.line_due_s < inf)
        return min(due, default=None)

    def _is_long_line(self, link: Link, now: float) -> bool:
        """Whether others than those of the last answer, and than those known to be late, would wait
        behind a line of more than twice the ack wait. Sent again, they go first. Where the request
        time-out is near, less is too much: who is stuck at the line's end needs an ack wait to say.
        """
        if not link.pending or now < link.throttled_until_s:
            return False
        if link.role is not Role.OPEN or self._hub.lanes.shared(link):
            return False
        lateness = self._hub.lanes.lateness
        line_s = lateness.line_s(link.pending, link.served_s)
        last_s = now - link.pending[-1].sent_s + line_s
        ack_wait_s = self._hub.lanes.ack_wait_s(link.node_id)
        if last_s <= min(2 * ack_wait_s, self._hub.settings.request_timeout_s - ack_wait_s):
            return False
        under_way = [place for pending in link.pending for place, _ in pending.batches]
        others = [place.tp for place in under_way + self._hub.waiting_for(link, now)]
        return any(tp not in link.line_after and tp not in lateness for tp in others)
