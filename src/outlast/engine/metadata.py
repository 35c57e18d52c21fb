"""Who leads which partition, at which epoch. (When to ask again: `refresh`.)

Theory. Brokers learn of a change one after another (1–31 ms apart, A13), so answers arrive out of
order: any answer may be older than what we know. A partition's *leader epoch* orders them, within
one *topic id*; a topic that was deleted and created again starts at epoch 0 under a new id.

Merge rules, for each partition of an answer:

1. A new topic id replaces everything; partitions that it does not have are gone. The last two
   replaced ids are ignored: they come from brokers that lag.
2. A lower epoch is ignored, an equal or higher one is taken. Equal is normal (the ISR changes).
3. No leader (−1, or a node that the answer's broker list does not have) keeps the last known
   leader, not usable. Its epoch counts: older answers do not bring the old leader back.
4. An entry with another error, a missing entry, an empty broker list: what was known is kept.
   REPLICA_NOT_AVAILABLE names a valid leader: it is used.
5. *Insistence* ends every stand-off. Five answers in a row that agree, from two brokers (or the
   only one), over a second, overrule rule 2 (an unclean election may lose epochs for good); over
   ten seconds they overrule an ignored topic id.
6. Metadata below v9 has no reliable epochs: they count as −1, the lowest.

A refusal's hint (KIP-951) passes if it names a leader with a known address at a newer epoch than
the leader we use: one free pass per epoch step, so that two brokers that disagree cannot keep a
partition running between them. Survivors of a crash hint at the dead leader for 8–12 s (S6).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest

from outlast.engine.leadership import Answer, Insistence, Leader as Leader, Leadership
from outlast.engine.refresh import RefreshClock as RefreshClock
from outlast.engine.settings import Settings

TOPIC_IDLE_S = 300.0
RELIABLE_EPOCHS_VERSION = 9  # of Metadata
REPLACED_IDS_KEPT = 2
INSISTENT_ID_S = 10.0


@dataclass(frozen=True, slots=True)
class Node:
    """A broker's address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class TopicFound:
    """The topic's partitions are known now, or there are more of them."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicError:
    """The answer about a topic is now this error (0: it is over). What was known is kept."""

    topic: str
    error_code: int


@dataclass(frozen=True, slots=True)
class TopicRecreated:
    """The topic has a new id: another topic of the same name. Comes before its partitions."""

    topic: str
    old_id: UUID
    new_id: UUID


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """A partition's leader, its epoch or its usability is another than before."""

    topic: str
    partition: int
    old: Leader | None
    new: Leader | None  # None: nobody has led this partition yet


@dataclass(frozen=True, slots=True)
class PartitionGone:
    """The topic was created again without this partition: its records can never be delivered."""

    topic: str
    partition: int


Change = TopicFound | TopicError | TopicRecreated | LeaderChange | PartitionGone


class _Topic:
    __slots__ = ("error_code", "id", "indices", "insistence", "partitions", "replaced", "used_s")

    def __init__(self) -> None:
        self.id: UUID | None = None
        self.replaced: tuple[UUID, ...] = ()
        self.insistence: Insistence | None = None
        self.partitions: dict[int, Leadership] = {}
        self.indices: tuple[int, ...] | None = None  # of partitions, ascending
        self.error_code = 0
        self.used_s = 0.0


class Metadata:
    """Leaders of the topics in use, and the brokers' addresses.

    Attributes:
        nodes: every node that may be connected, by node id.
        alive: ids of the nodes that the last answer listed.
        cluster_id: '' until a broker told it.
    """

    __slots__ = ("_allow_auto_create", "_topics", "alive", "cluster_id", "nodes")

    def __init__(self, settings: Settings) -> None:
        self._allow_auto_create = settings.allow_auto_create_topics
        self._topics: dict[str, _Topic] = {}
        self.nodes: dict[int, Node] = {}
        self.alive: frozenset[int] = frozenset()
        self.cluster_id = ""

    def __repr__(self) -> str:
        topics = {name: len(topic.partitions) for name, topic in self._topics.items()}
        return f"<Metadata nodes={sorted(self.nodes)} partitions={topics}>"

    # --- what is known ---

    def known(self, topic: str) -> bool:
        """Whether the topic's partitions are known."""
        return self.partitions(topic) is not None

    def partitions(self, topic: str) -> tuple[int, ...] | None:
        """The topic's partitions, ascending; the same tuple until they change."""
        entry = self._topics.get(topic)
        return None if entry is None else entry.indices

    def leader(self, topic: str, partition: int) -> Leader | None:
        """The leader to use, or the last one known (not usable), or None."""
        entry = self._partition(topic, partition)
        return None if entry is None else entry.leader

    def isr(self, topic: str, partition: int) -> tuple[int, ...]:
        """Node ids of the in-sync replicas, as last heard."""
        entry = self._partition(topic, partition)
        return () if entry is None else entry.isr

    def topic_id(self, topic: str) -> UUID | None:
        """The topic's id; None below Metadata v10."""
        entry = self._topics.get(topic)
        return None if entry is None else entry.id

    def topic_error(self, topic: str) -> int:
        """The error code of the last answer about this topic, 0 if there was none."""
        entry = self._topics.get(topic)
        return 0 if entry is None else entry.error_code

    # --- which topics matter ---

    def interest(self, topic: str, now: float) -> bool:
        """The topic is in use: requests ask for it. True if it was not before."""
        entry = self._topics.get(topic)
        if entry is None:
            self._topics[topic] = entry = _Topic()
            entry.used_s = now
            return True
        entry.used_s = now
        return False

    def expire(self, in_use: Collection[str], now: float) -> list[tuple[str, int]]:
        """Forget topics that nothing was written to for five minutes, except those that the caller
        still holds records of. Returns each with the error code of the last answer about it.
        """
        idle = [
            (name, entry.error_code)
            for name, entry in self._topics.items()
            if now - entry.used_s > TOPIC_IDLE_S and name not in in_use
        ]
        for name, _ in idle:
            del self._topics[name]
        return idle

    # --- what is in doubt ---

    def stale(self, topic: str, partition: int, now: float) -> bool:
        """The leader in use refused or did not answer. True if that is new.

        The mark stays until a newer epoch is heard of, or `fresh`: survivors of a crash go on
        naming the dead leader at its old epoch for as long as the election takes (A20).
        """
        entry = self._partition(topic, partition)
        return entry is not None and entry.doubt(now)

    def fresh(self, topic: str, partition: int) -> None:
        """The leader in use accepted: whatever was said against it is over."""
        entry = self._partition(topic, partition)
        if entry is not None:
            entry.stale_since_s = None

    def stale_since_s(self, topic: str, partition: int) -> float | None:
        """Since when the leader in use is in doubt; None if it is not."""
        entry = self._partition(topic, partition)
        return None if entry is None else entry.stale_since_s

    # --- asking and learning ---

    def build_request(self, topics: Iterable[str] | None = None) -> MetadataRequest:
        """A request for these topics, by name; for all topics in use if None."""
        names = sorted(self._topics if topics is None else topics)
        return MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=self._allow_auto_create,
        )

    def hint(
        self,
        topic: str,
        partition: int,
        leader_id: int,
        leader_epoch: int,
        endpoint: Node | None,
        now: float,  # noqa: ARG002 - every input ends in it
        *,
        topic_id: UUID | None = None,
    ) -> LeaderChange | None:
        """Take the leader that a Produce answer names, if it is news that can be used.

        Args:
            topic: of the refused batch.
            partition: of the refused batch.
            leader_id: as the answer has it; −1 is no leader.
            leader_epoch: as the answer has it.
            endpoint: the leader's address, where the answer gives it.
            topic_id: the one that the request was sent under; a hint about a topic that has been
                created again since is refused.

        Returns:
            The change, or None if the hint was not taken.
        """
        entry = self._partition(topic, partition)
        if entry is None or (endpoint is None and leader_id not in self.nodes):
            return None
        if topic_id is not None and topic_id != self._topics[topic].id:
            return None
        old = entry.leader
        if not entry.take_hint(leader_id, leader_epoch):
            return None
        if endpoint is not None:
            self.nodes[leader_id] = endpoint
        return LeaderChange(topic, partition, old, entry.leader)

    def merge(self, response: Any, node_id: int, now: float) -> list[Change]:
        """Learn from a decoded MetadataResponse.

        Args:
            response: of any version; `API_VERSION` tells which.
            node_id: whom it comes from; negative for a bootstrap address.
            now: monotonic seconds.

        Returns:
            What changed, by topic name and partition; nothing for topics that are not in use.
        """
        if getattr(response, "error_code", 0):
            return []
        told = (b for b in response.brokers or () if b.host)
        brokers = (Node(b.node_id, b.host, b.port, b.rack) for b in told)
        listed = {broker.node_id: broker for broker in brokers if broker.node_id >= 0}
        reliable = response.API_VERSION >= RELIABLE_EPOCHS_VERSION
        nodes = listed or self.nodes
        answer = Answer(node_id, nodes.keys(), reliable, now)
        changes: list[Change] = []
        for entry in sorted(response.topics or (), key=lambda t: t.name or ""):
            topic = self._topics.get(entry.name)
            if topic is not None:
                changes += self._merge_topic(entry.name, topic, entry, answer)
        self._replace_nodes(nodes)
        self.alive = frozenset(listed)
        self.cluster_id = response.cluster_id or self.cluster_id
        return changes

    # --- merging ---

    def _partition(self, topic: str, partition: int) -> Leadership | None:
        entry = self._topics.get(topic)
        return None if entry is None else entry.partitions.get(partition)

    def _merge_topic(self, name: str, topic: _Topic, told: Any, answer: Answer) -> Iterator[Change]:
        if told.error_code != topic.error_code:
            topic.error_code = told.error_code
            yield TopicError(name, told.error_code)
        if told.error_code or not told.partitions:
            return
        gone: dict[int, Leadership] = {}
        new_id = told.topic_id if told.topic_id is not None and told.topic_id.int else None
        if new_id is not None and new_id != topic.id:
            if not self._believe_id(topic, new_id, answer):
                return
            if topic.id is not None:
                yield TopicRecreated(name, topic.id, new_id)
                topic.replaced = (*topic.replaced, topic.id)[-REPLACED_IDS_KEPT:]
                gone, topic.partitions = topic.partitions, {}
            topic.id = new_id
        topic.insistence = None
        yield from self._merge_partitions(name, topic, told, answer, gone)

    def _merge_partitions(
        self,
        name: str,
        topic: _Topic,
        told: Any,
        answer: Answer,
        gone: dict[int, Leadership],
    ) -> Iterator[Change]:
        changes: list[Change] = []
        for entry in sorted(told.partitions, key=lambda p: p.partition_index):
            index = entry.partition_index
            known = topic.partitions.get(index)
            if known is None:
                known = topic.partitions[index] = Leadership()
            former = gone.pop(index, known)
            old = former.leader
            known.learn(entry, answer)
            if known.leader != old:
                changes.append(LeaderChange(name, index, old, known.leader))
        indices = tuple(sorted(topic.partitions))
        if indices != topic.indices:
            topic.indices = indices
            yield TopicFound(name)
        yield from changes
        for index in sorted(gone):
            yield PartitionGone(name, index)

    def _believe_id(self, topic: _Topic, new_id: UUID, answer: Answer) -> bool:
        if new_id not in topic.replaced:
            return True
        if topic.insistence is None:
            topic.insistence = Insistence()
        return topic.insistence.convinces(new_id, INSISTENT_ID_S, answer)

    def _replace_nodes(self, listed: dict[int, Node]) -> None:
        """The listed nodes; and leaders in use that this answer was too old to speak of."""
        in_use = {
            entry.leader.node_id
            for topic in self._topics.values()
            for entry in topic.partitions.values()
            if entry.leader is not None and entry.leader.usable
        }
        kept = {node_id: self.nodes[node_id] for node_id in in_use if node_id not in listed}
        self.nodes = listed | kept
