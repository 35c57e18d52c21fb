"""`make oldest` installs the lower bounds, all of them, and `make pythons` the newest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packaging import environments
from tests.packaging.oldest import oldest, pinned

PROJECT: dict[str, Any] = {
    "dependencies": ["kafka-python[crc32c]>=3.0.12,<3.1", "tenacity>=8.2"],
    "optional-dependencies": {
        "cli": ["rich>=13"],
        "dev": ["outlast[cli]", "pytest>=8.3", "opentelemetry-sdk>=1.25"],
        "bench": ["matplotlib>=3.8"],
    },
}


def test_ranges_become_their_lower_bounds() -> None:
    assert oldest(PROJECT) == [
        "kafka-python[crc32c]==3.0.12",
        "tenacity==8.2",
        "rich==13",
        "opentelemetry-sdk==1.25",
    ]


@pytest.mark.parametrize("requirement", ["tenacity", "tenacity<9", "tenacity!=8.3"])
def test_what_has_no_lower_bound_is_an_error(requirement: str) -> None:
    with pytest.raises(ValueError, match="no lower bound"):
        pinned(requirement)


def test_other_environments_have_the_same_libraries_and_the_tools_of_dev() -> None:
    classifiers = ["Programming Language :: Python :: 3.10", "Typing :: Typed"]
    project = {**PROJECT, "classifiers": classifiers}
    assert environments.newest(project) == [
        "kafka-python[crc32c]>=3.0.12,<3.1",
        "tenacity>=8.2",
        "rich>=13",
        "opentelemetry-sdk>=1.25",
    ]
    assert environments.tools(project) == ["pytest>=8.3"]
    assert environments.pythons(project) == ["3.10"]


def test_an_interpreter_that_does_not_run_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    shim = tmp_path / "python3.10"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert environments.interpreter("3.10") is None
    kept = tmp_path / ".pyenv" / "versions" / "3.10.1" / "bin" / "python"
    kept.parent.mkdir(parents=True)
    kept.symlink_to(sys.executable)
    assert environments.interpreter("3.10") == str(kept)
