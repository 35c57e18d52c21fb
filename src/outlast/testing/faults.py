"""Faults of the mock cluster: plain values in a list, each with its own match and its own count.

A fault strikes a request that fits every field it sets, inside its time window, `times` times
(None: always). Of those that end a request (errors, losses, cuts) the first that fits strikes, so
that a sequence is written as a sequence:

    cluster.faults += [Error(7, api=INIT_PRODUCER_ID, times=1), CutBefore(api=22, times=1)]

Errors of a Produce request are per partition; one request may meet several.

Crashes, stops, pauses and moves are no faults but verbs of the cluster (`kill`, `stop`, `pause`,
`move_leader`). Rule: no fault holds hidden state; `used` is all there is, and anyone may read it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

PRODUCE = 0


@dataclass(slots=True, kw_only=True)
class Fault:
    """What every fault can be narrowed to. Times are the cluster's, in seconds."""

    node: int | None = None
    api: int | None = None  # API key
    topic: str | None = None
    partition: int | None = None
    connection: Hashable | None = None
    times: int | None = None
    after_s: float = -inf
    until_s: float = inf
    used: int = 0

    def __post_init__(self) -> None:
        if self.partition is not None and self.topic is None:
            raise ValueError(f"partition={self.partition} of which topic? Give topic=, too.")

    def fits(
        self,
        node: int,
        now: float,
        api: int | None = None,
        connection: Hashable | None = None,
        partitions: Sequence[tuple[str, int]] = (),
    ) -> bool:
        """Would it strike a request like this, now?"""
        return (
            (self.node is None or self.node == node)
            and (self.api is None or self.api == api)
            and (self.connection is None or self.connection == connection)
            and self.after_s <= now < self.until_s
            and (self.times is None or self.used < self.times)
            and (self.topic is None or self._fits_one_of(partitions))
        )

    def _fits_one_of(self, partitions: Iterable[tuple[str, int]]) -> bool:
        return any(
            self.topic == topic and self.partition in (None, partition)
            for topic, partition in partitions
        )


@dataclass(slots=True)
class Error(Fault):
    """Answer `code` and do nothing. For Produce: per partition, at its leader, nothing appended;
    `hint` = (leader, epoch) goes with it. For Metadata (api=3): the topic's error code.
    """

    code: int
    api: int | None = field(default=PRODUCE, kw_only=True)
    hint: tuple[int, int] | None = None
    message: str | None = None


@dataclass(slots=True)
class ErrorAfter(Fault):
    """Append (or recognise a repeat), then answer `code` with the real base_offset, at once."""

    code: int
    api: int | None = field(default=PRODUCE, kw_only=True)


@dataclass(slots=True)
class LoseRequest(Fault):
    """Read, never served, never answered; the connection stays open. `blocks`: what is behind
    it waits for ever, as on a real broker (C18); False: goes on without it.
    """

    blocks: bool = True


@dataclass(slots=True)
class LoseResponse(Fault):
    """Served, never answered; the connection stays open. `blocks` as for `LoseRequest`."""

    blocks: bool = True


@dataclass(slots=True)
class CutBefore(Fault):
    """The connection is reset with this request unserved and lost."""


@dataclass(slots=True)
class CutAfter(Fault):
    """Served, then the connection is reset without an answer."""


@dataclass(slots=True)
class Slow(Fault):
    """Served at once, answered `delay_s` later; what is behind it on the connection waits."""

    delay_s: float


@dataclass(slots=True)
class Throttle(Fault):
    """Answered at once with `throttle_s` as its throttle time, then deaf for that long (C21)."""

    throttle_s: float


@dataclass(slots=True)
class Garble(Fault):
    """The answer's bytes are cut to `keep`, or the bits `mask` of byte `flip` are inverted
    (negative: from the end).
    """

    keep: int | None = None
    flip: int | None = None
    mask: int = 0xFF

    def spoil(self, frame: bytes) -> bytes:
        """The answer as it goes out."""
        if self.keep is not None:
            return frame[: self.keep]
        spoilt = bytearray(frame)
        if self.flip is not None and -len(spoilt) <= self.flip < len(spoilt):
            spoilt[self.flip] ^= self.mask
        return bytes(spoilt)


@dataclass(slots=True)
class Blackhole(Fault):
    """The network between clients and the node swallows everything, both ways, with no reset.
    The node itself lives on. New connects should hang: see `MockCluster.hangs`.
    """


@dataclass(slots=True)
class Freeze(Fault):
    """The node's sockets stay up and nothing is read; served in order when the window ends.
    The cluster does not notice (for a node that stops altogether use `MockCluster.pause`).
    """


@dataclass(slots=True)
class SlowFollower(Fault):
    """What a leader appends reaches the follower `node`, and the leader knows it, only `delay_s`
    later (in place of `replication_s`), but no later than when the window ends. The follower
    stays in sync. `delay_s` may be changed at any time; a fetch that has begun keeps its own.
    """

    delay_s: float


@dataclass(slots=True)
class ConnectionLimit(Fault):
    """The node takes a connection beyond `limit` and closes it at once; those that stand go on
    (max.connections.per.ip).
    """

    limit: int


@dataclass(slots=True)
class MetadataLag(Fault):
    """The node learns changes in time but tells them (Metadata, hints) only `lag_s` later."""

    lag_s: float


@dataclass(slots=True)
class MetadataLeaderless(Fault):
    """Metadata shows leader −1 with LEADER_NOT_AVAILABLE for the partition."""


@dataclass(slots=True)
class LeaderNotListed(Fault):
    """Metadata names the partition's leader but leaves that node out of the broker list."""


@dataclass(slots=True)
class ForgetProducer(Fault):
    """The leader forgets all producer state of the partition before it looks at the batch."""


AnyFault = TypeVar("AnyFault", bound=Fault)


def strike(
    faults: list[Fault],
    kind: type[AnyFault],
    node: int,
    now: float,
    *,
    api: int | None = None,
    connection: Hashable | None = None,
    partitions: Sequence[tuple[str, int]] = (),
) -> AnyFault | None:
    """The first fault of this kind that fits, counted as used; None if there is none."""
    for fault in faults:
        if type(fault) is kind and fault.fits(node, now, api, connection, partitions):
            fault.used += 1
            return fault
    return None


Fate = LoseRequest | LoseResponse | CutBefore | CutAfter


def choose_fate(
    faults: list[Fault],
    node: int,
    now: float,
    *,
    api: int,
    connection: Hashable,
    partitions: Sequence[tuple[str, int]],
) -> Fate | None:
    """The loss or cut that ends a request, counted as used; None if an error comes first."""
    for fault in faults:
        if isinstance(fault, (Error, ErrorAfter, LoseRequest, LoseResponse, CutBefore, CutAfter)):
            if not fault.fits(node, now, api, connection, partitions):
                continue
            if isinstance(fault, (Error, ErrorAfter)):
                return None
            fault.used += 1
            return fault
    return None
