"""What crosses the engine's border: commands out, completions out, facts out.

The engine (`sender.Sender`) takes events and the time, and gives back three kinds of values:

* **commands** are for the driver: connect, send, disconnect;
* **completions** are for the application: records settled, room granted, metadata known;
* **facts** are for observers only: nothing that the engine does depends on who reads them.

Rules of this file: values only, no behaviour; commands and facts are frozen; every time is
monotonic seconds unless its name says `unix`. The engine names a connection, never a socket, and
gives `kafka.protocol` request objects, never bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.engine.batch import Batch


class Role(Enum):
    """What a connection is for. A waiting produce blocks everything behind it (S8)."""

    OPEN = "open"  # produce lane of partitions whose acks come in usual time
    SLOW = "slow"  # produce lane of partitions that wait for a stuck follower
    CONTROL = "control"  # Metadata, InitProducerId
    PROBE = "probe"  # is a silent node alive?


@dataclass(frozen=True, slots=True)
class Connection:
    """The name of one connection. A later connection of the same node and role has a new serial.

    Bootstrap addresses have negative node ids: -1 for the first, -2 for the second …
    """

    node_id: int
    role: Role
    serial: int

    def __str__(self) -> str:
        return f"{self.node_id}/{self.role.value}#{self.serial}"


# --- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection. Answered by `Sender.connected` or `Sender.disconnected`, exactly once."""

    connection: Connection
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Send:
    """Hand one request to an open connection.

    Answered by `Sender.responded(connection, token, response, now)` when `expects_answer`;
    answers of one connection come in the order of sending. `request` is used once.
    """

    connection: Connection
    token: int
    request: Any
    expects_answer: bool = True


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Give a connection up: abort it if `abort` (SO_LINGER 1, 0: what has not left this host
    never will), else close it. No event follows; the engine has already forgotten it.
    """

    connection: Connection
    abort: bool


@dataclass(frozen=True, slots=True)
class Inspect:
    """Ask the kernel how many retransmits a connection's socket waits for (Linux: TCP_INFO).

    Answered by `Sender.inspected(connection, retransmits, now)`; not at all where the kernel does
    not tell.
    """

    connection: Connection


Command = Connect | Send | Disconnect | Inspect


class Loss(Enum):
    """Why a connection ended (argument of `Sender.disconnected`)."""

    UNRESOLVED = "unresolved"  # the host name has no address
    REFUSED = "refused"  # connect was refused or unreachable: nothing was sent
    SETUP_TIMEOUT = "setup_timeout"  # TCP, TLS, ApiVersions and SASL took too long together
    AUTHENTICATION = "authentication"  # TLS or SASL said no
    UNSUPPORTED = "unsupported"  # the broker speaks no version that we need
    CLOSED = "closed"  # the peer closed or reset it
    BAD_BYTES = "bad_bytes"  # an answer that could not be read


# --- completions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settled:
    """Records of one batch have their final outcome: it is in the batch (`batch.result`)."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Granted:
    """The waiter with this ticket should try again now: room was reserved, or metadata came."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Compress:
    """A closed batch wants compressing, which takes long (1 MiB of gzip: 56 ms): do it with the
    lock released and hand `batch.compressed()` back to `Sender.compressed`.
    """

    batch: Batch


Completion = Settled | Granted | Compress


# --- outcomes -----------------------------------------------------------------------------------


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
    'topic_gone', 'forked', 'too_old'.
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
    ABANDONED = "abandoned"  # five minutes without a usable leader and nothing waiting
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One partition's time from the first attempt refused (or come to nothing) to the first
    accepted one. Phases add up to `duration_s`. Immutable: a snapshot of the recorder's state.
    """

    topic: str
    partition: int
    number: int  # counts this producer's gaps from 1
    cause: Cause
    trigger: str  # protocol name of the first signal, such as NOT_LEADER_OR_FOLLOWER
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
    begin_s: float  # monotonic: when the oldest unacknowledged batch was sent
    begin_unix_s: float
    duration_s: float  # so far, while `ended_by` is None
    ended_by: StallEnd | None = None

    def to_dict(self) -> dict[str, Any]:
        """The stall as plain JSON types."""
        return {k: v.value if isinstance(v, Enum) else v for k, v in asdict(self).items()}


# --- facts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """A partition got its first record: per-partition counters start at 0 now."""

    at_s: float
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GapOpened:
    """A gap was opened (its begin may lie before `at_s`)."""

    at_s: float
    gap: Gap


@dataclass(frozen=True, slots=True)
class GapAdvanced:
    """An open gap changed its phase, or a second has passed."""

    at_s: float
    gap: Gap


@dataclass(frozen=True, slots=True)
class GapEnded:
    """A gap is over: its duration and phases are final, its outcome may not be."""

    at_s: float
    gap: Gap


@dataclass(frozen=True, slots=True)
class GapSettled:
    """The records that met a gap are all settled: its outcome is final. Comes once, last."""

    at_s: float
    gap: Gap


@dataclass(frozen=True, slots=True)
class StallOpened:
    """A partition stalls (since before `at_s`)."""

    at_s: float
    stall: Stall


@dataclass(frozen=True, slots=True)
class StallAdvanced:
    """A second of an open stall has passed."""

    at_s: float
    stall: Stall


@dataclass(frozen=True, slots=True)
class StallEnded:
    """A stall is over."""

    at_s: float
    stall: Stall


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The engine now uses another leader, or the same one at another epoch."""

    at_s: float
    topic: str
    partition: int
    old_leader: int
    old_leader_epoch: int
    new_leader: int
    new_leader_epoch: int
    by_hint: bool  # KIP-951, from a Produce answer; else from Metadata


@dataclass(frozen=True, slots=True)
class PartitionRestarted:
    """A partition took its next producer epoch and numbers from 0 again."""

    at_s: float
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    reason: str  # expired, refused, resequence, recreated


@dataclass(frozen=True, slots=True)
class MetadataRefreshed:
    """A metadata request ended."""

    at_s: float
    node_id: int
    duration_s: float
    ok: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class RecordsSettled:
    """Records of one batch were acknowledged or failed."""

    at_s: float
    topic: str
    partition: int
    acked: int
    failed: int
    oldest_age_s: float  # of the batch's first record


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A connection could not be made, or ended unasked."""

    at_s: float
    connection: Connection
    address: str
    loss: Loss
    detail: str
    unanswered: int


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something for the log, once per episode: a schedule that raised, no broker reachable …"""

    at_s: float
    level: str  # 'warning' or 'error'
    text: str


Fact = (
    PartitionSeen
    | GapOpened
    | GapAdvanced
    | GapEnded
    | GapSettled
    | StallOpened
    | StallAdvanced
    | StallEnded
    | LeaderChanged
    | PartitionRestarted
    | MetadataRefreshed
    | RecordsSettled
    | ConnectionLost
    | Complaint
)


@dataclass(slots=True)
class Outbox:
    """What one or several inputs gave: the driver obeys, settles and reports, in this order."""

    commands: list[Command] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.commands or self.completions or self.facts)
