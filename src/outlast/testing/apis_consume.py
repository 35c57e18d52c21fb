"""What consumers ask of a node: Fetch, ListOffsets, OffsetForLeaderEpoch.

Consumers see a log only at the leader, as the node itself knows it, and up to its high watermark;
if they want committed data alone (isolation level 1), up to the last stable offset, and are told
which transactions in it were aborted.
A Fetch that finds fewer than `min_bytes` waits, up to `max_wait_ms`, for the high watermark to
move or the leadership to change; its connection waits with it.

Fetch 4–18: whole batches, as they lie in the log; always the whole answer (no incremental ones,
which a broker may decline); hints from 12, endpoints from 16.
ListOffsets 1–10: earliest, latest, the highest timestamp, the first at or after a timestamp.
OffsetForLeaderEpoch 2–4: where an epoch ends.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

from outlast.testing.apis import DEFERRED, HANDLERS, NO_ID, Handler, Later
from outlast.testing.batches import MAX_TIMESTAMP_AT
from outlast.testing.codes import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from outlast.testing.faults import Error, strike
from outlast.testing.replica import Replica

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node
    from outlast.testing.timeline import Timer

FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH = 1, 2, 23


READ_COMMITTED = 1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5

TOPIC_ID_VERSION = 13


def find_leader(
    cluster: MockCluster,
    node: Node,
    api: int,
    topic: str | None,
    partition: int,
    epoch: int,
    now: float,
) -> Replica | int:
    """The replica here that leads the partition, or why there is none, as an error code.

    `epoch` is the leader epoch the client believes in; −1 is not checked.
    """
    if topic is None:
        return UNKNOWN_TOPIC_ID
    fault = strike(
        cluster.faults, Error, node.node_id, now, api=api, partitions=[(topic, partition)]
    )
    if fault is not None:
        return fault.code
    state = node.image.state(topic, partition)
    if state is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    replica = node.replicas.get((topic, partition))
    if replica is None or not replica.leading:
        return NOT_LEADER_OR_FOLLOWER
    if epoch not in (-1, replica.state.epoch):
        return FENCED_LEADER_EPOCH if epoch < replica.state.epoch else UNKNOWN_LEADER_EPOCH
    return replica


# --- Fetch --------------------------------------------------------------------------------------


class WaitingFetch:
    """A Fetch that is answered when enough is there, its time is up, or a leader steps down."""

    __slots__ = ("_cluster", "_exchange", "_node", "_timer", "_watched")

    def __init__(self, cluster: MockCluster, node: Node, exchange: Exchange) -> None:
        self._cluster = cluster
        self._node = node
        self._exchange = exchange
        self._timer: Timer | None = None
        self._watched: list[Replica] = []

    def begin(self, now: float) -> ApiMessage | Later:
        """The answer, if it need not wait."""
        request = self._exchange.request
        response, ready = self._try(now)
        if ready or request.max_wait_ms <= 0:
            return response
        self._watch()
        self._timer = self._node.at(now + request.max_wait_ms / 1000, self._expire)
        return DEFERRED

    def _try(self, now: float) -> tuple[ApiMessage, bool]:
        return fetch(self._cluster, self._node, self._exchange, now)

    def _watch(self) -> None:
        """Look again whenever one of the partitions moves."""
        for topic, wanted in fetched_partitions(self._node, self._exchange):
            replica = self._node.replicas.get((topic or "", wanted.partition))
            if replica is not None and replica not in self._watched:
                replica.watch(self._look)
                self._watched.append(replica)

    def _look(self, now: float) -> None:
        response, ready = self._try(now)
        if ready:
            self._answer(response, now)
        else:
            self._unwatch()
            self._watch()

    def _expire(self, now: float) -> None:
        self._answer(self._try(now)[0], now)

    def _answer(self, response: ApiMessage, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unwatch()
        self._cluster.answer(self._exchange, response, now)

    def _unwatch(self) -> None:
        for replica in self._watched:
            with contextlib.suppress(ValueError):  # told meanwhile, so it is gone
                replica.watchers.remove(self._look)
        self._watched.clear()


def serve_fetch(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage | Later:
    """Batches from the given offsets on."""
    return WaitingFetch(cluster, node, exchange).begin(now)


def fetched_partitions(node: Node, exchange: Exchange) -> Iterator[tuple[str | None, Any]]:
    """Topic name (None: its id is not known here) and what is wanted of one of its partitions."""
    for topic in exchange.request.topics:
        for wanted in topic.partitions:
            yield _topic_name(node, topic, exchange.version), wanted


def _topic_name(node: Node, topic: Any, version: int) -> str | None:
    if version < TOPIC_ID_VERSION:
        return str(topic.topic)
    return node.image.names.get(topic.topic_id or NO_ID)


def fetch(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> tuple[ApiMessage, bool]:
    """The answer as it is now, and whether it may go out before its time is up."""
    request, version = exchange.request, exchange.version
    ready = not request.topics
    room = request.max_bytes
    size = 0
    hinted: set[int] = set()
    responses = []
    for topic in request.topics:
        name = _topic_name(node, topic, version)
        partitions = []
        for wanted in topic.partitions:
            part = _fetch_partition(cluster, node, exchange, name, wanted, room, now)
            if part.error_code:
                ready = True
                _hint(node, name, part, hinted)
            size += len(part.records or b"")
            room = max(0, request.max_bytes - size) if size else room
            partitions.append(part)
        responses.append(
            FetchResponse.FetchableTopicResponse(
                topic=name or "", topic_id=topic.topic_id or NO_ID, partitions=partitions
            )
        )
    endpoint = FetchResponse.NodeEndpoint
    endpoints = [
        endpoint(node_id=n, host=cluster.addresses[n][0], port=cluster.addresses[n][1], rack=None)
        for n in sorted(hinted)
    ]
    response = FetchResponse(
        throttle_time_ms=0, error_code=0, responses=responses, node_endpoints=endpoints
    )
    return response, ready or size >= request.min_bytes


def _fetch_partition(
    cluster: MockCluster,
    node: Node,
    exchange: Exchange,
    topic: str | None,
    wanted: Any,
    room: int,
    now: float,
) -> Any:
    """One partition's share; the first batch comes even where it is larger than the limits."""
    replica = find_leader(
        cluster, node, FETCH, topic, wanted.partition, wanted.current_leader_epoch, now
    )
    if isinstance(replica, int):
        return _partition_data(wanted.partition, error_code=replica)
    committed = exchange.request.isolation_level == READ_COMMITTED
    offset, stable = wanted.fetch_offset, replica.last_stable_offset
    end = stable if committed else replica.high_watermark
    code = 0
    records = b""
    if not replica.log_start_offset <= offset <= replica.log_end_offset:
        code = OFFSET_OUT_OF_RANGE
    elif offset < end and room:
        records = _batches(replica, offset, end, min(wanted.partition_max_bytes, room))
    return _partition_data(
        wanted.partition,
        error_code=code,
        high_watermark=replica.high_watermark,
        last_stable_offset=stable,
        log_start_offset=replica.log_start_offset,
        aborted_transactions=_aborted(replica, offset) if committed and not code else None,
        records=records,
    )


def _aborted(replica: Replica, offset: int) -> list[Any]:
    """Aborted transactions from an offset on, maybe more than the answer has records of."""
    kind = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction
    return [
        kind(producer_id=producer_id, first_offset=first)
        for producer_id, first in replica.transactions.aborted(offset, replica.log_end_offset)
    ]


def _batches(replica: Replica, offset: int, end: int, limit_bytes: int) -> bytes:
    raw: list[bytes] = []
    size = 0
    for batch in replica.batches[replica.first_batch_from(offset) :]:
        size += len(batch.raw)
        if batch.next_offset > end or (raw and size > limit_bytes):
            break
        raw.append(batch.raw)
    return b"".join(raw)


def _partition_data(partition: int, **fields: Any) -> Any:
    known: dict[str, Any] = {"high_watermark": -1, "last_stable_offset": -1, "records": b""}
    known |= {"log_start_offset": -1, "aborted_transactions": None}
    return FetchResponse.FetchableTopicResponse.PartitionData(
        partition_index=partition, **(known | fields)
    )


def _hint(node: Node, topic: str | None, part: Any, hinted: set[int]) -> None:
    """Name the leader beside a refusal, as far as this node may tell (KIP-951); versions that
    have no room for it leave it out.
    """
    if topic is None or part.error_code not in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH):
        return
    state = node.view.state(topic, part.partition_index)
    if state is None:
        return
    part.current_leader = FetchResponse.FetchableTopicResponse.PartitionData.LeaderIdAndEpoch(
        leader_id=state.leader, leader_epoch=state.epoch
    )
    if state.leader in node.view.brokers:
        hinted.add(state.leader)


# --- offsets ------------------------------------------------------------------------------------


def serve_list_offsets(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """The offset of a timestamp, or of one of the special ones."""
    topics = [
        ListOffsetsResponse.ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                _list_offset(cluster, node, exchange, topic.name, p, now) for p in topic.partitions
            ],
        )
        for topic in exchange.request.topics
    ]
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _list_offset(
    cluster: MockCluster, node: Node, exchange: Exchange, topic: str, wanted: Any, now: float
) -> Any:
    answer = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    index = wanted.partition_index
    replica = find_leader(
        cluster, node, LIST_OFFSETS, topic, index, wanted.current_leader_epoch, now
    )
    if isinstance(replica, int):
        return answer(
            partition_index=index, error_code=replica, timestamp=-1, offset=-1, leader_epoch=-1
        )
    committed = exchange.version >= 2 and exchange.request.isolation_level == READ_COMMITTED
    end = replica.last_stable_offset if committed else replica.high_watermark
    offset, timestamp_ms = _offset_at(replica, end, wanted.timestamp)
    return answer(
        partition_index=index,
        error_code=0,
        timestamp=timestamp_ms,
        offset=offset,
        leader_epoch=replica.state.epoch if offset >= 0 else -1,
    )


def _offset_at(replica: Replica, end: int, timestamp_ms: int) -> tuple[int, int]:
    """Offset and timestamp; (−1, −1) if there is none."""
    if timestamp_ms == LATEST:
        return end, -1
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return replica.log_start_offset, -1
    visible = [b for b in replica.batches if b.next_offset <= end]
    if timestamp_ms == MAX_TIMESTAMP:
        times = [(r.timestamp_ms, -r.offset) for batch in visible for r in batch.records()]
        newest_ms, negated = max(times, default=(-1, 1))
        return -negated, newest_ms
    if timestamp_ms == LATEST_TIERED:
        return -1, -1
    for batch in visible:
        (batch_newest_ms,) = struct.unpack_from(">q", batch.raw, MAX_TIMESTAMP_AT)
        if batch_newest_ms < timestamp_ms:
            continue
        for record in batch.records():
            if record.timestamp_ms >= timestamp_ms:
                return record.offset, record.timestamp_ms
    return -1, -1


def serve_offset_for_leader_epoch(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """The end of the newest epoch that is not newer than the one asked for."""
    result = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = [
        result(
            topic=topic.topic,
            partitions=[_epoch_end(cluster, node, topic.topic, p, now) for p in topic.partitions],
        )
        for topic in exchange.request.topics
    ]
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def _epoch_end(cluster: MockCluster, node: Node, topic: str, wanted: Any, now: float) -> Any:
    answer = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
    replica = find_leader(
        cluster,
        node,
        OFFSET_FOR_LEADER_EPOCH,
        topic,
        wanted.partition,
        wanted.current_leader_epoch,
        now,
    )
    if isinstance(replica, int):
        return answer(
            error_code=replica, partition=wanted.partition, leader_epoch=-1, end_offset=-1
        )
    epoch, end = -1, -1
    if wanted.leader_epoch == replica.state.epoch:
        epoch, end = wanted.leader_epoch, replica.log_end_offset
    elif wanted.leader_epoch < replica.state.epoch:
        older = [b for b in replica.batches if b.leader_epoch <= wanted.leader_epoch]
        epoch = older[-1].leader_epoch if older else wanted.leader_epoch
        end = older[-1].next_offset if older else replica.log_start_offset
    return answer(error_code=0, partition=wanted.partition, leader_epoch=epoch, end_offset=end)


HANDLERS[FETCH] = Handler(FetchRequest, (4, 18), serve_fetch)
HANDLERS[LIST_OFFSETS] = Handler(ListOffsetsRequest, (1, 10), serve_list_offsets)
HANDLERS[OFFSET_FOR_LEADER_EPOCH] = Handler(
    OffsetForLeaderEpochRequest, (2, 4), serve_offset_for_leader_epoch
)
