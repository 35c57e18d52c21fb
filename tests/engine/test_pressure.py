"""How full the buffer is and who waits: told once a second, and nobody is woken for trifles."""

from __future__ import annotations

import pytest

from outlast.engine.accumulator import Accumulator
from outlast.engine.inflow import Inflow
from outlast.engine.messages import BufferLevel, SendersBlocked
from outlast.engine.pressure import Pressure
from outlast.engine.shares import Shares

TP = ("t", 0)
LIMIT_BYTES = 128_000


class Bench:
    def __init__(self) -> None:
        self.room = Accumulator(LIMIT_BYTES, Shares(0.0))
        self.pressure = Pressure(self.room, 0.0)

    def look(self, now: float, metadata_waiters: int = 0):
        return self.pressure.look(metadata_waiters, now)


def test_the_first_look_tells_the_limit():
    bench = Bench()
    assert bench.look(0.0) == [BufferLevel(0.0, 0, LIMIT_BYTES, None)]
    assert bench.look(5.0) == []
    assert bench.pressure.next_deadline() is None


def test_a_level_is_told_within_a_second_and_not_more_often():
    bench = Bench()
    bench.look(0.0)
    assert bench.room.charge(TP, 64_000)
    assert bench.look(0.4) == []
    assert bench.pressure.next_deadline() == 1.0
    [level] = bench.look(1.0)
    assert (level.used_bytes, level.headroom_s) == (64_000, 1.0)
    bench.room.refund(TP, 64_000)
    assert bench.look(1.9) == []
    assert bench.pressure.next_deadline() == 2.0
    [level] = bench.look(2.0)
    assert level.used_bytes == 0
    assert level.headroom_s == pytest.approx(4.0)


def test_few_bytes_wake_nobody_but_are_told_when_somebody_looks():
    bench = Bench()
    bench.look(0.0)
    assert bench.room.charge(TP, 900)
    assert bench.look(0.5) == []
    assert bench.pressure.next_deadline() == 11.0, "if nobody looks before"
    [level] = bench.look(7.0)
    assert level.used_bytes == 900
    assert bench.room.charge(TP, 200)  # together more than a hundredth of the buffer
    assert bench.pressure.next_deadline() == 7.0 + 11.0  # to see that nothing comes any more
    assert bench.room.charge(TP, 900)
    assert bench.pressure.next_deadline() == 8.0


def test_that_nothing_comes_any_more_is_told_once():
    bench = Bench()
    bench.look(0.0)
    bench.room.charge(TP, 2_000)
    [level] = bench.look(1.0)
    assert level.headroom_s is not None
    assert bench.pressure.next_deadline() == 12.0
    [level] = bench.look(12.0)
    assert level.headroom_s is None
    assert bench.pressure.next_deadline() is None
    assert bench.look(14.0) == []


def test_waiting_is_threads_times_time_by_reason():
    bench = Bench()
    bench.look(0.0)
    bench.room.charge(TP, LIMIT_BYTES)
    bench.look(1.0)
    for ticket in (1, 2, 3):
        assert not bench.room.charge(TP, 100)
        bench.room.wait(TP, ticket, 100)
    assert bench.look(1.0, metadata_waiters=1) == []
    assert bench.pressure.next_deadline() == 2.0
    told = bench.look(2.0, metadata_waiters=1)
    blocked = [fact for fact in told if isinstance(fact, SendersBlocked)]
    assert blocked == [
        SendersBlocked(2.0, "memory", 3, 3.0),
        SendersBlocked(2.0, "metadata", 1, 1.0),
    ]
    bench.room.cancel(1)
    bench.look(2.5)
    bench.room.cancel(2)
    bench.room.cancel(3)
    bench.look(2.75)
    assert bench.pressure.next_deadline() == 3.0  # what has not been told yet
    told = [fact for fact in bench.look(3.0) if isinstance(fact, SendersBlocked)]
    assert told == [
        SendersBlocked(3.0, "memory", 0, pytest.approx(3 * 0.5 + 2 * 0.25)),
        SendersBlocked(3.0, "metadata", 0, 0.5),
    ]
    assert bench.look(4.0) == []


def test_the_rest_is_told_at_close():
    bench = Bench()
    bench.look(0.0)
    bench.room.charge(TP, LIMIT_BYTES)
    bench.room.wait(TP, 1, 100)
    bench.look(0.1)
    bench.room.refund(TP, LIMIT_BYTES)
    told = bench.pressure.rest(0.6)
    assert isinstance(told[0], BufferLevel)
    assert told[0].used_bytes == 100  # set aside for the one who waits
    assert told[1] == SendersBlocked(0.6, "memory", 0, pytest.approx(0.5))


def test_after_a_long_silence_the_rate_is_that_since_the_last_sample() -> None:
    inflow = Inflow(0.0)
    inflow.sample(1000, 1.0)
    assert inflow.bytes_per_s(1000, 1.0) == pytest.approx(1000.0)
    assert inflow.bytes_per_s(3000, 41.0) == pytest.approx(50.0)
