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

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from outlast.engine.outcomes import (
    AttemptRecord as AttemptRecord,
    AttemptState as AttemptState,
    Cause as Cause,
    Failure as Failure,
    Gap as Gap,
    GapEnd as GapEnd,
    GapOutcome as GapOutcome,
    Health as Health,
    HeldUp as HeldUp,
    LaneReason as LaneReason,
    Outcome as Outcome,
    Phase as Phase,
    Stall as Stall,
    StallEnd as StallEnd,
    place_name as place_name,
)

if TYPE_CHECKING:
    from outlast.engine.batch import Batch


class Role(Enum):
    """What a connection is for. A waiting produce blocks everything behind it (S8)."""

    OPEN = "open"  # produce lane of partitions whose acks come in usual time
    SLOW = "slow"  # produce lane of partitions that wait for a stuck follower
    CONTROL = "control"  # Metadata, InitProducerId, FindCoordinator
    COORDINATOR = "coordinator"  # what transactions ask
    PROBE = "probe"  # is a silent node alive?

    __hash__ = object.__hash__  # of names, as Enum does it, costs a call of Python for each look-up


PRODUCE_ROLES = (Role.OPEN, Role.SLOW)


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


@dataclass(slots=True)  # frozen, each one of a batch would take four times as long to make
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
    cluster_id: str = ""  # '' until a broker tells


@dataclass(frozen=True, slots=True)
class TopicGone:
    """The cluster has no such topic any more, or no such partition, and nothing of it is left."""

    at_s: float
    topic: str
    partition: int | None = None  # None: all of them


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt to deliver a batch did not deliver it: how that was judged. Where a connection
    ends, once for each partition.
    """

    at_s: float
    topic: str
    partition: int
    verdict: str  # refresh, retry, unsure, resequence, split, fail_batch
    error: str  # protocol name of the answer, or of the loss


@dataclass(frozen=True, slots=True)
class BufferLevel:
    """How full the send buffer is; at most once a second, and only if it matters."""

    at_s: float
    used_bytes: int
    limit_bytes: int
    headroom_s: float | None  # until it is full if nothing leaves it; None: nothing comes


@dataclass(frozen=True, slots=True)
class SendersBlocked:
    """Threads wait, or waited, in `send()`; at most once a second."""

    at_s: float
    reason: str  # as in `Waiting`: memory, share, metadata
    waiting: int  # threads, now
    blocked_s: float  # of all of them together, since it was last told


@dataclass(slots=True)
class RecordsSettled:
    """Records of one batch were acknowledged or failed. The one fact that comes with each batch."""

    at_s: float
    topic: str
    partition: int
    acked: int
    failed: int
    oldest_age_s: float  # of the batch's first record


@dataclass(frozen=True, slots=True)
class LaneChanged:
    """A partition's requests go over the other produce connection of its leader from now on, or
    stay in the slow one for another reason.
    """

    at_s: float
    topic: str
    partition: int
    node_id: int
    lane: Role  # OPEN or SLOW
    reason: LaneReason


@dataclass(frozen=True, slots=True)
class Throttled:
    """A broker told us to send nothing over this connection for a while (a quota, KIP-219)."""

    at_s: float
    connection: Connection
    throttle_s: float


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """A connection can carry requests."""

    at_s: float
    connection: Connection
    address: str
    duration_s: float  # of connecting, TLS, ApiVersions and authentication together


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """A connection that had been opened is over, for whatever reason (also after its
    `ConnectionLost`, and where the producer itself gave it up).
    """

    at_s: float
    connection: Connection


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
    | TopicGone
    | AttemptFailed
    | BufferLevel
    | SendersBlocked
    | RecordsSettled
    | LaneChanged
    | Throttled
    | ConnectionOpened
    | ConnectionClosed
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
