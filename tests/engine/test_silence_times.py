"""When a node that owes an answer is found silent: on the dot; and nobody looks without reason."""

from __future__ import annotations

import pytest

from outlast.engine.messages import Role
from tests.engine.talk import Talk, told

SILENCE_S = 1.0


def served() -> Talk:
    """A producer whose leader has answered at once, and owes nothing. Without lanes, so that the
    silence time-out alone counts.
    """
    talk = Talk(silence_timeout_s=SILENCE_S, idempotent=False)
    talk.batch()
    talk.produced(told(offset=0))
    return talk


def probes(talk: Talk) -> int:
    return sum(connection.role is Role.PROBE for connection in talk.opened)


@pytest.mark.parametrize("before_s", [0.0, 0.3, 0.998, 0.999, 1.0, 1.7, 7.77])
def test_a_node_is_silent_on_the_dot_whenever_its_silence_began(before_s: float) -> None:
    talk = served()
    talk.pass_time(before_s)
    sent_s = talk.now
    talk.batch()
    talk.pass_time(sent_s + SILENCE_S - 0.001 - talk.now)
    assert probes(talk) == 0
    talk.pass_time(0.002)
    assert probes(talk) == 1


def test_each_answer_puts_it_off() -> None:
    """Somebody always owes one, and the oldest is always younger than the time-out."""
    talk = served()
    talk.batch()
    for offset in range(1, 8):
        talk.pass_time(0.2)
        talk.batch()
        talk.produced(told(offset=offset))
    assert probes(talk) == 0
    talk.pass_time(SILENCE_S - 0.01)
    assert probes(talk) == 0
    talk.pass_time(0.01)
    assert probes(talk) == 1


def test_who_is_owed_nothing_sleeps_until_metadata_is_old() -> None:
    talk = served()
    talk.pass_time(20.0)  # the figures of the buffer have settled
    due_s = talk.sender.next_deadline(talk.now)
    assert due_s is not None
    assert due_s - talk.now > 60.0
