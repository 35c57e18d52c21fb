"""A real broker throttles one client's quota: that is a wait, no gap, and nobody else's matter.

The broker answers the request that went over the quota at once and tells how long it will be deaf
to that connection (C21). A producer that took the silence for a dead broker would probe it, tear
the connection down, and report what never happened.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from outlast import Gap, KafkaProducer, Stall
from tests.real.kafka_cluster import RealCluster, until
from tests.real.load import CLEAN, Ledger, Load, account, read_back

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

LEADERS = (1, 2, 3, 1)  # by partition; the burst goes to the last one
STEADY, BURST = 3, 3  # partitions with a steady load, and the one with the burst
RATE = 20  # records/s on each partition: some 2 kB/s to each broker
QUOTA_BYTES_PER_S = 10_000
RECORDS, RECORD_BYTES = 14, 10_000  # of the burst: over the broker's window of 10 s, 4 s too much
THROTTLE_S = (3.0, 7.0)  # 4 s and a little for the load
USUAL_S = 1.0  # without an ack, at most, for all who are not throttled
APART_S = 1.0  # what is told of the throttling and what futures tell of it, at most


@dataclass(frozen=True, slots=True)
class Client:
    """A producer of some client id under a steady load, and what came of it."""

    producer: KafkaProducer
    topic: str
    registry: CollectorRegistry
    load: Load

    def throttled_s(self, node_id: int) -> float:
        """The node's throttling so far, as a dashboard sees it."""
        labels = {"node_id": str(node_id)}
        return self.registry.get_sample_value("outlast_throttle_seconds_total", labels) or 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One client over its quota and another one, on the same brokers at the same time."""

    bootstrap: list[str]
    ledgers: dict[str, Ledger]  # by topic, which is named as the client
    throttled_s: dict[str, list[float]]  # by topic: what each node counts for
    burst_s: float
    end_s: float
    gaps: list[Gap]
    stalls: list[Stall]

    def longest_s(self, topic: str, partition: int) -> float:
        """The longest time without an ack since the burst."""
        return self.ledgers[topic].longest_ack_gap(partition, self.burst_s, self.end_s).duration_s


@contextmanager
def client(cluster: RealCluster, client_id: str) -> Iterator[Client]:
    nodes = sorted(cluster.nodes)
    assignment = {
        partition: [leader, *(node for node in nodes if node != leader)]
        for partition, leader in enumerate(LEADERS)
    }
    cluster.create_topic(client_id, assignment=assignment)
    registry = CollectorRegistry()
    with (
        KafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            client_id=client_id,
            metrics_registry=registry,
            batch_size=2 * RECORDS * RECORD_BYTES,  # the burst is one request
            linger_ms=20,
        ) as producer,
        Load(producer, client_id, STEADY, RATE) as load,
    ):
        yield Client(producer, client_id, registry, load)


@pytest.fixture(scope="module")
def run(one_cluster: RealCluster) -> Run:
    """One burst for all questions about it."""
    one_cluster.heal()
    one_cluster.alter_quota("hog", QUOTA_BYTES_PER_S)
    with client(one_cluster, "hog") as hog, client(one_cluster, "meek") as meek:
        clients = (hog, meek)
        flows = time.monotonic() + 1.0
        until(lambda: all(c.load.flowing_since(flows) for c in clients), "records flow")
        burst_s = time.monotonic()
        burst = [
            hog.producer.send(hog.topic, b"%*d" % (RECORD_BYTES, counter), partition=BURST)
            for counter in range(RECORDS)
        ]
        assert [future.get(timeout=30).offset for future in burst] == list(range(RECORDS))
        # The broker has told how long; without its quota it will not do so again.
        one_cluster.alter_quota("hog", None)
        flows = time.monotonic() + 1.0
        until(lambda: all(c.load.flowing_since(flows) for c in clients), "records flow again")
        end_s = time.monotonic()
        ledgers = {c.topic: c.load.stop() for c in clients}
        throttled_s = {
            c.topic: [c.throttled_s(node_id) for node_id in sorted(one_cluster.nodes)]
            for c in clients
        }
        return Run(
            one_cluster.bootstrap,
            ledgers,
            throttled_s,
            burst_s,
            end_s,
            [g for c in clients for g in c.producer.gaps() if g.begin_s + g.duration_s > burst_s],
            [s for c in clients for s in c.producer.stalls() if s.begin_s + s.duration_s > burst_s],
        )


def test_the_throttled_broker_s_share_waits_and_the_metric_tells_how_long(run: Run) -> None:
    waited_s = run.longest_s("hog", 0)
    told_s, *others = run.throttled_s["hog"]
    print(f"throttled for {told_s:.2f} s, without an ack for {waited_s:.2f} s")
    assert THROTTLE_S[0] <= waited_s <= THROTTLE_S[1]
    assert abs(told_s - waited_s) <= APART_S
    assert others == [0.0, 0.0]


def test_it_is_neither_a_gap_nor_a_stall(run: Run) -> None:
    assert run.gaps == []
    assert run.stalls == []


def test_other_brokers_and_other_clients_do_not_notice(run: Run) -> None:
    longest = {("hog", p): run.longest_s("hog", p) for p in (1, 2)}
    longest |= {("meek", p): run.longest_s("meek", p) for p in (0, 1, 2)}
    print("without an ack:", ", ".join(f"{k}: {v * 1000:.0f} ms" for k, v in longest.items()))
    assert max(longest.values()) <= USUAL_S
    assert run.throttled_s["meek"] == [0.0, 0.0, 0.0]


def test_nothing_is_lost_doubled_or_out_of_order(run: Run) -> None:
    for topic, ledger in run.ledgers.items():
        assert str(account(ledger, read_back(run.bootstrap, topic))) == CLEAN
