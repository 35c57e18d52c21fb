"""What is done about answers that no simulated broker gives: some records blamed, partitions
missing or named twice, a batch too large that had met a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.producer import ProduceResponse

from outlast.engine.batch import Batch
from outlast.engine.messages import GapOutcome, GapSettled, Outcome
from tests.engine.talk import Talk, Topics, outcome, through_bytes, told

ANOTHER_ID = UUID(int=99)
INVALID_RECORD, TOO_LARGE, NOT_LEADER = 87, 10, 6


def failures(settled: Sequence[Batch]) -> dict[int, tuple[Outcome, str]]:
    """By the records' places in the batch that was sent first."""
    failed: dict[int, tuple[Outcome, str]] = {}
    for batch in settled:
        assert batch.result is not None
        failure = batch.result.failure
        if failure is not None:
            for place in range(batch.first_index, batch.first_index + batch.count):
                failed[place] = failure.outcome, failure.message
    return failed


class TestBlamedRecords:
    """KIP-467: a broker that refuses a batch may say for which of its records."""

    def test_only_they_fail_and_the_others_go_again(self) -> None:
        talk = Talk()
        talk.batch(5)
        talk.produced(told(INVALID_RECORD, errors={1: "no key", 3: None}, message="some are bad"))
        assert failures(talk.settled) == {
            1: (Outcome.NOT_ACCEPTED, "no key"),
            3: (Outcome.NOT_ACCEPTED, "some are bad"),
        }
        for offset in (10, 11, 12):
            talk.pass_time(1.0)
            talk.produced(told(offset=offset))
        written = {b.first_index: b.result.base_offset for b in talk.settled if not outcome(b)}
        assert written == {0: 10, 2: 11, 4: 12}

    def test_the_codes_name_is_told_where_nobody_has_a_text(self) -> None:
        talk = Talk()
        talk.batch(2)
        talk.produced(told(INVALID_RECORD, errors={0: None}))
        assert failures(talk.settled) == {0: (Outcome.NOT_ACCEPTED, "INVALID_RECORD")}

    @pytest.mark.parametrize("blamed", [(0, 1), (2,), (-1, 7)], ids=str)
    def test_all_fail_if_all_are_blamed_or_none_that_is_there(
        self, blamed: tuple[int, ...]
    ) -> None:
        talk = Talk()
        batch = talk.batch(2)
        talk.produced(told(INVALID_RECORD, errors=dict.fromkeys(blamed, "bad"), message="no"))
        assert talk.settled == [batch]
        assert failures(talk.settled) == dict.fromkeys((0, 1), (Outcome.NOT_ACCEPTED, "no"))

    def test_a_batch_that_may_be_written_is_not_taken_apart(self) -> None:
        talk = Talk()
        batch = talk.batch(2)
        talk.produced(told(NOT_LEADER, offset=4))  # appended before leadership was lost
        talk.pass_time(1.0)
        talk.produced(told(INVALID_RECORD, errors={0: "bad"}))
        assert talk.settled == [batch]
        assert outcome(batch) is Outcome.UNKNOWN


def test_a_gap_waits_for_every_piece_of_a_batch_that_met_it() -> None:
    talk = Talk()
    talk.batch(4)
    talk.produced(told(NOT_LEADER))
    talk.pass_time(1.0)
    talk.produced(told(TOO_LARGE))
    talk.pass_time(1.0)
    talk.produced(told(offset=1))
    [gap] = talk.sender.gaps(talk.now)
    assert gap.ended_by is not None
    assert not [fact for fact in talk.facts if isinstance(fact, GapSettled)]
    talk.produced(told(offset=3))
    [settled] = [fact for fact in talk.facts if isinstance(fact, GapSettled)]
    assert settled.gap.outcome is GapOutcome.ABSORBED
    assert sum(batch.count for batch in talk.settled) == 4


class TestAnswersThatSayNothing:
    """A partition that was asked about and is not answered: anything may be true."""

    def test_it_is_sent_again_and_fails_as_unknown_in_the_end(self) -> None:
        talk = Talk()
        batch = talk.batch()
        for _ in range(3):
            assert not talk.settled
            talk.produced()
            talk.pass_time(2.0)
        assert talk.settled == [batch]
        assert outcome(batch) is Outcome.UNKNOWN

    @pytest.mark.parametrize(
        "topics",
        [
            [Topics(name="t", partition_responses=[told(offset=1), told(offset=2)])],
            [Topics(name="t", partition_responses=None)],
            [Topics(name="another", partition_responses=[told(offset=1)])],
            [Topics(topic_id=ANOTHER_ID, partition_responses=[told(offset=1)])],
            None,
        ],
        ids=["named twice", "no list", "another topic", "another id", "nothing"],
    )
    def test_what_is_not_one_answer_is_none(self, topics: list[Any] | None) -> None:
        talk = Talk()
        batch = talk.batch()
        response = ProduceResponse(responses=topics, throttle_time_ms=0)
        by_id = bool(topics and topics[0].topic_id == ANOTHER_ID)
        response = through_bytes(response, 13 if by_id else 8)
        talk.answer(talk.next_asked(), response)
        assert not talk.settled
        talk.pass_time(1.0)
        talk.produced(told(offset=7))
        assert talk.settled == [batch]
        assert batch.result is not None
        assert batch.result.base_offset == 7
