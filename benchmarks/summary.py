"""What runs come to: medians with the smallest and the largest, and which targets are met.

A ratio is made of two figures of the same round, which were measured one right after the other; its
median is over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.scenarios import Column, Scenario, Target

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, and between which they lie."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        return cls(median(figures), min(figures), max(figures))

    def shown(self, show: Callable[[float], str]) -> str:
        if self.low == self.high:
            return show(self.median)
        return f"{show(self.median)} ({show(self.low)}–{show(self.high)})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, and what it is held to."""

    target: Target
    figure: Spread | None  # None: not measured

    @property
    def met(self) -> bool:
        if self.figure is None:
            return False
        found = self.figure.median
        at_least, at_most = self.target.at_least, self.target.at_most
        return (at_least is None or found >= at_least) and (at_most is None or found <= at_most)

    @property
    def wanted(self) -> str:
        sign, number = "≥", self.target.at_least
        if number is None:
            sign, number = "≤", self.target.at_most
        return f"{sign} {number:g}{' ×' if self.target.against else ''}"

    @property
    def found(self) -> str:
        if self.figure is None:
            return "not measured"
        unit = " ×" if self.target.against else ""
        return self.figure.shown(lambda figure: f"{figure:.3g}") + unit

    @property
    def word(self) -> str:
        return "–" if self.figure is None else "met" if self.met else "NOT met"

    @property
    def against(self) -> str:
        target = self.target
        if target.against_variant is not None:
            return f"itself, {target.against_variant}"
        return target.against or ""


def figures(runs: Sequence[Run], variant: str, client: str, metric: str) -> dict[int, float]:
    """Round → figure."""
    return {
        run["run"]: run[metric]
        for run in runs
        if run["variant"] == variant and run["client"] == client and metric in run
    }


def spread(runs: Sequence[Run], variant: str, client: str, metric: str) -> Spread | None:
    found = figures(runs, variant, client, metric)
    return Spread.of(list(found.values())) if found else None


def ratio(
    runs: Sequence[Run],
    metric: str,
    mine: tuple[str, str],
    other: tuple[str, str],
    slack: float = 0.0,
) -> Spread | None:
    """How many times the other's figure mine is; each is (variant, client)."""
    ours, theirs = figures(runs, *mine, metric), figures(runs, *other, metric)
    ratios = [
        1.0 if abs(ours[number] - theirs[number]) <= slack else ours[number] / theirs[number]
        for number in ours
        if number in theirs
    ]
    return Spread.of(ratios) if ratios else None


def verdict(target: Target, runs: Sequence[Run]) -> Verdict:
    mine = target.variant, target.client
    if target.against is None:
        return Verdict(target, spread(runs, *mine, target.metric))
    other = target.against_variant or target.variant, target.against
    return Verdict(target, ratio(runs, target.metric, mine, other, target.slack))


def verdicts(scenario: Scenario, runs: Sequence[Run]) -> list[Verdict]:
    return [verdict(target, runs) for target in scenario.targets]


def rows(scenario: Scenario, runs: Sequence[Run]) -> list[list[str]]:
    """The scenario's table: a line for each variant and client that was measured."""
    found = []
    for case in scenario.cases:
        cells = [_cell(column, runs, case.variant, case.client) for column in scenario.columns]
        if any(cells):
            found.append([case.variant, case.client, *cells])
    return found


def _cell(column: Column, runs: Sequence[Run], variant: str, client: str) -> str:
    figure = spread(runs, variant, client, column.metric)
    return "" if figure is None else figure.shown(column.shown)


def told(scenario: Scenario, runs: Sequence[Run]) -> str:
    """Table and targets, for a terminal."""
    head = ["", "", *(column.head for column in scenario.columns)]
    lines = [f"\n{scenario.title}", *_aligned([head, *rows(scenario, runs)])]
    table = [
        [
            v.word,
            f"{v.target.words}, {v.target.variant}",
            v.target.client,
            v.against,
            f"{v.found}, wanted {v.wanted}",
        ]
        for v in verdicts(scenario, runs)
        if v.figure is not None
    ]
    lines += _aligned(table)
    lines += [f"FAILED {r['variant']}, {r['client']}: {r['failed']}" for r in runs if "failed" in r]
    return "\n".join(lines)


def _aligned(table: list[list[str]]) -> list[str]:
    if not table:
        return []
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
