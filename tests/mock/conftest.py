"""Fixtures: a mock cluster in virtual time with a raw client on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from outlast.testing.cluster import ClusterSettings, MockCluster
from tests.mock.bench import QUIET, Bench


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    """Make a cluster with a topic `t`, let it settle, and give a bench on it."""

    def make(
        nodes: int = 3,
        partitions: int = 1,
        *,
        seed: int = 1,
        replication: int | None = None,
        min_isr: int = 1,
        **settings: Any,
    ) -> Bench:
        chosen = ClusterSettings(**{**QUIET, "producer_id_load_s": 0.0, **settings})
        bench = Bench(MockCluster(nodes, settings=chosen, rng=random.Random(seed)))
        bench.cluster.create_topic("t", partitions, replication=replication, min_isr=min_isr)
        bench.run(1.0)
        return bench

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """Three nodes, topic `t` with one partition led by node 1, nothing left to chance."""
    return make_bench()
