"""A network client that the user lends: `kafka_client=`.

kafka-python calls it as `kafka_client(metrics=, metric_group_prefix='producer',
wakeup_timeout_ms=, **config)` and uses what comes as its network. Here it makes the transports, as
its connection manager would, on its own event loop, and nothing else: connections, requests,
metadata and retries are outlast's. That is enough for tests that put a broker in memory behind it.
A client whose manager makes kafka-python's own transports is not needed for that: outlast's are
those, with their faults mended.

Rule: what is known of kafka.net's objects comes from `kafka_net`; nothing is imported here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kafka.errors import KafkaConfigurationError
from kafka.protocol.metadata import MetadataResponse

from outlast.io.metering import METERING

log = logging.getLogger(__name__)

_Node = MetadataResponse.MetadataResponseBroker


class LentClient:
    """The user's client. Its `_net` is driven in place of a loop of our own."""

    __slots__ = ("_client", "_make_transport", "loop")

    def __init__(self, client: Any, make_transport: Callable[..., Awaitable[Any]]) -> None:
        self._client = client
        self._make_transport = make_transport
        self.loop: Any = client._manager._net

    def __repr__(self) -> str:
        return f"<LentClient {self._client!r}>"

    async def transport(self, node_id: int, host: str, port: int, deadline_s: float) -> Any:
        """A transport to this address, its handshake done; raises what the client raises."""
        node = _Node(node_id=node_id, host=host, port=port, rack=None)
        return await self._make_transport(node, timeout_at=deadline_s)

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def borrow(
    config: Mapping[str, Any], usual: Callable[..., Any], usual_transport: object
) -> LentClient | None:
    """The client of `config["kafka_client"]`, if it is to be used.

    Args:
        config: kafka-python's keywords, and no others.
        usual: kafka-python's client, which is not borrowed.
        usual_transport: how its connection manager makes transports.

    Raises:
        KafkaConfigurationError: what `kafka_client` gives is no network client.
    """
    factory = config.get("kafka_client")
    if factory is None or factory is usual:
        return None
    theirs = {name: value for name, value in config.items() if name != METERING}
    client = factory(
        metrics=None,  # they are counted where requests are handed over
        metric_group_prefix="producer",
        wakeup_timeout_ms=config.get("max_block_ms"),
        **theirs,
    )
    make_transport = getattr(getattr(client, "_manager", None), "_build_transport", None)
    if make_transport is None:
        raise KafkaConfigurationError(
            f"kafka_client={factory!r} is not allowed: it must give a client as "
            "kafka.net.compat.KafkaNetClient is one, with `_manager`"
        )
    if getattr(make_transport, "__func__", None) is usual_transport:
        log.info("kafka_client=%r makes no transports of its own: outlast connects itself", factory)
        client.close()
        return None
    return LentClient(client, make_transport)
