"""What a drill found, as plain data: for the tables, for JSON, for the exit code.

Rule: nothing here claims more than is known. Records without an outcome make a drill *undecided*,
not absorbed; where the reader did not come to the end nothing is said of loss beyond where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from outlast.cli.check_view import Rate
from outlast.cli.drill_leaders import LeaderChange
from outlast.cli.shares import client_s
from outlast.cli.verify import Delivery
from outlast.engine.messages import Gap, GapEnd, Stall

USUAL_S = 0.001  # shorter waits say nothing about a rate


class Verdict(Enum):
    """What a drill comes to."""

    ABSORBED = "absorbed"
    REPORTED = "reported"
    BROKEN = "broken"
    UNDECIDED = "undecided"


MEANINGS = {
    Verdict.ABSORBED: "every record was acknowledged, and read once and in order",
    Verdict.REPORTED: "senders were told that records failed",
    Verdict.BROKEN: "an acknowledged record is lost, there twice, out of order or misplaced",
    Verdict.UNDECIDED: "it was ended while records had no outcome, or were not read yet",
}
EXIT_CODES = {
    Verdict.ABSORBED: 0,
    Verdict.REPORTED: 1,
    Verdict.BROKEN: 1,
    Verdict.UNDECIDED: 3,
}
UNUSABLE = 2  # exit code: bad arguments, or a cluster on which nothing can be said


def exit_codes() -> list[tuple[int, str, str]]:
    """Exit code, verdict and its meaning, for the documents."""
    found = [(EXIT_CODES[verdict], verdict.value, told) for verdict, told in MEANINGS.items()]
    unusable = (
        "it could not be run: bad options, no such cluster or topic, foreign records in it, no "
        "rights (in all of these nothing was written), or no partition took a record to begin with"
    )
    return sorted([*found, (UNUSABLE, "", unusable)])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """One partition. Times are seconds; `resumed_s` tells for each gap, by its number, how long
    after the gap's begin the first record was read that ended it.
    """

    partition: int
    sent: int
    acknowledged: int
    failed: int
    unsettled: int
    longest_wait_s: float  # from sending to acknowledgement or failure, or until now
    longest_read_s: float  # from sending to reading
    gaps: tuple[Gap, ...]
    stalls: tuple[Stall, ...]
    resumed_s: Mapping[int, float]

    @property
    def eventful(self) -> bool:
        """Anything is to be told of it."""
        return bool(self.gaps or self.stalls or self.failed or self.unsettled)

    @property
    def worst(self) -> Gap | None:
        """The longest gap."""
        return max(self.gaps, key=lambda gap: gap.duration_s, default=None)

    @property
    def longest_stall_s(self) -> float:
        """Of its stalls; 0 without."""
        return max((stall.duration_s for stall in self.stalls), default=0.0)

    @property
    def outcome(self) -> str:
        """What its senders were told, in a word."""
        if self.failed:
            return "reported"
        if self.unsettled:
            return "open"
        return "absorbed" if self.gaps else "waited" if self.stalls else ""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return {
            "partition": self.partition,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "unsettled": self.unsettled,
            "outcome": self.outcome or "no gap",
            "longest_wait_s": self.longest_wait_s,
            "longest_read_s": self.longest_read_s,
            "worst_gap_s": self.worst.duration_s if self.worst else 0.0,
            "gaps": [self._gap(gap) for gap in self.gaps],
            "stalls": [stall.to_dict() for stall in self.stalls],
        }

    def _gap(self, gap: Gap) -> dict[str, Any]:
        client_s_min, client_s_max = client_s(gap)
        return {
            **gap.to_dict(),
            "client_s_min": client_s_min,
            "client_s_max": client_s_max,
            "reading_resumed_s": self.resumed_s.get(gap.number),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long a producer with these settings holds out, against the longest wait of the drill."""

    longest_wait_s: float
    delivery_timeout_s: float
    buffer_bytes: int
    rate: Rate | None  # what the application sends; None: it was not told

    @property
    def margin_s(self) -> float:
        """So much longer a record may wait; negative: it fails before."""
        return self.delivery_timeout_s - self.longest_wait_s

    @property
    def buffer_bytes_per_s(self) -> float | None:
        """The rate of writing that fills the buffer in that time; None: nothing waited."""
        if self.longest_wait_s < USUAL_S:
            return None
        return self.buffer_bytes / self.longest_wait_s

    @property
    def buffer_margin_s(self) -> float | None:
        """So much longer the buffer lasts at the application's rate."""
        if self.rate is None:
            return None
        return self.buffer_bytes / self.rate.bytes_per_s - self.longest_wait_s

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return {
            "longest_wait_s": self.longest_wait_s,
            "delivery_timeout_s": self.delivery_timeout_s,
            "margin_s": self.margin_s,
            "buffer_bytes": self.buffer_bytes,
            "rate": self.rate.said if self.rate else None,
            "buffer_bytes_per_s": self.buffer_bytes_per_s,
            "buffer_margin_s": self.buffer_margin_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A whole drill. `begin_s` and `end_s` are on the monotonic clock of gaps and stalls."""

    topic: str
    made: bool  # the topic, for this drill
    begin_s: float
    begin_unix_s: float
    end_s: float
    tick_s: float
    partitions: tuple[PartitionResult, ...]
    leader_changes: tuple[LeaderChange, ...]
    moves: int  # leaders that the drill itself moved
    delivery: Delivery
    unread: int  # acknowledged, and not read when the drill ended
    failures: Mapping[str, int]  # by the exception's class
    budget: Budget
    acked_per_s: tuple[int, ...]
    settings: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def total(self, count: str) -> int:
        """The sum of one of the partitions' counts, such as `sent`."""
        return sum(getattr(partition, count) for partition in self.partitions)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Of all partitions, in order of their begin."""
        return tuple(_by_begin(gap for of in self.partitions for gap in of.gaps))

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """Of all partitions, in order of their begin."""
        return tuple(_by_begin(stall for of in self.partitions for stall in of.stalls))

    @property
    def verdict(self) -> Verdict:
        """The worst that is true."""
        if not self.delivery:
            return Verdict.BROKEN
        if self.total("failed"):
            return Verdict.REPORTED
        if self.total("unsettled") or self.unread:
            return Verdict.UNDECIDED
        return Verdict.ABSORBED

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return {
            "verdict": self.verdict.value,
            "exit_code": EXIT_CODES[self.verdict],
            "topic": self.topic,
            "begin_unix_s": self.begin_unix_s,
            "duration_s": self.end_s - self.begin_s,
            "tick_s": self.tick_s,
            "sent": self.total("sent"),
            "acknowledged": self.total("acknowledged"),
            "failed": self.total("failed"),
            "unsettled": self.total("unsettled"),
            "failures": dict(self.failures),
            "reading": {**asdict(self.delivery), "unread": self.unread},
            "budget": self.budget.to_dict(),
            "settings": dict(self.settings),
            "leaders_moved": self.moves,
            "leader_changes": [
                {
                    "partition": change.partition,
                    "at_unix_s": self.begin_unix_s + change.at_s - self.begin_s,
                    "old": change.old,
                    "new": change.new,
                    "epoch": change.epoch,
                }
                for change in self.leader_changes
            ],
            "partitions": [partition.to_dict() for partition in self.partitions],
            "notes": list(self.notes),
        }


def _by_begin(things: Iterable[Any]) -> list[Any]:
    return sorted(things, key=lambda it: it.begin_s)


def ended_with_ack(gap: Gap) -> bool:
    """Whether some record ended it, so that readers had something to read."""
    return gap.ended_by is GapEnd.ACK
