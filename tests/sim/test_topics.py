"""Topics that grow, go and come back under the same name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.messages import GapEnd
from outlast.testing.faults import Error
from tests.sim.stories import CALM, simulation


def grow(sim, to: int) -> None:
    sim.cluster.add_partitions("t", to, now=sim.now)


def test_a_topic_that_somebody_waits_for_is_asked_for_as_long_as_that_takes():
    sim = simulation(5, topics={"t": 1}, max_block_s=2000.0)
    late = sim.send("late", 0)
    sim.send_every(0, 1.0, 420)
    sim.at(400.0, lambda: sim.create_topic("late", 1))
    sim.run_until(sim.all_settled, 500.0)
    assert late.entry.outcome == "acked"


def test_a_partition_that_is_new_is_found_by_one_fresh_look():
    sim = simulation(1, topics={"t": 2})
    sim.send("t", 0)
    sim.run_until(sim.all_settled)
    grow(sim, 4)
    sim.run_for(0.1)
    before = [f for f in sim.facts if type(f).__name__ == "MetadataRefreshed"]
    future = sim.send("t", 3)
    sim.run_until(sim.all_settled, 2.0)
    assert future.entry.outcome == "acked"
    after = [f for f in sim.facts if type(f).__name__ == "MetadataRefreshed"]
    assert len(after) - len(before) == 1


def test_new_partitions_are_used_once_metadata_is_old():
    sim = simulation(2, topics={"t": 2}, metadata_max_age_ms=3000, linger_ms=0)
    sim.at(2.0, lambda: grow(sim, 4))
    sim.send_every(None, 0.005, 1200)
    sim.run_until(sim.all_settled, 30.0)
    used = {e.partition for e in sim.ledger.entries if e.sent_at > 5.5}
    assert used == {0, 1, 2, 3}


@pytest.mark.parametrize("first_seq_rule", ["any", "zero"])
def test_a_topic_that_is_created_anew_is_written_within_a_second(first_seq_rule: str):
    """Its leader epochs start again at 0, and a new id overrides the old one's epochs."""
    sim = simulation(3, topics={"t": 2}, cluster=replace(CALM, first_seq_rule=first_seq_rule))
    for partition in (0, 1):
        sim.send("t", partition)
    for turn in range(3):
        sim.at(0.5 + 0.3 * turn, lambda: sim.move_leader(0))
    sim.run_for(2.0)
    assert sim.leader(0) > 0
    acked_in_the_old = len([e for e in sim.ledger.entries if e.outcome == "acked"])
    assert acked_in_the_old == 2
    sim.cluster.delete_topic("t", sim.now)
    sim.run_for(1.5)
    sim.cluster.create_topic("t", 2, now=sim.now)
    created_s = sim.now
    futures = [sim.send("t", 0)]
    sim.run_until(sim.all_settled, 20.0)  # partition 1 is idle when the new id is heard of
    futures += [sim.send("t", n % 2) for n in range(20)]
    sim.run_until(sim.all_settled, 20.0)
    assert {f.entry.outcome for f in futures} == {"acked"}
    assert max(f.entry.settled_at for f in futures) - created_s <= 1.0
    restarts = [f.reason for f in sim.facts if type(f).__name__ == "PartitionRestarted"]
    assert set(restarts) == {"recreated"}, "the new topic knows none of the old numbers"
    for partition in (0, 1):
        values = [r.value for r in sim.cluster.records("t", partition)]
        assert values == [f.entry.value for f in futures if f.entry.partition == partition]


def test_a_gap_that_nobody_waits_for_ends_with_its_topic():
    """The new topic's leader has the old one's name and epoch: it would never be another."""
    sim = simulation(
        1, topics={"t": 1}, cluster=CALM, delivery_timeout_ms=3000, request_timeout_ms=2000
    )
    leader = sim.leader(0)
    sim.cluster.faults.append(Error(6, topic="t", partition=0))
    sim.send("t", 0)
    sim.run_until(sim.all_settled, 10.0)
    assert [gap.ended_by for gap in sim.gaps(0)] == [None]
    sim.cluster.delete_topic("t", sim.now)
    sim.run_for(0.5)
    sim.cluster.create_topic("t", 1, assignment=[[leader]], now=sim.now)
    sim.run_for(3.0)
    assert [gap.ended_by for gap in sim.gaps(0)] == [GapEnd.TOPIC_GONE]


def test_records_for_a_partition_that_is_gone_fail_and_do_not_wait():
    sim = simulation(4, topics={"t": 2})
    sim.send("t", 1)
    sim.run_until(sim.all_settled)
    sim.cluster.delete_topic("t", sim.now)
    sim.run_for(0.5)
    waiting = sim.send("t", 1)
    sim.run_for(0.5)
    sim.cluster.create_topic("t", 1, now=sim.now)
    sim.run_until(sim.all_settled, 10.0)
    assert waiting.entry.outcome != "acked"
    assert sim.now < 5.0
    refused = sim.send("t", 1)
    sim.run_until(sim.all_settled, 10.0)
    assert refused.entry.outcome == "refused"
    assert sim.send("t", 0)
    sim.run_until(sim.all_settled, 10.0)
    assert sim.ledger.entries[-1].outcome == "acked"
