"""What is said of a record follows from what became of its attempts, and of nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from outlast.engine.messages import Cause
from outlast.testing.faults import Error, ErrorAfter, Garble, Slow
from outlast.testing.ledger import NEVER_SENT, UNKNOWN
from outlast.testing.network import NetworkSettings
from tests.sim.stories import attempts_of, load, simulation

FAR = NetworkSettings(latency_s=(0.01, 0.01))
SEEDS = range(1, 6)


def test_what_follows_a_doubtful_batch_on_its_connection_proves_it():
    """A 20 (appended, too few replicas) for the head, a 0 for those behind it: all are written,
    where the answers say, and nothing is sent twice.
    """
    for seed in SEEDS:
        sim = simulation(seed, topics={"t": 1}, network=FAR)
        load(sim, interval_s=0.004, count=300)
        sim.cluster.faults.append(ErrorAfter(code=20, after_s=0.7, times=1))
        sim.run_until(sim.all_settled, 30.0)
        sim.check()
        attempts = attempts_of(sim, 0)
        [doubted] = [a for a in attempts if a.code == 20]
        assert doubted.base_offset >= 0
        assert len({a.records for a in attempts}) == len(attempts), seed
        [gap] = sim.gaps()
        assert gap.cause is Cause.NOT_ENOUGH_REPLICAS


def test_a_request_that_never_left_this_host_is_no_attempt():
    """The connection is dead and nobody has noticed: some requests still go out on it, others
    come back as never sent. What then expires is told accordingly.
    """
    told = set()
    for seed in range(1, 13):
        sim = simulation(
            seed,
            nodes=1,
            topics={"t": 1},
            network=NetworkSettings(latency_s=(0.0005, 0.0005), notice_s=0.2),
            request_timeout_ms=1000,
            delivery_timeout_ms=2000,
        )
        sim.send("t", 0)
        sim.run_until(sim.all_settled)
        sim.kill(1)
        sim.run_for(0.002)
        lost = sim.send("t", 0)
        sim.run_until(sim.all_settled, 30.0)
        left_this_host = len(attempts_of(sim, 0)) > 1
        assert lost.entry.outcome == (UNKNOWN if left_this_host else NEVER_SENT), seed
        told.add(lost.entry.outcome)
    assert told == {UNKNOWN, NEVER_SENT}, "the runs must show both"


@pytest.mark.parametrize("keep", [0, 3, 9, 30])
def test_a_truncated_answer_costs_its_connection_and_no_other(keep):
    for seed in SEEDS:
        sim = simulation(seed)
        load(sim, interval_s=0.01, count=150)
        node = sim.leader(0)
        sim.cluster.faults.append(Garble(node=node, api=0, keep=keep, after_s=0.7, times=1))
        sim.run_until(sim.all_settled, 30.0)
        verdict = sim.check()  # it may be written, and goes again under its old number
        assert (verdict.acked, verdict.failed) == (450, 0)
        led = {p for _, p in sim.partitions() if sim.leader(p) == node}
        assert {gap.partition for gap in sim.gaps()} <= led
        assert {gap.cause for gap in sim.gaps()} == {Cause.CONNECTION_LOST}
        connects = Counter(c.node_id for c in sim.network.connects if c.role == "open")
        assert connects == {n: 2 if n == node else 1 for n in (1, 2, 3)}, seed


def test_room_that_a_caller_gives_up_goes_to_the_next_at_once():
    """Nothing is settled meanwhile, so nothing else would wake the one behind."""
    sim = simulation(1, topics={"t": 2}, buffer_memory=6000, max_block_s=0.5)
    for partition in (0, 1):
        sim.send("t", partition)
    sim.run_until(sim.all_settled)
    for node in (1, 2, 3):
        sim.kill(node)
    sim.send("t", 0, size_bytes=1000)
    large = sim.send("t", 0, size_bytes=4000, thread="large")
    sim.run_for(0.2)
    small = sim.send("t", 0, size_bytes=100, thread="small")
    sim.run_for(1.0)
    assert large.entry.outcome == "refused"
    assert small.entry.taken_at == pytest.approx(large.entry.settled_at)


@pytest.mark.parametrize("code", [10, 18, 87])
def test_an_answer_that_comes_after_the_deadline_cuts_nothing(code: int):
    """The batch failed in flight, as *unknown*. Its late "too large" or "not these records" must
    not send pieces of it again: their futures have failed.
    """
    sim = simulation(
        1,
        topics={"t": 1},
        linger_ms=5,
        delivery_timeout_ms=2500,
        request_timeout_ms=2400,
        retry_backoff_max_ms=100,  # so that one is sent shortly before the deadline
    )
    sim.send()
    sim.run_until(sim.all_settled)
    late_s = sim.now + 2.3
    sim.cluster.faults += [
        Error(19, topic="t", partition=0, until_s=late_s),
        Slow(api=0, delay_s=0.5, after_s=late_s, times=1),
        Error(code, topic="t", partition=0, after_s=late_s, times=1),
    ]
    for _ in range(4):
        sim.send()
    sim.run_for(15.0)
    sim.check()
    assert {e.outcome for e in sim.ledger.entries[1:]} == {UNKNOWN}
    assert {e.settlements for e in sim.ledger.entries} == {1}
    last = sim.send()
    sim.run_until(sim.all_settled, 10.0)
    assert last.entry.outcome == "acked"
