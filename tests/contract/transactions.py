"""A transactional producer by hand: every request, version, id and epoch is the test's choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from kafka.record.memory_records import MemoryRecords

from tests.contract import wire
from tests.contract.world import World, until

STATE_TOPIC = "__transaction_state"
GROUP, TRANSACTION = 0, 1
BUSY = (14, 15, 16, 51)  # loading, not available, moved, an older transaction completes
FETCH_VERSION = 11

Partitions = Sequence[tuple[str, int]]

_names = itertools.count(1)


def coordinator_of(world: World, key: str, key_type: int = TRANSACTION, node_id: int = 1) -> int:
    """The node that coordinates a transactional id or a group, once a node names one."""

    def asked() -> int:
        told = world.ask(node_id, find_coordinator(key, key_type), 3)
        return told.node_id if told.error_code == 0 else 0

    return int(until(asked, f"a coordinator of {key}"))


def named(world: World, who: Txn, node_id: int) -> int:
    """The coordinator that a node names now; −1 if none."""
    told = world.ask(node_id, find_coordinator(who.transactional_id, TRANSACTION), 3)
    return int(told.node_id)


def patient(ask: Callable[[], Any]) -> Any:
    """Ask until the answer is none of those that ask to come again."""
    return until(lambda: (told := ask()).error_code not in BUSY and told, "an answer")


class Txn:
    """A transactional id, and who it is for now."""

    def __init__(self, world: World, transactional_id: str = "", *, node_id: int = 0) -> None:
        self.world = world
        self.transactional_id = transactional_id or f"txn-{next(_names)}"
        self.node_id = node_id or coordinator_of(world, self.transactional_id)
        self.wire = world.connect(self.node_id)
        self.producer_id = self.epoch = -1

    def twin(self, node_id: int = 0) -> Txn:
        """Another view of the same producer."""
        twin = Txn(self.world, self.transactional_id, node_id=node_id)
        twin.producer_id, twin.epoch = self.producer_id, self.epoch
        return twin

    # --- requests at the coordinator, once ---

    def init(self, version: int = 4, *, timeout_ms: int = 60_000, **given: int) -> Any:
        return self.wire.send(
            InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=given.get("producer_id", -1),
                producer_epoch=given.get("epoch", -1),
            ),
            version,
        ).answer()

    def add(self, *partitions: tuple[str, int], version: int = 3, **other: Any) -> Any:
        request = add_partitions(self, partitions, version, **other)
        return self.wire.send(request, version).answer()

    def add_group(self, group: str, version: int = 3, **other: Any) -> Any:
        request = AddOffsetsToTxnRequest(**self._who(other), group_id=group)
        return self.wire.send(request, version).answer()

    def end(self, committed: bool, version: int = 3, **other: Any) -> Any:
        request = EndTxnRequest(**self._who(other), committed=committed)
        return self.wire.send(request, version).answer()

    def _who(self, other: dict[str, Any]) -> dict[str, Any]:
        return {
            "transactional_id": other.get("transactional_id", self.transactional_id),
            "producer_id": other.get("producer_id", self.producer_id),
            "producer_epoch": other.get("epoch", self.epoch),
        }

    # --- what a producer does, until it is done ---

    def begin(self, *partitions: tuple[str, int], **options: Any) -> Txn:
        """Take the id over, and add partitions, if any."""
        told = patient(lambda: self.init(**options))
        assert told.error_code == 0, told
        self.producer_id, self.epoch = told.producer_id, told.producer_epoch
        if partitions:
            until(lambda: added(self.add(*partitions)) == {0}, "partitions are added")
        return self

    def finish(self, committed: bool, version: int = 3) -> Any:
        """End the transaction, and wait until the coordinator is done with it."""
        told = patient(lambda: self.end(committed, version))
        if version >= 5 and told.error_code == 0:
            self.producer_id, self.epoch = told.producer_id, told.producer_epoch
        elif told.error_code == 0:
            until(lambda: self.end(committed, version).error_code == 0, "it is complete")
        return told

    # --- records ---

    def send(
        self,
        topic: str,
        sequence: int,
        *,
        partition: int = 0,
        version: int = 11,
        node_id: int = 1,
        count: int = 1,
        value: bytes = b"value",
        transactional: bool = True,
        **other: Any,
    ) -> str:
        """A batch of the transaction; code and offset, asked again while the answer is 19 (a
        partition's leader could not ask the coordinator) or 51.
        """
        who = self._who(other)
        raw = wire.batch(
            who["producer_id"],
            who["producer_epoch"],
            sequence,
            count,
            value=value,
            transactional=transactional,
        )
        node = self.world.connect(node_id)

        def asked() -> str:
            data = [(topic, partition, raw)]
            request = wire.produce(data, transactional_id=who["transactional_id"])
            told = node.send(request, version).told()
            return "" if told in ("19", "51") else told

        return str(until(asked, "a batch is taken or refused"))


def find_coordinator(key: str, key_type: int, *more: str) -> Any:
    return FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key, *more])


def add_partitions(who: Txn, partitions: Partitions, version: int, **other: Any) -> Any:
    names = dict.fromkeys(topic for topic, _ in partitions)
    entry = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    topics = [entry(name=n, partitions=[p for t, p in partitions if t == n]) for n in names]
    known = {
        "transactional_id": other.get("transactional_id", who.transactional_id),
        "producer_id": other.get("producer_id", who.producer_id),
        "producer_epoch": other.get("epoch", who.epoch),
    }
    if version >= 4:
        one = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            **known, verify_only=other.get("verify_only", False), topics=topics
        )
        return AddPartitionsToTxnRequest(transactions=[one])
    older = {f"v3_and_below_{name}": value for name, value in known.items()}
    return AddPartitionsToTxnRequest(**older, v3_and_below_topics=topics)


def codes(told: Any) -> list[int]:
    """The code of each partition in an answer to AddPartitionsToTxn."""
    topics = told.results_by_topic_v3_and_below
    if told.results_by_transaction:
        topics = told.results_by_transaction[0].topic_results
    return [p.partition_error_code for t in topics for p in t.results_by_partition]


def added(told: Any) -> set[int]:
    """The different codes in it."""
    return set(codes(told))


def commit_offset(
    who: Txn, group: str, topic: str, offset: int, *, version: int = 3, **other: Any
) -> str:
    """TxnOffsetCommit of one partition at the group's coordinator: its code."""
    entry = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = entry.TxnOffsetCommitRequestPartition(
        partition_index=other.get("partition", 0),
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata="told",
    )
    request = TxnOffsetCommitRequest(
        transactional_id=other.get("transactional_id", who.transactional_id),
        group_id=group,
        producer_id=other.get("producer_id", who.producer_id),
        producer_epoch=other.get("epoch", who.epoch),
        generation_id=other.get("generation_id", -1),
        member_id=other.get("member_id", ""),
        group_instance_id=None,
        topics=[entry(name=topic, partitions=[partition])],
    )
    node_id = other.get("node_id") or coordinator_of(who.world, group, GROUP)

    def asked() -> str:
        (told,) = who.world.ask(node_id, request, version).topics
        code = told.partitions[0].error_code
        moved = code == 16 and not other.get("node_id")  # it does not know yet that it is named
        return "" if moved or code in (14, 15, 51) else str(code)

    return str(until(asked, "offsets are taken or refused"))


def committed(
    world: World, group: str, topic: str, *, stable: bool = False, version: int = 7
) -> str:
    """What OffsetFetch tells of a group's partition 0: offset and code."""
    node_id = coordinator_of(world, group, GROUP)
    if version >= 8:
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [kind.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
        one = kind(group_id=group, member_id=None, member_epoch=-1, topics=topics)
        request = OffsetFetchRequest(groups=[one], require_stable=stable)
    else:
        topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=stable)

    def asked() -> Any:
        told = world.ask(node_id, request, version)
        told = told.groups[0] if version >= 8 else told
        return told if told.error_code not in BUSY else None

    part = until(asked, "offsets").topics[0].partitions[0]
    return f"{part.committed_offset}, {part.metadata!r}, code {part.error_code}"


# --- logs ---------------------------------------------------------------------------------------


def fetched(
    world: World, topic: str, partition: int = 0, *, isolation: int = 1, node_id: int = 1
) -> Any:
    """One partition of a Fetch from the beginning."""
    request = wire.fetch(topic, partition)
    request.isolation_level = isolation
    told = world.ask(node_id, request, FETCH_VERSION)
    return told.responses[0].partitions[0]


def seen(part: Any) -> str:
    """What a Fetch told: values and markers, high watermark, last stable offset, aborted."""
    records = MemoryRecords(part.records or b"")
    shown = []
    while records.has_next():
        batch = records.next_batch()
        if batch.is_control_batch:
            (record,) = batch
            shown.append({0: "ABORT", 1: "COMMIT"}[int.from_bytes(record.key[2:4], "big")])
        else:
            shown += [r.value.decode() for r in batch]
    aborted = part.aborted_transactions
    told = aborted if aborted is None else [a.first_offset for a in aborted]
    return (
        f"{' '.join(shown) or 'nothing'}; end {part.high_watermark}, "
        f"stable {part.last_stable_offset}, aborted {told}"
    )


def last_marker(part: Any) -> Any:
    """The last control batch in what a Fetch told."""
    records, found = MemoryRecords(part.records or b""), None
    while records.has_next():
        batch = records.next_batch()
        found = batch if batch.is_control_batch else found
    assert found is not None, "no marker"
    return found


def partition_of(key: str, count: int) -> int:
    """Which partition of an internal topic a key belongs to, by Java's hash of it."""
    value = 0
    for sign in key:
        value = (31 * value + ord(sign)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >= 1 << 31 else value) % count


def namesake(txn: Txn) -> str:
    """A transactional id nobody uses, of the same coordinator."""
    count = len(txn.world.topic(1, STATE_TOPIC).partitions)
    mine = partition_of(txn.transactional_id, count)
    return next(n for i in range(99) if partition_of(n := f"nobody-{i}", count) == mine)
