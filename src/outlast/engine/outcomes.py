"""What became of records and of partitions: outcomes, attempts, failures, gaps and stalls.

Rules: values only, frozen; times are monotonic seconds unless their name says `unix`. They are what
users and observers get to see; `messages` passes them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Outcome(Enum):
    """What a failure says about the record. Only *unknown* leaves a doubt."""

    NEVER_SENT = "never sent"
    NOT_ACCEPTED = "not accepted"
    UNKNOWN = "unknown"


class AttemptState(Enum):
    """What came of one try to deliver one batch."""

    OPEN = "open"  # on its way, no answer yet
    ACCEPTED = "accepted"
    REFUSED = "refused"  # a certain no
    DOUBTFUL = "doubtful"  # may be in that leader's log; no further copy is under way
    LEFT = "left"  # its connection ended without the answer: a copy may be taken later


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One try to deliver one batch, as shown to users."""

    at_unix_s: float
    node_id: int
    connection: str
    leader_epoch: int
    state: AttemptState
    error: str  # protocol name of the answer, or of the loss; '' while open or accepted


@dataclass(frozen=True, slots=True)
class Failure:
    """Why records failed, for the facade to build the exception that users catch.

    Either `error_code` is a Kafka error code (the exception is `kafka.errors.for_code` of it), or
    it is None and `kind` tells: 'delivery_timeout', 'closed', 'retries', 'no_producer_id',
    'topic_gone', 'forked'.
    """

    kind: str
    error_code: int | None
    message: str
    outcome: Outcome
    attempts: tuple[AttemptRecord, ...] = ()
    attempts_left_out: int = 0  # between the first seven and the last seven


# --- gaps and stalls ----------------------------------------------------------------------------


class Cause(Enum):
    """The first signal of a gap; it never changes."""

    NOT_LEADER = "not_leader"
    LEADER_UNAVAILABLE = "leader_unavailable"
    NOT_ENOUGH_REPLICAS = "not_enough_replicas"
    CONNECTION_LOST = "connection_lost"
    SILENT = "silent"
    REQUEST_TIMEOUT = "request_timeout"
    STORAGE_ERROR = "storage_error"
    OTHER = "other"


class Phase(Enum):
    """Whose time a part of a gap was."""

    DETECTING = "detecting"  # attempt sent → first signal
    UNAVAILABLE = "unavailable"  # first signal → the evidence that led to the accepted attempt
    RECONNECTING = "reconnecting"  # evidence → accepted attempt sent
    RESUMING = "resuming"  # accepted attempt sent → ack


class GapEnd(Enum):
    """What ended a gap."""

    ACK = "ack"
    LEADER_USABLE = "leader_usable"  # nothing waited any more, and a usable leader was seen
    ABANDONED = "abandoned"  # nothing waits, and nobody asks, or no usable leader for 5 minutes
    CLOSED = "closed"
    TOPIC_GONE = "topic_gone"


class StallEnd(Enum):
    """What ended a stall."""

    ACK = "ack"
    GAP = "gap"  # the partition was rejected after all
    IDLE = "idle"  # nothing waits any more
    CLOSED = "closed"


class GapOutcome(Enum):
    """What became of the records that met a gap."""

    ABSORBED = "absorbed"
    REPORTED = "reported"
    ABANDONED = "abandoned"


def place_name(topic: str, partition: int) -> str:
    """A partition, as Kafka writes it; a transaction's coordinator has no number."""
    return topic if partition < 0 else f"{topic}-{partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One partition's time from the first attempt refused (or come to nothing) to the first
    accepted one. Phases add up to `duration_s`. Immutable: a snapshot of the recorder's state.

    A transaction's coordinator has gaps, too: `topic` is `txn:<transactional id>` (no topic may be
    called so), `partition` −1.
    """

    topic: str
    partition: int
    number: int  # counts this producer's gaps from 1
    cause: Cause
    trigger: str  # protocol name of the first signal, such as NOT_LEADER_OR_FOLLOWER
    lane: str = ""  # of the first attempt that came to nothing: 'open' or 'slow'; '' if none was
    begin_s: float  # monotonic
    begin_unix_s: float
    duration_s: float  # so far, while `ended_by` is None
    phase: Phase | None  # the current one; None once ended
    detecting_s: float = 0.0
    unavailable_s: float = 0.0
    reconnecting_s: float = 0.0
    resuming_s: float = 0.0
    connecting_s: float = 0.0  # the part of `reconnecting_s` spent in connect and authentication
    cluster_s_min: float = 0.0
    cluster_s_max: float = 0.0
    last_ack_age_s: float | None = None  # before `begin_s`; None: no ack yet (outer bound)
    attempts: int = 0
    metadata_refreshes: int = 0
    errors: tuple[str, ...] = ()  # in order, the first and the last seven
    old_leader: int = -1
    old_leader_epoch: int = -1
    new_leader: int = -1
    new_leader_epoch: int = -1
    ended_by: GapEnd | None = None
    outcome: GapOutcome | None = None  # None until the records that met it are settled
    records_delivered: int = 0
    records_expired: int = 0
    records_failed: int = 0
    records_refused: int = 0  # `send()` raised because of the gap

    def to_dict(self) -> dict[str, Any]:
        """The gap as plain JSON types; enums become their values."""
        return {k: v.value if isinstance(v, Enum) else v for k, v in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """One partition's time without an ack though nothing was rejected: its leader lives and leads,
    but a follower died or the broker is slow. No second of it belongs to a gap.
    """

    topic: str
    partition: int
    number: int  # counts this producer's stalls from 1
    node_id: int  # the leader that owes the ack
    lane: str  # that the unacknowledged batch was sent on: 'open' or 'slow'
    reason: str  # 'follower' (the leader says that one is late) or 'leader' (slow, but it lives)
    begin_s: float  # monotonic: when the oldest unacknowledged batch was sent
    begin_unix_s: float
    duration_s: float  # so far, while `ended_by` is None
    ended_by: StallEnd | None = None

    def to_dict(self) -> dict[str, Any]:
        """The stall as plain JSON types."""
        return {k: v.value if isinstance(v, Enum) else v for k, v in asdict(self).items()}


class LaneReason(Enum):
    """Why a partition's requests go over the lane that they go over."""

    STUCK = "stuck"  # the leader said that a follower is late (7 with an offset): slow lane
    SUSPECT = "suspect"  # it shares a follower with a stuck one: slow lane, ahead of those
    FOLLOWER_DOWN = "follower_down"  # its in-sync replicas name a node that is down: slow lane
    USUAL = "usual"  # an ack came in usual time: back to the open lane
    IDLE = "idle"  # nothing was written to it for a minute: back to the open lane
    MOVED = "moved"  # another broker leads: back to the open lane


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """A partition whose records do not leave: together these may hold only a share of the buffer
    while others deliver.
    """

    topic: str
    partition: int
    reason: str  # 'gap: <cause>', 'stall: <reason>' or 'waiting' (for longer than linger + 1 s)
    lane: str  # 'open' or 'slow'
    lane_reason: str  # why it is in the slow lane (a LaneReason's value); '' in the open one
    oldest_age_s: float  # of its oldest record without outcome
    buffer_bytes: int  # that its records take

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a producer does right now."""

    open_gaps: tuple[Gap, ...]
    open_stalls: tuple[Stall, ...]
    held_up: tuple[HeldUp, ...]
    buffer_bytes: int  # of unsettled records
    buffer_limit_bytes: int
    headroom_s: float | None  # until the buffer is full if nothing leaves it; None: nothing comes
    settings: Mapping[str, Any] = field(default_factory=dict)  # in plain JSON types, no secrets

    @property
    def ok(self) -> bool:
        """Every partition that was written to accepts."""
        return not self.open_gaps and not self.open_stalls

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return {
            "ok": self.ok,
            "open_gaps": [gap.to_dict() for gap in self.open_gaps],
            "open_stalls": [stall.to_dict() for stall in self.open_stalls],
            "held_up": [held.to_dict() for held in self.held_up],
            "buffer_bytes": self.buffer_bytes,
            "buffer_limit_bytes": self.buffer_limit_bytes,
            "headroom_s": self.headroom_s,
            "settings": dict(self.settings),
        }
