"""A real Apache Kafka of three combined nodes (broker and controller) as child processes.

A fourth, which is a broker only, joins for a while where a test asks for it (`joined`).

Rules: nothing outlives the tests (each node dies with this process, is killed when the cluster is
closed, and once more at exit); every wait has a deadline; what a node said is kept and shown.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tenacity
from kafka import TopicPartition

from tests.real.kafka_jars import LIBRARIES, fetch
from tests.real.metadata import MetadataConnection, TopicView, Watch

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

JVM = [
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
]
ELECTION_NOT_NEEDED = 84
CLUSTER_ID = "outlast-tests-AAAAAAAA"

_PROPERTIES = """\
process.roles={roles}
node.id={node_id}
controller.quorum.voters={voters}
listeners={listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
num.partitions=1
auto.create.topics.enable=false
auto.leader.rebalance.enable=false
offsets.topic.num.partitions=3
offsets.topic.replication.factor=3
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
# The default of 1 s holds acks=all back by 1 s after half of all planned moves, on the cluster's
# side, and would hide the client's share (S3).
replica.fetch.backoff.ms=50
# So would a follower's long poll, 500 ms, that was under way when its leader took a partition over.
replica.fetch.wait.max.ms=50
"""


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, below those that the kernel gives to outgoing connections.

    From that range a client that dials a dead node could be given the node's own port, connect to
    itself, and keep the node from coming back.
    """
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        ceiling = int(text.split()[0])
    except OSError:
        ceiling = 32768
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, ceiling), 500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"no {count} free ports between 10000 and {ceiling}")


def until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Ask every 50 ms until `condition` is true; AssertionError after `timeout_s`."""
    try:
        tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda ok: not ok)
            | tenacity.retry_if_exception_type(OSError),
            wait=tenacity.wait_fixed(0.05),
            stop=tenacity.stop_after_delay(timeout_s),
        )(condition)
    except tenacity.RetryError as error:
        raise AssertionError(f"not within {timeout_s:g} s: {what} ({error})") from None


@dataclass(slots=True)
class Node:
    """One broker: its addresses, its folder and its process while it runs."""

    node_id: int
    port: int
    controller_port: int | None  # None: it is a broker only
    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    ending: bool = False  # told to shut down in order

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def tail(self, lines: int = 10, width: int = 160) -> str:
        """Where the node's log is, and the last lines of it."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([str(self.log), *(line[:width] for line in text.splitlines()[-lines:])])


class RealCluster:
    """Three nodes, or four for a while, started and stopped as one, hurt one at a time."""

    __slots__ = ("_fourth", "folder", "nodes")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(7)
        self.nodes = {
            i: Node(i, ports[i - 1], ports[i + 2], folder / f"node-{i}") for i in (1, 2, 3)
        }
        self._fourth = Node(4, ports[6], None, folder / "node-4")

    def __repr__(self) -> str:
        states = ", ".join(
            f"{n.node_id}@{n.port} {'up' if n.running else 'down'}" for n in self.nodes.values()
        )
        return f"<RealCluster {states}>"

    # --- life ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Format the nodes' folders, start all nodes and wait until every one lists all three."""
        fetch()
        atexit.register(self.close)
        self._format(*self.nodes.values())
        for node_id in self.nodes:
            self.start(node_id)
        self.wait_ready()

    @contextmanager
    def joined(self) -> Iterator[int]:
        """A fourth broker, up and in sync; topics that have a replica on it go when it goes."""
        node = self._fourth
        if not node.folder.exists():
            self._format(node)
        self.nodes[node.node_id] = node
        try:
            self.start(node.node_id)
            self.wait_ready()
            yield node.node_id
            self.heal()
            self._forsake(node.node_id)
            self.sigterm(node.node_id)  # after a crash it would be listed until its time-out
            node.process.wait(timeout=30)
        finally:
            if node.running:
                self.sigkill(node.node_id)
            del self.nodes[node.node_id]

    def close(self) -> None:
        """Kill what still runs. May be called twice."""
        nodes = [*self.nodes.values(), self._fourth]
        for node in nodes:
            if node.running:
                assert node.process is not None
                node.process.kill()  # also ends a stopped process
        for node in nodes:
            if node.process is not None:
                node.process.wait(timeout=20)
        atexit.unregister(self.close)

    def wait_ready(self) -> None:
        """Until every node is up and lists all nodes, and every replica is in sync."""
        for node in self.nodes.values():
            until(lambda node=node: self._ready(node), f"node {node.node_id} ready")

    def heal(self) -> None:
        """Bring every node back, whatever was done to it, and wait until all is in sync."""
        for node_id, node in self.nodes.items():
            if node.running:
                self.sigcont(node_id)
            if node.ending:
                node.process.wait(timeout=30)
            if not node.running:
                self.start(node_id)
        self.wait_ready()

    # --- what tests do to it ---------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        """Start a node; returns at once."""
        node = self.nodes[node_id]
        assert not node.running
        node.ending = False
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                [*bound_to_this_process(), "java", *JVM, *self._main("kafka.Kafka", node)],
                cwd=node.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def sigterm(self, node_id: int) -> None:
        """Begin a controlled shutdown: the node hands its leaderships over, then ends."""
        self._signal(node_id, signal.SIGTERM)
        self.nodes[node_id].ending = True

    def sigkill(self, node_id: int) -> None:
        """Crash a node."""
        self._signal(node_id, signal.SIGKILL)

    def sigstop(self, node_id: int) -> None:
        """Silence a node: its sockets stay open and take connections, nothing comes back."""
        self._signal(node_id, signal.SIGSTOP)

    def sigcont(self, node_id: int) -> None:
        """Wake a silenced node."""
        self._signal(node_id, signal.SIGCONT)

    # --- what an admin sees ----------------------------------------------------------------------

    @property
    def bootstrap(self) -> list[str]:
        return [f"127.0.0.1:{node.port}" for node in self.nodes.values()]

    def topic(self, name: str) -> TopicView:
        """The topic as the first node that answers sees it."""
        refused: OSError | None = None
        for node in self.nodes.values():
            if not node.running:
                continue
            try:
                with MetadataConnection("127.0.0.1", node.port) as admin:
                    return admin.topics([name])[name]
            except OSError as error:
                refused = error
        raise OSError(f"no node answers: {refused}")

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        """Leader node (-1: none) and leader epoch."""
        view = self.topic(topic).partitions[partition]
        return view.leader, view.leader_epoch

    def controller(self) -> int:
        """The active controller."""
        with self._admin() as admin:
            [topic] = admin.describe_metadata_quorum()["topics"]
            return topic["partitions"][0]["leader_id"]

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        *,
        replication: int = 3,
        min_isr: int = 2,
        assignment: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Create a topic and wait until every node knows all its leaders, all in sync.

        `assignment` names the replicas of each partition, the leader first.
        """
        from kafka.admin import NewTopic

        configs = {"min.insync.replicas": str(min_isr)}
        if assignment is None:
            new = NewTopic(name, partitions, replication, topic_configs=configs)
        else:
            replicas = {partition: list(nodes) for partition, nodes in assignment.items()}
            new = NewTopic(name, replica_assignments=replicas, topic_configs=configs)
            partitions, replication = len(replicas), len(replicas[0])
        with self._admin() as admin:
            admin.create_topics([new])

        def known() -> bool:
            return all(
                self._view(node, name).in_sync(partitions, replication)
                for node in self.nodes.values()
                if node.running
            )

        until(known, f"every node knows {name}")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until no node knows it."""
        with self._admin() as admin:
            admin.delete_topics([name])
        running = [node for node in self.nodes.values() if node.running]
        until(lambda: not any(self._view(n, name).partitions for n in running), f"{name} is gone")

    def spread_leaders(self, topic: str) -> None:
        """Nodes 1, 2, 3 lead its partitions in turn; it may be an internal topic's. (Those may have
        been moved, by tests of coordinators that are.)
        """
        partitions = list(self.topic(topic).partitions)
        orders = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
        with self._admin() as admin:
            moved = admin.alter_partition_reassignments(
                {TopicPartition(topic, n): orders[n % 3] for n in partitions}
            )
            assert not any(moved.values()), moved
            answer = admin.elect_leaders(0, {topic: partitions})
        results = [
            row for group in answer.replica_election_results for row in group.partition_result
        ]
        assert {row.error_code for row in results} <= {0, ELECTION_NOT_NEEDED}, answer

    def alter_quota(self, client_id: str, bytes_per_s: float | None) -> None:
        """Bound what producers of that client id may write to each broker; None: unbounded."""
        node = next(node for node in self.nodes.values() if node.running)
        with MetadataConnection("127.0.0.1", node.port) as admin:
            admin.alter_quota(client_id, bytes_per_s)

    @contextmanager
    def watch(
        self, topic: str, *, without: Collection[int] = (), pause_s: float = 0.01
    ) -> Iterator[Watch]:
        """Watch a topic's leaders and in-sync replicas on connections of its own, from all nodes
        but `without`, each asked again after `pause_s`.
        """
        ports = {i: n.port for i, n in self.nodes.items() if i not in without and n.running}
        watch = Watch(topic, {i: ("127.0.0.1", port) for i, port in ports.items()}, pause_s)
        try:
            yield watch
        finally:
            watch.stop()

    # --- inside ----------------------------------------------------------------------------------

    def _main(self, main_class: str, node: Node, *arguments: str) -> list[str]:
        return ["-cp", f"{LIBRARIES}/*", main_class, *arguments, str(node.properties)]

    def _format(self, *nodes: Node) -> None:
        formats = []
        for node in nodes:
            node.folder.mkdir(parents=True)
            node.properties.write_text(self._properties(node))
            main = self._main("kafka.tools.StorageTool", node, "format", "-t", CLUSTER_ID, "-c")
            formats.append(
                subprocess.Popen(
                    ["java", *JVM, *main],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
        for formatting in formats:
            said, _ = formatting.communicate(timeout=60)
            assert formatting.returncode == 0, said.decode()

    def _properties(self, node: Node) -> str:
        controllers = [n for n in self.nodes.values() if n.controller_port is not None]
        roles, listeners = "broker", f"PLAINTEXT://127.0.0.1:{node.port}"
        if node.controller_port is not None:
            roles += ",controller"
            listeners += f",CONTROLLER://127.0.0.1:{node.controller_port}"
        return _PROPERTIES.format(
            roles=roles,
            node_id=node.node_id,
            voters=",".join(f"{n.node_id}@127.0.0.1:{n.controller_port}" for n in controllers),
            listeners=listeners,
            port=node.port,
            folder=node.folder,
        )

    def _signal(self, node_id: int, number: signal.Signals) -> None:
        node = self.nodes[node_id]
        assert node.running, f"node {node_id} does not run\n{node.tail()}"
        assert node.process is not None
        node.process.send_signal(number)
        if number == signal.SIGKILL:
            node.process.wait(timeout=20)

    def _ready(self, node: Node) -> bool:
        if not node.running:
            raise AssertionError(f"node {node.node_id} ended\n{node.tail()}")
        with MetadataConnection("127.0.0.1", node.port) as admin:
            topics = admin.topics(None)
            return len(admin.nodes) == len(self.nodes) and all(
                set(p.isr) == set(p.replicas)
                for topic in topics.values()
                for p in topic.partitions.values()
            )

    def _view(self, node: Node, topic: str) -> TopicView:
        with MetadataConnection("127.0.0.1", node.port) as admin:
            return admin.topics([topic])[topic]

    def _forsake(self, node_id: int) -> None:
        """Delete every topic that has a replica on the node."""
        with MetadataConnection("127.0.0.1", self.nodes[node_id].port) as admin:
            topics = admin.topics(None)
        for name, topic in topics.items():
            if any(node_id in partition.replicas for partition in topic.partitions.values()):
                self.delete_topic(name)

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            yield admin
        finally:
            admin.close()


def bound_to_this_process() -> list[str]:
    """A prefix that has the kernel kill the node when this process dies, however it dies."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


assert os.name == "posix", "the real cluster is stopped and silenced with POSIX signals"
