"""Commands whose standard streams are closed, full, or read by nobody any more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outlast import dashboards
from outlast.cli.streams import UNWRITTEN
from outlast.testing import MockCluster

FULL = "/dev/full"
RUN = (sys.executable, "-c", "from outlast.cli import main; main()")
FULL_DISK = ("dashboard", "--version", "simulate --seeds 1:4 --jobs 2", "demo")
NO_READER = ("dashboard --alerts", "drill --help", "simulate --seed 3 --trace", "cluster --port 0")
CLOSED = "outlast: stdout cannot be written to: it is closed\n"
NO_SPACE = "outlast: stdout cannot be written to: No space left on device\n"

needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason=f"there is no {FULL} here")


def run(command: str, redirected: str, *, unbuffered: bool = False) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, redirected as a shell does it."""
    done = subprocess.run(
        ["bash", "-c", f'"$@" {redirected}', "bash", *RUN, *command.split()],
        env={**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def unread(command: str) -> tuple[int, str]:
    """Exit code and stderr of a command that writes to a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*RUN, *command.split()],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["dashboard", "cluster --no-prompt --port 0"])
def test_a_closed_stdout_is_told(command: str) -> None:
    assert run(command, ">&-") == (UNWRITTEN, "", CLOSED)


@needs_full
@pytest.mark.parametrize("command", FULL_DISK)
def test_a_full_disk_is_told(command: str) -> None:
    assert run(command, f"> {FULL}") == (UNWRITTEN, "", NO_SPACE)


@needs_full
@pytest.mark.parametrize("command", ["dashboard", "--version"])
def test_a_full_disk_is_told_without_a_buffer(command: str) -> None:
    assert run(command, f"> {FULL}", unbuffered=True) == (UNWRITTEN, "", NO_SPACE)


@pytest.mark.parametrize("command", NO_READER)
def test_a_pipe_without_reader_ends_it_quietly(command: str) -> None:
    assert unread(command) == (UNWRITTEN, "")


@needs_full
@pytest.mark.parametrize("redirected", ["2>&-", f"2> {FULL}"])
def test_what_cannot_be_told_on_stderr_changes_no_exit_code(redirected: str) -> None:
    assert run("check --bootstrap-servers 127.0.0.1:1", redirected) == (3, "", "")


def test_all_may_be_closed_but_stdout() -> None:
    assert run("dashboard --alerts", "<&- 2>&-") == (0, dashboards.alerts(), "")


def test_a_closed_stdin_is_an_empty_one() -> None:
    code, out, err = run("cluster --port 0", "<&-")
    assert (code, err) == (0, "")
    assert "there was nothing to read" in out


@needs_full
@pytest.mark.parametrize("how", ["", "--json"])
def test_a_check_that_cannot_be_told_has_no_verdict(how: str) -> None:
    with MockCluster(1, topics={"orders": 1}) as cluster:
        command = f"check --bootstrap-servers {cluster.bootstrap_servers} {how}"
        assert run(command, f"> {FULL}") == (UNWRITTEN, "", NO_SPACE)
        assert unread(command) == (UNWRITTEN, "")


def test_a_drill_whose_reader_goes_away_ends_and_deletes_its_topic() -> None:
    with MockCluster(3) as cluster:
        with subprocess.Popen(
            [*RUN, "drill", "--bootstrap-servers", cluster.bootstrap_servers],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as drill:
            assert drill.stdout is not None
            assert drill.stderr is not None
            assert drill.stdout.readline().startswith("topic outlast-drill-")
            drill.stdout.close()
            assert drill.stderr.read() == ""
        assert drill.returncode == UNWRITTEN
        assert not cluster.partitions()
