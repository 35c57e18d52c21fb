"""What coordinators know, and who they are: `__transaction_state` and `__consumer_offsets`.

Theory. A key, that is a transactional id or a group, belongs to one partition of its topic, and
whoever leads that coordinates the key. What the coordinator knows is what the log says, so it
survives like any record: it is replicated, elections find it, and a change counts only once the
in-sync replicas have it. The topic is made when somebody first asks for a coordinator. Who has just
become leader reads the log first (14); who is none says so (16).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outlast.testing.batches import BatchHeader, StoredBatch, read_header
from outlast.testing.cluster_settings import draw
from outlast.testing.codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
)
from outlast.testing.replica import Replica
from outlast.testing.replication import wake_followers
from outlast.testing.transaction_index import plain_batch

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.node import Node

TRANSACTIONS, OFFSETS = "__transaction_state", "__consumer_offsets"
INTERNAL = (TRANSACTIONS, OFFSETS)
REPLICATION, MIN_ISR = 3, 2

WRITE_TIMEOUT_S = 30.0

Written = Callable[[int, float], None]  # an error code, and when


class Entry(StoredBatch):
    """A batch of an internal topic, with what its record says."""

    __slots__ = ("told",)

    def __init__(
        self, raw: bytes, header: BatchHeader, replica: Replica, told: Any, now: float
    ) -> None:
        end, epoch = replica.log_end_offset, replica.state.epoch
        super().__init__(raw, header, end, epoch, replica.node_id, now)
        self.told = told


class Seat:
    """One partition of an internal topic, while a node leads it at one leader epoch."""

    __slots__ = ("cluster", "epoch", "loaded", "node", "replica")

    def __init__(self, cluster: MockCluster, node: Node, replica: Replica) -> None:
        self.cluster = cluster
        self.node = node
        self.replica = replica
        self.epoch = replica.state.epoch
        self.loaded = False

    @property
    def held(self) -> bool:
        """Does the node, as far as it knows, lead the partition still?"""
        key = (self.replica.topic, self.replica.partition)
        return self.replica.leading and self.node.seats.get(key) is self

    def load(self, now: float) -> None:  # noqa: ARG002  (who goes on from there needs it)
        """The log is read."""
        self.loaded = True

    def write(
        self,
        key: str,
        told: Any,
        done: Written,
        now: float,
        *,
        producer: tuple[int, int] = (-1, -1),
    ) -> None:
        """Put an entry into the log; `done` with 0 once it is safe, with 15 or 16 if it is not."""
        replica, cluster = self.replica, self.cluster
        assert self.held, self
        if len(replica.state.isr) < replica.min_isr:
            done(COORDINATOR_NOT_AVAILABLE, now)
            return
        records = [(key.encode(), repr(told).encode())]
        raw = plain_batch(*producer, records, cluster.unix_ms(now))
        header = read_header(raw)
        assert header is not None
        entry = Entry(raw, header, replica, told, now)
        replica.append(entry)
        self._await(entry, done, now)
        replica.advance(now)
        wake_followers(cluster, replica, now)

    def _await(self, entry: Entry, done: Written, now: float) -> None:
        waiting = [done]

        def settle(code: int, now: float) -> None:
            if waiting:
                waiting.pop()(code, now)

        def reached(code: int, now: float) -> None:
            timer.cancel()
            settle(NOT_COORDINATOR if code else 0, now)

        timer = self.node.at(now + WRITE_TIMEOUT_S, settle, COORDINATOR_NOT_AVAILABLE)
        self.replica.wait_for(entry.next_offset, reached)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.replica!r} {'' if self.loaded else 'loading'}>"


SEATS: dict[str, Callable[[MockCluster, Node, Replica], Seat]] = {OFFSETS: Seat}


def take_seat(cluster: MockCluster, node: Node, replica: Replica, now: float) -> None:
    """The node leads a partition of an internal topic from now on, and begins to read its log."""
    seat = SEATS[replica.topic](cluster, node, replica)
    node.seats[(replica.topic, replica.partition)] = seat
    load_s = draw(cluster.settings.coordinator_load_s, cluster.rng) if replica.batches else 0.0
    if load_s > 0:
        node.at(now + load_s, _load, seat)
    else:
        seat.load(now)


def _load(seat: Seat, now: float) -> None:
    if seat.held:
        seat.load(now)


def find_seat(node: Node, topic: str, key: str) -> Seat | int:
    """Where this node coordinates the key, or why it does not (14, 16)."""
    index = partition_at(node, topic, key)
    seat = node.seats.get((topic, index))
    if seat is None or not seat.held:
        return NOT_COORDINATOR
    return seat if seat.loaded else COORDINATOR_LOAD_IN_PROGRESS


def partition_at(node: Node, topic: str, key: str) -> int:
    """The partition that a key belongs to, as this node knows the topic; −1: it does not."""
    known = node.view.topics.get(topic)
    return partition_of(key, len(known[1])) if known else -1


def partition_of(key: str, count: int) -> int:
    """The partition that a key belongs to, by Java's hash of it."""
    value = 0
    units = key.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return 0 if value == 1 << 31 else abs(signed) % count


def coordinator_of(cluster: MockCluster, node: Node, topic: str, key: str, now: float) -> int:
    """Who coordinates the key, as this node may tell; −1: nobody yet. Makes the topic if needed."""
    make_topic(cluster, topic, now)
    state = node.view.state(topic, partition_at(node, topic, key))
    return -1 if state is None or state.leader not in node.view.brokers else state.leader


def make_topic(cluster: MockCluster, topic: str, now: float) -> None:
    """Make an internal topic if it is not there."""
    if topic in cluster.topics:
        return
    count = min(REPLICATION, len(cluster.nodes))
    partitions, min_isr = cluster.settings.coordinator_partitions, min(MIN_ISR, count)
    cluster.create_topic(topic, partitions, replication=count, min_isr=min_isr, now=now)
