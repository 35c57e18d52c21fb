"""The two worlds a rule is asked in: the mock cluster over TCP, and a real Apache Kafka.

A world is three nodes that tests reach over sockets, and the verbs that hurt and mend them. All
that goes over a socket is shared; only the verbs are each world's own.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.admin import KafkaAdminClient
from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest
from kafka.structs import TopicPartition

from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.faults import Throttle
from outlast.testing.server import ClusterServer
from tests.contract import wire
from tests.contract.wire import Wire
from tests.real.kafka_cluster import RealCluster

NODES = (1, 2, 3)
HOG = "contract-hog"
CREATE_TOPICS_VERSION, DELETE_TOPICS_VERSION, FETCH_VERSION, METADATA_VERSION = 5, 5, 11, 12


def until(condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """Ask again and again until the answer is true; AssertionError after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.002)
    return found


class World(ABC):
    """Three nodes. Connections are closed when a test is over (`forget`)."""

    kind: str
    given_up_s: float  # longer than it takes the cluster to give a node up

    def __init__(self) -> None:
        self._wires: list[Wire] = []
        self._names = iter(range(1, 1 << 31))

    # --- each world's own ---

    @abstractmethod
    def address(self, node_id: int) -> tuple[str, int]:
        """Where a node listens."""

    @abstractmethod
    def kill(self, node_id: int) -> None:
        """Crash a node."""

    @abstractmethod
    def stop(self, node_id: int) -> None:
        """Begin a controlled shutdown."""

    @abstractmethod
    def pause(self, node_id: int) -> None:
        """Silence a node."""

    @abstractmethod
    def resume(self, node_id: int) -> None:
        """Wake a silenced node."""

    @abstractmethod
    def start(self, node_id: int) -> None:
        """Start a node that has ended; returns at once."""

    @abstractmethod
    def heal(self) -> None:
        """Bring every node back, whatever was done to it."""

    @abstractmethod
    def victim(self) -> int:
        """A node that is not the active controller."""

    @abstractmethod
    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Ask for a planned move to another replica; returns when it was accepted."""

    @abstractmethod
    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Ask for another replica set; returns when it was accepted."""

    @abstractmethod
    def throttled_client(self) -> str:
        """A client id for which the next 115 kB to a node are 1.5 s over its quota."""

    # --- shared ---

    def connect(self, node_id: int, client_id: str = "contract") -> Wire:
        """A new connection to a node."""
        made = Wire(self.address(node_id), client_id)
        self._wires.append(made)
        return made

    def forget(self) -> None:
        """Close every connection."""
        while self._wires:
            self._wires.pop().close()

    def ask(self, node_id: int, request: Any, version: int) -> Any:
        """One request on a connection of its own."""
        made = Wire(self.address(node_id))
        try:
            return made.send(request, version).answer()
        finally:
            made.close()

    def create_topic(self, *replicas: Sequence[int], **configs: Any) -> str:
        """A topic with these replicas (leader first) of each partition, ready at all nodes.

        `configs` are a topic's, with _ for each dot.
        """
        name = f"contract-{next(self._names)}"
        topic = CreateTopicsRequest.CreatableTopic
        new = topic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                topic.CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
                for index, nodes in enumerate(replicas)
            ],
            configs=[
                topic.CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
                for key, value in configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[new], timeout_ms=10_000, validate_only=False)
        node_id = replicas[0][0]
        (told,) = self.ask(node_id, request, CREATE_TOPICS_VERSION).topics
        assert told.error_code == 0, told
        until(lambda: all(self._knows(n, name, replicas) for n in NODES), f"all know {name}")
        for index, nodes in enumerate(replicas):
            until(lambda i=index, n=nodes[0]: self._leads(n, name, i), f"{name}-{index} is led")
        return name

    def delete_topic(self, name: str, nodes: Sequence[int] = NODES) -> None:
        """Delete a topic, and wait until none of the nodes knows it."""
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        (told,) = self.ask(nodes[0], request, DELETE_TOPICS_VERSION).responses
        assert told.error_code == 0, told
        until(lambda: all(self.topic(n, name).error_code == 3 for n in nodes), f"{name} is gone")

    def brokers(self, node_id: int) -> list[int]:
        """The broker list in a node's metadata."""
        told = self.ask(node_id, wire.metadata(), METADATA_VERSION)
        return sorted(broker.node_id for broker in told.brokers)

    def topic(self, node_id: int, name: str) -> Any:
        """A topic in a node's metadata."""
        (told,) = self.ask(node_id, wire.metadata(name), METADATA_VERSION).topics
        return told

    def partition(self, node_id: int, name: str, index: int = 0) -> Any:
        """A partition in a node's metadata."""
        (found,) = [p for p in self.topic(node_id, name).partitions if p.partition_index == index]
        return found

    def log(self, node_id: int, topic: str, partition: int = 0) -> list[bytes | None]:
        """The values of what consumers see at the leader."""
        told = self._fetched(node_id, topic, partition)
        assert told.error_code == 0, told.error_code
        return wire.values(told.records)

    def in_sync(self, topic: str, index: int = 0) -> bool:
        """Do all nodes see all its replicas in sync?"""
        seen = [self.partition(node_id, topic, index) for node_id in NODES]
        return all(set(p.isr_nodes) == set(p.replica_nodes) for p in seen)

    def _fetched(self, node_id: int, topic: str, partition: int) -> Any:
        told = self.ask(node_id, wire.fetch(topic, partition), FETCH_VERSION)
        return told.responses[0].partitions[0]

    def _leads(self, node_id: int, topic: str, partition: int) -> bool:
        return bool(self._fetched(node_id, topic, partition).error_code == 0)

    def _knows(self, node_id: int, name: str, replicas: Sequence[Sequence[int]]) -> bool:
        topic = self.topic(node_id, name)
        return (
            topic.error_code == 0
            and len(topic.partitions) == len(replicas)
            and all(
                p.leader_id >= 0 and len(p.isr_nodes) == len(p.replica_nodes)
                for p in topic.partitions
            )
        )


class MockWorld(World):
    """The mock, with the followers' back-off of the real one's settings and a quick election."""

    kind = "mock"
    given_up_s = 4.0

    def __init__(self) -> None:
        super().__init__()
        settings = ClusterSettings(
            detect_s=2.5,
            fetch_backoff_p=0.0,
            deny_p=0.0,
            creation_deny_p=0.0,
            combined_quorum=True,
            check_records=True,
            unix_offset_s=time.time() - time.monotonic(),
        )
        self.server = ClusterServer(MockCluster(3, settings=settings, rng=random.Random(1)))

    def address(self, node_id: int) -> tuple[str, int]:
        return self.server.call(lambda cluster, _now: cluster.addresses[node_id])

    def kill(self, node_id: int) -> None:
        self.server.kill(node_id)

    def stop(self, node_id: int) -> None:
        self.server.stop(node_id)

    def pause(self, node_id: int) -> None:
        self.server.pause(node_id)

    def resume(self, node_id: int) -> None:
        self.server.resume(node_id)

    def start(self, node_id: int) -> None:
        self.server.start(node_id)

    def heal(self) -> None:
        for node_id in NODES:
            self.server.resume(node_id)
            self.server.start(node_id)
        until(lambda: all(len(self.brokers(n)) == len(NODES) for n in NODES), "all are back")

    def victim(self) -> int:
        return NODES[-1]

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        self.server.move_leader(topic, partition, to)

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        self.server.call(lambda c, now: c.reassign(topic, partition, list(replicas), now))

    def throttled_client(self) -> str:
        # A fault that strikes the next Produce: the mock counts no bytes.
        fault = Throttle(1.5, api=0, times=1)
        self.server.call(lambda cluster, _now: cluster.faults.append(fault))
        return HOG


class RealWorld(World):
    """Apache Kafka, as tests/real runs it."""

    kind = "real"
    given_up_s = 11.0

    def __init__(self, cluster: RealCluster) -> None:
        super().__init__()
        self.cluster = cluster
        # Now, as it takes a while until every node knows it. The window is of ten seconds.
        cluster.alter_quota(HOG, 10_000)

    def address(self, node_id: int) -> tuple[str, int]:
        return "127.0.0.1", self.cluster.nodes[node_id].port

    def kill(self, node_id: int) -> None:
        self.cluster.sigkill(node_id)

    def stop(self, node_id: int) -> None:
        self.cluster.sigterm(node_id)

    def pause(self, node_id: int) -> None:
        self.cluster.sigstop(node_id)

    def resume(self, node_id: int) -> None:
        self.cluster.sigcont(node_id)

    def start(self, node_id: int) -> None:
        process = self.cluster.nodes[node_id].process
        assert process is not None
        process.wait(timeout=30)
        self.cluster.start(node_id)

    def heal(self) -> None:
        self.cluster.heal()

    def victim(self) -> int:
        return max(set(NODES) - {self.cluster.controller()})

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        replicas = self.partition(to, topic, partition).replica_nodes
        self.reassign(topic, partition, [to, *(n for n in replicas if n != to)])
        preferred = 0
        with_admin(self.cluster, lambda a: a.elect_leaders(preferred, {topic: [partition]}))

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        wanted: Mapping[Any, Any] = {TopicPartition(topic, partition): list(replicas)}
        told = with_admin(self.cluster, lambda a: a.alter_partition_reassignments(wanted))
        assert set(told.values()) == {None}, told

    def throttled_client(self) -> str:
        return HOG


def with_admin(cluster: RealCluster, action: Callable[[KafkaAdminClient], Any]) -> Any:
    """Do one thing as an administrator."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        return action(admin)
    finally:
        admin.close()
