"""Observers' threads are greenlets after gevent's monkey.patch_all(): none holds others up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATCH = "import gevent.monkey; gevent.monkey.patch_all()\n"
PROGRAM = """
import time
from opentelemetry.trace import INVALID_SPAN
from prometheus_client import CollectorRegistry
from outlast.engine.messages import RecordsSettled
from outlast.observe.prometheus import PrometheusObserver
from outlast.observe.span_ends import SpanEnds, Trouble
"""
REST = """
registry = CollectorRegistry()
ends, observer = SpanEnds(Trouble()), PrometheusObserver(registry)

def acked():
    labels = {"topic": "t", "result": "acked"}
    return registry.get_sample_value("outlast_records_total", labels)

for count in (1, 2):  # the thread waits in between
    ends.end(INVALID_SPAN, 1)
    assert ends.drain(20)
    observer([RecordsSettled(1.0, "t", 0, 1, 0, 0.1)])
    while acked() != count:
        time.sleep(0.01)
ends.close()
observer.close()
print("went on")
"""


@pytest.mark.parametrize("program", [PATCH + PROGRAM, PROGRAM + PATCH], ids=["first", "last"])
def test_spans_end_and_batches_are_written_beside_other_greenlets(
    program: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program + REST],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stdout == "went on\n", done.stderr
