"""What the mock answers to consumers: logs up to the high watermark, at the leader only."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.record.memory_records import MemoryRecords

from outlast.testing import apis_consume  # noqa: F401  (registers its handlers)
from tests.mock.bench import RESPONSES, Bench, Sent

RESPONSES.update(
    {
        1: FetchResponse,
        2: ListOffsetsResponse,
        9: OffsetFetchResponse,
        10: FindCoordinatorResponse,
        23: OffsetForLeaderEpochResponse,
    }
)

ROUND_S = 0.01  # the bench's followers are never that slow


def fetch(
    bench: Bench,
    connection: Hashable,
    offset: int = 0,
    *,
    version: int = 12,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
    epoch: int = -1,
    partitions: tuple[int, ...] = (0,),
    topic: str = "t",
    topic_id: Any = None,
) -> Sent:
    entry = FetchRequest.FetchTopic
    parts = [
        entry.FetchPartition(
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=partition_bytes,
            current_leader_epoch=epoch,
        )
        for index in partitions
    ]
    wanted = entry(topic=topic, topic_id=topic_id or bench.topic_id(topic), partitions=parts)
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=[wanted]
    )
    return bench.send(connection, request, version)


def part(sent: Sent, index: int = 0) -> Any:
    assert sent.response is not None, "not answered"
    (topic,) = sent.response.responses
    return topic.partitions[index]


def values(sent: Sent, index: int = 0) -> list[bytes]:
    found = []
    records = MemoryRecords(bytes(part(sent, index).records or b""))
    while records.has_next():
        found += [record.value for record in records.next_batch()]
    return found


# --- Fetch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 18))
def test_every_fetch_version_gives_the_records(bench: Bench, version: int) -> None:
    connection = bench.connect(1)
    bench.produced(connection, 0, count=3)
    sent = fetch(bench, connection, version=version)
    assert values(sent) == [b"value-0", b"value-1", b"value-2"]
    assert (part(sent).error_code, part(sent).high_watermark) == (0, 3)
    (topic,) = sent.response.responses
    assert topic.topic_id == bench.topic_id("t") if version >= 13 else topic.topic == "t"


def test_fetch_begins_with_the_batch_that_holds_the_offset(bench: Bench) -> None:
    connection = bench.connect(1)
    for sequence in range(0, 6, 2):
        bench.produced(connection, sequence, count=2, value=b"at %d" % sequence)
    assert values(fetch(bench, connection, 3)) == [b"at 2-0", b"at 2-1", b"at 4-0", b"at 4-1"]


def test_fetch_ends_at_the_high_watermark(bench: Bench) -> None:
    connection = bench.connect(1)
    bench.produced(connection, 0, value=b"safe")
    bench.cluster.pause(2, bench.now)
    bench.produced(connection, 1, acks=1, value=b"not yet")
    sent = fetch(bench, connection)
    assert values(sent) == [b"safe-0"]
    assert part(sent).high_watermark == 1
    assert values(fetch(bench, connection, 1)) == []


def test_fetch_keeps_to_its_limits_but_never_gives_nothing(make_bench: Any) -> None:
    bench = make_bench(partitions=4)
    connection = bench.connect(1)  # leads 0 and 3
    for partition in (0, 3):
        for sequence in range(2):
            bench.produced(connection, sequence, partition=partition, value=b"x" * 500)
    both = (0, 3)
    sent = fetch(bench, connection, partitions=both, partition_bytes=1)
    assert [len(values(sent, index)) for index in (0, 1)] == [1, 1]
    sent = fetch(bench, connection, partitions=both, max_bytes=1)
    assert [len(values(sent, index)) for index in (0, 1)] == [1, 0]
    sent = fetch(bench, connection, partitions=both)
    assert [len(values(sent, index)) for index in (0, 1)] == [2, 2]


def test_fetch_with_nothing_to_give_waits_its_time_and_blocks_its_connection(bench: Bench) -> None:
    connection = bench.connect(1)
    sent = fetch(bench, connection, wait_ms=500)
    behind = fetch(bench, connection)
    bench.until_answered(sent, behind)
    assert sent.took_s == pytest.approx(0.5)
    assert values(sent) == []
    assert behind.took_s == pytest.approx(0.5)


def test_fetch_is_answered_as_soon_as_enough_is_safe(bench: Bench) -> None:
    consumer, producer = bench.connect(1), bench.connect(1)
    one = len(part_after_one_record(bench, producer).records)
    sent = fetch(bench, consumer, 1, wait_ms=5_000, min_bytes=one + 1)
    bench.run(1.0)
    bench.produced(producer, 1)
    bench.run(1.0)
    assert sent.response is None
    produced = bench.produced(producer, 2)
    bench.until_answered(sent)
    assert sent.answered_s == pytest.approx(produced.answered_s, abs=ROUND_S)
    assert len(values(sent)) == 2


def part_after_one_record(bench: Bench, connection: Hashable) -> Any:
    bench.produced(connection, 0)
    return part(fetch(bench, connection))


def test_a_waiting_fetch_is_refused_when_the_leader_steps_down(bench: Bench) -> None:
    connection = bench.connect(1)
    sent = fetch(bench, connection, wait_ms=5_000)
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.until_answered(sent)
    assert part(sent).error_code == 6
    assert sent.took_s < 0.1


def test_fetches_that_are_over_leave_no_watcher_behind(bench: Bench) -> None:
    connection = bench.connect(1)
    replica = bench.cluster.nodes[1].replicas[("t", 0)]
    for _ in range(3):
        bench.until_answered(fetch(bench, connection, wait_ms=100))
        assert replica.watchers == []
    sent = fetch(bench, connection, wait_ms=100)
    bench.produced(bench.connect(1), 0)
    bench.until_answered(sent)
    assert replica.watchers == []


def test_a_waiting_fetch_of_a_killed_node_is_never_answered(bench: Bench) -> None:
    sent = fetch(bench, bench.connect(1), wait_ms=500)
    bench.cluster.kill(1, bench.now)
    bench.cluster.start(1, bench.now)
    bench.run(2.0)
    assert sent.response is None


@pytest.mark.parametrize(
    ("code", "question"),
    [
        (1, {"offset": 2}),
        (3, {"topic": "none"}),
        (3, {"partitions": (9,)}),
        (100, {"version": 13, "topic_id": UUID(int=5)}),
        (75, {"epoch": 1}),
    ],
)
def test_fetch_refuses(bench: Bench, code: int, question: dict[str, Any]) -> None:
    connection = bench.connect(1)
    bench.produced(connection, 0)
    sent = fetch(bench, connection, wait_ms=500, **question)
    bench.until_answered(sent)
    assert part(sent).error_code == code
    assert sent.took_s < ROUND_S, "an error need not wait"


def test_fetch_refuses_an_old_leader_epoch(bench: Bench) -> None:
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.run(0.5)
    connection = bench.connect(2)
    assert part(fetch(bench, connection, epoch=0)).error_code == 74
    assert part(fetch(bench, connection, epoch=1)).error_code == 0


@pytest.mark.parametrize(
    ("version", "hinted", "with_endpoint"), [(11, 0, 0), (12, 1, 0), (16, 1, 1)]
)
def test_a_follower_refuses_and_names_the_leader(
    bench: Bench, version: int, hinted: bool, with_endpoint: bool
) -> None:
    sent = fetch(bench, bench.connect(2), version=version)
    assert part(sent).error_code == 6
    leader = part(sent).current_leader
    assert (leader is not None and (leader.leader_id, leader.leader_epoch) == (1, 0)) == hinted
    endpoints = [(e.node_id, e.host, e.port) for e in sent.response.node_endpoints or ()]
    assert endpoints == ([(1, *bench.cluster.addresses[1])] if with_endpoint else [])


# --- offsets ------------------------------------------------------------------------------------


def offset_at(
    bench: Bench, timestamp_ms: int, *, node: int = 1, version: int = 7
) -> tuple[int, int, int]:
    topic = ListOffsetsRequest.ListOffsetsTopic
    wanted = topic.ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
    request = ListOffsetsRequest(topics=[topic(name="t", partitions=[wanted])])
    sent = bench.send(bench.connect(node), request, version)
    (found,) = sent.response.topics[0].partitions
    return found.error_code, found.offset, found.timestamp


@pytest.mark.parametrize("version", range(1, 11))
def test_list_offsets_tells_the_ends_of_the_log(bench: Bench, version: int) -> None:
    bench.produced(bench.connect(1), 0, count=4)
    assert offset_at(bench, -2, version=version) == (0, 0, -1)
    assert offset_at(bench, -1, version=version) == (0, 4, -1)
    assert offset_at(bench, -1, node=2, version=version)[0] == 6


def test_list_offsets_finds_timestamps(bench: Bench) -> None:
    connection = bench.connect(1)
    for sequence, timestamp_ms in enumerate((1_000, 3_000, 2_000)):
        bench.produced(connection, sequence, timestamp_ms=timestamp_ms)
    assert offset_at(bench, 0) == (0, 0, 1_000)
    assert offset_at(bench, 1_001) == (0, 1, 3_000)
    assert offset_at(bench, 3_001) == (0, -1, -1)
    assert offset_at(bench, -3) == (0, 1, 3_000)


def test_list_offsets_does_not_see_what_is_not_safe(bench: Bench) -> None:
    bench.cluster.pause(2, bench.now)
    bench.produced(bench.connect(1), 0, acks=1, timestamp_ms=5_000)
    assert offset_at(bench, -1)[1] == 0
    assert offset_at(bench, 0)[1] == -1
    assert offset_at(bench, -3)[1] == -1


@pytest.mark.parametrize("version", [2, 3, 4])
def test_offset_for_leader_epoch_tells_where_an_epoch_ended(bench: Bench, version: int) -> None:
    bench.produced(bench.connect(1), 0, count=3)
    bench.cluster.move_leader("t", 0, 2, bench.now)
    bench.run(0.5)
    connection = bench.connect(2)
    bench.produced(connection, 3, count=2)

    def end_of(epoch: int) -> tuple[int, int, int]:
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        wanted = topic.OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(topics=[topic(topic="t", partitions=[wanted])])
        (found,) = bench.send(connection, request, version).response.topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    assert end_of(0) == (0, 0, 3)
    assert end_of(1) == (0, 1, 5)
    assert end_of(2) == (0, -1, -1)


# --- groups -------------------------------------------------------------------------------------


def coordinator(bench: Bench, node_id: int, version: int = 3) -> Any:
    """Whom a node names for group `g`. Who asks first is told to come again."""
    request = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    bench.send(bench.connect(node_id), request, version)
    bench.run(1.0)
    answer = bench.send(bench.connect(node_id), request, version).response
    return answer.coordinators[0] if version >= 4 else answer


@pytest.mark.parametrize("version", range(7))
def test_a_live_broker_is_the_coordinator(bench: Bench, version: int) -> None:
    first = coordinator(bench, 3, version)
    assert (first.error_code, first.host) == (0, bench.cluster.addresses[first.node_id][0])
    bench.cluster.kill(first.node_id, bench.now)
    bench.run(1.0)
    alive = next(n for n in bench.cluster.nodes if n != first.node_id)
    found = coordinator(bench, alive, version)
    assert (found.error_code, found.node_id == first.node_id) == (0, False)
    assert (found.host, found.port) == bench.cluster.addresses[found.node_id]


@pytest.mark.parametrize("version", range(1, 10))
def test_nothing_is_committed(bench: Bench, version: int) -> None:
    if version < 8:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])
        request = OffsetFetchRequest(group_id="g", topics=[topic])
    else:
        group = OffsetFetchRequest.OffsetFetchRequestGroup
        topic = group.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])
        request = OffsetFetchRequest(groups=[group(group_id="g", topics=[topic])])
    found = coordinator(bench, 1)
    answer = bench.send(bench.connect(found.node_id), request, version).response
    (told,) = answer.topics if version < 8 else answer.groups[0].topics
    assert [(p.partition_index, p.committed_offset) for p in told.partitions] == [(0, -1), (1, -1)]
