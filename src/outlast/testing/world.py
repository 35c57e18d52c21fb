"""What a seed picks before its run begins: the cluster, the network, the producer and the load.

Rule: every draw happens, whatever was drawn before it, so that a world differs from its
neighbours in all respects at once. Odd mixes are wanted; impossible ones are not drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from outlast.testing.cluster import ClusterSettings
from outlast.testing.network import NetworkSettings


@dataclass(frozen=True, slots=True)
class World:
    """Settings of a run."""

    nodes: int
    partitions: int
    min_isr: int
    cluster: ClusterSettings
    network: NetworkSettings
    keywords: dict[str, Any]
    max_block_s: float
    compress_s: tuple[float, float]
    load_s: float
    interval_s: float  # between two records, over all partitions
    bursts: list[int]  # how many records at once
    backlog: int  # open records per partition, on average, with which nothing more is sent
    accidents: int
    closed_suddenly: bool

    def __str__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in self.keywords.items())
        return (
            f"nodes={self.nodes} partitions={self.partitions} min_isr={self.min_isr} "
            f"latency={self.network.latency_s} spikes={self.network.spike_probability} "
            f"first_seq={self.cluster.first_seq_rule} detect={self.cluster.detect_s} "
            f"unclean={self.cluster.unclean_election} interval={self.interval_s} "
            f"bursts={self.bursts} backlog={self.backlog} accidents={self.accidents} {words}"
        )


def draw_world(rng: Random) -> World:
    """The world of a run."""
    return World(
        keywords=_draw_producer(rng),
        nodes=rng.choice([1, 2, 3, 3, 3, 4]),
        partitions=rng.choice([1, 2, 4, 8, 16, 24]),
        min_isr=rng.choice([1, 1, 2]),
        cluster=_draw_cluster(rng),
        network=NetworkSettings(
            latency_s=rng.choice([(0.0002, 0.0008), (0.001, 0.004), (0.005, 0.02), (0.03, 0.05)]),
            spike_probability=rng.choice([0.0, 0.0, 0.01, 0.05]),
            spike_s=(0.02, rng.choice([0.1, 1.5])),
            notice_s=rng.choice([0.0, 0.002]),
        ),
        max_block_s=rng.choice([0.5, 60.0]),
        compress_s=rng.choice([(0.0, 0.0), (0.0, 0.08)]),
        load_s=rng.uniform(0.5, 5.0),
        interval_s=rng.choice([0.005, 0.01, 0.02]),
        bursts=rng.choice([[1], [1, 1, 2, 5, 12], [10, 20], [10, 20]]),
        backlog=rng.choice([4, 8, 8, 30]),
        accidents=rng.randint(4, 100),
        closed_suddenly=rng.random() < 0.1,
    )


def _draw_producer(rng: Random) -> dict[str, Any]:
    """As users write it."""
    idempotent = rng.random() < 0.9
    request_timeout_ms = rng.choice([1000, 2000, 5000])
    linger_ms = rng.choice([0, 0, 5, 50])
    batch_size = rng.choice([100, 100, 150, 500, 16384])
    max_request_size = rng.choice([1000, 1_048_576, 1_048_576])
    return {
        "acks": rng.choice(["all"] if idempotent else ["all", "all", 1, 0]),
        "enable_idempotence": idempotent,
        "linger_ms": linger_ms,
        "batch_size": batch_size,
        "max_request_size": max_request_size if batch_size <= 500 else 1_048_576,
        "max_in_flight_requests_per_connection": rng.choice([1, 2, 5, 5, 5]),
        "request_timeout_ms": request_timeout_ms,
        "delivery_timeout_ms": request_timeout_ms + linger_ms + rng.choice([500, 5000, 60_000]),
        "silence_timeout_ms": rng.choice([300, 1000]),
        "ack_wait_ms": rng.choice([300, 1000]),
        "socket_connection_setup_timeout_ms": rng.choice([500, 2000]),
        "retry_backoff_ms": rng.choice([20, 100]),
        "buffer_memory": rng.choice([4_000, 33_554_432, 33_554_432]),
        "metadata_max_age_ms": rng.choice([500, 300_000, 300_000]),
        "connections_max_idle_ms": rng.choice([300, 540_000, 540_000]),
        "compression_type": rng.choice([None, None, None, "gzip"]),
    }


def _draw_cluster(rng: Random) -> ClusterSettings:
    produce, metadata = rng.choice([(9, 9), (11, 12), (12, 12), (13, 12), (13, 13)])
    return ClusterSettings(
        detect_s=rng.choice([0.1, 0.3, 1.0, 3.0]),
        promote_s=rng.choice([0.0, 0.0, 0.5]),
        metadata_lag_s=rng.choice([(0.0, 0.0), (0.001, 0.031), (0.01, 0.3)]),
        role_lag_s=rng.choice([(0.0002, 0.001), (0.0002, 0.001), (0.01, 0.1)]),
        deny_p=rng.choice([0.0, 0.13, 1.0]),
        fetch_backoff_s=rng.choice([0.05, 1.0]),
        creation_deny_p=rng.choice([0.25, 1.0]),
        creation_deny_s=rng.choice([(0.020, 0.030), (0.1, 0.4)]),
        unclean_election=rng.random() < 0.07,
        eligible_leader_replicas=rng.random() < 0.8,
        combined_quorum=rng.random() < 0.1,
        not_enough_replicas_after_append=rng.random() < 0.15,
        duplicate_error=rng.random() < 0.15,
        late_s=rng.choice([0.3, 3.0, 10.0, 10.0]),
        first_seq_rule=rng.choice(["any", "zero"]),
        api_versions={0: (3, produce), 3: (0, metadata)},
    )
