"""Leader changes as a client sees them: S2, S3, S6 and the A rows of docs/kafka-facts.md.

Tests are named by the facts that they show.
"""

from __future__ import annotations

import pytest


def test_a2_a15_moved_leader_refuses_with_the_offset_only_of_what_it_appended(make_bench):
    """S2: 6 with an offset was appended before leadership was lost, 6 without one was not."""
    kept, lost, refused = 0, 0, 0
    for seed in range(60):
        bench = make_bench(seed=seed, replication_s=(0.01, 0.04))
        old = bench.connect(1)
        bench.produced(old, value=b"first")
        bench.cluster.move_leader("t", 0, 2, bench.now, deny_s=None)
        sent = []
        for number in range(30):
            sent.append(bench.produce(old, value=b"n%d" % number))
            bench.run(0.002)
        bench.until_answered(*sent)
        bench.run(3.0)
        values = bench.values()
        codes = [s.result[0] for s in sent]
        assert codes == sorted(codes), "0 …, then 6"
        for number, s in enumerate(sent):
            inside = b"n%d-0" % number in values
            code, offset = s.result
            if code == 0:
                assert inside, "an acks=all success is never lost"
            elif offset >= 0:
                assert code == 6
                kept, lost = kept + inside, lost + (not inside)
            else:
                refused += 1
                assert not inside
    assert kept > 5, "some are kept: the new leader had them already"
    assert lost > 5, "some are lost: they are cut off at the old leader"
    assert refused > 500


def test_s3_a_planned_move_holds_acks_for_one_fetch_backoff_in_half_of_all_cases(make_bench):
    waits = []
    for seed in range(60):
        bench = make_bench(seed=seed, fetch_backoff_s=1.0, fetch_backoff_p=0.5)
        bench.run(5.0)
        bench.cluster.move_leader("t", 0, 2, bench.now)
        bench.run_until(lambda b=bench: b.named_leader(2) == (2, 1))
        waits.append(bench.produced(bench.connect(2)).took_s)
    slow = [s for s in waits if s > 0.9]
    assert 15 <= len(slow) <= 45
    assert all(0.9 < s < 1.1 or 1.9 < s < 2.1 for s in slow)
    assert all(s < 0.06 for s in waits if s not in slow)


def test_s3_a_follower_that_learnt_before_its_leader_backs_off_too(make_bench):
    for seed in range(20):
        bench = make_bench(seed=seed, fetch_backoff_s=1.0, fetch_backoff_p=1.0, replication_s=0.020)
        bench.run(5.0)
        bench.cluster.move_leader("t", 0, 2, bench.now, deny_s=0.008)
        bench.run_until(lambda b=bench: b.named_leader(2) == (2, 1))
        assert bench.produced(bench.connect(2)).took_s > 0.9


def test_s3_no_backoff_after_a_crash(make_bench):
    for seed in range(10):
        bench = make_bench(seed=seed, fetch_backoff_s=1.0, fetch_backoff_p=1.0)
        bench.run(5.0)
        bench.cluster.kill(1, bench.now)
        bench.run_until(lambda b=bench: b.named_leader(2) == (2, 1))
        assert bench.produced(bench.connect(2)).took_s < 0.06


def test_s6_new_leader_that_denies_hints_back_at_the_old_leader(bench):
    bench.cluster.move_leader("t", 0, 2, bench.now, deny_s=0.020)
    bench.run_until(lambda: bench.named_leader(1) == (2, 1))
    learnt_s = bench.now
    new = bench.connect(2)
    denied = bench.produced(new)
    assert denied.result == (6, -1)
    assert denied.hint == (1, 0)
    bench.run_until(lambda: bench.named_leader(2) == (2, 1))
    assert bench.now - learnt_s == pytest.approx(0.020, abs=1e-6)
    assert bench.produced(new).result == (0, 0)


def test_s6_a_new_leader_denies_in_some_moves_and_not_in_most(make_bench):
    denied = 0
    for seed in range(100):
        bench = make_bench(seed=seed, deny_p=0.13)
        bench.cluster.move_leader("t", 0, 2, bench.now, deny_s=None)
        bench.run_until(lambda b=bench: b.named_leader(1) == (2, 1))
        denied += bench.named_leader(2) == (1, 0)
    assert 4 <= denied <= 30


def test_s6_survivors_of_a_crash_hint_at_the_dead_leader(bench):
    bench.cluster.kill(1, bench.now)
    refused = bench.produced(bench.connect(2))
    assert refused.result == (6, -1)
    assert refused.hint == (1, 0)
    assert [e.node_id for e in refused.response.node_endpoints] == [1]


def test_s6_metadata_is_a_moment_ahead_of_the_roles(make_bench):
    bench = make_bench(role_lag_s=0.5, metadata_lag_s=0.001)
    bench.cluster.kill(1, bench.now)
    bench.run_until(lambda: bench.named_leader(3) == (2, 1))
    denied = bench.produced(bench.connect(2))
    assert (denied.result, denied.hint) == ((6, -1), (1, 0)), "named, not yet ready"
    refused = bench.produced(bench.connect(3))
    assert (refused.result, refused.hint) == ((6, -1), (1, 0))
    assert refused.response.node_endpoints == [], "the dead leader is not listed any more"
    bench.run(0.5)
    assert bench.produced(bench.connect(2)).result == (0, 0)


def test_without_denial_a_new_leader_is_ready_before_anyone_else_knows(make_bench):
    for seed in range(20):
        bench = make_bench(seed=seed, role_lag_s=(0.0002, 0.001))
        old, new = bench.connect(1), bench.connect(2)
        bench.cluster.move_leader("t", 0, 2, bench.now)
        while (refused := bench.produce(old, acks=1)).result[0] == 0:
            bench.run(0.0001)
        assert refused.hint == (2, 1)
        assert bench.produced(new, acks=1).result[0] == 0


def test_a4_hint_is_in_the_first_refusal_from_version_10(bench):
    old = bench.connect(1)
    bench.cluster.move_leader("t", 0, 3, bench.now)
    bench.run(0.05)
    for version in (10, 11, 12, 13):
        refused = bench.produced(old, version=version)
        assert refused.hint == (3, 1)
        (endpoint,) = refused.response.node_endpoints
        assert (endpoint.host, endpoint.port) == bench.cluster.addresses[3]
    assert bench.produced(old, version=9).hint is None
    assert bench.produced(bench.connect(2)).hint == (3, 1), "idle followers answer the same"


def test_a8_only_leader_changes_raise_the_epoch(bench):
    bench.cluster.kill(3, bench.now)
    bench.run(1.0)
    assert bench.cluster.leader("t", 0) == (1, 0)
    assert bench.cluster.topics["t"].partitions[0].isr == (1, 2)
    bench.cluster.start(3, bench.now)
    bench.run(1.0)
    assert bench.cluster.leader("t", 0) == (1, 0)
    assert bench.cluster.topics["t"].partitions[0].isr == (1, 2, 3)
    bench.cluster.move_leader("t", 0, 2, bench.now)
    assert bench.cluster.leader("t", 0) == (2, 1)


def test_a13_brokers_learn_of_a_move_one_after_another(make_bench):
    spreads, last = [], []
    for seed in range(40):
        bench = make_bench(seed=seed)
        bench.cluster.move_leader("t", 0, 2, bench.now, deny_s=None)
        bench.run(1.0)
        seen = bench.cluster.visible_at_s("t", 0, 1)
        assert sorted(seen) == [1, 2, 3]
        spreads.append(max(seen.values()) - min(seen.values()))
        last.append(max(seen, key=seen.__getitem__))
    assert 0.005 < sorted(spreads)[20] < 0.025
    assert max(spreads) < 0.031
    assert {1, 3} <= set(last)


def test_a13_visible_at_is_when_a_metadata_answer_changes(bench):
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.run_until(lambda: bench.named_leader(3) == (2, 1))
    assert bench.cluster.visible_at_s("t", 0, 1)[3] == bench.now


def test_a17_a_leader_that_is_no_replica_any_more_answers_6_for_ever(make_bench):
    bench = make_bench(nodes=4)
    old = bench.connect(1)
    bench.produced(old, value=b"kept")
    bench.cluster.reassign("t", 0, [2, 3, 4], bench.now)
    bench.run(5.0)
    refused = bench.produced(old)
    assert refused.result == (6, -1)
    assert refused.hint == (2, 1)
    assert bench.cluster.topics["t"].partitions[0].isr == (2, 3, 4)
    assert bench.produced(bench.connect(2), value=b"after").result == (0, 1)
    assert bench.values() == [b"kept-0", b"after-0"]


def test_a41_a_batch_that_waits_when_its_topic_goes_gets_3_with_its_offset(make_bench):
    bench = make_bench(detect_s=60.0)
    leader = bench.connect(1)
    bench.produced(leader)
    bench.cluster.kill(3, bench.now)
    waiting = bench.produce(leader)
    bench.run(0.5)
    bench.cluster.delete_topic("t", bench.now)
    bench.until_answered(waiting)
    assert waiting.result == (3, 1)
    assert waiting.took_s < 0.54
    assert bench.produced(leader).result == (3, -1)


def test_a38_a_new_topic_is_unknown_until_each_broker_has_learnt_of_it(bench):
    connection = bench.connect(2)
    bench.cluster.create_topic("new", 1, now=bench.now)
    assert bench.produced(connection, topic="new").result == (3, -1)
    assert bench.metadata(connection, "new").topics[0].error_code == 3
    bench.run(0.05)
    (topic,) = bench.metadata(connection, "new").topics
    assert topic.error_code == 0
    (partition,) = topic.partitions
    assert (partition.error_code, partition.leader_epoch) == (0, 0)
    assert len(partition.isr_nodes) == 3


def test_a39_the_coming_leader_of_a_new_topic_may_answer_6_without_a_hint(make_bench):
    bench = make_bench(creation_deny_p=1.0, creation_deny_s=0.025)
    bench.cluster.create_topic("new", 1, now=bench.now)
    bench.run_until(lambda: bench.named_leader(1, "new") == (1, 0))
    named_s = bench.now
    leader = bench.connect(1)
    refused = bench.produced(leader, topic="new")
    assert refused.result == (6, -1)
    assert refused.hint is None
    bench.run(named_s + 0.0251 - bench.now)
    assert bench.produced(leader, topic="new").result == (0, 0)


def test_a42_a_topic_made_again_has_another_id_and_begins_at_epoch_0(bench):
    leader = bench.connect(1)
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.run(0.1)
    bench.cluster.move_leader("t", 0, 1, bench.now)
    bench.run(0.1)
    old_id = bench.topic_id("t")
    assert bench.produced(leader, 0).result == (0, 0)
    bench.cluster.delete_topic("t", bench.now)
    bench.run(0.1)
    assert bench.produced(leader, 1).result == (3, -1)
    bench.cluster.create_topic("t", 1, assignment=[[2, 3, 1]], now=bench.now)
    bench.run(0.1)
    assert bench.topic_id("t") != old_id
    refused = bench.produced(leader, 1)
    assert (refused.result, refused.hint) == ((6, -1), (2, 0))
    new = bench.connect(2)
    by_old_id = bench.produce_raw(new, {("t", 0): b""}, version=13, topic_id=old_id)
    bench.until_answered(by_old_id)
    assert by_old_id.result == (100, -1)
    assert bench.produced(new, 7).result == (0, 0), "B14: no state, any sequence"


def test_a42_a_leader_that_still_plays_the_old_topic_takes_nothing_for_the_new(make_bench):
    bench = make_bench(role_lag_s=0.5, metadata_lag_s=0.001)
    bench.run(1.0)
    leader = bench.connect(1)
    assert bench.produced(leader, 0).result == (0, 0)
    bench.cluster.delete_topic("t", bench.now)
    bench.cluster.create_topic("t", 1, now=bench.now)
    bench.run(0.1)
    assert bench.produced(leader, 1).result == (6, -1)
    bench.run(2.0)
    assert bench.produced(leader, 1).result == (0, 0)


def test_a_leader_counts_only_what_it_heard_in_its_own_epoch(make_bench):
    bench = make_bench(replication_s=1.0, metadata_lag_s=0.0)
    bench.run(5.0)
    bench.produced(bench.connect(1), acks=1)
    bench.run(0.6)  # the followers have it, the leader has not heard
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.run(0.1)
    bench.cluster.move_leader("t", 0, 1, bench.now)
    bench.run(0.5)
    assert bench.values() == []
    bench.run(2.0)
    assert bench.values() == [b"value-0"]


def test_a45_the_controller_id_is_some_live_broker(bench):
    connection = bench.connect(1)
    named = {bench.metadata(connection).controller_id for _ in range(30)}
    assert named == {1, 2, 3}


def test_min_isr_only_in_sync_replicas_are_elected_unless_unclean_election_is_on(make_bench):
    for unclean in (False, True):
        bench = make_bench(nodes=2, unclean_election=unclean)
        leader = bench.connect(1)
        bench.produced(leader, value=b"old")
        bench.cluster.kill(2, bench.now)
        bench.run(1.0)
        assert bench.produced(leader, value=b"alone").result == (0, 1)
        bench.cluster.kill(1, bench.now)
        bench.run(1.0)
        bench.cluster.start(2, bench.now)
        bench.run(1.0)
        if unclean:
            assert bench.cluster.leader("t", 0) == (2, 2)
            assert bench.produced(bench.connect(2), value=b"new").result == (0, 1)
        else:
            assert bench.cluster.leader("t", 0)[0] == -1
        bench.cluster.start(1, bench.now)
        bench.run(1.0)
        last = b"new-0" if unclean else b"alone-0"
        assert bench.values() == [b"old-0", last]


def test_returning_leader_is_cut_back_to_where_the_logs_part(make_bench):
    """An acks=1 record that no follower had is gone for good, at both ends."""
    bench = make_bench(replication_s=0.5)
    leader = bench.connect(1)
    bench.produced(leader, 0, value=b"safe")
    lost = bench.produced(leader, 1, value=b"lost", acks=1)
    assert lost.result == (0, 1)
    bench.cluster.kill(1, bench.now)
    bench.run(1.0)
    new = bench.connect(2)
    assert bench.produced(new, 1, value=b"other").result == (0, 1)
    bench.cluster.start(1, bench.now)
    bench.run(5.0)
    assert bench.cluster.topics["t"].partitions[0].isr == (2, 3, 1)
    bench.cluster.move_leader("t", 0, 1, bench.now)
    bench.run(5.0)
    assert bench.values() == [b"safe-0", b"other-0"]
    assert bench.produced(bench.connect(1), 2).result == (0, 2), "producer state is read again"


def test_move_leader_says_what_is_wrong_with_the_node_named(bench):
    with pytest.raises(ValueError, match=r"node 9 cannot lead t-0: its replicas are \[1, 2, 3\]"):
        bench.cluster.move_leader("t", 0, 9, bench.now)
    bench.cluster.kill(2, bench.now)
    bench.run(1.0)
    with pytest.raises(ValueError, match="node 2 cannot lead t-0"):
        bench.cluster.move_leader("t", 0, 2, bench.now)
