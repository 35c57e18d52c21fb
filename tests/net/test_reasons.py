"""Why a call had to wait in vain: what is told is of its own time, and not of all times."""

from __future__ import annotations

from outlast.engine.messages import Connection, Loss, Role
from outlast.io.events import Connected, Disconnected
from outlast.io.reasons import Reasons


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.reasons = Reasons(1000, lambda: self.now)

    def refused(self, address: str, at_s: float) -> None:
        self.now = at_s
        lost = Disconnected(Connection(1, Role.OPEN, 1), address, Loss.REFUSED, "nobody is there")
        self.reasons.disconnected(lost)


def test_what_broke_is_told_though_the_broker_answered_the_next_hello() -> None:
    """As one does that wants a login: it closes at the first request, each time anew."""
    bench = Bench()
    bench.refused("shut:9092", 1.0)
    bench.reasons.connected(Connected(Connection(1, Role.OPEN, 2), "shut:9092", None, {}))
    bench.now = 1.5
    told = bench.reasons.blocked("t", "metadata", 0, 0.6)
    assert told.endswith("shut:9092: answered, and before that refused: nobody is there")
    assert bench.reasons.trouble(0.9) == ""
    bench.now = 9.0
    assert bench.reasons.blocked("t", "metadata", 0, 0.6).endswith("shut:9092: answered")


def test_an_old_trouble_is_no_reason_for_a_new_record() -> None:
    bench = Bench()
    bench.refused("old:9092", 1.0)
    bench.refused("new:9092", 5.0)
    assert bench.reasons.trouble(4.0) == "no connection to new:9092: refused: nobody is there"
    assert "old:9092" in bench.reasons.trouble(0.5)
    assert bench.reasons.trouble(6.0) == ""


def test_addresses_that_come_and_go_are_not_remembered_for_ever() -> None:
    bench = Bench()
    for number in range(1_000):
        bench.refused(f"pod{number}:9092", float(number))
    told = bench.reasons.blocked("t", "metadata", 0, 1.0)
    assert "pod999:9092" in told
    assert told.count("pod") <= 100
