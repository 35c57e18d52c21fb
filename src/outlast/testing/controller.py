"""The controller: which replica leads, who is in sync, which nodes are listed; the truth.

Theory. Every decision is one `Change`, committed at once and learnt by each broker after a lag of
its own, in order (A13). A broker acts and answers from its own `Image`, maybe stale; nothing on a
broker ever reads the truth. A leader change raises the epoch, a change of the in-sync set does
not (A8). A crash is one change: broker list, leaders and in-sync sets in a single step (A21).
Leaders come from the in-sync replicas, then from the eligible ones of KIP-966 (A44), and from
anywhere only if unclean election is on; without any the leader is −1 at the next epoch (A27).
Where acks=all does not mean the in-sync replicas, nobody leaves them, and who may lead is asked of
`electable` (see `elections`).

Rules: no time is read; spreading a change is the caller's business (`commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from outlast.testing.batches import TopicRules
from outlast.testing.replica import PartitionState, Replica


def place(
    nodes: Sequence[int],
    partitions: int,
    replication: int | None,
    assignment: Sequence[Sequence[int]] | None,
) -> list[tuple[int, ...]]:
    """The replicas of each of so many partitions, leader first; round and round by default.

    Raises ValueError for more replicas than nodes, or nodes that do not exist.
    """
    if assignment is None:
        count = min(3, len(nodes)) if replication is None else replication
        if not 1 <= count <= len(nodes) or partitions < 1:
            raise ValueError(
                f"{partitions} partitions with {count} replicas cannot be placed on "
                f"{len(nodes)} nodes; allowed are 1 or more partitions, 1 to {len(nodes)} replicas"
            )
        assignment = [
            [nodes[(index + offset) % len(nodes)] for offset in range(count)]
            for index in range(partitions)
        ]
    unknown = [n for replicas in assignment for n in replicas if n not in nodes]
    if unknown or len(assignment) != partitions or not all(assignment):
        raise ValueError(
            f"assignment is {assignment!r}; it needs {partitions} lists of nodes from {nodes}"
        )
    return [tuple(replicas) for replicas in assignment]


class Topic:
    """A topic and the truth about its partitions. A topic made again is another object."""

    __slots__ = ("min_isr", "name", "partitions", "rules", "stored", "topic_id")

    def __init__(self, name: str, topic_id: UUID, min_isr: int, rules: TopicRules) -> None:
        self.name = name
        self.topic_id = topic_id
        self.min_isr = min_isr
        self.rules = rules
        self.partitions: dict[int, PartitionState] = {}
        self.stored: dict[int, Replica] = {}  # acks_all="store": what the store has of each

    def __repr__(self) -> str:
        return f"<Topic {self.name} {self.topic_id} partitions={len(self.partitions)}>"


@dataclass(frozen=True, slots=True)
class Change:
    """One decision: what every broker is to learn."""

    partitions: tuple[tuple[Topic, int, PartitionState], ...] = ()
    deleted: tuple[Topic, ...] = ()
    brokers: tuple[int, ...] | None = None  # None: the list stays
    planned: bool = False  # a move, a stop or a new topic: followers may ask too early (S3)
    moves: tuple[tuple[int, int], ...] = ()  # (old leader, new leader) of each that changed
    deny_s: float | None = None  # the new leader learns so long after the old; None: by chance


@dataclass(frozen=True, slots=True)
class Election:
    """A partition got a leader at a new epoch: another one, or the old one anew."""

    at_s: float
    topic: str
    partition: int
    leader: int
    epoch: int


class Image:
    """A broker's knowledge of the cluster: what it has learnt so far."""

    __slots__ = ("brokers", "names", "topics")

    def __init__(self) -> None:
        self.brokers: tuple[int, ...] = ()
        self.topics: dict[str, tuple[Topic, dict[int, PartitionState]]] = {}
        self.names: dict[UUID, str] = {}

    def apply(self, change: Change) -> None:
        """Learn a change. A partition's older state never replaces a newer one."""
        if change.brokers is not None:
            self.brokers = change.brokers
        for topic in change.deleted:
            if self.names.pop(topic.topic_id, None) is not None:
                del self.topics[topic.name]
        for topic, index, state in change.partitions:
            if topic.topic_id not in self.names:
                self.names[topic.topic_id] = topic.name
                self.topics[topic.name] = (topic, {})
            states = self.topics[topic.name][1]
            if index not in states or states[index].version < state.version:
                states[index] = state

    def state(self, topic: str, partition: int) -> PartitionState | None:
        """What is known of a partition."""
        known = self.topics.get(topic)
        return known[1].get(partition) if known else None


class Controller:
    """Decides, and hands every decision to `commit(change, now)`."""

    __slots__ = (
        "_commit",
        "_electable",
        "_eligible",
        "_unclean",
        "brokers",
        "stopping",
        "topics",
    )

    def __init__(
        self,
        brokers: Iterable[int],
        commit: Callable[[Change, float], None],
        *,
        unclean: bool,
        eligible: bool,
        electable: Callable[[Topic, int], list[int]] | None = None,
    ) -> None:
        self.brokers = tuple(brokers)  # listed: registered and not given up
        self.stopping: list[int] = []  # still listed, but not to lead anything
        self.topics: dict[str, Topic] = {}
        self._commit = commit
        self._unclean = unclean
        self._eligible = eligible
        self._electable = electable  # None: the in-sync replicas

    # --- topics ---

    def create(self, topic: Topic, assignment: Iterable[tuple[int, ...]], now: float) -> None:
        """Make a topic, or more partitions of one: the first replica of each leads at epoch 0."""
        self.topics[topic.name] = topic
        changed = []
        for replicas in assignment:
            index = len(topic.partitions)
            live = tuple(self._live(replicas))
            isr = live if self._electable is None else replicas
            state = PartitionState(live[0] if live else -1, 0, isr, replicas)
            topic.partitions[index] = state
            changed.append((topic, index, state))
        self._commit(Change(partitions=tuple(changed), planned=True), now)

    def delete(self, topic: Topic, now: float) -> None:
        """Remove a topic."""
        del self.topics[topic.name]
        self._commit(Change(deleted=(topic,)), now)

    # --- leaders ---

    def move(
        self,
        topic: Topic,
        index: int,
        to: int,
        now: float,
        *,
        unclean: bool = False,
        deny_s: float | None = None,
    ) -> None:
        """Make `to` the leader. Raises ValueError if it may not be."""
        state = topic.partitions[index]
        if to not in state.replicas or not self._may_lead(to):
            raise ValueError(
                f"node {to} cannot lead {topic.name}-{index}: its replicas are "
                f"{list(state.replicas)}, of which {self._live(state.replicas)} are up"
            )
        if to not in state.isr and not unclean:
            raise ValueError(
                f"node {to} cannot lead {topic.name}-{index}: the in-sync replicas are "
                f"{list(state.isr)}; wait until it has caught up, or pass unclean=True"
            )
        if self._electable is not None and not unclean and to not in self._electable(topic, index):
            raise ValueError(
                f"node {to} cannot lead {topic.name}-{index}: it would not be elected now, as it, "
                "or a majority of the replicas, does not run"
            )
        isr = state.isr if to in state.isr else (to,)
        state = replace(state, leader=to, epoch=state.epoch + 1, isr=isr, version=state.version + 1)
        self._decide([(topic, index, state)], now, planned=True, deny_s=deny_s)

    def reassign(self, topic: Topic, index: int, replicas: tuple[int, ...], now: float) -> None:
        """Give a partition another replica set; the leader moves if it is no longer in it (A17)."""
        if self._electable is not None:
            raise ValueError(
                f"{topic.name}-{index} cannot move to nodes {list(replicas)}: other replica sets "
                "are modelled for acks_all='isr' only"
            )
        state = topic.partitions[index]
        isr = tuple(node for node in state.isr if node in replicas)
        if not isr:
            raise ValueError(
                f"{topic.name}-{index} cannot move to nodes {list(replicas)} in one step: none of "
                f"them is in sync ({list(state.isr)} are)"
            )
        changed = replace(state, replicas=replicas, isr=isr, version=state.version + 1)
        if state.leader not in isr:
            changed = replace(changed, leader=isr[0], epoch=state.epoch + 1)
        self._decide([(topic, index, changed)], now, planned=True)

    def grow_isr(self, topic: Topic, index: int, node: int, epoch: int, now: float) -> bool:
        """A leader asks to take a caught-up follower in; refused if it leads no longer."""
        state = topic.partitions[index]
        if state.epoch != epoch or node in state.isr or not self._may_lead(node):
            return False
        isr = (*state.isr, node)
        elr = tuple(n for n in state.elr if n != node) if len(isr) < topic.min_isr else ()
        state = replace(state, isr=isr, elr=elr, version=state.version + 1)
        self._decide([(topic, index, state)], now)
        return True

    # --- nodes ---

    def begin_stop(self, node: int, now: float) -> None:
        """A node asks to stop: its leaders move and it leaves the in-sync sets, where others
        are in sync. It stays in the broker list.
        """
        self.stopping.append(node)
        changed = [
            (topic, index, self._without(topic, index, state, node))
            for topic, index, state in self._partitions()
            if node in state.isr and len(self._live(state.isr)) > 0
        ]
        self._decide(changed, now, planned=True)

    def give_up(self, node: int, now: float) -> None:
        """A node is dead, silent or about to end: it is dropped everywhere in one step."""
        if node not in self.brokers:
            return
        self.brokers = tuple(n for n in self.brokers if n != node)
        changed = [
            (topic, index, self._without(topic, index, state, node))
            for topic, index, state in self._partitions()
            if node in state.isr or node == state.leader
        ]
        self._decide(changed, now, brokers=True)

    def take_back(self, node: int, now: float) -> None:
        """A node registers: it is listed, and leads what nobody else may lead."""
        self.stopping = [n for n in self.stopping if n != node]
        self.brokers = tuple(sorted({*self.brokers, node}))
        self._decide(self._elected(), now, brokers=True)

    def elect_leaders(self, now: float) -> None:
        """Partitions without a leader get one, where a node may lead that could not before."""
        self._decide(self._elected(), now)

    def usable(self) -> list[int]:
        """The nodes that may lead: listed, and not about to stop."""
        return self._live(self.brokers)

    def present(self) -> Change:
        """All there is to know now, for a node that has just started."""
        return Change(partitions=tuple(self._partitions()), brokers=self.brokers)

    # --- inside ---

    def _partitions(self) -> Iterable[tuple[Topic, int, PartitionState]]:
        for topic in self.topics.values():
            for index, state in topic.partitions.items():
                yield topic, index, state

    def _elected(self) -> list[tuple[Topic, int, PartitionState]]:
        changed = []
        for topic, index, state in self._partitions():
            if state.leader == -1:
                elected = self._elect(topic, index, state)
                if elected.leader != -1:
                    changed.append((topic, index, elected))
        return changed

    def _may_lead(self, node: int) -> bool:
        return node in self.brokers and node not in self.stopping

    def _live(self, nodes: Iterable[int]) -> list[int]:
        return [node for node in nodes if self._may_lead(node)]

    def _without(
        self, topic: Topic, index: int, state: PartitionState, node: int
    ) -> PartitionState:
        """The partition when `node` is in sync no longer, with another leader if it led."""
        if self._electable is not None:  # a leader goes, too, when too few are left to vote for it
            stays = state.leader != node and self._electable(topic, index)
            return state if stays else self._elect(topic, index, state)
        isr = tuple(n for n in state.isr if n != node)
        elr = state.elr
        if self._eligible:
            if node in state.isr and len(isr) < topic.min_isr:
                elr = (*elr, node)
        elif not isr:
            isr = state.isr  # the last one stays: only it has everything
        changed = replace(state, isr=isr, elr=elr, version=state.version + 1)
        return self._elect(topic, index, changed) if state.leader == node else changed

    def _elect(self, topic: Topic, index: int, state: PartitionState) -> PartitionState:
        """The next epoch of a partition whose leader is gone."""
        epoch, version = state.epoch + 1, state.version + 1
        able = state.isr if self._electable is None else self._electable(topic, index)
        for leader in self._live(node for node in state.replicas if node in able):
            return replace(state, leader=leader, epoch=epoch, version=version)
        for leader in self._live(state.elr):
            elr = tuple(node for node in state.elr if node != leader)
            return replace(
                state, leader=leader, epoch=epoch, isr=(leader,), elr=elr, version=version
            )
        if self._unclean:
            for leader in self._live(state.replicas):
                return replace(
                    state, leader=leader, epoch=epoch, isr=(leader,), elr=(), version=version
                )
        if state.leader == -1:
            return state
        return replace(state, leader=-1, epoch=epoch, version=version)

    def _decide(
        self,
        changed: list[tuple[Topic, int, PartitionState]],
        now: float,
        *,
        brokers: bool = False,
        planned: bool = False,
        deny_s: float | None = None,
    ) -> None:
        moves = []
        for topic, index, state in changed:
            old = topic.partitions[index].leader
            if state.leader not in (old, -1):
                moves.append((old, state.leader))
            topic.partitions[index] = state
        if changed or brokers:
            change = Change(
                partitions=tuple(changed),
                brokers=self.brokers if brokers else None,
                planned=planned,
                moves=tuple(moves),
                deny_s=deny_s,
            )
            self._commit(change, now)

    def __repr__(self) -> str:
        return f"<Controller brokers={list(self.brokers)} topics={list(self.topics)}>"
