"""`outlast check` as a user runs it, against mock clusters over TCP."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from outlast import KafkaProducer
from outlast.cli.app import app
from outlast.cli.check import rate
from outlast.testing import KRAFT, Error, Fault, MockCluster

RUN = [sys.executable, "-c", "from outlast.cli import main; main()", "check"]
API_VERSIONS, METADATA, DESCRIBE_CONFIGS, DESCRIBE_QUORUM = 18, 3, 32, 55
TOPIC_DENIED, CLUSTER_DENIED = 29, 31
SLOW = replace(KRAFT, auto_create_topics=True)


@pytest.fixture(scope="module")
def shared() -> Iterator[MockCluster]:
    """As slow as a real one: nothing that happens to it in a test is noticed by its controller."""
    with MockCluster(topics={"fragile": 6}, settings=SLOW) as cluster:
        cluster.call(lambda core, now: core.create_topic("orders", 3, min_isr=2, now=now))
        wait_known(cluster, "orders")
        yield cluster


@pytest.fixture
def mock(shared: MockCluster) -> Iterator[MockCluster]:
    yield shared
    shared.faults.clear()


def wait_known(cluster: MockCluster, topic: str) -> None:
    """Brokers learn of a topic one by one."""

    def everywhere() -> bool:
        return cluster.call(
            lambda core, _: all(topic in n.view.topics for n in core.nodes.values())
        )

    cluster.wait_until(everywhere)


def check(cluster: MockCluster | str, *arguments: str) -> Result:
    address = cluster if isinstance(cluster, str) else bootstrap(cluster)
    return CliRunner().invoke(app, ["check", "--bootstrap-servers", address, *arguments])


def bootstrap(cluster: MockCluster) -> str:
    servers: str | Sequence[str] = cluster.bootstrap_servers
    return servers if isinstance(servers, str) else ",".join(servers)


def told(cluster: MockCluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    result = check(cluster, "--json", *arguments)
    assert result.exit_code == code, result.output
    said: dict[str, Any] = json.loads(result.output)
    assert said["exit_code"] == code
    return said


def found(said: dict[str, Any], rule: str) -> list[tuple[str, list[str]]]:
    return [(f["severity"], f["topics"]) for f in said["findings"] if f["rule"] == rule]


# --- what it reads --------------------------------------------------------------------------------


def test_the_clusters_own_clocks_topics_and_quorum(mock: MockCluster) -> None:
    said = told(mock)
    cluster = said["cluster"]
    assert [broker["node_id"] for broker in cluster["brokers"]] == [1, 2, 3]
    assert (cluster["kraft"], cluster["voters"], cluster["controller"]) == (True, [1, 2, 3], 1)
    assert cluster["topics"] == ["fragile", "orders"]
    gaps = {gap["kind"]: gap for gap in said["gaps"]}
    parts = {part["setting"]: part["seconds"] for part in gaps["controller"]["parts"]}
    assert parts["broker.session.timeout.ms"] == 9.0
    assert parts["replica.fetch.backoff.ms"] == 1.0
    assert 9.0 < gaps["crash"]["worst_s"] < 11.0 < gaps["controller"]["worst_s"] < 15.0
    assert all(not gap["assumed"] for gap in said["gaps"])
    assert found(said, "min_isr") == [("warning", ["fragile"]), ("ok", ["orders"])]
    assert found(said, "listeners") == found(said, "controllers") == [("ok", [])]
    assert said["unread"] == []


def test_only_the_topics_that_were_named(mock: MockCluster) -> None:
    assert told(mock, "--topic", "orders")["cluster"]["topics"] == ["orders"]


def test_it_writes_nothing_and_creates_nothing(mock: MockCluster) -> None:
    """Though the cluster would create a topic that is asked for without a word against it."""
    before = len(mock.requests())
    said = told(mock, "--topic", "none-such", "--rate", "500", code=2)
    assert found(said, "topics") == [("error", ["none-such"])]
    asked = {record.api_key for record in mock.requests()[before:]}
    assert asked == {API_VERSIONS, METADATA, DESCRIBE_CONFIGS, DESCRIBE_QUORUM}
    assert told(mock)["cluster"]["topics"] == ["fragile", "orders"]


def test_a_cluster_whose_controllers_are_apart() -> None:
    with MockCluster(2) as cluster:
        said = told(cluster, code=0)
        assert found(said, "brokers") == [("warning", [])]
        assert not set(said["cluster"]["voters"]) & {1, 2}
        gaps = {gap["kind"]: gap["worst_s"] for gap in said["gaps"]}
        assert gaps["controller"] == gaps["crash"]


# --- what it may not read -------------------------------------------------------------------------

DENIALS: list[tuple[Fault, str, str]] = [
    (Error(TOPIC_DENIED, api=DESCRIBE_CONFIGS, topic="orders"), "topic orders", "TopicAuth"),
    (Error(CLUSTER_DENIED, api=DESCRIBE_CONFIGS, node=2, times=1), "broker 2", "ClusterAuth"),
    (Error(CLUSTER_DENIED, api=DESCRIBE_QUORUM), "quorum", "ClusterAuth"),
    (Error(TOPIC_DENIED, api=METADATA, topic="orders"), "topic orders", "TopicAuth"),
]


@pytest.mark.parametrize(("fault", "what", "why"), DENIALS, ids=["topic", "broker", "q", "meta"])
def test_what_is_forbidden_is_said_and_the_rest_is_read(
    mock: MockCluster, fault: Fault, what: str, why: str
) -> None:
    mock.faults.append(replace(fault))
    arguments = ["--topic", "orders"] if what == "broker 2" else []  # its Error names no topic
    said = told(mock, *arguments)
    (unread,) = said["unread"]
    assert what in unread["what"]
    assert why in unread["why"]
    assert "not authorized" in unread["why"]
    assert ("ok", ["orders"] if arguments else ["fragile", "orders"]) in found(
        said, "replication"
    ) or fault.api == METADATA
    assert found(said, "acks") == [("ok", [])]
    mock.faults.append(replace(fault, used=0))
    assert check(mock, "--strict", *arguments).exit_code == 1


def test_without_any_rights_the_clocks_are_kafkas_defaults_and_it_says_so(
    mock: MockCluster,
) -> None:
    for topic in ("fragile", "orders"):
        mock.faults.append(Error(TOPIC_DENIED, api=DESCRIBE_CONFIGS, topic=topic))
    mock.faults.append(Error(CLUSTER_DENIED, api=DESCRIBE_CONFIGS))
    mock.faults.append(Error(CLUSTER_DENIED, api=DESCRIBE_QUORUM))
    result = check(mock)
    assert result.exit_code == 0
    assert "9? s broker.session.timeout.ms" in result.output
    assert "Kafka's default is assumed" in result.output
    shown = " ".join(result.output.split())
    denied = (
        "settings of broker 1, settings of broker 2, settings of broker 3, the controllers' quorum"
    )
    assert f"{denied}: not authorized (ClusterAuthorizationFailed)" in shown


def test_brokers_that_are_too_old_for_the_question() -> None:
    settings = replace(KRAFT, api_versions={DESCRIBE_CONFIGS: (0, 0), DESCRIBE_QUORUM: (9, 9)})
    with MockCluster(3, topics=["orders"], settings=settings) as cluster:
        wait_known(cluster, "orders")
        said = told(cluster)
        assert {unread["why"] for unread in said["unread"]} == {
            "the broker is too old for the question"
        }
        assert found(said, "listeners") == [("ok", [])]
        assert found(said, "replication") == [("ok", ["orders"])]


# --- whom it cannot reach -------------------------------------------------------------------------


def one_line(result: Result) -> str:
    assert result.exit_code == 3
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_nobody_listens() -> None:
    one, two = (f"127.0.0.1:{free_port()}" for _ in range(2))
    line = one_line(check(f"{one},{two}"))
    assert line == f"outlast: no broker can be reached ({one}, {two}: connection refused)"


def test_no_such_host() -> None:
    assert "the name is not known" in one_line(check("no-such-host.invalid:9092"))


def test_somebody_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        line = one_line(check(f"127.0.0.1:{port}", "--timeout", "0.5"))
    assert "no answer in time" in line


def test_a_broker_that_wants_no_tls(mock: MockCluster) -> None:
    """In a process of its own: kafka-python leaves its socket open."""
    arguments = ["--set", "security_protocol=SSL", "--timeout", "0.5"]
    command = [*RUN, "--bootstrap-servers", bootstrap(mock).split(",")[0], *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (3, "")
    (line,) = ran.stderr.splitlines()
    assert "no broker can be reached" in line


@pytest.mark.parametrize(("verb", "node"), [("kill", 3), ("kill", 1), ("pause", 3), ("pause", 1)])
def test_one_broker_that_does_not_answer_is_a_finding_and_no_end(verb: str, node: int) -> None:
    """Node 1 is the first to be asked, and what only it was asked for is asked of others."""
    with MockCluster(3, topics=["orders"], settings=KRAFT) as cluster:
        wait_known(cluster, "orders")
        getattr(cluster, verb)(node)
        begun_s = time.monotonic()
        said = told(cluster, "--timeout", "3", code=2)
        assert time.monotonic() - begun_s < 5.5, "one that was silent once is not waited for again"
        errors = [f for f in said["findings"] if f["severity"] == "error"]
        assert [f["rule"] for f in errors] == ["listeners"]
        assert f"node {node} at 127.0.0.1:" in errors[0]["said"]
        why = "connection refused" if verb == "kill" else "no answer in time"
        assert said["unread"] == [{"what": f"settings of broker {node}", "why": why}]
        refused = [severity for severity, _ in found(said, "bootstrap")]
        assert refused == (["ok"] if (verb, node) == ("pause", 3) else ["warning", "ok"])


# --- what it says ---------------------------------------------------------------------------------


def test_rate_and_producer_against_the_cluster(mock: MockCluster) -> None:
    said = told(mock, "--rate", "5000", "--record-bytes", "500", "--set", "max_block_ms=1000",
                code=2)  # fmt: skip
    assert said["rate_bytes_per_s"] == 5000 * 620
    assert said["buffer_lasts_s"] == pytest.approx(33_554_432 / 5000 / 620)
    assert found(said, "buffer") == [("error", [])]
    said = told(mock, "--set", "delivery_timeout_ms=31000", code=2)
    assert found(said, "delivery_timeout") == [("error", [])]
    assert said["producer"]["given"]["delivery_timeout_ms"] == 31000
    spare = {gap["kind"]: gap["to_spare_s"] for gap in said["gaps"]}
    assert spare["crash"] > 0 > spare["follower"]
    said = told(mock, "--set", "acks=0", code=2)
    assert [gap["to_spare_s"] for gap in said["gaps"]] == [None] * 4


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("5000", 5000 * 1120), ("5k/s", 5000 * 1120), ("2MB", 2e6 * 1.12), ("1KiB/s", 1024 * 1.12)],
)
def test_rates_as_people_write_them(text: str, bytes_per_s: float) -> None:
    assert rate(text, None).bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rate", "fast"],
        ["--set", "nonsense=1"],
        ["--config", "/no/such"],
        ["--set", "acks=7"],
        ["--timeout", "inf"],
        ["--timeout", "nan"],
    ],
)
def test_what_it_cannot_make_sense_of_is_a_usage_error(arguments: list[str]) -> None:
    result = check("127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert "Invalid value" in result.stderr


def test_a_running_producer_by_its_health(mock: MockCluster, tmp_path: Path) -> None:
    with KafkaProducer(
        bootstrap_servers=bootstrap(mock), delivery_timeout_ms=30_500, metrics_registry=None
    ) as producer:
        dump = tmp_path / "health.json"
        health = producer.health().to_dict()
        dump.write_text(json.dumps({**health, "headroom_s": 4.0}))
    result = CliRunner().invoke(app, ["check", "--health", str(dump), "--json"])
    assert result.exit_code == 2
    said = json.loads(result.output)
    assert said["producer"]["given"]["delivery_timeout_ms"] == 30_500
    assert said["rate_bytes_per_s"] == 33_554_432 / 4
    assert said["buffer_lasts_s"] == 4.0
    assert found(said, "delivery_timeout") == [("error", [])]


def test_strict(mock: MockCluster) -> None:
    assert check(mock).exit_code == 0
    result = check(mock, "--strict")
    assert result.exit_code == 1
    assert "exit code 1" in result.output


@pytest.mark.parametrize("columns", [80, 140])
def test_in_a_pipe_it_fits_and_has_no_colours(mock: MockCluster, columns: int) -> None:
    command = [*RUN, "--bootstrap-servers", bootstrap(mock), "--rate", "3MB", "--strict"]
    command += ["--set", "retries=0"]  # what a producer logs of that is no line beside the report
    environment = {**os.environ, "COLUMNS": str(columns)}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr == ""
    assert "\x1b" not in ran.stdout
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert any(re.fullmatch(r"  warning +min\.insync\.replicas=1 · fragile *", x) for x in lines)
    assert any(re.fullmatch(r" +→ min\.insync\.replicas=2 *", x) for x in lines)
    assert re.fullmatch(r"4 warnings · 3 notes · \d+ ok   exit code 1", lines[-1])


@pytest.mark.parametrize("plain", [False, True])
def test_on_a_terminal_it_is_coloured_unless_nobody_wants_that(
    mock: MockCluster, plain: bool
) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    if plain:
        environment["NO_COLOR"] = "1"
    command = [*RUN, "--bootstrap-servers", bootstrap(mock)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
    os.close(ours)
    assert process.returncode == 0
    assert (b"\x1b[33m" in said) is not plain
    assert b"warning" in said
