"""Records and offsets of transactions: who may append, what a reader of committed data sees."""

from __future__ import annotations

import pytest

from tests.contract import transactions as t
from tests.contract.transactions import Txn
from tests.contract.world import World, until
from tests.contract.writer import Writer

ALL = (1, 2, 3)


@pytest.fixture(scope="module")
def fresh(any_world: World):
    """Topics of one partition, led by node 1, that nobody has written to."""
    return lambda: any_world.create_topic(ALL)


def test_who_may_append(contract, world, fresh) -> None:
    topic = fresh()
    txn = Txn(world).begin().begin()
    contract("not in the transaction, Produce v9", txn.send(topic, 0, version=9))
    contract("not in the transaction, Produce v10", txn.send(topic, 0, version=10))
    contract("not in the transaction, Produce v11", txn.send(topic, 0))
    until(lambda: t.added(txn.add((topic, 0))) == {0}, "added")
    contract("in the transaction, Produce v11", txn.send(topic, 0))
    none = {"transactional_id": "none"}
    contract("in the transaction, the next, Produce v9", txn.send(topic, 1, version=9))
    contract("in the transaction, a repeat", txn.send(topic, 0))
    contract("in the transaction, a hole", txn.send(topic, 3))
    plain = {"transactional": False}
    contract("in the transaction, without the bit", txn.send(topic, 2, **plain))
    contract("in the transaction, old epoch", txn.send(topic, 2, epoch=txn.epoch - 1))
    contract("under another's transactional id", txn.send(topic, 2, **none))
    contract("in the transaction, epoch to come", txn.send(topic, 0, epoch=txn.epoch + 1))
    contract(
        "in the transaction, epoch to come, v12",
        txn.send(topic, 0, epoch=txn.epoch + 1, version=12),
    )
    contract("in the transaction, under another's id", txn.send(topic, 0, producer_id=88_888))
    contract("under another's id, v12", txn.send(topic, 0, producer_id=88_888, version=12))
    contract("another's transactional id, other partition", txn.send(fresh(), 0, **none))
    contract(
        "another's transactional id, other partition, v12",
        txn.send(fresh(), 0, version=12, **none),
    )
    contract("at a follower, v12", txn.send(topic, 2, version=12, node_id=2))
    contract("an unknown topic, v12", txn.send("nowhere", 2, version=12))
    assert txn.finish(True).error_code == 0
    contract("committed: the next sequence, not added", txn.send(topic, 3))
    contract("committed: the next sequence, v9", txn.send(topic, 3, version=9))
    contract("committed: a repeat, not added", txn.send(topic, 2))
    until(lambda: t.added(txn.add((topic, 0))) == {0}, "added")
    contract("committed, added again: a repeat from before", txn.send(topic, 1))
    contract("committed, added again: the next sequence, behind lower ones", txn.send(topic, 3))
    assert txn.finish(False).error_code == 0
    until(lambda: t.added(txn.add((topic, 0))) == {0}, "added")
    contract("after one more marker: the next sequence", txn.send(topic, 3))
    contract("after one more marker: the log", t.seen(t.fetched(world, topic, isolation=0)))


def test_behind_one_that_failed(contract, world, fresh) -> None:
    """Batches in flight stay in order though the first one was refused."""
    topic = fresh()
    txn = Txn(world).begin()
    contract("v11: sequence 0, not added", txn.send(topic, 0))
    until(lambda: t.added(txn.add((topic, 0))) == {0}, "added")
    contract("v11: then 1, added", txn.send(topic, 1))
    contract("v11: then 0", txn.send(topic, 0))
    contract("v11: then 1", txn.send(topic, 1))


def test_first_sequence(contract, world, fresh) -> None:
    txn = Txn(world).begin()
    topic = fresh()
    contract("v12: the first sequence is 5", txn.send(topic, 5, version=12))
    contract("v12: then 0", txn.send(topic, 0, version=12))
    other = fresh()
    until(lambda: t.added(txn.add((other, 0))) == {0}, "added")
    contract("v11: the first sequence is 5", txn.send(other, 5))
    contract("v11: then 6", txn.send(other, 6))


def test_what_readers_see(contract, world, fresh) -> None:
    topic = fresh()
    plain = Writer(world, topic)
    one = Txn(world).begin((topic, 0))
    two = Txn(world).begin((topic, 0))
    plain.told(0, value=b"plain")
    one.send(topic, 0, value=b"one", count=2)
    two.send(topic, 0, value=b"two")
    plain.told(1, value=b"plain")
    contract("two open ones: committed", t.seen(t.fetched(world, topic)))
    contract("two open ones: uncommitted", t.seen(t.fetched(world, topic, isolation=0)))
    two.finish(False)
    until(lambda: t.fetched(world, topic).high_watermark == 6, "the marker is there")
    contract("the later one aborted: committed", t.seen(t.fetched(world, topic)))
    one.finish(True)
    until(lambda: t.fetched(world, topic).last_stable_offset == 7, "it is stable")
    contract("the first one committed: committed", t.seen(t.fetched(world, topic)))
    contract("the first one committed: uncommitted", t.seen(t.fetched(world, topic, isolation=0)))
    marker = t.last_marker(t.fetched(world, topic))
    (record,) = marker
    contract(
        "the marker's record",
        f"key {record.key.hex()}, value {record.value[:2].hex()}+{len(record.value) - 2}",
    )
    contract("the marker: attributes, sequence", f"{marker.attributes}, {marker.base_sequence}")
    contract("the marker's epoch by v3, less the transaction's", marker.producer_epoch - one.epoch)
    contract("the next batch of the first one, not added", one.send(topic, 2))


def test_offsets_in_a_transaction(contract, world, fresh) -> None:
    topic = fresh()
    group = f"group-{topic}"
    txn = Txn(world).begin().begin()
    contract("TxnOffsetCommit v3, group not added", t.commit_offset(txn, group, topic, 3))
    contract(
        "TxnOffsetCommit v4, group not added", t.commit_offset(txn, group, topic, 3, version=4)
    )
    contract("AddOffsetsToTxn v3", txn.add_group(group).error_code)
    contract("AddOffsetsToTxn v0, again", txn.add_group(group, 0).error_code)
    contract("AddOffsetsToTxn v3, old epoch", txn.add_group(group, epoch=txn.epoch - 1).error_code)
    contract(
        "AddOffsetsToTxn v1, old epoch", txn.add_group(group, 1, epoch=txn.epoch - 1).error_code
    )
    contract("AddOffsetsToTxn v3, another's id", txn.add_group(group, producer_id=7_777).error_code)
    contract(
        "AddOffsetsToTxn v3, unknown id",
        txn.add_group(group, transactional_id=t.namesake(txn)).error_code,
    )
    contract("OffsetFetch before any", t.committed(world, group, topic))
    contract("TxnOffsetCommit v3", t.commit_offset(txn, group, topic, 3))
    contract("OffsetFetch before the commit", t.committed(world, group, topic))
    contract("OffsetFetch before the commit, stable", t.committed(world, group, topic, stable=True))
    contract(
        "TxnOffsetCommit v3, old epoch", t.commit_offset(txn, group, topic, 4, epoch=txn.epoch - 1)
    )
    contract(
        "TxnOffsetCommit v3, another's id", t.commit_offset(txn, group, topic, 4, producer_id=7_777)
    )
    contract("TxnOffsetCommit v3, unknown topic", t.commit_offset(txn, group, "nowhere", 4))
    contract(
        "TxnOffsetCommit v3, a generation", t.commit_offset(txn, group, topic, 4, generation_id=3)
    )
    contract(
        "TxnOffsetCommit v3, a member",
        t.commit_offset(txn, group, topic, 4, member_id="m", generation_id=1),
    )
    elsewhere = t.coordinator_of(world, group, t.GROUP) % 3 + 1
    contract(
        "TxnOffsetCommit at another node", t.commit_offset(txn, group, topic, 4, node_id=elsewhere)
    )
    txn.finish(True)
    until(lambda: t.committed(world, group, topic, stable=True).endswith("code 0"), "it is stable")
    contract("OffsetFetch after the commit", t.committed(world, group, topic))
    contract("OffsetFetch v9 after the commit", t.committed(world, group, topic, version=9))
    txn.add_group(group)
    contract("TxnOffsetCommit v5, group added", t.commit_offset(txn, group, topic, 8, version=5))
    txn.finish(False)
    until(lambda: t.committed(world, group, topic, stable=True).endswith("code 0"), "it is stable")
    contract("OffsetFetch after an abort", t.committed(world, group, topic))


def test_offsets_without_adding(contract, world, fresh) -> None:
    topic = fresh()
    group = f"group-{topic}"
    txn = Txn(world).begin().begin()
    contract(
        "TxnOffsetCommit v5, group not added", t.commit_offset(txn, group, topic, 5, version=5)
    )
    contract(
        "OffsetFetch, stable, before the end by v5", t.committed(world, group, topic, stable=True)
    )
    contract(
        "TxnOffsetCommit v5, older epoch",
        t.commit_offset(txn, group, topic, 5, version=5, epoch=txn.epoch - 1),
    )
    contract(
        "TxnOffsetCommit v5, another's id",
        t.commit_offset(txn, group, topic, 5, version=5, producer_id=7_777),
    )
    contract("the transaction of offsets alone", txn.finish(True, 5).error_code)
    until(lambda: t.committed(world, group, topic, stable=True).endswith("code 0"), "it is stable")
    contract("OffsetFetch after it", t.committed(world, group, topic))
    contract(
        "TxnOffsetCommit v5 of an unknown topic",
        t.commit_offset(txn, group, "nowhere", 5, version=5),
    )
