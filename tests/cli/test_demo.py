"""`outlast demo` as a user runs it, in a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

RUN = "from outlast.cli import main; main()"
FORGETFUL = """
from outlast.cli import demo, main
read_back = demo.read_back
def forgetful(*args):
    read = read_back(*args)
    del read[3][len(read[3]) // 2]
    return read
demo.read_back = forgetful
main()
"""


@dataclass
class Finished:
    code: int
    out: str
    err: str
    took_s: float


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "COLUMNS": "80"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(process: subprocess.Popen[str], since_s: float) -> Finished:
    try:
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
    return Finished(process.returncode, out, err, time.monotonic() - since_s)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demos put their reports."""
    return tmp_path_factory.mktemp("demos")


@pytest.fixture(scope="module")
def demos(folder: Path) -> tuple[Finished, Finished]:
    """An honest one, and one whose reader loses a record; side by side, to save time."""
    since_s = time.monotonic()
    pages = [str(folder / f"{name}.html") for name in ("honest", "forgetful")]
    honest = start(RUN, "demo", "--rate", "100", "--report", pages[0])
    forgetful = start(FORGETFUL, "demo", "--rate", "50", "--seed", "2", "--report", pages[1])
    return finish(honest, since_s), finish(forgetful, since_s)


@pytest.mark.slow
def test_the_demo_shows_gaps_and_delivers_everything(demos: tuple[Finished, Finished]) -> None:
    demo, _ = demos
    assert demo.err == ""
    assert demo.code == 0, demo.out
    assert demo.took_s < 40
    *lines, verdict, report = demo.out.splitlines()
    assert verdict == "lost 0 · duplicated 0 · out of order 0"
    assert report.startswith("The report is in ")
    assert max(map(len, lines)) <= 80
    sent = re.search(r"sent ([\d,]+) · acknowledged ([\d,]+) · failed 0", demo.out)
    assert sent
    assert sent[1] == sent[2]
    for partition in range(6):
        assert re.search(rf"^orders-{partition} ", demo.out, re.MULTILINE)


@pytest.mark.slow
def test_the_table_tells_of_the_move_and_of_the_kill(demos: tuple[Finished, Finished]) -> None:
    out = demos[0].out
    moved = re.search(r"leader of orders-0 moves from node (\d) to node (\d)", out)
    killed = re.search(r"node (\d) is killed; it leads (.*)", out)
    assert moved
    assert killed
    rows = re.findall(
        r"^orders-(\d) +[\d,]+ +([\d,]+) .* (\d) → (\d) +(\w+) *\n(\w+) +(\d+) → (\d+) ",
        out,
        re.MULTILINE,
    )
    assert {row[4] for row in rows} == {"absorbed"}
    move = next(row for row in rows if row[0] == "0")
    assert move[2:4] == moved.groups()
    assert move[5] == "not_leader"
    assert int(move[7]) == int(move[6]) + 1
    for name in re.findall(r"orders-(\d)", killed[2]):
        gap = [row for row in rows if row[0] == name][-1]
        assert gap[2] == killed[1] != gap[3]
        assert int(gap[1].replace(",", "")) > 2000  # the election takes 3 s
    # what others led waited with acks=all for the dead follower: no gap, a stall as long
    others = {str(p) for p in range(6)} - set(re.findall(r"orders-(\d)", killed[2]))
    waits = re.findall(r"^orders-(\d) +[\d,]+ +([\d,]+) +\d +waited *\nstall", out, re.MULTILINE)
    assert {row[0] for row in waits} == others
    # one whose record was with the follower in time is acked with the first 7, an ack wait later,
    # and its stall is of what it sends then
    shortest_ms = 3000 - 1000 - 100
    assert all(shortest_ms < int(row[1].replace(",", "")) < 4500 for row in waits)


@pytest.mark.slow
def test_a_lost_record_is_told_and_ends_in_exit_code_1(demos: tuple[Finished, Finished]) -> None:
    _, demo = demos
    assert demo.out.splitlines()[-2] == "lost 1 · duplicated 0 · out of order 0"
    assert demo.code == 1


@pytest.mark.slow
def test_the_report_tells_what_the_terminal_tells(
    demos: tuple[Finished, Finished], folder: Path
) -> None:
    demo, forgetful = demos
    page = (folder / "honest.html").read_text(encoding="utf-8")
    killed = re.search(r"node (\d) is killed; it leads .*", demo.out)
    sent = re.search(r"sent ([\d,]+) ", demo.out)
    assert killed
    assert sent
    for text in (killed[0], f"of {sent[1]} sent; 0 failed", "and no record was lost."):
        assert text in page
    rows = len(re.findall(r"^orders-\d +[\d,]+ ", demo.out, re.MULTILINE))
    assert len(re.findall(r'<tr id="(?:gap|stall)-\d+">', page)) == rows >= 6
    assert len(re.findall(r'<div class="row" ', page)) == 6
    assert 'class="line" d="M' in page
    broken = (folder / "forgetful.html").read_text(encoding="utf-8")
    assert "1 acknowledged record is lost." in broken
    assert forgetful.out.splitlines()[-1] == f"The report is in {folder / 'forgetful.html'}"


def test_a_report_that_cannot_be_written_is_told_before_the_demo(tmp_path: Path) -> None:
    done = finish(start(RUN, "demo", "--report", str(tmp_path / "no" / "r.html")), time.monotonic())
    assert done.code == 2
    assert done.out == ""
    told = " ".join(done.err.replace("│", " ").split())
    assert "no report can be written to" in told
    assert "No such file or directory" in told


def test_help_names_the_demo() -> None:
    done = finish(start(RUN, "--help"), time.monotonic())
    assert done.code == 0, done.err
    assert "demo" in done.out


def test_version() -> None:
    done = finish(start(RUN, "--version"), time.monotonic())
    assert re.fullmatch(r"outlast \d+\..*\n", done.out)


@pytest.mark.parametrize("missing", ["typer", "rich", "jinja2"])
def test_a_missing_extra_is_one_clear_line(missing: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; {RUN}"
    done = finish(start(code, "demo", "--report", str(tmp_path / "r.html")), time.monotonic())
    assert done.code == 1
    assert done.err == (
        f"outlast: its commands need {missing}, which is not installed. "
        "Install them with: pip install 'outlast[cli]'. "
        "`outlast run` and `outlast path` need nothing.\n"
    )
    assert done.out == ""


def test_a_bad_option_is_refused() -> None:
    done = finish(start(RUN, "demo", "--rate", "0"), time.monotonic())
    assert done.code == 2
    assert "--rate" in done.err
