"""Named failovers with their bounds, in virtual time: how long the client's own share may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.messages import Cause, GapEnd, GapOutcome
from tests.sim.stories import (
    CALM,
    RTT_S,
    clients_share_s,
    load,
    middle_and_worst,
    simulation,
)

MOVE_AT_S = 0.7
SEEDS = range(1, 16)


def moved(seed: int, *, partition: int = 0, deny_s: float = 0.0, **options):
    """A leader moves under load; everything arrives, once and in order."""
    sim = simulation(seed, **options)
    load(sim, interval_s=0.015, count=100)
    sim.at(MOVE_AT_S, lambda: sim.move_leader(partition, deny_s=deny_s))
    sim.run_until(sim.all_settled, 30.0)
    verdict = sim.check()
    assert (verdict.acked, verdict.failed) == (300, 0)
    return sim


def test_a_moved_leader_costs_one_round_trip_where_the_answer_names_the_new_one():
    """The broker that is asked for metadata learns of it long after: only the hint is in time."""
    cluster = replace(CALM, metadata_lag_s=(0.2, 0.3))
    for seed in SEEDS:
        sim = moved(seed, partition=1, cluster=cluster)
        assert clients_share_s(sim, 1) <= RTT_S + 0.010, seed


def test_a_new_leader_that_denies_it_for_20_ms_is_asked_again_soon():
    for seed in SEEDS:
        sim = moved(seed, deny_s=0.020)
        assert clients_share_s(sim, 0) <= 0.050 + 4 * RTT_S, seed


def test_without_a_hint_a_move_costs_one_back_off_at_most():
    cluster = replace(CALM, api_versions={0: (0, 9)})
    for seed in SEEDS:
        sim = moved(seed, partition=1, cluster=cluster)
        assert clients_share_s(sim, 1) <= 0.120 + 4 * RTT_S, seed


def test_one_gap_for_the_partition_that_moved_and_none_for_the_others():
    sim = moved(3)
    [gap] = sim.gaps()
    assert (gap.topic, gap.partition) == ("t", 0)
    assert gap.cause is Cause.NOT_LEADER
    assert (gap.ended_by, gap.outcome) == (GapEnd.ACK, GapOutcome.ABSORBED)
    assert gap.new_leader == sim.leader(0)
    assert gap.new_leader_epoch > gap.old_leader_epoch


def test_an_ack_that_comes_again_tells_when_to_ask():
    """Who waited for the dead node as a follower goes on when the cluster gives it up: then those
    that it led get a leader, too.
    """
    late_s = []
    for seed in range(1, 11):
        sim = simulation(seed, topics={"t": 6}, cluster=replace(CALM, detect_s=(3.0, 3.1)))
        load(sim, interval_s=0.02, count=250)
        killed = sim.leader(0)
        sim.at(MOVE_AT_S, lambda sim=sim, killed=killed: sim.kill(killed))
        sim.run_until(sim.all_settled, 60.0)
        assert not sim.check().failed
        ends = [(gap, gap.begin_s + gap.duration_s) for gap in sim.gaps()]
        assert ends
        late_s += [end_s - sim.visible_at(gap.partition) for gap, end_s in ends]
    middle_s, _ = middle_and_worst(late_s)
    assert middle_s <= 0.030


@pytest.mark.parametrize("election_s", [0.0, 0.5, 3.0, 9.0])
def test_a_killed_leader_is_followed_soon_after_metadata_names_the_new_one(election_s):
    """The election takes a random part of a back-off longer: exact multiples would only measure
    how it beats against the refresh clock. An election at once is seen by all at once.
    """
    cluster = replace(CALM, detect_s=(election_s, election_s + 0.1))
    if not election_s:
        cluster = replace(CALM, detect_s=0.0, metadata_lag_s=0.0)
    late_s = []
    for seed in range(1, 42):
        sim = simulation(seed, topics={"t": 1}, cluster=cluster)
        load(sim, interval_s=0.05, count=30 + int(20 * election_s))
        killed = sim.leader(0)
        sim.at(MOVE_AT_S, lambda sim=sim, killed=killed: sim.kill(killed))
        sim.at(MOVE_AT_S + election_s + 0.7, lambda sim=sim, killed=killed: sim.start(killed))
        sim.run_until(sim.all_settled, 60.0)
        verdict = sim.check()
        assert not verdict.failed
        [gap] = sim.gaps(0)
        late_s.append(gap.begin_s + gap.duration_s - sim.visible_at(0))
        assert late_s[-1] > 0.0
    middle_s, worst_s = middle_and_worst(late_s)
    assert middle_s <= 0.080
    assert worst_s <= 0.170
