"""Requests out: which batches go to which leader now.

A broker serves one request at a time per connection and answers in order, so a request carries one
batch from as many due partitions as fit, those first that have waited longest; never the same
partition twice (the first would vanish: S14), never null records (S13).

Theory
------
Most partitions have nothing to send at most times: their batch lingers, or is in flight. So nobody
goes through all of them: each is looked at when something was done to it, or when its time has come
(the hub's *agenda* knows). The look puts it into the *line* of the connection that takes its next
batch, or takes it out. What stands in a line is due, and waits for its connection alone.

Where lanes are in use, or a connection cannot be opened, it depends on others, too, which
connection takes a partition's batches: then all that are busy are looked at each time.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from outlast.engine.batch import Attempt, Batch
from outlast.engine.brokers import Link, Pending, Question
from outlast.engine.hub import Hub
from outlast.engine.messages import Connection, Role, Send
from outlast.engine.partition import Partition
from outlast.engine.produce import build_request

SEALING_MAX_S = 0.05  # that a request waits for bytes that are being compressed
BROKER_SHARE = 0.9  # of request_timeout_ms is the broker's own time-out: its 7 comes before ours

Due = tuple[Partition, int]  # and the epoch of its leader
Line = OrderedDict[tuple[str, int], Due]


class Outgoing:
    """The way of batches onto connections."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lines: dict[Link, Line] = {}  # none is empty
        self._place_of: dict[tuple[str, int], Link] = {}  # in whose line a partition is
        self._redial: dict[Link, None] = {}  # the other lane takes what is theirs meanwhile
        self._held: dict[Link, None] = {}  # of partitions that lack a leader or a producer id
        self._calm = True  # at the last pump: no partition's connection depended on others

    def __repr__(self) -> str:
        return f"<Outgoing { ({link: len(line) for link, line in self._lines.items()}) }>"

    def pump(self, now: float) -> None:
        """Send whatever may be sent, and note what must wait for what."""
        hub = self._hub
        hub.brokers.forget_down(now)
        calm = hub.lanes.calm and not hub.brokers.any_unreachable()
        if not (calm and self._calm):
            hub.agenda.look_at_all(hub.busy)
        self._calm = calm
        if hub.agenda.all_anew:
            self._redial, self._held = {}, {}
        for place in hub.agenda.take(now):
            self._look(place, now)
        links = list({**self._lines, **self._redial})
        if len(links) > 1:
            links.sort(key=_is_slow)  # should there be but one connection to be had: open ones'
        for link in links:
            self._pump_link(link, now)

    def _look(self, place: Partition, now: float) -> None:
        """Find out what the partition's next batch waits for."""
        hub, lanes, tp = self._hub, self._hub.lanes, place.tp
        due_s = place.due_s()
        if due_s is None or due_s > now:
            self._leave_line(tp)
            if due_s is not None:
                hub.agenda.look_at(place, due_s)
            return
        leader = hub.metadata.leader(*tp)
        if leader is None or not leader.usable:
            if not hub.recorder.open(tp):
                hub.no_leader(place, now)
            if leader is not None:
                self._held[lanes.own_link(place, leader.node_id)] = None
            self._look_again(place)
            return
        if hub.transactions is not None:
            if not hub.transactions.admits(place):
                self._leave_line(tp)  # it is looked at again when it is admitted
                return
        elif place.needs_producer_id():
            hub.inquiries.want_producer_id(place)
            if place.needs_producer_id():
                self._held[lanes.own_link(place, leader.node_id)] = None
                self._look_again(place)
                return
        lanes.steer(place, leader.node_id, now)
        own = lanes.own_link(place, leader.node_id)
        own.forget_failure(now)
        link = lanes.link(own)
        if link is not own:
            self._redial[own] = None
        if self._place_of.get(tp) is not link:
            self._leave_line(tp)
            self._place_of[tp] = link
        self._lines.setdefault(link, OrderedDict())[tp] = place, leader.epoch

    def _look_again(self, place: Partition) -> None:
        """What it lacks may be there by the next time."""
        self._leave_line(place.tp)
        self._hub.agenda.changed(place)

    def _leave_line(self, tp: tuple[str, int]) -> None:
        link = self._place_of.pop(tp, None)
        if link is not None:
            line = self._lines[link]
            del line[tp]
            if not line:
                del self._lines[link]

    def next_deadline(self, looked_s: float) -> float | None:
        """When to `pump`, if nothing comes before; the last time was at `looked_s`."""
        earliest_s = self._hub.agenda.next_s()
        for link in {**self._lines, **self._redial, **self._held}:
            wait_s = link.throttled_until_s
            if link.down:
                wait_s = link.retry_s
            elif wait_s <= looked_s:
                wait_s = patient_until_s(link)
            if looked_s < wait_s < earliest_s:
                earliest_s = wait_s
        return None if earliest_s == math.inf else earliest_s

    def _pump_link(self, link: Link, now: float) -> None:
        """Send what may go over this connection."""
        if link.down:
            node = self._hub.metadata.nodes[link.node_id]
            if now >= link.retry_s:
                self._hub.out.commands.append(
                    self._hub.brokers.connect(link, node.host, node.port, now)
                )
            return
        if link not in self._lines or not link.ready or now < link.throttled_until_s:
            return
        if link.role is Role.SLOW and not self._hub.lanes.all_well(link.node_id):
            if not link.pending:
                self._send_in_turn(link, self._due(link), now)
            return
        in_flight_max = self._in_flight_max(link)
        patient = now < patient_until_s(link) and len(link.pending) < in_flight_max
        if patient and self._sealing(link, self._due(link), now):
            return  # what misses this request would wait for longer
        while (left := self._in_flight_max(link) - len(link.pending)) > 0:
            groups = self._late_apart(link, self._sharing(link, self._due(link)), left)
            if not any(self._send_one(link, group, now) for group in groups):
                break

    def _late_apart(self, link: Link, due: Sequence[Due], left: int) -> Sequence[Sequence[Due]]:
        """Who may share the next request, and who otherwise: those whose last answer was late go
        behind the others, on a new connection once what is to be sent again of these was answered
        and the rest may go; but the last place in flight is for whoever has waited longest.
        """
        others, late = self._hub.lanes.lateness.apart(due)
        if not late:
            return [due]
        if link.pending and link.answered_s == link.ready_s:
            return [others]
        longest = left == 1 and due[0][0] is late[0][0]  # not the pairs: compiled ones are copies
        return [late, others] if longest else [others, late]

    def _due(self, link: Link) -> Sequence[Due]:
        """Who waits for this connection, and for how long in this order. While offsets join a
        transaction at that broker, those whose partition is in it.
        """
        line, transactions = self._lines.get(link), self._hub.transactions
        if line is None:
            return ()
        if transactions is not None and transactions.errands.joins_at(link.node_id):
            return [entry for entry in line.values() if entry[0].proven is not None]
        return tuple(line.values())

    def _in_flight_max(self, link: Link) -> int:
        """How many requests may be under way. A broker serves one at a time, so that behind acks
        that are late the others only stand in line: in all they may be late by an ack wait.
        """
        settings, lateness = self._hub.settings, self._hub.lanes.lateness
        if not lateness or self._hub.lanes.shared(link):
            return settings.max_in_flight
        expected_s = (lateness.expected_s(pending) for pending in link.pending)
        late_s = max(expected_s, default=0.0) - link.quickest_s
        ack_wait_s = self._hub.lanes.ack_wait_s(link.node_id)
        if late_s * settings.max_in_flight <= ack_wait_s:
            return settings.max_in_flight
        return max(1, int(ack_wait_s / late_s))

    def _send_in_turn(self, link: Link, due: Sequence[Due], now: float) -> None:
        """A request of the first group that has one. Bytes that are being compressed are waited
        for: that takes milliseconds, what would go ahead of them may take an ack wait.
        """
        groups = self._hub.lanes.in_turn(link, due)
        sealing = [self._sealing(link, group, now) for group in groups]  # of all at once
        for group, is_sealing in zip(groups, sealing, strict=True):
            if is_sealing:
                return
            if self._send_one(link, group, now):
                return

    def _sealing(self, link: Link, due: Sequence[Due], now: float) -> bool:
        """Have the bytes of all that may go made; whether some are still being compressed."""
        assert link.connection is not None
        if not self._hub.settings.compression:
            return False
        sealing = False
        for place, leader_epoch in due:
            batch = place.next_batch(link.connection, leader_epoch, now)
            if batch is not None and batch.data is None:
                sealing |= not self._sealed(place, batch)
        return sealing

    def _sharing(self, link: Link, due: Sequence[Due]) -> Sequence[Due]:
        """Who may go next over an open lane. Where the slow one cannot be had, its partitions go
        here, too: in one request at a time, or the others would wait for each of several.
        """
        lanes = self._hub.lanes
        if not lanes.shared(link):
            return due
        under_way = (place for pending in link.pending for place, _ in pending.batches)
        if not any(lanes.of(place.tp)[0] is Role.SLOW for place in under_way):
            return due
        return [entry for entry in due if lanes.of(entry[0].tp)[0] is Role.OPEN]

    def _send_one(self, link: Link, due: Sequence[Due], now: float) -> bool:
        """One request with a batch of every partition that may send, until one does not fit."""
        connection = link.connection
        assert connection is not None
        chosen: list[tuple[Partition, Batch]] = []
        room = link.room_bytes(self._hub.settings.max_request_bytes, now)
        for place, leader_epoch in due:
            batch = place.next_batch(connection, leader_epoch, now)
            if batch is None:  # until it is answered
                self._leave_line(place.tp)
                continue
            if batch.data is None and not self._sealed(place, batch):
                continue
            if chosen and batch.size_bytes > room:
                break
            room -= batch.size_bytes
            topic_id = self._hub.metadata.topic_id(place.tp[0])
            place.send(batch, Attempt(connection, leader_epoch, topic_id, now))
            chosen.append((place, batch))
            self._sent(place, now)
        if not chosen:
            return False
        self._send_batches(link, connection, chosen, now)
        return True

    def _sent(self, place: Partition, now: float) -> None:
        """Its next batch, should it be due, goes behind those that wait."""
        due_s = place.due_s()
        if due_s is not None and due_s <= now:
            self._lines[self._place_of[place.tp]].move_to_end(place.tp)
        else:
            self._leave_line(place.tp)
            if due_s is not None:
                self._hub.agenda.look_at(place, due_s)
        if self._hub.recorder.open(place.tp):
            self._hub.out.facts += self._hub.recorder.sent(place.tp, now)

    def _sealed(self, place: Partition, batch: Batch) -> bool:
        """Make the batch's bytes, or have them made where compression takes its time."""
        if not batch.closed:
            batch.closed = True
            self._hub.sticky.batch_left(*place.tp)
        if self._hub.settings.compression:
            self._hub.compress(batch)
            return False
        batch.seal(batch.compressed(0))
        return True

    def _send_batches(
        self,
        link: Link,
        connection: Connection,
        chosen: list[tuple[Partition, Batch]],
        now: float,
    ) -> None:
        settings = self._hub.settings
        if self._hub.lanes.enabled:
            broker_timeout_s = self._hub.lanes.ack_wait_s(link.node_id)
        else:
            broker_timeout_s = settings.request_timeout_s * BROKER_SHARE
        request = build_request(
            [batch for _, batch in chosen],
            acks=settings.acks,
            timeout_ms=max(1, int(broker_timeout_s * 1000)),
            transactional_id=settings.transactional_id,
            adds_partitions=self._hub.transactions is None or self._hub.transactions.second,
        )
        token = self._hub.brokers.next_token()
        link.used_s = now
        if settings.acks != 0:
            deadline_s = now + settings.request_timeout_s
            link.pending.append(
                Pending(token, Question.PRODUCE, now, deadline_s, chosen, broker_timeout_s)
            )
        self._hub.out.commands.append(Send(connection, token, request, settings.acks != 0))
        if settings.acks == 0:  # handed over is all that will ever be known
            for place, batch in chosen:
                self._hub.settle(place, place.accept(batch, -1, -1, now), now)


def patient_until_s(link: Link) -> float:
    """Until when a request waits for bytes that are being compressed."""
    return link.answered_s + SEALING_MAX_S if link.served_s > SEALING_MAX_S else 0.0


def _is_slow(link: Link) -> bool:
    return link.role is Role.SLOW
