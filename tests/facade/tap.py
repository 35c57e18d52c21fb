"""A client that is lent to a producer and notes every request that goes over its transports."""

from __future__ import annotations

import struct
import threading
import time
from dataclasses import dataclass
from typing import Any

from kafka.net.compat import KafkaNetClient
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

DECODED = {kind.API_KEY: kind for kind in (ProduceRequest, MetadataRequest, InitProducerIdRequest)}


@dataclass(frozen=True)
class Tapped:
    """One request on the wire."""

    at_s: float
    node_id: int
    api_key: int
    version: int
    client_id: str
    request: Any  # decoded, of the kinds in DECODED


class Tap:
    """Give it as `kafka_client`."""

    def __init__(self) -> None:
        self._requests: list[Tapped] = []
        self._lock = threading.Lock()

    def __call__(self, **keywords: Any) -> KafkaNetClient:
        client = KafkaNetClient(**keywords)
        usual = client._manager._build_transport

        async def build(node: Any, timeout_at: float | None = None) -> Any:
            transport = await usual(node, timeout_at=timeout_at)
            write = transport.write

            def tapped(data: bytes) -> None:
                self._note(node.node_id, bytes(data))
                write(data)

            transport.write = tapped
            return transport

        client._manager._build_transport = build
        return client

    def requests(self, kind: Any = None) -> list[Tapped]:
        """All so far, or those of one kind."""
        with self._lock:
            return [r for r in self._requests if kind is None or r.api_key == kind.API_KEY]

    def _note(self, node_id: int, data: bytes) -> None:
        while data:
            (size,) = struct.unpack(">i", data[:4])
            frame, data = data[4 : 4 + size], data[4 + size :]
            api_key, version, _, length = struct.unpack(">hhih", frame[:10])
            client_id = frame[10 : 10 + length].decode()
            kind = DECODED.get(api_key)
            request = kind.decode(frame, version=version, header=True) if kind else None
            with self._lock:
                self._requests.append(
                    Tapped(time.monotonic(), node_id, api_key, version, client_id, request)
                )
