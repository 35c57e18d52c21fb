"""The report in a browser: what stands where, what pointer and keys do, what is not let in.

Positions are asked of the browser in pixels and held against the run's own seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outlast.cli.report import Run, write
from outlast.engine.messages import Gap, Phase, Stall
from tests.cli.chromium import Chromium, executable
from tests.cli.report_runs import BEGIN_S, HOSTILE, events, gap, hostile, open_gap, run, stall
from tests.demands import need

pytestmark = pytest.mark.slow  # the browser's start; each test takes a part of a second

Opened = Callable[[Run], Chromium]
PIXEL = 1.01  # positions are rounded
LEAST = 3.0  # pixels of the shortest bar


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if executable() is None:
        need("chromium", "chromium")
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture
def opened(browser: Chromium, tmp_path: Path) -> Iterator[Opened]:
    """Show a run's report. Whatever else is tested: its script ran to the end, the browser has
    nothing to complain of, and was asked for no other file.
    """

    def show(it: Run) -> Chromium:
        write(it, tmp_path / "report.html")
        browser.open(tmp_path / "report.html")
        assert browser.run("document.documentElement.dataset.ready") == "true"
        return browser

    browser.window(1280, 900)
    browser.media()
    browser.scripts(True)
    yield show
    assert browser.complaints() == []
    assert browser.requests() == [(tmp_path / "report.html").as_uri()]


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


# --- what stands where ----------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [6, 60, 600])
def test_bars_and_phases_sit_where_their_seconds_are(opened: Opened, partitions: int) -> None:
    it = run(partitions)
    browser = opened(it)
    shown = rows(browser)
    assert list(shown) == [f"{topic}-{partition}" for topic, partition in it.partitions]
    tops = [track.top for track, _ in shown.values()]
    assert tops == sorted(set(tops))
    assert min(track.height for track, _ in shown.values()) >= 4
    assert tops[-1] - tops[0] < min(4000, 32 * partitions)  # no desert to scroll through
    check_bars(browser, it, (0, 20))


def test_very_short_very_long_and_open_ones_can_be_seen(opened: Opened) -> None:
    events = [gap("orders", 0, 500, 0.000_4), gap("orders", 1, -2, 1900), gap("orders", 2, 7199, 2)]
    it = run(
        end_s=BEGIN_S + 7200,
        gaps=[*events, open_gap("orders", 3, 4000, 3200)],
        stalls=[stall("orders", 4, 7000, 200, ended_by=None)],
        acked=[],
    )
    browser = opened(it)
    check_bars(browser, it, (-2, 7201))
    states = [[bar["open"] for bar in bars] for _, bars in rows(browser).values()]
    assert states == [[False], [False], [False], [True], [True], []]
    striped = browser.run(
        """[...document.querySelectorAll("*")].filter(
            e => getComputedStyle(e, "::after").backgroundImage.includes("gradient")
        ).map(e => e.className)"""
    )
    assert striped == ["bar gap open", "bar stall open"]


def test_without_gaps_there_is_a_calm_page(opened: Opened) -> None:
    browser = opened(run(gaps=[], stalls=[], marks=[]))
    assert len(rows(browser)) == 6
    assert browser.run("document.querySelectorAll('.bar, table, .share, .mark').length") == 0
    said = browser.run("document.querySelector('h1').innerText")
    assert "No partition stopped accepting." in said
    browser.press("Escape")
    browser.point(640, 400)


def test_the_axis_and_the_curve_share_the_rows_seconds(opened: Opened) -> None:
    browser = opened(run())
    track, _ = rows(browser)["orders-0"]
    check_curve(browser, (0, 20))
    places = browser.run(
        f"""[...document.querySelectorAll(".tick")].map(t => [t.textContent, {BOX}(t)[0]])"""
    )
    assert [text for text, _ in places] == ["0 s", "5 s", "10 s", "15 s", "20 s"]
    for text, left in places:
        at_s = float(text.split()[0])
        assert left == pytest.approx(track.left + at_s / 20 * track.width, abs=PIXEL)
    mark = box(browser, ".mark")
    assert mark.left == pytest.approx(track.left + 9 / 20 * track.width, abs=PIXEL)
    area = "document.querySelector('.area')"
    base = "document.querySelector('svg').viewBox.baseVal.height"
    filled = {  # is there colour just above the base line at that moment?
        at_s: browser.run(f"{area}.isPointInFill(new DOMPoint({at_s}, {base} - 5))")
        for at_s in (2, 8, 10, 11, 13, 19)
    }
    assert filled == {2: True, 8: True, 10: False, 11: False, 13: True, 19: True}


def test_partitions_without_events_unfold(opened: Opened) -> None:
    browser = opened(run(600, loud=30))
    visible = "[...document.querySelectorAll('.row')].filter(r => r.checkVisibility()).length"
    assert browser.run(visible) == 30
    assert "570 other partitions" in browser.run("document.querySelector('summary').innerText")
    browser.run("document.querySelector('summary').scrollIntoView({block: 'center'})")
    browser.click(*box(browser, "summary").middle)
    assert browser.run(visible) == 600


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
        "Cluster’s share 2.79 to 2.94 s, client’s 155 to 310 ms Leader 2 → 3, 4 → 5 "
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


# --- what is not let in ---------------------------------------------------------------------------


def test_names_that_attack_are_shown_as_they_are(opened: Opened) -> None:
    browser = opened(hostile())
    assert browser.run("document.querySelectorAll('img, iframe, h1 *:not(.verdict)').length") == 0
    assert browser.run("document.querySelectorAll('svg').length") == 1
    assert browser.run("document.querySelectorAll('script').length") == 1
    assert set(rows(browser)) == {f"{topic}-{p}" for p, topic in enumerate(HOSTILE)}
    browser.run("document.querySelector('.rows').scrollIntoView()")
    for _, bars in rows(browser).values():
        browser.point(*Box(*bars[0]["box"]).middle)
        shown = browser.run("document.querySelector('.tip strong').textContent")
        assert shown.startswith(HOSTILE), shown
    assert browser.run("document.querySelectorAll('.tip img, .tip script, .tip svg').length") == 0
    assert browser.dialogs() == []


def test_were_markup_to_get_in_its_script_would_not_run(browser: Chromium, tmp_path: Path) -> None:
    browser.scripts(True)
    path = tmp_path / "report.html"
    write(run(), path)
    attack = "<script>window.hit = 1</script><p id=p onclick='window.hit = 2'>"
    path.write_text(path.read_text().replace("<main>", f"<main>{attack}"))
    browser.open(path)
    browser.run("document.querySelector('#p').click()")
    assert browser.run("window.hit") is None
    assert browser.run("document.documentElement.dataset.ready") == "true"  # ours did


# --- everywhere -----------------------------------------------------------------------------------


def test_without_script_everything_stands_where_it_should(
    browser: Chromium, tmp_path: Path
) -> None:
    it = run(60)
    write(it, tmp_path / "report.html")
    browser.window(1280, 900)
    browser.scripts(False)
    browser.open(tmp_path / "report.html")
    browser.scripts(True)  # so that the test may ask; what the page has is not run any more
    assert browser.run("document.documentElement.dataset.ready") is None
    assert browser.run("document.querySelector('.buttons').checkVisibility()") is False
    assert browser.run("document.querySelectorAll('tbody tr').length") == 100
    check_bars(browser, it, (0, 20))


@pytest.mark.parametrize("width", [320, 390])
@pytest.mark.parametrize("make", [run, hostile, lambda: run(600, loud=100)])
def test_a_telephone_has_nothing_to_scroll_sideways(
    opened: Opened, browser: Chromium, width: int, make: Callable[[], Run]
) -> None:
    browser.window(width, 844, touch=True)
    opened(make())
    assert browser.run("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    track, _ = next(iter(rows(browser).values()))
    assert track.width > width * 0.6


def lightness(browser: Chromium) -> tuple[int, int]:
    """How light paper and ink are, 0 to 255."""
    style = "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
    paper, ink = (int(rgb.split("(")[1].split(",")[0]) for rgb in browser.run(style))
    return paper, ink


def test_light_and_dark_follow_the_system_and_paper_is_always_light(
    opened: Opened, browser: Chromium
) -> None:
    opened(run())
    paper, ink = lightness(browser)
    assert paper > 240
    assert ink < 60
    browser.media(scheme="dark")
    paper, ink = lightness(browser)
    assert paper < 40
    assert ink > 220
    browser.media(scheme="dark", kind="print")
    paper, ink = lightness(browser)
    assert paper == 255
    assert ink < 60
    assert not browser.run("document.querySelector('.buttons').checkVisibility()")


def test_it_prints_on_few_sheets_and_nothing_is_wider_than_one(
    opened: Opened, browser: Chromium, tmp_path: Path
) -> None:
    opened(run())
    browser.pdf(tmp_path / "report.pdf")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert 1 <= printed.count(b"/Type /Page\n") <= 3
    browser.window(703, 1000)  # A4 without its margins, at 96 dots to the inch
    browser.media(kind="print")
    opened(run(60))
    assert browser.run("document.documentElement.scrollWidth") <= 703


def test_600_partitions_are_shown_in_little_time(opened: Opened, browser: Chromium) -> None:
    opened(run(600))
    assert browser.run("document.body.offsetHeight") > 0  # it is laid out
    assert browser.cpu_s() < 4.0  # of the page's thread
