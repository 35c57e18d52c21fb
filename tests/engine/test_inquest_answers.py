"""What follows from each answer to an inquest: asked the same, the next one, or from the head."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.engine.batch import Batch
from outlast.engine.messages import Outcome, Role
from tests.engine.talk import INIT, Talk, outcome, told

OUT_OF_ORDER, NOT_LEADER, REQUEST_TIMED_OUT, LOADING = 45, 6, 7, 14
INVALID_RECORD, UNKNOWN_PRODUCER, UNKNOWN_SERVER_ERROR = 87, 59, -1
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
        (INVALID_RECORD, -1, MIDDLE),  # brokers look at that first: it says nothing of the log
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


def answered(talk: Talk, batches: list[Batch], answers: dict[int, Any]) -> list[int]:
    """Answer whatever is asked as told for that batch, until all have an outcome; who was asked."""
    asked: list[int] = []
    while not all(batch.result is not None for batch in batches):
        assert len(asked) < 20, f"it goes round: {asked}"
        if not talk.asked:
            talk.pass_time(0.5)
            continue
        asked.append(sent(talk, batches))
        talk.produced(answers[asked[-1]])
    return asked


def test_a_batch_that_is_invalid_now_does_not_hide_what_is_written() -> None:
    """The leader has the first two, and remembers the second; the last was never valid."""
    talk, batches = inquest()
    answers = {HEAD: told(OUT_OF_ORDER), MIDDLE: told(offset=9), LAST: told(INVALID_RECORD)}
    assert answered(talk, batches, answers) == [LAST, MIDDLE, LAST]
    assert [outcome(batch) for batch in batches] == [None, None, Outcome.UNKNOWN]


@pytest.mark.parametrize("code", [INVALID_RECORD, UNKNOWN_SERVER_ERROR])
def test_where_an_own_no_is_the_last_word_it_fails_and_the_rest_go_on(code: int) -> None:
    """The head was only ever refused; what is unsure behind it can be neither proved nor denied."""
    talk = Talk()
    talk.batch()
    talk.produced(told(offset=0))
    head, unsure = talk.batch(), talk.batch(2)
    talk.produced(told(NOT_LEADER))
    talk.lose(Role.OPEN)
    talk.pass_time(1.0)
    waiting = talk.batch()
    batches = [head, unsure, waiting]
    asked: list[int] = []
    while head.result is None or waiting.result is None:
        assert len(asked) < 20, f"it goes round: {asked}"
        if not talk.asked:
            talk.pass_time(0.5)
            continue
        asked.append(sent(talk, batches))
        restarted = unsure.result is not None
        answer = told(offset=9 + len(asked)) if restarted else told(OUT_OF_ORDER)
        talk.produced(told(code) if asked[-1] == 1 else answer)
    assert [outcome(batch) for batch in batches] == [None, Outcome.UNKNOWN, None]
    assert talk.settled.count(unsure) == 1


def test_a_later_45_ends_what_an_own_no_left_open() -> None:
    talk, batches = inquest()
    talk.produced(told(INVALID_RECORD))
    talk.pass_time(1.0)
    assert sent(talk, batches) == MIDDLE
    talk.produced(told(OUT_OF_ORDER))
    assert [outcome(batch) for batch in batches] == [Outcome.UNKNOWN] * 3
