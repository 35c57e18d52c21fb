"""Random runs: whatever leaders, brokers and connections do, what was told is true."""

from __future__ import annotations

from collections import Counter

import pytest

from outlast.testing.accidents import WEIGHTS
from outlast.testing.swarm import run_seed

SEEDS = 500
CHUNK = 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_random_failovers_leave_nothing_lost_doubled_or_out_of_order(first):
    reports = [run_seed(seed) for seed in range(first, first + CHUNK)]
    assert [finding for report in reports for finding in report.findings] == []
    assert sum(report.failovers for report in reports) > 10 * CHUNK, "the runs must hurt"
    outcomes = sum((report.outcomes for report in reports), Counter())
    assert outcomes["acked"] > 0.5 * outcomes.total(), "most of what was sent arrives"


def test_every_kind_of_accident_happens():
    struck = sum((run_seed(seed).accidents for seed in range(1, 41)), Counter())
    assert set(struck) == set(WEIGHTS)
