"""`outlast check` reads a real Apache Kafka of three nodes: whole, and with one that is stopped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from outlast.cli.app import app
from tests.real.kafka_cluster import RealCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

TOPIC = "checked"


def check(cluster: RealCluster) -> dict[str, Any]:
    """What it finds, of a producer that knows all three addresses."""
    where = ["--bootstrap-servers", ",".join(cluster.bootstrap), "--timeout", "4"]
    result = CliRunner().invoke(app, ["check", *where, "--topic", TOPIC, "--json"])
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == found["exit_code"]
    return found


def test_clocks_topic_and_nodes_are_read_and_one_that_is_stopped_is_named(
    cluster: RealCluster,
) -> None:
    cluster.create_topic(TOPIC, 3)
    whole = check(cluster)
    assert whole["cluster"]["kraft"] is True
    assert {broker["node_id"] for broker in whole["cluster"]["brokers"]} == {1, 2, 3}
    assert set(whole["cluster"]["voters"]) == {1, 2, 3}
    assert whole["cluster"]["topics"] == [TOPIC]
    assert whole["unread"] == []
    assert [gap["assumed"] for gap in whole["gaps"]] == [[]] * len(whole["gaps"])

    stopped = min({1, 2, 3} - {cluster.controller()})  # that one is asked for the quorum
    cluster.sigstop(stopped)
    without = check(cluster)
    errors = [f for f in without["findings"] if f["severity"] == "error"]
    assert [f["rule"] for f in errors] == ["listeners"]
    assert f"node {stopped} at {cluster.bootstrap[stopped - 1]}" in errors[0]["said"]
    unread = {"what": f"settings of broker {stopped}", "why": "no answer in time"}
    assert without["unread"] == [unread]
    assert without["exit_code"] == 2
