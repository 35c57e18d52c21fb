"""How a new leader is found: what is done at once, what is waited for, and who is asked."""

from __future__ import annotations

from dataclasses import replace

from outlast.engine.messages import LeaderChanged, Role
from outlast.testing.faults import MetadataLag, Slow
from tests.sim.stories import CALM, RTT_S, attempts_of, load, simulation

NO_HINTS = replace(CALM, api_versions={0: (0, 9)})  # they came with Produce 10
MOVE_AT_S = 0.7
SEEDS = range(1, 6)


def refused_and_next(sim, partition=0):
    """The last attempt that was refused, and the one after it."""
    attempts = attempts_of(sim, partition)
    index = max(i for i, attempt in enumerate(attempts) if attempt.rejected)
    return attempts[index], attempts[index + 1]


def connections(sim, role):
    return [c.node_id for c in sim.network.standing() if c.role is role]


def test_a_hint_is_followed_in_the_step_that_brings_it():
    for seed in SEEDS:
        sim = simulation(seed)
        load(sim, interval_s=0.015, count=100)
        sim.at(MOVE_AT_S, lambda sim=sim: sim.move_leader(0, deny_s=0.0))
        sim.run_until(sim.all_settled, 30.0)
        sim.check()
        refused, following = refused_and_next(sim)
        assert following.sent_at == refused.ended_at, seed
        assert following.request.node_id == sim.leader(0)
        [change] = [f for f in sim.facts if isinstance(f, LeaderChanged) and f.by_hint]
        assert change.at_s == refused.ended_at


def test_a_back_off_ends_when_another_leader_is_named():
    """The refusing leader is asked again and again, at growing distances: a new one is not."""
    for seed in SEEDS:
        sim = simulation(seed, cluster=NO_HINTS)
        sim.cluster.faults.append(MetadataLag(lag_s=0.35))
        load(sim, interval_s=0.015, count=150)
        sim.at(MOVE_AT_S, lambda sim=sim: sim.move_leader(0, deny_s=0.0))
        sim.run_until(sim.all_settled, 30.0)
        sim.check()
        named_s = [
            f.at_s
            for f in sim.facts
            if isinstance(f, LeaderChanged) and f.at_s > MOVE_AT_S and f.new_leader == sim.leader(0)
        ]
        refused, following = refused_and_next(sim)
        assert following.request.node_id == sim.leader(0)
        assert following.sent_at == max(named_s[0], refused.ended_at), seed


def test_a_refusal_after_the_new_leader_is_known_costs_no_back_off():
    """The old leader answers late; metadata, asked for by age, has been quicker."""
    for seed in SEEDS:
        sim = simulation(seed, cluster=NO_HINTS, metadata_max_age_ms=50)
        old = sim.leader(0)
        load(sim, interval_s=0.005, count=300)
        sim.at(MOVE_AT_S, lambda sim=sim: sim.move_leader(0, deny_s=0.0))
        slow = Slow(node=old, api=0, delay_s=0.4, times=1)
        sim.at(MOVE_AT_S + 0.0011, lambda sim=sim, slow=slow: sim.cluster.faults.append(slow))
        sim.run_until(sim.all_settled, 30.0)
        sim.check()
        refused, following = refused_and_next(sim)
        assert refused.ended_at - refused.sent_at > 0.3, "it was held"
        assert following.request.node_id == sim.leader(0)
        assert following.sent_at == refused.ended_at, seed


def test_a_silent_node_is_not_the_only_one_that_is_asked():
    """Of four nodes two are cut off: the one that metadata was asked of, and one cut off long ago.
    The question goes to a third after a quarter of a second, and the slow connection is given up.
    """
    for seed in SEEDS:
        sim = simulation(seed, nodes=4, topics={"t": 4}, cluster=NO_HINTS)
        sim.send_every(0, 0.010, 10)
        for partition in range(1, 4):
            sim.at(0.01 * partition, lambda sim=sim, p=partition: sim.send("t", p))
        sim.run_until(sim.all_settled)
        [asked] = connections(sim, Role.CONTROL)
        others = [n for n in (1, 2, 3, 4) if n != asked]
        ours = next(p for p in range(4) if sim.leader(p) in others[1:])
        away = sim.leader(ours)
        forgotten = others[0]
        to = next(n for n in others if n not in (forgotten, away))
        sim.cut(forgotten)
        for partition in range(4):
            if sim.leader(partition) in (away, to):
                sim.send_every(partition, 0.010, 200)
        sim.at(sim.now + 0.3, lambda sim=sim, asked=asked: sim.cut(asked))
        moved_s = sim.now + 0.4
        sim.at(moved_s, lambda sim=sim, ours=ours, to=to: sim.move_leader(ours, to, deny_s=0.0))
        sim.run_until(sim.all_settled, 30.0)
        [gap] = sim.gaps(ours)
        assert gap.duration_s <= 0.250 + 0.120 + 8 * RTT_S + 0.010, seed
        [now_asked] = connections(sim, Role.CONTROL)
        assert now_asked not in (asked, forgotten)


def test_a_broken_connection_is_made_again_at_once_each_time():
    for seed in SEEDS:
        sim = simulation(seed, topics={"t": 1})
        leader = sim.leader(0)
        load(sim, interval_s=0.002, count=1500)
        for at_s in (1.0, 1.5, 2.0):
            sim.at(at_s, lambda sim=sim, leader=leader: sim.reset(leader))
        sim.run_until(sim.all_settled, 30.0)
        sim.check()
        assert len(sim.gaps(0)) == 3, seed
        for gap in sim.gaps(0):
            assert gap.duration_s <= 0.030, gap


def test_a_leader_that_returns_is_connected_as_soon_as_it_is_named():
    """Its connects failed for seconds: the back-off has grown, and must not be served out."""
    for seed in SEEDS:
        sim = simulation(seed, cluster=replace(CALM, detect_s=7.0), retry_backoff_ms=100)
        sim.cluster.create_topic("alone", 1, replication=1, now=sim.now)
        sim.topics["alone"] = 1
        sim.network.collect(sim.now)
        sim.run_for(0.5)
        leader = sim.leader(0, "alone")
        sim.send_every(0, 0.05, 250, topic="alone")
        sim.at(MOVE_AT_S, lambda sim=sim, leader=leader: sim.kill(leader))
        sim.at(MOVE_AT_S + 7.2, lambda sim=sim, leader=leader: sim.start(leader))
        sim.run_until(sim.all_settled, 60.0)
        [gap] = sim.gaps(0, "alone")
        assert gap.begin_s + gap.duration_s - sim.visible_at(0, "alone") <= 0.170, seed


def test_without_acks_a_closed_connection_is_a_reason_to_look_for_the_leader():
    """The old leader tells a refusal by closing (S18), and nothing else tells of the move."""
    for seed in range(1, 6):
        sim = simulation(seed, topics={"t": 1}, acks=0, enable_idempotence=False)
        load(sim, interval_s=0.02, count=300)
        sim.at(2.0, lambda s=sim: s.move_leader(0))
        sim.run_until(sim.all_settled, 60.0)
        sim.run_for(1.0)
        kept = {record.value for record in sim.cluster.records("t", 0)}
        late = [e for e in sim.ledger.entries if e.sent_at > 2.5]
        assert len(late) > 100
        assert all(e.value in kept for e in late), seed
