"""The transaction coordinator: ids and epochs, partitions, the end of a transaction, fencing."""

from __future__ import annotations

import pytest

from tests.contract import transactions as t, wire
from tests.contract.transactions import Txn
from tests.contract.world import NODES, World, until

ALL = (1, 2, 3)
FEATURE = "transaction.version"


@pytest.fixture(scope="module")
def fresh(any_world: World):
    """Topics of one partition, led by node 1, that nobody has written to."""
    return lambda: any_world.create_topic(ALL)


def told(answer, txn: Txn) -> str:
    """An answer with a producer id, beside what the producer had."""
    if answer.error_code:
        return f"{answer.error_code}: {answer.producer_id}/{answer.producer_epoch}"
    same = "same" if answer.producer_id == txn.producer_id else "new"
    return f"0: {same} id, epoch {answer.producer_epoch}"


def mixed(answer) -> list[int]:
    """Codes of partitions of which a broker tells in any order."""
    return sorted(t.codes(answer))


def test_find_coordinator(contract, world) -> None:
    txn = Txn(world)
    for version in (1, 3):
        answer = world.ask(1, t.find_coordinator(txn.transactional_id, 1), version)
        answer = f"{answer.error_code}, the same: {answer.node_id == txn.node_id}"
        contract(f"FindCoordinator v{version} of a transactional id", answer)
    more = world.ask(2, t.find_coordinator(txn.transactional_id, 1, "other"), 6).coordinators
    contract(
        "FindCoordinator v6 of two transactional ids",
        f"{[c.error_code for c in more]}, the same: {more[0].node_id == txn.node_id}",
    )
    topic = world.topic(1, t.STATE_TOPIC)
    contract("__transaction_state is internal", topic.is_internal)
    leaders = {p.partition_index: p.leader_id for p in topic.partitions}
    names = [f"id-{number}" for number in range(1000, 1010)]
    found = world.ask(1, t.find_coordinator("", 1, *names), 6).coordinators[1:]
    expected = [leaders[t.partition_of(name, len(leaders))] for name in names]
    contract("ten coordinators lead their ids' partitions", [c.node_id for c in found] == expected)
    contract(
        "FindCoordinator of key type 7", world.ask(1, t.find_coordinator("x", 7), 3).error_code
    )


def test_init(contract, world) -> None:
    txn = Txn(world)
    contract("txn: the first InitProducerId", told(t.patient(txn.init), txn))
    txn.begin()
    contract("txn: the next InitProducerId", told(txn.init(), txn))
    contract("txn: the next InitProducerId, v0", told(txn.init(0), txn))
    epoch = txn.init().producer_epoch
    known = {"producer_id": txn.producer_id, "epoch": epoch}
    contract("txn: with the present id and epoch", told(txn.init(**known), txn))
    contract("txn: the same again", told(txn.init(**known), txn))
    contract("txn: the same again, v3", told(txn.init(3, **known), txn))
    known["epoch"] -= 1
    contract("txn: with an older epoch", told(txn.init(**known), txn))
    contract("txn: with an older epoch, v3", told(txn.init(3, **known), txn))
    known["epoch"] += 9
    contract("txn: with an epoch from the future", told(txn.init(**known), txn))
    known["producer_id"] += 777
    contract("txn: with another's id", told(txn.init(**known), txn))
    contract("txn: with an id without epoch", told(txn.init(producer_id=5), txn))
    contract("txn: with an epoch without id", told(txn.init(epoch=5), txn))
    other = Txn(world)
    answer = t.patient(lambda: other.init(producer_id=txn.producer_id, epoch=3))
    contract("txn: an unknown transactional id, with an id and epoch", told(answer, txn))


def test_init_refused(contract, world) -> None:
    txn = Txn(world)
    for timeout_ms in (900_000, 900_001, 1, 0, -1):
        code = t.patient(lambda ms=timeout_ms: txn.init(timeout_ms=ms)).error_code
        contract(f"txn: a transaction time-out of {timeout_ms} ms", code)
    elsewhere = next(n for n in NODES if n != txn.node_id)
    there = txn.twin()
    there.wire = world.connect(elsewhere)
    contract("txn: InitProducerId at another node", told(there.init(), txn))
    txn.transactional_id = ""
    contract("txn: an empty transactional id", told(txn.init(), txn))


def test_add_partitions(contract, world, fresh) -> None:
    topic = fresh()
    txn = Txn(world).begin().begin()
    here = (topic, 0)
    contract("AddPartitionsToTxn v3", t.codes(txn.add(here)))
    contract("AddPartitionsToTxn v3, again", t.codes(txn.add(here)))
    contract("AddPartitionsToTxn v0", t.codes(txn.add(here, version=0)))
    contract("AddPartitionsToTxn v5, as a broker does", t.codes(txn.add(here, version=5)))
    verify = t.codes(txn.add(here, version=5, verify_only=True))
    contract("AddPartitionsToTxn v5, to verify", verify)
    other = t.codes(txn.add((fresh(), 0), version=5, verify_only=True))
    contract("AddPartitionsToTxn v5, to verify what is not in it", other)
    contract("AddPartitionsToTxn beside an unknown one", mixed(txn.add(here, ("nowhere", 0))))
    contract("AddPartitionsToTxn of an unknown partition", mixed(txn.add(here, (topic, 9))))
    contract("AddPartitionsToTxn of none", t.codes(txn.add()))
    old, wrong = {"epoch": txn.epoch - 1}, {"producer_id": txn.producer_id + 9}
    contract("AddPartitionsToTxn, old epoch", t.codes(txn.add(here, **old)))
    contract("AddPartitionsToTxn, old epoch, v1", t.codes(txn.add(here, version=1, **old)))
    contract("AddPartitionsToTxn, epoch to come", t.codes(txn.add(here, epoch=txn.epoch + 1)))
    contract("AddPartitionsToTxn, another's id", t.codes(txn.add(here, **wrong)))
    nobody = t.namesake(txn)
    contract("AddPartitionsToTxn, unknown id", t.codes(txn.add(here, transactional_id=nobody)))
    contract("AddPartitionsToTxn, empty id", t.codes(txn.add(here, transactional_id="")))
    txn.wire = world.connect(next(n for n in NODES if n != txn.node_id))
    contract("AddPartitionsToTxn at another node", t.codes(txn.add(here)))


def test_end(contract, world, fresh) -> None:
    topic = fresh()
    txn = Txn(world).begin()
    contract("EndTxn v3, nothing begun, commit", txn.end(True).error_code)
    contract("EndTxn v3, nothing begun, abort", txn.end(False).error_code)
    txn.begin((topic, 0))
    contract("EndTxn v3, old epoch", txn.end(True, epoch=txn.epoch - 1).error_code)
    contract("EndTxn v1, old epoch", txn.end(True, 1, epoch=txn.epoch - 1).error_code)
    contract("EndTxn v3, epoch to come", txn.end(True, epoch=txn.epoch + 1).error_code)
    contract("EndTxn v3, another's id", txn.end(True, producer_id=7_777).error_code)
    nobody = t.namesake(txn)
    contract("EndTxn v3, unknown id", txn.end(True, transactional_id=nobody).error_code)
    contract("EndTxn v3, empty id", txn.end(True, transactional_id="").error_code)
    contract("EndTxn v3, commit", txn.finish(True).error_code)
    contract("EndTxn v3, commit again", txn.end(True).error_code)
    contract("EndTxn v3, abort after the commit", txn.end(False).error_code)
    until(lambda: t.added(txn.add((topic, 0))) == {0}, "the next one begins")
    contract("EndTxn v4, abort", told(txn.finish(False, 4), txn))
    contract("EndTxn v3, abort again", txn.end(False).error_code)
    contract("EndTxn v3, commit after the abort", txn.end(True).error_code)
    contract("after an abort, the next InitProducerId", told(t.patient(txn.init), txn))
    contract("a marker in an empty partition", t.seen(t.fetched(world, topic)))
    txn.wire = world.connect(next(n for n in NODES if n != txn.node_id))
    contract("EndTxn at another node", txn.end(True).error_code)


def ended(txn: Txn, committed: bool, **who: int):
    """EndTxn v5, when what was before is over."""
    return t.patient(lambda: txn.end(committed, 5, **who))


def test_end_with_bump(contract, world, fresh) -> None:
    topic = fresh()
    txn = Txn(world).begin()
    contract("EndTxn v5, nothing begun, commit", told(txn.end(True, 5), txn))
    contract("EndTxn v5, nothing begun, abort", told(txn.finish(False, 5), txn))
    contract("EndTxn v5, commit after this", told(ended(txn, True), txn))
    contract("Produce v12, partition not added", txn.send(topic, 0, version=12))
    old = txn.epoch
    contract("EndTxn v5, commit", told(txn.finish(True, 5), txn))
    contract("EndTxn v5, the same again", told(ended(txn, True, epoch=old), txn))
    contract("EndTxn v5, abort, at the old epoch", told(ended(txn, False, epoch=old), txn))
    contract("EndTxn v5, older epoch", told(ended(txn, True, epoch=old - 1), txn))
    contract("EndTxn v5, commit, nothing new", told(ended(txn, True), txn))
    contract("EndTxn v5, abort, nothing new", told(txn.finish(False, 5), txn))
    contract("Produce v12, the next transaction", txn.send(topic, 0, version=12))
    contract("EndTxn v5, abort", told(txn.finish(False, 5), txn))
    contract("EndTxn v5, another's id", told(ended(txn, True, producer_id=7_777), txn))
    until(lambda: t.fetched(world, topic).last_stable_offset == 4, "it is stable")
    contract("after a commit and an abort by v5", t.seen(t.fetched(world, topic)))
    marker = t.last_marker(t.fetched(world, topic))
    contract("the marker's epoch, less the transaction's", marker.producer_epoch - txn.epoch + 1)
    contract("the marker's sequence", marker.base_sequence)


def test_fencing(contract, world, fresh) -> None:
    topic = fresh()
    old = Txn(world).begin((topic, 0))
    old.send(topic, 0)
    new = old.twin()
    contract("taken over in a transaction: at first", told(new.init(), old))
    contract("taken over in a transaction: then", told(t.patient(new.init), old))
    contract("the older one: Produce v11", old.send(topic, 1))
    contract("the older one: Produce v12", old.send(topic, 1, version=12))
    contract("the older one: AddPartitionsToTxn", t.codes(old.add((topic, 0))))
    contract("the older one: EndTxn v3", old.end(True).error_code)
    contract("the older one: EndTxn v5", told(old.end(True, 5), old))
    contract("the older one: EndTxn v1", old.end(True, 1).error_code)
    known = {"producer_id": old.producer_id, "epoch": old.epoch}
    contract("the older one: InitProducerId with its epoch", told(old.init(**known), old))
    contract("the older one: its records", t.seen(t.fetched(world, topic)))
    marker = t.last_marker(t.fetched(world, topic))
    contract("the fencing marker's epoch, less the older one's", marker.producer_epoch - old.epoch)


def test_recovery_with_id_and_epoch(contract, world, fresh) -> None:
    topic = fresh()
    txn = Txn(world).begin((topic, 0))
    txn.send(topic, 0)
    known = {"producer_id": txn.producer_id, "epoch": txn.epoch}
    contract("InitProducerId with its epoch, in a transaction", told(txn.init(**known), txn))
    answer = t.patient(lambda: txn.init(**known))
    contract("InitProducerId with its epoch, when that is aborted", told(answer, txn))
    txn.begin((topic, 0))
    contract("after it: the first batch", txn.send(topic, 0))
    contract("after it: committed", txn.finish(True).error_code)
    contract("after it: the log", t.seen(t.fetched(world, topic)))


def test_time_out(contract, world, fresh) -> None:
    topic = fresh()
    txn = Txn(world).begin(timeout_ms=300)
    assert t.added(txn.add((topic, 0))) == {0}
    txn.send(topic, 0)
    until(lambda: t.fetched(world, topic).high_watermark == 2, "it is aborted")
    contract("timed out: the log", t.seen(t.fetched(world, topic)))
    marker = t.last_marker(t.fetched(world, topic))
    ahead = marker.producer_epoch - txn.epoch
    contract("timed out: the marker's epoch, less the transaction's", ahead)
    contract("timed out: Produce v11", txn.send(topic, 1))
    contract("timed out: Produce v12", txn.send(topic, 1, version=12))
    until(lambda: t.added(txn.add((topic, 0))) != {51}, "it is complete")
    contract("timed out: AddPartitionsToTxn", t.codes(txn.add((topic, 0))))
    contract("timed out: EndTxn v3, commit", t.patient(lambda: txn.end(True)).error_code)
    contract("timed out: EndTxn v3, abort", t.patient(lambda: txn.end(False)).error_code)
    contract("timed out: EndTxn v5, commit", told(t.patient(lambda: txn.end(True, 5)), txn))
    known = {"producer_id": txn.producer_id, "epoch": txn.epoch}
    answer = t.patient(lambda: txn.init(**known))
    contract("timed out: InitProducerId with its epoch", told(answer, txn))
    contract("timed out: InitProducerId", told(t.patient(txn.init), txn))


def test_coordinator_moves(contract, world, fresh) -> None:
    topic = fresh()
    txn = Txn(world).begin((topic, 0))
    txn.send(topic, 0)
    count = len(world.topic(1, t.STATE_TOPIC).partitions)
    index = t.partition_of(txn.transactional_id, count)
    to = next(n for n in NODES if n != txn.node_id)
    world.move_leader(t.STATE_TOPIC, index, to)
    until(lambda: t.added(txn.add((topic, 0))) == {16}, "it has moved")
    contract("coordinator moved: EndTxn at the old one", txn.end(True).error_code)
    contract("coordinator moved: InitProducerId at the old one", told(txn.init(), txn))
    until(lambda: t.coordinator_of(world, txn.transactional_id) == to, "it is named")
    contract("coordinator moved: EndTxn at the new one", txn.twin().finish(True).error_code)
    until(lambda: t.fetched(world, topic).last_stable_offset == 2, "it is stable")
    contract("coordinator moved: the log", t.seen(t.fetched(world, topic)))


def led_by(world: World, index: int, node_id: int) -> Txn:
    """A transactional id of this partition of the internal topic, once the node leads that."""
    count = len(world.topic(1, t.STATE_TOPIC).partitions)
    name = next(n for i in range(99) if t.partition_of(n := f"led-{i}", count) == index)
    until(lambda: t.coordinator_of(world, name) == node_id, "it leads")
    return Txn(world, name)


def test_coordinator_dies(contract, world, fresh) -> None:
    victim = world.victim()
    alive = [n for n in NODES if n != victim]
    topic = world.create_topic([alive[0], alive[1]])
    t.coordinator_of(world, "any")
    index = 0
    if world.partition(1, t.STATE_TOPIC, index).leader_id != victim:
        world.move_leader(t.STATE_TOPIC, index, victim)
    txn = led_by(world, index, victim)
    txn.begin((topic, 0))
    txn.send(topic, 0, node_id=alive[0])
    world.kill(victim)
    contract("coordinator killed: the others name it", t.named(world, txn, alive[0]) == victim)
    until(
        lambda: t.named(world, txn, alive[0]) in alive, "another takes over", world.given_up_s * 2
    )
    after = txn.twin(t.named(world, txn, alive[0]))
    until(lambda: t.added(after.add((topic, 0))).isdisjoint((14, 16)), "it has read its log")
    contract("coordinator killed: in the transaction still", t.codes(after.add((topic, 0))))
    contract("coordinator killed: EndTxn at the next one", after.finish(True).error_code)
    world.heal()
    until(lambda: t.fetched(world, topic, node_id=alive[0]).last_stable_offset == 2, "stable")
    contract("coordinator killed: the log", t.seen(t.fetched(world, topic, node_id=alive[0])))


def test_api_versions(contract, world) -> None:
    answer = world.ask(1, wire.api_versions(), 3)
    ranges = {v.api_key: (v.min_version, v.max_version) for v in answer.api_keys}
    for key, name in (
        (10, "FindCoordinator"),
        (24, "AddPartitionsToTxn"),
        (25, "AddOffsetsToTxn"),
        (26, "EndTxn"),
        (28, "TxnOffsetCommit"),
    ):
        contract(f"ApiVersions: {name}", ranges[key])
    levels = [f.max_version_level for f in answer.finalized_features if f.name == FEATURE]
    contract("ApiVersions: level of transaction.version", levels)
