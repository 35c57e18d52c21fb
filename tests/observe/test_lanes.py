"""A late follower and a quota over TCP, seen through metrics, log and `health()` at once."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from outlast import KafkaProducer
from outlast.engine.messages import HeldUp
from outlast.observe import slow_lanes
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.faults import Fault, SlowFollower, Throttle
from outlast.testing.server import ClusterServer
from tests.real.kafka_cluster import until

TOPIC = "orders"
LATE, PARTITIONS = 0, 4  # the first has node 2 as its follower, the others node 3
REPLICAS = [[1, 2], [1, 3], [1, 3], [1, 3]]
ACK_WAIT_MS = 300
STALLED = "outlast_partition_stalled_seconds_total"
CHANGES = "outlast_lane_changes_total"

Log = pytest.LogCaptureFixture


class Watched:
    """A producer whose partitions all have node 1 as their leader, and what is told of it."""

    def __init__(self, server: ClusterServer) -> None:
        self.server = server
        self.registry = CollectorRegistry()
        self.producer = KafkaProducer(
            bootstrap_servers=server.bootstrap,
            metrics_registry=self.registry,
            ack_wait_ms=ACK_WAIT_MS,
        )

    def __call__(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def strike(self, fault: Fault) -> None:
        self.server.call(lambda cluster, _: cluster.faults.append(fault))

    def heal(self) -> None:
        self.server.call(lambda cluster, _: cluster.faults.clear())

    def send_to_all(self) -> None:
        for partition in range(PARTITIONS):
            self.producer.send(TOPIC, b"v", partition=partition)

    def connections(self, role: str) -> float:
        return self("outlast_connections", role=role)


@pytest.fixture
def watched() -> Iterator[Watched]:
    settings = ClusterSettings(fetch_backoff_p=0.0, deny_p=0.0, creation_deny_p=0.0)
    with ClusterServer(MockCluster(3, settings=settings, rng=random.Random(1))) as server:
        server.create_topic(TOPIC, PARTITIONS, assignment=REPLICAS)
        watched = Watched(server)
        try:
            for _ in range(10):  # the first acks of a topic take longer than is usual afterwards
                watched.send_to_all()
                watched.producer.flush(10)
            yield watched
        finally:
            watched.producer.close(5)


def told(log: Log, about: str) -> list[tuple[int, str]]:
    return [(r.levelno, r.getMessage()) for r in log.records if about in r.getMessage()]


def test_a_late_follower_is_told_in_metrics_log_and_health(
    watched: Watched, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_lanes, "QUIET_S", 0.2)
    caplog.set_level(logging.INFO, logger="outlast")
    producer = watched.producer
    roles = ("open", "slow", "control", "probe")
    assert [watched.connections(role) for role in roles] == [1.0, 0.0, 1.0, 0.0]

    watched.strike(SlowFollower(2.5, node=2))
    watched.send_to_all()
    until(lambda: watched(CHANGES, lane="slow", reason="stuck"), "the stuck partition", 10.0)
    until(lambda: watched.connections("slow"), "the slow lane", 10.0)

    def held_up() -> tuple[HeldUp, ...]:
        for partition in range(LATE + 1, PARTITIONS):
            producer.send(TOPIC, b"v", partition=partition).get(1)  # they go on
        return producer.health().held_up

    until(held_up, "the partition that is held up", 10.0)
    (held,) = producer.health().held_up
    assert (held.topic, held.partition) == (TOPIC, LATE)
    assert (held.reason, held.lane, held.lane_reason) == ("stall: follower", "slow", "stuck")
    assert held.oldest_age_s > 1.0
    assert held.buffer_bytes > 0
    (stall,) = producer.stalls()
    assert (stall.partition, stall.lane, stall.reason) == (LATE, "slow", "follower")
    assert watched.connections("open") == watched.connections("slow") == 1.0

    watched.heal()
    producer.flush(10)
    until(lambda: not producer.health().held_up, "nothing is held up", 10.0)
    producer.send(TOPIC, b"v", partition=LATE).get(5)  # in usual time
    until(lambda: watched(CHANGES, lane="open", reason="usual"), "the way back", 10.0)
    (stall,) = producer.stalls()
    stalled = watched(STALLED, topic=TOPIC, partition=str(LATE))
    assert stalled == pytest.approx(stall.duration_s) != 0.0
    assert producer.gaps() == []

    def end_of_the_episode() -> object:
        producer.send(TOPIC, b"v", partition=1).get(1)
        return told(caplog, "nothing is in the slow lane any more")

    until(end_of_the_episode, "the line that tells of the end", 10.0)
    (begin, end) = told(caplog, "slow lane any") + told(caplog, "in the slow lane (")
    assert (end[0], begin[0]) == (logging.WARNING, logging.INFO)
    assert f"1 partition in the slow lane ({TOPIC}-{LATE})" in end[1]
    assert told(caplog, "connection 1/") == []  # one that we gave up is no loss

    producer.close(5)
    assert [watched.connections(role) for role in roles] == [0.0] * 4


def test_a_quota_is_told_and_opens_no_gap(watched: Watched, caplog: Log) -> None:
    caplog.set_level(logging.INFO, logger="outlast")
    watched.strike(Throttle(0.8, node=1, api=0, times=1))
    watched.send_to_all()
    until(lambda: watched("outlast_throttle_seconds_total", node_id="1"), "the throttle", 10.0)
    watched.producer.send(TOPIC, b"v", partition=1).get(5)
    assert watched("outlast_throttle_seconds_total", node_id="1") == pytest.approx(0.8)
    assert watched("outlast_throttle_seconds_total", node_id="2") == 0.0
    assert watched.producer.gaps() == []
    assert watched.producer.stalls() == []
    ((level, _),) = told(caplog, "node 1 wants a pause of 0.800 s")
    assert level == logging.WARNING
