"""The bound of the send buffer: room in the order of asking, reservations, refunds.

Nobody is held up here; what changes when somebody is, is in test_shares.
"""

from __future__ import annotations

from hypothesis import given, strategies as st

from outlast.engine.accumulator import Accumulator
from outlast.engine.shares import Shares

A, B = ("t", 0), ("t", 1)


def accumulator() -> Accumulator:
    return Accumulator(100, Shares(linger_s=0.0))


def test_room_is_taken_until_it_is_full() -> None:
    room = accumulator()
    assert room.charge(A, 60)
    assert not room.charge(A, 50)
    assert room.charge(B, 40)
    assert room.used_bytes == 100


def test_who_comes_later_takes_nothing_while_others_wait() -> None:
    room = accumulator()
    assert room.charge(A, 90)
    assert not room.charge(A, 50)
    room.wait(A, 1, 50)
    assert not room.charge(B, 5), "the smaller one would starve the larger for ever"


def test_a_grant_is_a_reservation_for_its_ticket_alone() -> None:
    room = accumulator()
    assert room.charge(A, 100)
    room.wait(A, 1, 50)
    room.wait(B, 2, 60)
    assert room.refund(A, 100) == [1]
    assert room.reserved() == {A: 50}
    assert not room.charge(B, 10)
    assert room.charge(A, 50, ticket=1)
    assert room.refund(A, 50) == [2]
    assert room.charge(B, 60, ticket=2)
    assert room.used_bytes == 60
    assert not room.anybody_waits


def test_a_grant_that_is_too_small_goes_back_and_its_owner_to_the_end() -> None:
    room = accumulator()
    assert room.charge(A, 70)
    room.wait(A, 1, 40)
    room.wait(B, 2, 30)
    assert room.refund(A, 20) == [1]
    assert not room.charge(A, 60, ticket=1)
    room.wait(A, 1, 60)
    assert room.grant() == [2]
    assert room.refund(A, 50) == [1]
    assert room.charge(A, 60, ticket=1)
    assert room.charge(B, 30, ticket=2)
    assert room.used_bytes == 90


def test_what_a_grant_leaves_over_goes_to_the_next() -> None:
    room = accumulator()
    assert room.charge(A, 100)
    room.wait(A, 1, 80)
    room.wait(B, 2, 40)
    assert room.refund(A, 100) == [1]
    assert room.charge(A, 50, ticket=1)
    assert room.grant() == [2]


def test_a_waiter_that_gives_up_hands_its_room_on() -> None:
    room = accumulator()
    assert room.charge(A, 100)
    room.wait(A, 1, 80)
    room.wait(A, 2, 80)
    assert room.refund(A, 100) == [1]
    assert room.cancel(1) == [2]
    assert room.charge(A, 80, ticket=2)


def test_a_waiter_that_gives_up_before_its_turn_lets_the_next_one_through() -> None:
    room = accumulator()
    assert room.charge(A, 60)
    room.wait(A, 1, 80)
    room.wait(B, 2, 30)
    assert room.cancel(1) == [2]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("cwxr"), st.sampled_from([A, B]), st.integers(1, 40), st.integers(1, 6)
        ),
        max_size=60,
    )
)
def test_used_bytes_are_the_charges_and_grants_and_never_pass_the_bound(
    steps: list[tuple[str, tuple[str, int], int, int]],
) -> None:
    room = accumulator()
    charges: list[tuple[tuple[str, int], int]] = []
    waiting: dict[int, int] = {}
    granted: dict[int, int] = {}

    def grant(tickets: list[int]) -> None:
        for ticket in tickets:
            assert ticket == next(iter(waiting)), "out of turn"
            granted[ticket] = waiting.pop(ticket)

    for verb, tp, size, ticket in steps:
        if verb == "c" and room.charge(tp, size):
            assert not waiting
            charges.append((tp, size))
        elif verb == "w" and ticket not in waiting and ticket not in granted:
            room.wait(tp, ticket, size)
            waiting[ticket] = size
        elif verb == "x":
            waiting.pop(ticket, None)
            granted.pop(ticket, None)
            grant(room.cancel(ticket))
        elif verb == "r" and charges:
            grant(room.refund(*charges.pop()))
        taken = sum(size for _, size in charges)
        assert room.used_bytes == taken + sum(granted.values()) <= 100


def test_a_later_waiter_that_would_fit_does_not_overtake() -> None:
    room = accumulator()
    assert room.charge(A, 50)
    assert room.charge(A, 50)
    room.wait(A, 1, 80)
    room.wait(B, 2, 30)
    assert room.refund(A, 50) == []
    assert room.refund(A, 50) == [1]


def test_what_waits_may_go_to_another_partition_and_what_was_granted_stays() -> None:
    room = accumulator()
    assert room.charge(A, 100)
    room.wait(A, 1, 50)
    room.wait(A, 2, 60)
    room.move(2, B)
    assert (room.wanted(1), room.wanted(2), room.wanted(3)) == (A, B, None)
    assert room.refund(A, 100) == [1]
    room.move(1, B)
    assert room.wanted(1) == A


def test_after_a_count_anew_grants_stand_and_are_told_again() -> None:
    room = accumulator()
    assert room.charge(A, 100)
    room.wait(A, 1, 50)
    room.wait(B, 2, 60)
    assert room.refund(A, 100) == [1]
    assert room.recount(30) == [1]
    assert room.used_bytes == 80
    assert room.recount(0) == [1]
    assert room.cancel(1) == [2]
