"""Questions of a transaction to its coordinators: one at a time, each run until it is answered.

An errand does not care who coordinates: one that is lost, silent, not ready or another by now is
looked for, and asked the same again. What that takes is a gap of the unit `txn:<id>`, with phases
like a partition's. Only answers that would be the same next time are told to the errand's sender.

By KIP-890's second protocol brokers ask the transaction's coordinator themselves: leaders whether a
partition may join, at its first batch, a group's coordinator for its offsets. A broker that has to
ask twice at a time drops the earlier question (Kafka's AddPartitionsToTxnManager), and refuses what
it was about as if replicas, or the coordinator, were not there. (200 transactions with offsets on
Kafka 4.1 had 100 such gaps.) So offsets are not sent to a broker while first batches are under way
to it, nor those while offsets are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from outlast.engine import txn_wire
from outlast.engine.brokers import Link, Pending, Question
from outlast.engine.hub import Hub
from outlast.engine.messages import Cause, GapEnd, Role, Send
from outlast.engine.metadata import Node
from outlast.engine.txn_verdict import TxnJudgement, TxnVerdict, judge_coordinator
from outlast.engine.txn_wire import Key, Told
from outlast.engine.verdict import SOON_S, UNSUPPORTED_VERSION, Judgement

TopicPartition = tuple[str, int]
CANNOT_ASK = judge_coordinator(UNSUPPORTED_VERSION)


@dataclass(slots=True)
class Errand:
    """One question to a coordinator, until it is answered."""

    what: str  # for people: the request's name
    key: Key  # whose coordinator is asked
    build: Callable[[], Any]
    read: Callable[[Any], Told]
    done: Callable[[Any, float], None]
    again_s: float = 0.0  # not before
    failures: int = 0
    unknown_errors: int = 0
    last_error_code: int = 0  # of the answers to it
    since_s: float = 0.0
    token: int = -1  # of the request under way; -1: none is
    joins: bool = False  # the broker that is asked has to ask the transaction's coordinator
    void: bool = False  # nobody wants to know any more
    left: bool = False  # one was sent, and no answer told what came of it: it may have been done


Refused = Callable[[Errand, TxnJudgement, Told, float], None]


class Errands:
    """The errand under way, and who coordinates what."""

    def __init__(self, hub: Hub, unit: TopicPartition, refused: Refused) -> None:
        self._hub = hub
        self._unit = unit
        self._refused = refused
        self.present: Errand | None = None
        self._coordinators: dict[Key, Node] = {}
        self._found = 0  # how often one was found that was not known: as an epoch for gaps
        self._last_ack_s: float | None = None

    def __repr__(self) -> str:
        return f"<Errands {self.present} coordinators={self._coordinators}>"

    def start(self, errand: Errand | None, now: float) -> None:
        """Run this one next."""
        self.present = errand
        if errand is not None:
            errand.since_s = now

    @property
    def last_error_code(self) -> int:
        """Of what is under way; 0: nothing was answered."""
        return 0 if self.present is None else self.present.last_error_code

    def drop(self) -> None:
        """Nobody wants to know any more; what is under way may come back, and says nothing."""
        if self.present is None:
            return
        self._hub.inquiries.forget_coordinator(self.present.key)
        if self.present.token < 0:
            self.present = None
        else:
            self.present.void = True

    def step(self, now: float) -> None:
        """Ask, if somebody can be asked."""
        errand = self.present
        if errand is None:
            return
        node = self._coordinators.get(errand.key)
        if node is None or node.node_id in self._hub.brokers.down:
            self._hub.inquiries.want_coordinator(errand.key, now)
        if node is not None and errand.token < 0 and now >= errand.again_s:
            self._ask(errand, node, now)

    def _ask(self, errand: Errand, node: Node, now: float) -> None:
        hub = self._hub
        link = hub.brokers.link(node.node_id, Role.COORDINATOR)
        if link.down:
            if now >= link.retry_s:
                hub.out.commands.append(hub.brokers.connect(link, node.host, node.port, now))
            return
        if not link.ready or link.pending or now < link.throttled_until_s:
            return
        if errand.joins and self._partitions_join(node.node_id):
            return
        assert link.connection is not None
        errand.token = hub.brokers.next_token()
        link.used_s = now
        deadline_s = now + hub.settings.request_timeout_s
        link.pending.append(Pending(errand.token, Question.TRANSACTION, now, deadline_s, []))
        hub.out.commands.append(Send(link.connection, errand.token, errand.build()))
        hub.tell(hub.recorder.sent(self._unit, now))

    def _partitions_join(self, node_id: int) -> bool:
        """Whether first batches of partitions are under way to that broker."""
        links = (self._hub.brokers.link(node_id, role) for role in (Role.OPEN, Role.SLOW))
        under_way = (pending for link in links for pending in link.pending)
        return any(place.proven is None for pending in under_way for place, _ in pending.batches)

    def joins_at(self, node_id: int) -> bool:
        """Whether offsets join at that broker: then no partition may."""
        errand = self.present
        if errand is None or not errand.joins or errand.token < 0:
            return False
        link = self._hub.brokers.link(node_id, Role.COORDINATOR)
        return any(pending.token == errand.token for pending in link.pending)

    def next_deadline(self, looked_s: float) -> float | None:
        """When to `step`, if nothing comes before; the last time was at `looked_s`."""
        errand = self.present
        if errand is None or errand.token >= 0:
            return None
        times = [errand.again_s]
        node = self._coordinators.get(errand.key)
        if node is not None:
            link = self._hub.brokers.link(node.node_id, Role.COORDINATOR)
            times.append(link.retry_s if link.down else link.throttled_until_s)
        return min((t for t in times if t > looked_s), default=None)

    def found(self, key: Key, response: Any, now: float) -> None:
        """FindCoordinator was answered."""
        told, where = txn_wire.found(response, key[1])
        self._hub.inquiries.coordinator_told(key, ok=where is not None, now=now)
        if where is not None:
            node = Node(*where)
            if self._coordinators.get(key) != node:
                self._coordinators[key] = node
                self._found += 1
                self._hub.brokers.revive(node.node_id, now)
            self._hub.tell(
                self._hub.recorder.evidence(
                    self._unit, leader=node.node_id, leader_epoch=self._found, now=now
                )
            )
            return
        judgement = judge_coordinator(told.error_code)
        final = judgement.verdict in (TxnVerdict.ABORT, TxnVerdict.REFUSE)
        errand = self.present if self.present is not None and self.present.key == key else None
        if errand is not None:
            errand.last_error_code = told.error_code
        if final and errand is not None and not errand.left:
            self._hub.inquiries.forget_coordinator(key)
            self._never_asked(errand, judgement, told, now)
        elif judgement.cause is not None:
            self._gap(judgement.cause, judgement.name, now)

    def answered(self, link: Link, pending: Pending, response: Any, now: float) -> None:
        """A coordinator answered."""
        errand = self.present
        if errand is None or errand.token != pending.token:
            return  # it was about something that is over
        errand.token = -1
        told = errand.read(response)
        judgement = judge_coordinator(told.error_code)
        if judgement.cause is not None:
            self._came_to_nothing(judgement.cause, judgement.name, pending, link.node_id, now)
        else:
            self._last_ack_s = now
            self._hub.tell(
                self._hub.recorder.accepted(
                    self._unit,
                    sent_s=pending.sent_s,
                    leader=link.node_id,
                    leader_epoch=self._found,
                    now=now,
                )
            )
        if errand.void:
            self.present = None
        elif judgement.verdict is TxnVerdict.DONE:
            self.present = None
            errand.done(response, now)
        else:
            self._act(errand, judgement, told, now)

    def _never_asked(self, errand: Errand, judgement: TxnJudgement, told: Told, now: float) -> None:
        """It cannot be put to a coordinator: no answer will end the gap, if there is one."""
        self._act(errand, judgement, told, now)
        self._hub.tell(self._hub.recorder.abandon(self._unit, GapEnd.ABANDONED, now))

    def _act(self, errand: Errand, judgement: TxnJudgement, told: Told, now: float) -> None:
        """A coordinator said no."""
        verdict = judgement.verdict
        errand.last_error_code = told.error_code
        errand.left |= judgement.in_doubt
        if judgement.tries_max is not None:
            errand.unknown_errors += 1
            if errand.unknown_errors >= judgement.tries_max:
                verdict = TxnVerdict.ABORT
        if verdict is TxnVerdict.FIND:
            self._lose_coordinator(errand.key, now)
            errand.failures += 1
            errand.again_s = now + self._hub.schedules.denied_delay_s(errand.failures)
        elif verdict is TxnVerdict.RETRY:
            self.again(errand, judgement, now)
        else:
            self._refused(errand, judgement, told, now)

    def again(self, errand: Errand, judgement: TxnJudgement, now: float) -> None:
        """Put the same question once more, after a pause."""
        errand.failures += 1
        errand.again_s = now + SOON_S
        if not judgement.soon:
            errand.again_s = now + self._hub.schedules.retry_delay_s(
                errand.failures, now - errand.since_s, judgement.name
            )

    # --- coordinators that are gone -------------------------------------------------------------

    def _lose_coordinator(self, key: Key, now: float) -> None:
        self._coordinators.pop(key, None)
        self._hub.inquiries.want_coordinator(key, now)

    def lost(
        self, pending: Pending, node_id: int, judgement: Judgement, now: float, *, sent: bool
    ) -> None:
        """A connection ended with an errand unanswered: it is run again, wherever that is now. But
        what no request can hold that this broker understands cannot be asked the next time either.
        """
        errand = self.present
        if errand is None or errand.token != pending.token:
            return
        errand.token, errand.left = -1, errand.left or sent
        if not sent and judgement.name == CANNOT_ASK.name and not errand.void:
            text = f"it cannot be written in a way that node {node_id} knows ({CANNOT_ASK.name})"
            told = Told(CANNOT_ASK.error_code, message=text)
            self._never_asked(errand, CANNOT_ASK, told, now)
            return
        assert judgement.cause is not None  # only lanes are aborted without one
        self._came_to_nothing(judgement.cause, judgement.name, pending, node_id, now)
        node = self._coordinators.get(errand.key)
        if node is not None and node.node_id == node_id:
            self._lose_coordinator(errand.key, now)
        if errand.void:
            self.present = None

    def unreachable(self, link: Link, judgement: Judgement, now: float) -> None:
        """A coordinator cannot be connected: who coordinates may be another one by now."""
        errand = self.present
        if errand is None:
            return
        node = self._coordinators.get(errand.key)
        if node is not None and node.node_id == link.node_id:
            assert judgement.cause is not None
            self._gap(judgement.cause, judgement.name, now)
            self._hub.inquiries.want_coordinator(errand.key, now)

    def moved(self, link: Link) -> bool:
        """Whether what is unanswered on this connection is another node's affair by now."""
        errand = self.present
        if errand is None or not link.pending or errand.token != link.pending[0].token:
            return False
        node = self._coordinators.get(errand.key)
        return node is None or node.node_id != link.node_id

    def silent(self, link: Link, judgement: Judgement, now: float) -> None:
        """The node does not answer a probe either."""
        errand = self.present
        node = None if errand is None else self._coordinators.get(errand.key)
        if node is not None and node.node_id == link.node_id:
            assert judgement.cause is not None
            since_s = link.waiting_since_s()
            self._gap(
                judgement.cause, judgement.name, now, since_s=inf if since_s is None else since_s
            )

    def _came_to_nothing(
        self, cause: Cause, name: str, pending: Pending, node_id: int, now: float
    ) -> None:
        """An attempt was refused or lost."""
        self._hub.tell(
            self._hub.recorder.refused(
                self._unit,
                cause=cause,
                trigger=name,
                sent_s=pending.sent_s,
                leader=node_id,
                leader_epoch=self._found,
                last_ack_s=self._last_ack_s,
                now=now,
            )
        )

    def _gap(self, cause: Cause, name: str, now: float, since_s: float = inf) -> None:
        """Nobody can be asked."""
        if self.present is None:
            return
        node = self._coordinators.get(self.present.key)
        self._hub.tell(
            self._hub.recorder.unreachable(
                self._unit,
                cause=cause,
                trigger=name,
                ready_s=min(since_s, now, max(self.present.since_s, self.present.again_s)),
                leader=-1 if node is None else node.node_id,
                leader_epoch=self._found,
                last_ack_s=self._last_ack_s,
                now=now,
            )
        )
