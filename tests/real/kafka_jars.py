"""Apache Kafka's jars, fetched once by Maven, and what a machine lacks to run them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import tenacity

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ROOT / ".kafka" / "libs"
POM = Path(__file__).with_name("pom.xml")


def missing() -> dict[str, str]:
    """What this machine lacks to run a real Kafka: word of `TESTS_REQUIRE` → reason."""
    lacks: dict[str, str] = {}
    java = shutil.which("java")
    if java is None:
        lacks["java"] = "no java on the path"
    else:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False
        ).stderr
        digits = said.partition('version "')[2].partition(".")[0].partition('"')[0]
        if not digits.isdigit() or int(digits) < 17:
            lacks["java"] = f"Kafka 4 needs Java 17 or later, and this is {said.splitlines()[:1]}"
    if not _fetched() and shutil.which("mvn") is None:
        lacks["maven"] = "no mvn on the path to fetch Apache Kafka with"
    return lacks


def need_kafka() -> None:
    """Go on if a real Kafka can be run here; fail where `TESTS_REQUIRE` demands it, else skip."""
    lacks = missing()
    if not lacks:
        return
    demanded = set(os.environ.get("TESTS_REQUIRE", "").split(",")) & set(lacks)
    reason = "no real Kafka: " + "; ".join(lacks.values())
    if demanded:
        pytest.fail(f"{reason} (TESTS_REQUIRE names {', '.join(sorted(demanded))})")
    pytest.skip(reason)


def _fetched() -> bool:
    stamp = LIBRARIES / ".complete"
    return stamp.exists() and stamp.read_text() == POM.read_text()


@tenacity.retry(
    stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(5), reraise=True
)  # a download: the network may hiccup
def fetch() -> Path:
    """The folder with Kafka's jars, fetched by Maven when it is not there yet."""
    if not _fetched():
        shutil.rmtree(LIBRARIES, ignore_errors=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={LIBRARIES}"]
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(POM), *goal],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"Maven could not fetch Apache Kafka:\n{done.stdout}")
        (LIBRARIES / ".complete").write_text(POM.read_text())
    return LIBRARIES
