"""What transactions ask of coordinators, and what the answers say: the layout of five requests.

Two protocols. KIP-98's, which all brokers since 0.11 speak: the coordinator is told of each
partition and group, and a transactional Produce request is version 11 at most. KIP-890's *second*,
where the cluster has finalized it: leaders and group coordinators tell the transaction's one
themselves, and every end raises the epoch, so that nothing late can be taken.

Every answer is read into `Told`: the code that decides, the worst of all partitions, and a text for
people.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from outlast.engine.txn_verdict import gravity
from outlast.engine.window import is_producer

PRODUCE, END_TXN, TXN_OFFSET_COMMIT = 0, 26, 28
SECOND = {PRODUCE: 12, END_TXN: 5, TXN_OFFSET_COMMIT: 5}  # by API: its first version there
GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator

Key = tuple[int, str]  # key type, and the group's or the transactional id
TopicPartition = tuple[str, int]

_ADDED = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_OFFSETS = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
_OFFSET = _OFFSETS.TxnOffsetCommitRequestPartition


@dataclass(frozen=True, slots=True)
class Group:
    """Who commits offsets: a consumer group, and its member if that is known (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Offset:
    """What is committed for a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer said."""

    error_code: int
    about: str = ""  # which partition it speaks of; '' is all
    message: str = ""


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer id and its epoch; −1 and −1 are none."""

    producer_id: int = -1
    epoch: int = -1


# --- requests -----------------------------------------------------------------------------------


def find_coordinator(key: Key) -> Any:
    """Who coordinates this key."""
    key_type, name = key
    return FindCoordinatorRequest(key=name, key_type=key_type, coordinator_keys=[name])


def init_producer_id(transactional_id: str, timeout_ms: int, producer: Producer) -> Any:
    """A producer id for a transactional id; with one's own, the next epoch of it (KIP-360)."""
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        min_version=3 if producer.producer_id >= 0 else 0,
        max_version=4,
    )


def add_partitions(
    transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
) -> Any:
    """These partitions are part of the transaction."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[_ADDED(name=name, partitions=parts) for name, parts in topics.items()],
        max_version=3,
    )


def add_offsets(transactional_id: str, producer: Producer, group: Group) -> Any:
    """Offsets of this group are part of the transaction."""
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group.group_id,
        max_version=3,
    )


def commit_offsets(
    transactional_id: str,
    producer: Producer,
    group: Group,
    offsets: Mapping[TopicPartition, Offset],
    *,
    second: bool,
) -> Any:
    """The offsets themselves, for the group's coordinator."""
    topics: dict[str, list[Any]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(
            _OFFSET(
                partition_index=index,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[_OFFSETS(name=name, partitions=parts) for name, parts in topics.items()],
        max_version=5 if second else 3,
    )


def end(transactional_id: str, producer: Producer, *, commit: bool, second: bool) -> Any:
    """The transaction is committed, or aborted."""
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
        min_version=SECOND[END_TXN] if second else 0,
        max_version=SECOND[END_TXN] if second else 4,
    )


def speaks_second(api_versions: Mapping[int, tuple[int, int]], features: Mapping[str, int]) -> bool:
    """Whether a broker speaks the second protocol, and the cluster has agreed to."""
    newest = (api_versions.get(key, (0, 0))[1] >= version for key, version in SECOND.items())
    return features.get("transaction.version", 0) >= 2 and all(newest)


# --- answers ------------------------------------------------------------------------------------


def found(response: Any, name: str) -> tuple[Told, tuple[int, str, int] | None]:
    """Who coordinates the key of this name: node id, host, port."""
    answers = list(response.coordinators or ()) if response.API_VERSION >= 4 else [response]
    for answer in answers:
        if response.API_VERSION < 4 or answer.key == name:
            told = Told(answer.error_code, message=answer.error_message or "")
            where = answer.node_id, answer.host, answer.port
            return told, None if answer.error_code or answer.node_id < 0 else where
    return Told(-1), None  # it answers something else


def told(response: Any) -> Told:
    """What an answer with one code says."""
    return Told(response.error_code)


def told_of_producer(response: Any) -> Told:
    """What an answer says that brings a producer id: one without it brings nothing."""
    given = is_producer(response.producer_id, response.producer_epoch)
    if response.error_code == 0 and not given:
        return Told(-1, message=f"no producer id came with it: {response.producer_id}")
    return Told(response.error_code)


def told_of_partitions(response: Any, asked: Collection[TopicPartition]) -> Told:
    """What an answer with a code for each partition says: the worst one. Of a partition that it
    does not name nothing is known.
    """
    codes = dict(_codes(response))
    worst = Told(0)
    for tp in asked:
        code = codes.get(tp, -1)
        if gravity(code) > gravity(worst.error_code):
            worst = Told(code, about=f"{tp[0]}-{tp[1]}")
    return worst


def _codes(response: Any) -> Iterable[tuple[TopicPartition, int]]:
    added = getattr(response, "results_by_topic_v3_and_below", None)
    if added is not None:
        for topic in added:
            for p in topic.results_by_partition or ():
                yield (topic.name, p.partition_index), p.partition_error_code
        return
    for topic in response.topics or ():
        for p in topic.partitions or ():
            yield (topic.name, p.partition_index), p.error_code
