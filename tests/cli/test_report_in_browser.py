"""The report in a browser: what stands where, on screens and paper, and what is not let in."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.cli.report import Run, write
from tests.cli.chromium import Chromium
from tests.cli.report_browser import BOX, PIXEL, Box, Opened, box, check_bars, check_curve, rows
from tests.cli.report_runs import BEGIN_S, HOSTILE, gap, hostile, open_gap, run, stall

pytestmark = pytest.mark.slow  # the browser's start; each test takes a part of a second


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


def test_a_run_that_was_ended_at_once_is_a_page_too(opened: Opened) -> None:
    opened(run(end_s=BEGIN_S, partitions=[], gaps=[], stalls=[], marks=[], acked=[]))


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
        assert shown.replace("\ufffd", "\u202e").startswith(HOSTILE), shown
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


PRINTED = {(200, 73, 47), (240, 180, 41), (226, 236, 230)}  # two phases, and a row


def fills(pdf: bytes) -> set[tuple[int, ...]]:
    """Every colour with which something is filled."""
    found = set()
    for packed in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        with contextlib.suppress(zlib.error):  # a font or so
            for colour in re.findall(rb"((?:[\d.]+ ){3})rg", zlib.decompress(packed)):
                found.add(tuple(round(float(part) * 255) for part in colour.split()))
    return found


def test_it_prints_on_few_sheets_and_nothing_is_wider_than_one(
    opened: Opened, browser: Chromium, tmp_path: Path
) -> None:
    opened(run())
    browser.media(scheme="dark", kind="")
    browser.pdf(tmp_path / "report.pdf")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert 1 <= printed.count(b"/Type /Page\n") <= 3
    assert fills(printed) >= PRINTED
    browser.window(703, 1000)  # A4 without its margins, at 96 dots to the inch
    browser.media(kind="print")
    opened(run(60))
    assert browser.run("document.documentElement.scrollWidth") <= 703


def test_600_partitions_are_shown_in_little_time(opened: Opened, browser: Chromium) -> None:
    opened(run(600))
    assert browser.run("document.body.offsetHeight") > 0  # it is laid out
    assert browser.cpu_s() < 4.0  # of the page's thread
