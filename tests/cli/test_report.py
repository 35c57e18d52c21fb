"""The report without a browser: what it says, what it claims, where it can be written."""

from __future__ import annotations

import io
import os
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder
from rich.console import Console

from outlast.cli.report import Records, render, save, unwritable, write
from outlast.cli.report_page import Page
from tests.cli.report_runs import BEGIN_S, HOSTILE, gap, hostile, plain, run, stall

ROOT = Path(__file__).resolve().parents[2]


# --- what is drawn --------------------------------------------------------------------------------


def test_every_partition_has_a_row_also_one_that_was_not_named() -> None:
    page = Page(
        run(partitions=[("b", 10), ("b", 9), ("a", 1)], gaps=[gap("c", 0, 1, 1)], stalls=[])
    )
    assert [(row.topic, row.partition) for row in page.rows] == [
        ("a", 1), ("b", 9), ("b", 10), ("c", 0),
    ]  # fmt: skip


def test_what_began_before_or_ends_after_the_run_is_not_cut_off() -> None:
    page = Page(run(gaps=[gap("orders", 0, -0.5, 1)], stalls=[stall("orders", 1, 19, 4)]))
    assert (page.from_s, page.to_s) == (-0.5, 23.0)


def test_partitions_without_events_are_folded_away_only_if_there_are_many() -> None:
    many, few = Page(run(600, loud=30)), Page(run(6, loud=2))
    assert (len(many.loud_rows), len(many.quiet_rows)) == (30, 570)
    assert (len(few.loud_rows), len(few.quiet_rows)) == (6, 0)


@pytest.mark.parametrize(("rows", "density"), [(6, "roomy"), (60, "close"), (600, "dense")])
def test_many_rows_are_lower_ones(rows: int, density: str) -> None:
    assert Page(run(rows)).density == density


def test_of_very_many_gaps_the_longest_are_shown_and_that_is_said() -> None:
    gaps = [
        gap("orders", p, number, 0.1 + number / 1000) for p in range(4) for number in range(999)
    ]
    page = Page(run(gaps=gaps, stalls=[], end_s=BEGIN_S + 1000))
    assert sum(len(row.bars) for row in page.rows) == len(list(page.entries)) == 3000
    assert min(bar.length_s for row in page.rows for bar in row.bars) > 0.34
    assert page.shares[-1].total_s == pytest.approx(sum(it.duration_s for it in gaps))
    assert plain(page.notes[-1]).startswith("Of 3,996 gaps and stalls the 3,000 longest are shown")
    few = Page(run(notes=["one"]))
    assert few.notes == ("one",)
    assert not few.left_out


@pytest.mark.parametrize("changes", [{"end_s": BEGIN_S}, {"partitions": []}, {"acked": [0] * 40}])
def test_a_run_in_which_nothing_happened_is_a_page_too(changes: dict[str, Any]) -> None:
    it = run(gaps=[], stalls=[], marks=[], records=Records(0, 0, 0), delivery=None)
    assert "No partition stopped accepting." in render(replace(it, **changes))


def test_a_partition_whose_gaps_are_left_out_is_not_called_quiet() -> None:
    many = [gap("orders", p % 50, p, 2) for p in range(3000)]
    short = gap("orders", 59, 1, 0.001)
    it = run(partitions=[("orders", p) for p in range(60)], gaps=[*many, short], stalls=[])
    assert "10 other partitions have none that is shown" in render(it)
    assert "10 other partitions had neither gap nor stall" in render(replace(it, gaps=many))


def test_the_peak_after_a_gap_is_cut_off_and_told() -> None:
    usual = [100] * 30
    page = Page(run(acked=[*usual, 4000, *usual], acked_step_s=0.25))
    assert page.rate_top == 800
    assert page.rate_peak == 16_000
    assert Page(run(acked=usual, acked_step_s=0.25)).rate_peak is None


def test_the_last_step_of_the_rate_is_left_out_while_it_is_not_whole() -> None:
    page = Page(run(end_s=BEGIN_S + 2.2, acked=[10, 10, 10, 10, 1], acked_step_s=0.5, marks=[]))
    assert page.rates == ((0.25, 20.0), (0.75, 20.0), (1.25, 20.0), (1.75, 20.0))


def test_a_long_run_has_a_curve_of_a_bounded_number_of_points() -> None:
    page = Page(run(end_s=BEGIN_S + 36_000, acked=[7] * 36_000, acked_step_s=1))
    assert 1000 < len(page.rates) <= 2000
    assert {rate for _, rate in page.rates} == {7.0}


def test_when_reading_went_on_stands_beside_the_gap_that_it_followed() -> None:
    gaps = [gap("orders", 0, 2, 3), gap("orders", 0, 10, 2), gap("orders", 1, 2, 3)]
    resumed = {("orders", 0): [BEGIN_S + 5.25, BEGIN_S + 11.5]}
    page = Page(run(gaps=gaps, stalls=[], resumed=resumed))
    column = [name for name, _ in page.columns].index("Read again")
    told = {entry.anchor: plain(entry.cells[column].text) for entry in page.entries}
    assert told == {"gap-1": "+250 ms", "gap-2": "−500 ms", "gap-3": ""}
    assert "Read again" not in dict(Page(run()).columns)


# --- the file -------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Elements and their attributes, as a browser without mercy would read them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_nothing_that_was_named_becomes_markup() -> None:
    kind, attack = Reader(), Reader()
    kind.feed(render(run()))
    attack.feed(render(hostile()))
    assert set(attack.tags) <= {*kind.tags, "p", "b"}
    assert attack.tags.count("script") == 1
    assert "img" not in attack.tags
    assert not [name for name, _ in attack.attributes if name.startswith("on")]
    assert "{{ 7 * 7 }}" in render(hostile())


def test_the_page_names_no_other_place() -> None:
    reader = Reader()
    reader.feed(render(run(60)))
    assert {name for name, _ in reader.attributes}.isdisjoint({"src", "srcset", "action"})
    links = {value for name, value in reader.attributes if name == "href"}
    assert all(link is not None and link.startswith(("#", "data:,")) for link in links)
    assert not re.search(r"url\(|@import|https?:", render(run(60)))


def test_what_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    write(hostile(), tmp_path / "report.html")
    assert "half a pair: \\ud800" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_page_of_600_partitions_is_small_and_quickly_made() -> None:
    it = run(600)
    begun_s = time.process_time()
    page = render(it)
    took_s = time.process_time() - begun_s
    assert len(it.gaps) + len(it.stalls) == 1000
    assert len(page.encode()) < 1_500_000  # measured: 1.0 MB
    assert took_s < 3.0  # measured: 0.15 s


@pytest.mark.parametrize("place", ["missing/report.html", ".", "file/report.html"])
def test_where_no_file_can_be_written_is_said_before(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / place
    why = unwritable(path)
    assert why is not None
    assert why.startswith(f"no report can be written to {path}: ")


def test_asking_changes_nothing(tmp_path: Path) -> None:
    there, new = tmp_path / "there.html", tmp_path / "new.html"
    there.write_text("old")
    assert unwritable(there) is None
    assert unwritable(new) is None
    assert there.read_text() == "old"
    assert not new.exists()


def test_a_pipe_is_not_opened_before_there_is_something_to_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert unwritable(path) is None  # and did not wait for a reader


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_that_is_full_at_the_end_is_one_line() -> None:
    console = Console(file=io.StringIO(), width=200)
    assert not save(run(), Path("/dev/full"), console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == (
        "No report was written to /dev/full: No space left on device\n"
    )


def test_the_wheel_brings_the_templates(tmp_path: Path) -> None:
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(ZipFile(built).namelist())
    folder = ROOT / "src" / "outlast" / "cli" / "templates"
    expected = {f"outlast/cli/templates/{path.name}" for path in folder.iterdir()}
    assert len(expected) == 3
    assert expected <= names


def test_hostile_names_stand_in_the_page_as_they_are() -> None:
    page = Page(hostile())
    assert {row.topic for row in page.rows} == set(HOSTILE)
