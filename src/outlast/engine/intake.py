"""Records in: which partition, is there room, and who waits for what.

Rules:
* Nothing is taken in part: `append` either puts the record into a batch or leaves no trace but a
  waiter, which `cancel_wait` removes.
* A waiter has a ticket, keeps it while it asks again, and is told by `Granted(ticket)`.
* An unknown partition may be a new one: one fresh look at metadata comes before the error.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kafka.errors import MessageSizeTooLargeError

from outlast.engine.batch import Batch
from outlast.engine.hub import Hub
from outlast.engine.messages import Granted
from outlast.engine.partitioner import keyed_partition
from outlast.engine.record_batch import Headers, record_bytes_max

RECORD_OVERHEAD_BYTES = 120  # of a record's future and slot
BATCH_OVERHEAD_BYTES = 700  # of a batch's own objects and header
TOPIC_FORBIDDEN = frozenset({17, 29})  # invalid name, not authorized: waiting does not help


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing was taken: wait for `Granted(ticket)`, then ask again with the ticket."""

    ticket: int
    reason: str  # 'metadata', 'memory', or 'share': room, but not for a partition that is held up
    error: int = 0  # the topic's last metadata error
    final: bool = False  # waiting does not help: fail the record with `error`


class Intake:
    """The way of records into batches."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiters: dict[str, dict[int, float]] = {}  # topic → tickets, since when
        self._next_ticket = 1
        self._keyless: set[int] = set()  # of tickets that wait for room, those that may go anywhere
        self.attention = False  # something new can be sent or must be asked

    def __repr__(self) -> str:
        waiting = {topic: len(tickets) for topic, tickets in self._waiters.items()}
        return f"<Intake waiting for metadata: {waiting}>"

    def append(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        now: float,
        ticket: int = 0,
    ) -> Batch | Waiting:
        """Take one record; it is the last one of the batch that is returned.

        Raises:
            ValueError: the topic has no such partition.
            MessageSizeTooLargeError: the record alone is larger than the whole buffer.
        """
        try:
            got = self._append(topic, partition, key, value, headers, timestamp_ms, now, ticket)
        except BaseException:
            # Also a signal handler's, which may come anywhere: between the charge and the record.
            self._hub.recount()
            self.forget(ticket)  # nobody will ask with it again
            self.attention = True
            raise
        if type(got) is Batch:
            return got
        if isinstance(got, Exception):
            self.forget(ticket)
            raise got
        if isinstance(got, Waiting) and got.final:
            self.forget(ticket)
        return got

    def _append(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        now: float,
        ticket: int,
    ) -> Batch | Waiting | Exception:
        """As `append`; but what it refuses comes back and is not raised: then nothing was begun."""
        partitions = self._hub.metadata.partitions(topic)
        if partitions is None:
            return self._wait_for_topic(topic, now, ticket)
        size_bytes = record_bytes_max(key, value, headers)
        anywhere = partition is None and key is None
        if partition is None:
            if key is None:
                free = self._hub.shares.free(topic, partitions)
                partition = self._hub.sticky.choose(topic, free, size_bytes)
            else:
                partition = keyed_partition(key, partitions)
        tp = (topic, partition)
        place = self._hub.partitions.get(tp)
        if place is None:
            if partition not in partitions:
                return self._wait_for_partition(topic, partition, partitions, now, ticket)
            place = self._hub.new_partition(tp, now)
        charge_bytes = size_bytes + RECORD_OVERHEAD_BYTES
        joins = place.queue.takes(size_bytes, now)
        if not joins:
            if partition not in partitions:  # the topic was created again without it
                return self._wait_for_partition(topic, partition, partitions, now, ticket)
            charge_bytes += BATCH_OVERHEAD_BYTES
        if not self._hub.accumulator.charge(tp, charge_bytes, ticket):
            # what it joins now may be sealed by then: ask for room for a batch of its own
            charge_bytes += BATCH_OVERHEAD_BYTES * joins
            return self._wait_for_room(tp, charge_bytes, ticket, anywhere=anywhere)
        if ticket:
            self._keyless.discard(ticket)
            self._hub.grant(self._hub.accumulator.grant())  # it may have taken less than was kept
        batch = place.queue.append(timestamp_ms, key, value, headers, joins=joins, now=now)
        batch.charge_bytes += charge_bytes
        if batch.count == 1:
            self._hub.busy[tp] = place
            self.attention = True
            self._hub.metadata.interest(topic, now)
            self._hub.meet_gap(batch)
        if batch.closed:
            self.attention = True
            if self._hub.settings.compression:
                self._hub.compress(batch)
            self._hub.sticky.batch_left(topic, partition)
        return batch

    def _wait_for_room(
        self, tp: tuple[str, int], charge_bytes: int, ticket: int, *, anywhere: bool
    ) -> Waiting | Exception:
        if charge_bytes > self._hub.accumulator.limit_bytes:
            too_large: Exception = MessageSizeTooLargeError(
                f"The record takes {charge_bytes} bytes of the send buffer, more than all of it: "
                f"buffer_memory is {self._hub.accumulator.limit_bytes}; make it larger"
            )
            return too_large
        ticket = ticket or self._ticket()
        self._hub.accumulator.wait(tp, ticket, charge_bytes)
        self._hub.grant(self._hub.accumulator.grant())  # what was kept for it, if it was too little
        if anywhere:
            self._keyless.add(ticket)
        for place in self._hub.busy.values():
            place.queue.hurry()  # room comes only from what is sent
        self.attention = True
        return Waiting(ticket, "share" if self._hub.shares.bounded(tp) else "memory")

    def _wait_for_topic(self, topic: str, now: float, ticket: int) -> Waiting:
        granted = ticket != 0  # so the error is an answer to this caller's own question
        ticket = ticket or self._ticket()
        error = self._hub.metadata.topic_error(topic)
        if error in TOPIC_FORBIDDEN and granted:
            return Waiting(ticket, "metadata", error, final=True)
        if self._hub.metadata.interest(topic, now):
            self._hub.seen_again(topic, now)
        self._waiters.setdefault(topic, {}).setdefault(ticket, now)
        self._hub.inquiries.clock.want(now)
        self.attention = True
        return Waiting(ticket, "metadata", error)

    def _wait_for_partition(
        self, topic: str, partition: int, partitions: Collection[int], now: float, ticket: int
    ) -> Waiting | Exception:
        """An unknown partition may be a new one: one fresh look before it is refused."""
        if ticket:
            return ValueError(
                f"Unrecognized partition: {partition} of topic {topic!r}, "
                f"which has {len(partitions)}: 0 to {len(partitions) - 1}"
            )
        ticket = self._ticket()
        self._waiters.setdefault(topic, {})[ticket] = now
        self._hub.inquiries.clock.want(now)
        self.attention = True
        return Waiting(ticket, "metadata")

    def choose_again(self) -> None:
        """Other partitions are held up than before: who waits for room without a key, for one of
        them, waits for one that is not.
        """
        for ticket in self._keyless:
            tp = self._hub.accumulator.wanted(ticket)
            if tp is None or not self._hub.shares.bounded(tp):
                continue
            topic, partition = tp
            free = self._hub.shares.free(topic, self._hub.metadata.partitions(topic) or ())
            if free and partition not in free:
                self._hub.accumulator.move(ticket, (topic, free[0]))

    def _ticket(self) -> int:
        self._next_ticket += 1
        return self._next_ticket

    def cancel_wait(self, ticket: int, now: float) -> None:
        """The caller gave up waiting: `send()` raises. If its partition has a gap, that is why."""
        tp = self._hub.accumulator.wanted(ticket)
        if tp is not None:
            self._hub.tell(self._hub.recorder.send_refused(tp, now))
        self.forget(ticket)

    def keep_waiting(self, tickets: Collection[int]) -> None:
        """Nobody waits with any other ticket: its thread was cut off before it knew of it."""
        waiting = {ticket for of_topic in self._waiters.values() for ticket in of_topic}
        for ticket in (waiting | self._hub.accumulator.tickets()).difference(tickets):
            self.forget(ticket)

    def forget(self, ticket: int) -> None:
        """Its place in the queue and the room that was kept for it go to others."""
        self._keyless.discard(ticket)
        self._hub.grant(self._hub.accumulator.cancel(ticket))
        for topic, tickets in list(self._waiters.items()):
            tickets.pop(ticket, None)
            if not tickets:
                del self._waiters[topic]

    def partitions_for(self, topic: str, now: float, ticket: int = 0) -> frozenset[int] | Waiting:
        """The partitions of a topic."""
        partitions = self._hub.metadata.partitions(topic)
        if partitions is None:
            return self._wait_for_topic(topic, now, ticket)
        return frozenset(partitions)

    def waiting_since_s(self) -> float | None:
        """Since when the last topic to be asked for has been waited for."""
        return max((min(t.values()) for t in self._waiters.values()), default=None)

    def metadata_waiters(self) -> int:
        """How many threads wait to learn a topic's partitions."""
        return sum(map(len, self._waiters.values())) if self._waiters else 0

    def wanted_topics(self) -> set[str]:
        """The topics that somebody waits for."""
        return set(self._waiters)

    def informed(self, found: Collection[str], asked_s: float) -> None:
        """Metadata came, asked for at `asked_s`: wake those whom it answers."""
        for topic, tickets in list(self._waiters.items()):
            known = self._hub.metadata.known(topic)
            forbidden = self._hub.metadata.topic_error(topic) in TOPIC_FORBIDDEN
            for ticket, since_s in list(tickets.items()):
                if topic in found or ((known or forbidden) and asked_s >= since_s):
                    del tickets[ticket]
                    self._hub.out.completions.append(Granted(ticket))
            if not tickets:
                del self._waiters[topic]
