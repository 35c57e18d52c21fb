"""The store that all brokers share: acks_all="store".

Theory. A leader's log is a copy; what counts is in the store. A leader writes what has come since
the last write, one write at a time: half a `replication_s` later it is stored, after the other
half the leader knows, and acks=all is answered. The store never fails. It takes nothing from a
leader that was replaced, so a node that was paused cannot write over its successor. Who takes a
partition over reads it from the store, which takes no time here; what it had beyond that is gone.

Rules: both halves are timers of the leader's node, so a dead node's writes are lost on the way and
a paused one's come late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.testing import elections
from outlast.testing.cluster_settings import draw
from outlast.testing.replica import STORE, Replica

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster


def read(cluster: MockCluster, leader: Replica) -> None:
    """A node takes a partition over: its log is what is stored."""
    stored = _stored(cluster, leader)
    if stored is not None:
        leader.fetch_from(stored)


def write(cluster: MockCluster, leader: Replica, now: float) -> None:
    """There is something to store, if it is not being written already."""
    known = leader.follower_ends.get(STORE, -1)
    if leader.leading and not leader.storing and known < leader.log_end_offset:
        leader.storing = True
        half_s = draw(cluster.settings.replication_s, cluster.rng) / 2
        node, epoch = cluster.nodes[leader.node_id], leader.state.epoch
        node.at(now + half_s, _written, cluster, leader, epoch, half_s)


def _written(cluster: MockCluster, leader: Replica, epoch: int, half_s: float, now: float) -> None:
    stored = _stored(cluster, leader)
    if stored is None or not leader.leading or leader.state.epoch != epoch:
        return
    if elections.is_replaced(cluster, leader):
        return
    stored.fetch_from(leader)
    stored.high_watermark = stored.log_end_offset
    node = cluster.nodes[leader.node_id]
    node.at(now + half_s, _told, cluster, leader, epoch, stored.log_end_offset)


def _told(cluster: MockCluster, leader: Replica, epoch: int, end: int, now: float) -> None:
    if leader.leading and leader.state.epoch == epoch:
        leader.storing = False
        leader.follower_ends[STORE] = end
        leader.advance(now)
        write(cluster, leader, now)


def _stored(cluster: MockCluster, leader: Replica) -> Replica | None:
    topic = cluster.topics.get(leader.topic)
    if topic is None or topic.topic_id != leader.topic_id:
        return None
    if leader.partition not in topic.stored:
        topic.stored[leader.partition] = Replica(
            STORE,
            leader.topic,
            leader.topic_id,
            leader.partition,
            min_isr=leader.min_isr,
            stop_below_min_isr=leader.stop_below_min_isr,
        )
    return topic.stored[leader.partition]
