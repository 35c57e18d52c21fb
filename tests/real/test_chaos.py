"""Three minutes of chaos on a real Apache Kafka, by the same plan in each run; `make chaos` is for
others.

`TESTS_CHAOS_SEED` takes another plan, `TESTS_CHAOS_MINUTES` changes how long it goes.
"""

from __future__ import annotations

import os

import pytest

from tests.real.chaos import KINDS, plan, soak
from tests.real.kafka_cluster import RealCluster

pytestmark = pytest.mark.real

SEED = int(os.environ.get("TESTS_CHAOS_SEED") or 1)
MINUTES = float(os.environ.get("TESTS_CHAOS_MINUTES") or 3)


@pytest.mark.timeout(int(MINUTES * 60) + 600)
def test_every_promise_is_kept_whatever_happens_to_the_cluster(cluster: RealCluster) -> None:
    report = soak(cluster, MINUTES, SEED, say=print)
    assert not report.faults(), f"\n{report}"
    acked = {name: verdict.acked for name, verdict in report.safe.items()}
    assert min(acked.values()) > MINUTES * 60, "each producer was to deliver something"
    assert report.gaps, "nothing was suffered"


def test_a_plan_follows_from_its_seed_and_has_every_kind_in_turn() -> None:
    one, same, other = ([next(p) for _ in range(16)] for p in (plan(1), plan(1), plan(2)))
    assert one == same != other
    assert {step.kind for step in one[:8]} == {step.kind for step in one[8:]} == set(KINDS)
    assert all(step.node != step.other for step in one)
