"""Transactions in random worlds: what readers of committed data see is whole, once, in order."""

from __future__ import annotations

import pytest

from outlast.testing.transacting import ABORTED, COMMITTED
from outlast.testing.txn_swarm import run_transactions
from tests.sim.mutants import Mutant
from tests.sim.planted_transactions import TRANSACTIONS

CHUNK = 10


@pytest.mark.parametrize("first", range(1, 1 + 6 * CHUNK, CHUNK))
def test_random_accidents_leave_transactions_whole(first: int) -> None:
    reports = [run_transactions(seed) for seed in range(first, first + CHUNK)]
    assert [finding for report in reports for finding in report.findings] == []
    fates = sum((report.fates for report in reports[1:]), reports[0].fates)
    assert fates[COMMITTED] >= CHUNK
    assert fates[ABORTED] >= 1


@pytest.mark.parametrize("mutant", TRANSACTIONS, ids=str)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    assert mutant.caught(), mutant.breaks
