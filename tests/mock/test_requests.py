"""Requests, errors and connections: S4, S8, S13 to S16, S18 and the C rows of docs/kafka-facts.md.

Tests are named by the facts that they show.
"""

from __future__ import annotations

import random
import struct
import uuid

import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record.util import calc_crc32c

from outlast.testing.cluster import Answer
from tests.mock.bench import make_batch


def patched(raw, position, layout, value, *, crc=True):
    """A batch with one field changed, its checksum made right again if `crc`."""
    data = bytearray(raw)
    struct.pack_into(layout, data, position, value)
    if crc:
        struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    return bytes(data)


def result(bench, connection, raw, **options):
    sent = bench.produce_raw(connection, {("t", 0): raw}, **options)
    bench.until_answered(sent)
    return sent


# --- one request at a time ---


def test_s8_c18_c20_a_waiting_produce_blocks_its_connection_metadata_included(make_bench):
    bench = make_bench(partitions=2, detect_s=8.0)
    bench.cluster.create_topic("healthy", 1, assignment=[[1, 2]], now=bench.now)
    bench.run(1.0)
    blocked, other = bench.connect(1), bench.connect(1)
    bench.cluster.kill(3, bench.now)
    first = bench.produce(blocked)
    behind = bench.produce(blocked, topic="healthy")
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    metadata = bench.send(blocked, request, 12)
    assert bench.produced(other, topic="healthy").took_s < 0.01
    bench.until_answered(metadata)
    assert first.answered_s is not None
    assert first.took_s > 8.0
    assert first.answered_s <= behind.answered_s <= metadata.answered_s


def test_c19_slow_and_healthy_partition_in_one_request_have_one_answer(make_bench):
    bench = make_bench(detect_s=60.0)
    bench.cluster.create_topic("healthy", 1, assignment=[[1, 2]], now=bench.now)
    bench.run(1.0)
    leader = bench.connect(1)
    bench.cluster.kill(3, bench.now)
    data = {("t", 0): make_batch(), ("healthy", 0): make_batch()}
    sent = bench.produce_raw(leader, data, timeout_ms=1500)
    bench.until_answered(sent)
    assert 1.5 < sent.took_s < 1.52
    codes = {key: (part.error_code, part.base_offset) for key, part in sent.parts.items()}
    assert codes == {("t", 0): (7, 0), ("healthy", 0): (0, 0)}


def test_b16_requests_left_in_a_closed_connection_are_taken_late_and_in_order(make_bench):
    delays = []
    for seed in range(30):
        bench = make_bench(seed=seed)
        connection = bench.connect(1)
        for sequence in range(4):
            bench.produce(connection, sequence, value=b"n%d" % sequence)
        closed_s = bench.now
        bench.cluster.closed(connection, bench.now)
        bench.run(20.0)
        assert bench.values() == [b"n0-0", b"n1-0", b"n2-0", b"n3-0"], "each once, in order"
        late = [r for r in bench.cluster.request_log if r.late]
        assert [r.partitions[0].base_sequence for r in late] == [1, 2, 3]
        assert all(r.partitions[0].appended and r.answered_at_s is None for r in late)
        delays += [r.served_at_s - closed_s for r in late]
        assert bench.cluster.next_deadline(bench.now) is None
    assert max(delays) <= 10.1
    assert max(delays) > 5.0
    assert min(delays) < 0.1


def test_b16_late_requests_obey_the_usual_rules(make_bench):
    for seed in range(10):
        bench = make_bench(seed=seed)
        connection = bench.connect(1)
        for sequence in range(3):
            bench.produce(connection, sequence)
        bench.cluster.closed(connection, bench.now)
        again = bench.connect(1)
        repeated = [bench.produce(again, sequence) for sequence in range(3)]
        bench.run(20.0)
        assert [s.result for s in repeated] == [(0, 0), (0, 1), (0, 2)]
        assert [r.sequence for r in bench.cluster.records("t", 0)] == [0, 1, 2]


def test_b16_a_dead_node_takes_nothing_late(make_bench):
    bench = make_bench(detect_s=0.0)
    connection = bench.connect(1)
    bench.produced(connection)
    for _ in range(3):
        bench.produce(connection)
    bench.cluster.closed(connection, bench.now)
    bench.cluster.kill(1, bench.now)
    bench.cluster.start(1, bench.now)
    bench.run(20.0)
    assert len(bench.values()) == 1


def test_late_s_none_loses_what_is_left(make_bench):
    bench = make_bench(late_s=None)
    connection = bench.connect(1)
    for _ in range(3):
        bench.produce(connection)
    bench.cluster.closed(connection, bench.now)
    bench.run(20.0)
    assert len(bench.values()) == 1, "only the one that was being served"


# --- what is wrong with a request ---


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("crc", lambda raw: patched(raw, len(raw) - 1, ">B", 0xAA, crc=False), 2),
        ("magic 9", lambda raw: patched(raw, 16, ">b", 9), 2),
        ("codec 5", lambda raw: patched(raw, 21, ">h", 5), -1),
        ("two batches", lambda raw: raw + raw, 87),
        ("truncated", lambda raw: raw[:-3], 87),
        ("cut in the header", lambda raw: raw[:40], 87),
        ("empty", lambda raw: raw[:0], 87),
        ("count", lambda raw: patched(raw, 57, ">i", 3), 87),
        ("no records", lambda raw: patched(patched(raw, 57, ">i", 0), 23, ">i", -1), 87),
        ("base offset", lambda raw: patched(raw, 0, ">q", 4), 87),
        ("control bit", lambda raw: patched(raw, 21, ">h", 0x20), 87),
        ("magic 1", lambda raw: patched(raw, 16, ">b", 1), 87),
        ("id without sequence", lambda raw: patched(raw, 43, ">q", 5), 87),
        ("transactional", lambda raw: patched(raw, 21, ">h", 0x10), 53),
    ],
)
def test_c4_to_c8_bad_record_data(bench, name, change, code):
    leader = bench.connect(1)
    refused = result(bench, leader, change(make_batch()))
    assert refused.result == (code, -1)
    (part,) = refused.parts.values()
    assert part.record_errors == []
    assert bench.values() == []


def test_c4_good_partitions_of_the_same_request_are_appended(make_bench):
    bench = make_bench(partitions=4)
    leader = bench.connect(1)
    bad = patched(make_batch(), 70, ">B", 0xAA, crc=False)
    sent = bench.produce_raw(leader, {("t", 0): bad, ("t", 3): make_batch()})
    bench.until_answered(sent)
    assert {k[1]: p.error_code for k, p in sent.parts.items()} == {0: 2, 3: 0}


def test_c9_the_delete_horizon_bit_is_harmless(bench):
    leader = bench.connect(1)
    assert result(bench, leader, patched(make_batch(), 21, ">h", 0x40)).result == (0, 0)


def test_c1_a_batch_over_the_limit_gets_10_also_as_a_repeat(make_bench):
    bench = make_bench(max_message_bytes=400)
    leader = bench.connect(1)
    assert bench.produced(leader, 0, count=50).result == (10, -1)
    assert bench.produced(leader, 0, count=5).result == (0, 0), "the sequence is not used up"


def test_c2_compacted_topics_refuse_records_without_key_and_name_each(bench):
    bench.cluster.create_topic("c", 1, compacted=True, now=bench.now)
    bench.run(1.0)
    leader = bench.connect(1)
    refused = bench.produced(leader, topic="c", count=10, key=None)
    assert refused.result == (87, -1)
    (part,) = refused.parts.values()
    assert [e.batch_index for e in part.record_errors] == list(range(10))
    assert all(e.batch_index_error_message for e in part.record_errors)
    assert part.error_message
    old = bench.produced(leader, topic="c", count=10, key=None, version=7)
    assert old.result == (87, -1)
    assert bench.produced(leader, topic="c").result == (0, 0)


def test_c3_s15_timestamps_more_than_an_hour_ahead_get_32(make_bench):
    bench = make_bench(unix_offset_s=1_700_000_000.0)
    leader = bench.connect(1)
    now_ms = int((bench.now + 1_700_000_000.0) * 1000)
    refused = bench.produced(leader, count=2, timestamp_ms=now_ms + 7_200_000)
    assert refused.result == (32, -1)
    (part,) = refused.parts.values()
    assert [e.batch_index for e in part.record_errors] == [0, 1]
    assert part.error_message
    assert bench.produced(leader, timestamp_ms=now_ms + 3_000_000).result == (0, 0)


def test_s16_c5_undecodable_compressed_records_get_minus_1(make_bench):
    bench = make_bench(check_records=True)
    leader = bench.connect(1)
    assert result(bench, leader, patched(make_batch(), 21, ">h", 1)).result == (-1, -1)
    assert bench.produced(leader, codec=1, count=20).result == (0, 0)


def test_c6_zstd_before_version_7_gets_76(bench):
    leader = bench.connect(1)
    raw = make_batch(codec=4, count=50)
    assert result(bench, leader, raw, version=6).result == (76, -1)
    assert result(bench, leader, raw, version=7).result == (0, 0)


def test_c10_other_acks_get_21(bench):
    leader = bench.connect(1)
    for acks in (2, -2):
        assert bench.produced(leader, acks=acks).result == (21, -1)


def test_c11_c12_unknown_partition_topic_and_id(bench):
    leader = bench.connect(1)
    assert bench.produced(leader, partition=5).result == (3, -1)
    assert bench.produced(leader, topic="nothing").result == (3, -1)
    by_id = bench.produce_raw(leader, {("t", 5): make_batch()}, version=13)
    unknown = bench.produce_raw(
        leader, {("t", 0): make_batch()}, version=13, topic_id=uuid.UUID(int=9)
    )
    bench.until_answered(by_id, unknown)
    assert by_id.result == (3, -1)
    assert unknown.result == (100, -1)
    assert bench.produced(leader, version=13).result == (0, 0)


def test_c13_not_leader_comes_before_the_checks_of_the_batch_and_after_those_of_the_format(bench):
    follower = bench.connect(2)
    bad_crc = patched(make_batch(), 17, ">I", 1, crc=False)
    assert result(bench, follower, bad_crc).result == (6, -1)
    assert result(bench, follower, b"nonsense").result == (87, -1)


def test_s4_c15_below_min_isr_after_the_append_gets_7_or_0_never_20(make_bench):
    bench = make_bench(min_isr=2, nodes=2, detect_s=0.1)
    leader = bench.connect(1)
    bench.cluster.kill(2, bench.now)
    hasty = bench.produced(leader, timeout_ms=1500)
    assert hasty.result == (7, 0)
    assert 1.5 < hasty.took_s < 1.52
    assert bench.values() == []
    assert bench.produced(leader).result == (19, -1)
    bench.cluster.start(2, bench.now)
    bench.run(1.0)
    assert len(bench.values()) == 1, "appended all the same, readable once a replica is back"
    bench.cluster.kill(2, bench.now)
    patient = bench.produce(leader, timeout_ms=10_000)
    bench.run(1.0)
    bench.cluster.start(2, bench.now)
    bench.until_answered(patient)
    assert patient.result == (0, 1)


def test_20_is_there_for_older_brokers_as_a_setting(make_bench):
    bench = make_bench(
        min_isr=2, nodes=2, not_enough_replicas_after_append=True, eligible_leader_replicas=False
    )
    leader = bench.connect(1)
    bench.cluster.kill(2, bench.now)
    assert bench.produced(leader).result == (20, 0)


def test_s13_null_records_are_never_answered_and_the_connection_is_dead(bench):
    leader, other = bench.connect(1), bench.connect(1)
    dead = bench.produce_raw(leader, {("t", 0): None})
    behind = bench.produce(leader)
    bench.run(60.0)
    assert dead.response is None
    assert behind.response is None
    assert leader not in bench.closed
    assert bench.produced(other).result == (0, 0)


def test_s14_of_the_same_partition_twice_only_the_last_is_appended(bench):
    leader = bench.connect(1)
    twice = [(("t", 0), make_batch(value=b"first")), (("t", 0), make_batch(value=b"last"))]
    sent = bench.produce_raw(leader, twice)
    bench.until_answered(sent)
    assert sent.result == (0, 0)
    assert bench.values() == [b"last-0"]


def test_s18_an_acks_0_error_closes_the_connection(bench):
    leader, follower = bench.connect(1), bench.connect(2)
    silent = bench.produce(leader, acks=0)
    bench.run(1.0)
    assert silent.response is None
    assert len(bench.values()) == 1
    bench.produce(follower, acks=0)
    bench.run(1.0)
    assert leader not in bench.closed
    assert bench.closed[follower][1] is False


# --- the protocol's frame ---


def test_c16_what_cannot_be_read_closes_the_connection_without_an_answer(bench):
    frames = [
        b"",
        b"\x00",
        bytes(8),
        struct.pack(">hhih", 0, 2, 1, -1) + bytes(40),  # Produce 2
        struct.pack(">hhih", 0, 14, 1, -1) + bytes(40),
        struct.pack(">hhih", 3, 99, 1, -1) + bytes(40),
        struct.pack(">hhih", 999, 0, 1, -1) + bytes(40),
        struct.pack(">hhih", 18, 3, 1, -1) + b"\x00\x7f",
        struct.pack(">hhihhhii", 0, 3, 1, -1, -1, -1, 1000, -1),  # Produce 3 without topics
        random.Random(5).randbytes(300),
    ]
    for frame in frames:
        connection = bench.connect(1)
        bench.cluster.received(connection, frame, bench.now)
        bench.run(1.0)
        assert bench.closed[connection][1] is False, frame
        assert bench.frames == []


def test_c16_every_truncation_of_a_produce_request_closes_or_is_refused(bench):
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[
                    ProduceRequest.TopicProduceData.PartitionProduceData(
                        index=0, records=make_batch()
                    )
                ],
            )
        ],
    )
    request.API_VERSION = 9
    request.with_header(1, "bench")
    whole = bytes(request.encode(header=True))
    for length in range(len(whole) - 2):
        name = f"cut-{length}"
        bench.cluster.opened(1, name, bench.now)
        bench.cluster.received(name, whole[:length], bench.now)
        bench.cluster.tick(bench.now)
        assert not any(isinstance(item, Answer) for item in bench.cluster.take())
    bench.run(20.0)
    assert bench.values() == []


def test_c16_answers_before_the_garbage_come_first(bench):
    connection = bench.connect(1)
    waiting = bench.produce(connection)
    bench.cluster.received(connection, b"\xff" * 20, bench.now)
    bench.run(1.0)
    assert waiting.result == (0, 0)
    assert waiting.answered_s == bench.closed[connection][0]


@pytest.mark.parametrize("version", range(5))
def test_c23_api_versions_lists_the_ranges_of_4_1(bench, version):
    answer = bench.api_versions(bench.connect(1), version)
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert answer.error_code == 0
    assert ranges[0] == (0, 13)
    assert ranges[3] == (0, 13)
    assert ranges[18] == (0, 4)
    assert ranges[22] == (0, 5)


def test_c17_api_versions_from_the_future_gets_35_in_layout_0(bench):
    connection = bench.connect(1)
    for version in (5, 99):
        frame = struct.pack(">hhih", 18, version, 77, -1) + b"\x00" * 10
        bench.cluster.received(connection, frame, bench.now)
        (answer,) = bench.cluster.take()
        assert struct.unpack(">ihihhh", answer.frame) == (77, 35, 1, 18, 0, 4)
    assert bench.api_versions(connection).error_code == 0, "the connection lives"


def test_api_versions_setting_narrows_what_is_listed_and_served(make_bench):
    bench = make_bench(api_versions={0: (3, 9)})
    connection = bench.connect(1)
    listed = {e.api_key: e.max_version for e in bench.api_versions(connection).api_keys}
    assert listed[0] == 9
    bench.produced(connection, version=9)
    bench.produce(connection, version=10)
    bench.run(1.0)
    assert connection in bench.closed


# --- metadata ---


@pytest.mark.parametrize("version", range(14))
def test_metadata_at_every_version(make_bench, version):
    bench = make_bench(partitions=2)
    connection = bench.connect(1)
    answer = bench.metadata(connection, "t", version=version)
    assert {b.node_id: (b.host, b.port) for b in answer.brokers} == bench.cluster.addresses
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, "t")
    assert [(p.leader_id, p.isr_nodes) for p in topic.partitions] == [
        (1, [1, 2, 3]),
        (2, [2, 3, 1]),
    ]
    if version >= 7:
        assert [p.leader_epoch for p in topic.partitions] == [0, 0]
    if version >= 10:
        assert topic.topic_id == bench.topic_id("t")
    everything = MetadataRequest(topics=None if version else [], allow_auto_topic_creation=True)
    sent = bench.send(connection, everything, version)
    bench.until_answered(sent)
    assert [t.name for t in sent.response.topics] == ["t"]


def test_metadata_without_topics_and_by_id(bench):
    connection = bench.connect(1)
    nothing = bench.send(connection, MetadataRequest(topics=[]), 12)
    wanted = MetadataRequest.MetadataRequestTopic
    known = [
        wanted(name=None, topic_id=bench.topic_id("t")),
        wanted(name=None, topic_id=uuid.UUID(int=5)),
    ]
    by_id = bench.send(connection, MetadataRequest(topics=known), 12)
    bench.until_answered(nothing, by_id)
    assert nothing.response.topics == []
    found, missing = by_id.response.topics
    assert (found.error_code, found.name) == (0, "t")
    assert (missing.error_code, missing.name) == (100, None)


def test_a37_unknown_topic_and_bad_names(bench):
    connection = bench.connect(1)
    codes = [t.error_code for t in bench.metadata(connection, "no", "a b", "..", "x" * 250).topics]
    assert codes == [3, 17, 17, 17]


def test_auto_creation_is_a_setting_and_answers_3_first(make_bench):
    bench = make_bench(auto_create_topics=True, auto_create_partitions=2)
    connection = bench.connect(1)
    assert bench.metadata(connection, "new").topics[0].error_code == 3
    bench.run(0.1)
    assert len(bench.metadata(connection, "new").topics[0].partitions) == 2


def test_brokers_may_be_given_new_addresses(bench):
    bench.cluster.addresses[2] = ("elsewhere", 1234)
    answer = bench.metadata(bench.connect(1))
    assert ("elsewhere", 1234) in [(b.host, b.port) for b in answer.brokers]


def test_partitions_can_be_added(bench):
    bench.cluster.add_partitions("t", 4, now=bench.now)
    bench.run(1.0)
    (topic,) = bench.metadata(bench.connect(1), "t").topics
    assert [(p.partition_index, p.leader_id) for p in topic.partitions] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 1),
    ]


def test_log_append_time_is_told_in_the_answer_and_in_the_records(make_bench):
    bench = make_bench(unix_offset_s=1000.0)
    bench.cluster.create_topic("u", 1, log_append_time=True, now=bench.now)
    bench.run(1.0)
    sent = bench.produced(bench.connect(1), topic="u")
    (part,) = sent.parts.values()
    assert part.log_append_time_ms == int((sent.sent_s + 1000.0) * 1000)
    assert bench.cluster.records("u", 0)[0].timestamp_ms == part.log_append_time_ms
