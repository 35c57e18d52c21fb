"""A Kafka cluster in one object: pure, in virtual time, and no kinder to clients than a real one.

Theory. A controller decides (`controller`), brokers learn one after another (`node`), followers
copy the leader's log (`replication`, `replica`), connections are served one request at a time
(`serving`), and the APIs answer as Apache Kafka 4.1.1 was seen to answer (`apis`, `apis_produce`;
numbers such as S6 or A13 name a measured fact about real brokers: docs/kafka-facts.md). Everything
that takes time is a timer in `timeline`; every chance is drawn from the one random source given.
The same inputs at the same times with the same seed give the same bytes, whatever else goes on.

Drivers: `server` over TCP, `simulation` on a virtual clock. A driver calls `opened`, `received`,
`closed`, and `tick` no later than `next_deadline`; after every call it sends what `take` gives.

Rules: no clock, no socket, no thread, no logging; nothing of the producer under test is imported.
Inputs may not go back in time: an earlier `now` counts as the latest one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from functools import partial
from uuid import UUID

from kafka.protocol.api_message import ApiMessage

from outlast.testing import (  # (three register their handlers)
    apis_groups,  # noqa: F401
    apis_produce,  # noqa: F401
    apis_transactions,  # noqa: F401
    coordinator_log,
    elections,
)
from outlast.testing.apis import HANDLERS, Handler, is_topic_name
from outlast.testing.batches import StoredBatch, TopicRules
from outlast.testing.cluster_settings import FAST, KRAFT, ClusterSettings, Random, draw, longest
from outlast.testing.connection import Answer, Close, Connection, Exchange
from outlast.testing.controller import Change, Controller, Election, Topic, place
from outlast.testing.faults import Blackhole, Fault
from outlast.testing.lifecycle import Lifecycle
from outlast.testing.node import Node
from outlast.testing.replica import Replica
from outlast.testing.request_log import LogRecord, RequestRecord
from outlast.testing.serving import Serving
from outlast.testing.timeline import Timeline

__all__ = [
    "FAST",
    "KRAFT",
    "Answer",
    "Close",
    "ClusterSettings",
    "LogRecord",
    "MockCluster",
    "RequestRecord",
]

FIRST_PORT = 19092


class MockCluster:
    """The mock cluster: network side, control side, and the truth to check others against.

    `addresses` maps node ids (1, 2, …) to what Metadata tells of them; a driver may change it.
    `faults` is a list anyone may add to. `request_log` holds the latest requests.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        settings: ClusterSettings = FAST,
        rng: Random,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"nodes is {nodes}; a cluster has at least one")
        self.settings = settings
        self.rng = rng
        self.cluster_id = f"mock-{rng.getrandbits(64):016x}"
        self.timeline = Timeline()
        self.handlers: dict[int, Handler] = dict(HANDLERS)
        self.faults: list[Fault] = []
        self.request_log: deque[RequestRecord] = deque(maxlen=settings.request_log_limit)
        self.addresses = {n: ("127.0.0.1", FIRST_PORT + n - 1) for n in range(1, nodes + 1)}
        self.nodes = {node_id: Node(self, node_id) for node_id in self.addresses}
        self._controller = Controller(
            self.addresses,
            self._spread,
            unclean=settings.unclean_election,
            eligible=settings.eligible_leader_replicas,
            electable=None if settings.acks_all == "isr" else partial(elections.electable, self),
        )
        self._serving = Serving(self)
        self._lifecycle = Lifecycle(self, self._controller, self._serving)
        self._next_producer_id = 0
        self._topic_names: dict[UUID, str] = {}
        self._visible: dict[tuple[str, int, int], dict[int, float]] = {}
        self.elections: list[Election] = []  # every one since the start, in order
        self._epochs: dict[tuple[UUID, int], int] = {}
        for node in self.nodes.values():
            node.learn(Change(brokers=tuple(self.addresses)), 0.0)

    # --- network side ---

    def opened(self, node_id: int, connection: Hashable, now: float) -> bool:
        """A client connects. False: refused, as the node is down. A paused node accepts (A25)."""
        now = self._enter(now)
        node = self.nodes[node_id]
        if accepted := self.listens(node_id):
            self._serving.opened(node, connection, now)
        self._serving.drain(now)
        return accepted

    def listens(self, node_id: int) -> bool:
        """Would a connect be accepted?"""
        node = self.nodes[node_id]
        return node.running or node.silent

    def hangs(self, node_id: int, now: float) -> bool:
        """Would a connect get no answer at all? (Fault `Blackhole`; ask before `opened`.)"""
        return any(type(fault) is Blackhole and fault.fits(node_id, now) for fault in self.faults)

    def received(self, connection: Hashable, frame: bytes, now: float) -> None:
        """One whole request, without its 4-byte length. Unknown connections are ignored."""
        now = self._enter(now)
        self._serving.received(connection, frame, now)
        self._serving.drain(now)

    def closed(self, connection: Hashable, now: float) -> None:
        """The client, or the network, ended the connection. What it left unread is taken late."""
        now = self._enter(now)
        self._serving.closed(connection, now)
        self._serving.drain(now)

    def tick(self, now: float) -> None:
        """Do everything that is due."""
        self._serving.drain(self._enter(now))

    def next_deadline(self, now: float) -> float | None:
        """When `tick` is next needed, never earlier than `now`."""
        deadline = self.timeline.next_deadline()
        return None if deadline is None else max(deadline, now)

    def take(self) -> list[Answer | Close]:
        """What has happened on connections since the last take, in order."""
        taken, self._serving.outbox = self._serving.outbox, []
        return taken

    # --- control side: topics ---

    def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        replication: int | None = None,
        min_isr: int = 1,
        assignment: Sequence[Sequence[int]] | None = None,
        compacted: bool = False,
        log_append_time: bool = False,
        max_message_bytes: int | None = None,
        now: float = 0.0,
    ) -> None:
        """Make a topic. Partition p is led by node p + 1 (round and round) unless `assignment`
        gives the replicas of each partition, leader first. Brokers learn of it one by one (A38).

        Raises ValueError for a bad name, one in use, or nodes that do not exist.
        """
        now = self._enter(now)
        if not is_topic_name(name):
            raise ValueError(f"topic name is {name!r}; allowed are 1 to 249 of a-z A-Z 0-9 . _ -")
        if name in self.topics:
            raise ValueError(f"topic {name!r} exists; delete it first, or choose another name")
        replicas = place(list(self.nodes), partitions, replication, assignment)
        limit = self.settings.max_message_bytes if max_message_bytes is None else max_message_bytes
        rules = TopicRules(limit, compacted, log_append_time)
        topic = Topic(name, UUID(int=self.rng.getrandbits(128)), min_isr, rules)
        self._topic_names[topic.topic_id] = name
        self._controller.create(topic, replicas, now)
        self._serving.drain(now)

    def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        now: float = 0.0,
    ) -> None:
        """Grow a topic to `total` partitions, replicated as its first one unless `assignment`
        gives the replicas of each new one. Raises ValueError for nodes that do not exist.
        """
        now = self._enter(now)
        topic = self.topics[name]
        have, nodes = len(topic.partitions), list(self.nodes)
        if assignment is None:
            replicas = place(nodes, total, len(topic.partitions[0].replicas), None)[have:]
        else:
            replicas = place(nodes, total - have, None, assignment)
        self._controller.create(topic, replicas, now)
        self._serving.drain(now)

    def create_internal_topics(self, now: float = 0.0) -> None:
        """Make the topics of coordinators, as on a cluster that was in use before. Otherwise they
        are made when a client first asks for a coordinator, which is then told to come again.
        """
        for topic in coordinator_log.INTERNAL:
            coordinator_log.make_topic(self, topic, now)

    def delete_topic(self, name: str, now: float) -> None:
        """Remove a topic; waiting requests get 3 with their offset (A41)."""
        now = self._enter(now)
        self._controller.delete(self.topics[name], now)
        self._serving.drain(now)

    # --- control side: leaders and nodes ---

    def move_leader(
        self,
        topic: str,
        partition: int,
        to: int,
        now: float,
        *,
        deny_s: float | None = 0.0,
        unclean: bool = False,
    ) -> None:
        """Make `to` the leader. It learns so much later than the old leader, and denies until
        then (S6); 0: it is the first to know; None: by chance, as `deny_p` says.

        Raises ValueError if `to` is no in-sync replica (unless `unclean`) or not up.
        """
        now = self._enter(now)
        if self.settings.acks_all == "majority":
            elections.catch_up(self, self.topics[topic], partition, to)
        self._controller.move(
            self.topics[topic], partition, to, now, unclean=unclean, deny_s=deny_s
        )
        self._serving.drain(now)

    def reassign(self, topic: str, partition: int, replicas: Sequence[int], now: float) -> None:
        """Give a partition another replica set (A17). Raises ValueError if none is in sync."""
        now = self._enter(now)
        self._controller.reassign(self.topics[topic], partition, tuple(replicas), now)
        self._serving.drain(now)

    def stop(self, node_id: int, now: float) -> None:
        """Controlled shutdown: leaders move at once, the node lingers, answers 6, then closes
        everything with requests unanswered (A3, A6). Nothing happens if it is not up.
        """
        now = self._enter(now)
        self._lifecycle.stop(self.nodes[node_id], now)
        self._serving.drain(now)

    def kill(self, node_id: int, now: float) -> None:
        """A crash: sockets reset at once; the cluster notices after `detect_s` (A18 to A24)."""
        now = self._enter(now)
        self._lifecycle.kill(self.nodes[node_id], now)
        self._serving.drain(now)

    def start(self, node_id: int, now: float) -> None:
        """A stopped or killed node comes back after `startup_s`, with its logs (A12, A28)."""
        now = self._enter(now)
        self._lifecycle.start(self.nodes[node_id], now)
        self.tick(now)

    def pause(self, node_id: int, now: float) -> None:
        """SIGSTOP: the node's sockets stay, nothing is answered (A25 to A36)."""
        now = self._enter(now)
        self._lifecycle.pause(self.nodes[node_id], now)
        self._serving.drain(now)

    def resume(self, node_id: int, now: float) -> None:
        """SIGCONT: what waits is served, at first from a stale view (A30 to A35)."""
        now = self._enter(now)
        self._lifecycle.resume(self.nodes[node_id], now)
        self._serving.drain(now)

    # --- the truth ---

    @property
    def topics(self) -> dict[str, Topic]:
        """The topics that exist, by name."""
        return self._controller.topics

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        """Node id (−1: none) and epoch of the leader, as the controller decided it."""
        state = self.topics[topic].partitions[partition]
        return state.leader, state.epoch

    def replica(self, topic: str, partition: int) -> Replica | None:
        """The leader's replica; without a leader, that of the one to come back (A43)."""
        return elections.present(self, self.topics[topic], partition)

    def batches(self, topic: str, partition: int) -> list[StoredBatch]:
        """The leader's log up to the high watermark; each batch tells when it was appended."""
        replica = self.replica(topic, partition)
        if replica is None:
            return []
        return [b for b in replica.batches if b.next_offset <= replica.high_watermark]

    def records(self, topic: str, partition: int) -> list[LogRecord]:
        """Every record of the leader's log up to the high watermark, decoded."""
        return [record for batch in self.batches(topic, partition) for record in batch.records()]

    def committed(self, topic: str, partition: int) -> list[LogRecord]:
        """Every record that a reader of committed data sees."""
        replica = self.replica(topic, partition)
        return [] if replica is None else [r for b in replica.committed() for r in b.records()]

    def unread(self) -> int:
        """Requests left in closed connections that may still be taken (B16)."""
        return sum(
            len(connection.queue) + (connection.busy is not None)
            for node in self.nodes.values()
            for connection in node.left_connections
        )

    @property
    def controller_node(self) -> int:
        """The node where the active controller runs (A19); −1: without a majority there is none."""
        return self._lifecycle.controller_node()

    def usable_nodes(self) -> list[int]:
        """Nodes that the controller gives new replicas and leaders to."""
        return self._controller.usable()

    def visible_at_s(self, topic: str, partition: int, epoch: int) -> dict[int, float]:
        """When each node's metadata first named this leader epoch, by node. A node that was down
        or paused at the time may never have told of it.
        """
        return dict(self._visible.get((topic, partition, epoch), {}))

    # --- for handlers and nodes ---

    def answer(self, exchange: Exchange, response: ApiMessage, now: float) -> None:
        """Answer a deferred request. Harmless if its connection has ended."""
        self._serving.answer(exchange, response, now)

    def unanswered(self, exchange: Exchange) -> None:
        """A deferred request has no answer; go on with what is behind it."""
        self._serving.unanswered(exchange)

    def hang_up(self, connection: Connection) -> None:
        """The node closes a connection, unread requests and all."""
        self._serving.hang_up(connection)

    def versions(self, api_key: int, *, listed: bool = False) -> tuple[int, int] | None:
        """The versions served (or listed by ApiVersions); None if there are none."""
        handler = self.handlers.get(api_key)
        if handler is None:
            return None
        low, high = handler.listed if listed and handler.listed else handler.versions
        only_low, only_high = self.settings.api_versions.get(api_key, (low, high))
        low, high = max(low, only_low), min(high, only_high)
        return (low, high) if low <= high else None

    def unix_ms(self, now: float) -> int:
        """The brokers' wall clock."""
        return int((now + (self.settings.unix_offset_s or 0.0)) * 1000)

    def topic_name(self, topic_id: UUID) -> str:
        """The name of a topic that exists or existed; '' if there was none."""
        return self._topic_names.get(topic_id, "")

    def next_producer_ids(self, count: int) -> range:
        """A block of producer ids for one broker (S9)."""
        first = self._next_producer_id
        self._next_producer_id += count
        return range(first, first + count)

    def log_request(self, record: RequestRecord) -> None:
        """Note a request down."""
        self.request_log.append(record)

    def note_visible(self, node_id: int, change: Change, now: float) -> None:
        """A node tells clients of these leaders from now on."""
        for topic, index, state in change.partitions:
            seen = self._visible.setdefault((topic.name, index, state.epoch), {})
            seen.setdefault(node_id, now)

    def grow_isr(self, leader: Replica, node_id: int, now: float) -> None:
        """A leader takes a caught-up follower in; it knows at once, the others learn later."""
        topic = self.topics.get(leader.topic)
        if topic is None or topic.topic_id != leader.topic_id or not self._lifecycle.has_quorum():
            return
        index = leader.partition
        if self._controller.grow_isr(topic, index, node_id, leader.state.epoch, now):
            leader.state = topic.partitions[index]

    # --- inside ---

    def _enter(self, now: float) -> float:
        now = max(now, self.timeline.now)
        while (timer := self.timeline.pop_due(now)) is not None:
            timer.run()
            self._serving.drain(timer.at_s)
        self.timeline.now = now
        return now

    def _spread(self, change: Change, now: float) -> None:
        """Tell every node, each after a lag of its own (A13, S6)."""
        settings, rng = self.settings, self.rng
        for topic, index, state in change.partitions:
            if state.epoch > self._epochs.setdefault((topic.topic_id, index), state.epoch):
                self._epochs[topic.topic_id, index] = state.epoch
                if state.leader >= 0:
                    self.elections.append(
                        Election(now, topic.name, index, state.leader, state.epoch)
                    )
        live = [node for node in self.nodes.values() if node.running]
        lags = {node.node_id: draw(settings.metadata_lag_s, rng) for node in live}
        elected = [(old, new) for old, new in change.moves if new in lags]
        if elected:
            # Without denial a new leader has taken up its role before anyone else knows.
            first_s = max(0.0, min(lags.values()) - longest(settings.role_lag_s))
            deny_s = change.deny_s
            if deny_s is None:
                deny_s = draw(settings.deny_s, rng) if rng.random() < settings.deny_p else 0.0
            for old, new in elected:
                lags[new] = first_s if deny_s <= 0 else lags.get(old, first_s) + deny_s
        for node in live:
            node.tell(change, now + lags[node.node_id])

    def __repr__(self) -> str:
        return f"<MockCluster {list(self.nodes.values())} topics={list(self.topics)}>"
