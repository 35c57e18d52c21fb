"""Failovers over real sockets: what needs sockets, threads and CPU to be shown.

The cost of a moved leader in time, gaps against the truth, and CPU while nobody leads.

The mock cluster serves in this process; its request log is the truth that gaps are held against.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from outlast import DeliveryFuture, Gap, KafkaProducer
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.faults import Error, MetadataLeaderless
from outlast.testing.server import ClusterServer
from tests.tcp.truth import metadata_requests, served, true_gaps

TOPIC = "t"
ROUND_TRIP_S = 0.002  # of a loopback request, Python on both sides, one core each


def until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        threading.Event().wait(0.005)


class Load:
    """Records at a steady rate to every partition, from a thread of its own."""

    def __init__(self, producer: KafkaProducer, partitions: int, interval_s: float) -> None:
        self.producer = producer
        self.partitions = partitions
        self.interval_s = interval_s
        self.futures: list[DeliveryFuture] = []
        self.ready_s: list[list[float]] = [[] for _ in range(partitions)]
        self.cpu_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def _run(self) -> None:
        begun_s = time.thread_time()
        while not self._over.wait(self.interval_s):
            for partition in range(self.partitions):
                self.ready_s[partition].append(time.monotonic())
                self.futures.append(self.producer.send(TOPIC, b"v" * 100, partition=partition))
        self.cpu_s = time.thread_time() - begun_s

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def sent_more_than(self, count: int) -> Callable[[], bool]:
        target = len(self.futures) + count
        return lambda: len(self.futures) > target


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    settings = ClusterSettings(fetch_backoff_p=0.0, deny_p=0.0, creation_deny_p=0.0)
    with ClusterServer(MockCluster(3, settings=settings, rng=random.Random(1))) as server:
        server.create_topic(TOPIC, 6)
        yield server


@pytest.fixture
def producer(server: ClusterServer) -> Iterator[KafkaProducer]:
    with KafkaProducer(bootstrap_servers=server.bootstrap, metrics_registry=None) as producer:
        for partition in range(6):
            producer.send(TOPIC, b"first", partition=partition)
        producer.flush(timeout=20)
        yield producer


def test_a_moved_leader_costs_one_round_trip_and_ten_ms_beyond_what_the_cluster_holds(
    server: ClusterServer, producer: KafkaProducer
) -> None:
    beyond_s = []
    moves = 0
    with Load(producer, 1, interval_s=0.01) as load:
        while len(ended(producer)) < 15:
            moves += 1
            assert moves <= 45, "moves leave no gaps"
            leader, _ = server.leader(TOPIC, 0)
            server.move_leader(TOPIC, 0, leader % 3 + 1)
            until(load.sent_more_than(15), "traffic between moves")
            until(lambda: len(ended(producer)) == len(producer.gaps()), "the end of the gap")
    gaps = ended(producer)
    truth = true_gaps(served(server, TOPIC)[0], [0.0, *load.ready_s[0]])
    # a refresh may tell of a move before a request meets it: nothing is refused, there is no gap
    truth = [true for true in truth if true.refused is not None]
    assert len(gaps) == len(truth) >= 15
    for gap, true in zip(gaps, truth, strict=True):
        assert gap.cause.value == "not_leader"
        held_s = true.end_s - true.accepted.received_s
        assert true.refused is not None
        assert true.refused.answered_s is not None
        held_s += true.refused.answered_s - true.refused.received_s
        beyond_s.append(gap.duration_s - held_s)
    assert statistics.median(beyond_s) <= ROUND_TRIP_S + 0.010, sorted(beyond_s)
    print(f"\nbeyond what the cluster holds: median {statistics.median(beyond_s) * 1e3:.1f} ms")


def ended(producer: KafkaProducer) -> list[Gap]:
    return [gap for gap in producer.gaps() if gap.ended_by is not None]


def test_gaps_are_true(server: ClusterServer, producer: KafkaProducer) -> None:
    """One per affected partition, none on others; begin and end within 50 ms of the cluster's own
    log; phases add up.
    """
    moved = 3
    victim = server.leader(TOPIC, 0)[0]
    led = {p for p in range(6) if server.leader(TOPIC, p)[0] == victim}
    if moved in led:
        moved = next(p for p in range(6) if p not in led)
    target = next(n for n in (1, 2, 3) if n not in (victim, server.leader(TOPIC, moved)[0]))
    with Load(producer, 6, interval_s=0.01) as load:
        server.move_leader(TOPIC, moved, target)
        until(lambda: len(ended(producer)) == 1, "the gap of the move")
        until(load.sent_more_than(60), "traffic")
        server.kill(victim)
        until(lambda: len(ended(producer)) == 1 + len(led), "the gaps of the kill")
        until(load.sent_more_than(60), "traffic after it")
    producer.flush(timeout=20)
    assert all(future.succeeded() for future in load.futures)
    shares = served(server, TOPIC)
    for partition in range(6):
        gaps = [g for g in ended(producer) if g.partition == partition]
        truth = true_gaps(shares[partition], [0.0, *load.ready_s[partition]])
        if partition not in led:
            # a request that the dead node's followers hold up is a stall, not a gap
            assert len(gaps) == (partition == moved)
        assert len(gaps) == len(truth)
        for gap, true in zip(gaps, truth, strict=True):
            assert gap.begin_s == pytest.approx(true.begin_s, abs=0.050)
            assert gap.begin_s + gap.duration_s == pytest.approx(true.end_s, abs=0.050)
            parts = gap.detecting_s + gap.unavailable_s + gap.reconnecting_s + gap.resuming_s
            assert parts == pytest.approx(gap.duration_s)
            assert gap.outcome is not None
            assert gap.outcome.value == "absorbed"


@pytest.mark.slow
def test_without_a_leader_for_30_s_the_client_rests(
    server: ClusterServer, producer: KafkaProducer
) -> None:
    """At most 5 % of a core and 200 metadata requests, with traffic on."""
    server.call(
        lambda cluster, now: cluster.faults.append(
            MetadataLeaderless(topic=TOPIC, partition=0, until_s=now + 30.0)
        )
    )
    leader, _ = server.leader(TOPIC, 0)
    server.move_leader(TOPIC, 0, leader % 3 + 1)
    server.call(lambda cluster, now: cluster.faults.append(deny(now + 30.0)))
    before = metadata_requests(server)
    network = network_thread_cpu_s()
    begun_s = time.monotonic()
    with Load(producer, 1, interval_s=0.05) as load:
        until(lambda: time.monotonic() > begun_s + 30.0, "30 s", timeout_s=40.0)
        spent_s = network_thread_cpu_s() - network
        asked = metadata_requests(server) - before
        until(lambda: len(ended(producer)) == 1, "the end of the gap")
    spent_s += load.cpu_s
    assert 20.0 < ended(producer)[0].duration_s < 32.0
    assert asked <= 200
    assert spent_s <= 0.05 * 30.0
    print(f"\n{asked} metadata requests, {spent_s / 30:.1%} of a core")


def deny(until_s: float) -> Error:
    return Error(code=6, topic=TOPIC, partition=0, until_s=until_s)


def network_thread_cpu_s() -> float:
    """CPU time of the producer's network thread so far."""
    (thread,) = (t for t in threading.enumerate() if t.name.endswith("-network-thread"))
    (times,) = (t for t in psutil.Process().threads() if t.id == thread.native_id)
    return times.user_time + times.system_time


def test_a_partition_without_a_leader_for_longer_than_the_delivery_time_out(
    server: ClusterServer,
) -> None:
    """Its expired records fail truthfully, no other partition notices, and it works again."""
    with KafkaProducer(
        bootstrap_servers=server.bootstrap,
        metrics_registry=None,
        delivery_timeout_ms=1500,
        request_timeout_ms=1000,
    ) as producer:
        for partition in range(6):
            producer.send(TOPIC, b"first", partition=partition).get(timeout=20)
        begun_s = time.monotonic()
        until_s = begun_s + 4.0
        server.call(
            lambda cluster, _: cluster.faults.extend(
                [
                    MetadataLeaderless(topic=TOPIC, partition=0, until_s=until_s),
                    deny(until_s),
                ]
            )
        )
        with Load(producer, 6, interval_s=0.02) as load:
            until(lambda: time.monotonic() > until_s + 0.5, "the leader's return")
        producer.flush(timeout=20)
        last = [producer.send(TOPIC, b"last", partition=p) for p in range(6)]
        assert all(future.get(timeout=5).offset >= 0 for future in last)
    failed = [future.exception for future in load.futures if future.failed()]
    assert len(failed) > 30
    assert {error.topic_partition.partition for error in failed} == {0}
    assert {error.outcome.value for error in failed} <= {"never sent", "not accepted"}
    kept = {record.value for record in server.records(TOPIC, 0)}
    assert b"last" in kept
    assert len(server.records(TOPIC, 0)) == 2 + sum(
        future.succeeded() and future.value.partition == 0 for future in load.futures
    )
