"""Load on a topic, and the account of it: what was acknowledged against what the log holds.

The producer under test can be any class with kafka-python's interface. Every record is its own
counter, so that reading the log back with somebody else's consumer tells what is lost, what is
there twice and what changed places.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaConsumer, TopicPartition

LATE_S = 0.2  # a fifth of the ack wait: an ack that takes longer is not usual


@dataclass(frozen=True, slots=True)
class Ack:
    """A record's success, as the producer told it."""

    offset: int
    at_s: float  # monotonic


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in the log, as a consumer read it."""

    offset: int
    leader_epoch: int  # of the leader that appended it
    counter: int


@dataclass(frozen=True, slots=True)
class AckGap:
    """A time without an ack (monotonic)."""

    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(slots=True)
class Ledger:
    """What the application was told about each record (partition, counter)."""

    sent: dict[int, list[float]] = field(default_factory=dict)  # partition → when, by counter
    acks: dict[int, dict[int, Ack]] = field(default_factory=dict)
    failures: dict[int, dict[int, BaseException]] = field(default_factory=dict)
    settled_twice: list[tuple[int, int]] = field(default_factory=list)

    def acked(self, partition: int, counter: int, offset: int) -> None:
        self._settle(partition, counter)
        self.acks.setdefault(partition, {})[counter] = Ack(offset, time.monotonic())

    def failed(self, partition: int, counter: int, error: BaseException) -> None:
        self._settle(partition, counter)
        self.failures.setdefault(partition, {})[counter] = error

    def _settle(self, partition: int, counter: int) -> None:
        if counter in self.acks.get(partition, ()) or counter in self.failures.get(partition, ()):
            self.settled_twice.append((partition, counter))

    def last_ack_s(self, partition: int) -> float:
        """When the partition's newest ack came; -1 before the first."""
        acks = self.acks.get(partition)
        return next(reversed(acks.values())).at_s if acks else -1.0

    def oldest_acked_since(self, partition: int, at_s: float) -> float:
        """When the oldest of the records was sent that were acknowledged at `at_s` or later."""
        sent = self.sent[partition]
        return min(sent[c] for c, ack in self.acks[partition].items() if ack.at_s >= at_s)

    def longest_ack_gap(self, partition: int, since_s: float, until_s: float) -> AckGap:
        """The longest time without an ack, of those that ended between the two moments; the last
        ends at `until_s`, where nobody looked any more.
        """
        acks = self.acks.get(partition, {}).values()
        times = [*sorted(ack.at_s for ack in acks if ack.at_s < until_s), until_s]
        gaps = [AckGap(a, b) for a, b in itertools.pairwise(times) if b > since_s]
        return max(gaps, key=lambda gap: gap.duration_s, default=AckGap(since_s, until_s))

    def longest_wait(self, partition: int, since_s: float) -> AckGap:
        """The longest time from a record's sending to its ack, of those that came since then."""
        sent_s, acks = self.sent[partition], self.acks[partition]
        waits = [AckGap(sent_s[c], ack.at_s) for c, ack in acks.items() if ack.at_s > since_s]
        return max(waits, key=lambda wait: wait.duration_s)

    @property
    def unsettled(self) -> int:
        told = [*self.acks.values(), *self.failures.values()]
        return sum(map(len, self.sent.values())) - sum(map(len, told))


class Load:
    """A thread that sends `rate` records a second to each of the partitions 0 … n-1, those that
    are due every `tick_s`.
    """

    def __init__(
        self, producer: Any, topic: str, partitions: int, rate: float, *, tick_s: float = 0.002
    ) -> None:
        self.ledger = Ledger()
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._tick_s = tick_s
        self._stopping = threading.Event()
        self._begin_s = time.monotonic()
        self._late_s = -1.0  # when an ack last came late
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Load:
        self._begin_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=90)
        assert not self._thread.is_alive(), "send() still blocks"

    def stop(self, flush_s: float = 60.0) -> Ledger:
        """Send no more, flush, and give the ledger. Raises what `send()` raised."""
        self.__exit__()
        if self._error is not None:
            raise self._error
        self._producer.flush(timeout=flush_s)
        return self.ledger

    def flowing_since(self, at_s: float, partitions: Collection[int] | None = None) -> bool:
        """Whether every partition, or each of those named, has an ack that came after `at_s`."""
        asked = range(self._partitions) if partitions is None else partitions
        return all(self.ledger.last_ack_s(p) > at_s for p in asked)

    def steady_for(self, time_s: float) -> bool:
        """Whether records have flowed for that long and none of their acks came late: the cluster
        is warm, the machine not too busy.
        """
        since_s = time.monotonic() - time_s
        return max(self._begin_s, self._late_s) < since_s and self.flowing_since(since_s)

    def _run(self) -> None:
        counter = 0
        try:
            while not self._stopping.wait(self._tick_s):
                due = int((time.monotonic() - self._begin_s) * self._rate)
                for counter in range(counter, due):  # noqa: B020 - goes on where it stopped
                    for partition in range(self._partitions):
                        self._send(partition, counter)
                counter = max(counter, due)
        except BaseException as error:
            self._error = error

    def _send(self, partition: int, counter: int) -> None:
        value = b"%d" % counter
        now = time.monotonic()
        future = self._producer.send(self._topic, value=value, partition=partition)
        self.ledger.sent.setdefault(partition, []).append(now)
        future.add_callback(lambda told: self._acked(partition, counter, told.offset, now))
        future.add_errback(lambda error: self.ledger.failed(partition, counter, error))

    def _acked(self, partition: int, counter: int, offset: int, sent_s: float) -> None:
        self.ledger.acked(partition, counter, offset)
        now = time.monotonic()
        if now - sent_s > LATE_S:
            self._late_s = now


Log = Mapping[int, Sequence[Entry]]


def read_back(bootstrap: Sequence[str], topic: str, timeout_s: float = 60.0) -> Log:
    """Everything the topic holds, by partition in log order, read by kafka-python's consumer."""
    consumer = KafkaConsumer(bootstrap_servers=list(bootstrap), auto_offset_reset="earliest")
    try:
        assigned = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        log: dict[int, list[Entry]] = {tp.partition: [] for tp in assigned}
        deadline = time.monotonic() + timeout_s
        while any(consumer.position(tp) < ends[tp] for tp in assigned):
            assert time.monotonic() < deadline, f"read only {log.keys()} of {ends}"
            for tp, records in consumer.poll(timeout_ms=200).items():
                log[tp.partition] += [
                    Entry(r.offset, r.leader_epoch, int(r.value)) for r in records
                ]
        return log
    finally:
        consumer.close()


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the records: each list holds (partition, counter)."""

    lost: list[tuple[int, int]] = field(default_factory=list)  # acknowledged, not in the log
    duplicated: list[tuple[int, int]] = field(default_factory=list)  # in the log more than once
    out_of_order: list[tuple[int, int]] = field(default_factory=list)  # behind a younger record
    misplaced: list[tuple[int, int]] = field(default_factory=list)  # not at the offset acked
    failed: list[tuple[int, int]] = field(default_factory=list)
    unsettled: int = 0
    settled_twice: list[tuple[int, int]] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"lost {len(self.lost)} · duplicated {len(self.duplicated)} · "
            f"out of order {len(self.out_of_order)} · misplaced {len(self.misplaced)} · "
            f"failed {len(self.failed)} · unsettled {self.unsettled} · "
            f"settled twice {len(self.settled_twice)}"
        )


CLEAN = str(Account())


def account(ledger: Ledger, log: Log) -> Account:
    """Compare what the application was told with what the log holds."""
    lost, duplicated, out_of_order, misplaced = [], [], [], []
    for partition in ledger.sent:
        entries = log.get(partition, ())
        copies = Counter(entry.counter for entry in entries)
        at_offset = {entry.offset: entry.counter for entry in entries}
        acks = ledger.acks.get(partition, {})
        lost += [(partition, counter) for counter in acks if counter not in copies]
        duplicated += [(partition, counter) for counter, n in copies.items() if n > 1]
        misplaced += [(partition, c) for c, ack in acks.items() if at_offset.get(ack.offset) != c]
        newest = -1
        for entry in entries:
            if entry.counter < newest:
                out_of_order.append((partition, entry.counter))
            newest = max(newest, entry.counter)
    return Account(
        lost,
        duplicated,
        out_of_order,
        misplaced,
        failed=[(p, counter) for p, failures in ledger.failures.items() for counter in failures],
        unsettled=ledger.unsettled,
        settled_twice=ledger.settled_twice,
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """A partition's passage from one leader to the next, told by the log and the acks alone."""

    last_ack_s: float  # of a record that the old leader appended
    first_ack_s: float  # of a record that the new leader appended


def turn(ledger: Ledger, log: Log, partition: int, *, new_epoch: int) -> Turn:
    """The passage of `partition` to `new_epoch`: the log says which leader appended a record."""
    acks = ledger.acks[partition]
    epochs = {entry.counter: entry.leader_epoch for entry in log[partition]}
    old = [acks[c].at_s for c, epoch in epochs.items() if epoch < new_epoch and c in acks]
    new = [acks[c].at_s for c, epoch in epochs.items() if epoch >= new_epoch and c in acks]
    return Turn(max(old), min(new))
