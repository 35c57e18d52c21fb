"""Three nodes to be hurt, real ones or those of the mock cluster, with the same methods.

`RealCluster` is that of the tests: Apache Kafka on loopback, each node a controller too.
`MockProcess` is our mock in a process of its own, so that it shares no interpreter with what is
measured. Its clocks are those of a real cluster; to a leader's move it adds no delay of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from outlast.testing import KRAFT, MockCluster
from outlast.testing.cluster import MockCluster as Core
from tests.real.kafka_cluster import RealCluster, until
from tests.real.metadata import MetadataConnection, TopicView, Watch

# Followers that rest after a move, a new leader that denies at first that it leads, and nodes that
# learn of it up to 30 ms after the first of them would hide the client's share. (The rest of the
# real cluster's followers is shortened for the same reason.)
MOCK_SETTINGS = replace(
    KRAFT, fetch_backoff_p=0.0, deny_p=0.0, metadata_lag_s=0.001, combined_quorum=True
)
PREFERRED = 0  # of the elections that an administrator may ask for


@dataclass(frozen=True, slots=True)
class MockNode:
    """Where a node of the mock listens."""

    node_id: int
    port: int


class MockProcess:
    """The mock cluster in another process."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs,), daemon=True
        )
        self._process.start()
        theirs.close()
        self.bootstrap: list[str] = self._pipe.recv().split(",")
        ports = [int(address.rpartition(":")[2]) for address in self.bootstrap]
        self.nodes = {n: MockNode(n, port) for n, port in enumerate(ports, 1)}

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(20)

    def sigterm(self, node_id: int) -> None:
        self._ask("stop", node_id)

    def sigkill(self, node_id: int) -> None:
        self._ask("kill", node_id)

    def sigstop(self, node_id: int) -> None:
        self._ask("pause", node_id)

    def sigcont(self, node_id: int) -> None:
        self._ask("resume", node_id)

    def start(self, node_id: int) -> None:
        self._ask("start", node_id)

    def heal(self) -> None:
        """Bring every node back and wait until all is in sync."""
        until(lambda: "stopping" not in self._ask("nodes").values(), "stopped nodes have ended")
        self._ask("heal")
        until(lambda: self._ask("healthy"), "all is well")

    def controller(self) -> int:
        node_id: int = self._ask("call", _controller)
        return node_id

    def create_topic(
        self, name: str, *, assignment: Mapping[int, Sequence[int]], min_isr: int
    ) -> None:
        replicas = [assignment[partition] for partition in range(len(assignment))]
        self._ask("create_topic", name, len(replicas), assignment=replicas, min_isr=min_isr)

    def delete_topic(self, name: str) -> None:
        self._ask("delete_topic", name)

    def topic(self, name: str) -> TopicView:
        with MetadataConnection("127.0.0.1", self.nodes[1].port) as admin:
            return admin.topics([name])[name]

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        self._pipe.send((method, arguments, named))
        return self._pipe.recv()


def _serve(pipe: Connection) -> None:
    """The mock's process: do what is asked of it until there is nothing more."""
    with MockCluster(3, settings=MOCK_SETTINGS) as cluster:
        pipe.send(cluster.bootstrap_servers)
        while (asked := pipe.recv()) is not None:
            method, arguments, named = asked
            pipe.send(getattr(cluster, method)(*arguments, **named))


def _controller(core: Core, _: float) -> int:
    return core.controller_node


Cluster = RealCluster | MockProcess


@contextlib.contextmanager
def opened(kind: str) -> Iterator[Cluster]:
    """A cluster of three nodes, "real" or "mock"."""
    if kind == "mock":
        mock = MockProcess()
        try:
            yield mock
        finally:
            mock.close()
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        real = RealCluster(Path(folder) / "kafka")
        try:
            real.open()
            yield real
        finally:
            real.close()


def victim_of(cluster: Cluster, kill: str, number: int) -> int:
    """The active controller, or else one of the others, each in its turn."""
    controller = cluster.controller()
    others = [node_id for node_id in cluster.nodes if node_id != controller]
    return controller if kill == "controller" else others[number % len(others)]


@contextlib.contextmanager
def watching(
    cluster: Cluster, topic: str, *, without: Collection[int] = (), min_isr: int
) -> Iterator[Watch]:
    """Watch when a leader with enough replicas in sync is first named by one of the nodes."""
    addresses = {i: ("127.0.0.1", n.port) for i, n in cluster.nodes.items() if i not in without}
    watch = Watch(topic, addresses, min_isr=min_isr)
    try:
        yield watch
    finally:
        watch.stop()


class Move:
    """Leaderships on their way to other nodes, as administrators' tools move them: first another
    order of the replicas, then a preferred election.
    """

    def __init__(self, cluster: Cluster, topic: str, orders: Mapping[int, Sequence[int]]) -> None:
        self._topic = topic
        self._partitions = list(orders)
        self._admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        told = self._admin.alter_partition_reassignments(
            {TopicPartition(topic, p): list(order) for p, order in orders.items()}
        )
        assert len(told) == len(orders), told
        assert not any(told.values()), told

    def elect(self) -> None:
        self._admin.elect_leaders(PREFERRED, {self._topic: self._partitions})

    def close(self) -> None:
        self._admin.close()
