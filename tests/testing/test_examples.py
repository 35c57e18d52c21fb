"""The examples of docs/testing.md run: as programs, under pytest, and at the prompt."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlast.cli.app import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
PROMPT = "outlast> "


def blocks(language: str) -> list[tuple[int, str]]:
    """Line number and text of each block of code in this language."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start(1)].count("\n") + 1, match[1]) for match in found]


PROGRAMS = [block for block in blocks("python") if "def test_" not in block[1]]
TESTS = [block for block in blocks("python") if "def test_" in block[1]]
TALKS = blocks("console")


def test_the_page_has_examples_of_each_kind() -> None:
    assert (len(PROGRAMS) >= 7, len(TESTS) >= 1, len(TALKS) >= 1) == (True, True, True)


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(("line", "program"), PROGRAMS, ids=[f"line-{b[0]}" for b in PROGRAMS])
def test_a_program_runs(line: int, program: str) -> None:
    exec(compile("\n" * line + program, str(PAGE), "exec"), {"__name__": "__main__"})


def test_tests_pass_under_pytest(tmp_path: Path) -> None:
    for line, source in TESTS:
        (tmp_path / f"test_line_{line}.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    count = sum(source.count("def test_") for _, source in TESTS)
    assert f"{count} passed" in done.stdout


@pytest.mark.parametrize(("line", "talk"), TALKS, ids=[f"line-{b[0]}" for b in TALKS])
def test_a_talk_at_the_prompt_goes_as_told(line: int, talk: str) -> None:
    command, *shown = talk.splitlines()
    assert command.startswith("$ outlast ")
    said = [text.removeprefix(PROMPT) for text in shown if text.startswith(PROMPT)]
    done = CliRunner(env={"COLUMNS": "120"}).invoke(
        app, [*command.split()[2:], "--port", "0"], input="\n".join(said)
    )
    assert done.exit_code == 0, done.stderr
    assert plain(done.stdout.splitlines()) == plain(shown)


def plain(lines: list[str]) -> list[list[str]]:
    """Words, without what differs from run to run: ports and times."""
    text = "\n".join(lines)
    for varies in (r"127\.0\.0\.1:\d+", r"\d+\.\d+ s"):
        text = re.sub(varies, "~", text)
    return [line.split() for line in text.splitlines()]
