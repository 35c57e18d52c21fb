"""What is known of one rejection gap: its phases, the cluster's share, the records that met it.

**Phases.** Once open, a gap is a chain of rounds, each of at most three parts:

    signal ──unavailable──▶ evidence ──reconnecting──▶ sent ──resuming──▶ accepted: the gap ends
       ▲                        │                       │
       │      `unreachable`     │       `refused`       │
       └── back to the evidence ┴─ back to the sending ─┘

* *detecting* lies before all rounds: from the begin to the first signal.
* A refused attempt returns the gap to *unavailable* from the moment it was **sent**: its time under
  way was the cluster's, the time from the evidence to its sending stays the client's.
* A leader that cannot even be reached was no evidence: the time since then is *unavailable*.
* An attempt made without new evidence (the same leader again, after a back-off or a reconnect) had
  the last signal as its evidence, if it is accepted. If not, all of it was *unavailable*.
* Evidence that comes while an attempt is under way counts from when that attempt is refused.
* An attempt sent before the evidence says nothing about it; it is only counted.

So three moments describe the open round, what can no longer change is summed, and the parts add up
to the duration because each begins where the one before ends.

**The cluster's share** is bounded, not guessed. Let T0 be when the partition stopped accepting and
T1 when its leader was both visible and accepting again. Then

* T0 ≥ begin (of this gap only its own time is shared out) and T0 ≤ the first signal;
* T1 ≥ the sending of the last attempt to which *the leader that later accepted* answered no, under
  the same epoch. (A no of another node proves nothing: the right one may have been ready.)
* if the leader changed, T1 ≥ the asking of the last metadata request whose answer did not name the
  one that accepted: how news spreads among brokers (1–55 ms: A13) is the cluster's time;
* T1 ≤ the sending of the accepted attempt; and if the leader changed and never said no, T1 ≤ the
  first answer that named it + 0.1 s. The last is measured, not proved: named leaders that were not
  ready denied for at most 23 ms (S6). A slow client then cannot blame the cluster for all of it.

Sendings are compared with sendings, so that the way to the broker cancels out.
`cluster_s_min` = max(0, lowest T1 - first signal), `cluster_s_max` = highest T1 - begin.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from outlast.engine.messages import (
    Cause,
    Fact,
    Gap,
    GapAdvanced,
    GapEnd,
    GapOutcome,
    Phase,
)

TopicPartition = tuple[str, int]
LeaderName = tuple[int, int]  # node id, leader epoch
V = TypeVar("V")

READY_ALLOWANCE_S = 0.1  # how long a leader that metadata names may not be ready (S6: 23 ms)
ERRORS_KEPT = 7  # the first and the last so many
LEADERS_KEPT = 4  # named, or saying no, during one gap
CONNECTS_KEPT = 8


class Phases:
    """Whose time a gap was, from its begin to now."""

    __slots__ = (
        "_connecting_s",
        "_connects",
        "_detecting_s",
        "_evidence",
        "_evidence_s",
        "_next",
        "_reconnecting_s",
        "_resuming_s",
        "_sent_s",
        "_signal_s",
        "_since_s",
        "_unavailable_s",
    )

    def __init__(self, begin_s: float, signal_s: float) -> None:
        self._detecting_s = signal_s - begin_s
        self._unavailable_s = self._reconnecting_s = self._resuming_s = 0.0
        self._connecting_s = 0.0
        self._connects: deque[tuple[float, float]] = deque(maxlen=CONNECTS_KEPT)
        self._signal_s = signal_s  # the last one
        # the open round
        self._since_s = signal_s
        self._evidence_s: float | None = None
        self._evidence: LeaderName | None = None
        self._sent_s: float | None = None
        self._next: tuple[float, LeaderName] | None = None  # came while an attempt was under way

    def __repr__(self) -> str:
        return f"<Phases {self.current.value} since={self._since_s:.3f}>"

    @property
    def current(self) -> Phase:
        """The phase as far as it can be told now."""
        if self._sent_s is not None:
            return Phase.RESUMING
        if self._evidence_s is not None:
            return Phase.RECONNECTING
        return Phase.UNAVAILABLE

    def evidence(self, leader: LeaderName, now: float) -> None:
        """This leader was named, and will be tried."""
        if self._sent_s is not None:
            if leader != self._evidence and (self._next is None or self._next[1] != leader):
                self._next = now, leader
        elif leader != self._evidence:
            self._evidence_s, self._evidence = now, leader

    def connecting(self, begun_s: float, done_s: float) -> None:
        """A connection to the leader was made between these moments."""
        self._connects.append((begun_s, done_s))

    def sent(self, now: float) -> None:
        """An attempt is under way; further ones of the same round change nothing."""
        if self._sent_s is None:
            self._sent_s = now

    def refused(self, sent_s: float, by: LeaderName | None, now: float) -> None:
        """The attempt sent then came to nothing."""
        self._signal_s = now
        begun_s = self._sent_s if self._evidence_s is None else self._evidence_s
        if begun_s is not None and sent_s < begun_s:
            return  # older than this round: says nothing about it
        if self._evidence_s is not None:
            self._fold(self._evidence_s, sent_s if self._sent_s is None else self._sent_s)
        self._open_round(self._next if self._next and self._next[1] != by else None)

    def unreachable(self, now: float) -> None:
        """Nothing could be sent to whom the evidence named."""
        self._signal_s = now
        self._next = None
        if self._sent_s is None:
            self._evidence_s = self._evidence = None

    def accepted(self, sent_s: float, now: float) -> None:
        """The attempt sent then was acknowledged: all parts are final."""
        sent_s = min(max(sent_s, self._since_s), now)
        evidence_s = self._signal_s if self._evidence_s is None else self._evidence_s
        if evidence_s > sent_s:  # an attempt from before the evidence
            evidence_s = min(self._signal_s, sent_s)
        self._fold(evidence_s, sent_s)
        self._resuming_s = now - sent_s
        self._since_s = now
        self._open_round(None)

    def ended(self, now: float) -> None:
        """The gap ends without an ack: all parts are final."""
        if self._sent_s is not None:
            self.refused(self._sent_s, None, now)
        self._fold(now if self._evidence_s is None else self._evidence_s, now)
        self._open_round(None)

    def parts(self, now: float) -> tuple[float, float, float, float]:
        """Seconds so far: detecting, unavailable, reconnecting, resuming. They add up."""
        evidence_s, sent_s = self._marks(now)
        return (
            self._detecting_s,
            self._unavailable_s + evidence_s - self._since_s,
            self._reconnecting_s + sent_s - evidence_s,
            self._resuming_s + now - sent_s,
        )

    def connecting_s(self, now: float) -> float:
        """The part of *reconnecting* that was connect and authentication."""
        return self._connecting_s + self._connecting_between(*self._marks(now))

    def _marks(self, now: float) -> tuple[float, float]:
        """The open round's evidence and sending, as they stand."""
        sent_s = now if self._sent_s is None else self._sent_s
        if self._evidence_s is not None:
            return self._evidence_s, sent_s
        return (sent_s if self._sent_s is None else min(self._signal_s, sent_s)), sent_s

    def _fold(self, evidence_s: float, sent_s: float) -> None:
        """What lies before the sending is final."""
        self._unavailable_s += evidence_s - self._since_s
        self._reconnecting_s += sent_s - evidence_s
        self._connecting_s += self._connecting_between(evidence_s, sent_s)
        self._since_s = sent_s

    def _open_round(self, evidence: tuple[float, LeaderName] | None) -> None:
        self._evidence_s, self._evidence = evidence or (None, None)
        self._sent_s = self._next = None

    def _connecting_between(self, from_s: float, to_s: float) -> float:
        overlaps = (min(done, to_s) - max(begun, from_s) for begun, done in self._connects)
        return min(to_s - from_s, sum(overlap for overlap in overlaps if overlap > 0))


@dataclass(slots=True, kw_only=True, eq=False)
class OpenGap:
    """One gap while it can change: until it has ended and its outcome is told."""

    tp: TopicPartition
    number: int
    cause: Cause
    trigger: str
    begin_s: float
    begin_unix_s: float
    first_signal_s: float
    last_ack_age_s: float | None
    old_leader: int
    old_leader_epoch: int
    new_leader: int = -1
    new_leader_epoch: int = -1
    lane: str = ""  # of the first attempt that came to nothing
    attempts: int = 0
    metadata_refreshes: int = 0
    delivered: int = 0  # records
    expired: int = 0
    failed: int = 0
    refused: int = 0
    outstanding: int = 0  # batches that met it and are not settled
    idle_since_s: float = 0.0  # the last of them was settled
    end_s: float | None = None
    ended_by: GapEnd | None = None
    outcome: GapOutcome | None = None
    phases: Phases = field(init=False)
    cluster_s: tuple[float, float] | None = None  # least and most, once ended
    _errors_first: list[str] = field(default_factory=list)
    _errors_last: deque[str] = field(default_factory=lambda: deque(maxlen=ERRORS_KEPT))
    _said_no: dict[LeaderName, float] = field(default_factory=dict)  # last refused sending
    # first answer that named it, asking of the last one that did
    _named: dict[LeaderName, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.idle_since_s = self.first_signal_s
        self.phases = Phases(self.begin_s, self.first_signal_s)

    def __repr__(self) -> str:
        state = self.phases.current.value if self.ended_by is None else self.ended_by.value
        return f"<gap {self.number} {self.tp[0]}-{self.tp[1]} {state} waiting={self.outstanding}>"

    def note_error(self, trigger: str) -> None:
        """One more signal, by its protocol name."""
        first = self._errors_first
        (first if len(first) < ERRORS_KEPT else self._errors_last).append(trigger)

    def note_no(self, leader: LeaderName, sent_s: float) -> None:
        """This leader answered no to an attempt sent then."""
        _put_last(self._said_no, leader, sent_s)

    def note_named(self, leader: LeaderName, asked_s: float, now: float) -> None:
        """An answer to a question asked then named this leader."""
        first_s, last_asked_s = self._named.get(leader, (now, asked_s))
        _put_last(self._named, leader, (first_s, max(last_asked_s, asked_s)))

    def ended(self, reason: GapEnd, leader: LeaderName, accepting_s: float, now: float) -> None:
        """The gap is over: this leader accepted (or should accept), as of `accepting_s`."""
        self.ended_by, self.end_s = reason, now
        self.new_leader, self.new_leader_epoch = leader
        self.cluster_s = self._cluster_share(leader, accepting_s)

    def _cluster_share(self, leader: LeaderName, accepting_s: float) -> tuple[float, float]:
        """Least and most; see the head of this file. Without a leader nothing is known."""
        low_s, high_s = self.first_signal_s, accepting_s
        if leader[0] >= 0:
            low_s = max(low_s, self._said_no.get(leader, low_s))
            if leader != (self.old_leader, self.old_leader_epoch):
                others = (asked_s for name, (_, asked_s) in self._named.items() if name != leader)
                low_s = max(low_s, max(others, default=low_s))
                if leader in self._named and leader not in self._said_no:
                    high_s = min(high_s, self._named[leader][0] + READY_ALLOWANCE_S)
        least_s = low_s - self.first_signal_s
        return least_s, max(least_s, high_s - self.begin_s)

    def changed_from(self, before: Phase, now: float) -> list[Fact]:
        """A fact if the phase is another than before."""
        return [] if self.phases.current is before else [GapAdvanced(now, self.snapshot(now))]

    def snapshot(self, now: float) -> Gap:
        """The gap as it is now."""
        end_s = now if self.end_s is None else self.end_s
        detecting_s, unavailable_s, reconnecting_s, resuming_s = self.phases.parts(end_s)
        cluster_s_min, cluster_s_max = self.cluster_s or (0.0, end_s - self.begin_s)
        return Gap(
            topic=self.tp[0],
            partition=self.tp[1],
            number=self.number,
            cause=self.cause,
            trigger=self.trigger,
            lane=self.lane,
            begin_s=self.begin_s,
            begin_unix_s=self.begin_unix_s,
            duration_s=end_s - self.begin_s,
            phase=self.phases.current if self.ended_by is None else None,
            detecting_s=detecting_s,
            unavailable_s=unavailable_s,
            reconnecting_s=reconnecting_s,
            resuming_s=resuming_s,
            connecting_s=self.phases.connecting_s(end_s),
            cluster_s_min=cluster_s_min,
            cluster_s_max=cluster_s_max,
            last_ack_age_s=self.last_ack_age_s,
            attempts=self.attempts,
            metadata_refreshes=self.metadata_refreshes,
            errors=(*self._errors_first, *self._errors_last),
            old_leader=self.old_leader,
            old_leader_epoch=self.old_leader_epoch,
            new_leader=self.new_leader,
            new_leader_epoch=self.new_leader_epoch,
            ended_by=self.ended_by,
            outcome=self.outcome,
            records_delivered=self.delivered,
            records_expired=self.expired,
            records_failed=self.failed,
            records_refused=self.refused,
        )


def _put_last(kept: dict[LeaderName, V], leader: LeaderName, value: V) -> None:
    """Remember the most recent few."""
    kept.pop(leader, None)
    kept[leader] = value
    if len(kept) > LEADERS_KEPT:
        del kept[next(iter(kept))]
