"""The engine's face: what only the whole of it shows, by inputs and outputs."""

from __future__ import annotations

import random

import pytest

from outlast.engine.messages import (
    Complaint,
    Connect,
    Connection,
    GapEnd,
    GapEnded,
    Loss,
    Outcome,
    Role,
)
from outlast.engine.sender import Sender, Waiting
from outlast.engine.settings import Settings
from tests.engine.talk import LEADER, METADATA, PRODUCE, Talk, outcome, told
from tests.engine.usual import USUAL

NOT_LEADER, REQUEST_TIMED_OUT = 6, 7


def test_a_driver_that_comes_late_is_told_what_fell_due_meanwhile() -> None:
    """A slow callback kept the I/O thread while the back-off of the only address ran out."""
    sender = Sender(Settings(**USUAL), random.Random(1), 0.0, 0.0)
    assert isinstance(sender.append("t", None, None, b"v", (), 0, 0.0), Waiting)
    sender.tick(0.001)
    [connect] = sender.take().commands
    assert isinstance(connect, Connect)
    sender.disconnected(connect.connection, Loss.REFUSED, "refused", 0.002)
    retry_s = sender.next_deadline(0.003)
    assert retry_s is not None
    assert retry_s < 1.0
    late_s = retry_s + 5.0
    due_s = sender.next_deadline(late_s)
    assert due_s == pytest.approx(late_s, abs=0.01)
    sender.tick(late_s)
    assert any(isinstance(command, Connect) for command in sender.take().commands)


def test_a_driver_that_is_woken_for_records_has_them_sent() -> None:
    """Nothing is due: what is looked at by time alone need not be."""
    talk = Talk()
    talk.batch()
    talk.produced(told(offset=0))
    talk.send()
    assert talk.sender.attention
    talk.sender.step(talk.now)
    assert not talk.sender.attention
    talk.obey()
    assert talk.apis() == [PRODUCE]


class TestEventsOfConnectionsThatWereGivenUp:
    """Nothing follows from them: what was unanswered there is accounted for already."""

    def talk(self) -> tuple[Talk, Connection]:
        talk = Talk()
        talk.batch()
        old = next(c for c in talk.opened if c.role is Role.OPEN)
        talk.lose(Role.OPEN)
        talk.pass_time(1.0)
        assert talk.next_asked().connection == Connection(LEADER, Role.OPEN, old.serial + 1)
        return talk, old

    def test_they_change_nothing(self) -> None:
        talk, old = self.talk()
        sender, facts = talk.sender, len(talk.facts)
        sender.connected(old, {}, talk.now)
        sender.disconnected(old, Loss.CLOSED, "late", talk.now)
        sender.responded(old, talk.next_asked().token, None, talk.now)
        sender.inspected(old, 5, talk.now)
        talk.obey()
        assert len(talk.facts) == facts
        assert talk.apis() == [PRODUCE]

    def test_nor_does_an_answer_to_something_else(self) -> None:
        talk, _ = self.talk()
        send = talk.next_asked()
        talk.sender.responded(send.connection, send.token + 1, None, talk.now)
        talk.obey()
        talk.produced(told(offset=0))
        assert [outcome(batch) for batch in talk.settled] == [None]


class TestClose:
    @pytest.mark.parametrize(
        ("in_flight", "queued", "text"),
        [
            (2, 0, "2 records were not acknowledged when the producer was closed; they may be in"),
            (2, 1, "3 records were not acknowledged when the producer was closed; 2 of them may"),
            (0, 1, "1 records were not acknowledged when the producer was closed"),
        ],
    )
    def test_what_is_not_acknowledged_fails_and_is_told(
        self, in_flight: int, queued: int, text: str
    ) -> None:
        talk = Talk(linger_s=5.0)
        if in_flight:
            talk.batch(in_flight)
        for _ in range(queued):
            talk.send()
        talk.sender.close(talk.now, fail_rest=True)
        assert sum(batch.count for batch in talk.sender.untaken()) == in_flight + queued
        talk.obey()
        told_of = {Outcome.UNKNOWN: 2 * bool(in_flight), Outcome.NEVER_SENT: queued}
        for wanted, count in told_of.items():
            failed = [batch for batch in talk.settled if outcome(batch) is wanted]
            assert sum(batch.count for batch in failed) == count
        [complaint] = [fact.text for fact in talk.facts if isinstance(fact, Complaint)]
        assert text in complaint
        assert set(talk.opened) == set(talk.closed)

    def test_then_nothing_happens_any_more(self) -> None:
        talk = Talk()
        talk.refusing = {LEADER}
        talk.batch()
        talk.pass_time(1.0)
        talk.sender.close(talk.now, fail_rest=True)
        talk.obey()
        [ended] = [fact.gap for fact in talk.facts if isinstance(fact, GapEnded)]
        assert ended.ended_by is GapEnd.CLOSED
        assert talk.sender.next_deadline(talk.now) is None
        talk.sender.tick(talk.now + 100.0)
        assert not talk.sender.take()

    def test_with_nothing_left_nothing_is_told(self) -> None:
        talk = Talk()
        talk.batch()
        talk.produced(told(offset=0))
        talk.sender.close(talk.now, fail_rest=True)
        talk.obey()
        assert [fact for fact in talk.facts if isinstance(fact, Complaint)] == []

    def test_first_what_lingers_is_sent(self) -> None:
        talk = Talk(linger_s=5.0)
        talk.send()
        talk.sender.close(talk.now, fail_rest=False)
        talk.pass_time()
        assert talk.apis() == [PRODUCE]


class TestWithoutAcks:
    """acks=0: handed over is all that is ever known."""

    def talk(self) -> Talk:
        talk = Talk(acks=0, idempotent=False)
        batch = talk.batch()
        assert not talk.asked
        assert talk.settled == [batch]
        assert batch.result is not None
        assert batch.result.base_offset == -1
        return talk

    def test_the_end_of_a_connection_may_have_been_a_refusal(self) -> None:
        talk = self.talk()
        talk.keep.add(METADATA)
        talk.lose(Role.OPEN)
        talk.pass_time(1.0)
        assert METADATA in talk.apis()

    def test_nothing_is_a_gap(self) -> None:
        talk = self.talk()
        talk.refusing = {LEADER}
        talk.lose(Role.OPEN)
        talk.batch()
        talk.pass_time(3.0)
        assert talk.sender.gaps(talk.now) == []
        talk.refusing.clear()
        talk.pass_time(2.0)
        assert len(talk.settled) == 2


def test_a_broker_that_throttles_is_given_more_time_for_what_it_owes() -> None:
    """It reads nothing meanwhile (KIP-219)."""
    talk = Talk(request_timeout_s=3.0, silence_timeout_s=100.0)
    talk.batch()
    talk.produced(told(offset=0))
    talk.batch()
    talk.send()
    talk.sender.flush(talk.now)
    talk.pass_time()
    assert talk.apis() == [PRODUCE, PRODUCE]
    talk.throttle_ms = 2000
    talk.produced(told(offset=1))
    talk.pass_time(4.5)
    assert talk.apis() == [PRODUCE]
    assert not [c for c in talk.closed if c.role is Role.OPEN]
    talk.pass_time(1.0)
    assert [c for c in talk.closed if c.role is Role.OPEN]


def test_how_it_does_as_plain_values() -> None:
    talk = Talk(partitions=2)
    talk.batch(partition=0)
    talk.produced(told(NOT_LEADER))
    talk.pass_time(2.0)
    talk.batch(partition=1)
    talk.produced(told(NOT_LEADER))
    talk.produced(told(REQUEST_TIMED_OUT, index=1, offset=4))
    talk.pass_time(2.0)
    health = talk.sender.health(talk.now)
    assert not health.ok
    plain = health.to_dict()
    assert plain["ok"] is False
    assert [gap["cause"] for gap in plain["open_gaps"]] == ["not_leader"]
    assert [(who["partition"], who["reason"]) for who in plain["held_up"]] == [
        (0, "gap: not_leader"),
        (1, "stall: follower"),
    ]
    [stall] = plain["open_stalls"]
    assert (stall["partition"], stall["reason"], stall["ended_by"]) == (1, "follower", None)


def test_who_is_late_without_a_known_reason_is_waiting() -> None:
    talk = Talk(silence_timeout_s=60.0)
    talk.batch()
    talk.pass_time(5.0)
    [who] = talk.sender.health(talk.now).held_up
    assert (who.partition, who.reason) == (0, "waiting")
