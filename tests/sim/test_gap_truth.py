"""Gap records against the truth of the wire: begin and end to the bit, one gap per rejection."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from outlast.engine.messages import GapEnd
from outlast.testing.network import NetworkSettings
from tests.sim.stories import CALM, load, simulation


def assert_truth(sim):
    """Begin, end and the two phases that the wire can tell are exact; all phases add up. (What was
    sent before the first signal and accepted after it resumes from the signal: no second twice.)
    """
    for (topic, partition), true in sim.true_gaps().items():
        told = sim.gaps(partition, topic)
        assert len(told) == len(true), (sim.seed, topic, partition, told, true)
        for gap, truth in zip(told, true, strict=True):
            assert gap.ended_by is GapEnd.ACK
            parts = (
                gap.begin_s,
                gap.begin_s + gap.duration_s,
                gap.detecting_s,
                gap.resuming_s,
            )
            assert parts == pytest.approx(
                (
                    truth.begin_s,
                    truth.end_s,
                    truth.opened_s - truth.begin_s,
                    truth.end_s - max(truth.accepted_sent_s, truth.opened_s),
                ),
                abs=1e-9,
            ), (sim.seed, gap, truth)
            phases_s = gap.detecting_s + gap.unavailable_s + gap.reconnecting_s + gap.resuming_s
            assert phases_s == pytest.approx(gap.duration_s, abs=1e-9), gap
            assert 0.0 <= gap.cluster_s_min <= gap.cluster_s_max <= gap.duration_s + 1e-9, gap


STORIES = {
    "move": lambda sim: sim.move_leader(0),
    "move to a denier": lambda sim: sim.move_leader(0, deny_s=0.02),
    "kill": lambda sim: sim.kill(sim.leader(0)),
    "stop": lambda sim: sim.stop(sim.leader(0)),
    "reset": lambda sim: sim.reset(sim.leader(0)),
}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("linger_ms", [0, 5])
def test_begin_and_end_are_exact(story, linger_ms):
    for seed in range(1, 4):
        sim = simulation(seed, linger_ms=linger_ms)
        load(sim, interval_s=0.007, count=200)
        sim.at(0.8, lambda sim=sim: STORIES[story](sim))
        sim.run_until(sim.all_settled, 30.0)
        assert not sim.check().failed
        assert_truth(sim)


def test_only_affected_partitions_have_a_gap():
    for seed in range(1, 4):
        sim = simulation(seed, topics={"t": 6})
        load(sim, interval_s=0.02, count=80)
        killed = sim.leader(0)
        affected = {p for _, p in sim.partitions() if sim.leader(p) == killed}
        sim.at(0.8, lambda sim=sim, killed=killed: sim.kill(killed))
        sim.run_until(sim.all_settled, 30.0)
        assert {gap.partition for gap in sim.gaps()} == affected
        assert len(sim.gaps()) == len(affected)
        assert_truth(sim)


def test_no_trouble_no_gap():
    sim = simulation(1)
    load(sim)
    sim.run_until(sim.all_settled, 30.0)
    assert sim.gaps() == []
    assert_truth(sim)


def test_many_random_troubles():
    for seed in range(1, 21):
        rng = Random(seed)
        sim = simulation(
            seed,
            cluster=replace(CALM, deny_p=0.3, detect_s=rng.choice([0.1, 0.5, 1.0])),
            network=NetworkSettings(latency_s=(0.0005, 0.003)),
            linger_ms=rng.choice([0, 5]),
            delivery_timeout_ms=120_000,
        )
        load(sim, interval_s=0.03, count=100)
        for _ in range(4):
            node, verb = rng.choice([1, 2, 3]), rng.choice(["move", "kill", "reset"])
            at_s = rng.uniform(0.5, 2.5)
            if verb == "move":
                sim.at(at_s, lambda sim=sim, node=node: sim.move_leader(0, node))
            elif verb == "reset":
                sim.at(at_s, lambda sim=sim, node=node: sim.reset(node))
            else:
                sim.at(at_s, lambda sim=sim, node=node: sim.kill(node))
                sim.at(at_s + 0.4, lambda sim=sim, node=node: sim.start(node))
        sim.run_until(sim.all_settled, 60.0)
        assert not sim.check().failed
        assert_truth(sim)
