"""The partition against a model of a broker, every interleaving.

The rules it tries are the "Sequencing rules" of docs/architecture.md.

Three promises are held in every state: nothing acknowledged is lost, doubled or out of order; every
success is at its offset; nothing told *never sent* or *not accepted* is in the log, then or later.
And where nothing expires and nothing is refused for good, every batch is delivered: no false
*unknown*.
"""

from __future__ import annotations

import pytest

from tests.engine.model import Allowed, explore, start


@pytest.mark.parametrize(
    ("batches", "allowed"),
    [
        (4, Allowed(losses=2, restarts=1)),
        (3, Allowed(losses=2, restarts=1, refusals=1)),
        (3, Allowed(losses=2, restarts=1, stalls=1)),
        (3, Allowed(losses=2, restarts=1, moments=1)),
        (2, Allowed(losses=2, restarts=1, refusals=1, stalls=1)),
    ],
    ids=str,
)
def test_nothing_is_lost_doubled_or_told_wrongly(batches: int, allowed: Allowed) -> None:
    found = explore(start(batches, allowed))
    assert found.states > 1000
    assert found.lies[:3] == []
    assert found.stuck[:3] == []
    assert found.unknown[:3] == []


@pytest.mark.parametrize(
    ("batches", "allowed"),
    [
        (3, Allowed(losses=1, restarts=1, finals=1)),
        (2, Allowed(losses=2, restarts=1, finals=1)),
        (3, Allowed(losses=2, restarts=1, expiries=1)),
        (2, Allowed(losses=2, restarts=1, expiries=2, refusals=1)),
    ],
    ids=str,
)
def test_a_batch_that_fails_harms_no_other(batches: int, allowed: Allowed) -> None:
    found = explore(start(batches, allowed))
    assert found.states > 1000
    assert found.lies[:3] == []
    assert found.stuck[:3] == []
    assert found.unknown, "an unsure batch that fails must be told so"
