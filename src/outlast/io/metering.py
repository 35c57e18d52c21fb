"""Counts what goes over connections, where the bytes are made and read: at their parsers.

A metered parser stands between a connection and its `kafka.protocol` parser, and tells a meter of
each request, answer and read. Of a request, not of its records: the meter may look at those.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

METERING = "metering"  # beside kafka-python's keywords: the producer's `Metering`, or None


class Meter(Protocol):
    """Hears what goes over the connections to one broker, on the I/O thread."""

    def sent(self, request: Any, size_bytes: int) -> None:
        """A request was written."""

    def read(self, size_bytes: int) -> None:
        """Bytes came."""

    def answered(self, latency_s: float, throttle_ms: int) -> None:
        """A request was answered."""


class Metering(Protocol):
    """The meters of one producer, and who is metered."""

    def meter(self, node_id: int, parser: MeteredParser) -> Meter:
        """The meter for a new connection to this node."""


class MeteredParser:
    """A connection's parser with a meter before it."""

    __slots__ = ("__weakref__", "_made", "_meter", "_parser", "_sent_s")

    def __init__(self, parser: Any, node_id: int, metering: Metering) -> None:
        self._parser = parser
        self._made: list[Any] = []  # requests whose bytes are not written yet
        self._sent_s: list[float] = []  # of requests without an answer
        self._meter = metering.meter(node_id, self)

    def __repr__(self) -> str:
        return f"<MeteredParser in_flight={len(self._sent_s)}>"

    @property
    def in_flight(self) -> int:
        """Requests that wait for an answer."""
        return len(self._sent_s)

    def send_request(self, request: Any) -> int:
        """As `KafkaProtocol.send_request`."""
        correlation_id: int = self._parser.send_request(request)
        self._made.append(request)
        if request.expect_response():
            self._sent_s.append(time.monotonic())
        return correlation_id

    def send_bytes(self) -> bytes:
        """As `KafkaProtocol.send_bytes`."""
        data: bytes = self._parser.send_bytes()
        if self._made:
            size_bytes = len(data) // len(self._made)  # one, as a rule
            for request in self._made:
                self._meter.sent(request, size_bytes)
            self._made.clear()
        return data

    def receive_bytes(self, data: bytes) -> list[tuple[int, Any]]:
        """As `KafkaProtocol.receive_bytes`."""
        self._meter.read(len(data))
        answers: list[tuple[int, Any]] = self._parser.receive_bytes(data)
        now_s = time.monotonic()
        for _, answer in answers:
            if self._sent_s:
                throttle_ms = getattr(answer, "throttle_time_ms", 0) or 0
                self._meter.answered(now_s - self._sent_s.pop(0), throttle_ms)
        return answers


def metered(parser: Any, node_id: int, metering: Metering | None) -> Any:
    """The parser with a meter before it, if anybody counts."""
    return parser if metering is None else MeteredParser(parser, node_id, metering)
