"""mypy and pyright, both strict, on files of users: what they may write, and what they may not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import outlast

HERE = Path(__file__).parent
USER, WRONG = "user.py", "wrong.py"


def complaints(checker: str, folder: Path) -> dict[str, set[int]]:
    """By file, the lines that it complains about; `folder` is nobody's project."""
    for name in (USER, WRONG):
        shutil.copy(HERE / name, folder)
    if checker == "mypy":
        command = ["mypy", "--strict", "--config-file=", "--no-error-summary", "."]
    else:
        (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
        command = ["pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=100
    )
    if checker == "mypy":
        found = re.findall(r"^(\S+?):(\d+): error", done.stdout, re.MULTILINE)
    else:
        found = [
            (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
            for one in json.loads(done.stdout)["generalDiagnostics"]
        ]
    lines: dict[str, set[int]] = {USER: set(), WRONG: set()}
    for file, line in found:
        lines[file].add(int(line))
    print(done.stdout, done.stderr)
    return lines


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_users_files(checker: str, tmp_path: Path) -> None:
    wrong = (HERE / WRONG).read_text().splitlines()
    expected = {n for n, line in enumerate(wrong, 1) if line.endswith("# wrong")}
    assert complaints(checker, tmp_path) == {USER: set(), WRONG: expected}


def test_the_users_file_uses_every_public_name() -> None:
    text = (HERE / USER).read_text()
    assert [name for name in outlast.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(outlast.__file__).parent / "py.typed").exists()
