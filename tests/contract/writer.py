"""A producer for one partition, by hand: sequences, epochs and batches are the test's choice."""

from __future__ import annotations

from typing import Any

from tests.contract import wire
from tests.contract.wire import Call, Wire
from tests.contract.world import World, until

INIT_VERSION = 4


def new_producer_id(world: World, node_id: int = 1) -> int:
    """A producer id nobody has used. A node's first answers may be 14 (S10)."""

    def asked() -> Any:
        told = world.ask(node_id, wire.init_producer_id(), INIT_VERSION)
        return told if told.error_code == 0 else None

    return int(until(asked, "a producer id").producer_id)


class Writer:
    """Writes to one partition over one wire, unless a call names another."""

    def __init__(self, world: World, topic: str, partition: int = 0, node_id: int = 1) -> None:
        self.world = world
        self.node_id = node_id
        self.topic = topic
        self.partition = partition
        self.wire = world.connect(node_id)
        self.producer_id = new_producer_id(world, node_id)
        self.epoch = 0

    def send(
        self,
        sequence: int = -1,
        *,
        count: int = 1,
        epoch: int | None = None,
        on: Wire | None = None,
        acks: int = -1,
        timeout_ms: int = 10_000,
        version: int = 12,
        **fields: Any,
    ) -> Call:
        """Send a batch and do not wait. Sequence -1: without a producer id."""
        producer_id, epoch = self.producer_id, self.epoch if epoch is None else epoch
        if sequence < 0:
            producer_id = epoch = -1
        raw = wire.batch(producer_id, epoch, sequence, count, **fields)
        return self.send_raw(raw, on=on, acks=acks, timeout_ms=timeout_ms, version=version)

    def send_raw(
        self,
        raw: bytes | None,
        *,
        on: Wire | None = None,
        version: int = 12,
        **options: Any,
    ) -> Call:
        """Send any bytes as the partition's records."""
        request = wire.produce([(self.topic, self.partition, raw)], **options)
        return (on or self.wire).send(request, version)

    def told(self, sequence: int = -1, **options: Any) -> str:
        """Send a batch; error code and offset of the answer."""
        return self.send(sequence, **options).told()
