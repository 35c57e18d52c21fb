"""The partition against a model of a broker, every interleaving.

The rules it tries are the "Sequencing rules" of docs/architecture.md.

Three promises are held in every state: nothing acknowledged is lost, doubled or out of order; every
success is at its offset; nothing told *never sent* or *not accepted* is in the log, then or later.
And where nothing expires and nothing is refused for good, every batch is delivered: no false
*unknown*.
"""

from __future__ import annotations

import pytest

from tests.engine.model import explore
from tests.engine.starts import STARTS, begin

pytestmark = pytest.mark.source  # worlds are copied by pickling, which a compiled engine cannot


@pytest.mark.parametrize("name", [n for n, (_, may, _) in STARTS.items() if not may.failures])
def test_nothing_is_lost_doubled_or_told_wrongly(name: str) -> None:
    found = explore(begin(name))
    assert found.states > 100
    assert found.lies[:3] == []
    assert found.stuck[:3] == []
    assert found.unknown[:3] == []


@pytest.mark.parametrize("name", [n for n, (_, may, _) in STARTS.items() if may.failures])
def test_a_batch_that_fails_harms_no_other(name: str) -> None:
    found = explore(begin(name))
    assert found.states > 100
    assert found.lies[:3] == []
    assert found.stuck[:3] == []
    assert found.unknown, "an unsure batch that fails must be told so"
