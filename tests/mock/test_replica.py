"""Replica and controller alone: rules that a whole cluster reaches only by rare timing."""

from __future__ import annotations

import uuid

import pytest

from outlast.testing.batches import StoredBatch, TopicRules, read_header, sequence_plus
from outlast.testing.controller import Controller, Topic
from outlast.testing.replica import PartitionState, Replica
from tests.mock.bench import make_batch


def make_replica(node_id=1, *, min_isr=1):
    return Replica(node_id, "t", uuid.UUID(int=1), 0, min_isr=min_isr, stop_below_min_isr=True)


def append(replica, *, count=1, producer_id=7, sequence=0, now=0.0):
    raw = make_batch(producer_id, 0, sequence, count)
    header = read_header(raw)
    epoch, node = replica.state.epoch, replica.node_id
    batch = StoredBatch(raw, header, replica.log_end_offset, epoch, node, now)
    replica.append(batch)
    return batch


def test_a_leader_forgets_what_its_followers_had_in_an_earlier_epoch():
    leader = make_replica()
    leader.lead(PartitionState(1, 0, (1, 2), (1, 2)), 0.0)
    append(leader, count=5)
    leader.follower_ends[2] = 5
    leader.advance(0.0)
    assert leader.high_watermark == 5
    leader.step_down(6, 0.0)
    append(leader, sequence=5)
    leader.follower_ends[2] = 6  # heard late, of a log that may be cut back since
    leader.lead(PartitionState(1, 2, (1, 2), (1, 2), version=2), 0.0)
    leader.advance(0.0)
    assert leader.high_watermark == 5


def test_batches_are_found_by_offset():
    replica = make_replica()
    for number, count in enumerate((3, 1, 2)):
        append(replica, count=count, producer_id=number)
    assert [replica.first_batch_from(offset) for offset in range(7)] == [0, 0, 0, 1, 2, 2, 3]


def test_stored_bytes_carry_offset_and_leader_epoch_and_a_right_checksum():
    replica = make_replica()
    append(replica, count=3)
    replica.state = PartitionState(1, 9, (1,), (1,))
    stored = append(replica, sequence=3)
    header = read_header(stored.raw)
    assert (header.base_offset, header.leader_epoch) == (3, 9)
    assert [record.offset for record in stored.records()] == [3]
    assert stored.raw[17:] == make_batch(7, 0, 3)[17:]


def test_a_snapshot_counts_for_a_truncation_behind_it_only():
    """S1: what came after the restart is read again in full."""
    leader, back = make_replica(1), make_replica(2)
    for sequence in range(6):
        append(leader, sequence=sequence)
    back.fetch_from(leader)
    back.restart()
    assert len(back.producers[7].batches) == 1
    for sequence in range(6, 9):
        append(back, sequence=sequence)
    back.truncate(8)
    assert [b.base_sequence for b in back.producers[7].batches] == [5, 6, 7]
    back.truncate(4)
    assert [b.base_sequence for b in back.producers[7].batches] == [0, 1, 2, 3]
    for sequence in range(4, 8):
        append(back, sequence=sequence)
    back.truncate(7)  # the snapshot went with what it described
    assert [b.base_sequence for b in back.producers[7].batches] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("sequence", "count", "after"),
    [(0, 1, 1), (2**31 - 1, 1, 0), (2**31 - 3, 5, 2), (-1, 4, -1)],
)
def test_sequence_plus(sequence, count, after):
    assert sequence_plus(sequence, count) == after


def test_a_leader_of_an_older_epoch_cannot_grow_the_isr():
    committed = []
    controller = Controller(
        (1, 2, 3), lambda change, _now: committed.append(change), unclean=False, eligible=True
    )
    topic = Topic("t", uuid.UUID(int=1), 1, TopicRules(1000))
    controller.create(topic, [(1, 2, 3)], 0.0)
    controller.give_up(3, 0.0)
    controller.take_back(3, 0.0)
    controller.move(topic, 0, 2, 0.0)
    assert not controller.grow_isr(topic, 0, 3, 0, 0.0)
    assert topic.partitions[0].isr == (1, 2)
    assert controller.grow_isr(topic, 0, 3, 1, 0.0)
    assert topic.partitions[0].isr == (1, 2, 3)
    versions = [state.version for change in committed for _, _, state in change.partitions]
    assert versions == sorted(set(versions))
