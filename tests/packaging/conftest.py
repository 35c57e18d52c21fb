"""The two distributions as they would be published, built once, and the files of the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Distribution(NamedTuple):
    """Where it lies, and its files by name; those of the sdist without its topmost folder."""

    path: Path
    files: dict[str, bytes]


def build(target: str, source: Path, folder: Path) -> Path:
    """By hatchling, as pip would call it; without the compiler, whatever is set."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HATCH_")}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=source, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    (built,) = folder.iterdir()
    return built


def unzipped(path: Path) -> Distribution:
    with zipfile.ZipFile(path) as archive:
        return Distribution(path, {name: archive.read(name) for name in archive.namelist()})


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return unzipped(build("wheel", ROOT, tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    path = build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    files = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            if (opened := archive.extractfile(member)) is not None:
                files[member.name.partition("/")[2]] = opened.read()
    return Distribution(path, files)


@pytest.fixture(scope="session")
def tree() -> set[str]:
    """The files that git knows or may add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    return {name for name in listed if name and (ROOT / name).is_file()}
