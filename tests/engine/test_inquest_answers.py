"""What follows from each answer to an inquest: asked the same, the next one, or from the head."""

from __future__ import annotations

import pytest

from outlast.engine.batch import Batch
from outlast.engine.messages import Role
from tests.engine.talk import INIT, Talk, outcome, told

OUT_OF_ORDER, NOT_LEADER, REQUEST_TIMED_OUT, LOADING = 45, 6, 7, 14
INVALID_RECORD, UNKNOWN_PRODUCER = 87, 59
HEAD, MIDDLE, LAST = 0, 1, 2


def sent(talk: Talk, batches: list[Batch]) -> int:
    """Which of them is under way, alone."""
    [number] = [n for n, batch in enumerate(batches) if batch.open_attempt is not None]
    return number


def inquest() -> tuple[Talk, list[Batch]]:
    """Three were lost with their connection; the head, sent again, was called out of order."""
    talk = Talk()
    talk.batch()
    talk.produced(told(offset=0))
    batches = [talk.batch() for _ in range(3)]
    assert len(talk.asked) == 3
    talk.lose(Role.OPEN)
    talk.pass_time(1.0)
    assert sent(talk, batches) == HEAD
    talk.produced(told(OUT_OF_ORDER))
    talk.pass_time(1.0)
    assert sent(talk, batches) == LAST
    return talk, batches


@pytest.mark.parametrize(
    ("code", "offset", "following"),
    [
        (OUT_OF_ORDER, -1, MIDDLE),
        (LOADING, -1, LAST),
        (REQUEST_TIMED_OUT, -1, HEAD),
        (REQUEST_TIMED_OUT, 7, HEAD),  # in the slow lane, on another connection
        (NOT_LEADER, -1, HEAD),
        (INVALID_RECORD, -1, HEAD),
        (UNKNOWN_PRODUCER, -1, HEAD),
    ],
)
def test_what_is_sent_next(code: int, offset: int, following: int) -> None:
    talk, batches = inquest()
    talk.produced(told(code, offset=offset))
    assert not [batch for batch in batches if batch.result is not None]
    talk.pass_time(2.0)
    assert sent(talk, batches) == following


def test_a_yes_proves_all_before_it() -> None:
    talk, batches = inquest()
    talk.produced(told(OUT_OF_ORDER))
    talk.pass_time(1.0)
    talk.produced(told(offset=9))
    assert [outcome(batch) for batch in batches[:2]] == [None, None]
    talk.pass_time(1.0)
    assert sent(talk, batches) == LAST
    assert INIT not in talk.apis()
