"""The delivery ledger: what was sent, what was said about it, and whether the logs bear it out.

    ledger = DeliveryLedger()
    producer = ledger.watch(KafkaProducer(bootstrap_servers=...))
    ...                                   # the application sends, the cluster suffers
    producer.flush()
    verdict = ledger.verdict(cluster)     # or a consumer, or "host:port", of a real cluster
    assert verdict, verdict

Theory. A record is known again by a header that the ledger adds, so values may be anything and
topics may hold other records. *Reordered* is judged without a guess: of two records that one
producer was given for a partition the first must lie before the second if its send had returned
before the other was called; of sends that overlap, in two threads, or of two producers nothing is
demanded. Only acknowledged records have their place.

The records of one `send_many` share a header, as the call has one for all: which is which is told
by their keys and values, and where these are alike or were serialized, by where each was told to
be (`testing.alike`). They have the order in which they were given.

(`testing.ledger` is the simulator's: it knows the engine's every step, and generates the values.)

Rules: no client library is imported but the one that is watched, or read with. Sends are not
serialised: the ledger holds no lock while a producer is called.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from outlast.testing.alike import told_apart
from outlast.testing.reading import Found, Reader, Source, reader_for
from outlast.testing.watching import Told, watched

HEADER = "outlast-ledger"
GRACE_S = 2.0  # with acks=1 a record is told before followers have it, and readable after that
LOOK_S = 0.05
SHOWN = 10  # records of each kind in a verdict's text
NOT_WRITTEN = ("never sent", "not accepted")  # outcomes of an outlast.DeliveryError that say so


@dataclass(slots=True, eq=False)
class SentRecord:
    """One record: what went in, and what was said about it.

    `state`: 'open', 'acked', 'failed' (its future told so) or 'refused' (the send itself raised).
    `offset` and `partition` are those that were told; `partition` before that is the one asked for.
    """

    number: int
    topic: str
    key: object
    value: object
    partition: int | None
    producer: int = 0  # which of those that the ledger watches, counted from 1
    state: str = "open"
    offset: int | None = None
    error: BaseException | None = None
    called: int = 0  # ticks of the ledger: when the send was called …
    returned: int | None = None  # … and when it returned
    call: int = -1  # the number of the first record of that call
    as_given: bool = True  # key and value are the bytes that are written

    def __str__(self) -> str:
        where = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        at = "" if self.offset is None else f" at offset {self.offset}"
        why = "" if self.error is None else f": {type(self.error).__name__}: {self.error}"
        return f"record {self.number} ({where}, key {self.key!r}, {self.state}{at}{why})"


@dataclass(frozen=True, slots=True)
class DeliveryVerdict:
    """What the logs say of what was told. True if every promise was kept.

    Attributes:
        sent, acked, failed: how many records; `failed` counts refused sends, too.
        lost: acknowledged, and in no log.
        duplicated: more than once in the logs.
        reordered: acknowledged, and behind a record of the same producer whose send began after
            theirs had returned, or which the same `send_many` was given after them.
        misplaced: acknowledged, and in the log, but not at the partition and offset that was told.
        contradicted: told not to be written (a send that raised, or an `outlast.DeliveryError` of
            outcome *never sent* or *not accepted*), and yet in a log.
        unsettled: nothing was said of them in time.
    """

    sent: int
    acked: int
    failed: int
    lost: tuple[SentRecord, ...]
    duplicated: tuple[SentRecord, ...]
    reordered: tuple[SentRecord, ...]
    misplaced: tuple[SentRecord, ...]
    contradicted: tuple[SentRecord, ...]
    unsettled: tuple[SentRecord, ...]

    def _findings(self) -> dict[str, tuple[SentRecord, ...]]:
        return {
            "lost": self.lost,
            "duplicated": self.duplicated,
            "reordered": self.reordered,
            "misplaced": self.misplaced,
            "contradicted": self.contradicted,
            "unsettled": self.unsettled,
        }

    def __bool__(self) -> bool:
        return not any(self._findings().values())

    def __str__(self) -> str:
        findings = self._findings()
        always = ("lost", "duplicated", "reordered")
        counts = [f"{name} {len(r)}" for name, r in findings.items() if r or name in always]
        lines = [f"sent {self.sent} · acked {self.acked} · failed {self.failed}; "]
        lines[0] += " · ".join(counts)
        for name, records in findings.items():
            lines += [f"  {name}: {record}" for record in records[:SHOWN]]
            if len(records) > SHOWN:
                lines.append(f"  {name}: {len(records) - SHOWN} more")
        return "\n".join(lines)


class DeliveryLedger:
    """Follows every record of the producers it watches, and judges them against the logs.

    Records of other producers, or of another ledger, may lie in the same topics: they are passed
    over. A ledger may watch several producers; it keeps everything it was told, so make one for
    each test.
    """

    def __init__(self) -> None:
        self.records: list[SentRecord] = []
        self._run = uuid4().hex[:16]
        self._ticks = itertools.count()
        self._changed = threading.Condition()
        self._open = 0
        self._producers = itertools.count(1)

    def __repr__(self) -> str:
        return f"<DeliveryLedger records={len(self.records)} open={self._open}>"

    # --- what happens ---------------------------------------------------------------------------

    def watch(self, producer: Any) -> Any:
        """A producer that does all that the given one does, and whose sends are followed.

        Args:
            producer: of outlast or kafka-python (`send`), of confluent-kafka (`produce`), or of
                aiokafka (`await send`). Not one that is watched already.

        Raises:
            TypeError: it is none of these.
        """
        return watched(producer, _Sending(self, next(self._producers)))

    def sending(
        self,
        topic: str,
        *,
        key: object = None,
        value: object = None,
        partition: int | None = None,
        producer: int = 0,
    ) -> tuple[SentRecord, tuple[str, bytes]]:
        """For producers that `watch` does not know: a record is about to be sent. Send it with the
        header that this returns, then call `taken` or `refused`, and `acked` or `failed` later.
        Give producers numbers of your own if there are several: each keeps its own order.
        """
        with self._changed:
            record = SentRecord(len(self.records), topic, key, value, partition, producer)
            record.called, record.call = next(self._ticks), record.number
            self.records.append(record)
            self._open += 1
        return record, (HEADER, f"{self._run}-{record.number}".encode())

    def _sending_many(
        self,
        producer: int,
        topic: str,
        keys: Sequence[object],
        values: Sequence[object],
        partition: int | None,
        as_given: bool,
    ) -> tuple[list[SentRecord], tuple[str, bytes]]:
        """The same for all records of one call."""
        with self._changed:
            first, called = len(self.records), next(self._ticks)
            records = [
                SentRecord(number, topic, key, value, partition, producer, called=called)
                for number, (key, value) in enumerate(zip(keys, values, strict=True), first)
            ]
            for record in records:
                record.call, record.as_given = first, as_given
            self.records += records
            self._open += len(records)
        return records, (HEADER, f"{self._run}-{first}+{len(records)}".encode())

    def taken(self, record: SentRecord) -> None:
        """The send returned."""
        record.returned = next(self._ticks)

    def refused(self, record: SentRecord, error: BaseException) -> None:
        """The send raised: the record was not taken."""
        self._settle(record, "refused", error=error)

    def acked(self, record: SentRecord, partition: int | None, offset: int | None) -> None:
        """The record was told to be delivered there. A negative offset: it was not told."""
        told = offset if offset is not None and offset >= 0 else None
        self._settle(record, "acked", partition=partition, offset=told)

    def failed(self, record: SentRecord, error: BaseException) -> None:
        """The record was told to have failed."""
        self._settle(record, "failed", error=error)

    def _settle(
        self,
        record: SentRecord,
        state: str,
        *,
        partition: int | None = None,
        offset: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        with self._changed:
            if record.state != "open":  # the first word counts
                return
            if partition is not None:
                record.partition = partition
            record.state, record.offset, record.error = state, offset, error
            self._open -= 1
            self._changed.notify_all()

    # --- what was said --------------------------------------------------------------------------

    def acknowledged(self) -> list[SentRecord]:
        """Records that were told to be delivered."""
        return [record for record in self.records if record.state == "acked"]

    def failures(self) -> list[SentRecord]:
        """Records that were told to have failed, and sends that raised."""
        return [record for record in self.records if record.state in ("failed", "refused")]

    def unsettled(self) -> list[SentRecord]:
        """Records of which nothing has been said yet."""
        return [record for record in self.records if record.state == "open"]

    def wait_settled(self, timeout_s: float) -> bool:
        """Wait until something was said of every record; False: not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout_s)

    # --- the judgement --------------------------------------------------------------------------

    def verdict(self, source: Source, *, timeout_s: float = 30.0) -> DeliveryVerdict:
        """Read every topic that was sent to, and compare.

        Args:
            source: where to read: an `outlast.testing.MockCluster`; a consumer of kafka-python or
                confluent-kafka, whose assignment this changes; bootstrap servers (read with
                kafka-python's consumer); or a function `read(topic)` that gives records with
                `partition`, `offset` and `headers`.
            timeout_s: for what is unsettled to settle, and then for the reading. What is missing
                is looked for again for up to 2 s of it: with acks=1 a record can be read only
                some time after it was acknowledged.

        Raises:
            TimeoutError: the ends of the topics were not reached in time.
            TypeError: the source is none of these.
        """
        reader: Reader = reader_for(source, timeout_s)
        self.wait_settled(timeout_s)
        records = list(self.records)
        topics = list(dict.fromkeys(record.topic for record in records))
        look_until_s = time.monotonic() + min(timeout_s, GRACE_S)
        while True:
            verdict = judge(records, self._copies(reader, topics, records))
            if not verdict.lost or time.monotonic() >= look_until_s:
                return verdict
            threading.Event().wait(LOOK_S)

    def _copies(
        self, reader: Reader, topics: Iterable[str], records: Sequence[SentRecord]
    ) -> dict[int, list[Found]]:
        """Where each record, by its number, was found."""
        copies: dict[int, list[Found]] = {}
        together: dict[tuple[int, int], list[Found]] = {}  # of calls: first record, how many
        mark = f"{self._run}-".encode()
        for found in itertools.chain.from_iterable(map(reader, topics)):
            token = dict(found.headers).get(HEADER) or b""
            if token.startswith(mark):
                first, _, count = token[len(mark) :].partition(b"+")
                if count:
                    together.setdefault((int(first), int(count)), []).append(found)
                else:
                    copies.setdefault(int(first), []).append(found)
        for (first_number, records_sent), of_call in together.items():
            sent = records[first_number : first_number + records_sent]
            if sent:  # else it was sent after the verdict was asked for
                copies.update(told_apart(sent, of_call))
        return copies


class _Sending:
    """The ledger, as one producer's stand-in tells it what is sent."""

    def __init__(self, ledger: DeliveryLedger, producer: int) -> None:
        self._ledger = ledger
        self._producer = producer

    def one(self, topic: str, key: object, value: object, partition: int | None) -> _Follower:
        entry = self._ledger.sending(
            topic, key=key, value=value, partition=partition, producer=self._producer
        )
        return _Follower(self._ledger, *entry)

    def many(
        self,
        topic: str,
        keys: Sequence[object],
        values: Sequence[object],
        partition: int | None,
        *,
        as_given: bool,
    ) -> list[_Follower]:
        records, header = self._ledger._sending_many(
            self._producer, topic, keys, values, partition, as_given
        )
        return [_Follower(self._ledger, record, header) for record in records]


class _Follower:
    """What a watched producer does with one record of the ledger."""

    __slots__ = ("_ledger", "_record", "header")

    def __init__(
        self, ledger: DeliveryLedger, record: SentRecord, header: tuple[str, bytes]
    ) -> None:
        self._ledger = ledger
        self._record = record
        self.header = header

    def taken(self) -> None:
        self._ledger.taken(self._record)

    def refused(self, error: BaseException) -> None:
        self._ledger.refused(self._record, error)

    def told(self, outcome: Told | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self._ledger.failed(self._record, outcome)
        else:
            self._ledger.acked(self._record, outcome.partition, outcome.offset)


def judge(records: Sequence[SentRecord], copies: Mapping[int, Sequence[Found]]) -> DeliveryVerdict:
    """Compare what was told of records with where they were found, by number."""
    acked = [r for r in records if r.state == "acked"]
    found = {r.number: copies.get(r.number, ()) for r in records}
    return DeliveryVerdict(
        sent=len(records),
        acked=len(acked),
        failed=sum(r.state in ("failed", "refused") for r in records),
        lost=tuple(r for r in acked if not found[r.number]),
        duplicated=tuple(r for r in records if len(found[r.number]) > 1),
        reordered=tuple(_reordered(acked, copies)),
        misplaced=tuple(r for r in acked if found[r.number] and not _in_place(r, found[r.number])),
        contradicted=tuple(r for r in records if found[r.number] and _told_absent(r)),
        unsettled=tuple(r for r in records if r.state == "open"),
    )


def _in_place(record: SentRecord, found: Sequence[Found]) -> bool:
    return any(
        record.topic == copy.topic
        and record.partition in (None, copy.partition)
        and record.offset in (None, copy.offset)
        for copy in found
    )


def _told_absent(record: SentRecord) -> bool:
    outcome = getattr(getattr(record.error, "outcome", None), "value", None)
    return record.state == "refused" or outcome in NOT_WRITTEN


def _reordered(
    acked: Sequence[SentRecord], copies: Mapping[int, Sequence[Found]]
) -> Iterator[SentRecord]:
    """First copies alone: a second one is a duplicate, wherever it lies."""
    logs: dict[tuple[int, str, int], list[tuple[int, SentRecord]]] = {}
    for record in acked:
        if found := copies.get(record.number):
            first = min(found, key=lambda copy: copy.offset)
            log = logs.setdefault((record.producer, first.topic, first.partition), [])
            log.append((first.offset, record))
    for log in logs.values():
        newest = -1
        last: dict[int, int] = {}  # of each call: its newest record so far
        for _, record in sorted(log, key=lambda place: place[0]):
            returned = record.returned is not None and record.returned < newest
            if returned or record.number < last.get(record.call, -1):
                yield record
            newest = max(newest, record.called)
            last[record.call] = max(record.number, last.get(record.call, -1))
