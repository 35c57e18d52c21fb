"""How followers follow: the fetch cycle that moves batches, high watermarks and in-sync sets.

Theory. A follower always has one fetch at its leader. When the leader has something new the
answer is half a `replication_s` away (`_fetched`: the follower has the batches), the next fetch
the other half (`_heard`: the leader knows). Between the two a batch is safe but unacknowledged:
if the leader goes then, its refusal carries an offset and the batch survives (S2). A follower
with nothing to fetch waits at its leader (`Replica.idle_followers`).

A follower that asks a new leader too early backs off `fetch_backoff_s`, and with it every
acks=all answer (S3). Which follower that is, if any, is drawn when the leader takes up its epoch.

A slow or stuck follower (fault `SlowFollower`) takes longer over both halves, and it alone: its
leader's acks=all requests wait, those of other followers' partitions do not (S7).

With acks_all="majority" followers take nothing from a leader that was replaced, whether they know
of it or not: they voted for another. With "store" nobody follows anybody (`store`).

Rules: a follower's steps are its node's timers and the leader's are the leader's, so a paused
node holds up its own half and a dead one loses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.testing import elections, store
from outlast.testing.cluster_settings import draw
from outlast.testing.faults import SlowFollower, strike
from outlast.testing.replica import Replica

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster

SECOND_BACKOFF_P = 0.1  # "rarely two" (S3)


def leads_ready(cluster: MockCluster, leader: Replica, now: float, *, planned: bool) -> None:
    """A leader has taken up its epoch: those who wait for it may fetch, one of them too early."""
    settings, rng = cluster.settings, cluster.rng
    followers = [node for node in leader.state.isr if node != leader.node_id]
    if planned and followers and rng.random() < settings.fetch_backoff_p:
        slow = followers[int(rng.random() * len(followers))]
        backoff_s = draw(settings.fetch_backoff_s, rng)
        if rng.random() < SECOND_BACKOFF_P:
            backoff_s += draw(settings.fetch_backoff_s, rng)
        leader.backing_off[slow] = now + backoff_s
    wake_followers(cluster, leader, now)


def follow(cluster: MockCluster, follower: Replica, now: float, delay_s: float = 0.0) -> None:
    """Begin to follow the leader the follower's node knows of, if there is one."""
    follower.follows += 1
    if follower.state.leader >= 0 and follower.acks_all != "store":
        _schedule_fetch(cluster, follower, now + delay_s)


def wake_followers(cluster: MockCluster, leader: Replica, now: float) -> None:
    """There is something to fetch: answer the followers that wait for it."""
    if leader.acks_all == "store":
        store.write(cluster, leader, now)
        return
    waiting, leader.idle_followers = leader.idle_followers, {}
    for follower, follows in waiting.values():
        if follower.follows == follows:
            _schedule_fetch(cluster, follower, now)


def _schedule_fetch(cluster: MockCluster, follower: Replica, now: float) -> None:
    leader = _leader_of(cluster, follower)
    if leader is not None:
        now = max(now, leader.backing_off.get(follower.node_id, now))
    half_s = _half_s(cluster, follower, now)
    node = cluster.nodes[follower.node_id]
    node.at(now + half_s, _fetched, cluster, follower, follower.follows)


def _half_s(cluster: MockCluster, follower: Replica, now: float) -> float:
    """How long this half of a follower's fetch cycle takes."""
    here = [(follower.topic, follower.partition)]
    slow = strike(cluster.faults, SlowFollower, follower.node_id, now, partitions=here)
    if slow is None:
        return draw(cluster.settings.replication_s, cluster.rng) / 2
    return min(slow.delay_s / 2, slow.until_s - now)


def _leader_of(cluster: MockCluster, follower: Replica) -> Replica | None:
    node = cluster.nodes.get(follower.state.leader)
    leader = node.replicas.get((follower.topic, follower.partition)) if node else None
    if leader is None or leader.topic_id != follower.topic_id:
        return None
    return leader


def _fetched(cluster: MockCluster, follower: Replica, follows: int, now: float) -> None:
    if follower.follows != follows or follower.leading:
        return  # it follows another leader by now
    leader = _leader_of(cluster, follower)
    if leader is None:
        # The leader's node has not heard of the partition yet: ask again.
        node = cluster.nodes[follower.node_id]
        again_s = draw(cluster.settings.metadata_lag_s, cluster.rng) + 0.001
        node.at(now + again_s, _fetched, cluster, follower, follows)
        return
    if now < leader.backing_off.get(follower.node_id, now):
        _schedule_fetch(cluster, follower, now)
        return
    at = cluster.nodes[leader.node_id]
    ready = leader.leading and leader.state.epoch == follower.state.epoch
    if leader.acks_all == "majority" and elections.is_replaced(cluster, leader):
        ready = False
    if at.paused or not at.running or not ready:
        leader.idle_followers[follower.node_id] = (follower, follows)
        return
    follower.fetch_from(leader)
    half_s = _half_s(cluster, follower, now)
    told = (leader.state.epoch, follows, follower.log_end_offset)
    at.at(now + half_s, _heard, cluster, leader, follower, told)


def _heard(
    cluster: MockCluster,
    leader: Replica,
    follower: Replica,
    told: tuple[int, int, int],
    now: float,
) -> None:
    epoch, follows, end = told
    if not leader.leading or leader.state.epoch != epoch:
        return
    # True even if the follower has gone on to another leader meanwhile (A31). What is late itself
    # takes back nothing that the follower said since.
    node_id = follower.node_id
    if follower.follows != follows:
        end = max(end, leader.follower_ends.get(node_id, end))
    leader.follower_ends[node_id] = end
    leader.backing_off.pop(node_id, None)
    caught_up = end >= max(leader.high_watermark, leader.epoch_start)
    if caught_up and node_id not in leader.state.isr:
        cluster.grow_isr(leader, node_id, now)
    leader.advance(now)
    if follower.follows != follows:
        return
    if end < leader.log_end_offset:
        _schedule_fetch(cluster, follower, now)
    else:
        leader.idle_followers[node_id] = (follower, follows)
