"""`outlast demo` as a user runs it, in a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass

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
def demos() -> tuple[Finished, Finished]:
    """An honest one, and one whose reader loses a record; side by side, to save time."""
    since_s = time.monotonic()
    honest = start(RUN, "demo", "--rate", "100")
    forgetful = start(FORGETFUL, "demo", "--rate", "50", "--seed", "2")
    return finish(honest, since_s), finish(forgetful, since_s)


@pytest.mark.slow
def test_the_demo_shows_gaps_and_delivers_everything(demos: tuple[Finished, Finished]) -> None:
    demo, _ = demos
    assert demo.err == ""
    assert demo.code == 0, demo.out
    assert demo.took_s < 40
    lines = demo.out.splitlines()
    assert lines[-1] == "lost 0 · duplicated 0 · out of order 0"
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
    assert all(2000 < int(row[1].replace(",", "")) < 4500 for row in waits)


@pytest.mark.slow
def test_a_lost_record_is_told_and_ends_in_exit_code_1(demos: tuple[Finished, Finished]) -> None:
    _, demo = demos
    assert demo.out.splitlines()[-1] == "lost 1 · duplicated 0 · out of order 0"
    assert demo.code == 1


def test_help_names_the_demo() -> None:
    done = finish(start(RUN, "--help"), time.monotonic())
    assert done.code == 0, done.err
    assert "demo" in done.out


def test_version() -> None:
    done = finish(start(RUN, "--version"), time.monotonic())
    assert re.fullmatch(r"outlast \d+\..*\n", done.out)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_one_clear_line(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; {RUN}"
    done = finish(start(code, "demo"), time.monotonic())
    assert done.code == 1
    assert done.err == (
        f"outlast: its commands need {missing}, which is not installed. "
        "Install them with: pip install 'outlast[cli]'\n"
    )
    assert done.out == ""


def test_a_bad_option_is_refused() -> None:
    done = finish(start(RUN, "demo", "--rate", "0"), time.monotonic())
    assert done.code == 2
    assert "--rate" in done.err
