"""enable_idempotence=False: no numbers, one lane, and each batch is judged by its own answer."""

from __future__ import annotations

from outlast.engine.batch import Batch
from outlast.engine.messages import Outcome, Role, StallOpened
from tests.engine.talk import INIT, LEADER, PRODUCE, Talk, outcome, told

TOO_LARGE, INVALID_RECORD, REQUEST_TIMED_OUT = 10, 87, 7


def talk(**more: object) -> Talk:
    return Talk(idempotent=False, **more)


def test_nobody_is_asked_for_a_producer_id() -> None:
    t = talk(keep={INIT})
    batches = [t.batch() for _ in range(3)]
    assert t.apis() == [PRODUCE] * 3
    t.produced(told(INVALID_RECORD))
    t.produced(told(offset=0))
    t.produced(told(REQUEST_TIMED_OUT, offset=1))
    assert [outcome(batch) for batch in batches[:2]] == [Outcome.NOT_ACCEPTED, None]
    assert {c.role for c in t.opened} == {Role.CONTROL, Role.OPEN}, "there is one lane"
    t.pass_time(1.0)
    t.produced(told(offset=2))
    assert t.settled == batches


def test_pieces_of_one_that_was_too_large_have_no_numbers() -> None:
    t = talk()
    t.batch(4)
    t.produced(told(TOO_LARGE))
    t.pass_time(1.0)
    for offset in (0, 2):
        t.produced(told(offset=offset))
    assert [(b.count, b.base_sequence, outcome(b)) for b in t.settled] == [(2, -1, None)] * 2


def test_only_what_has_waited_too_long_expires() -> None:
    t = talk(delivery_timeout_s=3.0, request_timeout_s=2.9, silence_timeout_s=60.0)
    old = t.batch()
    t.pass_time(2.0)
    young = t.batch()
    t.pass_time(1.5)
    assert t.settled == [old]
    assert outcome(old) is Outcome.UNKNOWN
    assert young.result is None


def test_a_broker_that_is_usually_slow_is_silent_later() -> None:
    """Four times its usual answer time, as nobody can say how long followers may take."""
    t = talk()
    batches: list[Batch] = []
    for _ in range(3):
        batches.append(t.batch())
        t.pass_time(0.5)
        t.produced(told(offset=0))
    t.batch()
    t.hanging = {LEADER}
    t.pass_time(1.8)
    assert not [c for c in t.coming if c.role is Role.PROBE]
    t.pass_time(0.4)
    assert [c for c in t.coming if c.role is Role.PROBE]


def test_one_that_has_not_answered_yet_is_silent_after_the_least_time() -> None:
    t = talk()
    t.batch()
    t.pass_time(1.2)
    assert [c for c in t.opened if c.role is Role.PROBE]
    assert [fact for fact in t.facts if isinstance(fact, StallOpened)], "it answered the probe"
