"""Coordinators that are silent, cannot be connected or are others by now, and answers that come
when nobody wants them any more.
"""

from __future__ import annotations

import pytest
from kafka.errors import KafkaError, TransactionalIdAuthorizationFailedError
from kafka.protocol.metadata import FindCoordinatorResponse

from outlast.engine.messages import Cause, GapEnd, Loss, Role
from outlast.engine.transaction_state import State
from outlast.engine.transactions import Transactions
from outlast.engine.txn_wire import Group, Offset
from tests.engine.talk import (
    ADD_PARTITIONS,
    COORDINATOR,
    END_TXN,
    FIND_COORDINATOR,
    LEADER,
    PRODUCE,
    SECOND,
    Talk,
    found,
    through_bytes,
    told,
)
from tests.engine.test_transactions import begun, waits

NOT_AVAILABLE, NOT_COORDINATOR, ID_FORBIDDEN = 15, 16, 53


def silent() -> tuple[Talk, Transactions]:
    """A partition is being added, and the coordinator says nothing any more, nor to a probe."""
    talk, engine = begun(keep={ADD_PARTITIONS, FIND_COORDINATOR})
    talk.batch()
    talk.hanging = {COORDINATOR}
    talk.pass_time(2.3)
    [gap] = talk.sender.gaps(talk.now)
    assert (gap.topic, gap.cause) == ("txn:shop", Cause.SILENT)
    assert set(talk.apis()) == {ADD_PARTITIONS, FIND_COORDINATOR}
    return talk, engine


class TestSilence:
    def test_what_it_was_asked_goes_to_who_coordinates_now(self) -> None:
        talk, _ = silent()
        talk.answer(talk.next_asked(FIND_COORDINATOR), found(LEADER))
        talk.pass_time(1.0)
        assert talk.next_asked(ADD_PARTITIONS).connection.node_id == LEADER
        talk.answers(ADD_PARTITIONS)
        [gap] = talk.sender.gaps(talk.now)
        assert gap.ended_by is GapEnd.ACK

    def test_it_stays_where_it_is_while_nobody_else_coordinates(self) -> None:
        talk, _ = silent()
        talk.answer(talk.next_asked(FIND_COORDINATOR), found(COORDINATOR))
        talk.pass_time(1.0)
        assert talk.next_asked(ADD_PARTITIONS).connection.node_id == COORDINATOR

    def test_a_connection_that_breaks_then_takes_nothing_with_it(self) -> None:
        """Who coordinates is known by then: nobody is asked again."""
        talk, _ = silent()
        send = talk.next_asked(FIND_COORDINATOR)
        talk.asked.remove(send)
        talk.sender.responded(send.connection, send.token, found(LEADER), talk.now)
        talk.lose(Role.COORDINATOR)
        talk.pass_time(1.0)
        assert talk.next_asked(ADD_PARTITIONS).connection.node_id == LEADER
        assert FIND_COORDINATOR not in talk.apis()

    @pytest.mark.parametrize("ends", ["late answer", "lost", "silent"])
    def test_what_was_refused_meanwhile_is_over(self, ends: str) -> None:
        talk, engine = silent()
        talk.answer(talk.next_asked(FIND_COORDINATOR), found(-1, ID_FORBIDDEN))
        assert engine.state is State.ABORTABLE
        match ends:
            case "late answer":
                talk.answers(ADD_PARTITIONS)
            case "lost":
                talk.lose(Role.COORDINATOR)
            case _:
                talk.hanging.clear()
                talk.pass_time(3.0)
                assert talk.inspect, "it answered a probe"
                talk.hanging = {COORDINATOR}
                talk.pass_time(5.0)
        with pytest.raises(TransactionalIdAuthorizationFailedError):
            engine.commit(talk.now)
        [gap] = talk.sender.gaps(talk.now)
        assert gap.ended_by is GapEnd.ABANDONED


class TestNobodyWantsToKnow:
    @pytest.mark.parametrize("answered", [False, True])
    def test_a_connect_that_fails_when_another_coordinates(self, answered: bool) -> None:
        talk, _ = begun(keep={ADD_PARTITIONS, FIND_COORDINATOR})
        talk.hanging = {COORDINATOR}
        talk.lose(Role.COORDINATOR)
        talk.batch()
        talk.pass_time(1.2)
        talk.answer(talk.next_asked(FIND_COORDINATOR), found(LEADER))
        assert talk.next_asked(ADD_PARTITIONS).connection.node_id == LEADER
        if answered:
            talk.answers(ADD_PARTITIONS)
        connection = talk.connecting(COORDINATOR, Role.COORDINATOR)
        talk.sender.disconnected(connection, Loss.REFUSED, "refused", talk.now)
        talk.pass_time(0.2)
        assert talk.apis() == [PRODUCE if answered else ADD_PARTITIONS]
        [gap] = talk.sender.gaps(talk.now)
        assert (gap.topic, gap.ended_by) == ("txn:shop", GapEnd.ACK if answered else None)

    def test_who_coordinates_what_was_aborted(self) -> None:
        """Offsets, by the second protocol: the group's coordinator is asked for no more."""
        talk, engine = begun(versions=SECOND, keep={FIND_COORDINATOR})
        engine.send_offsets({("in", 0): Offset(1)}, Group("readers"), talk.now)
        talk.pass_time()
        send = talk.next_asked(FIND_COORDINATOR)
        assert engine.abort(talk.now) is not None
        talk.pass_time()
        assert engine.abort(talk.now) is None
        talk.answer(send, found(-1, NOT_AVAILABLE))
        talk.pass_time(1.0)
        assert talk.sender.gaps(talk.now) == []
        assert not talk.asked


def test_what_may_have_been_done_is_not_refused_for_who_may_not_know_the_coordinator() -> None:
    talk, engine = begun(keep={END_TXN})
    talk.batch()
    talk.produced(told(offset=0))
    committing = waits(talk.call(engine.commit))
    talk.keep.add(FIND_COORDINATOR)
    talk.lose(Role.COORDINATOR)
    talk.pass_time(0.5)
    talk.answer(talk.next_asked(FIND_COORDINATOR), found(-1, ID_FORBIDDEN))
    assert talk.again(engine.commit, committing) is committing
    talk.pass_time(1.0)
    talk.answer(talk.next_asked(FIND_COORDINATOR), found(COORDINATOR))
    talk.pass_time(1.0)
    talk.answers(END_TXN)
    assert talk.again(engine.commit, committing) is None


def test_a_question_that_was_lost_is_put_again() -> None:
    talk = Talk(transactional_id="shop", keep={FIND_COORDINATOR})
    engine = talk.sender.transactions
    assert engine is not None
    waiting = waits(talk.call(engine.init))
    talk.lose(Role.CONTROL)
    talk.pass_time(0.2)
    talk.answers(FIND_COORDINATOR)
    assert talk.again(engine.init, waiting) is None


def test_long_after_a_coordinator_was_found_it_is_looked_for_at_once() -> None:
    talk, _ = begun(keep={ADD_PARTITIONS})
    for wait_s in (600.0, 0.0):
        talk.pass_time(wait_s)
        if not talk.asked:
            talk.batch()
        talk.answers(ADD_PARTITIONS, NOT_COORDINATOR)
        talk.pass_time(0.2)
        assert ADD_PARTITIONS in talk.apis()


def test_an_answer_about_other_keys_is_none() -> None:
    talk = Talk(transactional_id="shop", keep={FIND_COORDINATOR})
    engine = talk.sender.transactions
    assert engine is not None
    waiting = waits(talk.call(engine.init))
    for keys, ok in ((("another",), False), ((), False), (("another", "shop"), True)):
        coordinators = [
            FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=COORDINATOR,
                host="h2",
                port=9002,
                error_code=0,
                error_message=None,
            )
            for key in keys
        ]
        response = through_bytes(FindCoordinatorResponse(coordinators=coordinators), 4)
        talk.answer(talk.next_asked(FIND_COORDINATOR), response)
        assert (talk.again(engine.init, waiting) is None) is ok
        talk.pass_time(0.2)


def test_a_coordinator_that_cannot_answer_fails_the_transaction_in_the_end() -> None:
    talk, engine = begun(keep={ADD_PARTITIONS})
    talk.batch()
    for _ in range(3):
        talk.answers(ADD_PARTITIONS, -1)
        talk.pass_time(2.0)
    with pytest.raises(KafkaError, match="AddPartitionsToTxn was refused"):
        engine.commit(talk.now)
