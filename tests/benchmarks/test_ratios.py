"""How much cheaper than kafka-python, with wide margins: `make bench` tells it closely."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import summary
from benchmarks.run import ROOT

CHEAPER = 2.5  # 5 is the target
LIGHTER = 0.6  # 0.4 is the target

pytestmark = pytest.mark.timed


def runs(folder: Path, scenario: str, variant: str, rounds: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.run", "--short", "--results", str(folder)]
    command += ["--clients", "outlast,kafka-python", "--runs", str(rounds)]
    command += ["--only", scenario, "--variants", variant]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [json.loads(line) for line in said.splitlines()]
    assert len(found) == 2 * rounds
    return found


@pytest.mark.slow
def test_a_cpu_second_buys_more_records(tmp_path: Path) -> None:
    variant = "mock, defaults"
    found = runs(tmp_path, "throughput", variant, 2)
    ratio = summary.ratio(
        found, "records_per_cpu_s", (variant, "outlast"), (variant, "kafka-python")
    )
    assert ratio is not None
    assert ratio.median >= CHEAPER, found


@pytest.mark.slow
def test_records_that_wait_weigh_less(tmp_path: Path) -> None:
    variant = "futures kept"
    found = runs(tmp_path, "memory", variant, 1)
    ratio = summary.ratio(
        found, "rss_mib_per_100k", (variant, "outlast"), (variant, "kafka-python")
    )
    assert ratio is not None
    assert ratio.median <= LIGHTER, found
