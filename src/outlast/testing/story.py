"""What can be done to a simulated world: the verbs of a story.

Every verb acts at once, at the present virtual time; `Simulation.at` says when. What a verb makes
the brokers say is put on the wire before anything else happens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from outlast.engine.messages import Connection
from outlast.testing.application import Application, SimFuture
from outlast.testing.cluster import MockCluster
from outlast.testing.faults import Fault
from outlast.testing.network import SimNetwork


class Story(ABC):
    """The verbs. A simulation is one, and gives them a cluster, a network and the time."""

    application: Application
    cluster: MockCluster
    network: SimNetwork
    now: float
    topics: dict[str, int]
    deleted: dict[str, None]
    min_isr: int

    @abstractmethod
    def say(self, *words: object) -> None:
        """A line for the trace."""

    @abstractmethod
    def at(self, at_s: float, action: Callable[[], object]) -> None:
        """Do something at this time."""

    # --- the load -------------------------------------------------------------------------------

    def send(
        self,
        topic: str = "t",
        partition: int | None = None,
        *,
        key: bytes | None = None,
        size_bytes: int = 0,
        thread: str | None = None,
    ) -> SimFuture:
        """Send one record, now. Its value is the ledger's. Calls of one `thread` (by default one
        per topic and partition) follow each other: one that blocks holds up those behind it.
        """
        return self.application.send(topic, partition, key, size_bytes, thread, self.now)

    def send_many(
        self,
        sizes_bytes: Sequence[int],
        topic: str = "t",
        partition: int | None = None,
        *,
        keys: Sequence[bytes | None] | None = None,
        thread: str | None = None,
    ) -> list[SimFuture]:
        """Send a record of each size (and with each key) in one call, now; see `send`."""
        return self.application.send_many(topic, partition, keys, sizes_bytes, thread, self.now)

    def send_every(
        self,
        partition: int | None,
        interval_s: float,
        count: int,
        *,
        topic: str = "t",
        start_s: float | None = None,
        size_bytes: int = 0,
    ) -> None:
        """Send `count` records, one every `interval_s`, the first at `start_s` (default: now)."""
        start_s = self.now if start_s is None else start_s
        for i in range(count):
            self.at(
                start_s + i * interval_s,
                lambda: self.send(topic, partition, size_bytes=size_bytes),
            )

    # --- trouble --------------------------------------------------------------------------------

    def move_leader(
        self,
        partition: int,
        to: int | None = None,
        *,
        topic: str = "t",
        deny_s: float | None = None,
    ) -> int:
        """Move a partition's leader to another node (default: the next one); it denies that for
        `deny_s` (None: by the cluster's chance). Returns it.

        Raises:
            ValueError: the node cannot lead now.
        """
        if to is None:
            nodes = list(self.cluster.addresses)
            to = nodes[(nodes.index(self.leader(partition, topic)) + 1) % len(nodes)]
        self.say("STORY move leader of", f"{topic}-{partition}", "to", to)
        self.cluster.move_leader(topic, partition, to, self.now, deny_s=deny_s)
        self.network.collect(self.now)
        return to

    def create_topic(self, name: str, partitions: int) -> None:
        """A topic is made, on nodes that may lead; brokers learn of it one by one.

        Raises:
            ValueError: there is no such node now.
        """
        self.say("STORY create", name)
        nodes = self.cluster.usable_nodes()
        replicas = min(3, len(nodes))
        self.cluster.create_topic(
            name,
            partitions,
            min_isr=min(self.min_isr, replicas),
            assignment=[
                [nodes[(index + n) % len(nodes)] for n in range(replicas)]
                for index in range(partitions if nodes else 0)
            ],
            now=self.now,
        )
        self.topics[name] = partitions
        self.network.collect(self.now)

    def delete_topic(self, name: str) -> None:
        """A topic is deleted, with all that was acknowledged; brokers learn of it one by one."""
        self.say("STORY delete", name)
        del self.topics[name]
        self.deleted[name] = None
        self.cluster.delete_topic(name, self.now)
        self.network.collect(self.now)

    def grow_topic(self, name: str) -> int:
        """A topic gets one more partition; returns which."""
        self.say("STORY grow", name)
        self.topics[name] += 1
        self.cluster.add_partitions(name, self.topics[name], now=self.now)
        self.network.collect(self.now)
        return self.topics[name] - 1

    def leader(self, partition: int, topic: str = "t") -> int:
        """The node that leads, by the controller (−1: none)."""
        return self.cluster.leader(topic, partition)[0]

    def visible_at(self, partition: int, topic: str = "t") -> float:
        """When the present leader was first named by a broker's metadata."""
        _, epoch = self.cluster.leader(topic, partition)
        return min(self.cluster.visible_at_s(topic, partition, epoch).values())

    def kill(self, node_id: int) -> None:
        """The broker crashes."""
        self._broker("kill", node_id)

    def stop(self, node_id: int) -> None:
        """The broker shuts down in order."""
        self._broker("stop", node_id)

    def start(self, node_id: int) -> None:
        """A broker that was killed or stopped comes back."""
        self._broker("start", node_id)

    def pause(self, node_id: int) -> None:
        """The broker's process stands still."""
        self._broker("pause", node_id)

    def resume(self, node_id: int) -> None:
        """A paused broker goes on."""
        self._broker("resume", node_id)

    def _broker(self, verb: str, node_id: int) -> None:
        self.say("STORY", verb, node_id)
        getattr(self.cluster, verb)(node_id, self.now)
        self.network.collect(self.now)

    def refuse(self, node_id: int) -> None:
        """Connections to the node break and new ones are refused, though it lives."""
        self.say("STORY refuse", node_id)
        self.network.refuse(node_id, self.now)

    def accept(self, node_id: int) -> None:
        """The node can be connected to again."""
        self.say("STORY accept", node_id)
        self.network.accept(node_id)

    def deafen(self, connection: Connection) -> None:
        """One connection goes deaf for ever, and nobody is told."""
        self.say("STORY deafen", connection)
        self.network.deafen(connection)

    def fault(self, fault: Fault) -> None:
        """The cluster gets a fault from the list of `faults`."""
        self.say("STORY fault", fault)
        self.cluster.faults.append(fault)

    def cut(self, node_id: int) -> None:
        """Nothing passes to or from the node any more, and nobody is told."""
        self.say("STORY cut", node_id)
        self.network.cut(node_id, self.now)

    def heal(self, node_id: int) -> None:
        """The node can be reached again."""
        self.say("STORY heal", node_id)
        self.network.heal(node_id, self.now)

    def reset(self, node_id: int) -> None:
        """Break all connections to the node."""
        self.say("STORY reset connections to", node_id)
        self.network.reset(node_id, self.now)
