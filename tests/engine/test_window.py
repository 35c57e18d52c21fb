"""The numbered batches of one partition, asked about batches that stand in odd places."""

from __future__ import annotations

import pytest

from outlast.engine.batch import Batch
from outlast.engine.window import Window


def window(count: int) -> tuple[Window, list[Batch]]:
    """A window without a producer id, so that batches need no bytes."""
    batches = [Batch(("t", 0), float(n)) for n in range(count)]
    numbered = Window()
    for batch in batches:
        numbered.add(batch)
    return numbered, batches


def test_the_head_is_the_first_that_is_not_proved() -> None:
    numbered, batches = window(3)
    batches[0].proved = (0, -1)
    assert [numbered.is_head(batch) for batch in batches] == [True, True, False]
    assert numbered.unproved_before(batches[2]) == [batches[1]]


def test_a_batch_of_another_partition_is_no_head() -> None:
    numbered, batches = window(1)
    batches[0].proved = (0, -1)
    stranger = Batch(("t", 1), 0.0)
    with pytest.raises(AssertionError, match="is not in <Window batches=1"):
        numbered.is_head(stranger)
    assert numbered.unproved_before(stranger) == []
