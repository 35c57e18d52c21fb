"""examples/log_shipping.py: all lines arrive, nobody waits, and nothing goes round."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from examples import log_shipping
from examples.log_shipping import KafkaLogHandler
from outlast.testing import MockCluster
from tests.examples.programs import ROOT, command, surroundings, values

Line = dict[str, Any]


@pytest.fixture
def shop() -> Iterator[logging.Logger]:
    """A logger below the root, where handlers of tests are taken away afterwards."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    root.setLevel(logging.INFO)
    yield logging.getLogger("shop")
    root.setLevel(level)
    root.handlers[:] = handlers


def shipped(cluster: MockCluster) -> list[Line]:
    """Every copy of every line."""
    return [json.loads(value or b"") for value in values(cluster, "logs").elements()]


def test_lines_arrive_once_and_those_about_shipping_do_not_go_round(
    shop: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    spill = io.StringIO()
    with MockCluster(topics={"logs": 3}) as cluster:
        handler = KafkaLogHandler("logs", spill=spill, bootstrap_servers=cluster.bootstrap_servers)
        logging.getLogger().addHandler(handler)
        for number in range(2000):
            shop.info("order %d", number)
            if number == 500:
                cluster.wait_until(lambda: len(shipped(cluster)) > 100)
                leaders = {cluster.leader("logs", p) for p in range(3)} - {None}
                cluster.kill(min(leader for leader in leaders if leader is not None))
            if number == 1500:
                cluster.wait_until(cluster.all_led)
        handler.close()
        shop.info("too late")
        lines = shipped(cluster)
    about_shipping = [r for r in caplog.records if r.name.partition(".")[0] in ("outlast", "kafka")]
    assert about_shipping  # it was told, elsewhere
    assert {line["logger"] for line in lines} == {"shop"}
    assert sorted(int(line["message"][6:]) for line in lines) == list(range(2000))
    assert (handler.dropped, spill.getvalue()) == (1, "")


def test_who_logs_does_not_wait_and_what_was_dropped_is_told(shop: logging.Logger) -> None:
    with MockCluster(topics=["logs"]) as cluster:
        for node_id in cluster.nodes():
            cluster.pause(node_id)
        handler = KafkaLogHandler(
            "logs", waiting_max=100, bootstrap_servers=cluster.bootstrap_servers
        )
        logging.getLogger().addHandler(handler)
        begun_s = time.monotonic()
        for number in range(1000):
            shop.info("order %d", number)
        took_s = time.monotonic() - begun_s
        assert took_s < 5.0  # a send() that waits for metadata takes a minute
        assert 890 <= handler.dropped < 900  # one is in the sender's hand
        cluster.heal()
        handler.close()
        lines = shipped(cluster)
    assert sum(line.get("dropped", 0) for line in lines) == handler.dropped
    assert len([line for line in lines if "message" in line]) == 1000 - handler.dropped


def test_what_kafka_does_not_take_is_spilled(
    shop: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipping, "CLOSE_S", 0.5)
    spill = io.StringIO()
    with MockCluster(topics=["logs"]) as cluster:
        handler = KafkaLogHandler("logs", spill=spill, bootstrap_servers=cluster.bootstrap_servers)
        logging.getLogger().addHandler(handler)
        shop.info("first")
        cluster.wait_until(lambda: len(shipped(cluster)) == 1)
        for node_id in cluster.nodes():
            cluster.kill(node_id)
        try:
            raise ValueError("no tea")
        except ValueError:
            shop.exception("order %d", 4711)
        handler.close()
    outcome, _, line = spill.getvalue().partition(": ")
    assert outcome in ("never sent", "unknown")
    told = json.loads(line)
    assert (told["level"], told["message"]) == ("ERROR", "order 4711")
    assert told["exception"].endswith("ValueError: no tea")


def test_what_waits_while_no_broker_is_there_is_spilled_at_the_end(
    shop: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipping, "CLOSE_S", 0.5)
    spill = io.StringIO()
    handler = KafkaLogHandler("logs", spill=spill, bootstrap_servers="127.0.0.1:1")
    logging.getLogger().addHandler(handler)
    for number in range(5):
        shop.info("order %d", number)
    handler.close()
    told = [line.partition(": ") for line in spill.getvalue().splitlines()]
    assert {error for error, _, _ in told} == {"ClosedError"}
    assert [json.loads(line)["message"] for _, _, line in told] == [f"order {n}" for n in range(5)]


def test_it_runs_as_its_docstring_says() -> None:
    with MockCluster(topics={"logs": 3}) as cluster:
        done = subprocess.run(
            command("log_shipping.py"), cwd=ROOT, env=surroundings(cluster),
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert done.stdout.startswith("logged 1000 lines in ")
        assert done.stdout.endswith("dropped 0\n")
        assert len(shipped(cluster)) == 1000
