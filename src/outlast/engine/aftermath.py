"""Gaps whose records are all settled: watched until a usable leader is seen.

Nothing waits for the partition any more (its records expired), so no ack will end its gap. It ends
when metadata names a leader that can be believed *and* that node has answered a request since the
gap began: nobody may have a reason to ask it, so it is probed. Metadata is asked once a second
meanwhile; after five minutes the recorder abandons the gap.
"""

from __future__ import annotations

from outlast.engine.hub import Hub
from outlast.engine.messages import Role

LOOK_S = 1.0


class Aftermath:
    """The hub's watch over gaps that nobody waits for."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._look_s = 0.0

    def __repr__(self) -> str:
        return f"<Aftermath of {self._hub.recorder.idle()}>"

    def tick(self, now: float) -> None:
        """End what can be ended; else look again once a second."""
        hub = self._hub
        idle = hub.recorder.idle()
        if not idle:
            return
        for tp in idle:
            leader = hub.metadata.leader(*tp)
            if leader is None or not leader.usable:
                continue
            answered_s = hub.brokers.answered_s.get(leader.node_id, -1.0)
            if hub.recorder.may_end(tp, leader.node_id, leader.epoch, answered_s):
                hub.metadata.fresh(*tp)
                hub.tell(
                    hub.recorder.leader_usable(
                        tp, leader=leader.node_id, leader_epoch=leader.epoch, now=now
                    )
                )
            elif not hub.recorder.heard(tp, answered_s):
                self._greet(leader.node_id, now)
        if now >= self._look_s:
            self._look_s = now + LOOK_S
            hub.inquiries.clock.want(now)

    def next_deadline(self) -> float | None:
        """When to look again."""
        return self._look_s if self._hub.recorder.idle() else None

    def _greet(self, node_id: int, now: float) -> None:
        """Have the node say something: a probe takes an answer."""
        link = self._hub.brokers.link(node_id, Role.PROBE)
        node = self._hub.metadata.nodes.get(node_id)
        if link.down and node is not None and now >= link.retry_s:
            self._hub.out.commands.append(
                self._hub.brokers.connect(link, node.host, node.port, now)
            )
