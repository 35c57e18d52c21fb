"""How observers are told: each fact once and in order, those of batches at once if they like."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from outlast.engine.messages import Complaint, Fact, RecordsSettled
from outlast.io.publishing import Observers

ODD: Fact = Complaint(0.0, "warning", "odd")


def settled(*partitions: int) -> list[Fact]:
    return [RecordsSettled(0.0, "t", partition, 1, 0, 0.1) for partition in partitions]


class Together:
    """Takes what comes with batches at once."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.heard: list[Fact] = []
        self.runs: list[int] = []
        self._then = then

    def __call__(self, fact: Fact) -> None:
        self.heard.append(fact)

    def together(self, facts: Sequence[Fact]) -> None:
        self.heard += facts
        self.runs.append(len(facts))
        self._then()


def test_each_fact_is_told_once_and_in_order() -> None:
    alone: list[Fact] = []
    at_once = Together()
    facts = [*settled(0, 1, 2), ODD, *settled(3), ODD, ODD, *settled(4, 5)]
    Observers([alone.append, at_once]).tell(facts)
    assert alone == at_once.heard == facts
    assert at_once.runs == [3, 1, 2]


def test_one_that_raises_then_is_dropped_alone(caplog: pytest.LogCaptureFixture) -> None:
    alone: list[Fact] = []
    bad, good = Together(then=lambda: 1 / 0), Together()
    observers = Observers([bad, good, alone.append])
    with caplog.at_level(logging.ERROR, logger="outlast"):
        observers.tell([*settled(0, 1), ODD])
    observers.tell(settled(2))
    assert bad.heard == settled(0, 1)
    assert good.heard == alone == [*settled(0, 1), ODD, *settled(2)]
    assert len(caplog.records) == 1
