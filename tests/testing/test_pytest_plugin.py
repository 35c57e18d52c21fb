"""The pytest plugin: its fixtures, its report, and that it costs nothing where nobody asks for it.

Each test runs pytest in a process of its own, as a project that has outlast installed does.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

FIXTURES = """
import pytest
from outlast import KafkaProducer

def send(cluster, topic="orders"):
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        return producer.send(topic, b"x", partition=0).get(timeout=20)

@pytest.mark.mock_kafka(nodes=2, topics={"orders": 2})
def test_marker(mock_kafka):
    assert list(mock_kafka.nodes()) == [1, 2]
    assert len(mock_kafka.partitions("orders")) == 2
    assert send(mock_kafka).offset == 0

def test_bare(mock_kafka):
    assert mock_kafka.partitions() == []
    mock_kafka.create_topic("orders")
    assert send(mock_kafka).offset == 0

@pytest.mark.mock_kafka(topics={"orders": 1})
def test_gaps(mock_kafka, kafka_gaps):
    assert list(kafka_gaps) == []
    mock_kafka.kill(mock_kafka.leader("orders", 0))
    send(mock_kafka)
    (gap,) = kafka_gaps
    assert gap is kafka_gaps[0] or gap == kafka_gaps[0]
    assert kafka_gaps.of("orders", 0) == [gap]
    assert kafka_gaps.of("orders", 1) == kafka_gaps.of("other") == kafka_gaps.open() == []
    assert gap.outcome.value == "absorbed"
    assert "gap of orders-0" in str(kafka_gaps)
"""

FAILING = """
import pytest
from outlast import KafkaProducer
from outlast.testing import Error

@pytest.mark.mock_kafka(topics={"orders": 1})
def test_fails(mock_kafka, kafka_gaps):
    mock_kafka.faults.append(Error(6, times=3))
    with KafkaProducer(bootstrap_servers=mock_kafka.bootstrap_servers) as producer:
        producer.send("orders", b"x").get(timeout=20)
    assert len(kafka_gaps) == 0
"""

UNAWARE = """
import sys

def test_nothing_is_imported():
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert "_outlast_pytest" in loaded
    assert not loaded & {"outlast", "kafka", "tenacity", "opentelemetry", "prometheus_client"}
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_it.py").write_text(source, encoding="utf-8")
        options = ["-q", "-p", "no:cacheprovider", "--strict-markers", *arguments]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, "test_it.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def test_pytest_finds_it_by_its_entry_point() -> None:
    (found,) = [point for point in entry_points(group="pytest11") if point.name == "outlast"]
    assert found.value == "_outlast_pytest"


def test_the_fixtures(run: Run) -> None:
    done = run(FIXTURES)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_a_failed_test_tells_its_gaps(run: Run) -> None:
    done = run(FAILING)
    assert done.returncode == 1
    assert "Gaps of Kafka producers" in done.stdout
    assert re.search(r"gap of orders-0: \d\.\d+ s, \w+, ended by ack, absorbed", done.stdout)


def test_who_does_not_use_it_imports_nothing_of_it(run: Run) -> None:
    done = run(UNAWARE, "-W", "error")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_it_is_listed_with_what_it_is_for(run: Run) -> None:
    told = run(UNAWARE, "--fixtures").stdout
    assert "A mock Kafka cluster on TCP ports for this test" in told
    assert "The rejection gaps of the outlast producers" in told
    assert "@pytest.mark.mock_kafka(nodes=3" in run(UNAWARE, "--markers").stdout
