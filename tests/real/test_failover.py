"""A leader dies under load on a real Apache Kafka: nothing lost, twice or out of order."""

from __future__ import annotations

import time

import pytest
from kafka import KafkaProducer

from tests.real.kafka_cluster import RealCluster, until
from tests.real.load import CLEAN, Load, account, read_back, turn

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]

PARTITIONS = 6
RATE = 500


@pytest.mark.parametrize("end", ["sigterm", "sigkill"])
def test_the_leader_ends_under_load(cluster: RealCluster, end: str) -> None:
    topic = f"ends-by-{end}"
    cluster.create_topic(topic, PARTITIONS)
    before = cluster.topic(topic).partitions
    victim = before[0].leader
    led = [p for p in range(PARTITIONS) if before[p].leader == victim]
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    try:
        with Load(producer, topic, PARTITIONS, RATE) as load, cluster.watch(topic) as watch:
            steady = time.monotonic() + 1.0
            until(lambda: load.flowing_since(steady), "records flow")
            getattr(cluster, end)(victim)
            seen = {p: watch.wait_leader_change(p, newer_than=before[p].leader_epoch) for p in led}
            after = max(s.at_s for s in seen.values()) + 1.0
            until(lambda: load.flowing_since(after), "records flow again")
            ledger = load.stop()
    finally:
        producer.close(timeout=10)
    cluster.heal()  # kafka-python's consumer leaks a socket with every refused connect
    log = read_back(cluster.bootstrap, topic)
    assert str(account(ledger, log)) == CLEAN
    over = {}
    for p in led:
        passage = turn(ledger, log, p, new_epoch=before[p].leader_epoch + 1)
        over[p] = passage.first_ack_s - seen[p].at_s
        print(p, passage.first_ack_s - passage.last_ack_s, over[p])
    assert max(over.values()) <= 1.0
