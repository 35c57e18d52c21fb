"""How nodes read requests from connections and answer them.

Theory. Every connection is served one request at a time and in order: while one waits (acks=all,
a fault that slows) nothing behind it is read, not even Metadata (S8, C18). A handler gives back
its response, or `DEFERRED` and calls `answer` later, or `NO_ANSWER`. What cannot be read (garbage,
unknown API, version out of range) closes the connection without an answer, in its turn (C16).

A connection that ends with requests unread leaves them behind: they are taken late, one at a time
and in order, at seeded times up to `late_s` later, under all the usual rules (B16).

Rule: nothing here knows what a request means; that is `apis`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Hashable
from math import isfinite
from typing import TYPE_CHECKING, Any

from kafka.protocol.api_message import ApiMessage

from outlast.testing.apis import API_VERSIONS, DEFERRED, NO_ANSWER, unsupported_api_versions
from outlast.testing.connection import Answer, Close, Connection, Exchange
from outlast.testing.faults import (
    Blackhole,
    ConnectionLimit,
    CutAfter,
    CutBefore,
    Fate,
    Fault,
    Freeze,
    Garble,
    LoseRequest,
    LoseResponse,
    Slow,
    Throttle,
    choose_fate,
    strike,
)
from outlast.testing.request_log import RequestRecord

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.node import Node

HEADER = struct.Struct(">hhi")
CLIENT_ID_LENGTH = struct.Struct(">h")
LATE_SKEW = 4  # most requests left behind are taken soon, some at the very end


class Serving:
    """All connections of the cluster."""

    __slots__ = ("_cluster", "_frozen", "_ready", "_silent", "connections", "outbox")

    def __init__(self, cluster: MockCluster) -> None:
        self._cluster = cluster
        self._ready: deque[Connection] = deque()
        self._frozen: list[Connection] = []  # looked at again at every step
        self._silent: dict[Hashable, Node] = {}  # connections to killed nodes that nobody ended
        self.connections: dict[Hashable, Connection] = {}
        self.outbox: list[Answer | Close] = []

    # --- in ---

    def opened(self, node: Node, name: Hashable, now: float) -> None:
        """A client has connected."""
        if name in self.connections:
            raise ValueError(f"connection {name!r} is open already; name each connection once")
        if node.silent:
            self._silent[name] = node
            return
        connection = self.connections[name] = Connection(name, node)
        node.connections.append(connection)
        limits = [f for f in self._cluster.faults if type(f) is ConnectionLimit and not node.paused]
        for fault in limits:
            if fault.fits(node.node_id, now) and len(node.connections) > fault.limit:
                fault.used += 1
                self.hang_up(connection)
                return

    def received(self, name: Hashable, frame: bytes, now: float) -> None:
        """A whole request has come."""
        connection = self.connections.get(name)
        if connection is None:
            return  # closed meanwhile: the bytes go nowhere
        exchange = self._read(connection, frame, now)
        most_bytes = self._cluster.settings.socket_request_max_bytes
        if most_bytes is not None and len(frame) > most_bytes:
            self.hang_up(connection)
        elif self._strike(Blackhole, exchange, now) is None:
            connection.queue.append(exchange)
            self._ready.append(connection)

    def closed(self, name: Hashable, now: float) -> None:
        """The client, or the network, has ended the connection."""
        self._silent.pop(name, None)
        connection = self.connections.pop(name, None)
        if connection is not None:
            self._leave(connection, now)

    def _read(self, connection: Connection, frame: bytes, now: float) -> Exchange:
        cluster = self._cluster
        api_key, version, correlation_id = (
            HEADER.unpack_from(frame) if len(frame) >= 8 else (-1,) * 3
        )
        record = RequestRecord(now, connection.node.node_id, connection.name, api_key, version)
        cluster.log_request(record)
        exchange = Exchange(connection, record)
        exchange.correlation_id = correlation_id
        handler = cluster.handlers.get(api_key)
        versions = cluster.versions(api_key)
        if handler is None or versions is None:
            return exchange
        if not versions[0] <= version <= versions[1]:
            return exchange
        try:
            exchange.client_id, body = _split(frame, handler.request_class, version)
            exchange.request = handler.request_class.decode(body, version=version)
            if handler.receive is not None:
                handler.receive(cluster, exchange)
        except Exception:  # whatever the decoder makes of bytes that are no request (C16)
            exchange.request = None
            record.partitions.clear()
        return exchange

    # --- serving ---

    def drain(self, now: float) -> None:
        """Serve every connection that may have something to serve."""
        if self._frozen:
            self._ready.extend(self._frozen)
            self._frozen = []
        while self._ready:
            self._pump(self._ready.popleft(), now)

    def ready(self, connection: Connection) -> None:
        """Look at this connection before the present step ends."""
        self._ready.append(connection)

    def _pump(self, connection: Connection, now: float) -> None:
        node = connection.node
        while connection.queue and connection.busy is None and not connection.stuck:
            if not node.running or node.paused:
                return
            exchange = connection.queue[0]
            until_s = max(connection.deaf_until_s, exchange.not_before_s)
            frozen = self._strike(Freeze, exchange, now)
            if frozen is not None:
                until_s = max(until_s, frozen.until_s)
                self._frozen.append(connection)  # the fault may be taken out of the list
            if until_s > now:
                self._sleep(connection, until_s)
                return
            connection.queue.popleft()
            self._serve(exchange, now)

    def _sleep(self, connection: Connection, until_s: float) -> None:
        if connection.wake_up is not None:
            if connection.wake_up.at_s == until_s:
                return
            connection.wake_up.cancel()
        if isfinite(until_s):
            connection.wake_up = self._cluster.timeline.at(until_s, self._wake, connection)

    def _wake(self, connection: Connection, _now: float) -> None:
        connection.wake_up = None
        self._ready.append(connection)

    def _serve(self, exchange: Exchange, now: float) -> None:
        connection, record = exchange.connection, exchange.record
        record.served_at_s = now
        record.late = connection.ended
        if exchange.request is None:
            self._refuse(exchange, now)
            return
        fate = exchange.fate = self._choose_fate(exchange, now)
        if isinstance(fate, LoseRequest):
            connection.stuck = fate.blocks
            return
        if isinstance(fate, CutBefore):
            self.cut(connection, now)
            return
        connection.busy = exchange
        slow = self._strike(Slow, exchange, now)
        if slow is not None:
            exchange.hold_s = slow.delay_s
        handler = self._cluster.handlers[record.api_key]
        response = handler.serve(self._cluster, connection.node, exchange, now)
        if isinstance(fate, CutAfter):
            self.cut(connection, now)
        if response is NO_ANSWER:
            connection.busy = None
        elif response is not DEFERRED:
            self.answer(exchange, response, now)

    def _refuse(self, exchange: Exchange, now: float) -> None:
        record, served = exchange.record, self._cluster.versions(API_VERSIONS)
        if record.api_key == API_VERSIONS and served and record.version > served[1]:
            exchange.version = 0
            exchange.connection.busy = exchange
            self.answer(exchange, unsupported_api_versions(self._cluster), now)
        else:
            self.hang_up(exchange.connection)

    # --- out ---

    def answer(self, exchange: Exchange, response: ApiMessage, now: float) -> None:
        """Send a response, and go on with what is behind it. Ignored if the exchange is over."""
        connection = exchange.connection
        if connection.busy is not exchange:
            return
        if exchange.hold_s > 0:
            hold_s, exchange.hold_s = exchange.hold_s, 0.0
            connection.node.at(now + hold_s, self.answer, exchange, response)
            return
        connection.busy = None
        self._ready.append(connection)
        if isinstance(exchange.fate, LoseResponse):
            connection.stuck = exchange.fate.blocks
            return
        if connection.ended or self._strike(Blackhole, exchange, now) is not None:
            return
        throttle = self._strike(Throttle, exchange, now)
        if throttle is not None:
            response.throttle_time_ms = round(throttle.throttle_s * 1000)
            connection.deaf_until_s = now + throttle.throttle_s
        frame = _encode(response, exchange)
        garble = self._strike(Garble, exchange, now)
        self.outbox.append(Answer(connection.name, garble.spoil(frame) if garble else frame))
        exchange.record.answered_at_s = now

    def unanswered(self, exchange: Exchange) -> None:
        """An exchange is over without a response."""
        connection = exchange.connection
        if connection.busy is exchange:
            connection.busy = None
            self._ready.append(connection)

    def cut(self, connection: Connection, now: float) -> None:
        """The network resets a connection; what is unread at the node is taken late."""
        if self.connections.pop(connection.name, None) is not None:
            self.outbox.append(Close(connection.name, reset=True))
            self._leave(connection, now)

    def hang_up(self, connection: Connection, *, reset: bool = False) -> None:
        """The node itself closes a connection; what is unread is gone."""
        connection.queue.clear()
        connection.busy = None
        connection.stuck = True
        if connection.ended:
            return
        connection.ended = True
        if self.connections.pop(connection.name, None) is not None:
            connection.node.connections.remove(connection)
            self.outbox.append(Close(connection.name, reset=reset))

    def hang_up_all(self, node: Node, *, crashed: bool) -> None:
        """The node ends. A crash resets where requests are unread, as a kernel does (A24)."""
        for connection in list(node.connections):
            unread = bool(connection.queue or connection.busy)
            self.hang_up(connection, reset=crashed and unread)
        for connection in node.left_connections:
            connection.queue.clear()
            connection.busy = None
            connection.stuck = True

    def fall_silent(self, node: Node) -> None:
        """The node ends, and nobody tells its clients; its requests are gone."""
        node.silent = True
        for connection in (*node.connections, *node.left_connections):
            connection.queue.clear()
            connection.busy = None
            connection.stuck = True
        for connection in node.connections:
            connection.ended = True
            del self.connections[connection.name]
            self._silent[connection.name] = node
        node.connections.clear()

    def end_silence(self, node: Node) -> None:
        """The node is back: it knows nothing of its former connections, and resets them."""
        node.silent = False
        for name in [name for name, to in self._silent.items() if to is node]:
            del self._silent[name]
            self.outbox.append(Close(name, reset=True))

    def wake_node(self, node: Node) -> None:
        """The node reads its sockets again."""
        self._ready.extend(node.connections)
        self._ready.extend(node.left_connections)

    def _leave(self, connection: Connection, now: float) -> None:
        cluster, node = self._cluster, connection.node
        connection.ended = True
        node.connections.remove(connection)
        late_s = cluster.settings.late_s
        if late_s is None or connection.stuck or not node.running:
            connection.queue.clear()
            return
        node.left_connections = [c for c in node.left_connections if c.queue or c.busy]
        times = sorted(now + late_s * cluster.rng.random() ** LATE_SKEW for _ in connection.queue)
        for exchange, at_s in zip(connection.queue, times, strict=True):
            exchange.not_before_s = at_s
        if connection.queue or connection.busy:
            node.left_connections.append(connection)
            self._ready.append(connection)

    def _choose_fate(self, exchange: Exchange, now: float) -> Fate | None:
        faults = self._cluster.faults
        if not faults:
            return None
        return choose_fate(
            faults,
            exchange.connection.node.node_id,
            now,
            api=exchange.record.api_key,
            connection=exchange.connection.name,
            partitions=exchange.partitions,
        )

    def _strike(self, kind: type[Any], exchange: Exchange, now: float) -> Any:
        cluster = self._cluster
        if not cluster.faults:
            return None
        fault: Fault | None = strike(
            cluster.faults,
            kind,
            exchange.connection.node.node_id,
            now,
            api=exchange.record.api_key,
            connection=exchange.connection.name,
            partitions=exchange.partitions,
        )
        return fault


def _split(frame: bytes, request_class: Any, version: int) -> tuple[str | None, memoryview]:
    """Client id and body of a request. (By hand: `kafka.protocol` takes long for headers.)"""
    (length,) = CLIENT_ID_LENGTH.unpack_from(frame, HEADER.size)
    start = HEADER.size + CLIENT_ID_LENGTH.size
    end = start + max(length, 0)
    client_id = None if length < 0 else frame[start:end].decode()
    if request_class.flexible_version_q(version):
        if frame[end] != 0:
            raise ValueError("no request header has tagged fields")
        end += 1
    return client_id, memoryview(frame)[end:]


def _encode(response: ApiMessage, exchange: Exchange) -> bytes:
    response.API_VERSION = exchange.version
    header = struct.pack(">i", exchange.correlation_id)
    flexible = response.flexible_version_q(exchange.version)
    if flexible and exchange.record.api_key != API_VERSIONS:
        header += b"\x00"  # no tagged fields
    return header + bytes(response.encode())
