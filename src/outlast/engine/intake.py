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
from typing import Final, final

from kafka.errors import MessageSizeTooLargeError

from outlast.engine.batch import Batch
from outlast.engine.hub import Hub
from outlast.engine.messages import Granted
from outlast.engine.partition import Partition
from outlast.engine.partitioner import keyed_partition
from outlast.engine.record_batch import RECORD_BYTES_MAX, Headers, headers_bytes_max
from outlast.engine.run import Run

RECORD_OVERHEAD_BYTES: Final = 120  # of a record's future and slot
BATCH_OVERHEAD_BYTES: Final = 700  # of a batch's own objects and header
TOPIC_FORBIDDEN: Final = frozenset({17, 29})  # invalid name, not authorized: waiting does not help


@final
@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing was taken: wait for `Granted(ticket)`, then ask again with the ticket."""

    ticket: int
    reason: str  # 'metadata', 'memory', or 'share': room, but not for a partition that is held up
    error: int = 0  # the topic's last metadata error
    final: bool = False  # waiting does not help: fail the record with `error`


@dataclass(frozen=True, slots=True)
class Taken:
    """Records that are in a batch: so many, from this index among its records on."""

    batch: Batch
    first: int
    count: int


class _RefusedError(Exception):
    """The record will not be had, and nothing was begun."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = [error]

    def taken_out(self) -> Exception:
        """Why; it is not kept here, for this will be its context."""
        return self._error.pop()


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
            hub = self._hub
            partitions = hub.metadata.partitions(topic)
            if partitions is None:
                return self._wait_for_topic(topic, now, ticket)
            size_bytes = RECORD_BYTES_MAX  # this is `record_bytes_max`, without its calls
            size_bytes += 0 if key is None else len(key)
            size_bytes += 0 if value is None else len(value)
            size_bytes += headers_bytes_max(headers) if headers else 0
            anywhere = partition is None and key is None
            if partition is None:
                if key is None:
                    free = hub.shares.free(topic, partitions) if hub.shares.anybody else partitions
                    partition = hub.sticky.choose(topic, free, size_bytes)
                else:
                    partition = keyed_partition(key, partitions)
            tp = (topic, partition)
            charge_bytes = size_bytes + RECORD_OVERHEAD_BYTES
            place = hub.partitions.get(tp)
            joins = None if place is None else place.queue.joined(size_bytes, now)
            if place is None or joins is None:
                if partition not in partitions:  # also if the topic was created again without it
                    return self._wait_for_partition(topic, partition, partitions, now, ticket)
                place = place or hub.new_partition(tp, now)
                charge_bytes += BATCH_OVERHEAD_BYTES
            if not hub.accumulator.charge(tp, charge_bytes, ticket):
                # what it joins now may be sealed by then: ask for room for another
                charge_bytes += BATCH_OVERHEAD_BYTES if joins is not None else 0
                return self._wait_for_room(tp, charge_bytes, ticket, anywhere=anywhere)
            if ticket:
                self._keyless.discard(ticket)
                hub.grant(hub.accumulator.grant())  # it may have taken less than was kept
            batch = place.queue.begin(now) if joins is None else joins
            batch_bytes = batch.append(timestamp_ms, key, value, headers)
            batch.charge_bytes += charge_bytes
            if joins is None:
                self.attention = True
                hub.batch_begun(place, batch, now)
            if batch_bytes >= place.queue.batch_bytes:
                self._batch_is_full(place, batch)
            return batch
        except _RefusedError as refused:
            self.forget(ticket)
            raise refused.taken_out() from None
        except BaseException:
            # Also a signal handler's, which may come anywhere: between the charge and the record.
            self._hub.recount()
            self.forget(ticket)  # nobody will ask with it again
            self.attention = True
            raise

    def append_run(self, run: Run, begin: int, now: float, ticket: int = 0) -> Taken | Waiting:
        """Take the record at `begin` as `append` does, and with it those that follow, in one pass:
        as many as join the same batch and nobody need be asked about.

        Raises: as `append`.
        """
        key, value = run.key(begin), run.values[begin]
        batch = self.append(
            run.topic, run.partition, key, value, run.headers, run.timestamp_ms, now, ticket
        )
        if isinstance(batch, Waiting):
            return batch
        first = batch.count - 1
        if not batch.closed and (run.partition is not None or run.keys is None):
            try:
                self._extend(batch, run, begin + 1)
            except BaseException:  # a signal handler's
                self._hub.recount()
                self.attention = True
                raise
        return Taken(batch, first, batch.count - first)

    def _extend(self, batch: Batch, run: Run, begin: int) -> None:
        """Let the batch that took the last record have more of the run."""
        hub, tp = self._hub, batch.tp
        queue, sticks = hub.partitions[tp].queue, run.partition is None
        assert batch.builder is not None
        room_bytes = queue.batch_bytes - batch.builder.size_bytes
        if sticks:
            room_bytes = min(room_bytes, hub.sticky.turn_left_bytes(run.topic))
        ample_bytes = hub.accumulator.ample_bytes()
        end = run.fitting(begin, room_bytes, ample_bytes, RECORD_OVERHEAD_BYTES)
        size_bytes = run.bytes_max(begin, end)
        charge_bytes = size_bytes + (end - begin) * RECORD_OVERHEAD_BYTES
        if end == begin or not hub.accumulator.charge(tp, charge_bytes):
            return
        batch.charge_bytes += charge_bytes
        batch.extend(run, begin, end)  # it is not full then: bounds are above what is written
        if sticks:
            hub.sticky.gave(run.topic, size_bytes)

    def _batch_is_full(self, place: Partition, batch: Batch) -> None:
        batch.closed = True
        self._hub.agenda.changed(place)
        self.attention = True
        if self._hub.settings.compression:
            self._hub.compress(batch)
        self._hub.sticky.batch_left(*batch.tp)

    def _wait_for_room(
        self, tp: tuple[str, int], charge_bytes: int, ticket: int, *, anywhere: bool
    ) -> Waiting:
        if charge_bytes > self._hub.accumulator.limit_bytes:
            raise _RefusedError(
                MessageSizeTooLargeError(
                    f"The record takes {charge_bytes} bytes of the send buffer, more than all of "
                    f"it: buffer_memory is {self._hub.accumulator.limit_bytes}; make it larger"
                )
            )
        ticket = ticket or self._ticket()
        self._hub.accumulator.wait(tp, ticket, charge_bytes)
        self._hub.grant(self._hub.accumulator.grant())  # what was kept for it, if it was too little
        if anywhere:
            self._keyless.add(ticket)
        for place in self._hub.busy.values():
            place.queue.hurry()  # room comes only from what is sent
        self._hub.agenda.look_at_all(self._hub.busy)
        self.attention = True
        return Waiting(ticket, "share" if self._hub.shares.bounded(tp) else "memory")

    def _wait_for_topic(self, topic: str, now: float, ticket: int) -> Waiting:
        granted = ticket != 0  # so the error is an answer to this caller's own question
        ticket = ticket or self._ticket()
        error = self._hub.metadata.topic_error(topic)
        if error in TOPIC_FORBIDDEN and granted:
            self.forget(ticket)
            return Waiting(ticket, "metadata", error, final=True)
        if self._hub.metadata.interest(topic, now):
            self._hub.seen_again(topic, now)
        self._waiters.setdefault(topic, {}).setdefault(ticket, now)
        self._hub.inquiries.clock.want(now)
        self.attention = True
        return Waiting(ticket, "metadata", error)

    def _wait_for_partition(
        self, topic: str, partition: int, partitions: Collection[int], now: float, ticket: int
    ) -> Waiting:
        """An unknown partition may be a new one: one fresh look before it is refused."""
        if ticket:
            raise _RefusedError(
                ValueError(
                    f"Unrecognized partition: {partition} of topic {topic!r}, "
                    f"which has {len(partitions)}: 0 to {len(partitions) - 1}"
                )
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
        if not self._waiters:
            return None
        return max(min(tickets.values()) for tickets in self._waiters.values())

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
