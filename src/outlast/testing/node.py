"""One broker: what it knows, which replicas it has, whether it runs.

Theory. A node learns the controller's changes in order, each after its own lag, tells clients at
once (`view`), and a moment later plays the roles it was given: in between metadata names a leader
that is not ready, and a hint may name a node that is not listed any more (S6). The fault
`MetadataLag` holds back the view alone. All that a node does later is a timer of that node: while
it is paused its timers wait for it to be resumed, and a killed node's timers die with it
(`incarnation`).

Life: up → stopping → down (`stop`), up → down (`kill`), up → paused → up, down → starting → up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outlast.testing import coordinator_log, replication, store
from outlast.testing.cluster_settings import draw
from outlast.testing.codes import NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION
from outlast.testing.controller import Change, Image, Topic
from outlast.testing.faults import MetadataLag, strike
from outlast.testing.replica import PartitionState, Replica

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Connection
    from outlast.testing.coordinator_log import Seat
    from outlast.testing.timeline import Timer


class Node:
    """A broker of the mock cluster. Only the cluster calls its verbs."""

    __slots__ = (
        "_learn_serial",
        "_play_due_s",
        "_unlearnt",
        "_view_due_s",
        "backlog",
        "cluster",
        "connections",
        "image",
        "incarnation",
        "join_delay_s",
        "learns_at_s",
        "left_connections",
        "node_id",
        "paused",
        "producer_ids",
        "producer_ids_ready_s",
        "replicas",
        "running",
        "seats",
        "silences",
        "silent",
        "starting",
        "stopping",
        "view",
    )

    def __init__(self, cluster: MockCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.running = True
        self.paused = False
        self.stopping = False
        self.starting = False
        self.incarnation = 0  # timers of a former life are void
        self.silent = False  # killed, and its address accepts connections that nobody serves
        self.silences = 0  # counts crashes and pauses, for the controller's detection
        self.image = Image()
        self.view = Image()
        self.replicas: dict[tuple[str, int], Replica] = {}
        self.connections: list[Connection] = []
        self.left_connections: list[Connection] = []  # ended with requests still to be taken
        self.backlog: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.producer_ids = range(0)  # what is left of its block (S9)
        self.producer_ids_ready_s: float | None = None  # None: no InitProducerId yet (S10)
        self.seats: dict[tuple[str, int], Seat] = {}  # of coordinators, by internal partition
        self.join_delay_s = 0.0
        self.learns_at_s = 0.0
        self._unlearnt: deque[Change] = deque()
        self._learn_serial = 0
        self._view_due_s = 0.0
        self._play_due_s = 0.0

    # --- time ---

    def at(self, at_s: float, callback: Callable[..., None], *args: Any) -> Timer:
        """Call `callback(*args, time)` at `at_s`, if the node then lives; after a pause, late."""
        return self.cluster.timeline.at(at_s, self._run, self.incarnation, callback, args)

    def _run(
        self, incarnation: int, callback: Callable[..., None], args: tuple[Any, ...], now: float
    ) -> None:
        if incarnation != self.incarnation:
            return
        if self.paused:
            self.backlog.append((callback, args))
        else:
            callback(*args, now)

    # --- knowledge ---

    def tell(self, change: Change, at_s: float) -> None:
        """A change is on its way; it is learnt at `at_s`, after all earlier ones."""
        self._unlearnt.append(change)
        self.learns_at_s = max(self.learns_at_s, at_s)
        self.cluster.timeline.at(self.learns_at_s, self._learn, self._learn_serial)

    def _learn(self, serial: int, now: float) -> None:
        if serial == self._learn_serial and not self.paused:
            self.learn(self._unlearnt.popleft(), now)

    def learn(self, change: Change, now: float, *, at_once: bool = False) -> None:
        """Take a change in: tell it to clients from now on, and a moment later play the roles."""
        settings, rng = self.cluster.settings, self.cluster.rng
        self.image.apply(change)
        lag = strike(self.cluster.faults, MetadataLag, self.node_id, now)
        self._view_due_s = max(self._view_due_s, now + (lag.lag_s if lag else 0.0))
        if self._view_due_s > now:
            self.cluster.timeline.at(self._view_due_s, self._show, self.incarnation, change)
        else:
            self._show(self.incarnation, change, now)
        self._play_due_s = max(self._play_due_s, now + draw(settings.role_lag_s, rng))
        if at_once or self._play_due_s <= now:
            self._play_all(change, now)
        else:
            self.at(self._play_due_s, self._play_all, change)

    def _play_all(self, change: Change, now: float) -> None:
        for topic in change.deleted:
            self._drop_topic(topic, now)
        for topic, index, state in change.partitions:
            self._play(topic, index, state, now, planned=change.planned)

    def _show(self, incarnation: int, change: Change, now: float) -> None:
        if incarnation == self.incarnation:
            self.view.apply(change)
            self.cluster.note_visible(self.node_id, change, now)

    def _drop_topic(self, topic: Topic, now: float) -> None:
        for index in topic.partitions:
            replica = self.replicas.get((topic.name, index))
            if replica is not None and replica.topic_id == topic.topic_id:
                del self.replicas[(topic.name, index)]
                replica.follows += 1
                replica.step_down(UNKNOWN_TOPIC_OR_PARTITION, now)

    # --- roles ---

    def _play(
        self, topic: Topic, index: int, state: PartitionState, now: float, *, planned: bool
    ) -> None:
        key = (topic.name, index)
        replica = self.replicas.get(key)
        if self.node_id not in state.replicas:
            if replica is not None:
                del self.replicas[key]
                replica.follows += 1
                replica.step_down(NOT_LEADER_OR_FOLLOWER, now)
            return
        if replica is None or replica.topic_id != topic.topic_id:
            replica = self.replicas[key] = self._new_replica(topic, index)
        if state.version <= replica.state.version:
            return
        known, replica.state = replica.state, state
        if state.leader == self.node_id:
            if replica.leading and known.epoch == state.epoch:
                replica.advance(now)  # another in-sync set; who waits here may belong in it
                replication.wake_followers(self.cluster, replica, now)
            elif state.epoch == 0 and not replica.leading:
                self._take_up_new(replica, state, now)
            else:
                self._take_up(replica, state, now, planned=planned)
            return
        replica.not_ready = False
        if replica.leading:
            replica.step_down(NOT_LEADER_OR_FOLLOWER, now)
        if state.epoch != known.epoch:
            replication.follow(self.cluster, replica, now, self.join_delay_s)

    def _new_replica(self, topic: Topic, index: int) -> Replica:
        return Replica(
            self.node_id,
            topic.name,
            topic.topic_id,
            index,
            min_isr=topic.min_isr,
            stop_below_min_isr=not self.cluster.settings.not_enough_replicas_after_append,
            acks_all=self.cluster.settings.acks_all,
        )

    def _take_up_new(self, replica: Replica, state: PartitionState, now: float) -> None:
        settings, rng = self.cluster.settings, self.cluster.rng
        if replica.not_ready:
            return
        if rng.random() < settings.creation_deny_p:
            replica.not_ready = True
            delay_s = draw(settings.creation_deny_s, rng)
            self.at(now + delay_s, self._take_up_late, replica, state)
        else:
            self._take_up(replica, state, now, planned=True)

    def _take_up_late(self, replica: Replica, state: PartitionState, now: float) -> None:
        if replica.not_ready and replica.state.epoch == state.epoch:
            self._take_up(replica, replica.state, now, planned=True)

    def _take_up(
        self, replica: Replica, state: PartitionState, now: float, *, planned: bool
    ) -> None:
        replica.follows += 1
        if replica.acks_all == "store":
            store.read(self.cluster, replica)
        replica.lead(state, now)
        replication.leads_ready(self.cluster, replica, now, planned=planned)
        if replica.topic in coordinator_log.INTERNAL:
            coordinator_log.take_seat(self.cluster, self, replica, now)

    # --- life ---

    def crash(self) -> None:
        """The process is gone."""
        self.running = self.paused = self.stopping = False
        self.incarnation += 1
        self.silences += 1
        self._learn_serial += 1
        self._unlearnt.clear()
        self.backlog.clear()
        self.left_connections.clear()
        self.producer_ids = range(0)
        self.producer_ids_ready_s = None
        self.seats.clear()
        for replica in self.replicas.values():
            replica.crash()

    def boot(self, present: Change, now: float) -> None:
        """The process is back, knows the present, and has read its logs."""
        settings, rng = self.cluster.settings, self.cluster.rng
        self.running, self.starting = True, False
        self.image, self.view = Image(), Image()
        self.learns_at_s = self._view_due_s = self._play_due_s = now
        topic_ids = {topic.topic_id for topic, _, _ in present.partitions}
        for key, replica in list(self.replicas.items()):
            if replica.topic_id in topic_ids:
                replica.restart()
            else:
                del self.replicas[key]
        self.join_delay_s = draw(settings.isr_join_s, rng)
        self.learn(present, now, at_once=True)
        self.join_delay_s = 0.0

    def wake(self, now: float) -> None:
        """Resumed: what waited is done first, the news comes later (A30 to A33)."""
        self.paused = False
        self._learn_serial += 1
        unlearnt, self._unlearnt = self._unlearnt, deque()
        lag_s = draw(self.cluster.settings.resume_lag_s, self.cluster.rng)
        for change in unlearnt:
            self.tell(change, now + lag_s)
        backlog, self.backlog = self.backlog, deque()
        for callback, args in backlog:
            callback(*args, now)
        for replica in self.replicas.values():
            if replica.leading:
                replication.wake_followers(self.cluster, replica, now)

    def follow_again(self, now: float) -> None:
        """Registered again: only now may its caught-up replicas join the in-sync sets."""
        for replica in self.replicas.values():
            if not replica.leading:
                replication.follow(self.cluster, replica, now)

    def __repr__(self) -> str:
        life = "paused" if self.paused else "stopping" if self.stopping else "up"
        return f"<Node {self.node_id} {life if self.running else 'down'}>"
