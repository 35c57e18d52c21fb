"""What the mock cluster saw, read from its own request log without any outlast code.

The log has, for every Produce request, when it came, when it was answered and what each partition
was told. From that follows when a partition stopped accepting and when it accepted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer

PRODUCE, METADATA = 0, 3
DENIED = (3, 5, 6, 19)


@dataclass(frozen=True)
class Served:
    """One partition's share of one Produce request."""

    node_id: int
    received_s: float
    answered_s: float | None
    error_code: int | None
    first_record: int  # by its number in the partition, from 0: no partition restarts here


@dataclass(frozen=True)
class TrueGap:
    """From the first request that was refused or never answered, to the ack of the next taken.

    Where no request was under way when its leader died, there is none: it begins with the first
    record that waited for the new leader.
    """

    begin_s: float
    refused: Served | None
    accepted: Served

    @property
    def end_s(self) -> float:
        assert self.accepted.answered_s is not None
        return self.accepted.answered_s


def served(server: ClusterServer, topic: str) -> dict[int, list[Served]]:
    """Every share of a Produce request, by partition, in the order of coming."""

    def read(cluster: MockCluster, _: float) -> dict[int, list[Served]]:
        shares: dict[int, list[Served]] = {}
        for request in cluster.request_log:
            if request.api_key != PRODUCE or request.late:
                continue
            for share in request.partitions:
                if share.topic == topic:
                    shares.setdefault(share.partition, []).append(
                        Served(
                            request.node_id,
                            request.received_at_s,
                            request.answered_at_s,
                            share.error_code,
                            share.base_sequence,
                        )
                    )
        return shares

    return server.call(read)


def true_gaps(shares: Sequence[Served], ready_s: Sequence[float]) -> list[TrueGap]:
    """The gaps of one partition. `ready_s`: when each of its records was there to be sent."""
    gaps = []
    refused: Served | None = None
    leader = shares[0].node_id
    for share in shares:
        accepted = share.answered_s is not None and share.error_code == 0
        if not accepted:
            refused = refused or share
            continue
        if refused is not None:
            gaps.append(TrueGap(refused.received_s, refused, share))
        elif share.node_id != leader:
            gaps.append(TrueGap(ready_s[share.first_record], None, share))
        refused, leader = None, share.node_id
    return gaps


def metadata_requests(server: ClusterServer) -> int:
    """How many the cluster was asked."""
    return server.call(lambda cluster, _: sum(r.api_key == METADATA for r in cluster.request_log))
