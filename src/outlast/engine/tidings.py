"""What the cluster tells when it is asked: nodes, topics, leaders, producer ids.

Metadata are merged (`metadata`), and whatever depends on them hears of it here: connections to
addresses that are no more, partitions whose leader or topic has changed, threads that wait to know
a topic, gaps that want to know who leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.engine.brokers import Link, Pending
from outlast.engine.failure_reasons import TOPIC_RECREATED, FailureReason
from outlast.engine.hub import Hub
from outlast.engine.intake import Intake
from outlast.engine.messages import GapEnd, MetadataRefreshed, TopicGone
from outlast.engine.metadata import (
    Change,
    LeaderChange,
    Node,
    PartitionGone,
    TopicFound,
    TopicRecreated,
)
from outlast.engine.verdict import code_name
from outlast.engine.window import is_producer

NO_PRODUCER_ID_FOR_US = frozenset({31, 42, 53})
COORDINATOR_LOADING = frozenset({14, 15, 16})
UNKNOWN_TOPIC = 3


class Tidings:
    """The hub's ear for answers that are about the cluster."""

    def __init__(self, hub: Hub, intake: Intake) -> None:
        self._hub = hub
        self._intake = intake

    def __repr__(self) -> str:
        return f"<Tidings {self._hub.metadata!r}>"

    def informed(self, link: Link, pending: Pending, response: Any, now: float) -> None:
        """A metadata answer came."""
        hub = self._hub
        alive = hub.metadata.alive
        before = dict(hub.metadata.nodes)
        changes = hub.metadata.merge(response, link.node_id, now)
        cluster_id = hub.metadata.cluster_id
        hub.out.facts.append(
            MetadataRefreshed(now, link.node_id, now - pending.sent_s, True, cluster_id=cluster_id)
        )
        hub.out.commands += hub.inquiries.metadata_ended(link, True, now)
        hub.tell(hub.recorder.refreshed(now))
        self._tell_gaps_who_leads(response, pending.sent_s, now)
        for node_id in sorted(hub.metadata.alive - alive):
            hub.brokers.revive(node_id, now)
        self._follow_addresses(before, now)
        hub.brokers.forget_all_but(hub.metadata.nodes)
        for change in changes:
            self._changed(change, now)
        hub.agenda.look_at_all(hub.busy)
        found = {change.topic for change in changes if isinstance(change, TopicFound)}
        self._intake.informed(found, pending.sent_s)
        in_use = {topic for topic, _ in hub.busy} | self._intake.wanted_topics()
        for topic, error_code in hub.metadata.expire(in_use, now):
            if error_code == UNKNOWN_TOPIC:
                self._abandon_gaps(topic, now)
                hub.out.facts.append(TopicGone(now, topic))

    def _follow_addresses(self, before: Mapping[int, Node], now: float) -> None:
        """Nodes that have another address: connections to the old one are given up, unless they
        work and have something unanswered. Who lives there now may be another node.
        """
        nodes = self._hub.metadata.nodes
        for link in self._hub.brokers:
            old, new = before.get(link.node_id), nodes.get(link.node_id)
            if old is None or new is None or (old.host, old.port) == (new.host, new.port):
                continue
            if not link.down and not link.pending:
                self._hub.close_link(link, now)
            if link.down:
                link.failures = 0
                link.retry_s = now

    def _changed(self, change: Change, now: float) -> None:
        hub = self._hub
        match change:
            case LeaderChange():
                hub.leader_changed(change, now, by_hint=False)
            case TopicRecreated():
                for tp, place in list(hub.partitions.items()):
                    if tp[0] == change.topic:  # idle ones too: the new topic knows no numbers
                        hub.settle(place, place.leave_topic(TOPIC_RECREATED), now)
                self._abandon_gaps(change.topic, now)
            case PartitionGone():
                tp = (change.topic, change.partition)
                why = FailureReason("topic_gone", 3, "its topic has no such partition any more")
                gone = hub.busy.get(tp)
                if gone is not None:
                    hub.settle(gone, gone.fail_all(why), now)
                hub.tell(hub.recorder.abandon(tp, GapEnd.TOPIC_GONE, now))
                hub.out.facts.append(TopicGone(now, *tp))

    def _abandon_gaps(self, topic: str, now: float) -> None:
        """Of a topic that is gone: those that nobody waits for any more."""
        for tp in self._hub.recorder.idle():
            if tp[0] == topic:
                self._hub.tell(self._hub.recorder.abandon(tp, GapEnd.TOPIC_GONE, now))

    def _tell_gaps_who_leads(self, response: Any, asked_s: float, now: float) -> None:
        """For the cluster's share of open gaps: what this very answer says, new or old."""
        recorder = self._hub.recorder
        if not recorder.open_partitions():
            return
        for topic in response.topics or ():
            name = topic.name or ""  # none where only its id is known: nonsense, as we ask by name
            for p in topic.partitions or ():
                tp = (name, p.partition_index)
                if recorder.open(tp):
                    epoch = p.leader_epoch if response.API_VERSION >= 9 else -1
                    self._hub.tell(
                        recorder.leader_seen(
                            tp, leader=p.leader_id, leader_epoch=epoch, asked_s=asked_s, now=now
                        )
                    )

    def numbered(self, response: Any, now: float) -> None:
        """An answer to InitProducerId came, for who has no transactions."""
        inquiries = self._hub.inquiries
        code = response.error_code
        producer_id, epoch = response.producer_id, response.producer_epoch
        if code == 0 and is_producer(producer_id, epoch):
            inquiries.producer_id_came(producer_id, epoch)
        elif code in NO_PRODUCER_ID_FOR_US:
            why = FailureReason(
                "no_producer_id",
                code,
                f"the cluster gives no producer id ({code_name(code)}): idempotence needs the "
                "IdempotentWrite right; grant it, or set enable_idempotence=False",
            )
            for place in inquiries.give_up_producer_id():
                self._hub.settle(place, place.fail_queue(why), now)
        else:
            inquiries.producer_id_failed(loading=code in COORDINATOR_LOADING, now=now)
