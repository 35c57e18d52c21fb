"""The two ends of a drill: who writes a record to each partition every tick, and who reads them.

Each is a thread and tells the ledger. The writer is `outlast.KafkaProducer`, the reader
kafka-python's consumer: another client, so that what it finds is no echo of the producer's belief.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from outlast import KafkaProducer
from outlast.cli.background import Background
from outlast.cli.drill_ledger import Ledger
from outlast.cli.drill_topic import MARK, Canary, told
from outlast.cli.verify import decode, encode

POLL_S = 0.1
CHECK_S = 0.3  # a refusal comes within
TROUBLE_PAUSE_S = 0.1


class Writer(Background):
    """Sends one record to each partition every tick, between `start` and `stop`. A tick that
    comes late is not made up for.
    """

    def __init__(
        self, producer: KafkaProducer, canary: Canary, drill_id: str, ledger: Ledger, tick_s: float
    ) -> None:
        super().__init__("drill-writer")
        self._producer = producer
        self._canary = canary
        self._id = drill_id.encode()
        self._ledger = ledger
        self._tick_s = tick_s

    def __repr__(self) -> str:
        return f"<Writer {self._canary.topic} every {self._tick_s} s>"

    def send(self, partition: int) -> Any:
        """Send one record, and have the ledger told of its fate; the future, or None."""
        number = self._ledger.send(partition, time.monotonic())
        try:
            future = self._producer.send(
                self._canary.topic,
                value=encode(number),
                key=self._id + f"-{number}".encode(),  # each its own: a compacted topic keeps all
                headers=[(MARK, self._id)],
                partition=partition,
            )
        except KafkaError as error:  # no room in the buffer
            self._ledger.fail(partition, number, type(error).__name__, time.monotonic())
            return None
        future.add_callback(partial(self._acked, partition, number))
        future.add_errback(partial(self._failed, partition, number))
        return future

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stopping.wait(max(0.0, due_s - time.monotonic())):
            for partition in self._canary.partitions:
                self.send(partition)
            due_s = max(due_s + self._tick_s, time.monotonic())

    def _acked(self, partition: int, number: int, metadata: Any) -> None:
        self._ledger.acked(partition, number, metadata.offset, time.monotonic())

    def _failed(self, partition: int, number: int, error: BaseException) -> None:
        self._ledger.fail(partition, number, type(error).__name__, time.monotonic())


class Reader(Background):
    """Reads what this drill writes, from where the topic ends now.

    Attributes:
        trouble: what keeps it from reading, in words; None while it reads.
    """

    def __init__(
        self, consumer: KafkaConsumer, canary: Canary, drill_id: str, ledger: Ledger
    ) -> None:
        super().__init__("drill-reader")
        self._consumer = consumer
        self._id = drill_id.encode()
        self._ledger = ledger
        self.trouble: str | None = None
        assigned = [TopicPartition(canary.topic, partition) for partition in canary.partitions]
        ends = {} if canary.made else consumer.end_offsets(assigned)
        consumer.assign(assigned)
        for tp in assigned:
            consumer.seek(tp, ends.get(tp, 0))

    def __repr__(self) -> str:
        return f"<Reader {self.trouble or 'reading'}>"

    def check(self) -> None:
        """Ask once, before anything is written.

        Raises:
            KafkaError: this user may not read.
        """
        self._tell(self._consumer.poll(timeout_ms=int(CHECK_S * 1000)))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._read()
            if self.trouble:
                self._stopping.wait(TROUBLE_PAUSE_S)

    def _read(self) -> None:
        try:
            self._tell(self._consumer.poll(timeout_ms=int(POLL_S * 1000)))
            self.trouble = None
        except KafkaError as error:
            self.trouble = told(error)

    def _tell(self, polled: dict[TopicPartition, Sequence[Any]]) -> None:
        now = time.monotonic()
        for tp, records in polled.items():
            for record in records:
                if (MARK, self._id) in record.headers:
                    self._ledger.read(tp.partition, decode(record.value), record.offset, now)
