"""A real Kafka under `python -O`, where kafka-python reads what brokers say of features amiss."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.real.kafka_cluster import RealCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

PROGRAM = """
import sys
assert False, "asserts are on"
from outlast import KafkaProducer
with KafkaProducer(bootstrap_servers=sys.argv[1], transactional_id="asserts-off") as producer:
    producer.init_transactions()
    producer.begin_transaction()
    future = producer.send("asserts-off", b"v")
    producer.commit_transaction()
print(future.get(timeout=0).offset)
"""


def test_records_and_transactions_arrive_where_asserts_are_off(cluster: RealCluster) -> None:
    cluster.create_topic("asserts-off", partitions=1)
    run = subprocess.run(
        [sys.executable, "-O", "-c", PROGRAM, ",".join(cluster.bootstrap)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.stdout, run.returncode) == ("0\n", 0), run.stderr
