"""A raw client of the mock cluster, in virtual time: requests in, answers out, no sockets."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from kafka.record.memory_records import MemoryRecordsBuilder

from outlast.testing.cluster import Answer, Close, MockCluster

RESPONSES = {0: ProduceResponse, 3: MetadataResponse, 18: ApiVersionsResponse}
RESPONSES[22] = InitProducerIdResponse

QUIET = {"fetch_backoff_p": 0.0, "deny_p": 0.0, "creation_deny_p": 0.0, "role_lag_s": 0.0}
"""Settings without chance: no back-off of followers, no leader that denies or is not ready."""


@dataclass
class Sent:
    """A request, and its answer once there is one."""

    connection: Hashable
    api_key: int
    version: int
    sent_s: float
    response: Any = None
    answered_s: float | None = None

    @property
    def took_s(self) -> float:
        assert self.answered_s is not None, "not answered"
        return self.answered_s - self.sent_s

    @property
    def parts(self) -> dict[tuple[Any, int], Any]:
        """Produce: the partition answers, by topic name (or id) and partition."""
        assert self.response is not None, "not answered"
        by_id = self.version >= 13
        return {
            (topic.topic_id if by_id else topic.name, part.index): part
            for topic in self.response.responses
            for part in topic.partition_responses
        }

    @property
    def result(self) -> tuple[int, int]:
        """Produce of one partition: error code and base_offset."""
        (part,) = self.parts.values()
        return part.error_code, part.base_offset

    @property
    def hint(self) -> tuple[int, int] | None:
        """Produce of one partition: the leader and epoch the answer names."""
        (part,) = self.parts.values()
        leader = part.current_leader
        return None if leader is None else (leader.leader_id, leader.leader_epoch)


def make_batch(
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    count: int = 1,
    *,
    value: bytes = b"value",
    key: bytes | None = b"key",
    timestamp_ms: int = 1000,
    codec: int = 0,
) -> bytes:
    builder = MemoryRecordsBuilder(2, codec, 1 << 20)
    builder.set_producer_state(producer_id, epoch, sequence, False)
    for index in range(count):
        builder.append(timestamp_ms, key, b"%s-%d" % (value, index))
    builder.close()
    return bytes(builder.buffer())


class Bench:
    """A cluster, the time, and any number of raw connections to it."""

    def __init__(self, cluster: MockCluster) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.closed: dict[Hashable, tuple[float, bool]] = {}  # when, reset
        self.frames: list[bytes] = []
        self._pending: dict[int, Sent] = {}
        self._names = iter(range(1, 1 << 30))

    # --- time ---

    def run(self, seconds: float) -> None:
        """Let time pass, from one deadline to the next."""
        self.run_until(lambda: False, within_s=seconds)

    def run_until(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        """Let time pass until the condition holds; then, or at the end, stop."""
        end_s = self.now + within_s
        self._collect()
        while not condition():
            deadline = self.cluster.next_deadline(self.now)
            if deadline is None or deadline > end_s:
                self.now = end_s
                self.cluster.tick(self.now)
                self._collect()
                return
            self.now = deadline
            self.cluster.tick(self.now)
            self._collect()

    def until_answered(self, *sent: Sent, within_s: float = 60.0) -> None:
        self.run_until(lambda: all(s.response is not None for s in sent), within_s)
        assert all(s.response is not None for s in sent), f"no answer within {within_s} s"

    def _collect(self) -> None:
        for item in self.cluster.take():
            if isinstance(item, Close):
                self.closed[item.connection] = (self.now, item.reset)
            else:
                self._answered(item)

    def _answered(self, answer: Answer) -> None:
        self.frames.append(answer.frame)
        correlation_id = int.from_bytes(answer.frame[:4], "big")
        sent = self._pending.pop(correlation_id)
        kind = RESPONSES[sent.api_key]
        sent.response = kind.decode(answer.frame, version=sent.version, header=True)
        sent.answered_s = self.now

    # --- connections and requests ---

    def connect(self, node_id: int) -> Hashable:
        name = f"connection-{next(self._names)}"
        assert self.cluster.opened(node_id, name, self.now), f"node {node_id} refused"
        return name

    def send(self, connection: Hashable, request: Any, version: int) -> Sent:
        correlation_id = next(self._names)
        request.API_VERSION = version
        request.with_header(correlation_id, "bench")
        sent = Sent(connection, request.API_KEY, version, self.now)
        self._pending[correlation_id] = sent
        self.cluster.received(connection, bytes(request.encode(header=True)), self.now)
        self._collect()
        return sent

    def produce(
        self,
        connection: Hashable,
        sequence: int = -1,
        *,
        topic: str = "t",
        partition: int = 0,
        producer_id: int = 7,
        epoch: int = 0,
        count: int = 1,
        acks: int = -1,
        timeout_ms: int = 30_000,
        version: int = 12,
        **batch: Any,
    ) -> Sent:
        if sequence < 0:
            producer_id = epoch = -1
        raw = make_batch(producer_id, epoch, sequence, count, **batch)
        return self.produce_raw(
            connection,
            {(topic, partition): raw},
            acks=acks,
            timeout_ms=timeout_ms,
            version=version,
        )

    def produce_raw(
        self,
        connection: Hashable,
        data: dict[tuple[str, int], bytes | None] | list[tuple[tuple[str, int], bytes | None]],
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        version: int = 12,
        topic_id: Any = None,
        transactional_id: str | None = None,
    ) -> Sent:
        entry = ProduceRequest.TopicProduceData
        items = list(data.items()) if isinstance(data, dict) else data
        topics = [
            entry(
                name=topic,
                topic_id=topic_id or self.topic_id(topic),
                partition_data=[entry.PartitionProduceData(index=partition, records=raw)],
            )
            for (topic, partition), raw in items
        ]
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=topics,
        )
        return self.send(connection, request, version)

    def produced(self, connection: Hashable, sequence: int = -1, **options: Any) -> Sent:
        """Produce and wait for the answer."""
        sent = self.produce(connection, sequence, **options)
        self.until_answered(sent)
        return sent

    def metadata(self, connection: Hashable, *topics: str, version: int = 12) -> Any:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics] or None
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
        sent = self.send(connection, request, version)
        self.until_answered(sent)
        return sent.response

    def named_leader(self, node_id: int, topic: str = "t", partition: int = 0) -> tuple[int, int]:
        """Leader and epoch in the metadata of one node, asked on a connection of its own."""
        connection = self.connect(node_id)
        (answer,) = self.metadata(connection, topic).topics
        self.cluster.closed(connection, self.now)
        if answer.error_code:
            return -1, -1
        found = next(p for p in answer.partitions if p.partition_index == partition)
        return found.leader_id, found.leader_epoch

    def init_producer_id(self, connection: Hashable, version: int = 4, **fields: Any) -> Any:
        fields = {"producer_id": -1, "producer_epoch": -1, **fields}
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000, **fields
        )
        sent = self.send(connection, request, version)
        self.until_answered(sent)
        return sent.response

    def api_versions(self, connection: Hashable, version: int = 3) -> Any:
        request = ApiVersionsRequest(client_software_name="b", client_software_version="1")
        sent = self.send(connection, request, version)
        self.until_answered(sent)
        return sent.response

    def topic_id(self, topic: str) -> Any:
        known = self.cluster.topics.get(topic)
        return known.topic_id if known else None

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.cluster.records(topic, partition)]
