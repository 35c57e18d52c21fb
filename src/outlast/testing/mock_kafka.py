"""The mock cluster as tests use it: on TCP ports of this host, in real time, one object.

    with MockCluster(nodes=3, topics={"orders": 3}) as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        cluster.kill(cluster.leader("orders", 0))
        cluster.wait_until(cluster.all_led)

Two classes have this name. `outlast.testing.cluster.MockCluster` is the core: pure, told the time
by whoever drives it, without sockets. This one, `outlast.testing.MockCluster`, is what it says on
the box: such a core behind a `ClusterServer`. `call` reaches the core.

Rules: every method may be called from any thread, and returns when what it asks for has been done;
what follows from it (an election) takes the cluster's time. A node, topic or partition that does
not exist is a ValueError that names those that do.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from outlast.testing import cluster as core
from outlast.testing.cluster_settings import FAST, ClusterSettings
from outlast.testing.controller import Topic
from outlast.testing.faults import Fault
from outlast.testing.request_log import LogRecord, RequestRecord
from outlast.testing.server import ClusterServer

T = TypeVar("T")

LOOK_S = 0.005  # between two looks at a condition
VERBS = ("kill", "stop", "start", "pause", "resume")


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition as the controller sees it. `leader` is None while there is none."""

    topic: str
    partition: int
    leader: int | None
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    end_offset: int  # of what consumers may read

    @property
    def healthy(self) -> bool:
        """Whether it has a leader, and all its replicas are in sync."""
        return self.leader is not None and set(self.in_sync) == set(self.replicas)


class MockCluster:
    """A Kafka cluster in this process, on one TCP port per node. Use it as a context manager.

    Args:
        nodes: how many brokers; their ids are 1, 2, …
        topics: name → number of partitions, or names alone (one partition each).
        settings: its clocks and manners: `FAST` gives a dead leader up after 0.3 s, `KRAFT` takes
            as long as a real cluster with default settings, 8 to 12 s.
        seed: of its random choices, such as whether a new leader denies it at first.
        host: the address to listen on and to tell clients.
        first_port: node n listens on `first_port` + n − 1. None: on any free ports.

    Attributes:
        faults: what goes wrong with requests: a list of values from `outlast.testing`, such as
            `Error(6, times=1)`. Append to it and remove from it at any time.

    Raises:
        ValueError: no nodes, a topic name that Kafka does not allow, no partitions.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        topics: Mapping[str, int] | Iterable[str] = (),
        settings: ClusterSettings = FAST,
        seed: int = 1,
        host: str = "127.0.0.1",
        first_port: int | None = None,
    ) -> None:
        cluster = core.MockCluster(nodes, settings=settings, rng=random.Random(seed))
        if isinstance(topics, str):
            raise TypeError(f"topics is {topics!r}; give {{{topics!r}: partitions}}, or a list")
        named = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
        for name, partitions in named.items():
            cluster.create_topic(name, partitions, now=time.monotonic())
        self.faults: list[Fault] = cluster.faults
        self._nodes = tuple(cluster.nodes)
        self._server = ClusterServer(cluster, host=host, first_port=first_port)
        self._pulse = threading.Event()  # never set: a clock that tests may wait on

    def __repr__(self) -> str:
        return f"<MockCluster nodes={len(self._nodes)} at {self._server.bootstrap or 'no port'}>"

    # --- its life -------------------------------------------------------------------------------

    def open(self) -> MockCluster:
        """Listen and serve, in a daemon thread; what `with` does.

        Raises:
            OSError: a port is in use.
        """
        self._server.open()
        return self

    def close(self) -> None:
        """Close every socket and end the thread.

        Raises:
            RuntimeError: the mock itself failed meanwhile; the cause tells how.
        """
        self._server.close()

    def __enter__(self) -> MockCluster:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,…` of all nodes, for any client.

        Raises:
            RuntimeError: the cluster was never opened and has no ports.
        """
        if not self._server.bootstrap:
            raise RuntimeError("the cluster has no ports yet; open it: with MockCluster() as …")
        return self._server.bootstrap

    # --- nodes and leaders ----------------------------------------------------------------------

    def kill(self, node_id: int) -> None:
        """Crash a node: its connections are reset, its port refuses (unless `crash_resets` is off:
        then both fall silent), and the cluster notices after `settings.detect_s`. A node that is
        down stays so; the others here are as forgiving.
        """
        self._node("kill", node_id)

    def stop(self, node_id: int) -> None:
        """Shut a node down in order: its leaders move at once, it ends some 2 s later."""
        self._node("stop", node_id)

    def start(self, node_id: int) -> None:
        """Start a node that was killed or stopped, on the same port, with its logs."""
        self._node("start", node_id)

    def pause(self, node_id: int) -> None:
        """Make a node silent, as SIGSTOP does: its port accepts, nothing comes back."""
        self._node("pause", node_id)

    def resume(self, node_id: int) -> None:
        """Let a paused node go on."""
        self._node("resume", node_id)

    def _node(self, verb: str, node_id: int) -> None:
        assert verb in VERBS
        if node_id not in self._nodes:
            raise ValueError(f"there is no node {node_id!r}; the cluster has {_told(self._nodes)}")
        self._server.call(lambda cluster, now: getattr(cluster, verb)(node_id, now))

    def heal(self) -> None:
        """Put everything right: no faults, every node runs again. It takes the cluster's time."""
        self.faults.clear()
        for node_id in self._nodes:
            self.resume(node_id)
            self.start(node_id)

    def move_leader(
        self, topic: str, partition: int, to: int | None = None, *, deny_s: float = 0.0
    ) -> int:
        """Make another in-sync replica the leader (default: the next one); returns it.

        Args:
            deny_s: how long it denies that it leads, as a real one does for some milliseconds.

        Raises:
            ValueError: it is no in-sync replica, or does not run.
        """

        def move(cluster: core.MockCluster, now: float) -> int:
            state = _topic(cluster, topic, partition).partitions[partition]
            others = [n for n in (*state.replicas, *state.replicas) if n in state.isr]
            if to is not None:
                chosen = to
            elif state.leader in others and len(state.isr) > 1:
                chosen = others[others.index(state.leader) + 1]
            else:
                raise ValueError(
                    f"{topic}-{partition} has no other in-sync replica; it has {_told(state.isr)}"
                )
            cluster.move_leader(topic, partition, chosen, now, deny_s=deny_s)
            return chosen

        return self._server.call(move)

    def leader(self, topic: str, partition: int) -> int | None:
        """The node that leads, as the controller decided; None: there is no leader now."""
        node_id, _ = self._at(topic, partition, lambda cluster: cluster.leader(topic, partition))
        return None if node_id < 0 else node_id

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication: int | None = None,
        min_isr: int = 1,
        assignment: Sequence[Sequence[int]] | None = None,
        compacted: bool = False,
        log_append_time: bool = False,
        max_message_bytes: int | None = None,
    ) -> None:
        """Make a topic.

        Args:
            replication: replicas of each partition; by default three, or as many as there are
                nodes.
            min_isr: min.insync.replicas.
            assignment: the replicas of each partition, leader first.
            compacted: refuse records without a key, as cleanup.policy=compact does.
            log_append_time: stamp records with the broker's time.
            max_message_bytes: the largest batch; by default that of the cluster's settings.

        Raises:
            ValueError: a bad name or one in use, or no such nodes.
        """
        self._server.create_topic(
            name,
            partitions,
            replication=replication,
            min_isr=min_isr,
            assignment=assignment,
            compacted=compacted,
            log_append_time=log_append_time,
            max_message_bytes=max_message_bytes,
        )

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        self._of(name, lambda cluster, now: cluster.add_partitions(name, total, now=now))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        self._of(name, lambda cluster, now: cluster.delete_topic(name, now))

    # --- the truth ------------------------------------------------------------------------------

    def records(self, topic: str, partition: int, *, committed: bool = False) -> list[LogRecord]:
        """What a consumer could read now: offset, key, value, headers, and whose they are.

        Args:
            committed: what a consumer with `isolation_level="read_committed"` could read: nothing
                of transactions that are aborted or open, and nothing behind an open one.
        """
        if committed:
            return self._at(topic, partition, lambda cluster: cluster.committed(topic, partition))
        return self._at(topic, partition, lambda cluster: cluster.records(topic, partition))

    def requests(self, api: int | None = None) -> list[RequestRecord]:
        """The requests that nodes have read, oldest first; those of one API key, or all."""
        return self._server.call(
            lambda cluster, _: [r for r in cluster.request_log if api in (None, r.api_key)]
        )

    def nodes(self) -> dict[int, str]:
        """Each node: 'up', 'paused', 'stopping', 'down' or 'starting'."""
        return self._server.call(
            lambda cluster, _: {
                n: "starting"
                if node.starting
                else "down"
                if not node.running
                else "paused"
                if node.paused
                else "stopping"
                if node.stopping
                else "up"
                for n, node in cluster.nodes.items()
            }
        )

    def partitions(self, topic: str | None = None) -> list[PartitionStatus]:
        """Every partition, of one topic or of all, as the controller sees it."""

        def look(cluster: core.MockCluster, _: float) -> list[PartitionStatus]:
            names = list(cluster.topics) if topic is None else [topic]
            return [
                _status(cluster, name, index)
                for name in names
                for index in _topic(cluster, name).partitions
            ]

        return self._server.call(look)

    def unread(self) -> int:
        """Requests that a client left in closed connections and that brokers may still take."""
        return self._server.call(lambda cluster, _: cluster.unread())

    def now_s(self) -> float:
        """The cluster's time, for a fault's `after_s` and `until_s`."""
        return self._server.call(lambda _, now: now)

    def call(self, action: Callable[[core.MockCluster, float], T]) -> T:
        """Run `action(core, now)` where the core is served, for what has no method here."""
        return self._server.call(action)

    # --- conditions -----------------------------------------------------------------------------

    def all_led(self) -> bool:
        """Every partition has a leader, and that node runs."""
        up = {n for n, state in self.nodes().items() if state in ("up", "stopping")}
        return all(partition.leader in up for partition in self.partitions())

    def healthy(self) -> bool:
        """Every node runs, every partition has a leader and all its replicas in sync."""
        up = all(state == "up" for state in self.nodes().values())
        return up and all(partition.healthy for partition in self.partitions())

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait until it holds: one of this cluster's, or any other.

        Raises:
            TimeoutError: it did not hold in time; the text tells the state of the cluster.
        """
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                name = getattr(condition, "__name__", repr(condition))
                raise TimeoutError(
                    f"{name} did not come true within {timeout_s:g} s; nodes: {self.nodes()}, "
                    f"partitions: {self.partitions()}, faults: {self.faults}"
                )
            self._pulse.wait(LOOK_S)

    # --- inside ---------------------------------------------------------------------------------

    def _of(self, topic: str, action: Callable[[core.MockCluster, float], T]) -> T:
        def checked(cluster: core.MockCluster, now: float) -> T:
            _topic(cluster, topic)
            return action(cluster, now)

        return self._server.call(checked)

    def _at(self, topic: str, partition: int, look: Callable[[core.MockCluster], T]) -> T:
        def checked(cluster: core.MockCluster, _: float) -> T:
            _topic(cluster, topic, partition)
            return look(cluster)

        return self._server.call(checked)


def _topic(cluster: core.MockCluster, name: str, partition: int | None = None) -> Topic:
    """The topic, which has this partition; or a ValueError that tells what there is."""
    topic = cluster.topics.get(name)
    if topic is None:
        raise ValueError(f"there is no topic {name!r}; there is {_told(cluster.topics)}")
    if partition is not None and partition not in topic.partitions:
        last = len(topic.partitions) - 1
        raise ValueError(f"{name} has no partition {partition!r}; it has 0 to {last}")
    return topic


def _status(cluster: core.MockCluster, name: str, index: int) -> PartitionStatus:
    state = cluster.topics[name].partitions[index]
    replica = cluster.replica(name, index)
    return PartitionStatus(
        topic=name,
        partition=index,
        leader=None if state.leader < 0 else state.leader,
        epoch=state.epoch,
        replicas=tuple(state.replicas),
        in_sync=tuple(state.isr),
        end_offset=0 if replica is None else replica.high_watermark,
    )


def _told(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"
