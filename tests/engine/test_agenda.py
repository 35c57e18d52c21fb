"""Whom to look at, and when: nobody is forgotten, and nobody is looked at for nothing."""

from __future__ import annotations

import tracemalloc
from math import inf

import pytest

from outlast.engine.agenda import Agenda
from outlast.engine.partition import Partition
from outlast.engine.queue import Limits

LINGER_S = 0.05
LIMITS = Limits(
    idempotent=True,
    window_batches=5,
    batch_bytes=1_000,
    compression=0,
    linger_s=LINGER_S,
    batch_age_s=0.5,
    delivery_timeout_s=10.0,
    unix_offset_s=0.0,
)


def lingering(index: int, now: float) -> Partition:
    """A partition whose first batch begins now."""
    place = Partition("t", index, LIMITS)
    begin(place, now)
    return place


def begin(place: Partition, now: float) -> None:
    place.queue.begin(now).append(0, None, b"v", ())


def due_s(place: Partition) -> float:
    due_s = place.due_s()
    assert due_s is not None
    return due_s


def test_who_changed_is_looked_at_once() -> None:
    agenda, place = Agenda(), lingering(0, 0.0)
    agenda.changed(place)
    agenda.changed(place)
    assert agenda.take(0.0) == [place]
    assert agenda.take(0.0) == []


def test_who_lingers_is_looked_at_when_that_is_over() -> None:
    agenda, places = Agenda(), [lingering(0, 0.0), lingering(1, 0.01)]
    for place in reversed(places):
        agenda.look_at(place, due_s(place))
    assert agenda.next_s() == LINGER_S
    assert agenda.take(LINGER_S - 0.001) == []
    assert agenda.take(LINGER_S) == places[:1]
    assert agenda.next_s() == pytest.approx(LINGER_S + 0.01)
    assert agenda.take(1.0) == places[1:]
    assert agenda.next_s() == inf


def test_a_batch_that_left_early_is_no_reason_to_wake() -> None:
    agenda, place = Agenda(), lingering(0, 0.0)
    agenda.look_at(place, due_s(place))
    place.queue.batches.popleft()
    assert agenda.next_s() == inf
    assert agenda.take(1.0) == []


def test_the_batch_after_one_that_left_early_has_its_own_time() -> None:
    agenda, place = Agenda(), lingering(0, 0.0)
    agenda.look_at(place, due_s(place))
    place.queue.batches.popleft()
    begin(place, 0.02)
    agenda.look_at(place, due_s(place))
    assert agenda.next_s() == pytest.approx(LINGER_S + 0.02)
    assert agenda.take(LINGER_S) == []
    assert agenda.take(LINGER_S + 0.02) == [place]


def test_an_earlier_time_counts() -> None:
    agenda, place = Agenda(), lingering(0, 0.0)
    agenda.look_at(place, due_s(place) + 1.0)  # it was to be tried again then
    agenda.look_at(place, due_s(place))
    assert agenda.next_s() == LINGER_S
    assert agenda.take(LINGER_S) == [place]
    place.queue.batches.clear()
    assert agenda.take(LINGER_S + 1.0) == []


def test_times_do_not_pile_up() -> None:
    """Batches that fill long before their linger is over, one after the other."""
    agenda, place = Agenda(), Partition("t", 0, LIMITS)
    tracemalloc.start()
    try:
        for number in range(2_000):
            begin(place, number * 0.000_01)
            agenda.look_at(place, due_s(place))
            place.queue.batches.popleft()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 20_000
    assert agenda.next_s() == inf


def test_a_time_that_was_put_forward_counts_once() -> None:
    agenda = Agenda()
    place = lingering(0, 0.0)
    agenda.look_at(place, 5.0)
    agenda.look_at(place, LINGER_S)
    assert agenda.take(LINGER_S) == [place]
    assert agenda.next_s() == inf
    assert agenda.take(6.0) == []
