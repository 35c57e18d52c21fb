"""Producer ids without transactions: asked for once, refused, late, and another for who lost it."""

from __future__ import annotations

import pytest

from outlast.engine.messages import Outcome, PartitionRestarted, Role
from tests.engine.talk import INIT, PRODUCE, Talk, numbered, outcome, told

LOADING, CLUSTER_FORBIDDEN, UNKNOWN_PRODUCER, ODD = 14, 31, 59, 41


def test_who_may_have_none_is_told_why() -> None:
    talk = Talk(partitions=2, keep={INIT})
    batches = [talk.batch(partition=partition) for partition in (0, 1)]
    talk.answer(talk.next_asked(INIT), numbered(-1, -1, CLUSTER_FORBIDDEN))
    assert talk.settled == batches
    for batch in batches:
        assert outcome(batch) is Outcome.NEVER_SENT
        assert batch.result is not None
        assert batch.result.failure is not None
        assert "IdempotentWrite" in batch.result.failure.message


@pytest.mark.parametrize(("code", "soon"), [(LOADING, True), (ODD, False)])
def test_a_broker_that_is_starting_is_asked_again_soon(code: int, soon: bool) -> None:
    talk = Talk(keep={INIT})
    talk.batch()
    talk.answer(talk.next_asked(INIT), numbered(-1, -1, code))
    talk.pass_time(0.03)
    assert (INIT in talk.apis()) is soon
    talk.pass_time(0.2)
    talk.answers(INIT)
    assert talk.apis() == [PRODUCE]


def test_an_id_that_cannot_be_used_is_none() -> None:
    talk = Talk(keep={INIT})
    talk.batch()
    talk.answer(talk.next_asked(INIT), numbered(-1, 0))
    assert talk.apis() == []
    talk.pass_time(0.2)
    talk.answers(INIT)
    assert talk.apis() == [PRODUCE]


def test_a_question_that_was_lost_is_put_again() -> None:
    talk = Talk(keep={INIT})
    talk.batch()
    talk.lose(Role.CONTROL)
    talk.pass_time(0.2)
    talk.answers(INIT)
    assert talk.apis() == [PRODUCE]


def test_who_lost_its_numbering_gets_an_id_of_its_own_and_nobody_else() -> None:
    talk = Talk(partitions=3)
    lost, other = talk.batch(partition=0), talk.batch(partition=1)
    talk.keep.add(INIT)
    talk.produced(told(UNKNOWN_PRODUCER))
    talk.pass_time(1.0)
    talk.produced(told(offset=0, index=1))
    assert outcome(other) is None
    talk.batch(partition=2)
    assert talk.apis().count(PRODUCE) == 1, "it has the shared one, and waits for nobody"
    talk.answer(talk.next_asked(INIT), numbered(8, 0))
    talk.pass_time(1.0)
    talk.produced(told(offset=0, index=2))
    talk.produced(told(offset=0))
    assert outcome(lost) is None
    [restarted] = [fact for fact in talk.facts if isinstance(fact, PartitionRestarted)]
    assert (restarted.partition, restarted.reason) == (0, "resequence")


def test_two_that_lost_theirs_get_one_each() -> None:
    talk = Talk(partitions=2)
    for partition in (0, 1):
        talk.send(partition)
    talk.sender.flush(talk.now)
    talk.pass_time()
    talk.keep.add(INIT)
    talk.produced(told(UNKNOWN_PRODUCER), told(UNKNOWN_PRODUCER, index=1))
    for number in (8, 9):
        talk.pass_time(0.2)
        talk.answer(talk.next_asked(INIT), numbered(number, 0))
    talk.pass_time(0.2)
    numbers = set()
    while PRODUCE in talk.apis():
        request = talk.next_asked().request
        sent = [part for topic in request.topic_data for part in topic.partition_data]
        numbers |= {int.from_bytes(part.records[43:51], "big") for part in sent}
        talk.produced(*(told(offset=0, index=part.index) for part in sent))
    assert numbers == {8, 9}
    assert {batch.partition: outcome(batch) for batch in talk.settled} == {0: None, 1: None}
