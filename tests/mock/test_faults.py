"""Every fault as a raw client meets it; each counts, and each can be narrowed."""

from __future__ import annotations

import pytest

from outlast.testing.faults import (
    Blackhole,
    CutAfter,
    CutBefore,
    Error,
    ErrorAfter,
    ForgetProducer,
    Freeze,
    Garble,
    LeaderNotListed,
    LoseRequest,
    LoseResponse,
    MetadataLag,
    MetadataLeaderless,
    Slow,
    Throttle,
)

INIT_PRODUCER_ID, METADATA = 22, 3


def test_error_appends_nothing_and_counts(bench):
    fault = Error(56, topic="t", partition=0, times=2)
    bench.cluster.faults.append(fault)
    leader = bench.connect(1)
    assert [bench.produced(leader).result for _ in range(3)] == [(56, -1), (56, -1), (0, 0)]
    assert fault.used == 2
    assert len(bench.values()) == 1


def test_error_can_carry_a_hint(bench):
    bench.cluster.faults.append(Error(6, hint=(3, 8), times=1))
    refused = bench.produced(bench.connect(1))
    assert (refused.result, refused.hint) == ((6, -1), (3, 8))
    assert [e.node_id for e in refused.response.node_endpoints] == [3]


def test_faults_are_narrowed_by_node_topic_partition_connection_and_time(make_bench):
    bench = make_bench(partitions=4)
    here, other = bench.connect(1), bench.connect(1)
    start_s = bench.now
    bench.cluster.faults += [
        Error(2, node=2),
        Error(8, topic="u"),
        Error(9, partition=3, topic="t"),
        Error(51, connection=other, after_s=start_s + 1.0, until_s=start_s + 2.0),
    ]
    assert bench.produced(here).result == (0, 0)
    assert bench.produced(here, partition=3).result == (9, -1)
    assert bench.produced(bench.connect(2), partition=1).result == (2, -1)
    assert bench.produced(other).result == (0, 1)
    bench.run(start_s + 1.0 - bench.now)
    assert bench.produced(other).result == (51, -1)
    assert bench.produced(here).result == (0, 2)
    bench.run(1.0)
    assert bench.produced(other).result == (0, 3)


def test_a_partition_without_its_topic_is_refused():
    """It would strike every partition."""
    with pytest.raises(ValueError, match=r"partition=3 .* topic="):
        Blackhole(partition=3)


def test_error_after_appends_or_recognises_and_answers_with_the_offset(bench):
    bench.cluster.faults.append(ErrorAfter(20, times=2))
    leader = bench.connect(1)
    assert bench.produced(leader, 0).result == (20, 0)
    assert bench.produced(leader, 0).result == (20, 0)
    assert bench.produced(leader, 0).result == (0, 0)
    assert len(bench.values()) == 1


def test_lose_request_appends_nothing_and_blocks_what_is_behind(bench):
    bench.cluster.faults.append(LoseRequest(api=0, times=1))
    leader = bench.connect(1)
    lost, behind = bench.produce(leader), bench.produce(leader)
    bench.run(60.0)
    assert lost.response is None
    assert behind.response is None
    assert leader not in bench.closed
    assert bench.values() == []


@pytest.mark.parametrize(("kind", "kept"), [(LoseRequest, 1), (LoseResponse, 2)])
def test_lose_without_blocking_goes_on(bench, kind, kept):
    bench.cluster.faults.append(kind(topic="t", times=1, blocks=False))
    leader = bench.connect(1)
    lost, behind = bench.produce(leader), bench.produce(leader)
    bench.until_answered(behind)
    assert lost.response is None
    assert len(bench.values()) == kept


def test_lose_response_appends_and_blocks(bench):
    bench.cluster.faults.append(LoseResponse(api=0, times=1))
    leader = bench.connect(1)
    lost, behind = bench.produce(leader), bench.produce(leader)
    bench.run(60.0)
    assert lost.response is None
    assert behind.response is None
    assert len(bench.values()) == 1


def test_cut_before_and_cut_after(bench):
    bench.cluster.faults += [CutBefore(api=0, times=1), CutAfter(api=0, times=1)]
    before, after = bench.connect(1), bench.connect(1)
    cut = [bench.produce(before, value=b"before"), bench.produce(after, value=b"after")]
    assert bench.closed == {before: (bench.now, True), after: (bench.now, True)}
    bench.run(20.0)
    assert all(s.response is None for s in cut)
    assert bench.values() == [b"after-0"]


def test_only_the_first_fault_that_ends_a_request_strikes(bench):
    bench.cluster.faults += [CutAfter(api=0, times=1), Error(56, times=1), CutBefore(api=0)]
    bench.produce(bench.connect(1), value=b"cut")
    refused = bench.produced(bench.connect(1))
    assert refused.result == (56, -1)
    last = bench.connect(1)
    bench.produce(last)
    assert bench.closed[last] == (bench.now, True)
    bench.run(1.0)
    assert bench.values() == [b"cut-0"]


def test_what_is_behind_a_cut_is_taken_late(bench):
    leader = bench.connect(1)
    bench.produce(leader, value=b"one")
    bench.produce(leader, value=b"cut")
    bench.produce(leader, value=b"late")
    bench.cluster.faults.append(CutBefore(api=0, times=1))
    bench.run(20.0)
    assert bench.values() == [b"one-0", b"late-0"]


def test_slow_answers_later_and_blocks(bench):
    bench.cluster.faults.append(Slow(0.8, api=METADATA, times=1))
    connection = bench.connect(1)
    asked_s = bench.now
    bench.metadata(connection)
    assert bench.now - asked_s == pytest.approx(0.8)


def test_slow_append_happens_at_once(bench):
    bench.cluster.faults.append(Slow(5.0))
    sent = bench.produce(bench.connect(1), acks=1)
    assert bench.cluster.replica("t", 0).log_end_offset == 1
    bench.until_answered(sent)
    assert sent.took_s == pytest.approx(5.0)


def test_c21_c22_throttle_answers_first_and_is_deaf_then(bench):
    bench.cluster.faults.append(Throttle(3.944, times=1))
    one, two = bench.connect(1), bench.connect(1)
    first = bench.produced(one)
    assert first.response.throttle_time_ms == 3944
    assert first.took_s < 0.01
    behind = bench.produce(one)
    asked_s = bench.now
    bench.metadata(two)
    assert bench.now == asked_s
    bench.until_answered(behind)
    assert 3.93 < behind.took_s < 3.96


def test_garble_truncates_or_flips_the_answer(bench):
    connection = bench.connect(1)
    bench.metadata(connection)
    (whole,) = bench.frames
    for fault, expected in (
        (Garble(keep=9, times=1), whole[:9]),
        (Garble(flip=4, times=1), None),
    ):
        bench.cluster.faults[:] = [fault]
        again = bench.connect(1)
        bench.cluster.received(again, _metadata_frame(), bench.now)
        (answer,) = bench.cluster.take()
        if expected is not None:
            assert len(answer.frame) == 9
        else:
            assert answer.frame[4] == whole[4] ^ 0xFF
            assert len(answer.frame) == len(whole)


def _metadata_frame():
    from kafka.protocol.metadata import MetadataRequest

    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    request.API_VERSION = 12
    request.with_header(1, "bench")
    return bytes(request.encode(header=True))


def test_blackhole_swallows_both_ways_and_the_node_lives_on(bench):
    leader, other = bench.connect(1), bench.connect(2)
    answer_lost = bench.produce(leader, value=b"in")
    bench.cluster.faults.append(Blackhole(node=1, until_s=bench.now + 5.0))
    request_lost = bench.produce(leader, value=b"never")
    assert bench.cluster.hangs(1, bench.now)
    assert not bench.cluster.hangs(2, bench.now)
    bench.run(6.0)
    assert answer_lost.response is None
    assert request_lost.response is None
    assert bench.closed == {}
    assert not bench.cluster.hangs(1, bench.now)
    assert bench.produced(leader, value=b"after").result == (0, 1)
    assert bench.values() == [b"in-0", b"after-0"]
    assert bench.produced(other).result == (6, -1), "nobody noticed"


def test_blackhole_of_one_connection_only(bench):
    dead, fresh = bench.connect(1), bench.connect(1)
    bench.cluster.faults.append(Blackhole(connection=dead))
    lost = bench.produce(dead)
    assert bench.produced(fresh).result == (0, 0)
    assert lost.response is None
    assert not bench.cluster.hangs(1, bench.now)


def test_freeze_serves_everything_in_order_when_it_ends(bench):
    leader = bench.connect(1)
    bench.cluster.faults.append(Freeze(node=1, until_s=bench.now + 8.0))
    sent = [bench.produce(leader, sequence) for sequence in range(3)]
    bench.run(7.99)
    assert all(s.response is None for s in sent)
    bench.until_answered(*sent, within_s=0.1)
    assert [s.result for s in sent] == [(0, 0), (0, 1), (0, 2)]
    assert bench.cluster.leader("t", 0) == (1, 0)


def test_freeze_ends_when_it_is_taken_out_of_the_list(bench):
    leader = bench.connect(1)
    bench.cluster.faults.append(Freeze(node=1))
    sent = bench.produce(leader)
    bench.run(8.0)
    bench.cluster.faults.clear()
    bench.run(0.0)
    bench.until_answered(sent, within_s=0.1)


def test_metadata_lag_keeps_old_metadata_while_roles_change(bench):
    bench.cluster.faults.append(MetadataLag(3.0, node=2))
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.run(0.1)
    assert bench.named_leader(1) == (2, 1)
    assert bench.named_leader(2) == (1, 0)
    assert bench.produced(bench.connect(2)).result == (0, 0), "it leads all the same"
    bench.run(3.0)
    assert bench.named_leader(2) == (2, 1)
    seen = bench.cluster.visible_at_s("t", 0, 1)
    assert seen[2] - seen[1] > 2.9


def test_metadata_leaderless_shows_minus_1_and_5(make_bench):
    bench = make_bench(partitions=2)
    fault = MetadataLeaderless(topic="t", partition=0, until_s=bench.now + 2.0)
    bench.cluster.faults.append(fault)
    (topic,) = bench.metadata(bench.connect(1), "t").topics
    assert [(p.leader_id, p.error_code) for p in topic.partitions] == [(-1, 5), (2, 0)]
    bench.run(2.0)
    assert bench.named_leader(1) == (1, 0)


def test_leader_not_listed(bench):
    bench.cluster.faults.append(LeaderNotListed(topic="t", partition=0, times=1))
    answer = bench.metadata(bench.connect(2), "t")
    assert answer.topics[0].partitions[0].leader_id == 1
    assert [b.node_id for b in answer.brokers] == [2, 3]
    assert len(bench.metadata(bench.connect(2), "t").brokers) == 3


def test_metadata_error_for_one_topic(bench):
    bench.cluster.create_topic("ok", 1, now=bench.now)
    bench.run(1.0)
    bench.cluster.faults += [Error(29, api=METADATA, topic="t"), Error(29, api=3, topic="no")]
    topics = bench.metadata(bench.connect(1), "t", "ok", "no").topics
    assert [(t.name, t.error_code) for t in topics] == [("t", 29), ("ok", 0), ("no", 29)]


def test_forget_producer_then_any_sequence_is_taken(bench):
    leader = bench.connect(1)
    bench.produced(leader, 0)
    bench.cluster.faults.append(ForgetProducer(topic="t", partition=0, times=1))
    assert bench.produced(leader, 5).result == (0, 1)
    assert bench.produced(leader, 0).result == (45, -1)


def test_init_producer_id_errors_in_a_sequence(bench):
    bench.cluster.faults += [Error(c, api=INIT_PRODUCER_ID, times=1) for c in (7, 14, 15, 16)]
    bench.cluster.faults.append(CutBefore(api=INIT_PRODUCER_ID, times=1))
    connection = bench.connect(1)
    codes = [bench.init_producer_id(connection).error_code for _ in range(4)]
    assert codes == [7, 14, 15, 16]
    with pytest.raises(AssertionError, match="no answer"):
        bench.init_producer_id(connection)
    assert bench.closed[connection][1] is True
    assert bench.init_producer_id(bench.connect(1)).error_code == 0
