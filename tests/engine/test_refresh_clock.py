from __future__ import annotations

import random
from itertools import pairwise

import pytest
import tenacity

from outlast.engine.refresh import RefreshClock
from outlast.engine.retry import Schedules
from outlast.engine.settings import Settings
from tests.engine.usual import USUAL, Still


def clock(rng=None, **changes) -> RefreshClock:
    configured = Settings(**(USUAL | changes))
    return RefreshClock(configured, Schedules(configured, rng or Still()))


def answered(c: RefreshClock, now: float, *, ok: bool = True, after_s: float = 0.001) -> float:
    """One request from its sending to its end."""
    due = c.due_at(now)
    assert due is not None
    assert due <= now
    c.started(now)
    assert c.due_at(now) is None
    c.finished(ok, now + after_s)
    return now + after_s


def run(c: RefreshClock, now: float, until: float, *, ok: bool = True, round_trip_s=0.001):
    """Ask whenever it is due; the times of sending."""
    sent = []
    while (due := c.due_at(now)) is not None and due < until:
        now = max(now, due)
        sent.append(now)
        now = answered(c, now, ok=ok, after_s=round_trip_s)
    return sent


def test_nothing_is_due_before_anything_is_wanted():
    c = clock()
    assert c.due_at(0.0) is None
    assert repr(c) == (
        "<RefreshClock waiting wanted=None need_since=None attempts=0 not_before=None>"
    )


def test_a_signal_asks_at_once_and_once():
    c = clock()
    c.want(5.0)
    assert c.due_at(5.0) <= 5.0
    now = answered(c, 5.0)
    assert c.due_at(now) == pytest.approx(now + 300.0)


def test_signals_in_a_burst_ask_once_per_back_off():
    c = clock()
    sent = []
    for n in range(1000):
        now = n * 0.001
        c.want(now)
        if (due := c.due_at(now)) is not None and due <= now:
            sent.append(now)
            c.started(now)
            c.finished(True, now)
    assert sent == pytest.approx([n * 0.1 for n in range(10)], abs=0.0011)


def test_a_signal_that_came_after_the_request_left_asks_again():
    c = clock()
    c.want(1.0)
    c.started(1.0)
    c.want(1.01)
    c.finished(True, 1.02)
    assert c.due_at(1.02) == pytest.approx(1.1)
    answered(c, 1.1)
    assert c.due_at(1.2) > 100


def test_age_makes_a_request_due():
    c = clock(metadata_max_age_s=60.0)
    c.want(0.0)
    answered(c, 0.0, after_s=0.5)
    assert c.due_at(1.0) == pytest.approx(60.5)
    answered(c, 60.5, after_s=0.5)
    assert c.due_at(61.0) == pytest.approx(121.0)


def test_no_leader_for_15_s_asks_every_100_ms_then_slower():
    c = clock()
    c.need(0.0, 0.0)
    sent = run(c, 0.0, 30.0)
    steps = [b - a for a, b in pairwise(sent)]
    early = [step for step, at in zip(steps, sent, strict=False) if at < 15.0]
    late = [step for step, at in zip(steps, sent, strict=False) if at >= 17.0]
    assert early == pytest.approx([0.1] * len(early))
    assert late == pytest.approx([1.0] * len(late))
    assert len(late) >= 12


@pytest.mark.parametrize("round_trip_s", [0.0001, 0.02, 0.3])
@pytest.mark.parametrize("signals", [False, True])
def test_requests_keep_to_the_back_off(round_trip_s, signals):
    """At most one request per back-off, one per second after 15 s, 200 in 30 s, whatever comes."""
    for seed in range(20):
        c = clock(random.Random(seed))
        c.need(0.0, 0.0)
        sent, now = [], 0.0
        while now < 30.0:
            if signals:
                c.want(now)
            due = c.due_at(now)
            assert due is not None
            if due > now:
                now = min(due, now + 0.005) if signals else due
                continue
            sent.append(now)
            now = answered(c, now, after_s=round_trip_s)
        assert len(sent) <= 200
        steps = [b - a for a, b in pairwise(sent)]
        assert min(steps) >= 0.08 - 1e-9
        late = [at for at in sent if at > 16.5]
        assert len(late) <= 1 + (30 - 16.5) / 0.8
        if round_trip_s < 0.08:
            assert len([at for at in sent if at < 15]) >= 140  # and not fewer: it finds leaders


def test_a_need_that_ends_leaves_only_age():
    c = clock()
    c.need(0.0, 0.0)
    sent = run(c, 0.0, 3.0)
    c.need(None, sent[-1])
    assert c.due_at(3.0) > 300.0


def test_the_next_need_is_quick_again():
    c = clock()
    c.need(0.0, 0.0)
    slow = run(c, 0.0, 60.0)
    assert slow[-1] - slow[-2] == pytest.approx(1.0)
    now = answered(c, slow[-1] + 1.0)  # the answer that names the leader
    c.need(None, now)
    now += 10.0
    c.need(now, now)
    assert c.due_at(now) <= now
    sent = run(c, now, now + 1.0)
    assert sent[1] - sent[0] == pytest.approx(0.1)


def test_a_request_that_came_to_nothing_is_repeated_at_the_same_pace():
    c = clock()
    c.want(0.0)
    sent = run(c, 0.0, 30.0, ok=False)
    assert len(sent) <= 200
    assert sent[1] - sent[0] == pytest.approx(0.1)
    assert sent[-1] - sent[-2] == pytest.approx(1.0)
    answered(c, sent[-1] + 1.0)
    assert c.due_at(32.0) > 300.0


def test_a_refresh_by_age_that_fails_is_repeated():
    c = clock(metadata_max_age_s=60.0)
    c.want(0.0)
    answered(c, 0.0)
    now = answered(c, 60.5, ok=False, after_s=2.0)
    assert c.due_at(now) <= now


def test_a_slow_answer_is_followed_at_once_while_needed():
    c = clock()
    c.need(0.0, 0.0)
    now = answered(c, 0.0, after_s=2.0)
    assert c.due_at(now) <= now


def test_the_users_schedule_sets_the_pace():
    c = clock(metadata_wait=tenacity.wait_incrementing(start=1, increment=1, max=3))
    c.need(0.0, 0.0)
    sent = run(c, 0.0, 20.0)
    assert sent[:5] == pytest.approx([0, 1, 3, 6, 9])


def test_an_answer_resets_the_count_of_attempts_where_nothing_is_needed():
    c = clock(metadata_wait=tenacity.wait_incrementing(start=1, increment=1, max=9))
    for at in (0.0, 100.0, 200.0):
        c.want(at)
        answered(c, at)
        c.want(at + 0.1)
        assert c.due_at(at + 0.1) == pytest.approx(at + 1.0)
        answered(c, at + 1.0)


def test_trouble_that_is_over_does_not_slow_the_next():
    c = clock()
    c.want(0.0)
    sent = run(c, 0.0, 30.0, ok=False)
    answered(c, sent[-1] + 1.0)
    c.want(100.0)
    sent = run(c, 100.0, 101.0, ok=False)
    assert sent[1] - sent[0] == pytest.approx(0.1)


def test_news_make_the_pace_20_ms_for_a_fifth_of_a_second():
    c = clock()
    c.need(0.0, 0.0)
    assert run(c, 0.0, 0.25) == pytest.approx([0.0, 0.1, 0.2], abs=0.02)
    c.news(0.21)
    sent = run(c, 0.21, 1.0)
    quick = [at for at in sent if at < 0.41]
    assert quick == pytest.approx([0.22 + 0.02 * n for n in range(10)], abs=0.005)
    assert len([at for at in sent if at >= 0.45]) <= 6, "then the usual pace again"


def test_news_ask_at_once_but_not_in_a_flood():
    c = clock()
    c.want(0.0)
    answered(c, 0.0)
    for at in (0.001, 0.002, 0.003):
        c.news(at)
    assert c.due_at(0.003) == pytest.approx(0.02)


def test_news_before_anything_was_asked_ask_at_once():
    c = clock()
    c.news(5.0)
    assert c.due_at(5.0) <= 5.0
