"""What is asked of coordinators of groups, as far as committed offsets go, and who they are.

FindCoordinator 0–6: of groups and of transactional ids: the leader of the key's partition in an
internal topic, as this node may tell.
OffsetFetch 1–9: what is committed; from 7 it may ask to be told (88) of what is not decided yet.
TxnOffsetCommit 0–5: offsets that count once their transaction is committed.

Nobody joins a group: consumers with `assign()` are served, and a commit that names a member or a
generation is refused (25).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer import TxnOffsetCommitRequest, TxnOffsetCommitResponse

from outlast.testing import coordinator_log
from outlast.testing.apis import DEFERRED, HANDLERS, Handler, Later, fault_code
from outlast.testing.batches import BatchHeader
from outlast.testing.codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    INVALID_REQUEST,
    INVALID_TXN_STATE,
    NETWORK_EXCEPTION,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
)
from outlast.testing.coordinator import admit
from outlast.testing.coordinator_log import OFFSETS, TRANSACTIONS, Entry, Seat
from outlast.testing.transaction_index import COMMIT, CONTROL_KEY

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node

OFFSET_FETCH, FIND_COORDINATOR, TXN_OFFSET_COMMIT = 9, 10, 28


KEY_TYPES = {0: OFFSETS, 1: TRANSACTIONS}
ABORTABLE_VERSION, ADDING_VERSION = 4, 5  # TxnOffsetCommit


# --- FindCoordinator ----------------------------------------------------------------------------


def serve_find_coordinator(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """Who coordinates each key."""
    request, version = exchange.request, exchange.version
    code = fault_code(cluster, node, exchange, now)
    topic = KEY_TYPES.get(request.key_type if version else 0)
    if version < 4:
        found = _coordinator(cluster, node, topic, request.key, code, now)
        return FindCoordinatorResponse(throttle_time_ms=0, **found)
    coordinators = [
        FindCoordinatorResponse.Coordinator(
            key=key, **_coordinator(cluster, node, topic, key, code, now)
        )
        for key in request.coordinator_keys
    ]
    return FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)


def _coordinator(
    cluster: MockCluster, node: Node, topic: str | None, key: str, code: int, now: float
) -> dict[str, Any]:
    found = -1
    if topic is None:
        code = code or INVALID_REQUEST
    elif not code:
        found = coordinator_log.coordinator_of(cluster, node, topic, key, now)
        code = COORDINATOR_NOT_AVAILABLE if found < 0 else 0
    host, port = cluster.addresses[found] if found >= 0 else ("", -1)
    return {
        "node_id": found,
        "host": host,
        "port": port,
        "error_code": code,
        "error_message": None,
    }


# --- offsets ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offset:
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str | None


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets of one group, by partition."""

    group: str
    offsets: dict[tuple[str, int], Offset]


NONE_COMMITTED = Offset(-1, -1, "")


def committed(seat: Seat, group: str) -> tuple[dict[tuple[str, int], Offset], set[tuple[str, int]]]:
    """What the log says of a group's offsets, and those of them that an open transaction changes.

    A commit of a transaction counts from its marker on.
    """
    found: dict[tuple[str, int], Offset] = {}
    pending: dict[int, dict[tuple[str, int], Offset]] = {}
    for batch in seat.replica.batches:
        if batch.next_offset > seat.replica.high_watermark:
            break
        if batch.control:
            (record,) = batch.decoded()
            offsets = pending.pop(batch.producer_id, {})
            if CONTROL_KEY.unpack_from(record.key)[1] == COMMIT:
                found.update(offsets)
        elif isinstance(batch, Entry) and batch.told.group == group:
            pending.setdefault(batch.producer_id, {}).update(batch.told.offsets)
    return found, {partition for offsets in pending.values() for partition in offsets}


def serve_offset_fetch(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """What each group has committed."""
    request, version = exchange.request, exchange.version
    code = fault_code(cluster, node, exchange, now)
    stable = version >= 7 and request.require_stable
    if version < 8:
        topic = OffsetFetchResponse.OffsetFetchResponseTopic
        kinds = topic, topic.OffsetFetchResponsePartition
        code, topics = _fetched(
            cluster, node, request.group_id, request.topics, code, kinds, stable, now
        )
        return OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=code)
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    kinds = (
        group.OffsetFetchResponseTopics,
        group.OffsetFetchResponseTopics.OffsetFetchResponsePartitions,
    )
    groups = []
    for wanted in request.groups:
        one, topics = _fetched(
            cluster, node, wanted.group_id, wanted.topics, code, kinds, stable, now
        )
        groups.append(group(group_id=wanted.group_id, topics=topics, error_code=one))
    return OffsetFetchResponse(throttle_time_ms=0, groups=groups)


def _fetched(
    cluster: MockCluster,
    node: Node,
    group: str,
    topics: Any,
    code: int,
    kinds: tuple[Any, Any],
    stable: bool,
    now: float,
) -> tuple[int, list[Any]]:
    """A code for the whole group, and what there is by topic."""
    coordinator_log.coordinator_of(cluster, node, OFFSETS, group, now)  # makes the topic
    seat = coordinator_log.find_seat(node, OFFSETS, group)
    if code:
        return code, []
    if isinstance(seat, int):
        return seat, []
    found, pending = committed(seat, group)
    if topics is None:
        wanted = [(name, index) for name, index in sorted(found)]
    else:
        wanted = [(topic.name, index) for topic in topics for index in topic.partition_indexes]
    topic_class, partition_class = kinds
    by_topic: dict[str, list[Any]] = {}
    for name, index in wanted:
        unstable = stable and (name, index) in pending
        offset = NONE_COMMITTED if unstable else found.get((name, index), NONE_COMMITTED)
        part = partition_class(
            partition_index=index,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            error_code=UNSTABLE_OFFSET_COMMIT if unstable else 0,
        )
        by_topic.setdefault(name, []).append(part)
    return 0, [topic_class(name=name, partitions=parts) for name, parts in by_topic.items()]


# --- TxnOffsetCommit ----------------------------------------------------------------------------


class _Committing:
    """A TxnOffsetCommit request on its way: checked, admitted by the transaction's coordinator,
    written, answered.
    """

    __slots__ = ("_cluster", "_exchange", "_known", "_node", "_request")

    def __init__(self, cluster: MockCluster, node: Node, exchange: Exchange) -> None:
        self._cluster = cluster
        self._node = node
        self._exchange = exchange
        self._request = exchange.request
        self._known = {
            (topic.name, part.partition_index): Offset(
                part.committed_offset, part.committed_leader_epoch, part.committed_metadata
            )
            for topic in self._request.topics
            for part in topic.partitions
            if node.view.state(topic.name, part.partition_index) is not None
        }

    def begin(self, code: int, now: float) -> ApiMessage | Later:
        """The answer, if it need not wait."""
        request = self._request
        seat = coordinator_log.find_seat(self._node, OFFSETS, request.group_id)
        if code or isinstance(seat, int) or not self._known:
            return self.response(code or (seat if isinstance(seat, int) else 0))
        header = BatchHeader._make([0] * len(BatchHeader._fields))._replace(
            producer_id=request.producer_id, producer_epoch=request.producer_epoch
        )
        if seat.replica.in_transaction(header):
            self._write(0, now)
        else:
            admit(
                self._cluster,
                self._node,
                request.transactional_id,
                header,
                [(OFFSETS, seat.replica.partition)],
                adds=self._exchange.version >= ADDING_VERSION,
                done=self._write,
                now=now,
            )
        return DEFERRED

    def _write(self, code: int, now: float) -> None:
        request = self._request
        seat = coordinator_log.find_seat(self._node, OFFSETS, request.group_id)
        if code:
            self._answer(self._translated(code), now)
            return
        if isinstance(seat, int):
            self._answer(seat, now)
            return
        if self._exchange.version >= 3 and (request.generation_id >= 0 or request.member_id):
            self._answer(UNKNOWN_MEMBER_ID, now)
            return
        entry = seat.replica.producers.get(request.producer_id)
        if entry is not None and request.producer_epoch < entry.epoch:
            self._answer(INVALID_PRODUCER_EPOCH, now)
            return
        told = Commit(request.group_id, self._known)
        producer = (request.producer_id, request.producer_epoch)
        seat.write(request.group_id, told, self._answer, now, producer=producer)

    def _translated(self, code: int) -> int:
        """What the transaction's coordinator said, as this version is told."""
        if code == PRODUCER_FENCED:
            return INVALID_PRODUCER_EPOCH
        if code == TRANSACTION_ABORTABLE and self._exchange.version < ABORTABLE_VERSION:
            return INVALID_TXN_STATE
        return COORDINATOR_LOAD_IN_PROGRESS if code == NETWORK_EXCEPTION else code

    def _answer(self, code: int, now: float) -> None:
        self._cluster.answer(self._exchange, self.response(code), now)

    def response(self, code: int) -> ApiMessage:
        """The code for every partition that is known, and 3 for the others."""
        kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        return TxnOffsetCommitResponse(
            throttle_time_ms=0,
            topics=[
                kind(
                    name=topic.name,
                    partitions=[
                        kind.TxnOffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=code
                            if code or (topic.name, part.partition_index) in self._known
                            else UNKNOWN_TOPIC_OR_PARTITION,
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in self._request.topics
            ],
        )


def serve_txn_offset_commit(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage | Later:
    """Offsets that count when the transaction is committed."""
    code = fault_code(cluster, node, exchange, now)
    return _Committing(cluster, node, exchange).begin(code, now)


HANDLERS[OFFSET_FETCH] = Handler(OffsetFetchRequest, (1, 9), serve_offset_fetch)
HANDLERS[FIND_COORDINATOR] = Handler(FindCoordinatorRequest, (0, 6), serve_find_coordinator)
HANDLERS[TXN_OFFSET_COMMIT] = Handler(TxnOffsetCommitRequest, (0, 5), serve_txn_offset_commit)
