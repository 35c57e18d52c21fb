"""Random runs: whatever leaders, brokers and connections do, what was told is true, and no
partition pays for another.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from outlast.testing.odds import BESIDE, WEIGHTS
from outlast.testing.swarm import run_seed
from outlast.testing.world import draw_world

SEEDS = 500
CHUNK = 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_random_failovers_leave_nothing_lost_doubled_or_out_of_order(first):
    reports = [run_seed(seed) for seed in range(first, first + CHUNK)]
    assert [finding for report in reports for finding in report.findings] == []
    assert sum(report.failovers for report in reports) > 5 * CHUNK, "the runs must hurt"
    outcomes = sum((report.outcomes for report in reports), Counter())
    assert outcomes["acked"] > 0.5 * outcomes.total(), "most of what was sent arrives"
    beside = [hold_up for report in reports for hold_up in report.hold_ups if hold_up.causes]
    assert len(beside) > 5 * CHUNK, "partitions without fault must be beside others that have some"


def test_every_kind_of_accident_happens():
    anywhere: Counter[str] = Counter()
    beside: Counter[str] = Counter()
    for seed in range(1, 61):
        neighbours = draw_world(Random(f"{seed}/world")).bad_nodes is not None
        (beside if neighbours else anywhere).update(run_seed(seed).accidents)
    assert set(anywhere) == set(WEIGHTS)
    assert set(beside) == set(BESIDE)
