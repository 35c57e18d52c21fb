"""The bound of the send buffer: room in the order of asking, reservations, refunds."""

from __future__ import annotations

from hypothesis import given, strategies as st

from outlast.engine.accumulator import Accumulator
from outlast.engine.shares import Shares

TP = ("t", 0)


def test_room_is_taken_until_it_is_full() -> None:
    room = Accumulator(100, Shares(0.0))
    assert room.charge(TP, 60)
    assert not room.charge(TP, 50)
    assert room.charge(TP, 40)
    assert room.used_bytes == 100


def test_who_comes_later_takes_nothing_while_others_wait() -> None:
    room = Accumulator(100, Shares(0.0))
    assert room.charge(TP, 90)
    assert not room.charge(TP, 50)
    room.wait(TP, 1, 50)
    assert not room.charge(TP, 5), "the smaller one would starve the larger for ever"


def test_a_grant_is_a_reservation_for_its_ticket_alone() -> None:
    room = Accumulator(100, Shares(0.0))
    assert room.charge(TP, 100)
    room.wait(TP, 1, 50)
    room.wait(TP, 2, 60)
    assert room.refund(TP, 100) == [1]
    assert not room.charge(TP, 10)
    assert room.charge(TP, 50, ticket=1)
    assert room.refund(TP, 50) == [2]
    assert room.charge(TP, 60, ticket=2)
    assert room.used_bytes == 60


def test_a_waiter_that_gives_up_hands_its_room_on() -> None:
    room = Accumulator(100, Shares(0.0))
    assert room.charge(TP, 100)
    room.wait(TP, 1, 80)
    room.wait(TP, 2, 80)
    assert room.refund(TP, 100) == [1]
    assert room.cancel(1) == [2]
    assert room.charge(TP, 80, ticket=2)


def test_a_waiter_that_gives_up_before_its_turn_lets_the_next_one_through() -> None:
    room = Accumulator(100, Shares(0.0))
    assert room.charge(TP, 60)
    room.wait(TP, 1, 80)
    room.wait(TP, 2, 30)
    assert room.cancel(1) == [2]


@given(
    st.lists(st.tuples(st.sampled_from("cwxr"), st.integers(1, 40), st.integers(1, 6)), max_size=60)
)
def test_used_bytes_are_the_charges_and_grants_and_never_pass_the_bound(
    steps: list[tuple[str, int, int]],
) -> None:
    room = Accumulator(100, Shares(0.0))
    charges: list[int] = []
    waiting: dict[int, int] = {}
    granted: dict[int, int] = {}

    def grant(tickets: list[int]) -> None:
        for ticket in tickets:
            assert ticket == next(iter(waiting)), "out of turn"
            granted[ticket] = waiting.pop(ticket)

    for verb, size, ticket in steps:
        if verb == "c" and room.charge(TP, size):
            assert not waiting
            charges.append(size)
        elif verb == "w" and ticket not in waiting and ticket not in granted:
            room.wait(TP, ticket, size)
            waiting[ticket] = size
        elif verb == "x":
            waiting.pop(ticket, None)
            granted.pop(ticket, None)
            grant(room.cancel(ticket))
        elif verb == "r" and charges:
            grant(room.refund(TP, charges.pop()))
        assert room.used_bytes == sum(charges) + sum(granted.values()) <= 100


def test_a_later_waiter_that_would_fit_does_not_overtake() -> None:
    room = Accumulator(100, Shares(0.0))
    assert room.charge(TP, 50)
    assert room.charge(TP, 50)
    room.wait(TP, 1, 80)
    room.wait(TP, 2, 30)
    assert room.refund(TP, 50) == []
    assert room.refund(TP, 50) == [1]
