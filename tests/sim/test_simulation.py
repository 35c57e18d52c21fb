"""The driver itself: time jumps, sends block, and an engine that spins is told so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.messages import Outbox
from outlast.testing import simulation as driver
from outlast.testing.simulation import Simulation, SimulationError
from tests.sim.stories import CALM, simulation


class Engine:
    """Stands for the engine; `deadline` decides when it wants to be woken."""

    def __init__(self, deadline):
        self.deadline = deadline
        self.ticks = []

    def take(self):
        return Outbox()

    def next_deadline(self, now):
        return self.deadline(now)

    def tick(self, now):
        self.ticks.append(now)


def driven_by(monkeypatch, deadline) -> tuple[Simulation, Engine]:
    engine = Engine(deadline)
    monkeypatch.setattr(driver, "Sender", lambda *_: engine)
    return Simulation(1), engine


def test_time_jumps_to_the_next_deadline(monkeypatch):
    sim, engine = driven_by(monkeypatch, lambda now: 100.0 * (now // 100.0 + 1))
    sim.run_for(1000.0)
    assert engine.ticks == [100.0 * i for i in range(11)]
    assert sim.now == 1000.0


def test_a_deadline_that_is_not_later_than_now_is_an_error(monkeypatch):
    sim, _ = driven_by(monkeypatch, lambda now: now)
    with pytest.raises(SimulationError, match=r"seed 1: .*would spin.*--seed 1 --trace"):
        sim.run_for(1.0)


def test_an_engine_that_creeps_is_an_error(monkeypatch):
    sim, _ = driven_by(monkeypatch, lambda now: now + 1e-12)
    with pytest.raises(SimulationError, match="time stands still"):
        sim.run_for(1.0)


def test_what_does_not_come_true_in_time_is_an_error(monkeypatch):
    sim, _ = driven_by(monkeypatch, lambda now: now + 0.1)
    with pytest.raises(SimulationError, match=r"did not come true within 5 s"):
        sim.run_until(lambda: False, timeout_s=5.0)


def test_a_story_happens_in_the_order_of_its_times():
    sim, seen = simulation(1), []
    sim.at(0.2, lambda: seen.append(("b", sim.now)))
    sim.at(0.1, lambda: seen.append(("a", sim.now)))
    sim.at(0.2, lambda: sim.at(0.1, lambda: seen.append(("late", sim.now))))
    sim.run_for(1.0)
    assert seen == [("a", 0.1), ("b", 0.2), ("late", 0.2)]


def test_records_arrive_in_order_at_their_offsets():
    sim = simulation(1)
    futures = [sim.send("t", 0) for _ in range(100)]
    sim.run_until(sim.all_settled)
    assert [future.entry.offset for future in futures] == list(range(100))
    assert sim.check().acked == 100


def test_a_send_that_finds_no_room_blocks_its_thread_only_and_goes_on_later():
    sim = simulation(1, buffer_memory=2000)
    futures = [sim.send("t", partition, size_bytes=100) for partition in (0, 1) for _ in range(20)]
    assert sum(future.entry.taken_at is not None for future in futures) < 40
    sim.run_until(sim.all_settled)
    assert all(future.acked for future in futures)
    sim.check()


def test_a_send_that_blocks_too_long_is_refused():
    sim = simulation(1, buffer_memory=2000, max_block_s=0.5)
    sim.send("t", 0)
    sim.run_until(sim.all_settled)
    for node in (1, 2, 3):
        sim.kill(node)
    futures = [sim.send("t", 0, size_bytes=100) for _ in range(30)]
    sim.run_for(20.0)
    refused = [future for future in futures if future.entry.outcome == "refused"]
    assert refused
    assert refused[0].entry.settled_at == pytest.approx(refused[0].entry.sent_at + 0.5)
    assert isinstance(refused[0].error, TimeoutError)


def test_without_a_partition_the_engine_chooses_one():
    sim = simulation(1, batch_size=200)
    for i in range(200):
        sim.at(i * 0.01, lambda: sim.send("t"))
    sim.run_until(sim.all_settled)
    assert {e.partition for e in sim.ledger.entries} == {0, 1, 2}
    assert sim.check().acked == 200


@pytest.mark.parametrize("fail_rest", [True, False])
def test_close_settles_everything(fail_rest):
    sim = simulation(1)
    for node in (1, 2, 3):
        sim.kill(node)
    futures = [sim.send("t", 0)]
    sim.run_for(0.1)
    sim.close(fail_rest=fail_rest)
    sim.run_until(lambda: all(future.done for future in futures), 200.0)
    assert not any(future.acked for future in futures)
    sim.check()


def test_after_a_sudden_close_blocked_and_later_sends_are_refused():
    sim = simulation(1, buffer_memory=2000)
    futures = [sim.send("t", 0, size_bytes=100) for _ in range(30)]
    sim.run_for(0.3)
    sim.close(fail_rest=True)
    futures.append(sim.send("t", 0))
    assert all(future.done for future in futures)
    assert futures[-1].entry.outcome == "refused"
    assert sim.check().acked == sum(future.acked for future in futures)


def test_a_partition_that_is_new_is_looked_for_once_before_it_is_refused():
    sim = simulation(1, topics={"t": 1}, cluster=replace(CALM, creation_deny_p=0.0))
    sim.send("t", 0)
    sim.run_until(sim.all_settled)
    sim.cluster.add_partitions("t", 2, now=sim.now)
    sim.network.collect(sim.now)
    sim.run_for(0.1)
    sim.topics["t"] = 2
    new, missing = sim.send("t", 1), sim.send("t", 2)
    sim.run_until(sim.all_settled)
    assert new.acked
    assert isinstance(missing.error, ValueError)
    sim.check()
