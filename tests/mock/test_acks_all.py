"""Clusters of another design: acks=all is answered by a majority, or by a store that all share.

What must hold as it does for in-sync replicas: who is late holds up nobody that does not need him,
and nothing that was acknowledged is lost.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.testing import swarm
from outlast.testing.cluster import ClusterSettings
from outlast.testing.faults import SlowFollower
from outlast.testing.world import draw_world


def late(bench, *nodes: int, delay_s: float = 3.0) -> None:
    bench.cluster.faults += [SlowFollower(delay_s, node=node) for node in nodes]


# --- by a majority --------------------------------------------------------------------------------


def test_a_majority_acknowledges_without_a_slow_or_a_dead_minority(make_bench):
    bench = make_bench(nodes=5, replication=5, acks_all="majority")
    leader = bench.connect(1)
    late(bench, 2)
    bench.cluster.kill(3, bench.now)
    assert bench.produced(leader, 0).took_s < 0.01
    late(bench, 4)
    late_s = bench.produced(leader, 1).took_s
    assert late_s == pytest.approx(3.0, abs=0.1), "now one of the late ones is needed"


def test_the_in_sync_replicas_do_wait_for_it(make_bench):
    bench = make_bench(nodes=5, replication=5)
    late(bench, 2)
    assert bench.produced(bench.connect(1), 0).took_s == pytest.approx(3.0, abs=0.1)


def test_the_leader_alone_is_no_majority(make_bench):
    bench = make_bench(acks_all="majority")
    late(bench, 2, 3)
    assert bench.produced(bench.connect(1), 0).took_s == pytest.approx(3.0, abs=0.1)


def test_only_who_has_all_acknowledged_records_is_elected(make_bench):
    bench = make_bench(acks_all="majority")
    late(bench, 2, delay_s=60.0)
    assert bench.produced(bench.connect(1), value=b"kept").result == (0, 0)
    bench.cluster.kill(1, bench.now)
    bench.cluster.faults.clear()
    bench.run(5.0)
    assert bench.cluster.leader("t", 0) == (3, 1), "2 would be next, and has nothing"
    assert bench.values() == [b"kept-0"]


def test_the_longer_log_of_an_older_epoch_is_not_elected(make_bench):
    bench = make_bench(acks_all="majority")
    late(bench, 2, 3, delay_s=60.0)
    old = bench.connect(1)
    for _ in range(3):
        bench.produce(old, value=b"never safe")
    bench.run(0.1)
    bench.cluster.kill(1, bench.now)
    bench.cluster.faults.clear()
    bench.run(1.0)
    late(bench, 1, delay_s=60.0)  # so that it keeps what it has
    bench.cluster.start(1, bench.now)
    bench.run(1.0)
    leader, _ = bench.cluster.leader("t", 0)
    assert bench.produced(bench.connect(leader), value=b"kept").result == (0, 0)
    bench.cluster.kill(leader, bench.now)
    bench.cluster.faults.clear()
    bench.run(5.0)
    assert bench.cluster.leader("t", 0)[0] == 5 - leader
    assert bench.values() == [b"kept-0"]


def test_nobody_leads_without_a_majority(make_bench):
    bench = make_bench(acks_all="majority")
    assert bench.produced(bench.connect(1), value=b"kept").result == (0, 0)
    bench.cluster.kill(2, bench.now)
    bench.run(1.0)
    assert bench.cluster.leader("t", 0)[0] == 1
    bench.cluster.pause(3, bench.now)
    bench.run(1.0)
    assert bench.cluster.leader("t", 0)[0] == -1, "the leader runs, and most others do not"
    assert bench.values() == [b"kept-0"]
    bench.cluster.start(2, bench.now)
    bench.run(1.0)
    leader, _ = bench.cluster.leader("t", 0)
    assert leader == 1
    assert bench.produced(bench.connect(1), value=b"more").result == (0, 1)


def test_a_node_that_was_not_given_up_counts_at_once_when_it_goes_on(make_bench):
    bench = make_bench(acks_all="majority", detect_s=5.0)
    bench.cluster.kill(1, bench.now)
    bench.run(4.9)
    bench.cluster.pause(2, bench.now)
    bench.run(1.0)
    assert bench.cluster.leader("t", 0)[0] == -1
    bench.cluster.resume(2, bench.now)
    assert bench.cluster.leader("t", 0)[0] == 2


def test_followers_take_nothing_from_a_leader_that_was_replaced(make_bench):
    bench = make_bench(acks_all="majority", metadata_lag_s=(0.001, 0.5), seed=2)
    old = bench.connect(1)
    bench.cluster.move_leader("t", 0, 2, bench.now)
    told = bench.produced(old, value=b"to the old leader")
    assert told.result == (6, 0), "it knew of nothing yet, and could not have it acknowledged"
    bench.run(1.0)
    assert bench.values() == []


def test_a_planned_move_brings_the_next_leader_up_to_date(make_bench):
    bench = make_bench(acks_all="majority")
    late(bench, 2, delay_s=60.0)
    assert bench.produced(bench.connect(1), value=b"kept").result == (0, 0)
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.run(1.0)
    assert bench.values() == [b"kept-0"]
    bench.cluster.faults.clear()
    assert bench.produced(bench.connect(2), value=b"more").result == (0, 1)


def test_who_cannot_be_elected_cannot_be_made_the_leader(make_bench):
    bench = make_bench(acks_all="majority")
    bench.cluster.pause(2, bench.now)
    with pytest.raises(ValueError, match="node 2 cannot lead t-0: it would not be elected"):
        bench.cluster.move_leader("t", 0, 2, bench.now)


# --- by a store -----------------------------------------------------------------------------------


def test_an_ack_takes_as_long_as_the_store_whatever_the_other_nodes_do(make_bench):
    bench = make_bench(acks_all="store", replication_s=0.3)
    leader = bench.connect(1)
    late(bench, 2)
    assert bench.produced(leader, 0).took_s == pytest.approx(0.3, abs=1e-6)
    bench.cluster.kill(2, bench.now)
    bench.cluster.pause(3, bench.now)
    assert bench.produced(leader, 1).took_s == pytest.approx(0.3, abs=1e-6)


def test_what_comes_during_a_write_goes_into_the_next(make_bench):
    bench = make_bench(acks_all="store", replication_s=1.0)
    one, two = bench.connect(1), bench.connect(1)
    first = bench.produce(one, 0)
    bench.run(0.7)
    assert bench.produced(two, 1).took_s == pytest.approx(1.3, abs=1e-6)
    assert first.took_s == pytest.approx(1.0, abs=1e-6)


def test_the_last_node_that_runs_has_all_that_was_acknowledged(make_bench):
    bench = make_bench(acks_all="store")
    for number in range(3):
        leader, _ = bench.cluster.leader("t", 0)
        assert bench.produced(bench.connect(leader), value=b"n%d" % number).result == (0, number)
        bench.cluster.kill(leader, bench.now)
        bench.run(1.0)
    assert bench.cluster.leader("t", 0)[0] == -1
    assert bench.values() == [b"n0-0", b"n1-0", b"n2-0"]
    bench.cluster.start(2, bench.now)
    bench.run(1.0)
    assert bench.cluster.leader("t", 0)[0] == 2
    assert bench.produced(bench.connect(2), value=b"n3").result == (0, 3)


def test_a_write_that_was_under_way_is_lost_with_its_node_and_not_acknowledged(make_bench):
    bench = make_bench(acks_all="store", replication_s=1.0)
    sent = bench.produce(bench.connect(1), value=b"under way")
    bench.run(0.4)
    bench.cluster.kill(1, bench.now)
    bench.run(5.0)
    assert sent.answered_s is None
    assert bench.values() == []


def test_the_store_takes_nothing_from_a_leader_that_was_replaced(make_bench):
    bench = make_bench(acks_all="store", replication_s=0.2, resume_lag_s=0.5)
    late_one = bench.produce(bench.connect(1), value=b"before the pause")
    bench.run(0.05)
    bench.cluster.pause(1, bench.now)
    bench.run(1.0)
    leader, _ = bench.cluster.leader("t", 0)
    assert bench.produced(bench.connect(leader), value=b"kept").result == (0, 0)
    bench.cluster.resume(1, bench.now)
    bench.until_answered(late_one)
    assert late_one.result == (6, 0)
    assert bench.values() == [b"kept-0"]


# --- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks_all", ["majority", "store"])
def test_random_accidents_lose_nothing_that_was_acknowledged(acks_all, monkeypatch):
    def draw(rng):
        world = draw_world(rng)
        cluster = replace(world.cluster, acks_all=acks_all, unclean_election=False)
        return replace(world, cluster=cluster)

    monkeypatch.setattr(swarm, "draw_world", draw)
    reports = [swarm.run_seed(seed) for seed in range(1, 9)]
    assert [finding for report in reports for finding in report.findings] == []
    assert sum(report.failovers for report in reports) > 20
    assert sum(report.outcomes["acked"] for report in reports) > 500


@pytest.mark.parametrize("acks_all", ["majority", "store"])
def test_replica_sets_stay_as_they_are(make_bench, acks_all):
    bench = make_bench(nodes=4, acks_all=acks_all)
    with pytest.raises(ValueError, match="other replica sets are modelled for acks_all='isr' only"):
        bench.cluster.reassign("t", 0, (2, 3, 4), bench.now)


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="acks_all is 'most'; allowed are 'isr'"):
        ClusterSettings(acks_all="most")
    with pytest.raises(ValueError, match="unclean_election needs acks_all='isr'"):
        ClusterSettings(acks_all="majority", unclean_election=True)
