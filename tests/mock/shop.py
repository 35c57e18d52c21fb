"""A transactional producer on a bench, by hand, that asks again while it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.protocol.metadata import FindCoordinatorResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    TxnOffsetCommitResponse,
)
from kafka.record.memory_records import MemoryRecordsBuilder

from outlast.testing.coordinator_log import TRANSACTIONS, partition_of
from tests.mock.bench import RESPONSES, Bench, Sent

RESPONSES.update(
    {
        10: FindCoordinatorResponse,
        24: AddPartitionsToTxnResponse,
        25: AddOffsetsToTxnResponse,
        26: EndTxnResponse,
        28: TxnOffsetCommitResponse,
    }
)

ID = "shop"
BUSY = (14, 15, 16, 51)


class Shop:
    """The producer, and how its coordinator stands."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.producer_id = self.epoch = -1
        bench.cluster.create_internal_topics(bench.now)
        bench.run(0.2)

    # --- where ---

    @property
    def index(self) -> int:
        return partition_of(ID, len(self.bench.cluster.topics[TRANSACTIONS].partitions))

    @property
    def coordinator(self) -> int:
        return self.bench.cluster.leader(TRANSACTIONS, self.index)[0]

    # --- one request ---

    def ask(self, request: Any, version: int, node_id: int | None = None) -> Sent:
        node_id = self.coordinator if node_id is None else node_id
        return self.bench.send(self.bench.connect(node_id), request, version)

    def who(self) -> dict[str, Any]:
        return {
            "transactional_id": ID,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def init(self, *, known: bool = False, timeout_ms: int = 60_000) -> Sent:
        fields = self.who() if known else {"producer_id": -1, "producer_epoch": -1}
        fields |= {"transactional_id": ID, "transaction_timeout_ms": timeout_ms}
        return self.ask(InitProducerIdRequest(**fields), 4)

    def add(self, partition: int = 0, topic: str = "t") -> Sent:
        entry = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        known = {f"v3_and_below_{name}": value for name, value in self.who().items()}
        topics = [entry(name=topic, partitions=[partition])]
        return self.ask(AddPartitionsToTxnRequest(v3_and_below_topics=topics, **known), 3)

    def end(self, *, commit: bool, version: int = 3, node_id: int | None = None) -> Sent:
        return self.ask(EndTxnRequest(**self.who(), committed=commit), version, node_id)

    def produce(
        self, sequence: int, partition: int = 0, version: int = 11, topic: str = "t"
    ) -> Sent:
        builder = MemoryRecordsBuilder(2, 0, 1 << 16)
        builder.set_producer_state(self.producer_id, self.epoch, sequence, True)
        builder.append(1000, b"key", b"value-%d" % sequence)
        builder.close()
        leader = self.bench.cluster.leader(topic, partition)[0]
        return self.bench.produce_raw(
            self.bench.connect(leader),
            {(topic, partition): bytes(builder.buffer())},
            version=version,
            transactional_id=ID,
        )

    # --- until it is done ---

    def until(self, ask: Callable[[], Sent]) -> int:
        """Ask until the answer is none of those that ask to come again; its code."""
        for _ in range(200):
            sent = ask()
            self.bench.run_until(lambda sent=sent: sent.response is not None, 1.0)
            if sent.response is not None and (code := code_of(sent)) not in BUSY:
                return code
            self.bench.run(0.05)
        raise AssertionError("it is busy for ever")

    def begin(self, *partitions: int, **options: Any) -> None:
        def ask() -> Sent:
            sent = self.init(**options)
            self.bench.run(0.05)
            if sent.response is not None and sent.response.error_code == 0:
                self.producer_id = sent.response.producer_id
                self.epoch = sent.response.producer_epoch
            return sent

        assert self.until(ask) == 0
        for partition in partitions:
            assert self.until(lambda p=partition: self.add(p)) == 0

    def sent(self, sequence: int, partition: int = 0, version: int = 11) -> tuple[int, int]:
        sent = self.produce(sequence, partition, version)
        self.bench.until_answered(sent)
        return sent.result

    # --- what is in the log ---

    def markers(self, partition: int = 0) -> list[str]:
        """Markers of a partition with their epochs, less the producer's."""
        batches = self.bench.cluster.batches("t", partition)
        return [
            f"{'commit' if b.decoded()[0].key[3] else 'abort'} {b.producer_epoch - self.epoch}"
            for b in batches
            if b.control
        ]

    def stable(self, partition: int = 0) -> int:
        replica = self.bench.cluster.replica("t", partition)
        assert replica is not None
        return replica.last_stable_offset


def code_of(sent: Sent) -> int:
    response = sent.response
    if isinstance(response, AddPartitionsToTxnResponse):
        topic = response.results_by_topic_v3_and_below[0]
        return int(topic.results_by_partition[0].partition_error_code)
    if isinstance(response, TxnOffsetCommitResponse):
        return int(response.topics[0].partitions[0].error_code)
    return int(response.error_code)
