"""Transactions in random worlds: what readers of committed data see is whole, once, in order."""

from __future__ import annotations

from random import Random

import pytest

from outlast.testing.faults import CutAfter, Error
from outlast.testing.simulation import Simulation
from outlast.testing.transacting import ABORTED, COMMITTED, Transacting
from outlast.testing.txn_swarm import run_transactions
from tests.sim.mutants import Mutant
from tests.sim.planted_transactions import TRANSACTIONS
from tests.sim.stories import CALM

CHUNK = 10
FIND_COORDINATOR, END_TXN = 10, 26


@pytest.mark.parametrize("first", range(1, 1 + 6 * CHUNK, CHUNK))
def test_random_accidents_leave_transactions_whole(first: int) -> None:
    reports = [run_transactions(seed) for seed in range(first, first + CHUNK)]
    assert [finding for report in reports for finding in report.findings] == []
    fates = sum((report.fates for report in reports[1:]), reports[0].fates)
    assert fates[COMMITTED] >= CHUNK
    assert fates[ABORTED] >= 1


def test_a_commit_that_may_have_been_done_is_not_undone() -> None:
    """Its answer is lost, and then nobody is allowed to say who coordinates."""
    sim = Simulation(7, topics={"t": 2}, cluster=CALM, transactional_id="shop")
    sim.cluster.create_internal_topics(0.0)
    load = Transacting(
        sim,
        lambda: [sim.send("t", partition, thread="one") for partition in (0, 1)],
        Random(1),
        max_block_s=5.0,
    )
    load.begin()
    sim.run_for(1.0)
    faults = [CutAfter(api=END_TXN, times=1), Error(api=FIND_COORDINATOR, code=120, times=1)]
    sim.cluster.faults += faults
    sim.run_for(2.0)
    load.end()
    sim.run_until(lambda: load.idle)
    sim.run_for(1.0)  # markers are written after the answer
    assert not load.raised
    assert [fault.used for fault in faults] == [1, 1]
    assert list(load.findings()) == []


@pytest.mark.source  # bugs are planted in the source text
@pytest.mark.parametrize("mutant", TRANSACTIONS, ids=str)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    assert mutant.caught(), mutant.breaks
