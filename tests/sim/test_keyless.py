"""Where records go that may go anywhere, while a gap holds up one partition."""

from __future__ import annotations

from outlast.testing.faults import Error, MetadataLeaderless
from tests.sim.stories import simulation

NOT_LEADER = 6


def test_records_without_key_avoid_a_partition_that_has_a_gap():
    sim = simulation(1)
    sim.cluster.faults += [
        Error(NOT_LEADER, topic="t", partition=0, after_s=1.0, until_s=8.0),
        MetadataLeaderless(topic="t", partition=0, after_s=1.0, until_s=8.0),
    ]
    sent = []
    for i in range(900):
        sim.at(0.01 * i, lambda: sent.append(sim.send()))
    sim.run_until(sim.all_settled, 60.0)
    [gap] = sim.gaps(0)
    end_s = gap.begin_s + gap.duration_s
    held_up = [f for f in sent if gap.begin_s + 0.1 < f.entry.sent_at < end_s]
    assert len(held_up) > 500
    assert {f.entry.partition for f in held_up} == {1, 2}
    assert {f.entry.partition for f in sent if f.entry.sent_at > end_s} == {0, 1, 2}
