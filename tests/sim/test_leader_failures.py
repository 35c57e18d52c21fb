"""Every way in which a leader fails, in virtual time: silent, slow, stuck, gone, refusing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest

from outlast.engine.messages import Cause, GapEnd, GapOutcome, Outcome, StallEnd
from outlast.testing.faults import Error, ForgetProducer, MetadataLeaderless, Slow, Throttle
from outlast.testing.network import NetworkSettings
from tests.sim.stories import CALM, attempts_of, load, simulation

SILENCE_S = 1.0
PRODUCE, API_VERSIONS = 0, 18


def repeats_allowed(stall) -> int:
    """While it stalls, what was in flight goes out once more, and then the head once a second."""
    return 5 + int(stall.duration_s)


def copies_on_the_wire(sim, partition: int) -> int:
    """Attempts beyond the first of every batch."""
    sent = attempts_of(sim, partition)
    return len(sent) - len({a.records for a in sent})


class TestSilentLeader:
    """The process hangs: its sockets stay open, and connects to it succeed (A25)."""

    def silenced(self, seed: int, detect_s: float):
        sim = simulation(seed, cluster=replace(CALM, detect_s=detect_s))
        load(sim, interval_s=0.02, count=int((detect_s + 4) / 0.02))

        def resume_all() -> None:
            for node in (1, 2, 3):
                sim.resume(node)

        sim.at(1.0 + 0.05 * seed, lambda: sim.pause(sim.leader(0)))
        sim.at(detect_s + 6.0, resume_all)
        sim.run_until(sim.all_settled, 60.0)
        verdict = sim.check()
        assert verdict.failed == 0
        [gap] = sim.gaps(0)
        assert gap.cause is Cause.SILENT
        assert gap.outcome is GapOutcome.ABSORBED
        return sim, gap

    def test_a_new_leader_at_once_costs_the_silence_time_out_and_a_little(self):
        for seed in range(1, 11):
            _, gap = self.silenced(seed, 0.0)
            assert gap.duration_s <= SILENCE_S + 0.6, seed

    @pytest.mark.parametrize("detect_s", [3.0, 9.0])
    def test_a_new_leader_later_is_followed_within_300_ms_of_being_visible(self, detect_s: float):
        overs = []
        for seed in range(1, 8):
            sim, gap = self.silenced(seed, detect_s)
            overs.append(gap.begin_s + gap.duration_s - sim.visible_at(0))
        assert max(overs) <= 0.3, overs
        assert median(overs) <= 0.1, overs

    def test_others_whose_follower_it_is_stall_and_have_no_gap(self):
        sim, _ = self.silenced(2, 3.0)
        for partition in (1, 2):
            assert sim.gaps(partition) == []
            [stall] = [s for s in sim.sender.stalls(sim.now) if s.partition == partition]
            assert stall.ended_by is StallEnd.ACK
            assert stall.duration_s == pytest.approx(3.0, abs=0.15)
            assert 0 < copies_on_the_wire(sim, partition) <= repeats_allowed(stall)


def test_a_slow_leader_is_left_alone():
    """Answers 800 ms late, more than twenty of them, then 3 s late; the probes as late."""
    sim = simulation(3, request_timeout_ms=30000)
    leader = sim.leader(0)
    load(sim, interval_s=0.05, count=800)
    faults = sim.cluster.faults
    sim.at(1.0, lambda: faults.append(Slow(node=leader, delay_s=0.8, until_s=20.0)))
    sim.at(20.0, lambda: faults.append(Slow(node=leader, delay_s=3.0, until_s=40.0)))
    sim.run_until(sim.all_settled, 120.0)
    assert sim.check().failed == 0
    assert sim.gaps() == []
    assert copies_on_the_wire(sim, 0) == 0
    lost = [f for f in sim.facts if type(f).__name__ == "ConnectionLost"]
    assert [f for f in lost if f.connection.role.value == "open"] == []


@pytest.mark.parametrize("detect_s", [8.0, 12.0])
def test_acks_that_wait_for_a_dead_follower_are_one_stall_of_true_length(detect_s: float):
    sim = simulation(4, topics={"t": 1}, cluster=replace(CALM, detect_s=detect_s))
    follower = next(n for n in (1, 2, 3) if n != sim.leader(0))
    load(sim, interval_s=0.05, count=int((detect_s + 4) / 0.05))
    sim.at(1.01, lambda: sim.pause(follower))
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    assert sim.gaps() == []
    [stall] = sim.sender.stalls(sim.now)
    assert 0 < copies_on_the_wire(sim, 0) <= repeats_allowed(stall)
    attempts = attempts_of(sim, 0)
    first_s = {a.records: a.sent_at for a in reversed(attempts)}
    acked_s = {a.records: a.ended_at for a in attempts if a.code == 0}
    oldest = max(acked_s, key=lambda records: acked_s[records] - first_s[records])
    assert stall.begin_s == pytest.approx(first_s[oldest], abs=1e-9)
    assert stall.duration_s == pytest.approx(acked_s[oldest] - first_s[oldest], abs=1e-9)


def test_all_brokers_down_for_40_s():
    for seed in range(1, 6):
        sim = simulation(seed)
        load(sim, interval_s=0.05, count=1000)
        back_at_s = 41.0
        sim.at(1.0, lambda s=sim: [s.kill(node) for node in (1, 2, 3)])
        sim.at(back_at_s, lambda s=sim: [s.start(node) for node in (1, 2, 3)])
        sim.run_until(sim.all_settled, 120.0)
        assert sim.check().failed == 0
        for partition in (0, 1, 2):
            [gap] = sim.gaps(partition)
            led_s = max(back_at_s, sim.visible_at(partition))
            assert gap.begin_s + gap.duration_s - led_s <= 1.6, (seed, partition)


def test_a_partition_without_a_leader_for_longer_than_the_delivery_time_out():
    sim = simulation(5, delivery_timeout_ms=3000, request_timeout_ms=1000)
    sim.run_for(0.5)
    fault = MetadataLeaderless(topic="t", partition=0, until_s=8.0)
    sim.cluster.faults += [fault, Error(code=6, topic="t", partition=0, until_s=8.0)]
    load(sim, interval_s=0.05, count=240)
    sim.run_until(sim.all_settled, 60.0)
    sim.check()
    told = {p: [e.outcome for e in sim.ledger.entries if e.partition == p] for p in (0, 1, 2)}
    failed = [outcome for outcome in told[0] if outcome != "acked"]
    assert len(failed) > 50
    assert set(failed) <= {Outcome.NEVER_SENT.value, Outcome.NOT_ACCEPTED.value}
    assert set(told[1] + told[2]) == {"acked"}
    assert sim.gaps(1) == sim.gaps(2) == []
    gaps = sim.gaps(0)
    assert gaps[-1].ended_by is GapEnd.ACK
    assert gaps[-1].begin_s + gaps[-1].duration_s <= 8.0 + 0.4


def test_a_gap_that_nobody_waits_for_ends_when_a_usable_leader_is_seen():
    """That leader has no other reason to say anything: it is probed."""
    sim = simulation(6, nodes=6, delivery_timeout_ms=1500, request_timeout_ms=1000)
    sim.cluster.create_topic("far", 1, assignment=[[4, 5, 6]], now=sim.now)
    sim.run_for(0.2)
    sim.send("far")
    sim.run_until(sim.all_settled)
    fault = MetadataLeaderless(topic="far", partition=0, until_s=sim.now + 20.0)
    sim.cluster.faults.append(fault)
    sim.kill(4)
    sim.send("far")
    sim.run_until(sim.all_settled, 10.0)
    [gap] = sim.gaps(0, topic="far")
    assert gap.ended_by is None
    sim.run_for(30.0)
    [gap] = sim.gaps(0, topic="far")
    assert gap.ended_by is GapEnd.LEADER_USABLE
    assert gap.outcome is GapOutcome.REPORTED
    assert gap.begin_s + gap.duration_s <= 20.5 + 2.2


@pytest.mark.parametrize("one_way_s", [0.0005, 0.03], ids=["idle pipe", "full pipe"])
def test_a_throttled_connection_waits_and_has_no_gap(one_way_s: float):
    """Requests that were in the pipe when it was told wait too, and are no stall."""
    sim = simulation(7, network=NetworkSettings(latency_s=(one_way_s, one_way_s)))
    sim.run_for(0.2)
    load(sim, interval_s=0.02, count=400)
    fault = Throttle(node=sim.leader(0), api=PRODUCE, throttle_s=4.0, times=1)
    sim.at(1.0, lambda: sim.cluster.faults.append(fault))
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    assert sim.gaps() == []
    assert sim.sender.stalls(sim.now) == []
    sent = [a.sent_at for a in attempts_of(sim, 0)]
    pauses = [b - a for a, b in pairwise(sent)]
    assert max(pauses) == pytest.approx(4.0, abs=0.03 if one_way_s < 0.01 else 0.2)


def test_a_throttle_ends_with_its_connection():
    sim = simulation(
        9, nodes=1, topics={"t": 1}, delivery_timeout_ms=10000, request_timeout_ms=1000
    )
    sim.send()
    sim.run_until(sim.all_settled)
    sim.cluster.faults.append(Throttle(api=PRODUCE, throttle_s=60.0, times=1))
    sim.send()
    sim.run_until(sim.all_settled)
    sim.kill(1)
    sim.run_for(0.5)
    sim.start(1)
    last = sim.send()
    sim.run_until(sim.all_settled, 20.0)
    assert last.entry.outcome == "acked"


@pytest.mark.parametrize(
    ("first", "later", "may_be_in_the_log"),
    [(5, 0, "; they may be in the log"), (2, 3, "; 2 of them may be in the log"), (0, 5, "")],
)
def test_what_a_close_leaves_behind_is_said(first: int, later: int, may_be_in_the_log: str):
    """Some were on their way to the leader when it was killed, others came when it was gone."""
    sim = simulation(10, topics={"t": 1})
    sim.send()
    sim.run_until(sim.all_settled)
    leader = sim.leader(0)
    for _ in range(first):
        sim.send()
    for node in (1, 2, 3):
        sim.network.refuse(node, sim.now)
    sim.kill(leader)
    sim.run_for(0.1)
    for _ in range(later):
        sim.send()
    sim.run_for(0.1)
    sim.close(fail_rest=True)
    sim.run_until(sim.all_settled, 1.0)
    said = [f.text for f in sim.facts if type(f).__name__ == "Complaint"]
    text = f"5 records were not acknowledged when the producer was closed{may_be_in_the_log}"
    assert text in said


class TestNumbersLost:
    def test_a_forgotten_producer_costs_one_restart_of_that_partition(self):
        sim = simulation(8, cluster=replace(CALM, first_seq_rule="zero"))
        load(sim, interval_s=0.02, count=100)
        sim.at(1.0, lambda: sim.cluster.faults.append(ForgetProducer(topic="t", partition=0)))
        sim.run_until(sim.all_settled, 30.0)
        assert sim.check().failed == 0
        restarts = [f for f in sim.facts if type(f).__name__ == "PartitionRestarted"]
        assert len(restarts) <= 1
        assert all(f.partition == 0 for f in restarts)
