"""`outlast drill` on a mock cluster over TCP: what it tells of a crash, of moves, of refusals; what
it refuses; and that it touches nothing but its own topic.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from outlast import KafkaProducer
from outlast.cli import drill as command, drill_topic
from outlast.testing import FAST, Error, MockCluster
from tests.cli.drills import WRITING, Spy, drill, meanwhile, spied, told, written
from tests.cli.tls import behind_tls, certificate, needs_openssl

PRODUCE, FETCH, METADATA, INIT_PRODUCER_ID = 0, 1, 3, 22
CREATE_TOPICS, ELECT_LEADERS = 19, 43
NOT_LEADER, NOT_ALLOWED, CLUSTER_NOT_ALLOWED, TOO_FEW_REPLICAS = 6, 29, 31, 19

pytestmark = pytest.mark.timeout(60)


@dataclass
class Crash:
    """A drill during which the leader of partition 0 died and came back. Its time was up before
    there was a new one: it waits for the outcome of what it wrote.
    """

    victim: int
    led: set[int]
    shown: Result
    found: dict[str, Any]
    page: str
    spy: Spy
    topics_left: set[str]


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory) -> Crash:
    folder = tmp_path_factory.mktemp("drill")
    victims: list[tuple[int, set[int]]] = []
    with MockCluster(topics={"orders": 3}, settings=replace(FAST, detect_s=2.0)) as cluster:

        def kill_and_start(topic: str) -> None:
            leaders = {p.partition: p.leader for p in cluster.partitions(topic)}
            victim = leaders[0]
            assert victim is not None
            victims.append((victim, {p for p, leader in leaders.items() if leader == victim}))
            cluster.kill(victim)
            cluster.wait_until(lambda: cluster.leader(topic, 0) not in (victim, None))
            cluster.start(victim)

        files = ["--json", str(folder / "drill.json"), "--report", str(folder / "drill.html")]
        with spied(cluster) as spy, meanwhile(cluster, kill_and_start):
            shown = drill(cluster, "--for", "2s", "--rate", "2000", *files)
        assert victims, shown.output
        left = {partition.topic for partition in cluster.partitions()}
    page = (folder / "drill.html").read_text()
    return Crash(*victims[0], shown, told(folder / "drill.json"), page, spy, left)


def test_a_crash_is_absorbed_and_told(crash: Crash) -> None:
    assert crash.shown.exit_code == 0, crash.shown.output
    found = crash.found
    assert found["verdict"] == "absorbed"
    assert found["sent"] == found["acknowledged"] > 100
    assert (found["failed"], found["unsettled"], found["reading"]["unread"]) == (0, 0, 0)
    assert {found["reading"][what] for what in ("lost", "duplicated", "out_of_order")} == {0}
    assert {p["partition"] for p in found["partitions"] if p["gaps"]} == crash.led
    for partition in found["partitions"]:
        if partition["partition"] in crash.led:
            (gap,) = partition["gaps"]
            assert gap["cause"] == "connection_lost"
            assert gap["old_leader"] == crash.victim != gap["new_leader"]
            assert partition["worst_gap_s"] == gap["duration_s"]
            assert partition["outcome"] == "absorbed"
        else:  # acks=all waited for the dead follower
            (stall,) = partition["stalls"]
            assert stall["reason"] == "follower"
            assert partition["outcome"] == "waited"
    seen = {(change["partition"], change["old"]) for change in found["leader_changes"]}
    assert {(partition, crash.victim) for partition in crash.led} <= seen


def test_the_shares_make_up_the_gap_and_the_cluster_has_its_election(crash: Crash) -> None:
    for gap in gaps(crash.found):
        not_ours_s = gap["cluster_s_max"] + gap["resuming_s"]
        assert gap["client_s_min"] == pytest.approx(max(0.0, gap["duration_s"] - not_ours_s))
        assert gap["client_s_max"] + gap["cluster_s_min"] == pytest.approx(gap["duration_s"])
        assert 1.7 < gap["duration_s"] < 3.0  # the cluster gives a dead node up after 2 s
        assert gap["cluster_s_min"] > 1.7


def test_it_waits_until_every_record_has_its_outcome(crash: Crash) -> None:
    last_s = max(gap["begin_s"] + gap["duration_s"] for gap in gaps(crash.found))
    first_s = min(gap["begin_s"] for gap in gaps(crash.found))
    assert crash.found["duration_s"] > 2.0
    assert last_s - first_s < crash.found["duration_s"]


def test_reading_goes_on_after_the_gap(crash: Crash) -> None:
    for gap in gaps(crash.found):
        assert gap["duration_s"] - 0.05 < gap["reading_resumed_s"] < gap["duration_s"] + 2.0
    for partition in crash.found["partitions"]:
        assert partition["longest_read_s"] > 1.0


def test_the_budget_is_held_against_the_longest_wait(crash: Crash) -> None:
    budget = crash.found["budget"]
    waits = [partition["longest_wait_s"] for partition in crash.found["partitions"]]
    assert budget["longest_wait_s"] == max(waits) > 1.7
    assert budget["delivery_timeout_s"] == 120
    assert budget["margin_s"] == pytest.approx(120 - max(waits))
    lasts_s = 33_554_432 / (2000 * (1000 + 120))
    assert budget["buffer_margin_s"] == pytest.approx(lasts_s - max(waits))
    assert "delivery_timeout_ms=120000 outlasts the longest wait" in crash.shown.output


def test_what_is_shown_fits_eighty_columns_and_is_complete(crash: Crash) -> None:
    lines = crash.shown.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in crash.shown.output
    assert "\x1b" not in crash.shown.output
    text = " ".join(crash.shown.output.split())
    assert "All absorbed: no sender was told of a failure." in text
    assert "lost 0 · duplicated 0 · out of order 0" in text
    led = ", ".join(map(str, sorted(crash.led)))
    assert f"gap: {led} (connection_lost, leader {crash.victim})" in text
    assert f"leader of {led}: {crash.victim} →" in text
    for partition in crash.found["partitions"]:
        assert f" {partition['partition']} {'gap' if partition['gaps'] else 'stall'} 1 " in text


def test_the_page_has_gaps_changes_and_when_reading_went_on(crash: Crash) -> None:
    assert crash.found["topic"] in crash.page
    assert "connection_lost" in crash.page or "connection to the leader was lost" in crash.page
    assert f"{crash.victim} →" in crash.page


def test_nothing_but_its_own_topic_is_touched_and_that_is_taken_away(crash: Crash) -> None:
    own = crash.found["topic"]
    assert own.startswith("outlast-drill-")
    assert own in crash.spy.texts(WRITING)
    assert crash.spy.apis() & WRITING == {0, 19, 20}
    assert "orders" not in crash.spy.texts()
    assert crash.topics_left == {"orders"}


def gaps(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for partition in found["partitions"]:
        yield from partition["gaps"]


def test_brokers_may_learn_of_the_new_topic_one_by_one() -> None:
    with MockCluster(settings=replace(FAST, metadata_lag_s=(0.0, 0.6))) as slow:
        shown = drill(slow, "--for", "200ms", "--partitions", "2")
    assert shown.exit_code == 0, shown.output
    assert "2 partitions on 3 brokers" in shown.output


# --- a topic that is given, and moves -------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with MockCluster(topics={"orders": 1, "canary": 3}) as cluster:
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send("orders", b"foreign")
        yield cluster


@pytest.fixture(autouse=True)
def nothing_wrong(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").heal()


def test_it_moves_the_leaders_of_its_topic_and_puts_the_replicas_back(
    cluster: MockCluster, tmp_path: Path
) -> None:
    before = {p.partition: p for p in cluster.partitions("canary")}
    orders = cluster.partitions("orders")
    file = tmp_path / "moves.json"
    with spied(cluster) as spy:
        shown = drill(
            cluster, "--topic", "canary", "--for", "2s", "--move-leaders", "--move-every", "600ms",
            "--json", str(file),
        )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    found = told(file)
    assert found["leaders_moved"] >= 6
    assert len(found["leader_changes"]) >= 3
    assert list(gaps(found))
    assert {gap["cause"] for gap in gaps(found)} == {"not_leader"}
    after = {p.partition: p for p in cluster.partitions("canary")}
    assert {p.replicas for p in after.values()} == {p.replicas for p in before.values()}
    assert [p.replicas for p in after.values()] == [p.replicas for p in before.values()]
    assert all(after[p].epoch > before[p].epoch for p in before)
    assert spy.texts(WRITING) & {"canary", "orders"} == {"canary"}
    assert cluster.partitions("orders") == orders


def test_a_topic_with_records_of_drills_is_taken_again_and_the_start_counts_for_nothing(
    cluster: MockCluster,
) -> None:
    for _ in range(2):
        refused_once = Error(NOT_LEADER, topic="canary", times=1)
        cluster.faults.append(refused_once)  # as by a leader that has only just begun
        shown = drill(cluster, "--topic", "canary", "--for", "300ms")
        assert shown.exit_code == 0, shown.output
        assert refused_once.used == 1
        assert "no gap and no stall: partitions 0–2" in shown.output
    assert all(p.end_offset > 5 for p in cluster.partitions("canary"))


def test_one_foreign_record_among_those_of_drills_is_enough(cluster: MockCluster) -> None:
    cluster.create_topic("mixed", 2)
    assert drill(cluster, "--topic", "mixed", "--for", "200ms").exit_code == 0
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        offset = producer.send("mixed", b"foreign", partition=1).get(10).offset
    message = f"holds records that are no drill's, such as mixed-1 at offset {offset}"
    refused(cluster, message, "--topic", "mixed")


# --- what it refuses, without writing anything ----------------------------------------------------


def refused(cluster: MockCluster, message: str, *arguments: str) -> None:
    """The drill ends with exit code 2 and this message, and has written nothing."""
    ends = {(p.topic, p.partition): p.end_offset for p in cluster.partitions()}
    with spied(cluster) as spy:
        shown = drill(cluster, "--for", "1s", *arguments)
    assert shown.exit_code == 2, shown.output
    assert message in " ".join(shown.output.split())
    assert "Traceback" not in shown.output
    assert {(p.topic, p.partition): p.end_offset for p in cluster.partitions()} == ends
    assert PRODUCE not in spy.apis() or cluster.faults


def test_a_topic_with_foreign_records(cluster: MockCluster) -> None:
    refused(cluster, "holds records that are no drill's, such as orders-0", "--topic", "orders")


def test_a_topic_that_is_not_there(cluster: MockCluster) -> None:
    refused(cluster, "there is no topic 'nowhere'; without --topic", "--topic", "nowhere")


def test_a_topic_that_is_too_full(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill_topic, "LOOK_RECORDS", 1)
    refused(cluster, "more than the drill looks through (1)", "--topic", "canary")


@pytest.mark.parametrize(
    ("fault", "message", "arguments"),
    [
        (Error(NOT_ALLOWED, api=CREATE_TOPICS), "not allowed to make topic", []),
        (
            Error(NOT_ALLOWED, api=METADATA, topic="canary"),
            "not allowed to describe topic 'canary'",
            ["--topic", "canary"],
        ),
        (
            Error(NOT_ALLOWED, api=FETCH, topic="canary"),
            "not allowed to read topic 'canary'",
            ["--topic", "canary"],
        ),
        (
            Error(NOT_ALLOWED, api=PRODUCE),
            "does not take records: TopicAuthorizationFailedError",
            [],
        ),
        (
            Error(CLUSTER_NOT_ALLOWED, api=INIT_PRODUCER_ID),
            "does not take records: ClusterAuthorizationFailedError",
            [],
        ),
        (
            Error(CLUSTER_NOT_ALLOWED, api=ELECT_LEADERS),
            "--move-leaders is not allowed: the user needs Alter on the cluster",
            ["--move-leaders"],
        ),
    ],
    ids=["create", "describe", "read", "write", "idempotent write", "alter"],
)
def test_what_is_not_allowed(
    cluster: MockCluster, fault: Error, message: str, arguments: list[str]
) -> None:
    cluster.faults.append(replace(fault))
    refused(cluster, message, *arguments)
    assert not [p.topic for p in cluster.partitions() if p.topic.startswith("outlast-drill-")]


def test_a_cluster_that_takes_no_record(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FIRST_S", 0.5)
    cluster.faults.append(Error(TOO_FEW_REPLICAS))
    refused(cluster, "takes no record within 0.5 s (not_enough_replicas)")


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill_topic, "CONNECT_S", 0.3)
    shown = drill(None, "--bootstrap", "127.0.0.1:1")
    assert shown.exit_code == 2
    message = "no broker answers at 127.0.0.1:1 within 0.3 s (111 ECONNREFUSED); check the address"
    assert message in " ".join(shown.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "acks=0"], "nothing is acknowledged"),
        (["--set", "akcs=1"], "did you mean acks"),
        (["--for", "soon"], "'soon' is no time; write 60s"),
        (["--for", "0s"], "'0s' is no time"),
        (["--topic", "t", "--partitions", "3"], "leave one of them out"),
        (["--rate", "fast"], "'fast' is no rate"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json"),
        (["--report", "/nowhere/x.html"], "/nowhere/x.html"),
    ],
)
def test_bad_usage(arguments: list[str], message: str) -> None:
    shown = drill(None, "--bootstrap", "127.0.0.1:1", *arguments, columns=200)
    assert shown.exit_code == 2
    assert message in shown.output


# --- how it reaches the cluster -------------------------------------------------------------------


@needs_openssl
def test_the_settings_of_a_file_reach_writer_reader_and_administrator(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    file = tmp_path / "producer.properties"
    file.write_text(f"security.protocol=SSL\nssl_cafile={cert}\nacks=all\nclient.id=app\n")
    with MockCluster() as cluster, behind_tls(cluster, (cert, key)) as addresses:
        where = ["--bootstrap-servers", addresses, "--config", str(file)]
        shown = drill(None, *where, "--for", "300ms", "--partitions", "2", "--move-leaders")
        assert shown.exit_code == 0, shown.output
        assert "All absorbed" in shown.output
        assert cluster.partitions() == []


# --- how it ends ----------------------------------------------------------------------------------


def test_records_that_fail_are_reported_and_end_in_exit_code_1(cluster: MockCluster) -> None:
    def refuse_for_a_while(topic: str) -> None:
        cluster.faults.append(Error(TOO_FEW_REPLICAS, topic=topic, partition=0))

    small = ["--set", "delivery_timeout_ms=600", "--set", "request_timeout_ms=500"]
    with meanwhile(cluster, refuse_for_a_while):
        shown = drill(cluster, "--partitions", "2", "--for", "1500ms", *small, "--json", "-")
    assert shown.exit_code == 1, shown.output
    found = json.loads(shown.stdout)
    assert found["verdict"] == "reported"
    outcomes = {p["partition"]: p["outcome"] for p in found["partitions"]}
    assert outcomes == {0: "reported", 1: "no gap"}
    assert found["failed"] == found["failures"]["KafkaTimeoutError"] > 0
    assert found["budget"]["margin_s"] <= 0.1
    assert "Reported: senders were told that records failed." in shown.stderr
    assert "delivery_timeout_ms=600 did not outlast everything" in shown.stderr


RUN = [sys.executable, "-c", "from outlast.cli import main; main()", "drill"]


@contextmanager
def process(cluster: MockCluster, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    where = ["--bootstrap", cluster.bootstrap_servers]
    started = subprocess.Popen(
        [*RUN, *where, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait(10)


def first_records(cluster: MockCluster, drilling: subprocess.Popen[str]) -> None:
    cluster.wait_until(lambda: drilling.poll() is not None or bool(written(cluster, set())))
    assert drilling.poll() is None, drilling.communicate()[0]


def test_ctrl_c_ends_it_with_the_report_and_a_second_time_at_once() -> None:
    with (
        MockCluster(settings=replace(FAST, detect_s=100.0)) as cluster,
        process(cluster) as drilling,
    ):
        first_records(cluster, drilling)
        cluster.kill(3)

        def some_wait() -> bool:
            now = cluster.now_s()
            asked = cluster.requests(PRODUCE)
            return any(r.answered_at_s is None and now - r.received_at_s > 0.2 for r in asked)

        cluster.wait_until(some_wait)
        drilling.send_signal(signal.SIGINT)
        drilling.send_signal(signal.SIGTERM)  # the same to it, and cannot melt into the first
        out, _ = drilling.communicate(timeout=30)
        assert drilling.returncode == 3, out
        assert "Undecided: it ended before every record had an outcome." in out
        assert "without outcome yet" in " ".join(out.split())
        assert "Traceback" not in out
        assert cluster.partitions() == [], out  # the topic is taken away all the same


def test_sigterm_ends_a_drill_without_a_limit_and_all_is_well() -> None:
    with MockCluster() as cluster, process(cluster, "--partitions", "2") as drilling:
        first_records(cluster, drilling)
        drilling.send_signal(signal.SIGTERM)
        out, _ = drilling.communicate(timeout=30)
        assert drilling.returncode == 0, out
        assert "All absorbed" in out
        begun = (
            "2 partitions on 3 brokers, replication 3 a record to each every 50 ms, until Ctrl-C"
        )
        assert begun in " ".join(out.split())
        assert cluster.partitions() == []
