"""The oracles themselves: each can say no."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from outlast.testing.faults import Error
from outlast.testing.ledger import Entry, Ledger
from tests.field.oracles import (
    D,
    Room,
    blocked,
    c3,
    logs_of,
    o1,
    o2,
    o3,
    o4,
    o5,
    o6,
    o7,
    o8,
    o9,
    o10,
    o11,
    o12,
)

TP = ("t", 0)


def told(*outcomes: str) -> list[Entry]:
    """Records 0, 1, … of t-0, each acknowledged at the offset of its number or failed so."""
    ledger = Ledger()
    for number, outcome in enumerate(outcomes):
        entry = ledger.sending("t", float(number))
        ledger.taken(entry, 0, float(number))
        if outcome == "acked":
            ledger.acked(entry, number, number + 0.01)
        elif outcome:
            ledger.failed(entry, outcome, number + 0.01)
    return ledger.entries


def log(*numbers: int) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    return {TP: [(offset, b"t#%d" % n) for offset, n in enumerate(numbers)]}


A, U, N = "acked", "unknown", "never sent"


@pytest.mark.parametrize(
    "check",
    [
        lambda: o1(told(A, A), log(0)),  # lost
        lambda: o1(told(A, A), log(0, 1, 1)),  # doubled
        lambda: o1(told(A, A), log(1, 0)),  # out of order
        lambda: o1(told(A, A), log(0, 1, 7)),  # never sent
        lambda: o1(told(A, U), log(0)),  # not delivered
        lambda: o1(told(A, ""), log(0)),  # open
        lambda: o1([], log()),  # nothing was tried
        lambda: o2(told(A, A), log(1)),
        lambda: o2(told(A, A), log(1, 0, 1)),
        lambda: o3(told(A, "")),
        lambda: o3(told(A), D | {"delivery_timeout_ms": 0, "request_timeout_ms": 0}, -0.1),
        lambda: o4(told(A, A), log(1, 0)),
        lambda: o4(told(A, A), log(0)),
        lambda: o5(told(N), log(0)),
        lambda: o5(told(U), log(0, 0)),
        lambda: o6([0.1, 2.3]),
        lambda: o7(SimpleNamespace(buffer_limit_bytes=10, buffer_bytes=0), 11),
        lambda: o7(SimpleNamespace(buffer_limit_bytes=10, buffer_bytes=1), 5),
        lambda: o8(told(*[A] * 20), [TP], (0.0, 5.0), (18.0, 30.0)),
        lambda: o10(0.06, 1.0),
    ],
)
def test_says_no(check: Callable[[], None]) -> None:
    with pytest.raises(AssertionError):
        check()


def test_says_yes() -> None:
    entries, held = told(A, N, A, U), {TP: [(0, b"t#0"), (2, b"t#2")]}
    for check in (o2, o4, o5):
        check(entries, held)
    o3(entries)
    o1(told(A, A), log(0, 1))
    o8(told(*[A] * 20), [TP], (0.0, 10.0), (10.0, 20.0))


def test_of_a_whole_story() -> None:
    """One refusal: all oracles are content, but with a gap where none should be."""
    sim = c3()
    room = Room(sim, until_s=1.0)
    for p in range(3):
        sim.send_every(p, 0.01, 100)
    sim.at(0.5, lambda: sim.fault(Error(6, topic="t", partition=0, times=1)))
    sim.run_until(sim.all_settled)
    entries, logs = sim.ledger.entries, logs_of(sim)
    for check in (o1, o2, o4, o5):
        check(entries, logs)
    o6(blocked(entries))
    o8(entries, [("t", 1), ("t", 2)], (0.1, 0.5), (0.5, 1.0))
    o9(sim, 0.5, 1.0)
    o12(sim, [TP])
    o11(sim)
    room.check()
    assert room.peak_bytes > 0
    with pytest.raises(AssertionError):
        o12(sim, [])
    with pytest.raises(AssertionError):
        o12(sim, [TP, ("t", 1)])
