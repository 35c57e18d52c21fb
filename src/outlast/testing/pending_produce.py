"""A Produce request on its way: its partitions, what they wait for, and its answer.

One answer goes out for all partitions of a request, when the last of them is settled (C19); each
has its own code, offset and leader hint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.producer import ProduceResponse

from outlast.testing.batches import BatchHeader, Refusal, StoredBatch, read_header
from outlast.testing.codes import (
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
)
from outlast.testing.replica import Replica
from outlast.testing.request_log import PartitionRecord

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node
    from outlast.testing.timeline import Timer


TOPIC_ID_VERSION = 13
WAITING = None


class Part:
    """One partition of a Produce request, from receipt to answer."""

    __slots__ = (
        "admitted",
        "code",
        "header",
        "hint",
        "log_append_time_ms",
        "log_start_offset",
        "offset",
        "raw",
        "record",
        "refusal",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: UUID, record: PartitionRecord, raw: Any) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.record = record
        self.raw: bytes | None = raw
        self.header: BatchHeader | None = None if raw is None else read_header(raw)
        self.code: int | None = WAITING
        self.admitted = False  # its transaction's coordinator was asked
        self.offset = -1
        self.log_append_time_ms = -1
        self.log_start_offset = -1
        self.refusal: Refusal | None = None
        self.hint: tuple[int, int] | None = None
        if self.header is not None:
            record.producer_id = self.header.producer_id
            record.producer_epoch = self.header.producer_epoch
            record.base_sequence = self.header.base_sequence
            record.count = self.header.record_count

    def settle(self, code: int, offset: int = -1) -> None:
        """The partition's result."""
        self.code = self.record.error_code = code
        self.offset = self.record.base_offset = offset

    def refuse(self, refusal: Refusal) -> None:
        """Nothing is appended, and why."""
        self.refusal = refusal
        self.settle(refusal.code)


class PendingProduce:
    """A Produce request that waits for the high watermark of some of its partitions."""

    __slots__ = ("_cluster", "_exchange", "parts", "timer", "waiting")

    def __init__(self, cluster: MockCluster, exchange: Exchange, parts: list[Part]) -> None:
        self._cluster = cluster
        self._exchange = exchange
        self.parts = parts
        self.waiting = 0
        self.timer: Timer | None = None

    def wait(self, part: Part, replica: Replica, batch: StoredBatch, success: int) -> None:
        """This part is answered when the high watermark has passed its batch."""
        self.waiting += 1
        part.offset = part.record.base_offset = batch.base_offset

        def done(code: int, now: float) -> None:
            if part.code is not WAITING:
                return
            if code == 0:
                code = success
                if len(replica.state.isr) < replica.min_isr:
                    code = NOT_ENOUGH_REPLICAS_AFTER_APPEND  # only where the setting allows
            part.settle(code, batch.base_offset)
            self.waiting -= 1
            if self.waiting == 0:
                self._answer(now)

        replica.wait_for(batch.next_offset, done)

    def time_out(self, now: float) -> None:
        """`timeout_ms` is over: what still waits is appended, not known to be safe."""
        for part in self.parts:
            if part.code is WAITING:
                part.settle(REQUEST_TIMED_OUT, part.offset)
        self._answer(now)

    def _answer(self, now: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        node = self._exchange.connection.node
        self._cluster.answer(self._exchange, self.response(node), now)

    def response(self, node: Node) -> ApiMessage:
        """The answer, with leader hints as this node knows them now."""
        version = self._exchange.version
        topics: dict[object, Any] = {}
        endpoints: dict[int, Any] = {}
        for part in self.parts:
            key = part.topic_id if version >= TOPIC_ID_VERSION else part.topic
            if key not in topics:
                topics[key] = ProduceResponse.TopicProduceResponse(
                    name=part.topic, topic_id=part.topic_id, partition_responses=[]
                )
            topics[key].partition_responses.append(self._part_response(part, node, endpoints))
        if endpoints:
            return ProduceResponse(
                responses=list(topics.values()),
                throttle_time_ms=0,
                node_endpoints=[endpoints[node_id] for node_id in sorted(endpoints)],
            )
        return ProduceResponse(responses=list(topics.values()), throttle_time_ms=0)

    def _part_response(self, part: Part, node: Node, endpoints: dict[int, Any]) -> Any:
        refusal = part.refusal
        errors = refusal.record_errors if refusal else ()
        kind = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
        fields: dict[str, Any] = {
            "index": part.record.partition,
            "error_code": part.code,
            "base_offset": part.offset,
            "log_append_time_ms": part.log_append_time_ms,
            "log_start_offset": part.log_start_offset,
            "record_errors": [
                kind.BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=text)
                for i, text in errors
            ],
            "error_message": refusal.message if refusal else None,
        }
        hint = part.hint
        if part.code == NOT_LEADER_OR_FOLLOWER and hint is None and refusal is None:
            hint = _hint(part, node)
        if hint is not None:  # versions before 10 have no field for it
            leader, epoch = hint
            fields["current_leader"] = kind.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
            if leader in node.view.brokers:
                host, port = self._cluster.addresses[leader]
                endpoints[leader] = ProduceResponse.NodeEndpoint(
                    node_id=leader, host=host, port=port, rack=None
                )
        return kind(**fields)


def _hint(part: Part, node: Node) -> tuple[int, int] | None:
    """Who leads: as the node's replica knows it, else its metadata; nothing while a new topic is
    taken up (A39).
    """
    replica = node.replicas.get((part.topic, part.record.partition))
    if replica is not None and replica.not_ready:
        return None
    state = replica.state if replica else node.view.state(part.topic, part.record.partition)
    return None if state is None else (state.leader, state.epoch)
