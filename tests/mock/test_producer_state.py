"""What a broker knows of producers: S1, S5, S9 to S12 and the B rows of docs/kafka-facts.md.

Tests are named by the facts that they show.
"""

from __future__ import annotations

import pytest

FIVE = range(5)


def produce_five(bench, connection, first=0):
    for sequence in range(first, first + 5):
        assert bench.produced(connection, sequence).result == (0, sequence)


def repeats(bench, connection, sequences):
    return [bench.produced(connection, sequence).result for sequence in sequences]


@pytest.mark.parametrize("verb", ["stop", "kill"])
def test_s1_b6_a_restart_leaves_one_known_batch(make_bench, verb):
    bench = make_bench(nodes=1)
    produce_five(bench, bench.connect(1))
    getattr(bench.cluster, verb)(1, bench.now)
    bench.run(5.0)
    bench.cluster.start(1, bench.now)
    bench.run(1.0)
    back = bench.connect(1)
    assert repeats(bench, back, FIVE) == [(45, -1)] * 4 + [(0, 4)]
    assert bench.produced(back, 5).result == (0, 5)
    assert repeats(bench, back, (3, 4, 5)) == [(45, -1), (0, 4), (0, 5)], "it fills up again"


def test_s1_a_restarted_follower_knows_one_batch_when_it_leads(bench):
    leader = bench.connect(1)
    produce_five(bench, leader)
    bench.cluster.kill(2, bench.now)
    bench.run(1.0)
    bench.cluster.start(2, bench.now)
    bench.run(1.0)
    assert bench.produced(leader, 5).result == (0, 5)
    bench.run(0.1)
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.run(0.1)
    new = bench.connect(2)
    assert repeats(bench, new, (3, 4, 5)) == [(45, -1), (0, 4), (0, 5)]


def test_b5_five_batches_are_known_after_a_planned_move(bench):
    leader = bench.connect(1)
    for sequence in range(7):
        bench.produced(leader, sequence)
    bench.run(0.1)
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.run(0.1)
    new = bench.connect(2)
    assert repeats(bench, new, range(7)) == [(45, -1)] * 2 + [(0, s) for s in range(2, 7)]
    assert bench.produced(new, 8).result == (45, -1)
    assert bench.produced(new, 7).result == (0, 7)


def test_b1_b2_the_last_five_batches_are_known_older_ones_are_not(bench):
    leader = bench.connect(1)
    for sequence in range(7):
        bench.produced(leader, sequence)
    assert repeats(bench, leader, range(7)) == [(45, -1)] * 2 + [(0, s) for s in range(2, 7)]
    assert len(bench.values()) == 7


def test_b2_overlaps_are_no_repeats(bench):
    leader = bench.connect(1)
    bench.produced(leader, 0, count=3)
    bench.produced(leader, 3, count=3)
    assert bench.produced(leader, 0, count=6).result == (45, -1)
    assert bench.produced(leader, 3, count=4).result == (45, -1)
    assert bench.produced(leader, 4, count=2).result == (45, -1)
    assert bench.produced(leader, 3, count=3).result == (0, 3)


def test_b3_a_repeated_sequence_with_other_content_is_lost(bench):
    leader = bench.connect(1)
    bench.produced(leader, 0, value=b"first")
    assert bench.produced(leader, 0, value=b"other").result == (0, 0)
    assert bench.values() == [b"first-0"]


def test_b4_a_repeat_of_a_batch_not_yet_replicated_waits_as_well(make_bench):
    bench = make_bench(detect_s=5.0)
    one, two, three = bench.connect(1), bench.connect(1), bench.connect(1)
    bench.produced(one, 0)
    bench.cluster.kill(3, bench.now)
    first = bench.produce(one, 1)
    hasty = bench.produced(two, 1, timeout_ms=1000)
    assert hasty.result == (7, 1)
    patient = bench.produce(three, 1)
    bench.run(1.0)
    assert patient.response is None
    bench.until_answered(first, patient)
    assert first.result == patient.result == (0, 1)


def test_b7_a_gap_changes_nothing(bench):
    leader = bench.connect(1)
    bench.produced(leader, 0)
    assert bench.produced(leader, 2).result == (45, -1)
    assert bench.produced(leader, 1).result == (0, 1)


def test_b8_without_state_any_first_sequence_is_taken(bench):
    leader = bench.connect(1)
    assert bench.produced(leader, 5).result == (0, 0)
    assert bench.produced(leader, 0).result == (45, -1)
    assert bench.produced(leader, 6).result == (0, 1)
    assert bench.produced(leader, 7, producer_id=8, epoch=3).result == (0, 2)


def test_first_seq_rule_zero_is_that_of_kafka_4_5(make_bench):
    """A partition that never held a record wants 0; one that did takes any (KAFKA-15591)."""
    bench = make_bench(first_seq_rule="zero")
    leader = bench.connect(1)
    assert bench.produced(leader, 5).result == (45, -1)
    assert bench.produced(leader, 0).result == (0, 0)
    assert bench.produced(leader, 5, producer_id=8).result == (0, 1)


def test_s11_pipelined_batches_that_straddle_the_take_up_lose_the_first(make_bench):
    bench = make_bench(creation_deny_p=1.0)
    bench.cluster.create_topic("new", 1, now=bench.now)
    leader = bench.connect(1)
    sent = []
    for sequence in range(40):
        sent.append(bench.produce(leader, sequence, topic="new"))
        bench.run(0.002)
    bench.until_answered(*sent)
    codes = [s.result[0] for s in sent]
    assert set(codes) == {3, 6, 0}
    first = codes.index(0)
    assert codes == sorted(codes[:first]) + [0] * (len(codes) - first)
    assert bench.produced(leader, 0, topic="new").result == (45, -1), "the gap is final"


def test_b9_b10_a_new_epoch_must_begin_at_0_and_may_skip(bench):
    leader = bench.connect(1)
    bench.produced(leader, 0)
    assert bench.produced(leader, 1, epoch=1).result == (45, -1)
    assert bench.produced(leader, 1).result == (0, 1), "the old epoch still works"
    for number, epoch in enumerate((1, 7, 32_767), start=2):
        assert bench.produced(leader, 0, epoch=epoch).result == (0, number)


def test_b11_an_old_epoch_is_fenced_only_where_the_new_one_was_seen(make_bench):
    bench = make_bench(partitions=4)
    leader = bench.connect(1)
    bench.produced(leader, 0)
    bench.produced(leader, 0, epoch=1)
    for version in (9, 12):
        assert bench.produced(leader, 1, version=version).result == (47, -1)
        assert bench.produced(leader, 0, version=version).result == (47, -1)
    assert bench.produced(leader, 0, partition=3).result == (0, 0)


def test_b14_a_topic_made_again_has_no_state(bench):
    leader = bench.connect(1)
    bench.produced(leader, 0)
    bench.cluster.delete_topic("t", bench.now)
    bench.cluster.create_topic("t", 1, now=bench.now)
    bench.run(0.1)
    assert bench.produced(leader, 7).result == (0, 0)


def test_b15_sequences_wrap_to_0(bench):
    leader = bench.connect(1)
    assert bench.produced(leader, 2_147_483_645, count=5).result == (0, 0)
    assert bench.produced(leader, 2).result == (0, 5)
    assert bench.produced(leader, 2_147_483_645, count=5).result == (0, 0)
    assert [r.sequence for r in bench.cluster.records("t", 0)] == [
        2_147_483_645,
        2_147_483_646,
        2_147_483_647,
        0,
        1,
        2,
    ]
    bench.produced(leader, 2_147_483_647, producer_id=8)
    assert bench.produced(leader, 0, producer_id=8).result == (0, 7)


def test_s12_an_expired_producer_is_forgotten_and_its_repeat_appended_twice(make_bench):
    bench = make_bench(producer_expiry_s=3.0)
    leader = bench.connect(1)
    bench.produced(leader, 0)
    bench.run(2.9)
    assert bench.produced(leader, 0).result == (0, 0)
    bench.run(0.2)
    assert bench.produced(leader, 0).result == (0, 1)
    assert bench.produced(leader, 9, producer_id=8).result == (0, 2)
    bench.run(3.1)
    assert bench.produced(leader, 20, producer_id=8).result == (0, 3)


def test_truncation_takes_back_what_the_lost_batches_taught(make_bench):
    bench = make_bench(replication_s=0.5)
    leader = bench.connect(1)
    bench.produced(leader, 0)
    bench.produced(leader, 0, epoch=1, acks=1)
    bench.cluster.kill(1, bench.now)
    bench.run(1.0)
    bench.cluster.start(1, bench.now)
    bench.run(5.0)
    bench.cluster.move_leader("t", 0, 1, bench.now)
    bench.run(5.0)
    assert bench.produced(bench.connect(1), 1).result == (0, 1), "epoch 1 was never here"


def test_s5_19_comes_before_the_duplicate_and_the_sequence_check(make_bench):
    bench = make_bench(min_isr=2, nodes=2)
    leader = bench.connect(1)
    bench.produced(leader, 0)
    bench.cluster.kill(2, bench.now)
    bench.run(1.0)
    assert bench.produced(leader, 0).result == (19, -1), "though it is in the log"
    assert bench.produced(leader, 9).result == (19, -1)
    assert bench.produced(leader, 0, acks=1).result == (0, 0)


def test_duplicate_error_answers_46_with_the_first_offset(make_bench):
    bench = make_bench(duplicate_error=True)
    leader = bench.connect(1)
    bench.produced(leader, 0)
    assert bench.produced(leader, 0).result == (46, 0)


# --- InitProducerId ---


def test_s9_always_a_new_id_with_epoch_0_from_the_brokers_own_block(bench):
    one, two = bench.connect(1), bench.connect(2)
    given = [
        bench.init_producer_id(one),
        bench.init_producer_id(one, producer_id=0, producer_epoch=0),
        bench.init_producer_id(two, version=3),
        bench.init_producer_id(one, version=5, producer_id=99, producer_epoch=3),
    ]
    assert [(g.error_code, g.producer_id, g.producer_epoch) for g in given] == [
        (0, 0, 0),
        (0, 1, 0),
        (0, 1000, 0),
        (0, 2, 0),
    ]
    for _ in range(997):
        bench.init_producer_id(one)
    assert bench.init_producer_id(one).producer_id == 2000


def test_s10_the_first_request_after_a_start_gets_14(make_bench):
    bench = make_bench(producer_id_load_s=(0.038, 0.051))
    connection = bench.connect(1)
    for _ in range(2):
        first = bench.init_producer_id(connection)
        assert (first.error_code, first.producer_id) == (14, -1)
        bench.run(0.037)
        assert bench.init_producer_id(connection).error_code == 14
        bench.run(0.015)
        assert bench.init_producer_id(connection).error_code == 0
        bench.cluster.kill(1, bench.now)
        bench.cluster.start(1, bench.now)
        bench.run(1.0)
        connection = bench.connect(1)


def test_b12_an_id_without_an_epoch_is_refused(bench):
    connection = bench.connect(1)
    assert bench.init_producer_id(connection, producer_id=5, producer_epoch=-1).error_code == 42
