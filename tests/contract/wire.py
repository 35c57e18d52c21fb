"""A Kafka client of a few lines: raw requests on one socket, answers in order, times noted.

`Wire` knows nothing of leaders, retries or errors; what a broker says is what a test gets.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

PATIENCE_S = 30.0  # for an answer, where a test asks for no other bound

_RESPONSES = {
    ProduceRequest: ProduceResponse,
    FetchRequest: FetchResponse,
    MetadataRequest: MetadataResponse,
    ApiVersionsRequest: ApiVersionsResponse,
    CreateTopicsRequest: CreateTopicsResponse,
    DeleteTopicsRequest: DeleteTopicsResponse,
    InitProducerIdRequest: InitProducerIdResponse,
    FindCoordinatorRequest: FindCoordinatorResponse,
    AddPartitionsToTxnRequest: AddPartitionsToTxnResponse,
    AddOffsetsToTxnRequest: AddOffsetsToTxnResponse,
    EndTxnRequest: EndTxnResponse,
    TxnOffsetCommitRequest: TxnOffsetCommitResponse,
    OffsetFetchRequest: OffsetFetchResponse,
}


@dataclass(slots=True)
class Call:
    """A request on a wire, and its answer once it was read."""

    wire: Wire
    correlation_id: int
    response_class: Any
    version: int
    sent_s: float
    response: Any = None
    answered_s: float | None = None

    @property
    def took_s(self) -> float:
        assert self.answered_s is not None, "not answered"
        return self.answered_s - self.sent_s

    def answer(self, timeout_s: float = PATIENCE_S) -> Any:
        """The response; reads the wire until it is there. Raises OSError."""
        self.wire.read_until(self, timeout_s)
        return self.response

    def part(self, topic: str = "", partition: int = -1) -> Any:
        """A Produce answer's entry for a partition; without a name the only one there is."""
        entries = [(t.name, p) for t in self.answer().responses for p in t.partition_responses]
        if topic:
            entries = [e for e in entries if e[0] == topic and e[1].index == partition]
        assert len(entries) == 1, f"{len(entries)} entries: {self.response}"
        return entries[0][1]

    def told(self, topic: str = "", partition: int = -1) -> str:
        """Error code and offset of the one partition, as the table writes them."""
        part = self.part(topic, partition)
        return f"{part.error_code}" + (f" at {part.base_offset}" if part.base_offset >= 0 else "")


class Wire:
    """One connection. Every wait has a deadline and ends with TimeoutError."""

    def __init__(self, address: tuple[str, int], client_id: str = "contract") -> None:
        self._socket = socket.create_connection(address, 5.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._numbers = iter(range(1, 1 << 31))
        self._calls: deque[Call] = deque()

    def close(self) -> None:
        self._socket.close()

    def send(self, request: Any, version: int) -> Call:
        """Send a request and do not wait. Raises OSError."""
        number = next(self._numbers)
        request.API_VERSION = version
        request.with_header(correlation_id=number, client_id=self._client_id)
        frame = bytes(request.encode(header=True))
        response_class = _RESPONSES[type(request)]
        call = Call(self, number, response_class, version, time.monotonic())
        self._calls.append(call)
        self.send_bytes(struct.pack(">i", len(frame)) + frame)
        return call

    def send_bytes(self, data: bytes) -> None:
        """Anything at all."""
        self._socket.sendall(data)

    def read(self, size: int, timeout_s: float = PATIENCE_S) -> bytes:
        """Whatever comes, so many bytes of it."""
        return self._read(size, time.monotonic() + timeout_s)

    def expect_none(self, call: Call) -> None:
        """There is no answer to this call (acks=0)."""
        self._calls.remove(call)

    def read_until(self, call: Call, timeout_s: float) -> None:
        """Read answers until this call has one."""
        end_s = time.monotonic() + timeout_s
        while call.response is None:
            (size,) = struct.unpack(">i", self._read(4, end_s))
            frame = self._read(size, end_s)
            oldest = self._calls.popleft()
            number = int.from_bytes(frame[:4], "big")
            assert number == oldest.correlation_id, "answers come in the order of their requests"
            version = oldest.version
            if oldest.response_class is ApiVersionsResponse and frame[4:6] == b"\x00\x23":
                version = 0  # 35 comes in the oldest layout
            oldest.response = oldest.response_class.decode(frame, version=version, header=True)
            oldest.answered_s = time.monotonic()

    def is_silent(self, seconds: float) -> bool:
        """Does nothing at all arrive for so long?"""
        return not select.select([self._socket], [], [], seconds)[0]

    def ended_within(self, timeout_s: float) -> str:
        """How the broker ended the connection: 'closed' or 'reset', or 'open' if it did not.
        Answers that come before are dropped.
        """
        end_s = time.monotonic() + timeout_s
        try:
            while self._read(1, end_s):
                pass
        except TimeoutError:
            return "open"
        except EOFError:
            return "closed"
        except OSError:
            return "reset"
        raise AssertionError

    def _read(self, size: int, end_s: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._socket.settimeout(max(0.001, end_s - time.monotonic()))
            part = self._socket.recv(size - len(parts))
            if not part:
                raise EOFError("closed by the broker")
            parts += part
        return bytes(parts)


def batch(
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    count: int = 1,
    *,
    value: bytes | None = b"value",
    key: bytes | None = b"key",
    timestamp_ms: int | None = None,
    codec: int = 0,
    transactional: bool = False,
) -> bytes:
    """A record batch; record i has `value` and its number."""
    builder = MemoryRecordsBuilder(2, codec, 1 << 24)
    builder.set_producer_state(producer_id, epoch, sequence, transactional)
    at_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    for index in range(count):
        builder.append(at_ms, key, None if value is None else b"%s-%d" % (value, index))
    builder.close()
    return bytes(builder.buffer())


def produce(
    data: list[tuple[str, int, bytes | None]],
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
    topic_ids: Any = None,
    transactional_id: str | None = None,
) -> Any:
    """A Produce request of one topic entry for each (topic, partition, batch)."""
    entry = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            entry(
                name=topic,
                topic_id=(topic_ids or {}).get(topic),
                partition_data=[entry.PartitionProduceData(index=index, records=raw)],
            )
            for topic, index, raw in data
        ],
    )


def metadata(*names: str, topic_id: Any = None) -> Any:
    """A Metadata request for these topics; without one, for all."""
    topic = MetadataRequest.MetadataRequestTopic
    wanted = [topic(name=name) for name in names]
    if topic_id is not None:
        wanted = [topic(name=None, topic_id=topic_id)]
    return MetadataRequest(topics=wanted or None, allow_auto_topic_creation=False)


def init_producer_id(producer_id: int = -1, epoch: int = -1) -> Any:
    return InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout_ms=60_000,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def api_versions() -> Any:
    return ApiVersionsRequest(client_software_name="contract", client_software_version="1")


def fetch(topic: str, partition: int, offset: int = 0) -> Any:
    entry = FetchRequest.FetchTopic
    wanted = entry.FetchPartition(
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=1 << 24,
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 24,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[entry(topic=topic, partitions=[wanted])],
        forgotten_topics_data=[],
        rack_id="",
    )


def values(raw: bytes | None) -> list[bytes | None]:
    """The values of all records in what a Fetch gave."""
    records = MemoryRecords(raw or b"")
    found = []
    while records.has_next():
        found += [record.value for record in records.next_batch()]
    return found
