"""A tiny broker on real sockets: one thread per server and one per connection.

It is no cluster: a test says with `serve`, a function of one connection, what the broker does.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse
from kafka.protocol.producer import ProduceResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

PRODUCE, METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 0, 3, 17, 18, 36
RANGES = {PRODUCE: (0, 11), METADATA: (0, 12), SASL_HANDSHAKE: (0, 1), API_VERSIONS: (0, 4)} | {
    SASL_AUTHENTICATE: (0, 2),
    22: (0, 5),
}


class Stream:
    """The broker's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def request(self) -> tuple[int, int, int, bytes] | None:
        """Key, version, correlation id and body of the next request; None at the end."""
        size = self._exactly(4)
        body = self._exactly(struct.unpack(">i", size)[0]) if size else None
        if body is None:
            return None
        key, version, correlation_id = struct.unpack(">hhi", body[:8])
        return key, version, correlation_id, body

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                chunk = self.sock.recv(count - len(data))
            except OSError:
                return None
            if not chunk:
                return None
            data += chunk
        return data

    def answer(self, correlation_id: int, body: bytes) -> None:
        self.sock.sendall(frame(correlation_id, body))

    def set_up(self, ranges: dict[int, tuple[int, int]] | None = None) -> None:
        """Answer the ApiVersions request that comes first."""
        request = self.request()
        if request is not None:
            assert request[0] == API_VERSIONS
            self.answer(request[2], api_versions(request[1], ranges or RANGES))

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def api_versions(version: int, ranges: dict[int, tuple[int, int]]) -> bytes:
    key = ApiVersionsResponse.ApiVersion
    keys = [key(api_key=k, min_version=a, max_version=b) for k, (a, b) in ranges.items()]
    response = ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0)
    return bytes(response.encode(version=version))


def metadata(version: int, topics: int = 3) -> bytes:
    """A whole metadata answer, header tags included."""
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9092, rack=None)
    topic = MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition
    response = MetadataResponse(
        throttle_time_ms=0,
        brokers=[broker],
        cluster_id="c",
        controller_id=1,
        topics=[
            topic(
                error_code=0,
                name=f"t{n}",
                is_internal=False,
                partitions=[
                    partition(
                        error_code=0,
                        partition_index=0,
                        leader_id=1,
                        leader_epoch=0,
                        replica_nodes=[1],
                        isr_nodes=[1],
                        offline_replicas=[],
                    )
                ],
            )
            for n in range(topics)
        ],
    )
    return (b"\0" if version >= 9 else b"") + bytes(response.encode(version=version))


def produced(version: int) -> bytes:
    response = ProduceResponse(responses=[], throttle_time_ms=0)
    return (b"\0" if version >= 9 else b"") + bytes(response.encode(version=version))


def sasl_handshake(version: int, *mechanisms: str) -> bytes:
    response = SaslHandshakeResponse(error_code=0, mechanisms=list(mechanisms))
    return bytes(response.encode(version=version))


def sasl_authenticate(version: int, error: int = 0, lifetime_ms: int = 0) -> bytes:
    response = SaslAuthenticateResponse(
        error_code=error, error_message="no" if error else None, auth_bytes=b"",
        session_lifetime_ms=lifetime_ms,
    )  # fmt: skip
    return (b"\0" if version >= 2 else b"") + bytes(response.encode(version=version))


def answer_all(stream: Stream) -> None:
    """A broker that answers what it knows, at once."""
    stream.set_up()
    while (request := stream.request()) is not None:
        key, version, correlation_id, _ = request
        stream.answer(correlation_id, (produced if key == PRODUCE else metadata)(version))


def hold(stream: Stream) -> None:
    """A peer that accepts and then says nothing."""
    while stream.request() is not None:
        pass


@contextlib.contextmanager
def broker(
    serve: Callable[[Stream], Any],
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[Server]:
    """A listening server for the time of a `with`."""
    server = Server(serve, tls, host, port)
    try:
        yield server
    finally:
        server.close()


class Server:
    def __init__(
        self, serve: Callable[[Stream], Any], tls: ssl.SSLContext | None, host: str, port: int
    ) -> None:
        self.serve = serve
        self.tls = tls
        self.accepted: list[socket.socket] = []
        self.errors: list[BaseException] = []
        self.listener = socket.create_server((host, port))
        self.host, self.port = self.listener.getsockname()[:2]
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.accepted.append(sock)
            self.threads.append(threading.Thread(target=self._serve, args=(sock,), daemon=True))
            self.threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
                self.accepted.append(sock)
            self.serve(Stream(sock))
        except OSError:
            pass  # the client left
        except BaseException as error:
            self.errors.append(error)
        finally:
            sock.close()

    def close(self) -> None:
        for sock in (self.listener, *self.accepted):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self.threads:
            thread.join(5)
        assert not self.errors, self.errors


def until(condition: Callable[[], Any], timeout_s: float = 5.0) -> Any:
    """The first true value of a condition that another thread brings about."""
    end_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.002)
    return value
