"""The first mark for throughput: at least four times kafka-python's records per CPU second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "throughput.py"
FACTOR = 4.0


@pytest.mark.slow
def test_a_cpu_second_buys_four_times_kafka_pythons_records() -> None:
    command = [sys.executable, str(BENCHMARK), "--clients", "outlast,kafka-python"]
    command += ["--runs", "3", "--records", "60000"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, list[int]] = {"outlast": [], "kafka-python": []}
    for line in output.splitlines():
        run = json.loads(line)
        figures[run["client"]].append(run["records_per_cpu_s"])
    assert [len(runs) for runs in figures.values()] == [3, 3]
    assert median(figures["outlast"]) >= FACTOR * median(figures["kafka-python"]), figures
