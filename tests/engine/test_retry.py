from __future__ import annotations

import math
import random

import pytest
import tenacity
from hypothesis import given, strategies as st
from kafka.errors import KafkaConnectionError, NotLeaderForPartitionError

from outlast.engine.retry import (
    DELAY_S_MIN,
    RetryState,
    Schedules,
    wait_steady_then_exponential,
)
from outlast.engine.settings import Settings
from tests.engine.usual import USUAL, Still


def schedules(rng=None, **changes) -> Schedules:
    return Schedules(Settings(**(USUAL | changes)), rng or Still())


def delays(ask, count):
    return [pytest.approx(ask(n)) for n in range(1, count + 1)]


def test_default_retry_and_reconnect_double_up_to_their_maximum():
    s = schedules()
    assert delays(lambda n: s.retry_delay_s(n, 0.0, "NOT_ENOUGH_REPLICAS"), 6) == [
        0.1,
        0.2,
        0.4,
        0.8,
        1.0,
        1.0,
    ]
    assert delays(lambda n: s.reconnect_delay_s(n, 0.0), 7) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert s.retry_delay_s(10_000, 1e6, "X") == pytest.approx(1.0)
    assert s.complaints == []


def test_default_metadata_is_steady_for_15_s_then_doubles():
    s = schedules()
    assert s.metadata_delay_s(1, 0.0) == pytest.approx(0.1)
    assert s.metadata_delay_s(140, 14.99) == pytest.approx(0.1)
    now, waits = 15.0, []
    for n in range(6):
        waits.append(s.metadata_delay_s(150 + n, now))
        now += waits[-1]
    assert waits == [pytest.approx(x) for x in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0)]


def test_a_backoff_above_its_maximum_stays_steady():
    wait = wait_steady_then_exponential(2.0, 1.0, 15.0)
    assert wait(RetryState(1, 0.0, "")) == 2.0
    assert wait(RetryState(1, 100.0, "")) == 2.0


def test_denials_and_producer_ids_start_in_milliseconds():
    s = schedules()
    assert delays(s.denied_delay_s, 6) == [0.005, 0.01, 0.02, 0.04, 0.08, 0.1]
    assert delays(s.producer_id_delay_s, 8) == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0]
    assert s.producer_id_delay_s(5000) == pytest.approx(1.0)


@given(seed=st.integers(0, 1000), attempt=st.integers(1, 50), own=st.floats(0.01, 100))
def test_jitter_is_20_percent_and_the_engines_own(seed, attempt, own):
    still = schedules(retry_wait=tenacity.wait_fixed(own))
    s = schedules(random.Random(seed), retry_wait=tenacity.wait_fixed(own))
    again = schedules(random.Random(seed), retry_wait=tenacity.wait_fixed(own))
    for ask in ("retry_delay_s", "reconnect_delay_s", "metadata_delay_s"):
        arguments = (attempt, 20.0, "X")[: 3 if ask == "retry_delay_s" else 2]
        plain = getattr(still, ask)(*arguments)
        delay = getattr(s, ask)(*arguments)
        assert 0.8 * plain <= delay <= 1.2 * plain
        assert getattr(again, ask)(*arguments) == delay


def test_jitter_spreads():
    s = schedules(random.Random(1))
    spread = {round(s.metadata_delay_s(1, 0.0), 4) for _ in range(100)}
    assert min(spread) < 0.082
    assert max(spread) > 0.118


def test_users_schedules_are_asked_each_for_its_own():
    s = schedules(
        retry_wait=tenacity.wait_exponential(multiplier=2, max=50),
        reconnect_wait=tenacity.wait_fixed(3) + tenacity.wait_random(0, 1),
        metadata_wait=tenacity.wait_incrementing(start=1, increment=0.5),
        retry_stop=tenacity.stop_after_delay(30) | tenacity.stop_after_attempt(4),
    )
    assert delays(lambda n: s.retry_delay_s(n, 0.0, "X"), 6) == [2, 4, 8, 16, 32, 50]
    assert 3 <= s.reconnect_delay_s(1, 0.0) <= 4
    assert delays(lambda n: s.metadata_delay_s(n, 0.0), 3) == [1, 1.5, 2]
    assert not s.retry_stops(3, 29.9)
    assert s.retry_stops(4, 0.0)
    assert s.retry_stops(1, 30.0)
    assert s.complaints == []


@pytest.mark.parametrize(
    "wait",
    [
        tenacity.wait_none(),
        tenacity.wait_fixed(1),
        tenacity.wait_random(0, 2),
        tenacity.wait_incrementing(),
        tenacity.wait_exponential(),
        tenacity.wait_random_exponential(),
        tenacity.wait_exponential_jitter(),
        tenacity.wait_chain(tenacity.wait_fixed(1), tenacity.wait_fixed(2)),
        tenacity.wait_combine(tenacity.wait_fixed(1), tenacity.wait_fixed(2)),
        tenacity.wait_exception(lambda error: 7.0 if isinstance(error, Exception) else -1),
        lambda state: state.idle_for + state.outcome.attempt_number,
    ],
    ids=lambda wait: type(wait).__name__,
)
def test_every_kind_of_wait_finds_what_it_reads(wait):
    s = schedules(retry_wait=wait)
    for attempt in (1, 2, 30):
        assert s.retry_delay_s(attempt, 5.0, "NOT_LEADER_OR_FOLLOWER") >= DELAY_S_MIN
    assert s.complaints == []


@pytest.mark.parametrize(
    ("stop", "after"),
    [
        (tenacity.stop_never, None),
        (tenacity.stop_after_attempt(3), 3),
        (tenacity.stop_after_delay(4), 4),
        (tenacity.stop_before_delay(4.5), 4),  # 4 s and the next wait of 1 s
        (tenacity.stop_any(tenacity.stop_after_attempt(7), tenacity.stop_after_delay(5)), 5),
        (tenacity.stop_all(tenacity.stop_after_attempt(7), tenacity.stop_after_delay(5)), 7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_stop_finds_what_it_reads(stop, after):
    s = schedules(retry_stop=stop, retry_wait=tenacity.wait_fixed(1))
    stopped = [n for n in range(1, 20) if s.retry_stops(n, float(n))]
    assert stopped == ([] if after is None else list(range(after, 20)))
    assert s.complaints == []


def test_the_state_has_all_that_tenacitys_has_but_its_methods():
    theirs = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    public = {name for name in dir(theirs) if not name.startswith("_")}
    methods = {"prepare_for_next_attempt", "set_exception", "set_result", "get_fn_name"}
    ours = RetryState(3, 1.5, "NOT_LEADER_OR_FOLLOWER")
    assert public - methods <= set(dir(ours))
    assert (ours.attempt_number, ours.seconds_since_start, ours.outcome_timestamp) == (3, 1.5, 1.5)
    assert ours.outcome.failed
    assert isinstance(ours.outcome.exception(), NotLeaderForPartitionError)
    with pytest.raises(KafkaConnectionError, match="CONNECTION_CLOSED"):
        RetryState(1, 0.0, "CONNECTION_CLOSED").outcome.result()
    assert repr(ours) == "<RetryState attempt=3 since=1.500 s>"
    assert (ours.args, ours.kwargs) == ((), {})


@pytest.mark.parametrize(
    ("retries", "stops_at"), [(0, 1), (5, 6), (2147483647, 2147483648), (math.inf, None)]
)
def test_the_default_stop_is_retries(retries, stops_at):
    s = schedules(retries=retries)
    if stops_at is None:
        assert not s.retry_stops(10**9, 1e9)
    else:
        assert not s.retry_stops(stops_at - 1, 1e9)
        assert s.retry_stops(stops_at, 0.0)


def broken(state):
    raise KeyError("no")


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (broken, "raised KeyError"),
        (lambda _: -0.1, "gave -0.1"),
        (lambda _: math.nan, "gave nan"),
        (lambda _: math.inf, "gave inf"),
        (lambda _: None, "raised TypeError"),
        (lambda _: "soon", "raised ValueError"),
    ],
    ids=["raises", "negative", "nan", "inf", "none", "text"],
)
@pytest.mark.parametrize("name", ["retry_wait", "reconnect_wait", "metadata_wait"])
def test_a_bad_wait_is_told_once_and_the_default_answers(name, wait, told):
    s = schedules(**{name: wait})

    def ask(n):
        if name == "retry_wait":
            return s.retry_delay_s(n, 0.0, "X")
        return (s.reconnect_delay_s if name == "reconnect_wait" else s.metadata_delay_s)(n, 0.0)

    first = {"retry_wait": 0.1, "reconnect_wait": 0.05, "metadata_wait": 0.1}[name]
    assert ask(1) == pytest.approx(first)
    assert ask(1) == pytest.approx(first)
    assert len(s.complaints) == 1
    assert name in s.complaints[0]
    assert told in s.complaints[0]
    assert "seconds, 0 or more" in s.complaints[0]
    s.complaints.clear()
    ask(2)
    assert s.complaints == []  # taken away, and still said only once


def test_a_bad_answer_now_and_then_spoils_only_itself():
    s = schedules(retry_wait=lambda state: -1 if state.attempt_number == 2 else 3.0)
    assert delays(lambda n: s.retry_delay_s(n, 0.0, "X"), 3) == [3.0, 0.2, 3.0]


def test_a_bad_stop_is_told_once_and_retries_answer():
    s = schedules(retry_stop=broken, retries=2)
    assert [s.retry_stops(n, 0.0) for n in (1, 2, 3)] == [False, False, True]
    assert len(s.complaints) == 1
    assert "True or False" in s.complaints[0]
    assert "complained=['retry_stop']" in repr(s)


def test_no_schedule_spins():
    s = schedules(retry_wait=tenacity.wait_none(), retry_backoff_s=0.0, reconnect_backoff_s=0.0)
    assert s.retry_delay_s(1, 0.0, "X") == DELAY_S_MIN
    assert s.reconnect_delay_s(1, 0.0) == DELAY_S_MIN
    assert s.metadata_delay_s(1, 0.0) == DELAY_S_MIN
