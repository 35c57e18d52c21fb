"""Produce 3–13 (0–2 are listed and closed, as Kafka 4 does): the heart of the judge.

The order of checks is a real broker's: what spoils the whole request (2, −1, 53) → topic,
partition, id (3, 100) → format (87, 2, 76) → acks (21) → leader (6) → enough in-sync replicas for
acks=all (19, before the duplicate check: S5) → size, CRC, records (87, 10, 2, 32, −1) → epoch (47)
→ duplicate (0) → sequence (45) → append → wait (0, 7, 6, 3).

Waiting: acks=all is answered when the high watermark passes the batch, a repeat of an earlier one
included (B4). Otherwise 7 at the request's own `timeout_ms`, 6 when leadership is lost, 3 when the
topic goes; all with the real base_offset, as the batch was appended (S2). 6 without an offset
means: not in this log. One answer for all partitions of the request (C19).

Also here: the same partition twice, only the last is appended (S14); null records are never
answered (S13); an acks=0 error closes the connection (S18); leader hints from version 10, from
the node's own view (KIP-951).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from outlast.testing.apis import (
    DEFERRED,
    HANDLERS,
    NO_ANSWER,
    NO_ID,
    PRODUCE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    Handler,
    Later,
)
from outlast.testing.batches import (
    BatchHeader,
    Refusal,
    StoredBatch,
    check_batch,
    check_format,
    read_header,
    refuse_request,
)
from outlast.testing.cluster_settings import draw
from outlast.testing.faults import Error, ErrorAfter, ForgetProducer, strike
from outlast.testing.replica import Replica
from outlast.testing.replication import wake_followers
from outlast.testing.request_log import PartitionRecord

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node
    from outlast.testing.timeline import Timer

NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
NOT_ENOUGH_REPLICAS = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
INVALID_REQUIRED_ACKS = 21
DUPLICATE_SEQUENCE_NUMBER = 46

TOPIC_ID_VERSION = 13
WAITING = None


class Part:
    """One partition of a Produce request, from receipt to answer."""

    __slots__ = (
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


def receive_produce(cluster: MockCluster, exchange: Exchange) -> None:
    """Read headers on receipt, so that the request log knows also what is never served."""
    parts: list[Part] = []
    for entry in exchange.request.topic_data:
        topic_id = entry.topic_id or NO_ID
        name = entry.name or cluster.topic_name(topic_id)
        for data in entry.partition_data:
            record = PartitionRecord(name, data.index)
            exchange.record.partitions.append(record)
            parts.append(Part(name, topic_id, record, data.records))
    exchange.produce = parts


def serve_produce(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage | Later:
    """Append what may be appended; answer now, later, or never."""
    parts: list[Part] = exchange.produce
    acks = exchange.request.acks
    pending = PendingProduce(cluster, exchange, _last_of_each(parts, exchange.version))
    refusal = _refusal_of_all(parts, exchange.request.transactional_id)
    if refusal is None and any(part.raw is None for part in parts):
        exchange.connection.stuck = True
        return NO_ANSWER
    for part in pending.parts:
        if refusal is not None:
            part.refuse(refusal)
        else:
            _produce(cluster, node, exchange, part, pending, now)
    if acks == 0:
        if any(part.code for part in pending.parts):
            cluster.hang_up(exchange.connection)
        return NO_ANSWER
    if pending.waiting == 0:
        return pending.response(node)
    timeout_s = max(exchange.request.timeout_ms, 0) / 1000
    slack_s = draw(cluster.settings.timeout_slack_s, cluster.rng)
    pending.timer = node.at(now + timeout_s + slack_s, pending.time_out)
    return DEFERRED


def _refusal_of_all(parts: list[Part], transactional_id: str | None) -> Refusal | None:
    """Why nothing of the request is even looked at."""
    for part in parts:
        if part.raw is not None:
            refusal = refuse_request(part.raw, transactional_id)
            if refusal is not None:
                return refusal
    return None


def _last_of_each(parts: list[Part], version: int) -> list[Part]:
    if len(parts) == 1:
        return parts
    last: dict[tuple[object, int], Part] = {}
    for part in parts:
        topic = part.topic_id if version >= TOPIC_ID_VERSION else part.topic
        last[(topic, part.record.partition)] = part
    return list(last.values())


def _produce(
    cluster: MockCluster,
    node: Node,
    exchange: Exchange,
    part: Part,
    pending: PendingProduce,
    now: float,
) -> None:
    acks = exchange.request.acks
    if not (_is_known(node, exchange, part) and _is_well_formed(part, exchange.version)):
        return
    if acks not in (-1, 0, 1):
        part.settle(INVALID_REQUIRED_ACKS)
        return
    replica = _find_leader(cluster, node, exchange, part, now)
    if replica is None:
        return
    if acks == -1 and len(replica.state.isr) < replica.min_isr:
        part.settle(NOT_ENOUGH_REPLICAS)
        return
    batch = _append(cluster, node, part, replica, now)
    if batch is None:
        return
    part.log_append_time_ms = batch.log_append_time_ms
    part.log_start_offset = replica.log_start_offset
    done = 0 if part.record.appended or not cluster.settings.duplicate_error else 46
    after = _strike(cluster, ErrorAfter, node, exchange, part, now)
    if after is not None:
        part.settle(after.code, batch.base_offset)
    elif acks != -1 or replica.high_watermark >= batch.next_offset:
        part.settle(done, batch.base_offset)
    else:
        pending.wait(part, replica, batch, done)


def _is_known(node: Node, exchange: Exchange, part: Part) -> bool:
    """Does this node know the partition? Otherwise the part is settled."""
    by_id = exchange.version >= TOPIC_ID_VERSION
    if by_id:
        part.topic = node.view.names.get(part.topic_id, "")
    known = node.view.topics.get(part.topic)
    if known is not None and part.record.partition in known[1]:
        return True
    unknown_id = by_id and not part.topic
    part.settle(UNKNOWN_TOPIC_ID if unknown_id else UNKNOWN_TOPIC_OR_PARTITION)
    return False


def _is_well_formed(part: Part, version: int) -> bool:
    """Is there one batch, and no more? Otherwise the part is settled."""
    assert part.raw is not None
    end = check_format(part.raw, version)
    if isinstance(end, Refusal):
        part.refuse(end)
        return False
    if end < len(part.raw):
        part.raw = part.raw[:end]
    return True


def _find_leader(
    cluster: MockCluster, node: Node, exchange: Exchange, part: Part, now: float
) -> Replica | None:
    """The replica to append to, if this node leads; otherwise the part is settled."""
    index = part.record.partition
    topic_id = node.view.topics[part.topic][0].topic_id
    replica = node.replicas.get((part.topic, index))
    if replica is None or not replica.leading or replica.topic_id != topic_id:
        part.settle(NOT_LEADER_OR_FOLLOWER)
        return None
    fault = _strike(cluster, Error, node, exchange, part, now)
    if fault is not None:
        part.settle(fault.code)
        part.hint = fault.hint
        part.refusal = Refusal(fault.code, fault.message)
        return None
    if _strike(cluster, ForgetProducer, node, exchange, part, now) is not None:
        replica.producers.clear()
    return replica


def _append(
    cluster: MockCluster,
    node: Node,
    part: Part,
    replica: Replica,
    now: float,
) -> StoredBatch | None:
    """The batch in the log, new or known; None if the part is settled with an error."""
    settings, raw, header = cluster.settings, part.raw, part.header
    assert raw is not None
    rules = node.view.topics[part.topic][0].rules
    place = f"{part.topic}-{part.record.partition}"
    refusal = check_batch(raw, header, rules, settings, now, place)
    if refusal is not None:
        part.refuse(refusal)
        return None
    assert header is not None
    if header.producer_id >= 0:
        known = replica.check_sequence(
            header, now, settings.producer_expiry_s, settings.first_seq_rule
        )
        if isinstance(known, StoredBatch):
            return known
        if known is not None:
            part.settle(known)
            return None
    append_time_ms = cluster.unix_ms(now) if rules.log_append_time else -1
    batch = StoredBatch(
        raw,
        header,
        replica.log_end_offset,
        replica.state.epoch,
        node.node_id,
        now,
        append_time_ms,
    )
    replica.append(batch)
    part.record.appended = True
    replica.advance(now)
    wake_followers(cluster, replica, now)
    return batch


def _strike(
    cluster: MockCluster, kind: type[Any], node: Node, exchange: Exchange, part: Part, now: float
) -> Any:
    if not cluster.faults or exchange.fate is not None:
        return None
    return strike(
        cluster.faults,
        kind,
        node.node_id,
        now,
        api=PRODUCE,
        connection=exchange.connection.name,
        partitions=[(part.topic, part.record.partition)],
    )


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


HANDLERS[PRODUCE] = Handler(
    ProduceRequest, (3, 13), serve_produce, listed=(0, 13), receive=receive_produce
)
