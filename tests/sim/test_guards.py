"""Restraint that no other story asks for: each of these was missed by a planted bug."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter

from outlast.engine.messages import ConnectionLost, Role
from outlast.testing.faults import CutAfter, Error, Slow
from tests.sim.stories import CALM, attempts_of, load, simulation

PRODUCE = 0


def test_an_unsure_batch_that_is_too_large_is_not_cut():
    """It is written, its answer is lost, and then it is called too large: cut, it would be written
    again in pieces.
    """
    sim = simulation(1, topics={"t": 1}, linger_ms=5)
    sim.send()
    sim.run_until(sim.all_settled)
    sim.cluster.faults += [CutAfter(api=PRODUCE, times=1), Error(code=10, topic="t", times=1)]
    for _ in range(4):
        sim.send()
    sim.run_until(sim.all_settled, 30.0)
    sim.check()
    assert [fault.used for fault in sim.cluster.faults] == [1, 1]


def test_a_leader_that_denies_it_is_not_asked_without_a_pause():
    """A third of a second, a millisecond to the broker and back: pauses grow from 5 to 100 ms."""
    sim = simulation(2)
    load(sim, interval_s=0.015, count=100)
    sim.at(0.7, lambda: sim.move_leader(0, deny_s=0.3))
    sim.run_until(sim.all_settled, 30.0)
    sim.check()
    refused = [a for a in attempts_of(sim, 0) if a.rejected]
    assert 2 <= len(refused) <= 15


def test_a_node_named_alive_again_is_connected_at_once():
    """It was never missed, so its back-off is known: the next connect is ten seconds away when it
    leads again.
    """
    sim = simulation(
        3,
        cluster=replace(CALM, detect_s=20.0),
        topics={"t": 1},
        reconnect_backoff_ms=10_000,
        reconnect_backoff_max_ms=10_000,
    )
    sim.cluster.create_topic("alone", 1, replication=1, now=sim.now)
    sim.topics["alone"] = 1
    sim.network.collect(sim.now)
    sim.run_for(0.5)
    leader = sim.leader(0, "alone")
    sim.send_every(0, 0.05, 100, topic="alone")
    sim.at(1.0, lambda: sim.kill(leader))
    sim.at(3.5, lambda: sim.start(leader))
    sim.run_until(sim.all_settled, 60.0)
    sim.check()
    [gap] = sim.gaps(0, "alone")
    assert gap.begin_s + gap.duration_s - sim.visible_at(0, "alone") <= 0.3


def test_a_partition_that_was_fenced_gets_a_producer_id_of_its_own():
    sim = simulation(6)
    load(sim, interval_s=0.02, count=50)
    sim.at(0.5, lambda: sim.cluster.faults.append(Error(code=59, partition=0, topic="t", times=1)))
    sim.run_until(sim.all_settled, 30.0)
    assert sim.check().failed == 0
    ids = [{r.producer_id for r in sim.cluster.records("t", p)} for p in (0, 1, 2)]
    assert len(ids[0]) == 2
    assert ids[1] == ids[2] == ids[0] & ids[1]


def test_what_never_left_this_host_is_dropped_with_its_connection():
    """The node is cut off, its requests pile up in this host, and their connection is given up:
    they must not arrive when the way is free again.
    """
    sim = simulation(4, request_timeout_ms=2000, cluster=replace(CALM, detect_s=0.5))
    node = sim.leader(0)
    load(sim, interval_s=0.02, count=300)
    cut_s = 1.0
    sim.at(cut_s, lambda: sim.cut(node))
    sim.at(6.0, lambda: sim.heal(node))
    sim.run_until(sim.all_settled, 60.0)
    sim.run_for(5.0)
    sim.check()
    given_up = [
        f
        for f in sim.facts
        if isinstance(f, ConnectionLost) and f.connection.role is Role.OPEN and f.at_s < 6.0
    ]
    assert given_up
    late = [
        r
        for r in sim.network.requests
        if r.node_id == node and cut_s < r.sent_at < given_up[0].at_s and r.api_key == PRODUCE
    ]
    assert late
    assert [r for r in late if r.arrived_at is not None and r.arrived_at > 6.0] == []


def test_a_hanging_leader_that_nobody_replaces_keeps_its_connection():
    """Silent for three seconds, and its probes as well; but metadata names no other leader."""
    sim = simulation(
        5, request_timeout_ms=30_000, cluster=replace(CALM, detect_s=20.0), topics={"t": 1}
    )
    node = sim.leader(0)
    load(sim, interval_s=0.02, count=300)
    sim.at(1.01, lambda: sim.pause(node))
    sim.at(4.0, lambda: sim.resume(node))
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    sent = attempts_of(sim, 0)
    assert len({a.records for a in sent}) == len(sent)


def test_a_leader_that_takes_its_time_has_a_stall_and_no_gap():
    """It answers its probe: its acks are late, that is all."""
    sim = simulation(9, topics={"t": 1})
    load(sim, interval_s=0.02, count=200)
    sim.at(1.0, lambda: sim.fault(Slow(node=sim.leader(0), api=PRODUCE, delay_s=2.5, times=1)))
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    assert sim.gaps() == []
    [stall] = sim.sender.stalls(sim.now)
    assert stall.reason == "leader"


def test_a_question_does_not_wait_behind_a_produce():
    """A leader's produces wait for a dead follower; a new topic is asked for meanwhile (S8)."""
    sim = simulation(7, topics={"t": 1}, cluster=replace(CALM, detect_s=6.0))
    load(sim, interval_s=0.05, count=100)
    sim.run_for(1.0)
    leader = sim.leader(0)
    busy = {leader} | {c.node_id for c in sim.network.standing() if c.role is Role.CONTROL}
    sim.pause(next(n for n in (1, 2, 3) if n not in busy))
    sim.cluster.create_topic("new", 1, assignment=[[leader]], now=sim.now)
    sim.topics["new"] = 1
    sim.network.collect(sim.now)
    sim.run_for(0.5)
    first = sim.send("new")
    sim.run_for(0.1)
    assert first.entry.taken_at is not None, "its partitions are known"
    sim.run_until(sim.all_settled, 30.0)
    assert sim.check().failed == 0


def test_a_deaf_connection_of_a_healthy_leader_is_given_up():
    """Nothing passes on it any more, and nobody is told; another connection would do."""
    sim = simulation(8, topics={"t": 1}, request_timeout_ms=20_000)
    load(sim, interval_s=0.02, count=200)
    sim.run_for(1.0)
    [line] = [c for c in sim.network.standing() if c.role is Role.OPEN]
    sim.network.deafen(line)
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    [gap] = sim.gaps()
    assert gap.begin_s + gap.duration_s <= 1.0 + 2.5


def test_one_in_flight_is_one_in_flight():
    """Of the whole connection, not of each partition."""
    sim = simulation(
        9,
        nodes=1,
        topics={"t": 2},
        enable_idempotence=False,
        max_in_flight_requests_per_connection=1,
    )
    for partition in (0, 1):  # the second becomes due while the first is on its way
        sim.send_every(partition, 0.003, 50, start_s=0.5 + 0.0004 * partition)
    sim.run_until(sim.all_settled, 30.0)
    sim.check()
    sent = {(a.sent_at, a.ended_at) for p in (0, 1) for a in attempts_of(sim, p)}
    assert all(b[0] >= a[1] for a, b in pairwise(sorted(sent)))


def test_a_request_holds_no_more_than_allowed():
    """Batches of 700 bytes, one from each of six partitions, and 1 500 bytes a request."""
    sim = simulation(10, nodes=1, topics={"t": 6}, max_request_size=1500, batch_size=700)
    for partition in range(6):
        sim.send("t", partition, size_bytes=600)
    sim.run_until(sim.all_settled, 30.0)
    sim.check()
    together = Counter(id(a.request) for p in range(6) for a in attempts_of(sim, p))
    assert max(together.values()) == 2


def test_a_full_batch_leaves_at_once():
    """Also if no other record comes, and its linger is ten seconds."""
    sim = simulation(10, nodes=1, topics={"t": 1}, linger_ms=10_000, batch_size=700)
    sim.run_for(0.5)
    sim.send("t", 0, size_bytes=1)
    sim.run_for(0.5)  # its linger is noted
    sim.send("t", 0, size_bytes=800)
    sim.run_for(0.5)
    assert sim.all_settled()
    sim.check()


def test_what_waits_for_the_first_ack_goes_with_it():
    """Until then one batch is in flight (rule 3), and nothing else wakes those behind it."""
    sim = simulation(10, nodes=1, topics={"t": 1}, batch_size=700)
    sim.run_for(0.5)
    for _ in range(3):
        sim.send("t", 0, size_bytes=800)
    sim.run_for(0.5)
    assert sim.all_settled()
    sim.check()


def test_what_did_not_fit_into_a_request_goes_first_in_the_next():
    """Room for two of five, and more is written to all of them all the time."""
    sim = simulation(
        10,
        nodes=1,
        topics={"t": 5},
        max_request_size=1500,
        batch_size=700,
        max_in_flight_requests_per_connection=1,
    )
    for _ in range(20):
        for partition in range(5):
            sim.send("t", partition, size_bytes=600)
    sim.run_until(sim.all_settled, 30.0)
    sim.check()
    sent = sorted(
        (a.request.arrived_at, partition)
        for partition in range(5)
        for a in attempts_of(sim, partition)
    )
    counts = Counter(dict.fromkeys(range(5), 0))
    for _, request in groupby(sent, key=itemgetter(0)):
        counts.update(partition for _, partition in request)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_an_election_does_not_use_retries_up():
    sim = simulation(11, topics={"t": 1}, retries=3, cluster=replace(CALM, detect_s=0.1))
    load(sim, interval_s=0.02, count=100)
    fault = Error(code=20, topic="t", times=2)  # two that count, one less than allowed
    sim.at(0.5, lambda: sim.cluster.faults.append(fault))
    sim.at(1.0, lambda: sim.cluster.faults.append(Error(code=6, topic="t", until_s=3.0)))
    sim.run_until(sim.all_settled, 30.0)
    assert sim.check().failed == 0
    assert fault.used == 2
