"""A client in trouble must not become the trouble: how often brokers are connected and asked.

What an outage makes of a client is measured at the brokers, for waiting records and for none.
"""

from __future__ import annotations

import pytest

from outlast.engine.messages import Cause
from outlast.testing.faults import Error, MetadataLeaderless
from tests.sim.stories import simulation

METADATA, API_VERSIONS = 3, 18
NOT_LEADER, NOT_ENOUGH_REPLICAS, STORAGE_ERROR = 6, 19, 56


def most_in_a_second(sim, api_key: int) -> int:
    """The most requests of this kind that all brokers together got within one second."""
    at = sorted(r.received_at_s for r in sim.cluster.request_log if r.api_key == api_key)
    return max((sum(1 for later in at[i:] if later < s + 1.0) for i, s in enumerate(at)), default=0)


@pytest.mark.parametrize("code", [NOT_LEADER, NOT_ENOUGH_REPLICAS, STORAGE_ERROR])
def test_a_leader_that_refuses_until_the_records_expire_is_not_stormed(code: int):
    sim = simulation(1, nodes=1, topics={"t": 1}, request_timeout_ms=1000, delivery_timeout_ms=2500)
    sim.send(partition=0)
    sim.run_for(1.0)
    sim.cluster.faults.append(Error(code, topic="t", partition=0, until_s=sim.now + 30.0))
    failed = sim.send(partition=0)
    sim.run_for(20.0)
    assert failed.failure is not None
    [gap] = sim.gaps(0)
    assert gap.cause in (Cause.NOT_LEADER, Cause.NOT_ENOUGH_REPLICAS, Cause.STORAGE_ERROR)
    assert most_in_a_second(sim, API_VERSIONS) <= 10
    assert most_in_a_second(sim, METADATA) <= 15


def test_a_partition_without_leader_is_asked_for_at_the_pace_that_is_set():
    sim = simulation(2, delivery_timeout_ms=60_000)
    sim.cluster.faults += [
        MetadataLeaderless(topic="t", partition=0, after_s=1.0, until_s=31.0),
        Error(NOT_LEADER, topic="t", partition=0, after_s=1.0, until_s=31.0),
    ]
    for partition in range(3):
        sim.send_every(partition, 0.05, 700)
    sim.run_until(sim.all_settled, 60.0)
    asked = [r.received_at_s for r in sim.cluster.request_log if r.api_key == METADATA]
    assert len([s for s in asked if 1.0 <= s < 31.0]) <= 250
    assert [s for s in asked if s >= 36.0] == []
    assert most_in_a_second(sim, API_VERSIONS) <= 10


def test_once_a_node_is_back_nobody_asks_any_more():
    sim = simulation(3)
    sim.send_every(1, 0.1, 600)
    node = sim.leader(1)
    sim.at(2.0, lambda: sim.kill(node))
    sim.at(3.0, lambda: sim.start(node))
    sim.run_until(sim.all_settled, 90.0)
    later = [r for r in sim.cluster.request_log if r.received_at_s > 8.0]
    assert [r for r in later if r.api_key in (METADATA, API_VERSIONS)] == []
