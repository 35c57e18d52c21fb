"""What all spans of one producer have in common: the tracer, where the brokers are, their end.

`server.address` and `network.peer.address` are what the cluster advertises for a node: which of a
name's IP addresses a connection used is not known here.
"""

from __future__ import annotations

from opentelemetry.trace import NoOpTracer, Span, Tracer, TracerProvider, get_tracer

from outlast.engine.messages import ConnectionLost, ConnectionOpened, Fact, MetadataRefreshed
from outlast.observe.attributes import (
    CLIENT_ID,
    CLUSTER_ID,
    DESTINATION,
    PEER_ADDRESS,
    PEER_PORT,
    SCHEMA_URL,
    SERVER_ADDRESS,
    SERVER_PORT,
    SYSTEM,
    Attributes,
)
from outlast.observe.release import release
from outlast.observe.span_ends import SpanEnds, Trouble


class Tracing:
    """One producer's tracer, and what is known of its cluster.

    Args:
        tracer_provider: None is the global one, also if it is set later.
        client_id: told in every span, if not empty.
    """

    __slots__ = ("_addresses", "_client_id", "_cluster_id", "ends", "tracer", "trouble")

    def __init__(self, tracer_provider: TracerProvider | None = None, client_id: str = "") -> None:
        self.trouble = Trouble()
        self.ends = SpanEnds(self.trouble)
        self.tracer: Tracer = NoOpTracer()
        with self.trouble:
            self.tracer = get_tracer("outlast", release(), tracer_provider, SCHEMA_URL)
        self._client_id = client_id
        self._cluster_id = ""
        self._addresses: dict[int, tuple[str, int]] = {}

    def __repr__(self) -> str:
        return f"<Tracing cluster={self._cluster_id} brokers={sorted(self._addresses)} {self.ends}>"

    def hear(self, fact: Fact) -> None:
        """Learn the cluster's id, and where its nodes are."""
        match fact:
            case ConnectionOpened() | ConnectionLost() if fact.connection.node_id >= 0:
                host, colon, port = fact.address.rpartition(":")
                if colon and port.isdecimal():
                    self._addresses[fact.connection.node_id] = host.strip("[]"), int(port)
            case MetadataRefreshed() if fact.cluster_id:
                self._cluster_id = fact.cluster_id

    def common(self, topic: str) -> Attributes:
        """What every span of this topic has."""
        attributes: Attributes = {SYSTEM: "kafka", DESTINATION: topic}
        if self._client_id:
            attributes[CLIENT_ID] = self._client_id
        if self._cluster_id:
            attributes[CLUSTER_ID] = self._cluster_id
        return attributes

    def server(self, node_id: int) -> Attributes:
        """The broker that a span is about; nothing if it is not known."""
        return self._named(node_id, SERVER_ADDRESS, SERVER_PORT)

    def peer(self, node_id: int) -> Attributes:
        """The broker that was asked last; nothing if it is not known."""
        return self._named(node_id, PEER_ADDRESS, PEER_PORT)

    def end(self, span: Span, end_ns: int) -> None:
        """End the span, on another thread: an exporter may run in it."""
        self.ends.end(span, end_ns)

    def _named(self, node_id: int, address: str, port: str) -> Attributes:
        known = self._addresses.get(node_id)
        return {} if known is None else {address: known[0], port: known[1]}
