"""Without Java the tests on a real Kafka skip with a reason; where Java is demanded, they fail."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.real.kafka_jars import ROOT


@pytest.mark.parametrize(
    ("demanded", "code", "words"),
    [
        ("", 0, "skipped"),
        ("prometheus", 0, "skipped"),
        ("maven,java", 1, "TESTS_REQUIRE names java"),
    ],
)
def test_what_a_machine_without_java_does(demanded: str, code: int, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/real/test_failover.py"],
        cwd=ROOT,
        env={**os.environ, "PATH": "", "TESTS_REQUIRE": demanded},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert words in done.stdout
    assert "no java on the path" in done.stdout
