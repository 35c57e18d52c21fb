"""Applications in processes of their own: as `python` runs them, and as `outlast run` does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import outlast

PYTHON = (sys.executable,)
MAIN = "from _outlast_command import main; main()"
OUTLAST = (sys.executable, "-c", MAIN)
RUN = (*OUTLAST, "run")
FOLDER = str(Path(outlast.__file__).parent / "site")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without what would make two runs differ."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    return {**kept, "PYTHONHASHSEED": "0", **(more or {})}


def path(*folders: str | Path) -> str:
    """A PYTHONPATH with these folders first."""
    ours = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([ours] if ours else [])])


def run(
    command: tuple[str, ...],
    *arguments: str | Path,
    folder: Path | None = None,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to its end."""
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=folder,
        input=stdin,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def said(command: tuple[str, ...], *arguments: str | Path, **more: object) -> str:
    """Its stdout; it must succeed and say nothing on stderr."""
    done = run(command, *arguments, **more)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
