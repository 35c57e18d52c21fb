"""Runs the examples as their docstrings say: the command there, against a mock cluster."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from outlast.testing import MockCluster

ROOT = Path(__file__).resolve().parents[2]


def command(example: str) -> list[str]:
    """The second line of the first block of a docstring: the first one starts the cluster."""
    source = (ROOT / "examples" / example).read_text(encoding="utf-8")
    block = re.findall(r"^    (.+)$", ast.get_docstring(ast.parse(source)) or "", re.MULTILINE)
    assert block[0].startswith("outlast cluster --topic ")
    words = shlex.split(block[1], comments=True)
    return [sys.executable, *words[1:]] if words[0] == "python" else [sys.executable, "-m", *words]


def surroundings(cluster: MockCluster, **environment: str) -> dict[str, str]:
    return {
        **os.environ,
        "OUTLAST_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "PYTHONWARNINGS": "ignore",
        **environment,
    }


@contextmanager
def server(
    cluster: MockCluster, log: Path, *words: str, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An HTTP server; gives its address. SIGTERM ends it, and it must end well."""
    with (
        log.open("w") as output,
        subprocess.Popen(
            words, cwd=ROOT, env=surroundings(cluster, **environment), stdout=output, stderr=output
        ) as process,
    ):
        try:
            until(lambda: address(log) is not None or process.poll() is not None, "an address")
            found = address(log)
            assert found is not None, log.read_text()
            yield found, process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert process.returncode in (0, -signal.SIGTERM), log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()


def address(log: Path) -> str | None:
    found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
    return None if found is None else found[0]


def until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    ends_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends_s, f"not within {timeout_s} s: {what}"
        threading.Event().wait(0.05)


def values(cluster: MockCluster, topic: str) -> Counter[bytes | None]:
    """All values of a topic, and how often each is in it."""
    count = len(cluster.partitions(topic))
    return Counter(r.value for p in range(count) for r in cluster.records(topic, p))
