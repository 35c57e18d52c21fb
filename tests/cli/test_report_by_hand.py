"""The report under a reader's hands: pointer and keyboard, zoom, order, sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outlast.engine.messages import Gap, Stall
from tests.cli.chromium import Chromium
from tests.cli.report_browser import (
    PIXEL,
    Box,
    Opened,
    box,
    check_bars,
    check_curve,
    rows,
    span,
    ticks,
)
from tests.cli.report_runs import BEGIN_S, events, run

pytestmark = pytest.mark.slow  # the browser's start; each test takes a part of a second


# --- under the pointer ----------------------------------------------------------------------------


def tip(browser: Chromium) -> str | None:
    """The details that are shown."""
    text: str | None = browser.run(
        "(t => t.checkVisibility() ? t.innerText : null)(document.querySelector('.tip'))"
    )
    return None if text is None else " ".join(text.split())


def test_details_of_a_gap_show_under_the_pointer(opened: Opened) -> None:
    browser = opened(run(resumed={("orders", 0): [BEGIN_S + 12.35]}))
    _, bars = rows(browser)["orders-0"]
    assert tip(browser) is None
    browser.point(*Box(*bars[0]["box"]).middle)
    assert tip(browser) == (
        "orders-0: the connection to the leader was lost "
        "Began 9.000 s, 00:53:29.000 Length 3.10 s "
        "Detecting 124 ms Unavailable 2.79 s Reconnecting 124 ms Resuming 62 ms "
        "Cluster’s share 2.79 to 2.94 s, client’s 93 to 310 ms Leader 2 → 3, 4 → 5 "
        "Attempts 14, CONNECTION_CLOSED, CONNECTION_REFUSED × 2 "
        "Outcome absorbed, 1,126 delivered Read again +250 ms"
    )
    shown = box(browser, ".tip")
    assert shown.left >= 0
    assert shown.left + shown.width <= 1280
    browser.point(*box(browser, "h1").middle)
    assert tip(browser) is None


def test_details_of_a_stall_name_no_phases(opened: Opened) -> None:
    browser = opened(run())
    _, bars = rows(browser)["orders-1"]
    browser.point(*Box(*bars[1]["box"]).middle)
    assert tip(browser) == (
        "orders-1: a follower was late Began 9.000 s, 00:53:29.000 Length 3.02 s "
        "Leader 1, slow lane Outcome waited"
    )


def test_the_moment_under_the_pointer_and_its_rate_are_told(opened: Opened) -> None:
    browser = opened(run())
    track, _ = rows(browser)["orders-5"]
    browser.point(track.left + track.width * 0.25, track.top + 2)
    assert browser.run("document.querySelector('.cross').innerText") == "5.00 s · 1,800/s"
    assert box(browser, ".cross").left == pytest.approx(track.left + track.width / 4, abs=PIXEL)


# --- by keyboard ----------------------------------------------------------------------------------

FOCUS = "document.activeElement.getAttribute('aria-label')"


def to_first_bar(browser: Chromium) -> None:
    """By keys alone."""
    for _ in range(8):
        browser.press("Tab")
        if "gap of" in (browser.run(FOCUS) or ""):
            return
    pytest.fail("no bar is reached by the tabulator key")


def test_details_show_by_keyboard_too(opened: Opened) -> None:
    browser = opened(run())
    stops = browser.run("document.querySelectorAll('.bar[tabindex=\"0\"]').length")
    assert stops == 1  # the chart is one stop among others, not one for each bar
    to_first_bar(browser)
    assert browser.run(FOCUS).startswith("gap of orders-0")
    assert (tip(browser) or "").startswith("orders-0: ")
    for key, start in [
        ("ArrowDown", "stall of orders-1"),  # the one nearest in time
        ("ArrowLeft", "gap of orders-1"),
        ("ArrowRight", "stall of orders-1"),
        ("End", "gap of orders-5"),
        ("ArrowUp", "stall of orders-4"),
        ("Home", "gap of orders-0"),
    ]:
        browser.press(key)
        assert browser.run(FOCUS).startswith(start), key
        assert (tip(browser) or "").startswith(start.split()[-1])
    browser.press("Escape")
    assert tip(browser) is None
    assert span(browser) == (0, 20)


def test_enter_leads_to_the_entry_in_the_table(opened: Opened) -> None:
    browser = opened(run())
    to_first_bar(browser)
    browser.press("Enter")
    assert browser.run("location.hash") == "#gap-1"
    assert browser.run("document.querySelector('tr:target').innerText").startswith("orders-0")


# --- zoom, order, sorting -------------------------------------------------------------------------


def test_a_drag_zooms_into_the_time_it_covers(opened: Opened) -> None:
    it = run()
    browser = opened(it)
    whole = ticks(browser)
    track, _ = rows(browser)["orders-3"]

    def at(at_s: float) -> tuple[float, float]:
        return track.left + at_s / 20 * track.width, track.top + 2

    browser.drag(at(7.9), at(13.1))
    assert span(browser) == pytest.approx((7.9, 13.1), abs=0.05)
    check_bars(browser, it, span(browser))
    check_curve(browser, span(browser))
    assert ticks(browser) == ["8 s", "9 s", "10 s", "11 s", "12 s", "13 s"]
    browser.press("Escape")  # the details under the pointer go first
    browser.press("Escape")
    assert span(browser) == (0, 20)
    assert ticks(browser) == whole  # the page's own, made anew by the script


@pytest.mark.parametrize("length_s", [0.08, 1.7, 119, 121, 700, 40_000, 400_000])
def test_script_and_page_agree_on_the_axis(opened: Opened, length_s: float) -> None:
    browser = opened(run(end_s=BEGIN_S + length_s, gaps=[], stalls=[], marks=[], acked=[]))
    whole = ticks(browser)
    assert 3 <= len(whole) <= 12
    assert len(set(whole)) == len(whole)
    browser.press("Escape")
    assert ticks(browser) == whole


def test_buttons_zoom_to_the_longest_and_back(opened: Opened) -> None:
    it = run()
    browser = opened(it)
    assert not browser.run("document.querySelector('[data-do=whole]').checkVisibility()")
    browser.click(*box(browser, "[data-do=longest]").middle)
    longest = max(it.gaps, key=lambda gap: gap.duration_s)
    begin_s, length_s = longest.begin_s - BEGIN_S, longest.duration_s
    assert span(browser) == pytest.approx((begin_s - length_s / 4, begin_s + length_s * 1.25))
    check_bars(browser, it, span(browser))
    browser.click(*box(browser, "[data-do=whole]").middle)
    assert span(browser) == (0, 20)


def test_keys_zoom_around_the_bar_that_has_the_focus(opened: Opened) -> None:
    browser = opened(run())
    to_first_bar(browser)
    browser.press("+")
    assert span(browser) == pytest.approx((10.55 - 5, 10.55 + 5))
    browser.press("-")
    assert span(browser) == (0, 20)


def test_rows_come_longest_first_when_asked(opened: Opened) -> None:
    it = run(60)
    browser = opened(it)
    named = list(rows(browser))
    browser.click(*box(browser, "[data-do=order]").middle)
    longest: dict[str, float] = dict.fromkeys(named, 0.0)
    for event in events(it):
        name = f"{event.topic}-{event.partition}"
        longest[name] = max(longest[name], event.duration_s)
    assert list(rows(browser)) == sorted(named, key=lambda name: -longest[name])
    check_bars(browser, it, (0, 20))
    browser.click(*box(browser, "[data-do=order]").middle)
    assert list(rows(browser)) == named


SORTED_BY: dict[str, Callable[[Gap | Stall], Any]] = {
    "Partition": lambda event: (event.topic, event.partition),
    "Began": lambda event: event.begin_s,
    "Length": lambda event: event.duration_s,
    "Unavailable": lambda event: getattr(event, "unavailable_s", 0.0),
}


def test_the_table_sorts_by_every_column(opened: Opened) -> None:
    it = run(60, resumed={("orders", 21): [BEGIN_S + 13.0]})
    browser = opened(it)
    event_of: dict[str, Gap | Stall] = {
        **{f"gap-{number}": event for number, event in enumerate(it.gaps, 1)},
        **{f"stall-{number}": event for number, event in enumerate(it.stalls, 1)},
    }

    def entries() -> list[str]:
        found: list[str] = browser.run("[...document.querySelectorAll('tbody tr')].map(r => r.id)")
        return found

    lengths = [event_of[name].duration_s for name in entries()]
    assert lengths == sorted(lengths, reverse=True)  # as it comes
    columns = browser.run("[...document.querySelectorAll('th')].map(t => t.innerText.trim())")
    assert set(SORTED_BY) < set(columns)
    for number, column in enumerate(columns, 1):
        head = f"document.querySelector('th:nth-child({number})')"
        directions = []
        for _ in range(2):
            browser.run(f"{head}.querySelector('button').click()")
            directions.append(browser.run(f"{head}.getAttribute('aria-sort')"))
            assert browser.run("document.querySelectorAll('[aria-sort]').length") == 1
            assert sorted(entries()) == sorted(event_of)
            if key := SORTED_BY.get(column):
                values = [key(event_of[name]) for name in entries()]
                assert values == sorted(values, reverse=directions[-1] == "descending"), column
        assert set(directions) == {"ascending", "descending"}
