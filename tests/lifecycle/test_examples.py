"""The examples of docs/lifecycle.md run, and what they send arrives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.testing.server import ClusterServer
from tests.tcp.stories import calm_cluster

PAGE = Path(__file__).parents[2] / "docs" / "lifecycle.md"
EXAMPLES = dict(
    re.findall(r"## ([^\n]*)\n(?:(?!\n## ).)*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
)
RECORDS = {"Exit": 1, "Fork": 3, "Many records at once": 1000, "asyncio": 101, "gevent": 100}


def test_each_has_its_count() -> None:
    assert EXAMPLES.keys() == RECORDS.keys()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("name", RECORDS)
def test_the_example_runs(name: str, partitions: int) -> None:
    with calm_cluster(1) as server:
        server.create_topic("orders", partitions)
        program = f"BOOTSTRAP = {server.bootstrap!r}\n{EXAMPLES[name]}"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert stored(server, partitions) == RECORDS[name]


def stored(server: ClusterServer, partitions: int) -> int:
    records = (record for p in range(partitions) for record in server.records("orders", p))
    return len({record.value for record in records})
