"""`outlast dashboard` prints what is to be put in a file, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from outlast import dashboards
from outlast.cli import main


def printed(*arguments: str) -> bytes:
    """What the command writes, in a locale that knows ASCII only."""
    command = [sys.executable, "-c", "from outlast.cli import main; main()", "dashboard"]
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, *arguments], env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def test_the_dashboard_is_the_packages_file() -> None:
    text = printed()
    assert text == dashboards.dashboard().encode()
    assert json.loads(text)["title"].startswith("outlast")


def test_the_alerts_are_the_packages_file() -> None:
    assert printed("--alerts") == dashboards.alerts().encode()
    assert dashboards.alerts().count("- alert: ") == 8


def test_it_stands_in_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["outlast", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert "dashboard" in capsys.readouterr().out
