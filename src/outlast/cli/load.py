"""A steady load on some partitions: numbered records, and what was said about each.

One thread sends; acknowledgements come on the producer's I/O thread. Rule: each fact has one
writer, and others only read it: counts may be a moment old, never wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from kafka.errors import KafkaError

from outlast.cli.verify import encode

STEP_S = 0.01
ACKED_STEP_S = 0.5


class Load:
    """Sends `rate` records per second to each partition between `start` and `stop`.

    Args:
        send: a producer's `send`.
        rate: records per second and partition.
    """

    def __init__(self, send: Callable[..., Any], topic: str, partitions: int, rate: float) -> None:
        self._send = send
        self.rate = rate
        self._topic = topic
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._stopping = threading.Event()
        self.sent = [0] * partitions
        self.acknowledged: dict[int, dict[int, int]] = {p: {} for p in range(partitions)}
        self.failures: list[BaseException] = []
        self.last_ack_s = [0.0] * partitions
        self.begun_s = 0.0
        self.acked: list[int] = []  # acknowledged in each ACKED_STEP_S since `begun_s`

    def __repr__(self) -> str:
        return f"<Load sent={sum(self.sent)} failed={len(self.failures)}>"

    def start(self) -> None:
        """Begin to send."""
        self.begun_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End sending; what was sent may still be on its way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(STEP_S):
            due = int((time.monotonic() - self.begun_s) * self.rate)
            for partition, sent in enumerate(self.sent):
                for number in range(sent, due):
                    self._send_one(partition, number)

    def _send_one(self, partition: int, number: int) -> None:
        self.sent[partition] = number + 1
        try:
            future = self._send(self._topic, value=encode(number), partition=partition)
        except KafkaError as error:
            self.failures.append(error)
            return
        future.add_callback(self._acknowledged, partition, number)
        future.add_errback(self.failures.append)

    def _acknowledged(self, partition: int, number: int, metadata: Any) -> None:
        self.acknowledged[partition][number] = metadata.offset
        now = self.last_ack_s[partition] = time.monotonic()
        step = int((now - self.begun_s) / ACKED_STEP_S)
        self.acked += [0] * (step + 1 - len(self.acked))
        self.acked[step] += 1
