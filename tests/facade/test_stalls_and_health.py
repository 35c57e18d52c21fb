"""`producer.stalls()` and `producer.health()`: what users see of time without acks, and of now."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest

from outlast import GapOutcome, HeldUp, KafkaProducer, Stall, StallEnd
from outlast.testing.faults import MetadataLeaderless, Slow
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic

PRODUCE = 0
DETECT_S = 2.0
SILENCE = {"silence_timeout_ms": 300}
MakeProducer = Callable[..., KafkaProducer]
MakeCluster = Callable[..., ClusterServer]


def until(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        threading.Event().wait(0.005)


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ClusterServer:
    return make_cluster(detect_s=DETECT_S, fetch_backoff_p=0.0, deny_p=0.0, creation_deny_p=0.0)


class TestStalls:
    def test_a_dead_follower_is_a_stall_while_it_lasts_and_afterwards(
        self, cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(cluster)
        producer = make_producer(cluster, **SILENCE)
        producer.send(topic, b"before").get(10)
        leader, _ = cluster.leader(topic, 0)
        assert producer.stalls() == []
        assert producer.health().ok
        unix_s = time.time()
        cluster.pause(leader % 3 + 1)
        sent_s = time.monotonic()
        future = producer.send(topic, b"held back by the follower")
        until(producer.stalls, "the stall is told while it is open")
        [stall] = producer.stalls()
        assert isinstance(stall, Stall)
        assert (stall.topic, stall.partition, stall.number) == (topic, 0, 1)
        assert stall.node_id == leader
        assert (stall.lane, stall.reason) == ("slow", "follower")
        assert stall.ended_by is None
        assert stall.begin_s == pytest.approx(sent_s, abs=0.1)
        assert stall.begin_unix_s == pytest.approx(unix_s, abs=0.3)
        health = producer.health()
        assert not health.ok
        assert health.open_gaps == ()
        assert [s.number for s in health.open_stalls] == [1]
        until(lambda: producer.health().held_up, "the partition that is held up")
        [held] = producer.health().held_up
        assert isinstance(held, HeldUp)
        assert (held.topic, held.partition) == (topic, 0)
        assert (held.reason, held.lane, held.lane_reason) == ("stall: follower", "slow", "stuck")
        assert held.oldest_age_s == pytest.approx(time.monotonic() - sent_s, abs=0.1)
        assert 0 < held.buffer_bytes == producer.health().buffer_bytes
        future.get(10)
        took_s = time.monotonic() - sent_s
        until(lambda: producer.health().ok, "health is good again")
        until(lambda: not producer.health().held_up, "nothing is held up")
        [stall] = producer.stalls()
        assert stall.ended_by is StallEnd.ACK
        assert stall.duration_s == pytest.approx(took_s, abs=0.1)
        assert stall.duration_s > DETECT_S - 0.5
        assert producer.gaps() == []
        assert json.loads(json.dumps(stall.to_dict()))["ended_by"] == "ack"

    def test_close_ends_an_open_one(
        self, cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(cluster)
        producer = make_producer(cluster, **SILENCE)
        producer.send(topic, b"before").get(10)
        slow = Slow(node=cluster.leader(topic, 0)[0], api=PRODUCE, delay_s=30.0)
        cluster.call(lambda mock, _: mock.faults.append(slow))
        producer.send(topic, b"v")
        until(producer.stalls, "the stall")
        producer.close(timeout=0)
        [stall] = producer.stalls()
        assert stall.ended_by is StallEnd.CLOSED


class TestHealth:
    def test_an_open_gap_and_the_buffer_that_fills(
        self, cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(cluster)
        producer = make_producer(cluster, buffer_memory=1_000_000)
        producer.send(topic, b"before").get(10)
        until(lambda: producer.health().buffer_bytes == 0, "the buffer is empty")
        healthy = producer.health()
        assert healthy.ok
        assert healthy.buffer_limit_bytes == 1_000_000
        leader, _ = cluster.leader(topic, 0)
        leaderless = MetadataLeaderless(topic=topic)
        cluster.call(lambda mock, _: mock.faults.append(leaderless))
        cluster.kill(leader)
        for _ in range(200):
            producer.send(topic, b"v" * 1000)
            threading.Event().wait(0.002)
        until(lambda: producer.health().open_gaps, "the gap is told while it is open")
        health = producer.health()
        assert not health.ok
        [gap] = health.open_gaps
        assert (gap.topic, gap.partition) == (topic, 0)
        assert gap.outcome is None
        [held] = health.held_up
        assert (held.topic, held.partition) == (topic, 0)
        assert held.reason == f"gap: {gap.cause.value}"
        assert (held.lane, held.lane_reason) == ("open", "")
        assert held.buffer_bytes == pytest.approx(health.buffer_bytes, rel=0.05)
        assert 200_000 < health.buffer_bytes < 300_000
        assert health.headroom_s is not None
        assert 0 < health.headroom_s < 60
        told = json.loads(json.dumps(health.to_dict()))
        assert told["ok"] is False
        assert told["held_up"] == [held.to_dict()]
        cluster.call(lambda mock, _: mock.faults.clear())
        producer.flush(timeout=20)
        until(lambda: producer.health().ok, "health is good again")
        assert producer.health().buffer_bytes == 0
        assert [g.outcome for g in producer.gaps()] == [GapOutcome.ABSORBED]

    def test_nothing_sent_nothing_wrong(
        self, cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        health = make_producer(cluster).health()
        assert health.ok
        assert health.held_up == ()
        assert health.headroom_s is None
