"""Memory follows `buffer_memory`, for large records and tiny ones, while no broker lives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic

MIB = 1024 * 1024
BUFFER_BYTES = 32 * MIB
MAX_BLOCK_MS = 700
CHARGED_PER_RECORD_BYTES = 120


@pytest.mark.parametrize(("records", "value_bytes"), [(300_000, 1_000), (3_000_000, 10)])
def test_growth_is_bounded_and_send_blocks(
    cluster: ClusterServer, records: int, value_bytes: int
) -> None:
    topic = new_topic(cluster, 6)
    numbers = [str(n) for n in (records, value_bytes, BUFFER_BYTES, MAX_BLOCK_MS)]
    with subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("fill_buffer.py")),
            *(cluster.bootstrap, topic, *numbers),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for node in (1, 2, 3):
            cluster.kill(node)
        out, err = child.communicate("the brokers are dead\n", timeout=90)
        assert child.returncode == 0, err
    told = json.loads(out)
    print(told)
    assert told["done"] == 0
    # The buffer is really used: nearly all of it is taken when send() blocks.
    charge_bytes = value_bytes + CHARGED_PER_RECORD_BYTES
    assert 0.7 * BUFFER_BYTES < told["taken"] * charge_bytes <= BUFFER_BYTES
    assert told["grown_bytes"] <= 2 * BUFFER_BYTES + 20 * MIB
    assert len(told["blocked_s"]) == 3
    for blocked_s in told["blocked_s"]:
        assert MAX_BLOCK_MS / 1000 <= blocked_s <= MAX_BLOCK_MS / 1000 + 0.2
