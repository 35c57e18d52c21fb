"""Who may lead where acks="all" is not Kafka's: whom most vote for, or any replica at a store.

Theory. With acks_all="majority" a record is safe when most replicas have it. So every leader has
all of those if it needs the votes of most replicas, and none votes for a log that is behind its
own (Raft's rule). "Behind" is told by the epoch in which a log last agreed with its leader's, then
by its end: `Replica.log_epoch` stands for the empty entry with which a leader of Raft begins.
Whoever voted takes nothing from the former leader any more (`is_replaced`); there are no messages
here, all nodes that run vote at the moment of the decision. Without a majority nobody leads.

With acks_all="store" what replicas have does not count, and every node that runs may lead.

Rules: this file decides nothing and changes no role; it answers the controller's questions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.testing.controller import Topic
from outlast.testing.replica import Replica

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster


def electable(cluster: MockCluster, topic: Topic, index: int) -> list[int]:
    """Nodes that would be elected now, in the order of the replicas."""
    replicas = topic.partitions[index].replicas
    up = [n for n in replicas if cluster.nodes[n].running and not cluster.nodes[n].paused]
    if cluster.settings.acks_all == "store":
        return up
    standing = {n: _standing(copy_of(cluster, topic, index, n)) for n in up}
    needed = len(replicas) // 2 + 1
    return [n for n in up if sum(standing[voter] <= standing[n] for voter in up) >= needed]


def _standing(replica: Replica | None) -> tuple[int, int]:
    return (-1, 0) if replica is None else (replica.log_epoch, replica.log_end_offset)


def copy_of(cluster: MockCluster, topic: Topic, index: int, node_id: int) -> Replica | None:
    """A node's replica of a partition, if it has one."""
    node = cluster.nodes.get(node_id)
    replica = node.replicas.get((topic.name, index)) if node else None
    return replica if replica is not None and replica.topic_id == topic.topic_id else None


def present(cluster: MockCluster, topic: Topic, index: int) -> Replica | None:
    """The replica that has everything: the leader's, that of the one to come back, the store's."""
    truth, acks_all = topic.partitions[index], cluster.settings.acks_all
    if acks_all == "store" and index in topic.stored:
        return topic.stored[index]
    nodes = [truth.leader, *truth.isr, *truth.elr]
    if acks_all == "majority" and truth.leader == -1:
        nodes.sort(key=lambda n: _standing(copy_of(cluster, topic, index, n)), reverse=True)
    copies = (copy_of(cluster, topic, index, node) for node in nodes)
    return next((copy for copy in copies if copy is not None), None)


def is_replaced(cluster: MockCluster, leader: Replica) -> bool:
    """Was another leader elected, or its topic deleted, since this one was?"""
    topic = cluster.topics.get(leader.topic)
    if topic is None or topic.topic_id != leader.topic_id:
        return True
    return topic.partitions[leader.partition].epoch != leader.state.epoch


def catch_up(cluster: MockCluster, topic: Topic, index: int, node_id: int) -> None:
    """A leader that is to hand over brings the next one up to date first. It takes no time here."""
    old = copy_of(cluster, topic, index, topic.partitions[index].leader)
    new = copy_of(cluster, topic, index, node_id)
    if old is None or new is None or not old.leading or is_replaced(cluster, old):
        return
    ends = cluster.nodes[old.node_id], cluster.nodes[node_id]
    if new is not old and all(node.running and not node.paused for node in ends):
        new.fetch_from(old)
