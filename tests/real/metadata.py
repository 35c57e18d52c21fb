"""Metadata as an admin client sees it, on plain sockets, without a line of outlast.

The judge of "when could anybody know the new leader", or that a replica is given up: `Watch` asks
every node every few ms and notes when the first of them told it.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

_VERSION = 12
_QUOTAS_VERSION = 1


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition in one Metadata answer."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic in one Metadata answer; no partitions when the node does not know it."""

    partitions: Mapping[int, PartitionView]

    def in_sync(self, partitions: int, replication: int) -> bool:
        """Whether all partitions are there, with a leader and all replicas in sync."""
        return len(self.partitions) == partitions and all(
            p.leader >= 0 and len(p.isr) == replication for p in self.partitions.values()
        )


class MetadataConnection:
    """One connection to one node, for an admin's questions. Raises OSError."""

    def __init__(self, host: str, port: int, timeout_s: float = 2.0) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._correlation_id = 0
        self.nodes: tuple[int, ...] = ()  # the broker list of the last answer

    def __enter__(self) -> MetadataConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def topics(self, names: Sequence[str] | None) -> dict[str, TopicView]:
        """Views of the topics named, or of all."""
        topic = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(
            version=_VERSION,
            topics=None if names is None else [topic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        response = self._ask(request, MetadataResponse, _VERSION)
        self.nodes = tuple(broker.node_id for broker in response.brokers)
        return {topic.name: _view(topic) for topic in response.topics}

    def alter_quota(self, client_id: str, bytes_per_s: float | None) -> None:
        """Set a client id's producer_byte_rate on every broker, or take it away."""
        entry = AlterClientQuotasRequest.EntryData
        request = AlterClientQuotasRequest(
            version=_QUOTAS_VERSION,
            entries=[
                entry(
                    entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
                    ops=[
                        entry.OpData(
                            key="producer_byte_rate",
                            value=bytes_per_s or 0.0,
                            remove=bytes_per_s is None,
                        )
                    ],
                )
            ],
            validate_only=False,
        )
        response = self._ask(request, AlterClientQuotasResponse, _QUOTAS_VERSION)
        for told in response.entries:
            assert told.error_code == 0, told

    def _ask(self, request: Any, response: Any, version: int) -> Any:
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id="admin")
        self._socket.sendall(request.encode(version=version, header=True, framed=True))
        (size,) = struct.unpack(">i", self._read(4))
        return response.decode(self._read(size), version=version, header=True)

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ConnectionResetError("closed by the node")
            parts += part
        return bytes(parts)


def _view(topic) -> TopicView:
    return TopicView(
        {
            p.partition_index: PartitionView(
                p.leader_id, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes)
            )
            for p in topic.partitions
        }
    )


@dataclass(frozen=True, slots=True)
class LeaderSeen:
    """The first sight of a leader at an epoch, by whichever node named it first."""

    at_s: float  # monotonic
    leader: int
    leader_epoch: int


@dataclass(slots=True)
class Watch:
    """Watches one topic's leaders and in-sync replicas from several nodes, each on a connection
    and a thread.
    """

    topic: str
    addresses: Mapping[int, tuple[str, int]]
    pause_s: float = 0.01  # between an answer and the next question to the same node
    min_isr: int = 0  # a leader with fewer replicas in sync does not count: nobody may write to it
    _seen: dict[int, dict[int, LeaderSeen]] = field(default_factory=dict)  # partition → epoch
    _shrunk: dict[tuple[int, int], float] = field(default_factory=dict)  # (partition, node)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        for host, port in self.addresses.values():
            thread = threading.Thread(target=self._run, args=(host, port), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def wait_leader_change(
        self, partition: int, *, newer_than: int, timeout_s: float = 30.0
    ) -> LeaderSeen:
        """The first sight of a leader (not -1) at an epoch above `newer_than`."""

        def found() -> LeaderSeen | None:
            epochs = self._seen.get(partition, {})
            newer = [seen for epoch, seen in epochs.items() if epoch > newer_than]
            return min(newer, key=lambda seen: seen.at_s, default=None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, timeout_s), (
                f"no leader of {self.topic}-{partition} after epoch {newer_than} in {timeout_s:g} s"
            )
            seen = found()
        assert seen is not None
        return seen

    def wait_out_of_sync(self, partition: int, node_id: int, timeout_s: float = 30.0) -> float:
        """When the partition's in-sync replicas were first seen without the node (monotonic)."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: (partition, node_id) in self._shrunk, timeout_s
            ), f"{self.topic}-{partition} still counts on node {node_id} after {timeout_s:g} s"
            return self._shrunk[partition, node_id]

    def _run(self, host: str, port: int) -> None:
        connection: MetadataConnection | None = None
        while not self._stopping.wait(self.pause_s):
            try:
                if connection is None:
                    connection = MetadataConnection(host, port)
                view = connection.topics([self.topic])[self.topic]
            except OSError:  # this node is down or silent: others tell, and it is asked again
                if connection is not None:
                    connection.close()
                connection = None
                continue
            self._note(view, time.monotonic())
        if connection is not None:
            connection.close()

    def _note(self, view: TopicView, now: float) -> None:
        with self._changed:
            for index, p in view.partitions.items():
                epochs = self._seen.setdefault(index, {})
                usable = p.leader >= 0 and len(p.isr) >= self.min_isr
                if usable and p.leader_epoch not in epochs:
                    epochs[p.leader_epoch] = LeaderSeen(now, p.leader, p.leader_epoch)
                    self._changed.notify_all()
                for replica in set(p.replicas) - set(p.isr):
                    if (index, replica) not in self._shrunk:
                        self._shrunk[index, replica] = now
                        self._changed.notify_all()
