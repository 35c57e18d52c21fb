"""A report in a browser: where things are, in pixels, held against the run's own seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from outlast.cli.report import Run
from outlast.engine.messages import Gap, Phase, Stall
from tests.cli.chromium import Chromium
from tests.cli.report_runs import BEGIN_S, events

Opened = Callable[[Run], Chromium]
PIXEL = 1.01  # positions are rounded
LEAST = 3.0  # pixels of the shortest bar


class Box(NamedTuple):
    """Where something is, in pixels of the window."""

    left: float
    top: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        return self.left + self.width / 2, self.top + self.height / 2


BOX = "(e => (b => [b.left, b.top, b.width, b.height])(e.getBoundingClientRect()))"


def box(browser: Chromium, selector: str) -> Box:
    return Box(*browser.run(f"{BOX}(document.querySelector({selector!r}))"))


def rows(browser: Chromium) -> dict[str, tuple[Box, list[dict[str, Any]]]]:
    """By name of the partition: its track, and its bars with their parts; in the page's order."""
    found = browser.run(
        f"""[...document.querySelectorAll(".rows .row")].map(row => [
            row.querySelector(".label").textContent,
            {BOX}(row.querySelector(".track")),
            [...row.querySelectorAll(".bar")].map(bar => ({{
                kind: bar.classList[1], open: bar.classList.contains("open"), box: {BOX}(bar),
                parts: [...bar.children].map(part => [part.className, {BOX}(part)]),
            }})),
        ])"""
    )
    return {name: (Box(*track), bars) for name, track, bars in found}


def place(it: Gap | Stall, track: Box, span_s: tuple[float, float]) -> tuple[float, float]:
    """Left edge and width that a bar must have."""
    pixels = track.width / (span_s[1] - span_s[0])
    left = track.left + (it.begin_s - BEGIN_S - span_s[0]) * pixels
    return left, max(it.duration_s * pixels, LEAST)


def check_bars(browser: Chromium, it: Run, span_s: tuple[float, float]) -> None:
    """Every bar and every part of it is where its seconds are."""
    shown = rows(browser)
    for topic, partition in it.partitions:
        track, bars = shown[f"{topic}-{partition}"]
        own = [e for e in events(it) if (e.topic, e.partition) == (topic, partition)]
        assert len(bars) == len(own)
        for event, bar in zip(own, bars, strict=True):
            left, width = place(event, track, span_s)
            found = Box(*bar["box"])
            assert found.left == pytest.approx(left, abs=PIXEL)
            assert found.width == pytest.approx(width, abs=PIXEL)
            assert (found.top, found.height) == (track.top, track.height)
            assert bar["kind"] == ("gap" if isinstance(event, Gap) else "stall")
            if isinstance(event, Gap):
                check_parts(event, bar)


def check_parts(it: Gap, bar: dict[str, Any]) -> None:
    lengths = {phase.value: getattr(it, f"{phase.value}_s") for phase in Phase}
    expected = [(name, length_s) for name, length_s in lengths.items() if length_s]
    assert [name for name, _ in bar["parts"]] == [name for name, _ in expected]
    left, _, width, _ = bar["box"]
    for (_, part), (_, length_s) in zip(bar["parts"], expected, strict=True):
        assert part[0] == pytest.approx(left, abs=PIXEL)
        assert part[2] == pytest.approx(length_s / it.duration_s * width, abs=PIXEL)
        left += part[2]


def check_curve(browser: Chromium, span_s: tuple[float, float]) -> None:
    """The curve's seconds lie above the rows' seconds."""
    track, _ = next(iter(rows(browser).values()))
    matrix = "(m => [m.a, m.e])(document.querySelector('.line').getScreenCTM())"
    pixels, left = browser.run(matrix)
    assert left + pixels * span_s[0] == pytest.approx(track.left, abs=PIXEL)
    assert pixels * (span_s[1] - span_s[0]) == pytest.approx(track.width, abs=PIXEL)


def span(browser: Chromium) -> tuple[float, float]:
    """The seconds that are shown."""
    values = browser.run(
        "['--from', '--to'].map(n => Number(document.body.style.getPropertyValue(n)))"
    )
    return values[0], values[1]


def ticks(browser: Chromium) -> list[str]:
    found: list[str] = browser.run(
        "[...document.querySelectorAll('.tick')].map(t => t.textContent)"
    )
    return found
