"""What became of each record of a drill: when it was sent, acknowledged or failed, and read.

The writer, the producer's callbacks and the reader tell it; each partition's log is judged while
it is read. A record is forgotten some minutes after its story is over, so that a drill may run for
days.

What counts as what, for records that were acknowledged:

* *lost*: the reader is past the offset that was acknowledged and never saw the record;
* *duplicated*: a copy beyond the first was read;
* *out of order*: it was read behind a record that was sent later;
* *misplaced*: it was read at another offset than the acknowledged one.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from outlast.cli.verify import Delivery

REMEMBERED_S = 120.0  # after a record's story is over: gaps that ended meanwhile ask for it
_SWEEP_RECORDS = 1_000


@dataclass(slots=True)
class Story:
    """One record. Times are monotonic seconds; None: not yet."""

    sent_s: float
    acked_s: float | None = None
    offset: int = -1  # as acknowledged; −1: not told (a broker that knew it as a repeat)
    failed_s: float | None = None
    read_s: float | None = None
    read_offset: int = -1

    def over_s(self) -> float | None:
        """When the last thing to expect happened. A failed record may still be read one day."""
        told_s = self.acked_s if self.failed_s is None else self.failed_s
        return None if told_s is None or self.read_s is None else max(told_s, self.read_s)


@dataclass(slots=True)
class PartitionLedger:
    """One partition: counts since the drill began, and the stories that are remembered."""

    stories: dict[int, Story] = field(default_factory=dict)  # by number, in order of sending
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    lost: int = 0
    misplaced: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    newest_read: int = -1  # number
    position: int = -1  # the offset behind the last one that was read
    last_ack_s: float | None = None
    last_read_s: float | None = None
    longest_wait_s: float = 0.0  # from sending to acknowledgement or failure
    longest_read_s: float = 0.0  # from sending to reading

    @property
    def unsettled(self) -> int:
        """Sent, and neither acknowledged nor failed."""
        return self.sent - self.acknowledged - self.failed


class Ledger:
    """The stories of a topic's records. Every method may be called from any thread."""

    def __init__(self, partitions: tuple[int, ...]) -> None:
        self._lock = threading.Lock()
        self._of = {partition: PartitionLedger() for partition in partitions}
        self._acked_in: Counter[int] = Counter()  # by second since the drill began
        self._begin_s = 0.0
        self.failures: Counter[str] = Counter()

    def __repr__(self) -> str:
        sent = sum(of.sent for of in self._of.values())
        return f"<Ledger sent={sent} failed={self.failures.total()}>"

    # --- what happens -----------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """What was waited for until now was the start, and does not count."""
        with self._lock:
            self._begin_s = now
            self._acked_in.clear()
            for of in self._of.values():
                of.longest_wait_s = of.longest_read_s = 0.0

    def send(self, partition: int, now: float) -> int:
        """A record is about to be sent; its number in its partition."""
        with self._lock:
            of = self._of[partition]
            number, of.sent = of.sent, of.sent + 1
            of.stories[number] = Story(now)
            if number % _SWEEP_RECORDS == _SWEEP_RECORDS - 1:
                _forget(of, now - REMEMBERED_S)
        return number

    def acked(self, partition: int, number: int, offset: int, now: float) -> None:
        """It was acknowledged."""
        with self._lock:
            of, story = self._of[partition], self._of[partition].stories[number]
            story.acked_s, story.offset = now, offset
            of.acknowledged += 1
            of.misplaced += story.read_s is not None and 0 <= offset != story.read_offset
            of.last_ack_s = now
            of.longest_wait_s = max(of.longest_wait_s, now - story.sent_s)
            self._acked_in[int(now - self._begin_s)] += 1

    def fail(self, partition: int, number: int, why: str, now: float) -> None:
        """Its sender was told that it failed."""
        with self._lock:
            of, story = self._of[partition], self._of[partition].stories[number]
            story.failed_s = now
            of.failed += 1
            of.longest_wait_s = max(of.longest_wait_s, now - story.sent_s)
            self.failures[why] += 1

    def read(self, partition: int, number: int, offset: int, now: float) -> None:
        """It was read."""
        with self._lock:
            of = self._of[partition]
            of.position, of.last_read_s = offset + 1, now
            story = of.stories.get(number)
            if story is None or story.read_s is not None:
                of.duplicated += 1
                return
            if number < of.newest_read:
                of.out_of_order += 1
            of.newest_read = max(of.newest_read, number)
            story.read_s, story.read_offset = now, offset
            of.longest_read_s = max(of.longest_read_s, now - story.sent_s)
            of.misplaced += story.acked_s is not None and 0 <= story.offset != offset

    # --- what is asked ----------------------------------------------------------------------------

    def __getitem__(self, partition: int) -> PartitionLedger:
        return self._of[partition]

    def unsettled(self) -> int:
        """Records whose sender was told nothing yet."""
        with self._lock:
            return sum(of.unsettled for of in self._of.values())

    def unread(self) -> int:
        """Records that were acknowledged and not read yet."""
        with self._lock:
            return sum(
                story.acked_s is not None
                and story.read_s is None
                and not _passed(of, number, story)
                for of in self._of.values()
                for number, story in of.stories.items()
            )

    def oldest_s(self, partition: int) -> float | None:
        """When the oldest record that waits for its outcome was sent."""
        with self._lock:
            of = self._of[partition]
            if not of.unsettled:
                return None
            waiting = (s for s in of.stories.values() if s.acked_s is None and s.failed_s is None)
            return next(waiting).sent_s

    def resumed_s(self, partition: int, end_s: float) -> float | None:
        """When the first record was read that was acknowledged at `end_s` or later; None: not yet.

        That record, or one sent before it, is what ended a gap: so this tells when readers had the
        partition again. It may be before `end_s`: readers need no acknowledgement.
        """
        with self._lock:
            for story in self._of[partition].stories.values():
                if story.acked_s is not None and story.acked_s >= end_s:
                    return story.read_s
        return None

    def acked_per_s(self) -> list[int]:
        """How many records were acknowledged in each second since `begin`."""
        with self._lock:
            return [self._acked_in[second] for second in range(max(self._acked_in, default=-1) + 1)]

    def judge(self) -> Delivery:
        """What became of the acknowledged records, as far as they were read."""
        with self._lock:
            everything = self._of.values()
            return Delivery(
                acknowledged=sum(of.acknowledged for of in everything),
                lost=sum(_lost(of) for of in everything),
                misplaced=sum(of.misplaced for of in everything),
                duplicated=sum(of.duplicated for of in everything),
                out_of_order=sum(of.out_of_order for of in everything),
            )


def _passed(of: PartitionLedger, number: int, story: Story) -> bool:
    """It was acknowledged, and the reader has been beyond it without seeing it."""
    if story.acked_s is None or story.read_s is not None:
        return False
    return story.offset < of.position if story.offset >= 0 else number < of.newest_read


def _lost(of: PartitionLedger) -> int:
    return of.lost + sum(_passed(of, number, story) for number, story in of.stories.items())


def _forget(of: PartitionLedger, before_s: float) -> None:
    """Stories that were over by then, and records that were lost by then."""
    for number, story in list(of.stories.items()):
        lost = _passed(of, number, story)
        over_s = story.acked_s if lost else story.over_s()
        if over_s is not None and over_s < before_s:
            of.lost += lost
            del of.stories[number]
