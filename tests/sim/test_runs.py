"""`send_many` in virtual time: calls of many records beside single ones, through failovers."""

from __future__ import annotations

from random import Random

import pytest

from outlast.testing.swarm import run_seed
from outlast.testing.world import draw_world
from tests.sim.stories import simulation


def test_the_records_of_a_call_arrive_in_their_order_in_several_batches():
    sim = simulation(1, batch_size=500)
    futures = sim.send_many([30] * 100, "t", 0)
    sim.run_until(sim.all_settled)
    assert [future.entry.offset for future in futures] == list(range(100))
    assert sim.check().acked == 100


def test_records_with_keys_go_where_single_ones_would():
    sim = simulation(1)
    sim.send()
    sim.run_until(sim.all_settled)
    sim.send()  # it begins a batch that takes more of those without a key
    keys = [b"%d" % n for n in range(30)]
    many = sim.send_many([0] * 30, keys=keys, thread="many")
    single = [sim.send(key=key, thread="single") for key in keys]
    sim.run_until(sim.all_settled)
    assert [f.entry.partition for f in many] == [f.entry.partition for f in single]
    assert {f.entry.partition for f in many} == {0, 1, 2}
    sim.check()


def test_without_a_key_a_call_goes_on_elsewhere_when_a_batch_is_full():
    sim = simulation(1, batch_size=500)
    futures = sim.send_many([30] * 200)
    sim.run_until(sim.all_settled)
    assert {f.entry.partition for f in futures} == {0, 1, 2}
    assert sim.check().acked == 200


@pytest.mark.parametrize("node", [1, 2, 3])
def test_calls_outlast_a_crash_between_single_sends(node):
    sim = simulation(node)
    for step in range(60):
        at_s = step * 0.05
        sim.at(at_s, lambda: sim.send_many([30] * 7, "t", 0))
        sim.at(at_s, lambda: sim.send("t", 0))
        sim.at(at_s, lambda: sim.send_many([30] * 7, keys=[b"%d" % n for n in range(7)]))
    sim.at(1.0, lambda: sim.kill(node))
    sim.run_until(sim.all_settled)
    assert sim.check().acked == 60 * 15


def test_a_call_that_finds_no_room_waits_with_the_rest_of_its_records():
    sim = simulation(1, buffer_memory=2000)
    before = sim.send("t", 0)
    sim.run_until(sim.all_settled)
    futures = sim.send_many([100] * 40, "t", 0)
    later = sim.send("t", 0)
    taken = [future.entry.taken_at is not None for future in futures]
    assert any(taken)
    assert not all(taken)
    sim.run_until(sim.all_settled)
    assert [f.entry.offset for f in [before, *futures, later]] == list(range(42))
    sim.check()


def test_what_a_call_cannot_have_taken_in_time_is_refused_and_the_rest_is_not():
    sim = simulation(1, buffer_memory=2000, max_block_s=0.5)
    sim.send("t", 0)
    sim.run_until(sim.all_settled)
    for node in (1, 2, 3):
        sim.kill(node)
    futures = sim.send_many([100] * 30, "t", 0)
    sim.run_for(20.0)
    refused = [future.entry.outcome == "refused" for future in futures]
    first = refused.index(True)
    assert first > 0
    assert all(refused[first:])
    assert futures[first].entry.settled_at == pytest.approx(futures[0].entry.sent_at + 0.5)
    assert isinstance(futures[first].error, TimeoutError)


def test_a_record_that_is_too_large_costs_no_other():
    sim = simulation(1, buffer_memory=4000)
    futures = sim.send_many([30, 5000, 30], "t", 0)
    sim.run_until(sim.all_settled)
    assert [future.entry.outcome for future in futures] == ["acked", "refused", "acked"]
    sim.check()


def test_after_a_sudden_close_calls_are_refused():
    sim = simulation(1, buffer_memory=2000)
    futures = sim.send_many([100] * 30, "t", 0)
    sim.run_for(0.0)
    sim.close(fail_rest=True)
    futures += sim.send_many([100] * 3, "t", 0)
    assert all(future.done for future in futures)
    assert {future.entry.outcome for future in futures[-3:]} == {"refused"}
    sim.check()


def test_random_runs_make_calls_of_many_records():
    """In some worlds none, in some all."""
    shares = {draw_world(Random(f"{seed}/world")).in_runs for seed in range(1, 40)}
    assert {0.0, 1.0} < shares
    all_in_runs = next(
        seed for seed in range(1, 40) if draw_world(Random(f"{seed}/world")).in_runs == 1.0
    )
    assert run_seed(all_in_runs).records > 0
