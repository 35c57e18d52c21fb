"""Batches that the broker calls too large (B12): cut, and filled no fuller from then on."""

from __future__ import annotations

from dataclasses import replace

from outlast.testing.simulation import Simulation
from tests.sim.stories import CALM, attempts_of, simulation

TOO_LARGE = 10


def small_topic() -> Simulation:
    """One partition whose broker takes batches of 2 000 bytes."""
    cluster = replace(CALM, max_message_bytes=2000)
    sim = simulation(1, topics={"t": 1}, cluster=cluster, batch_size=65536, linger_ms=50)
    sim.run_for(0.3)
    return sim


def refusals(sim: Simulation) -> list[float]:
    return [a.sent_at for a in attempts_of(sim, 0) if a.code == TOO_LARGE]


def test_one_record_that_is_too_large_fails_alone():
    sim = small_topic()
    futures = [sim.send("t", 0, size_bytes=150) for _ in range(20)]
    futures.append(sim.send("t", 0, size_bytes=5000))
    futures += [sim.send("t", 0, size_bytes=150) for _ in range(20)]
    sim.flush()
    sim.run_until(sim.all_settled, 20.0)
    sim.check()
    outcomes = [future.entry.outcome for future in futures]
    assert outcomes == ["acked"] * 20 + ["not accepted"] + ["acked"] * 20
    assert len(refusals(sim)) <= 8 + 1
    assert sim.sender.health(sim.now).buffer_bytes == 0


def test_the_limit_is_learnt():
    sim = small_topic()
    for turn in range(40):
        for _ in range(20):
            sim.at(0.5 + 0.1 * turn, lambda: sim.send("t", 0, size_bytes=150))
    sim.run_until(lambda: sim.now > 4.6 and sim.all_settled(), 30.0)
    assert sim.check().failed == 0
    refused = refusals(sim)
    assert 0 < len(refused) <= 8
    assert max(refused) < 1.0, "later batches keep to what was learnt"
