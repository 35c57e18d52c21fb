"""Metrics that cannot be had, or break later: records are delivered, and it is said once."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from outlast import KafkaProducer
from outlast.errors import ConfigurationError
from outlast.observe.otel_metrics import OtelMetricsObserver
from outlast.observe.prometheus import PrometheusObserver
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer

LATE_S = 10.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with ClusterServer(MockCluster(1, rng=random.Random(1))) as server:
        server.create_topic("orders", 2)
        yield server.bootstrap


def delivers(bootstrap: str, **options: Any) -> None:
    with KafkaProducer(bootstrap_servers=bootstrap, **options) as producer:
        for number in range(20):
            future = producer.send("orders", b"%d" % number, partition=number % 2)
            future.get(LATE_S)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def taken_name(registry: CollectorRegistry) -> None:
    Gauge("outlast_buffer_bytes", "of somebody else", registry=registry)


def taken_counter(registry: CollectorRegistry) -> None:
    Counter("outlast_gaps", "of somebody else", ["x"], registry=registry)


def refusing(registry: CollectorRegistry) -> None:
    def register(collector: object) -> None:
        raise RuntimeError("closed for today")

    registry.register = register  # type: ignore[method-assign]


@pytest.mark.parametrize("spoil", [taken_name, taken_counter, refusing])
def test_a_registry_that_takes_no_metrics_costs_nothing_but_them(
    spoil: Callable[[CollectorRegistry], None],
    bootstrap: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    spoil(registry)
    before = generate_latest(registry)
    delivers(bootstrap, metrics_registry=registry)
    delivers(bootstrap, metrics_registry=registry)
    [line] = said(caplog)  # once, not once for each producer
    assert "metrics='prometheus'" in line
    assert "Duplicated timeseries" in line or "closed for today" in line
    assert generate_latest(registry) == before  # nothing of ours is left half registered


def test_nothing_is_left_half_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    registry = CollectorRegistry()
    taken_name(registry)  # of a metric in the midst of the list
    before = generate_latest(registry)
    with pytest.raises(ValueError, match="outlast_buffer_bytes"):
        PrometheusObserver(registry)
    assert generate_latest(registry) == before


def test_a_collision_says_what_to_do() -> None:
    registry = CollectorRegistry()
    taken_name(registry)
    with pytest.raises(ValueError, match="outlast_buffer_bytes"):
        PrometheusObserver(registry)
    taken = CollectorRegistry()
    PrometheusObserver(taken)
    with pytest.raises(ValueError, match="outlast_gaps"):
        taken_counter(taken)  # others hear of ours, too


class Refusing(NoOpMeterProvider):
    def get_meter(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no meters here")


def test_a_provider_that_raises_costs_nothing_but_its_metrics(
    bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Refusing()
    for _ in range(2):
        delivers(bootstrap, metrics="otel", meter_provider=provider)
    [line] = said(caplog)
    assert "metrics='otel'" in line
    assert "no meters here" in line


class Breaking(SdkMeterProvider):
    """Its histograms are broken."""

    def get_meter(self, *args: Any, **keywords: Any) -> Any:
        meter = super().get_meter(*args, **keywords)
        make = meter.create_histogram

        def create_histogram(*args: Any, **keywords: Any) -> Any:
            histogram = make(*args, **keywords)

            def record(*_: Any) -> None:
                raise RuntimeError("broken histogram")

            histogram.record = record  # type: ignore[method-assign,assignment]
            return histogram

        meter.create_histogram = create_histogram  # type: ignore[method-assign]
        return meter


def test_a_backend_that_raises_later_is_dropped(
    bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider: MeterProvider = Breaking()
    delivers(bootstrap, metrics="otel", meter_provider=provider)
    told = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert [r.exc_info[1].args for r in told if r.exc_info] == [("broken histogram",)]
    assert len(told) == 1
    provider.shutdown()  # type: ignore[attr-defined]


def test_a_label_that_would_cost_the_whole_page_is_refused(bootstrap: str) -> None:
    with pytest.raises(ConfigurationError, match="values that UTF-8 can encode"):
        KafkaProducer(bootstrap_servers=bootstrap, metrics_labels={"host": "a\udcff"})


def test_both_at_once_cannot_be_had(bootstrap: str) -> None:
    with pytest.raises(ValueError, match="to one place only"):
        KafkaProducer(
            bootstrap_servers=bootstrap, metrics="otel", metrics_registry=CollectorRegistry()
        )


@pytest.mark.parametrize("off", [{"metrics": None}, {"metrics_registry": None}])
def test_none_is_none(
    off: dict[str, None], bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object, **__: object) -> None:
        raise AssertionError("metrics were made")

    monkeypatch.setattr(PrometheusObserver, "__init__", made)
    monkeypatch.setattr(OtelMetricsObserver, "__init__", made)
    delivers(bootstrap, **off)


SPOILT_FOLDER = """
import logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
from outlast import KafkaProducer
for _ in range(2):
    with KafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
        for number in range(20):
            producer.send("orders", b"x").get(10)
print("delivered")
"""


@pytest.mark.parametrize("spoilt", ["not there", "a file"])
def test_a_folder_that_cannot_be_written_to_costs_nothing_but_the_metrics(
    spoilt: str, bootstrap: str, tmp_path: Path
) -> None:
    folder = tmp_path / "metrics"
    if spoilt == "a file":
        folder.write_text("")
    done = subprocess.run(
        [sys.executable, "-c", SPOILT_FOLDER, bootstrap],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    line, delivered = done.stdout.splitlines()
    assert delivered == "delivered"
    assert "No metrics='prometheus'" in line
    assert f"PROMETHEUS_MULTIPROC_DIR='{folder}' must be a folder that may be written to" in line


def test_a_topic_that_goes_away_gives_no_warning_in_multiprocess_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlast.engine.messages import RecordsSettled, TopicGone

    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    observe = PrometheusObserver(CollectorRegistry())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        observe([RecordsSettled(1.0, "orders", 0, 1, 0, 0.1), TopicGone(2.0, "orders")])
