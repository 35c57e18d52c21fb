"""The ledger: what was sent, what was said about it, and whether the logs bear it out.

It knows neither engine nor cluster: it is told of every send and every settlement in plain words,
and reads the partitions' logs at the end. Every record's value is unique, so a record is found in
a log by its value, and two copies cannot be taken for two records.

What it holds against a producer:
* every record that was taken is settled exactly once;
* an acknowledged record is in its partition's log, once, at the offset that was told;
* a record told *never sent*, *not accepted* or *refused* is in no log, ever;
* a record told *unknown* is there once or not at all;
* what is in a log stands in the order in which the producer took it;
* nothing is in a log that was not sent.

One thing no producer can help (`unfenced`): once a broker has refused a producer id, the partition
goes on under another, and that fences nothing. A record told *unknown* may then still be taken from
a closed connection, behind later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Protocol

ACKED = "acked"
NEVER_SENT = "never sent"
NOT_ACCEPTED = "not accepted"
UNKNOWN = "unknown"
REFUSED = "refused"  # the send itself raised; the record was not taken


class ReadRecord(Protocol):
    """A record as it is read back from a log."""

    @property
    def offset(self) -> int: ...  # noqa: D102

    @property
    def key(self) -> bytes | None: ...  # noqa: D102

    @property
    def value(self) -> bytes | None: ...  # noqa: D102


@dataclass(slots=True, eq=False)
class Entry:
    """One record: what went in, and what was said about it."""

    number: int  # in the order of sending, over all partitions
    topic: str
    value: bytes
    key: bytes | None
    sent_at: float
    partition: int = -1  # known once it was taken
    place: int = -1  # among the records of its partition, in the order of taking
    taken_at: float | None = None
    settled_at: float | None = None
    outcome: str = ""  # '' while open
    offset: int | None = None
    settlements: int = 0

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition}" if self.partition >= 0 else self.topic
        return f"{where}: record {self.number} (sent at {self.sent_at:.3f} s)"


@dataclass(slots=True)
class Verdict:
    """What the logs say. The run is good if `findings` is empty."""

    findings: list[str] = field(default_factory=list)
    acked: int = 0
    failed: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0


class Ledger:
    """Remembers every send and settlement of one run, and judges them against the logs."""

    __slots__ = ("_places", "entries", "replay", "unfenced")

    def __init__(self, replay: str = "") -> None:
        self.replay = replay  # how to see this run again; ends every finding
        self.entries: list[Entry] = []
        self.unfenced: set[tuple[str, int]] = set()  # partitions whose producer id was refused
        self._places: dict[tuple[str, int], int] = {}

    def __repr__(self) -> str:
        return f"<Ledger entries={len(self.entries)} open={len(self.unsettled())}>"

    # --- what happened ---

    def sending(
        self, topic: str, now: float, *, key: bytes | None = None, size_bytes: int = 0
    ) -> Entry:
        """The application sends: the entry's value is what it must send."""
        number = len(self.entries)
        value = f"{topic}#{number}".encode().ljust(size_bytes, b".")
        entry = Entry(number, topic, value, key, now)
        self.entries.append(entry)
        return entry

    def taken(self, entry: Entry, partition: int, now: float) -> None:
        """The producer took the record for this partition."""
        assert entry.taken_at is None, f"{entry} was taken twice"
        tp = (entry.topic, partition)
        entry.partition, entry.taken_at = partition, now
        entry.place = self._places.get(tp, 0)
        self._places[tp] = entry.place + 1

    def refused(self, entry: Entry, now: float) -> None:
        """The send raised."""
        self._settle(entry, REFUSED, None, now)

    def acked(self, entry: Entry, offset: int, now: float) -> None:
        """The record was told to be delivered at this offset (−1: the broker could not tell)."""
        self._settle(entry, ACKED, offset, now)

    def failed(self, entry: Entry, outcome: str, now: float) -> None:
        """The record was told to have failed."""
        self._settle(entry, outcome, None, now)

    def unsettled(self) -> list[Entry]:
        """Records of which nothing has been said yet."""
        return [e for e in self.entries if not e.settlements]

    @staticmethod
    def _settle(entry: Entry, outcome: str, offset: int | None, now: float) -> None:
        entry.settlements += 1
        if entry.settlements == 1:
            entry.outcome, entry.offset, entry.settled_at = outcome, offset, now

    # --- the judgement ---

    def judge(
        self,
        read: Callable[[str, int], Iterable[ReadRecord]],
        partitions: Iterable[tuple[str, int]],
        *,
        exactly_once: bool = True,
        in_order: bool = True,
        acks_survive: bool = True,
        offsets_told: bool = True,
        mortal: Container[str] = (),
    ) -> Verdict:
        """Compare with the logs of `partitions`, read by `read(topic, partition)`.

        `exactly_once` off: without idempotence a retry may double, and only first copies have to
        be in order. `in_order` off: with more than one request in flight not even those.
        `acks_survive` off: with acks=1 a leader may lose what it acknowledged. `offsets_told`
        off: an acknowledgement may lack its offset (acks=0). `mortal`: topics that were
        deleted in the run; what they acknowledged may be gone.
        """
        verdict = Verdict()
        copies: dict[bytes, list[tuple[tuple[str, int], ReadRecord]]] = {}
        for tp in partitions:
            for record in read(*tp):
                copies.setdefault(record.value or b"", []).append((tp, record))
        known = {entry.value: entry for entry in self.entries}
        for value, found in copies.items():
            if value not in known:
                (topic, partition), record = found[0]
                where = f"{topic}-{partition} at offset {record.offset}"
                self._find(verdict, f"{where}: {value[:40]!r} was never sent")
        for entry in self.entries:
            found = copies.get(entry.value, [])
            survives = acks_survive and entry.topic not in mortal
            self._judge_entry(verdict, entry, found, exactly_once, survives, offsets_told)
        if in_order:
            self._judge_order(verdict, known, copies, every_copy=exactly_once)
        return verdict

    def _judge_entry(
        self,
        verdict: Verdict,
        entry: Entry,
        found: list[tuple[tuple[str, int], ReadRecord]],
        exactly_once: bool,
        acks_survive: bool,
        offsets_told: bool,
    ) -> None:
        if entry.settlements != 1:
            times = "never" if not entry.settlements else f"{entry.settlements} times"
            self._find(verdict, f"{entry} was settled {times}")
        acked = entry.outcome == ACKED
        verdict.acked += acked
        verdict.failed += bool(entry.outcome) and not acked
        offsets = [record.offset for _, record in found]
        if acked and not found and acks_survive:
            verdict.lost += 1
            self._find(verdict, f"{entry} was acknowledged at {entry.offset} and is in no log")
        if len(found) > 1 and exactly_once:
            verdict.duplicated += 1
            self._find(verdict, f"{entry} is in the log {len(found)} times, at {offsets}")
        if found and entry.outcome in (NEVER_SENT, NOT_ACCEPTED, REFUSED):
            self._find(verdict, f"{entry} was told '{entry.outcome}', yet it is at {offsets}")
        if acked and found and acks_survive:
            told = entry.offset
            if told == -1 or told is None:
                if offsets_told:
                    self._find(verdict, f"{entry} was acknowledged without its offset {offsets}")
            elif told not in offsets:
                self._find(verdict, f"{entry} was acknowledged at {told} but is at {offsets}")
        for tp, record in found:
            if tp != (entry.topic, entry.partition) or record.key != entry.key:
                self._find(verdict, f"{entry} lies in {tp} with key {record.key!r}")

    def _judge_order(
        self,
        verdict: Verdict,
        known: dict[bytes, Entry],
        copies: dict[bytes, list[tuple[tuple[str, int], ReadRecord]]],
        *,
        every_copy: bool,
    ) -> None:
        """Without idempotence only the first copy of what was acknowledged has its place."""
        logs: dict[tuple[str, int], list[tuple[int, Entry]]] = {}
        for value, found in copies.items():
            entry = known.get(value)
            if entry is not None and entry.outcome != ACKED:
                late = entry.outcome == UNKNOWN and (entry.topic, entry.partition) in self.unfenced
                if late or not every_copy:
                    continue
            if entry is not None:
                for tp, record in found if every_copy else found[:1]:
                    logs.setdefault(tp, []).append((record.offset, entry))
        for log in logs.values():
            log.sort(key=lambda at: at[0])
            newest = log[0][1]
            for offset, entry in log:
                if entry.place < newest.place:
                    verdict.out_of_order += 1
                    behind = f"at offset {offset} behind the later record {newest.number}"
                    self._find(verdict, f"{entry} lies {behind}")
                else:
                    newest = entry

    def _find(self, verdict: Verdict, sentence: str) -> None:
        verdict.findings.append(f"{sentence}. {self.replay}".rstrip())
