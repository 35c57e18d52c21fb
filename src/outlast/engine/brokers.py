"""Connections to brokers, as the engine sees them: named, counted, timed; never a socket.

Rules:
* At most one connection per node and role. An event that names an older serial is ignored: its
  connection was given up, and what was unanswered on it is accounted for already.
* Answers come in the order of sending, so what is unanswered on a link is a queue.
* A connect that succeeds proves nothing; `connected` comes only after an answer (A25).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf

from outlast.engine.batch import Batch
from outlast.engine.messages import Connect, Connection, Role
from outlast.engine.partition import Partition

ANSWERS_KEPT = 15  # of a link, to know its usual answer time
UNREACHABLE_FOR_S = 1.0  # beyond its back-off: how long a failed connect is believed
DOWN_FOR_S = 30.0  # replica.lag.time.max.ms: for no longer is a dead follower waited for
SLOW_IDLE_MAX_S = 10.0  # a slow lane that nobody needs any more
NARROW_FOR_S = 300.0  # how long a peer that seems to take no large request gets small ones


class Question(Enum):
    """What a request asks."""

    PRODUCE = "produce"
    METADATA = "metadata"
    PRODUCER_ID = "producer_id"
    COORDINATOR = "coordinator"  # who it is
    TRANSACTION = "transaction"  # what a coordinator is asked


@dataclass(slots=True)
class Pending:
    """A request that was sent and is not answered."""

    token: int
    question: Question
    sent_s: float
    deadline_s: float
    batches: list[tuple[Partition, Batch]]
    broker_timeout_s: float = 0.0  # what a Produce request gives the broker to wait for followers
    about: tuple[int, str] | None = None  # whose coordinator is asked for

    @property
    def size_bytes(self) -> int:
        """Of its batches."""
        return sum(batch.size_bytes for _, batch in self.batches)


class Link:
    """The present connection of one node and role, and when the next may be tried."""

    __slots__ = (
        "answer_times_s",
        "answered_s",
        "api_versions",
        "begun_s",
        "connection",
        "cut_bytes",
        "failing_since_s",
        "failures",
        "line_after",
        "line_due_s",
        "narrow_bytes",
        "narrow_until_s",
        "node_id",
        "pending",
        "quickest_s",
        "ready",
        "ready_s",
        "retry_s",
        "role",
        "served_s",
        "stalled_s",
        "throttled_until_s",
        "unreachable_since_s",
        "used_s",
    )

    def __init__(self, node_id: int, role: Role) -> None:
        self.node_id = node_id
        self.role = role
        self.connection: Connection | None = None
        self.ready = False  # connected, with ApiVersions and authentication done
        self.begun_s = 0.0  # when the present connect began
        self.ready_s = 0.0
        self.used_s = 0.0
        self.answered_s = 0.0  # the last answer on this connection, its handshake included
        self.answer_times_s: list[float] = []  # the last of them
        self.served_s = 0.0  # what the last answer took, apart from those that were before it
        self.quickest_s = inf  # the least of one that had no other before it: the way and an ack
        self.line_due_s = inf  # when to see whether the others stand in line behind late answers …
        self.line_after: Collection[tuple[str, int]] = ()  # … the last was that of these partitions
        self.stalled_s = 0.0  # when the last answer came that a follower had held back
        self.throttled_until_s = 0.0  # the broker reads nothing from us before (KIP-219)
        self.failures = 0  # connects in a row that came to nothing
        self.failing_since_s = 0.0
        self.unreachable_since_s: float | None = None  # connects fail, since this one began
        self.retry_s = 0.0  # no connect before this
        self.cut_bytes = 0  # of the request on which the peer closed; 0: it answered as much since
        self.narrow_bytes = 0  # the most that a request may hold …
        self.narrow_until_s = 0.0  # … until then
        self.pending: list[Pending] = []  # a few: a deque begins with room for 64
        self.api_versions: Mapping[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        state = "ready" if self.ready else "connecting" if self.connection else "down"
        return f"<Link {self.node_id}/{self.role.value} {state} pending={len(self.pending)}>"

    @property
    def down(self) -> bool:
        """No connection, and none under way."""
        return self.connection is None

    def waiting_since_s(self) -> float | None:
        """Since when the node owes us something on this link (None: nothing)."""
        if self.pending:
            return self.pending[0].sent_s
        return self.begun_s if self.connection is not None and not self.ready else None

    def deadline_s(self, idle_max_s: float) -> float | None:
        """When the oldest unanswered request times out, or else the link has idled too long."""
        if self.pending:
            return self.pending[0].deadline_s
        if self.role is Role.SLOW:
            idle_max_s = min(idle_max_s, SLOW_IDLE_MAX_S)
        if not self.ready:
            return None
        return max(self.used_s, self.throttled_until_s) + idle_max_s

    def room_bytes(self, usual_bytes: int, now: float) -> int:
        """How much a request may hold now."""
        return usual_bytes if now >= self.narrow_until_s else min(usual_bytes, self.narrow_bytes)

    def cut(self, unanswered: Iterable[Pending], least_bytes: int, now: float) -> bool:
        """The peer closed instead of answering. A second time in a row it may be that it takes no
        request of that size (its socket.request.max.bytes): then half of it is the most, but not
        less than `least_bytes`. True: it is less than it was.
        """
        cut_bytes = max(pending.size_bytes for pending in unanswered)
        if not self.cut_bytes or cut_bytes <= least_bytes:
            self.cut_bytes = cut_bytes
            return False
        self.cut_bytes = 0
        self.narrow_bytes = max(cut_bytes // 2, least_bytes)
        self.narrow_until_s = now + NARROW_FOR_S
        return True

    def forget_failure(self, now: float) -> None:
        """That it could not be opened says nothing any more where nobody has tried since."""
        if self.down and now >= self.retry_s + UNREACHABLE_FOR_S:
            self.unreachable_since_s = None

    def throttled(self, throttle_s: float, now: float) -> None:
        """The broker reads nothing from this connection for a while (KIP-219): that time counts
        neither as silence nor against what is unanswered.
        """
        until_s = max(self.throttled_until_s, now + throttle_s)
        longer_s = until_s - max(self.throttled_until_s, now)
        self.throttled_until_s = until_s
        for pending in self.pending:
            pending.deadline_s += longer_s


class Brokers:
    """All links of a producer."""

    __slots__ = ("_links", "_serial", "_token", "answered_s", "closed", "down", "suspected")

    def __init__(self) -> None:
        self._links: dict[tuple[int, Role], Link] = {}
        self._serial = 0
        self._token = 0
        self.answered_s: dict[int, float] = {}  # node → its last answer, on any connection
        self.suspected: dict[int, None] = {}  # nodes that owe an answer for too long
        self.down: dict[int, float] = {}  # nodes silent or refusing connects, since when
        self.closed: list[tuple[float, Connection]] = []  # that were ready, until the hub has told

    def __repr__(self) -> str:
        return f"<Brokers {list(self._links.values())}>"

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def up(self) -> list[Link]:
        """Those with a connection, or one under way."""
        return [link for link in self._links.values() if link.connection is not None]

    def any_unreachable(self) -> bool:
        """Whether some connection cannot be opened, as far as is known."""
        return any(link.unreachable_since_s is not None for link in self._links.values())

    def next_token(self) -> int:
        """A name for one request."""
        self._token += 1
        return self._token

    def link(self, node_id: int, role: Role) -> Link:
        """The link of this node and role; made when first asked for."""
        key = (node_id, role)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(node_id, role)
        return link

    def current(self, connection: Connection) -> Link | None:
        """The link that an event speaks of, or None if its connection was given up."""
        link = self._links.get((connection.node_id, connection.role))
        return link if link is not None and link.connection == connection else None

    def connect(self, link: Link, host: str, port: int, now: float) -> Connect:
        """Begin a connection."""
        assert link.down
        self._serial += 1
        link.connection = Connection(link.node_id, link.role, self._serial)
        link.ready = False
        link.throttled_until_s = 0.0  # it was told to the old connection
        link.begun_s = now
        link.used_s = now
        return Connect(link.connection, host, port)

    def connected(
        self, link: Link, api_versions: Mapping[int, tuple[int, int]], now: float
    ) -> None:
        """The connection can carry requests. That took an answer from the node."""
        link.ready = True
        link.ready_s = link.used_s = link.answered_s = now
        link.api_versions = api_versions
        link.retry_s = now
        link.unreachable_since_s = None
        self._heard(link.node_id, now)

    def answered(self, link: Link, token: int, now: float) -> Pending | None:
        """The oldest request was answered; None if the token is not its own."""
        self._heard(link.node_id, now)
        before_s, link.used_s, link.answered_s = link.answered_s, now, now
        if not link.pending or link.pending[0].token != token:
            return None
        pending = link.pending.pop(0)
        link.served_s = now - max(pending.sent_s, before_s, min(now, link.throttled_until_s))
        link.line_due_s = inf
        if pending.sent_s >= before_s:  # else the way is not in it
            link.quickest_s = min(link.quickest_s, link.served_s)
        link.answer_times_s.append(now - pending.sent_s)
        del link.answer_times_s[:-ANSWERS_KEPT]
        if link.cut_bytes and pending.size_bytes >= link.cut_bytes:
            link.cut_bytes = 0
        return pending

    def _heard(self, node_id: int, now: float) -> None:
        self.answered_s[node_id] = now
        self.down.pop(node_id, None)

    def drop(self, link: Link, now: float) -> list[Pending]:
        """The connection is over; returns what was unanswered on it."""
        if link.ready and link.connection is not None:
            self.closed.append((now, link.connection))
        unanswered, link.pending = link.pending, []
        link.line_due_s = inf
        link.connection = None
        link.ready = False
        return unanswered

    def fail(self, link: Link, now: float) -> None:
        """A connection came to nothing: the caller sets `retry_s` by its schedule."""
        if not link.failures:
            link.failing_since_s = now
        link.failures += 1

    def unreachable(self, link: Link, now: float) -> None:
        """Its last connect came to nothing. If nothing else reaches the node, that is down."""
        if link.unreachable_since_s is None:
            link.unreachable_since_s = link.begun_s
        others = (self._links.get((link.node_id, role)) for role in Role)
        reached = any(other is not None and other.ready for other in others)
        if link.node_id >= 0 and not reached and now - link.unreachable_since_s <= DOWN_FOR_S:
            self.down.setdefault(link.node_id, link.unreachable_since_s)

    def forget_down(self, now: float) -> None:
        """What went down long ago is in no ISR any more; where it is, it is up again."""
        for node_id, since_s in list(self.down.items()) if self.down else ():
            if now - since_s > DOWN_FOR_S:
                del self.down[node_id]

    def revive(self, node_id: int, now: float) -> None:
        """Metadata names the node alive: its reconnect back-off starts anew."""
        self.down.pop(node_id, None)
        for role in Role:
            link = self._links.get((node_id, role))
            if link is not None and link.down:
                link.failures = 0
                link.retry_s = min(link.retry_s, now)

    def forget_all_but(self, node_ids: Collection[int]) -> None:
        """Nodes that the cluster does not have any more, once no link of theirs is in use."""
        gone = {link.node_id for link in self if link.node_id >= 0} - set(node_ids)
        gone -= {link.node_id for link in self if not link.down}
        for node_id in gone:
            for role in Role:
                self._links.pop((node_id, role), None)
            self.answered_s.pop(node_id, None)
            self.down.pop(node_id, None)
