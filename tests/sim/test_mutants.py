"""The judges can fail: every planted bug is noticed by the model, by random runs or by a story."""

from __future__ import annotations

import pytest

from tests.sim.mutants import Mutant
from tests.sim.planted import MUTANTS

pytestmark = pytest.mark.source  # bugs are planted in the source text


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    assert mutant.caught(), mutant.breaks


def test_the_engine_is_right_again_after_a_mutant() -> None:
    for mutant in MUTANTS:
        before = [edit.function().__code__ for edit in mutant.edits]
        with mutant.planted():
            planted = [edit.function().__code__ for edit in mutant.edits]
        after = [edit.function().__code__ for edit in mutant.edits]
        assert before == after
        assert all(a != b for a, b in zip(before, planted, strict=True)), mutant
