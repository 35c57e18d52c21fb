"""Pipes and links of the simulator's network: what is under way on a connection, and where.

A link is one connection with both its ends, and two pipes. A parcel in a pipe is either *held* on
the sender's host (nothing passes at the moment: the kernel sends it again and again), or *under
way*, and then it arrives unless a reset loses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.parser import KafkaProtocol

from outlast.engine.messages import Connection
from outlast.testing.wire import WireConnect, WireRequest

FIRST_RETRANSMIT_S = 0.2  # Linux: the shortest time-out; each next one takes twice as long
MAX_RETRANSMITS = 15


@dataclass(slots=True)
class Parcel:
    """What is carried: its arrival is a call."""

    deliver: Callable[[float], None]
    put_at: float
    lost: bool = False


@dataclass(slots=True)
class Pipe:
    """One direction of a connection."""

    held: deque[Parcel] = field(default_factory=deque)  # on the sender's host
    under_way: deque[Parcel] = field(default_factory=deque)
    last_at: float = 0.0

    def lose_tail(self, keep: int) -> None:
        """All but the first `keep` parcels under way never arrive, nor does what is held."""
        while len(self.under_way) > keep:
            self.under_way.pop().lost = True
        self.held.clear()

    def retransmits(self, now: float) -> int:
        """How often the kernel has sent again what is held, without an acknowledgement."""
        if not self.held:
            return 0
        count, at = 0, self.held[0].put_at + FIRST_RETRANSMIT_S
        while at <= now and count < MAX_RETRANSMITS:
            count += 1
            at += FIRST_RETRANSMIT_S * 2**count
        return count


@dataclass(slots=True)
class Link:
    """One connection, both ends of it."""

    conn: int
    connection: Connection
    address: tuple[str, int]
    protocol: KafkaProtocol
    log: WireConnect
    node_id: int = -1
    state: str = "connecting"  # connecting, setup, open, dead (not yet noticed), gone
    broker_open: bool = False
    deaf: bool = False  # nothing passes on this one, and nobody is told
    to_broker: Pipe = field(default_factory=Pipe)
    to_client: Pipe = field(default_factory=Pipe)
    versions: BrokerVersionData | None = None
    waiting: deque[WireRequest] = field(default_factory=deque)  # sent, no answer yet
    owed: int = 0  # Produce requests among them
    unsent: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<link {self.connection} node={self.node_id} {self.state}>"
