"""The only replica of a partition crashes under load and comes back: same leader, same log.

A restarted broker remembers the last batch of a producer and none before it (S1). Batches that were
under way are unsure; a repeat of one that is written and forgotten gets 45, and is asked about from
the newest on. Nothing may be doubled by that, and nothing need be told *unknown*.
"""

from __future__ import annotations

import time

import pytest

from outlast import KafkaProducer
from tests.real.kafka_cluster import RealCluster, until
from tests.real.load import Load, account, read_back

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

PARTITIONS = 3
RATE = 1500  # records/s on each partition: several requests are under way at any moment
CRASHES = 3


def test_what_was_under_way_at_a_crash_is_neither_lost_nor_doubled(
    one_cluster: RealCluster,
) -> None:
    one_cluster.heal()
    topic = "restarted"
    one_cluster.create_topic(topic, PARTITIONS, replication=1, min_isr=1)
    victim, _ = one_cluster.leader(topic, 0)
    with (
        KafkaProducer(bootstrap_servers=one_cluster.bootstrap) as producer,
        Load(producer, topic, PARTITIONS, RATE) as load,
    ):
        for _ in range(CRASHES):
            flows = time.monotonic() + 1.0
            until(lambda flows=flows: load.flowing_since(flows), "records flow")
            one_cluster.sigkill(victim)
            until(lambda: not one_cluster.nodes[victim].running, "the node is gone")
            one_cluster.start(victim)
            back = time.monotonic() + 0.5
            until(lambda back=back: load.flowing_since(back), "records flow again")
        ledger = load.stop()
        gaps = [gap for gap in producer.gaps() if gap.old_leader == victim]
    one_cluster.heal()
    found = account(ledger, read_back(one_cluster.bootstrap, topic))
    assert (found.lost, found.duplicated, found.out_of_order) == ([], [], [])
    assert (found.failed, found.unsettled, found.settled_twice) == ([], 0, [])
    # what was found out by asking is known to be written, not where (−1)
    offsets = {ledger.acks[partition][counter].offset for partition, counter in found.misplaced}
    assert offsets <= {-1}
    assert len(gaps) >= CRASHES
    print(f"{len(found.misplaced)} records were acknowledged by asking from the newest on")
