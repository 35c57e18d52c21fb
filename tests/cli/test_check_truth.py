"""The bounds of `outlast check` against failovers: what the producer then measures is within them.

In virtual time, on clusters with the clocks that were measured on a real one (`KRAFT`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.cli.check_model import Kind, worst_gaps
from outlast.engine.messages import Gap, Stall
from outlast.testing import KRAFT, Simulation
from tests.cli.check_worlds import DEFAULTS, cluster

SEEDS = range(1, 9)
CONTROLLER, OTHER = 1, 2  # the nodes that lead t-0 and t-1
CLOCKS = {**DEFAULTS, "replica.fetch.backoff.ms": "1000", "replica.fetch.wait.max.ms": "4"}
FAILURES: dict[Kind, Callable[[Simulation], object]] = {
    Kind.PLANNED: lambda sim: sim.stop(OTHER),
    Kind.CRASH: lambda sim: sim.kill(OTHER),
    Kind.CONTROLLER: lambda sim: sim.kill(CONTROLLER),
    Kind.SILENT: lambda sim: sim.pause(OTHER),
}


def longest_s(kind: Kind, seed: int) -> float:
    """The longest gap or stall of a run with one failure; everything arrives in the end."""
    sim = Simulation(seed, topics={"t": 3}, min_isr=2, cluster=KRAFT)
    for partition in range(3):
        sim.send_every(partition, 0.4, 45)
    sim.at(5.0, lambda: FAILURES[kind](sim))  # the new topic's followers are up to date (A40)
    sim.run_until(sim.all_settled, 60.0)
    assert sim.check().failed == 0
    found: list[Gap | Stall] = [*sim.gaps(), *sim.sender.stalls(sim.now)]
    return max(entry.duration_s for entry in found if entry.begin_s > 4.5)


@pytest.mark.parametrize("kind", FAILURES, ids=lambda kind: kind.value)
def test_no_gap_and_no_stall_is_longer_than_was_said(kind: Kind) -> None:
    settings = Simulation(1).settings
    bound_s = {gap.kind: gap.seconds for gap in worst_gaps(cluster(CLOCKS), settings)}[kind]
    measured = [longest_s(kind, seed) for seed in SEEDS]
    assert max(measured) <= bound_s
    assert max(measured) >= bound_s * (0.4 if kind is Kind.PLANNED else 0.75), "far too cautious"
