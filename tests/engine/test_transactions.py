"""The calls of a transaction, what coordinators are asked for them, and what their answers do."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from kafka.errors import (
    GroupAuthorizationFailedError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnsupportedVersionError,
)

from outlast.engine.hub import Hub
from outlast.engine.intake import Waiting
from outlast.engine.messages import GapEnd, Loss, Outcome, Role
from outlast.engine.settings import Settings
from outlast.engine.transaction_state import State
from outlast.engine.transactions import Transactions
from outlast.engine.txn_wire import Group, Offset
from tests.engine.talk import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    COORDINATOR,
    END_TXN,
    FIND_COORDINATOR,
    FIRST,
    INIT,
    LEADER,
    PRODUCE,
    SECOND,
    Talk,
    found,
    numbered,
    outcome,
    told,
)
from tests.engine.usual import USUAL

LOADING, NOT_COORDINATOR, TOPIC_FORBIDDEN, GROUP_FORBIDDEN = 14, 16, 29, 30
WRONG_EPOCH, UNKNOWN_ID, BUSY, ID_FORBIDDEN, NOT_ATTEMPTED = 47, 49, 51, 53, 55
FENCED, OUT_OF_ORDER, NOT_LEADER = 90, 45, 6
READERS = Group("readers")
OFFSETS = {("in", 0): Offset(7), ("in", 1): Offset(8, 2, "m")}


def ready(*, keep: Collection[int] = (), **more: Any) -> tuple[Talk, Transactions]:
    """Initialized, and from now on the test answers what it keeps."""
    talk = Talk(transactional_id="shop", **more)
    engine = talk.sender.transactions
    assert engine is not None
    assert talk.call(engine.init) is None
    talk.keep |= set(keep)
    return talk, engine


def begun(**more: Any) -> tuple[Talk, Transactions]:
    talk, engine = ready(**more)
    engine.begin(talk.now)
    return talk, engine


def waits(got: Waiting | None) -> Waiting:
    assert got is not None
    assert got.reason == "transaction"
    return got


def send_offsets(
    talk: Talk, engine: Transactions, offsets: Mapping[tuple[str, int], Offset] = OFFSETS
) -> Any:
    look = engine.send_offsets(offsets, READERS, talk.now)
    talk.pass_time()
    return look


# --- the beginning ------------------------------------------------------------------------------


class TestInit:
    def begun(self) -> tuple[Talk, Transactions, Waiting]:
        talk = Talk(transactional_id="shop", keep={INIT})
        engine = talk.sender.transactions
        assert engine is not None
        return talk, engine, waits(talk.call(engine.init))

    def test_who_may_not_have_the_id_is_told_and_may_ask_again(self) -> None:
        talk, engine, waiting = self.begun()
        talk.answers(INIT, ID_FORBIDDEN)
        with pytest.raises(TransactionalIdAuthorizationFailedError):
            talk.again(engine.init, waiting)
        assert engine.state is State.UNINITIALIZED
        talk.keep.discard(INIT)
        assert talk.call(engine.init) is None
        assert engine.state is State.READY
        assert talk.call(engine.init) is None, "a second call has nothing to do"

    def test_who_gives_up_waiting_learns_what_was_answered_last(self) -> None:
        talk, engine, waiting = self.begun()
        assert talk.sender.cancel_wait(waiting.ticket, talk.now) == 0
        waiting = waits(talk.call(engine.init))
        talk.answers(INIT, LOADING)
        assert talk.sender.cancel_wait(waiting.ticket, talk.now) == LOADING
        talk.pass_time(2.0)
        waiting = waits(talk.call(engine.init))
        talk.answers(INIT)
        assert talk.again(engine.init, waiting) is None

    def test_who_waits_for_nothing_gives_nothing_up(self) -> None:
        talk, _, _ = self.begun()
        talk.refusing = {COORDINATOR}
        talk.lose(Role.COORDINATOR)
        talk.pass_time(1.0)
        assert talk.sender.cancel_wait(-99, talk.now) == 0
        [gap] = talk.sender.gaps(talk.now)
        assert gap.records_refused == 0

    def test_a_ticket_that_nobody_holds_is_told_nothing(self) -> None:
        talk, engine, waiting = self.begun()
        other = waits(talk.call(engine.init))
        talk.sender.keep_waiting([other.ticket])
        talk.sender.forget(other.ticket)
        talk.answers(INIT)
        assert not talk.granted
        assert waiting.ticket != other.ticket

    @pytest.mark.parametrize("code", [WRONG_EPOCH, FENCED, UNKNOWN_ID])
    def test_who_has_no_epoch_yet_is_not_fenced(self, code: int) -> None:
        talk, engine, waiting = self.begun()
        talk.answers(INIT, code)
        talk.pass_time(2.0)
        assert talk.answers(INIT).producer_id == -1
        assert talk.again(engine.init, waiting) is None

    def test_an_answer_without_a_producer_id_is_none(self) -> None:
        talk, engine, waiting = self.begun()
        talk.answer(talk.next_asked(INIT), numbered(-1, -1))
        talk.pass_time(2.0)
        talk.answers(INIT)
        assert talk.again(engine.init, waiting) is None


# --- records ------------------------------------------------------------------------------------


def test_a_partition_is_added_before_its_records_are_sent() -> None:
    talk, engine = begun(keep={ADD_PARTITIONS, END_TXN})
    talk.batch(2)
    assert talk.apis() == [ADD_PARTITIONS]
    committing = waits(talk.call(engine.commit))
    talk.answers(ADD_PARTITIONS)
    assert talk.apis() == [PRODUCE]
    talk.produced(told(offset=3))
    assert talk.apis() == [END_TXN]
    assert talk.answers(END_TXN).committed
    assert talk.again(engine.commit, committing) is None
    assert engine.state is State.READY


def test_what_is_not_begun_takes_no_record_and_asks_nobody_for_an_end() -> None:
    talk, engine = ready()
    with pytest.raises(IllegalStateError):
        talk.send()
    engine.begin(talk.now)
    assert talk.call(engine.commit) is None
    engine.begin(talk.now)
    assert talk.call(engine.abort) is None
    assert engine.state is State.READY


def test_a_partition_that_cannot_be_added_fails_the_transaction_which_can_be_aborted() -> None:
    talk, engine = begun(keep={ADD_PARTITIONS})
    batch = talk.batch()
    talk.answers(ADD_PARTITIONS, TOPIC_FORBIDDEN)
    assert outcome(batch) is Outcome.NEVER_SENT
    with pytest.raises(KafkaError, match="has failed, and takes no more"):
        talk.send()
    with pytest.raises(TopicAuthorizationFailedError, match="refused for t-0"):
        engine.commit(talk.now)
    assert talk.call(engine.abort) is None
    engine.begin(talk.now)


def test_partitions_that_an_answer_does_not_name_are_asked_for_again() -> None:
    talk, _ = begun(keep={ADD_PARTITIONS})
    talk.batch()
    send = talk.next_asked(ADD_PARTITIONS)
    send.request.v3_and_below_topics = []
    talk.answer(send, talk.usual(send.request))
    talk.pass_time(2.0)
    talk.answers(ADD_PARTITIONS)
    assert talk.apis() == [PRODUCE]


def test_of_several_codes_the_gravest_decides() -> None:
    talk, engine = begun(partitions=2, keep={ADD_PARTITIONS})
    for partition in (0, 1):
        talk.send(partition)
    talk.sender.flush(talk.now)
    talk.pass_time()
    send = talk.next_asked(ADD_PARTITIONS)
    response = talk.usual(send.request, NOT_ATTEMPTED)
    response.results_by_topic_v3_and_below[0].results_by_partition[1].partition_error_code = 29
    talk.answer(send, response)
    with pytest.raises(TopicAuthorizationFailedError, match="t-1"):
        engine.commit(talk.now)


def test_a_record_that_fails_fails_its_transaction() -> None:
    talk, engine = begun()
    talk.batch(2)
    committing = waits(talk.call(engine.commit))
    talk.produced(told(87, errors={1: "no key"}))
    with pytest.raises(KafkaError, match="cannot be committed: t-0: no key"):
        talk.again(engine.commit, committing)
    assert talk.call(engine.abort) is None


def test_all_that_a_blamed_record_takes_along_is_told() -> None:
    """What was left behind it is unsure, and would need another numbering; what waits, too."""
    talk, engine = begun()
    talk.batch()
    talk.produced(told(offset=0))
    blamed, unsure = talk.batch(3), talk.batch()
    talk.produced(told(NOT_LEADER))
    talk.lose(Role.OPEN)
    talk.pass_time(1.0)
    waiting = talk.batch()
    talk.produced(told(87, errors={1: "no key"}))
    assert blamed.open_attempt is None
    assert {outcome(unsure), outcome(waiting)} == {Outcome.UNKNOWN, Outcome.NEVER_SENT}
    assert [talk.settled.count(batch) for batch in (unsure, waiting)] == [1, 1]
    assert talk.call(engine.abort) is None


def test_a_record_that_was_not_taken_fails_its_transaction() -> None:
    talk, engine = begun()
    engine.record_refused("it is too large")
    engine.record_refused("it is also late")
    talk.pass_time()
    with pytest.raises(KafkaError, match="it is too large"):
        engine.commit(talk.now)
    engine.record_refused("nobody cares")
    assert talk.call(engine.abort) is None
    engine.begin(talk.now)
    assert talk.call(engine.commit) is None


def test_whatever_comes_first_fails_the_transaction() -> None:
    """A record was refused, and before that is seen to, a newer producer or an abort."""
    talk, engine = begun(keep={ADD_PARTITIONS})
    talk.batch()
    engine.record_refused("it is too large")
    send = talk.next_asked(ADD_PARTITIONS)
    talk.answer(send, talk.usual(send.request, FENCED))
    with pytest.raises(ProducerFencedError):
        engine.commit(talk.now)
    talk, engine = begun()
    engine.record_refused("it is too large")
    assert talk.call(engine.abort) is None
    assert engine.state is State.READY


def test_records_that_no_transaction_has_are_not_sent() -> None:
    hub = Hub(Settings(**USUAL, transactional_id="shop"), random.Random(1), 0.0)
    engine = Transactions(hub, "shop", 1000)
    assert not engine.admits(hub.new_partition(("t", 0), 0.0))


def test_who_waits_for_room_when_the_transaction_fails_gets_none() -> None:
    talk, engine = begun(buffer_bytes=2000)
    talk.batch()
    waiting = talk.send(value=b"v" * 1000)
    assert isinstance(waiting, Waiting)
    other = talk.send(value=b"v" * 1000)
    assert isinstance(other, Waiting)
    talk.produced(told(87, errors={}))
    assert waiting.ticket in talk.granted
    assert other.ticket not in talk.granted
    with pytest.raises(KafkaError, match="has failed"):
        talk.sender.append("t", 0, None, b"v" * 1000, (), 0, talk.now, waiting.ticket)
    talk.pass_time()
    assert other.ticket in talk.granted
    assert engine.state is State.ABORTABLE


@pytest.mark.parametrize("code", [OUT_OF_ORDER, WRONG_EPOCH, FENCED])
@pytest.mark.parametrize("versions", [FIRST, SECOND], ids=["KIP-98", "KIP-890"])
def test_lost_numbering_takes_the_next_epoch(versions: Any, code: int) -> None:
    talk, engine = begun(versions=versions, keep={INIT, END_TXN})
    batch = talk.batch()
    talk.produced(told(code))
    assert outcome(batch) is Outcome.NOT_ACCEPTED
    aborting = waits(talk.call(engine.abort))
    assert not talk.answers(END_TXN).committed
    if versions is FIRST:
        assert talk.answers(INIT).producer_epoch == 0
    assert talk.again(engine.abort, aborting) is None
    engine.begin(talk.now)
    again = talk.batch()
    talk.pass_time(1.0)
    assert again.base_sequence == 0
    talk.produced(told(offset=0))
    assert outcome(again) is None


# --- the end ------------------------------------------------------------------------------------


def test_two_that_wait_for_one_end_are_told_of_it_and_of_no_later_one() -> None:
    talk, engine = begun(keep={END_TXN})
    talk.batch()
    talk.produced(told(offset=3))
    first, second = waits(talk.call(engine.commit)), waits(talk.call(engine.commit))
    talk.answers(END_TXN)
    assert talk.again(engine.commit, first) is None
    engine.begin(talk.now)
    assert talk.again(engine.commit, second) is None
    assert engine.state is State.IN_TRANSACTION


def test_a_commit_that_nobody_was_asked_for_may_be_aborted_and_says_so() -> None:
    talk, engine = begun()
    talk.batch()
    committing = waits(talk.call(engine.commit))
    assert engine.abort(talk.now) is not None
    talk.pass_time()
    talk.produced(told(offset=3))
    assert engine.abort(talk.now) is None
    with pytest.raises(KafkaError, match=r"ended by abort_transaction\(\)"):
        talk.again(engine.commit, committing)


def test_an_abort_is_no_commit_though_the_coordinator_was_to_be_asked_for_one() -> None:
    """Its connection was being made when the application changed its mind."""
    talk, engine = begun(keep={END_TXN})
    talk.batch()
    talk.produced(told(offset=3))
    talk.hanging = {COORDINATOR}
    talk.lose(Role.COORDINATOR)
    committing = waits(talk.call(engine.commit))
    aborting = waits(talk.call(engine.abort))
    talk.hanging = set()
    talk.sender.connected(talk.connecting(COORDINATOR, Role.COORDINATOR), FIRST, talk.now)
    talk.pass_time(1.0)
    assert not talk.answers(END_TXN).committed
    assert talk.again(engine.abort, aborting) is None
    with pytest.raises(KafkaError, match=r"ended by abort_transaction\(\)"):
        talk.again(engine.commit, committing)


def refused_end(name: str) -> Transactions:
    """Two threads call this, and both are told that the coordinator refuses it."""
    talk, engine = begun(keep={END_TXN})
    talk.batch()
    talk.produced(told(offset=3))
    end = getattr(engine, name)
    first, second = waits(talk.call(end)), waits(talk.call(end))
    talk.answers(END_TXN, ID_FORBIDDEN)
    for waiting in (first, second):
        with pytest.raises(TransactionalIdAuthorizationFailedError):
            talk.again(end, waiting)
    return engine


def test_an_end_that_is_refused_is_told_to_all_who_wait_for_it() -> None:
    refused_end("commit")


def test_an_abort_that_is_refused_leaves_the_transaction_to_its_time_out() -> None:
    assert refused_end("abort").state is State.UNINITIALIZED


def test_a_commit_whose_answers_were_lost_may_have_been_done() -> None:
    talk, engine = begun(keep={END_TXN})
    talk.batch()
    talk.produced(told(offset=3))
    committing = waits(talk.call(engine.commit))
    talk.lose(Role.COORDINATOR)
    talk.pass_time(2.0)
    talk.answers(END_TXN, ID_FORBIDDEN)
    with pytest.raises(KafkaError, match="may have been committed"):
        talk.again(engine.commit, committing)


@pytest.mark.parametrize("sent", [False, True], ids=["open", "committing"])
def test_what_is_open_is_ended_by_close(sent: bool) -> None:
    talk, engine = ready(keep={END_TXN})
    assert engine.end_open(talk.now) is None
    engine.begin(talk.now)
    talk.batch()
    talk.produced(told(offset=3))
    if sent:
        waits(talk.call(engine.commit))
    waiting = waits(talk.call(engine.end_open))
    assert talk.answers(END_TXN).committed is sent
    assert talk.again(engine.end_open, waiting) is None
    assert engine.state is State.READY


class TestFencing:
    def test_a_newer_producer_ends_this_one(self) -> None:
        talk, engine = begun(keep={ADD_PARTITIONS})
        batch = talk.batch()
        committing = waits(talk.call(engine.commit))
        talk.answers(ADD_PARTITIONS, FENCED)
        assert outcome(batch) is Outcome.NEVER_SENT
        for _ in range(2):
            with pytest.raises(ProducerFencedError):
                engine.commit(talk.now, committing.ticket)
        for call in (engine.begin, engine.abort, engine.init):
            with pytest.raises(ProducerFencedError):
                call(talk.now)
        with pytest.raises(ProducerFencedError):
            talk.send()

    def test_after_its_time_the_transaction_is_over_and_the_producer_goes_on(self) -> None:
        talk, engine = begun(keep={ADD_PARTITIONS}, transaction_timeout_ms=1000)
        talk.pass_time(2.0)
        talk.batch()
        talk.answers(ADD_PARTITIONS, WRONG_EPOCH)
        with pytest.raises(KafkaError, match="transaction_timeout_ms=1000"):
            engine.commit(talk.now)
        assert talk.call(engine.abort) is None
        engine.begin(talk.now)

    def test_whether_there_is_a_newer_one_is_asked_also_when_it_is_aborted(self) -> None:
        talk, engine = begun(keep={ADD_PARTITIONS, INIT})
        talk.batch()
        talk.answers(ADD_PARTITIONS, UNKNOWN_ID)
        aborting = waits(talk.call(engine.abort))
        assert talk.answers(INIT).producer_id == 7
        assert talk.again(engine.abort, aborting) is None
        assert engine.state is State.READY

    def test_an_id_that_was_forgotten_is_taken_anew(self) -> None:
        talk, engine = begun(keep={ADD_PARTITIONS, INIT})
        talk.batch()
        talk.answers(ADD_PARTITIONS, UNKNOWN_ID)
        assert talk.answers(INIT, UNKNOWN_ID).producer_id == 7
        talk.pass_time(2.0)
        assert talk.answers(INIT).producer_id == -1
        assert engine.state is State.ABORTABLE

    def test_who_asks_for_the_next_epoch_and_is_refused_is_fenced(self) -> None:
        talk, engine = begun(keep={ADD_PARTITIONS, INIT})
        talk.batch()
        talk.answers(ADD_PARTITIONS, UNKNOWN_ID)
        talk.answers(INIT, FENCED)
        assert engine.state is State.FATAL


# --- offsets ------------------------------------------------------------------------------------


class TestOffsets:
    def test_the_coordinator_hears_of_the_group_and_then_the_groups_own_has_them(self) -> None:
        talk, engine = begun(keep={ADD_OFFSETS, COMMIT_OFFSETS})
        look = send_offsets(talk, engine)
        waiting = waits(look(talk.now, 0))
        assert talk.answers(ADD_OFFSETS).group_id == "readers"
        asked = talk.answers(COMMIT_OFFSETS)
        assert [(t.name, [p.committed_offset for p in t.partitions]) for t in asked.topics] == [
            ("in", [7, 8])
        ]
        assert talk.again(look, waiting) is None
        assert talk.call(engine.commit) is None

    def test_by_the_second_protocol_the_group_has_them_at_once(self) -> None:
        talk, engine = begun(versions=SECOND, keep={ADD_OFFSETS, COMMIT_OFFSETS})
        look = send_offsets(talk, engine)
        assert talk.apis() == [COMMIT_OFFSETS]
        talk.answers(COMMIT_OFFSETS)
        assert look(talk.now, 0) is None
        assert talk.call(engine.commit) is None

    def test_they_and_first_batches_do_not_join_at_one_broker_at_a_time(self) -> None:
        talk, engine = begun(partitions=2, versions=SECOND, keep={COMMIT_OFFSETS})
        talk.coordinator = LEADER
        talk.batch(partition=0)
        send_offsets(talk, engine)
        assert talk.apis() == [PRODUCE]
        talk.produced(told(offset=0))
        assert talk.apis() == [COMMIT_OFFSETS]
        talk.batch(partition=0)
        assert talk.apis() == [COMMIT_OFFSETS, PRODUCE], "that one has joined"
        talk.batch(partition=1)
        assert talk.apis() == [COMMIT_OFFSETS, PRODUCE]
        talk.answers(COMMIT_OFFSETS)
        assert talk.apis() == [PRODUCE, PRODUCE]

    def test_those_who_wait_for_others_go_on_waiting(self) -> None:
        talk, engine = begun(keep={COMMIT_OFFSETS})
        first, second = send_offsets(talk, engine), send_offsets(talk, engine)
        waiting = waits(first(talk.now, 0)), waits(second(talk.now, 0))
        talk.answers(COMMIT_OFFSETS)
        assert talk.again(first, waiting[0]) is None
        assert talk.again(second, waiting[1]) is waiting[1]
        talk.answers(COMMIT_OFFSETS)
        assert talk.again(second, waiting[1]) is None

    def test_none_are_in_it_at_once(self) -> None:
        talk, engine = begun()
        assert send_offsets(talk, engine, {})(talk.now, 0) is None

    def test_refused_they_fail_the_transaction(self) -> None:
        talk, engine = begun(keep={COMMIT_OFFSETS})
        look = send_offsets(talk, engine)
        waiting = waits(look(talk.now, 0))
        talk.answers(COMMIT_OFFSETS, GROUP_FORBIDDEN)
        with pytest.raises(GroupAuthorizationFailedError):
            talk.again(look, waiting)
        assert talk.call(engine.abort) is None

    def test_who_waits_while_another_aborts_is_told_the_state(self) -> None:
        talk, engine = begun(keep={COMMIT_OFFSETS, END_TXN})
        look = send_offsets(talk, engine)
        waiting = waits(look(talk.now, 0))
        aborting = waits(talk.call(engine.abort))
        with pytest.raises(IllegalStateError, match="ABORTING"):
            look(talk.now, waiting.ticket)
        talk.answers(COMMIT_OFFSETS)
        talk.answers(END_TXN)
        assert talk.again(engine.abort, aborting) is None

    def test_who_waits_while_another_goes_on_to_the_next_is_told_that(self) -> None:
        talk, engine = begun(keep={COMMIT_OFFSETS})
        look = send_offsets(talk, engine)
        waiting = waits(look(talk.now, 0))
        aborting = waits(talk.call(engine.abort))
        talk.answers(COMMIT_OFFSETS)
        assert talk.again(engine.abort, aborting) is None
        engine.begin(talk.now)
        with pytest.raises(KafkaError, match="of these offsets has ended"):
            talk.again(look, waiting)


# --- coordinators -------------------------------------------------------------------------------


class TestErrands:
    def test_what_an_abort_makes_idle_says_nothing_any_more(self) -> None:
        talk, engine = begun(keep={ADD_PARTITIONS, END_TXN})
        talk.batch()
        aborting = waits(talk.call(engine.abort))
        talk.answers(ADD_PARTITIONS, TOPIC_FORBIDDEN)
        assert not talk.answers(END_TXN).committed
        assert talk.again(engine.abort, aborting) is None

    def test_lost_on_its_way_it_says_nothing_either(self) -> None:
        talk, engine = begun(keep={ADD_PARTITIONS, END_TXN})
        talk.batch()
        aborting = waits(talk.call(engine.abort))
        talk.lose(Role.COORDINATOR)
        talk.pass_time(2.0)
        talk.answers(END_TXN)
        assert talk.again(engine.abort, aborting) is None

    def test_what_was_not_asked_yet_is_never_asked(self) -> None:
        talk, engine = begun(keep={ADD_PARTITIONS})
        talk.batch()
        talk.answers(ADD_PARTITIONS, BUSY)
        assert talk.call(engine.abort) is None
        talk.pass_time(2.0)
        assert not talk.asked

    def test_another_coordinator_is_looked_for(self) -> None:
        talk, _ = begun(keep={ADD_PARTITIONS})
        talk.batch()
        talk.coordinator = LEADER
        talk.answers(ADD_PARTITIONS, NOT_COORDINATOR)
        talk.pass_time(2.0)
        assert talk.next_asked(ADD_PARTITIONS).connection.node_id == LEADER
        talk.answers(ADD_PARTITIONS)
        assert talk.apis() == [PRODUCE]
        [gap] = talk.sender.gaps(talk.now)
        assert (gap.topic, gap.ended_by) == ("txn:shop", GapEnd.ACK)

    def test_what_no_request_can_hold_is_refused_at_once(self) -> None:
        talk, engine = begun(keep={COMMIT_OFFSETS})
        look = send_offsets(talk, engine)
        waiting = waits(look(talk.now, 0))
        token = talk.next_asked(COMMIT_OFFSETS).token
        talk.lose(Role.COORDINATOR, Loss.UNSUPPORTED, unsent=[token])
        with pytest.raises(UnsupportedVersionError, match=f"node {COORDINATOR}"):
            talk.again(look, waiting)

    def test_who_may_not_know_the_coordinator_is_refused(self) -> None:
        talk = Talk(transactional_id="shop", keep={FIND_COORDINATOR})
        engine = talk.sender.transactions
        assert engine is not None
        waiting = waits(talk.call(engine.init))
        talk.answer(talk.next_asked(FIND_COORDINATOR), found(-1, ID_FORBIDDEN))
        with pytest.raises(TransactionalIdAuthorizationFailedError):
            talk.again(engine.init, waiting)

    def test_a_coordinator_that_cannot_be_had_makes_a_gap(self) -> None:
        talk = Talk(transactional_id="shop", keep={FIND_COORDINATOR})
        engine = talk.sender.transactions
        assert engine is not None
        waiting = waits(talk.call(engine.init))
        talk.answer(talk.next_asked(FIND_COORDINATOR), found(-1, 15))
        talk.pass_time(1.0)
        [gap] = talk.sender.gaps(talk.now)
        assert (gap.topic, gap.trigger) == ("txn:shop", "COORDINATOR_NOT_AVAILABLE")
        talk.answer(talk.next_asked(FIND_COORDINATOR), found(COORDINATOR))
        assert talk.again(engine.init, waiting) is None
