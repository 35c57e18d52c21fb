"""The public delivery ledger on a real cluster: producers of others, read with every consumer.

A leader is stopped while outlast and librdkafka write; what is untrue must be found here as well.
"""

from __future__ import annotations

import confluent_kafka
import kafka
import pytest

from outlast import KafkaProducer
from outlast.testing import DeliveryLedger
from tests.real.kafka_cluster import RealCluster, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

TOPIC = "judged"
COUNT = 900


def test_the_ledger_judges_a_real_cluster(cluster: RealCluster) -> None:
    cluster.create_topic(TOPIC, 3)
    servers = ",".join(cluster.bootstrap)
    ledger = DeliveryLedger()
    ours = ledger.watch(KafkaProducer(bootstrap_servers=servers))
    theirs = ledger.watch(
        confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    )
    for number in range(COUNT):
        ours.send(TOPIC, b"ours", partition=number % 3)
        theirs.produce(TOPIC, b"theirs", partition=number % 3)
        if number == COUNT // 3:
            leader, _ = cluster.leader(TOPIC, 0)
            cluster.sigterm(leader)
        if number == COUNT * 2 // 3:
            until(lambda leader=leader: not cluster.nodes[leader].running, "the node is gone")
    ours.close()
    assert theirs.flush(60) == 0

    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "judge"})
    reader = kafka.KafkaConsumer(bootstrap_servers=servers, group_id=None)
    try:
        for source in (cluster.bootstrap, servers, consumer, reader):
            verdict = ledger.verdict(source)
            assert verdict, verdict
            assert (verdict.sent, verdict.acked) == (2 * COUNT, 2 * COUNT)
        missing, _ = ledger.sending(TOPIC)
        ledger.acked(missing, 0, 0)
        assert ledger.verdict(consumer).lost == (missing,)
    finally:
        consumer.close()
        reader.close()
