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
    figure: Spread | None  # None: not measured; with slack: how much more than the other's
    pair: tuple[Spread, Spread] | None = None  # with slack: the two figures

    @property
    def met(self) -> bool:
        if self.figure is None:
            return False
        found = self.figure.median
        if self.pair is not None:
            return found <= self.target.slack
        at_least, at_most = self.target.at_least, self.target.at_most
        return (at_least is None or found >= at_least) and (at_most is None or found <= at_most)

    @property
    def wanted(self) -> str:
        sign, number = "≥", self.target.at_least
        if number is None:
            sign, number = "≤", self.target.at_most
        if self.target.slack:
            return f"no more than {self.target.slack:g} above"
        return f"{sign} {number:g}{' ×' if self.target.against else ''}"

    @property
    def found(self) -> str:
        if self.figure is None:
            return "not measured"
        if self.pair is not None:
            mine, other = (one.shown(lambda figure: f"{figure:.3g}") for one in self.pair)
            return f"{mine} against {other}"
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
        better = f", here or at {target.or_variant}" if target.or_variant else ""
        return f"{target.against or ''}{better}"


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
    runs: Sequence[Run], metric: str, mine: tuple[str, str], other: tuple[str, str]
) -> Spread | None:
    """How many times the other's figure mine is; each is (variant, client)."""
    return _ratio(figures(runs, *mine, metric), figures(runs, *other, metric))


def _ratio(ours: dict[int, float], theirs: dict[int, float]) -> Spread | None:
    ratios = [ours[number] / theirs[number] for number in ours if number in theirs]
    return Spread.of(ratios) if ratios else None


def verdict(target: Target, runs: Sequence[Run]) -> Verdict:
    ours = figures(runs, target.variant, target.client, target.metric)
    if target.against is None:
        return Verdict(target, Spread.of(list(ours.values())) if ours else None)
    variant = target.against_variant or target.variant
    theirs = figures(runs, variant, target.against, target.metric)
    if target.or_variant is not None:
        better = max if target.at_most is None else min
        also = figures(runs, target.or_variant, target.against, target.metric)
        theirs |= {n: better(theirs.get(n, figure), figure) for n, figure in also.items()}
    if not target.slack:
        return Verdict(target, _ratio(ours, theirs))
    both = [number for number in ours if number in theirs]
    if not both:
        return Verdict(target, None)
    above = Spread.of([ours[number] - theirs[number] for number in both])
    pair = Spread.of([ours[n] for n in both]), Spread.of([theirs[n] for n in both])
    return Verdict(target, above, pair)


def verdicts(scenario: Scenario, runs: Sequence[Run]) -> list[Verdict]:
    return [verdict(target, runs) for target in scenario.targets]


def table(scenario: Scenario, runs: Sequence[Run]) -> list[list[str]]:
    """The scenario's table, with its head: a line for each variant and client that was measured,
    and of how many runs, of how many records each, its figures are. Nothing if nothing was.
    """
    found = []
    heads = ["", "client", *(column.head for column in scenario.columns), "runs", "records each"]
    for variant, client in dict.fromkeys((case.variant, case.client) for case in scenario.cases):
        cells = [_cell(column, runs, variant, client) for column in scenario.columns]
        if any(cells):
            records = spread(runs, variant, client, "records")
            of = "" if records is None else f"{records.median:,.0f}"
            done = len(figures(runs, variant, client, scenario.columns[0].metric))
            found.append([variant, client, *cells, str(done), of])
    if not found:
        return []
    told = [n for n in range(len(heads)) if any(line[n] for line in found)]
    return [[line[n] for n in told] for line in [heads, *found]]


def _cell(column: Column, runs: Sequence[Run], variant: str, client: str) -> str:
    ample = [run for run in runs if run.get("records", 0) >= column.records_min]
    figure = spread(ample, variant, client, column.metric)
    return "" if figure is None else figure.shown(column.shown)


def told(scenario: Scenario, runs: Sequence[Run]) -> str:
    """Table and targets, for a terminal."""
    took_s = sum(run.get("took_s", 0.0) for run in runs)
    lines = [f"\n{scenario.title} ({took_s:.0f} s)", *_aligned(table(scenario, runs))]
    verdict_lines = [
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
    lines += _aligned(verdict_lines)
    lines += [f"FAILED {r['variant']}, {r['client']}: {r['failed']}" for r in runs if "failed" in r]
    return "\n".join(lines)


def _aligned(table: list[list[str]]) -> list[str]:
    if not table:
        return []
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
