"""A client's connection and the requests on it: one at a time, in order (S8, C18)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlast.testing.request_log import RequestRecord

if TYPE_CHECKING:
    from outlast.testing.faults import Fate
    from outlast.testing.node import Node
    from outlast.testing.timeline import Timer


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole response for a connection, without its 4-byte length."""

    connection: Any  # as the driver named it
    frame: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """The node ends the connection: with a reset, or in order."""

    connection: Any  # as the driver named it
    reset: bool


class Connection:
    """One client connection at one node, also after its end while requests of it remain."""

    __slots__ = ("busy", "deaf_until_s", "ended", "name", "node", "queue", "stuck", "wake_up")

    def __init__(self, name: Hashable, node: Node) -> None:
        self.name = name
        self.node = node
        self.queue: deque[Exchange] = deque()
        self.busy: Exchange | None = None  # taken, not answered: nothing else is read (S8)
        self.deaf_until_s = 0.0  # throttled (C21)
        self.stuck = False  # nothing on it is ever answered again (S13)
        self.ended = False  # no client listens
        self.wake_up: Timer | None = None

    def __repr__(self) -> str:
        flags = [
            name
            for name, on in (("ended", self.ended), ("busy", self.busy), ("stuck", self.stuck))
            if on
        ]
        return (
            f"<Connection {self.name!r} to {self.node.node_id} {len(self.queue)} waiting {flags}>"
        )


class Exchange:
    """One request and its answer. `request` is None if the bytes could not be read."""

    __slots__ = (
        "client_id",
        "connection",
        "correlation_id",
        "fate",
        "hold_s",
        "not_before_s",
        "produce",
        "record",
        "request",
        "version",
    )

    def __init__(self, connection: Connection, record: RequestRecord) -> None:
        self.connection = connection
        self.record = record
        self.request: Any = None
        self.version = record.version
        self.correlation_id = 0
        self.client_id: str | None = None
        self.produce: Any = None  # what apis_produce made of a Produce request on receipt
        self.fate: Fate | None = None  # a loss or cut that ends it; then no error strikes
        self.hold_s = 0.0  # its answer is to go out so much later (fault Slow)
        self.not_before_s = 0.0  # left in a closed connection: taken then

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """The partitions a Produce request names."""
        return [(part.topic, part.partition) for part in self.record.partitions]

    def __repr__(self) -> str:
        return f"<Exchange api={self.record.api_key} v{self.version} #{self.correlation_id}>"
