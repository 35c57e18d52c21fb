"""The clusters that are written to: a mock in a process of its own, and a real Kafka of one node.

Both give `bootstrap`, make topics, and tell how many records a topic holds. That is asked with
kafka-python's consumer.

* The mock has three nodes; a fresh one for every run, as it keeps all records in memory. It can be
  made `mute`: it takes Produce requests and never answers.
* The real one is started once and has a topic for every run. Beside the usual way there is one
  through a `Relay`, which makes it long or cuts it off.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.relay import Relay, relay
from tests.real.kafka_cluster import (
    JVM,
    Node,
    RealCluster,
    bound_to_this_process,
    free_ports,
    until,
)

# Where Linux keeps files in memory: the first record of each of 10,000 partitions makes a broker
# sync a file of its own, and a slow disk would take longer for these than anybody waits.
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
PARTITIONS_AT_ONCE = 5_000  # a controller refuses 10 000 in one request
READ_S = 60.0
REPLICATION_S = (0.0003, 0.0008)  # the mock's followers: not to be the limit


def count(bootstrap: str, topic: str) -> int:
    """How many records the topic holds, told by a consumer that is not ours."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), group_id=None)
    with contextlib.closing(consumer):
        partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
        return sum(consumer.end_offsets(partitions).values())


def count_committed(bootstrap: str, topic: str) -> int:
    """How many records of the topic a reader of committed data sees: an end offset counts markers
    of transactions, too.
    """
    from kafka import KafkaConsumer, TopicPartition

    common: dict[str, Any] = {"bootstrap_servers": bootstrap.split(","), "group_id": None}
    with contextlib.closing(KafkaConsumer(**common)) as consumer:
        partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
        ends = consumer.end_offsets(partitions)
    common |= {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    found, deadline = 0, time.monotonic() + READ_S
    with contextlib.closing(KafkaConsumer(**common)) as consumer:
        consumer.assign(partitions)
        while any(consumer.position(place) < end for place, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{found} records of {topic} read in {READ_S:g} s, not all")
            found += sum(map(len, consumer.poll(timeout_ms=200).values()))
    return found


def batches(folder: Path, topic: str) -> int:
    """How many record batches the log segments of a topic hold, in a broker's data folder. Each
    begins with its first offset and the size of what follows.
    """
    found = 0
    for segment in folder.glob(f"{topic}-*/*.log"):
        data, at = segment.read_bytes(), 0
        while at < len(data):
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            found += 1
    return found


# --- the mock -------------------------------------------------------------------------------------


class Mock:
    """The measuring process's view of a mock cluster in another process."""

    def __init__(self, pipe: Connection, bootstrap: str) -> None:
        self._pipe = pipe
        self.bootstrap = bootstrap

    def create_topic(self, name: str, partitions: int) -> None:
        self._pipe.send((name, partitions))
        self._pipe.recv()

    def mute(self) -> None:
        """Answer no Produce request any more."""
        self._pipe.send("mute")
        self._pipe.recv()


@contextlib.contextmanager
def mock(nodes: int = 3) -> Iterator[Mock]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_mock, args=(theirs, nodes), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Mock(ours, ours.recv())
    finally:
        ours.close()  # it ends when its pipe does
        process.join(10)


def _serve_mock(pipe: Connection, nodes: int) -> None:
    from outlast.testing.cluster import FAST, MockCluster
    from outlast.testing.faults import LoseRequest
    from outlast.testing.server import ClusterServer

    settings = replace(FAST, replication_s=REPLICATION_S, creation_deny_p=0.0)
    cluster = MockCluster(nodes, settings=settings, rng=random.Random(0))
    with ClusterServer(cluster) as server:
        pipe.send(server.bootstrap)
        with contextlib.suppress(EOFError):
            while True:
                command = pipe.recv()
                if command == "mute":
                    server.call(lambda core, _now: core.faults.append(LoseRequest(api=0)))
                else:
                    server.create_topic(*command)
                pipe.send("done")


# --- the real one ---------------------------------------------------------------------------------


class OneKafka(RealCluster):
    """A real Kafka of one node: broker and controller. `relayed` is its address behind `relay`."""

    __slots__ = ("_inner_port", "_relay_port")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.nodes = {1: self.nodes[1]}
        self._fourth = self.nodes[1]  # there is none
        self._inner_port, self._relay_port = free_ports(2)

    @property
    def relayed(self) -> str:
        return f"127.0.0.1:{self._relay_port}"

    @property
    def direct(self) -> str:
        return ",".join(self.bootstrap)

    def batches(self, topic: str) -> int:
        """How many record batches the topic holds."""
        return batches(self.nodes[1].folder / "data", topic)

    def relay(self) -> contextlib.AbstractContextManager[Relay]:
        """Open the other way to it."""
        return relay(self._relay_port, self._inner_port)

    def start(self, node_id: int) -> None:
        """As for tests, but with all of the compiler and more memory: it is not to be the limit."""
        jvm = [option for option in JVM if not option.startswith(("-Xmx", "-XX:Tiered"))]
        node = self.nodes[node_id]
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                [
                    *bound_to_this_process(),
                    "java",
                    "-Xmx1g",
                    *jvm,
                    *self._main("kafka.Kafka", node),
                ],
                cwd=node.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def create_topic(self, name: str, partitions: int = -1, **options: Any) -> None:
        """As for tests; and of very many partitions, which a controller makes in two steps."""
        at_once = min(partitions, PARTITIONS_AT_ONCE)
        super().create_topic(name, at_once, **options)
        if partitions > at_once:
            with self._admin() as admin:
                admin.create_partitions({name: partitions})
            until(lambda: self.topic(name).in_sync(partitions, 1), f"{partitions} of {name}", 120.0)

    def _properties(self, node: Node) -> str:
        lines = super()._properties(node).splitlines()
        more = {
            "listeners": f",RELAYED://127.0.0.1:{self._inner_port}",
            "advertised.listeners": f",RELAYED://{self.relayed}",
            "listener.security.protocol.map": ",RELAYED:PLAINTEXT",
        }
        lines = [line + more.get(line.partition("=")[0], "") for line in lines]
        lines += ["log.segment.delete.delay.ms=1000"]
        lines += ["transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1"]
        return "\n".join([*lines, ""])  # of two lines of one name the last counts


@contextlib.contextmanager
def one_kafka() -> Iterator[OneKafka]:
    memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bench-", dir=memory) as folder:
        cluster = OneKafka(Path(folder) / "kafka")
        try:
            cluster.open()
            yield cluster
        finally:
            cluster.close()
