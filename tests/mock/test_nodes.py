"""A node's life as clients see it: stop, crash, return, pause.

Tests are named by the facts of docs/kafka-facts.md that they show, most of them A rows.
"""

from __future__ import annotations

import pytest

from outlast.testing.cluster import KRAFT


def node_ids(metadata):
    return sorted(broker.node_id for broker in metadata.brokers)


# --- controlled stop ---


def test_a6_a_stopping_node_answers_6_on_old_and_new_connections_then_closes(bench):
    old = bench.connect(1)
    begun_s = bench.now
    bench.cluster.stop(1, bench.now)
    bench.run(0.05)
    for connection in (old, bench.connect(1)):
        refused = bench.produced(connection)
        assert (refused.result, refused.hint) == ((6, -1), (2, 1))
    answer = bench.metadata(old, "t")
    assert node_ids(answer) == [1, 2, 3], "it lists itself as a live broker"
    assert answer.topics[0].partitions[0].leader_id == 2
    bench.run_until(lambda: old in bench.closed)
    closed_s, reset = bench.closed[old]
    assert 2.0 < closed_s - begun_s < 2.3
    assert not reset
    assert not bench.cluster.opened(1, "late", bench.now)


def test_a3_requests_are_unanswered_when_a_stopping_node_closes(make_bench):
    bench = make_bench(replication=1, nodes=2, stopping_s=1.0, unlisted_s=0.0)
    old = bench.connect(1)
    bench.cluster.stop(1, bench.now)
    bench.run(0.999)
    assert bench.produced(old).result == (0, 0), "no other replica: it leads to the end (A27)"
    bench.run(0.0005)
    bench.cluster.faults.append(slow(1.0))
    unanswered = bench.produce(old)
    bench.run(5.0)
    assert unanswered.response is None
    assert bench.cluster.leader("t", 0) == (-1, 1)


def slow(delay_s):
    from outlast.testing.faults import Slow

    return Slow(delay_s)


def test_a9_the_broker_list_drops_a_stopping_node_shortly_before_its_end(bench):
    bench.cluster.stop(1, bench.now)
    begun_s = bench.now
    survivor = bench.connect(2)
    bench.run(1.9)
    assert node_ids(bench.metadata(survivor)) == [1, 2, 3]
    bench.run_until(lambda: node_ids(bench.metadata(survivor)) == [2, 3])
    assert bench.now - begun_s > 2.0


def test_a10_other_leaders_acks_all_goes_on_through_a_stop(bench):
    bench.cluster.create_topic("u", 1, assignment=[[2, 1, 3]], now=bench.now)
    bench.run(1.0)
    other = bench.connect(2)
    bench.cluster.stop(1, bench.now)
    for _ in range(100):
        assert bench.produced(other, topic="u").took_s < 0.139
        bench.run(0.03)


def test_c14_a_follower_in_controlled_stop_leaves_the_isr(make_bench):
    bench = make_bench(nodes=2, min_isr=2)
    leader = bench.connect(1)
    bench.cluster.stop(2, bench.now)
    bench.run(0.05)
    assert bench.produced(leader).result == (19, -1)
    assert bench.produced(leader, acks=1).result == (0, 0)


# --- crash ---


def test_a18_to_a21_nothing_changes_until_one_step_changes_everything(make_bench):
    bench = make_bench(detect_s=8.3, metadata_lag_s=0.002, partitions=3)
    survivor = bench.connect(2)
    killed_s = bench.now
    bench.cluster.kill(1, bench.now)
    bench.run(8.29)
    before = bench.metadata(survivor, "t")
    assert node_ids(before) == [1, 2, 3]
    assert [(p.error_code, p.leader_id, p.leader_epoch) for p in before.topics[0].partitions] == [
        (0, 1, 0),
        (0, 2, 0),
        (0, 3, 0),
    ]
    assert all(len(p.isr_nodes) == 3 for p in before.topics[0].partitions)
    assert all(not p.offline_replicas for p in before.topics[0].partitions)
    bench.run_until(lambda: node_ids(bench.metadata(survivor)) == [2, 3])
    assert bench.now - killed_s == pytest.approx(8.302)
    after = bench.metadata(survivor, "t").topics[0].partitions
    assert [(p.leader_id, p.leader_epoch) for p in after] == [(2, 1), (2, 0), (3, 0)]
    assert all(1 not in p.isr_nodes and p.offline_replicas == [1] for p in after)


def test_a19_a_dead_controller_takes_longer_to_notice(make_bench):
    bench = make_bench(detect_s=8.0, controller_detect_s=11.0)
    bench.cluster.kill(1, bench.now)
    bench.run(10.9)
    assert bench.cluster.leader("t", 0) == (1, 0)
    bench.run(0.2)
    assert bench.cluster.leader("t", 0) == (2, 1)
    bench.cluster.kill(3, bench.now)
    bench.run(8.1)
    assert bench.cluster.topics["t"].partitions[0].isr == (2,)


def test_promote_s_is_added_to_the_detection(make_bench):
    bench = make_bench(detect_s=0.5, promote_s=3.0)
    bench.cluster.kill(1, bench.now)
    bench.run(3.4)
    assert bench.cluster.leader("t", 0) == (1, 0)
    bench.run(0.2)
    assert bench.cluster.leader("t", 0) == (2, 1)


def test_a24_a_crash_resets_busy_connections_and_refuses_new_ones(bench):
    busy, idle = bench.connect(1), bench.connect(1)
    bench.produce(busy)
    bench.cluster.kill(1, bench.now)
    bench.run(0.0)
    assert bench.closed == {busy: (bench.now, True), idle: (bench.now, False)}
    assert not bench.cluster.opened(1, "new", bench.now)
    assert not bench.cluster.listens(1)


def test_s7_a26_a_dead_follower_stalls_acks_all_until_the_isr_shrinks(make_bench):
    bench = make_bench(detect_s=8.0)
    patient, hasty, quick = bench.connect(1), bench.connect(1), bench.connect(1)
    bench.produced(patient)
    killed_s = bench.now
    bench.cluster.kill(3, bench.now)
    waiting = bench.produce(patient)
    assert bench.produced(quick, acks=1).took_s == 0
    for _ in range(3):
        timed_out = bench.produced(hasty, timeout_ms=1500)
        code, offset = timed_out.result
        assert code == 7
        assert offset > 1
        assert 1.5 < timed_out.took_s < 1.52
    bench.until_answered(waiting)
    assert waiting.result == (0, 1)
    assert waiting.answered_s is not None
    assert 8.0 < waiting.answered_s - killed_s < 8.04


def test_a27_a_partition_without_another_replica_has_no_leader_until_its_node_is_back(make_bench):
    bench = make_bench(replication=1)
    bench.produced(bench.connect(1), value=b"kept")
    bench.cluster.kill(1, bench.now)
    bench.run(1.0)
    survivor = bench.connect(2)
    (partition,) = bench.metadata(survivor, "t").topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (5, -1, 1)
    assert partition.isr_nodes == []
    assert partition.offline_replicas == [1]
    refused = bench.produced(survivor)
    assert (refused.result, refused.hint) == ((6, -1), (-1, 1))
    assert refused.response.node_endpoints == []
    bench.cluster.start(1, bench.now)
    bench.run(1.0)
    assert bench.named_leader(2) == (1, 2)
    assert bench.values() == [b"kept-0"]


def test_a43_a44_the_eligible_replica_leads_only_where_min_isr_made_it_eligible(make_bench):
    for min_isr, leader in ((1, -1), (2, 2)):
        bench = make_bench(nodes=2, min_isr=min_isr)
        old = bench.connect(1)
        bench.produced(old, 0, value=b"both")
        bench.cluster.kill(2, bench.now)
        bench.run(1.0)
        assert bench.produced(old, 1, value=b"one", acks=1).result == (0, 1)
        bench.cluster.kill(1, bench.now)
        bench.run(0.01)
        bench.cluster.start(2, bench.now)
        bench.run(1.0)
        assert bench.cluster.leader("t", 0)[0] == leader
        new = bench.connect(2)
        if min_isr == 2:
            assert bench.produced(new).result == (19, -1)
            assert bench.produced(new, value=b"other", acks=1).result == (0, 1)
        else:
            refused = bench.produced(new)
            assert (refused.result, refused.hint) == ((6, -1), (-1, 1))
        bench.cluster.start(1, bench.now)
        bench.run(1.0)
        assert bench.values() == [b"both-0", b"other-0" if min_isr == 2 else b"one-0"]


# --- return ---


def test_a12_a_restarted_node_knows_the_present_at_once_and_joins_the_isr(make_bench):
    bench = make_bench(startup_s=2.3, isr_join_s=0.5)
    bench.cluster.kill(1, bench.now)
    bench.run(1.0)
    bench.cluster.start(1, bench.now)
    bench.run(2.29)
    assert not bench.cluster.opened(1, "early", bench.now)
    bench.run(0.02)
    first = bench.connect(1)
    refused = bench.produced(first)
    assert (refused.result, refused.hint) == ((6, -1), (2, 1))
    assert node_ids(bench.metadata(first)) == [1, 2, 3]
    assert 1 not in bench.cluster.topics["t"].partitions[0].isr
    bench.run(0.6)
    assert bench.cluster.topics["t"].partitions[0].isr == (2, 3, 1)


def test_a_node_that_is_back_before_anyone_noticed_still_loses_its_leaders(make_bench):
    bench = make_bench(detect_s=60.0)
    bench.cluster.kill(1, bench.now)
    bench.cluster.start(1, bench.now)
    bench.run(1.0)
    assert bench.cluster.leader("t", 0) == (2, 1)


def test_a_follower_back_before_its_leader_knew_it_was_gone_is_taken_in_again(make_bench):
    """Nothing new can be appended meanwhile (19), so nothing else would bring it back."""
    for seed in range(20):
        bench = make_bench(
            nodes=2, min_isr=2, seed=seed, metadata_lag_s=(0.01, 0.3), detect_s=0.5, isr_join_s=0.0
        )
        bench.cluster.kill(2, bench.now)
        bench.run(0.46)
        bench.cluster.start(2, bench.now)
        bench.run(2.0)
        assert bench.cluster.topics["t"].partitions[0].isr == (1, 2), seed


def test_a_start_that_takes_long_does_not_hide_the_crash(make_bench):
    bench = make_bench(detect_s=1.0, startup_s=5.0)
    bench.cluster.kill(1, bench.now)
    bench.run(0.5)
    bench.cluster.start(1, bench.now)
    bench.run(0.6)
    assert bench.cluster.leader("t", 0) == (2, 1)
    bench.cluster.kill(1, bench.now)
    bench.run(20.0)
    assert not bench.cluster.listens(1), "killed while it started"


# --- pause ---


def test_a25_a_paused_node_takes_connections_and_bytes_and_answers_nothing(bench):
    old = bench.connect(1)
    bench.cluster.pause(1, bench.now)
    new = bench.connect(1)
    swallowed = [bench.produce(old), bench.produce(new)]
    bench.run(0.2)
    assert all(s.response is None for s in swallowed)
    assert bench.closed == {}


def test_a29_nobody_notices_a_short_pause(make_bench):
    bench = make_bench(detect_s=8.0)
    bench.cluster.create_topic("u", 1, assignment=[[2, 1, 3]], now=bench.now)
    bench.run(1.0)
    paused, other, hasty = bench.connect(1), bench.connect(2), bench.connect(2)
    bench.cluster.pause(1, bench.now)
    waiting = [bench.produce(paused), bench.produce(paused), bench.produce(other, topic="u")]
    assert bench.produced(hasty, topic="u", timeout_ms=1500).result == (7, 1)
    bench.run(3.5)
    assert all(s.response is None for s in waiting)
    bench.cluster.resume(1, bench.now)
    bench.until_answered(*waiting)
    assert [s.result for s in waiting] == [(0, 0), (0, 1), (0, 0)]
    assert bench.cluster.leader("t", 0) == (1, 0)


def test_each_silence_has_a_detection_of_its_own(make_bench):
    bench = make_bench(detect_s=1.0)
    bench.cluster.pause(1, bench.now)
    bench.run(0.5)
    bench.cluster.resume(1, bench.now)
    bench.run(0.4)
    bench.cluster.pause(1, bench.now)
    bench.run(0.99)
    assert bench.cluster.leader("t", 0) == (1, 0)
    bench.run(0.02)
    assert bench.cluster.leader("t", 0) == (2, 1)


def test_a30_s17_a_stale_leader_takes_one_waiting_request_per_connection(make_bench):
    bench = make_bench(resume_lag_s=0.1)
    everyone = [bench.connect(1) for _ in range(4)]
    bench.produced(everyone[0], value=b"before")
    bench.cluster.pause(1, bench.now)
    all_acks = [[bench.produce(c, value=b"lost") for _ in range(3)] for c in everyone[:3]]
    bench.run(1.0)
    assert bench.cluster.leader("t", 0) == (2, 1)
    assert bench.produced(bench.connect(2), value=b"new").result == (0, 1)
    bench.cluster.resume(1, bench.now)
    resumed_s = bench.now
    one = bench.produced(everyone[3], value=b"lost", acks=1)
    assert one.result[0] == 0, "acks=1 is acknowledged meanwhile, and lost"
    bench.until_answered(*[s for sent in all_acks for s in sent])
    for first, *rest in all_acks:
        code, offset = first.result
        assert code == 6
        assert offset >= 1
        assert first.hint == (2, 1)
        assert [s.result for s in rest] == [(6, -1), (6, -1)]
    assert bench.now - resumed_s == pytest.approx(0.1)
    assert everyone[0] not in bench.closed
    bench.run(1.0)
    assert bench.values() == [b"before-0", b"new-0"]


def test_a31_a_request_replicated_before_the_pause_is_answered_0_after_it(make_bench):
    bench = make_bench(replication_s=0.1)
    leader = bench.connect(1)
    sent = bench.produce(leader, value=b"kept")
    bench.run(0.07)
    bench.cluster.pause(1, bench.now)
    bench.run(1.0)
    assert bench.cluster.leader("t", 0) == (2, 1)
    bench.cluster.resume(1, bench.now)
    bench.until_answered(sent, within_s=0.01)
    assert sent.result == (0, 0)
    bench.run(1.0)
    assert bench.values() == [b"kept-0"]


def test_a32_metadata_pending_on_a_paused_node_still_names_the_old_leader(bench):
    connection = bench.connect(1)
    bench.cluster.pause(1, bench.now)
    bench.run(1.0)
    bench.cluster.resume(1, bench.now)
    assert bench.named_leader(1) == (1, 0)
    bench.run(0.2)
    assert bench.named_leader(1) == (2, 1)
    assert connection not in bench.closed


def test_a34_batches_pending_on_a_paused_node_and_sent_again_are_in_the_log_once(bench):
    paused = bench.connect(1)
    bench.produced(paused, 0)
    bench.cluster.pause(1, bench.now)
    for sequence in (1, 2, 3):
        bench.produce(paused, sequence)
    bench.run(1.0)
    new = bench.connect(2)
    for sequence in (1, 2, 3):
        assert bench.produced(new, sequence).result == (0, sequence)
    bench.cluster.resume(1, bench.now)
    bench.run(2.0)
    assert [r.sequence for r in bench.cluster.records("t", 0)] == [0, 1, 2, 3]


def test_a35_a_resumed_node_is_listed_and_in_sync_again(bench):
    bench.cluster.pause(1, bench.now)
    bench.run(1.0)
    survivor = bench.connect(2)
    assert node_ids(bench.metadata(survivor)) == [2, 3]
    bench.cluster.resume(1, bench.now)
    resumed_s = bench.now
    bench.run_until(lambda: node_ids(bench.metadata(survivor)) == [1, 2, 3])
    assert 0.045 < bench.now - resumed_s < 0.17
    bench.run_until(lambda: 1 in bench.cluster.topics["t"].partitions[0].isr)
    assert bench.now - resumed_s < 0.6


def test_a36_without_a_majority_nothing_is_decided(make_bench):
    bench = make_bench(combined_quorum=True, detect_s=1.0)
    leader = bench.connect(1)
    bench.cluster.pause(2, bench.now)
    bench.cluster.pause(3, bench.now)
    bench.run(3.0)
    stuck = bench.produced(leader, timeout_ms=1500, value=b"all")
    assert stuck.result == (7, 0)
    assert bench.produced(leader, acks=1, value=b"one").result == (0, 1)
    assert bench.cluster.topics["t"].partitions[0].isr == (1, 2, 3)
    bench.cluster.resume(2, bench.now)
    bench.cluster.resume(3, bench.now)
    bench.run(2.0)
    assert bench.values() == [b"all-0", b"one-0"]


def test_killing_a_paused_node_resets_what_waited(bench):
    connection = bench.connect(1)
    bench.cluster.pause(1, bench.now)
    sent = bench.produce(connection)
    bench.cluster.kill(1, bench.now)
    bench.run(1.0)
    assert bench.closed[connection][1] is True
    assert sent.response is None
    assert bench.cluster.leader("t", 0) == (2, 1)


def test_kraft_clocks_are_those_of_a_real_cluster(make_bench):
    for seed in range(5):
        bench = make_bench(
            seed=seed,
            detect_s=KRAFT.detect_s,
            controller_detect_s=KRAFT.controller_detect_s,
            startup_s=KRAFT.startup_s,
            isr_join_s=KRAFT.isr_join_s,
        )
        bench.cluster.create_topic("u", 1, assignment=[[2, 3, 1]], now=bench.now)
        bench.run(1.0)
        killed_s = bench.now
        bench.cluster.kill(2, bench.now)
        bench.run_until(lambda b=bench: b.named_leader(3, "u") == (3, 1))
        assert 8.0 < bench.now - killed_s < 9.05
        started_s = bench.now
        bench.cluster.start(2, bench.now)
        bench.run_until(lambda b=bench: 2 in b.cluster.topics["u"].partitions[0].isr)
        assert 2.2 < bench.now - started_s < 3.3
