"""Planted bugs of transactions, found by random runs."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.testing.txn_swarm import run_transactions
from tests.sim.mutants import Mutant, Story
from tests.sim.planted_order import edit


@dataclass(frozen=True)
class TxnSeeds:
    """Random runs of transactions find it, no later than this one."""

    last: int

    def __call__(self) -> str:
        """What was found, or ''."""
        for seed in range(1, self.last + 1):
            findings = run_transactions(seed).findings
            if findings:
                return f"seed {seed}: {findings[0]}"
        return ""


TRANSACTIONS = (
    Mutant(
        "committed before all is acknowledged",
        "A commit is asked for once every record is in its partition's log.",
        edit(
            "transactions.Transactions._next_errand",
            "self.state is State.IN_TRANSACTION or self._hub.busy",
            "self.state is State.IN_TRANSACTION",
        ),
        TxnSeeds(20),
    ),
    Mutant(
        "sent before the coordinator knows the partition",
        "What the coordinator was not told of, it ends for nobody.",
        edit(
            "transactions.Transactions.admits",
            "if place.tp in self._present.added:",
            "self._present.begun = True\n    if True:",
        ),
        TxnSeeds(20),
    ),
    Mutant(
        "an abort that leaves its epoch",
        "Where something is unsure the next epoch keeps late copies out, and all number anew.",
        edit(
            "transactions.Transactions._has_ended",
            "if not self._present.broken:",
            "if True:",
        ),
        TxnSeeds(40),
    ),
    Mutant(
        "a failed record in a committed transaction",
        "All of it becomes visible or nothing.",
        edit(
            "transactions.Transactions.record_failed",
            "self.state in (State.IN_TRANSACTION, State.COMMITTING) and",
            "False and",
        ),
        TxnSeeds(40),
    ),
    Mutant(
        "what timed out is told as committed",
        "The coordinator has aborted it, and the producer is still the one.",
        edit(
            "transactions.Transactions._initialized",
            "if self.state is State.INITIALIZING:",
            "if self.state in (State.INITIALIZING, State.COMMITTING):",
        ),
        TxnSeeds(60),
    ),
    Mutant(
        "an end that nobody answered is an end",
        "A connection that is lost says nothing: ask again.",
        edit(
            "errands.Errands.lost",
            "errand.token, errand.left = -1, errand.left or sent",
            "self.present = None\n    errand.done(None, now)\n    return",
        ),
        TxnSeeds(40),
    ),
    Mutant(
        "numbers go on under the next epoch",
        "All partitions number from 0 again.",
        edit("window.Window.renew", "self.next_sequence = 0", "pass"),
        TxnSeeds(40),
    ),
    Mutant(
        "fenced by the clock",
        "A transaction that took too long is no newer producer: ask which it is.",
        edit("transactions.Transactions._refused", "elif errand.what != INIT:", "elif False:"),
        TxnSeeds(60),
    ),
    Mutant(
        "a commit that may have been done is told as undone",
        "Once it was asked for, only the answer to it can say that it was not.",
        edit("errands.Errands.found", "and not errand.left", ""),
        Story("sim.test_transactions", "test_a_commit_that_may_have_been_done_is_not_undone"),
    ),
    Mutant(
        "the coordinator that was",
        "One that coordinates no longer says so: another is looked for.",
        edit("errands.Errands._act", "self._lose_coordinator(errand.key, now)", "pass"),
        TxnSeeds(20),
    ),
)
