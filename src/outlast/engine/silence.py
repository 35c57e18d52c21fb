"""Nodes that owe an answer for too long: probed, and given up only when that is right.

A connection is *silent* once nothing has come on it for the silence time-out, counted from its last
answer or the sending of its oldest request, whichever is later. That may mean four things, and only
two of them are a reason to send again elsewhere:

* the node hangs or is gone, and the cluster elects (or has elected) another leader: the probe stays
  unanswered and metadata names a newer leader: abort the old connection, go there;
* the link alone is dead: the probe (another connection) is answered, but the kernel waits for
  acknowledgements of the old one (≥ 2 retransmits): abort and resend;
* a follower is late, or the node is slow: the probe is answered. A *stall*: wait;
* nobody can tell yet: the probe is unanswered and metadata is as it was. The node is called silent,
  its partitions have a gap, and both questions are asked again until one is answered.

Rules: one probe at a time per node, on the reconnect schedule, with the same time-out. A connect
that succeeds proves nothing (A25): a probe is answered when ApiVersions is. A produce connection
that does not come up within the time-out is as good as an unanswered probe, and so is a node that
metadata does not name any more.
"""

from __future__ import annotations

from math import inf
from statistics import median

from outlast.engine.answers import Answers
from outlast.engine.brokers import Link, Question
from outlast.engine.hub import Hub
from outlast.engine.messages import PRODUCE_ROLES, Cause, Disconnect, Inspect, Role
from outlast.engine.partition import Partition
from outlast.engine.verdict import judge_silence

WATCHED_ROLES = (*PRODUCE_ROLES, Role.COORDINATOR)
PROBE_PATIENCE_S = 0.25  # then an unanswered probe and a newer leader together are enough
USUAL_TIMES = 4  # the time-out is at least so many times the usual answer time
TIMEOUT_MAX_S = 5.0
RETRANSMITS_OF_A_DEAD_LINK = 2
ACK_WAIT_GRACE_S = 0.25  # the answer that a broker gives after its ack wait needs its time, too


class _Suspect:
    __slots__ = ("silent", "since_s")

    def __init__(self, now: float) -> None:
        self.since_s = now
        self.silent = False  # a probe was not answered in time, and none since


class Silence:
    """The hub's watch over silent connections."""

    def __init__(self, hub: Hub, answers: Answers) -> None:
        self._hub = hub
        self._answers = answers
        self._suspects: dict[Link, _Suspect] = {}
        self._look_s = 0.0  # nobody can be silent before

    def __repr__(self) -> str:
        return f"<Silence suspects={list(self._suspects)}>"

    def timeout_s(self, link: Link) -> float:
        """How long this connection may say nothing."""
        least_s = self._hub.settings.silence_timeout_s
        if self._hub.lanes.enabled:  # then the broker itself says who is stuck, in time
            owed_s = link.pending[0].broker_timeout_s if link.pending else 0.0
            return max(least_s, owed_s + ACK_WAIT_GRACE_S)
        if not link.answer_times_s:
            return least_s
        usual_s = USUAL_TIMES * median(link.answer_times_s)
        return max(least_s, min(usual_s, TIMEOUT_MAX_S))

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look at every connection to a leader or coordinator that owes an answer.

        Not in each step: an answer or a sending puts a time-out off, and what is not owed yet has
        all of its own before it.
        """
        if now < self._look_s and not self._suspects:
            return
        self._look_s = now + self._hub.settings.silence_timeout_s
        for link in self._hub.brokers:
            if link.role not in WATCHED_ROLES:
                continue
            since_s = self._silent_since_s(link)
            silent_s = inf if since_s is None else since_s + self.timeout_s(link)
            if now < silent_s:
                self._look_s = min(self._look_s, silent_s)
                self._clear(link, now)
                continue
            suspect = self._suspects.get(link)
            if suspect is None:
                suspect = self._suspects[link] = _Suspect(now)
                self._hub.brokers.suspected[link.node_id] = None
            self._ask_after(link, suspect, now)

    def next_deadline(self, looked_s: float) -> float | None:
        """When to `tick`, if nothing comes before; the last tick was at `looked_s`."""
        if not self._suspects:
            owed = [link.waiting_since_s() is not None for link in self._hub.brokers.up()]
            return self._look_s if any(owed) else None
        times = []
        for link in self._hub.brokers.up():
            watched = link.role in WATCHED_ROLES
            since_s = self._silent_since_s(link) if watched else None
            if since_s is None:
                continue
            times.append(since_s + self.timeout_s(link))
            if link in self._suspects and link.ready:
                probe = self._hub.brokers.link(link.node_id, Role.PROBE)
                if probe.down:
                    times.append(probe.retry_s)
                else:
                    times += [
                        probe.begun_s + PROBE_PATIENCE_S,
                        probe.begun_s + self.timeout_s(link),
                    ]
        return min((t for t in times if t > looked_s), default=None)

    def since_s(self) -> float | None:
        """Since when the last node to fall silent is suspected: metadata is wanted meanwhile."""
        if not self._suspects:
            return None
        suspects = self._suspects.items()
        return max((s.since_s for link, s in suspects if not self._lives(link)), default=None)

    def _lives(self, link: Link) -> bool:
        """Whether it is only this connection that does not come up, and the node's other one does
        its work.
        """
        other = self._hub.lanes.other(link)
        return not link.ready and other.ready and other not in self._suspects

    def _silent_since_s(self, link: Link) -> float | None:
        if link.down or not (link.pending or not link.ready):
            return None
        if not link.ready:
            return link.begun_s
        return max(link.answered_s, link.pending[0].sent_s, link.throttled_until_s)

    def _clear(self, link: Link, now: float) -> None:
        if self._suspects.pop(link, None) is None:
            return
        if not any(other.node_id == link.node_id for other in self._suspects):
            self._hub.brokers.suspected.pop(link.node_id, None)
            self._drop_probe(link.node_id, now)

    def _drop_probe(self, node_id: int, now: float) -> None:
        probe = self._hub.brokers.link(node_id, Role.PROBE)
        if probe.connection is not None:
            self._hub.out.commands.append(Disconnect(probe.connection, abort=False))
            self._hub.brokers.drop(probe, now)

    # --- probing --------------------------------------------------------------------------------

    def _ask_after(self, link: Link, suspect: _Suspect, now: float) -> None:
        if not link.ready:  # its own connect is the probe
            if self._lives(link):  # what is due goes over the other one
                self._hub.brokers.unreachable(link, now)
                self._hub.brokers.suspected.pop(link.node_id, None)
            else:
                self._unanswered(link, suspect, now)
            return
        node_id = link.node_id
        probe = self._hub.brokers.link(node_id, Role.PROBE)
        if probe.down:
            node = self._hub.metadata.nodes.get(node_id)
            if node is None:  # the cluster has given it up, and nobody knows where to ask
                self._unanswered(link, suspect, now)
            elif now >= probe.retry_s:
                command = self._hub.brokers.connect(probe, node.host, node.port, now)
                self._hub.out.commands.append(command)
        elif now - probe.begun_s >= self.timeout_s(link):
            self._drop_probe(node_id, now)
            self._next_probe(probe, now)
            for other, doubted in self._suspected(node_id):
                self._unanswered(other, doubted, now)
        patient = suspect.silent or (not probe.down and now - probe.begun_s >= PROBE_PATIENCE_S)
        if patient and self._moved(link):
            self._give_up(link, now)

    def _next_probe(self, probe: Link, now: float) -> None:
        self._hub.brokers.fail(probe, now)
        probe.retry_s = now + self._hub.schedules.reconnect_delay_s(
            probe.failures, now - probe.failing_since_s
        )

    def _unanswered(self, link: Link, suspect: _Suspect, now: float) -> None:
        """The node is silent: what waits for it has a gap."""
        since_s = self._silent_since_s(link)
        if suspect.silent or since_s is None:  # told, or given up in this very step
            return
        suspect.silent = True
        self._hub.brokers.down.setdefault(link.node_id, since_s)
        if self._hub.transactions is not None and link.role is Role.COORDINATOR:
            self._hub.transactions.errands.silent(link, judge_silence(), now)
        for place in self._waiting_for(link, now):
            self._hub.gap_unreachable(
                place, Cause.SILENT, judge_silence().name, now, since_s=oldest_sent_s(place)
            )
            self._hub.trouble(place.tp, now)

    def probe_answered(self, probe: Link, now: float) -> None:
        """The node lives: what is unanswered on its old connection stalls, or the link is dead."""
        self._drop_probe(probe.node_id, now)
        suspected = [it for it in self._suspected(probe.node_id) if it[0].connection is not None]
        if suspected:
            self._next_probe(probe, now)
        for link, suspect in suspected:
            assert link.connection is not None
            suspect.silent = False
            self._hub.out.commands.append(Inspect(link.connection))
            for place in self._waiting_for(link, now):
                sent_s = oldest_sent_s(place)
                if sent_s is not None:
                    self._hub.stalled(place, link.connection, "leader", sent_s, now)

    def probe_failed(self, probe: Link, now: float) -> None:
        """The node refuses connections, yet the old one is open: as good as unanswered."""
        for link, suspect in self._suspected(probe.node_id):
            self._unanswered(link, suspect, now)

    def _suspected(self, node_id: int) -> list[tuple[Link, _Suspect]]:
        return [entry for entry in self._suspects.items() if entry[0].node_id == node_id]

    def inspected(self, link: Link, retransmits: int, now: float) -> None:
        """The kernel's word on a silent connection whose node lives."""
        if link in self._suspects and retransmits >= RETRANSMITS_OF_A_DEAD_LINK:
            self._give_up(link, now)

    # --- giving up ------------------------------------------------------------------------------

    def _moved(self, link: Link) -> bool:
        """Whether metadata names a newer leader for anything that is unanswered on this link."""
        if self._hub.transactions is not None and link.role is Role.COORDINATOR:
            return self._hub.transactions.errands.moved(link)
        for pending in link.pending:
            for place, batch in pending.batches:
                leader = self._hub.metadata.leader(*place.tp)
                attempt = batch.open_attempt
                if attempt is None or leader is None or not leader.usable:
                    continue
                if leader.epoch > attempt.leader_epoch or leader.node_id != link.node_id:
                    return True
        return False

    def _give_up(self, link: Link, now: float) -> None:
        self._answers.give_up(link, judge_silence(), "silent", now)
        self._clear(link, now)

    def _waiting_for(self, link: Link, now: float) -> list[Partition]:
        """Partitions with something unanswered on this link, or waiting for it to come up."""
        places = {
            place.tp: place
            for pending in link.pending
            if pending.question is Question.PRODUCE
            for place, _ in pending.batches
        }
        for place in self._hub.waiting_for(link, now):
            places.setdefault(place.tp, place)
        return list(places.values())


def oldest_sent_s(place: Partition) -> float | None:
    """When the oldest batch in flight was sent."""
    sent = (b.open_attempt.sent_s for b in place.window if b.open_attempt is not None)
    return min(sent, default=None)
