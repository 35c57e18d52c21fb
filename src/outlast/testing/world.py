"""What a seed picks before its run begins: the cluster, the network, the producer and the load.

Rule: every draw happens, whatever was drawn before it, so that a world differs from its
neighbours in all respects at once. Odd mixes are wanted; impossible ones are not drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from outlast.testing.cluster import ClusterSettings
from outlast.testing.network import NetworkSettings

NEIGHBOURS = 0.4  # of all worlds are such


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
    assignment: list[list[int]]  # the replicas of each partition, leader first
    rare: float  # share of partitions that are seldom written to
    bad_nodes: tuple[int, ...] | None  # only these have trouble (None: all may)
    bad_partitions: tuple[int, ...] | None
    in_runs: float = 0.0  # share of bursts that are one `send_many`

    def __str__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in self.keywords.items())
        return (
            f"nodes={self.nodes} partitions={self.partitions} copies={len(self.assignment[0])} "
            f"min_isr={self.min_isr} bad={self.bad_nodes}/{self.bad_partitions} rare={self.rare} "
            f"latency={self.network.latency_s} spikes={self.network.spike_probability} "
            f"first_seq={self.cluster.first_seq_rule} detect={self.cluster.detect_s} "
            f"unclean={self.cluster.unclean_election} interval={self.interval_s} "
            f"bursts={self.bursts} in_runs={self.in_runs} backlog={self.backlog} "
            f"accidents={self.accidents} {words}"
        )


def draw_world(rng: Random) -> World:
    """The world of a run: anything, or neighbours."""
    world = _draw_anything(rng)
    neighbours = _draw_neighbours(rng, world)
    drawn = neighbours if rng.random() < NEIGHBOURS else world
    return replace(drawn, in_runs=rng.choice([0.0, 0.2, 0.6, 1.0]))


def _draw_anything(rng: Random) -> World:
    """Whatever may come together."""
    nodes, partitions = rng.choice([1, 2, 3, 3, 4, 5]), rng.choice([1, 2, 4, 8, 16, 24])
    assignment = _assign(rng, nodes, partitions, copies=rng.choice([2, 3, 3]), bad=0)
    return World(
        keywords=_draw_producer(rng),
        nodes=nodes,
        partitions=partitions,
        assignment=assignment,
        min_isr=min(rng.choice([1, 1, 2]), len(assignment[0])),
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
        rare=0.0,
        bad_nodes=None,
        bad_partitions=None,
    )


def _draw_neighbours(rng: Random, world: World) -> World:
    """Some nodes and partitions have all the trouble, for long; the others must hardly notice."""
    nodes, partitions = rng.choice([4, 4, 5]), rng.choice([8, 16, 24, 40])
    bad_nodes = rng.sample(range(1, nodes + 1), rng.choice([1, 1, 2]))
    bad_partitions = rng.sample(range(partitions), rng.choice([1, 2, partitions // 2]))
    return replace(
        world,
        nodes=nodes,
        partitions=partitions,
        assignment=_assign(rng, nodes, partitions, rng.choice([2, 2, 3]), bad_nodes[0]),
        min_isr=1,
        keywords={
            **world.keywords,
            "acks": "all",
            "enable_idempotence": True,
            "max_request_size": 1_048_576,
            "request_timeout_ms": rng.choice([2000, 5000, 30_000]),
            "delivery_timeout_ms": rng.choice([35_000, 120_000]),
        },
        cluster=replace(
            world.cluster,
            detect_s=rng.choice([1.0, 3.0, 8.0]),
            fetch_backoff_s=rng.choice([0.05, 0.05, 1.0]),
            unclean_election=False,
        ),
        network=replace(
            world.network,
            latency_s=rng.choice([(0.0002, 0.0008), (0.001, 0.004), (0.001, 0.004), (0.005, 0.02)]),
            spike_probability=0.0,
        ),
        load_s=rng.uniform(4.0, 12.0),
        interval_s=rng.choice([0.01, 0.02]),
        backlog=rng.choice([4, 8, 30]),
        accidents=rng.randint(3, 14),
        rare=rng.choice([0.0, 0.3, 0.6]),
        bad_nodes=tuple(bad_nodes),
        bad_partitions=tuple(bad_partitions),
    )


def _assign(rng: Random, nodes: int, partitions: int, copies: int, bad: int) -> list[list[int]]:
    """Every node leads as much; anyone follows, and the bad one follows many."""
    assignment = []
    for partition in range(partitions):
        leader = partition % nodes + 1
        others = [n for n in range(1, nodes + 1) if n not in (leader, bad)]
        rng.shuffle(others)
        if bad not in (0, leader) and rng.random() < 0.5:
            others.insert(0, bad)
        assignment.append([leader, *others[: copies - 1]])
    return assignment


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
