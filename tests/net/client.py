"""The adapter under test, driven by the test's own thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from outlast.engine.messages import Connect, Connection, Disconnect, Role, Send
from outlast.io.events import Connected, Disconnected, Event, Responded
from outlast.io.kafka_net import Network


class Client:
    def __init__(self, setup_timeout_s: float = 5.0, **options: Any) -> None:
        resolver = options.pop("resolver", None)
        more = {} if resolver is None else {"resolver": resolver}
        self.network = Network(
            {"client_id": "test", **options}, setup_timeout_s=setup_timeout_s, **more
        )
        self.events: list[Event] = []
        self._serials = itertools.count(1)

    def connect(self, host: str, port: int, role: Role = Role.OPEN) -> Connection:
        connection = Connection(1, role, next(self._serials))
        self.network.execute(Connect(connection, host, port))
        return connection

    def connected(self, server: Any) -> Connection:
        connection = self.connect(server.host, server.port)
        assert isinstance(self.next(connection), Connected)
        return connection

    def send(self, connection: Connection, token: int, request: Any = None, **more: Any) -> None:
        self.network.execute(Send(connection, token, request or ask(), **more))

    def give_up(self, connection: Connection, *, abort: bool) -> None:
        self.network.execute(Disconnect(connection, abort))

    def next(self, connection: Connection, timeout_s: float = 5.0) -> Event:
        """The next event of this connection; those of others are kept for later."""

        def mine() -> Event | None:
            return next((e for e in self.events if e.connection == connection), None)

        self.poll_until(mine, timeout_s)
        event = mine()
        assert event is not None
        self.events.remove(event)
        return event

    def lost(self, connection: Connection, timeout_s: float = 5.0) -> Disconnected:
        event = self.next(connection, timeout_s)
        assert isinstance(event, Disconnected), event
        return event

    def answered(self, connection: Connection, timeout_s: float = 5.0) -> Responded:
        event = self.next(connection, timeout_s)
        assert isinstance(event, Responded), event
        return event

    def poll_until(self, condition: Callable[[], Any], timeout_s: float = 5.0) -> None:
        end_s = time.monotonic() + timeout_s
        while not condition():
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"waited in vain; events: {self.events}"
            self.events += self.network.poll(min(left_s, 0.05))

    def poll_for(self, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while (left_s := end_s - time.monotonic()) > 0:
            self.events += self.network.poll(left_s)


@contextmanager
def client(**options: Any) -> Iterator[Client]:
    made = Client(**options)
    try:
        yield made
    finally:
        made.network.close()


def ask() -> MetadataRequest:
    return MetadataRequest(
        topics=None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def produce(size_bytes: int, acks: int = -1) -> ProduceRequest:
    """A produce request that weighs about `size_bytes`."""
    topic = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            topic(
                name="t",
                partition_data=[
                    topic.PartitionProduceData(index=0, records=b"\0" * size_bytes),
                ],
            )
        ],
    )
