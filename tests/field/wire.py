"""What the wire tells of a field case: every batch that was sent, as often as it was sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from struct import unpack_from

from kafka.protocol.producer import ProduceRequest

from outlast.engine.messages import PartitionRestarted
from outlast.testing.application import SimFuture
from outlast.testing.network import NetworkSettings
from outlast.testing.simulation import Simulation
from outlast.testing.wire import WireRequest
from tests.field.oracles import logs_of, o1, o4

PRODUCE, INIT_PRODUCER_ID = 0, 22
FAR = NetworkSettings(latency_s=(0.010, 0.012))
"""Far enough that several batches are under way when something happens to one."""


@dataclass(frozen=True)
class Sent:
    """One batch as it stood in one request."""

    partition: int
    producer: tuple[int, int]  # id and epoch
    base_sequence: int
    batch: bytes
    request: WireRequest

    @property
    def number(self) -> tuple[int, tuple[int, int], int]:
        """What a broker tells batches apart by."""
        return self.partition, self.producer, self.base_sequence


def sent(sim: Simulation) -> Iterator[Sent]:
    """Every batch in every Produce request, in the order of sending."""
    for request in sim.network.requests:
        if request.api_key != PRODUCE:
            continue
        produce = ProduceRequest.decode(
            BytesIO(request.frame), version=request.api_version, header=True
        )
        for topic in produce.topic_data:
            for part in topic.partition_data:
                batch = bytes(part.records)
                producer_id, epoch, base_sequence = unpack_from(">qhi", batch, 43)
                yield Sent(part.index, (producer_id, epoch), base_sequence, batch, request)


def restarts(sim: Simulation) -> list[PartitionRestarted]:
    """When partitions took their next producer epoch."""
    return [fact for fact in sim.facts if isinstance(fact, PartitionRestarted)]


def send_some(sim: Simulation, count: int, partition: int | None = 0) -> list[SimFuture]:
    """Send, now."""
    return [sim.send("t", partition) for _ in range(count)]


def all_delivered(sim: Simulation, timeout_s: float = 60.0) -> None:
    """Run to the end: O1, O4, an empty buffer, and the simulator's own judgement."""
    sim.run_until(sim.all_settled, timeout_s)
    nothing_kept(sim)
    sim.check()
    o1(sim.ledger.entries, logs_of(sim))
    o4(sim.ledger.entries, logs_of(sim))


def nothing_kept(sim: Simulation) -> None:
    """The end of O7: the buffer is empty once all is settled."""
    assert sim.sender.health(sim.now).buffer_bytes == 0
