"""Every rule of `outlast check`: a case where it holds, and those where it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.cli.check_findings import Finding, Known, Rule, Section, Severity
from outlast.cli.check_rules import RULES, examine, exit_code
from outlast.cli.check_time import affected, lasts_s
from outlast.cli.check_view import Address, Cluster, Rate
from tests.cli.check_worlds import ask, broker, cluster, known, severities, topic

RATE = Rate.of(records=100, data_bytes=None, record_bytes=1_000)
APART = {"process.roles": "broker"}


def on(*topics: Any, **changed: Any) -> Known:
    return known(cluster(topics=topics, **changed))


def keys(*keywords: str, rate: Rate | None = None) -> Known:
    return known(None, *keywords, rate=rate)


def configured(**configs: str) -> Known:
    return known(cluster({name.replace("_", "."): value for name, value in configs.items()}))


# rule, what is known, what it finds
CASES: list[tuple[str, Known, list[str]]] = [
    ("acks", keys(), ["ok"]),
    ("acks", keys("acks=1"), ["error"]),
    ("acks", keys("acks=0"), ["error"]),
    ("idempotence", keys(), ["ok"]),
    ("idempotence", keys("enable_idempotence=false"), ["warning"]),
    ("idempotence", keys("max_in_flight_requests_per_connection=6"), ["warning"]),
    ("replication", on(topic()), ["ok"]),
    ("replication", on(topic("t", (1, 2))), ["warning"]),
    ("replication", on(topic("t", (1,))), ["error"]),
    ("replication", on(topic("t", (1, 2, 3), (2,))), ["error"]),
    ("min_isr", on(topic()), ["ok"]),
    ("min_isr", on(topic(min_insync_replicas="1")), ["warning"]),
    ("min_isr", on(replace(topic(), configs={})), ["unread"]),
    ("min_isr", on(topic("t", (1,), min_insync_replicas="1")), []),
    ("min_isr", keys("acks=1"), []),
    ("spare_replica", on(topic()), ["ok"]),
    ("spare_replica", on(topic("t", (1, 2), min_insync_replicas="1")), ["ok"]),
    ("spare_replica", on(topic("t", (1, 2))), ["error"]),
    ("spare_replica", on(topic(min_insync_replicas="3")), ["error"]),
    ("spare_replica", on(topic(min_insync_replicas="4")), ["error"]),
    ("spare_replica", on(topic("t", (1,))), ["error"]),
    ("spare_replica", on(topic("t", (1,), min_insync_replicas="1")), []),
    ("spare_replica", keys("acks=1"), []),
    ("unclean_election", on(topic()), ["ok"]),
    ("unclean_election", on(topic(unclean_leader_election_enable="true")), ["warning"]),
    ("in_sync", on(topic()), ["ok"]),
    ("in_sync", on(topic(isr=(1, 2))), ["warning"]),
    ("in_sync", on(topic(isr=(1,))), ["error"]),
    ("in_sync", known(cluster(topics=(topic(isr=(1,)),)), "acks=1"), ["warning"]),
    ("in_sync", on(topic("t", (1, 2, 3), leaders=(-1,))), ["error"]),
    ("delivery_timeout", keys(), ["ok"]),
    ("delivery_timeout", keys("delivery_timeout_ms=60000"), ["warning"]),
    ("delivery_timeout", keys("delivery_timeout_ms=40000"), ["error"]),
    ("delivery_timeout", keys("delivery_timeout_ms=inf"), ["ok"]),
    ("delivery_timeout", keys("acks=0"), ["note"]),
    ("buffer", keys(rate=RATE), ["ok"]),
    ("buffer", keys(), ["note"]),
    ("buffer", keys("buffer_memory=500000", rate=RATE), ["warning"]),
    ("buffer", keys("buffer_memory=500000", "max_block_ms=1000", rate=RATE), ["error"]),
    ("session_timeout", keys(), ["ok"]),
    ("session_timeout", configured(broker_session_timeout_ms="5000"), ["warning"]),
    ("session_timeout", configured(broker_session_timeout_ms="45000"), ["warning"]),
    ("session_timeout", known(cluster(APART, voters=(7, 8, 9))), ["ok", "note"]),
    ("session_timeout", known(replace(cluster(), brokers=(broker(1), broker(2, {
        "broker.session.timeout.ms": "8000"})))), ["note"]),
    ("fetch_backoff", keys(), ["ok"]),
    ("fetch_backoff", configured(replica_fetch_backoff_ms="1000"), ["note"]),
    ("fetch_backoff", keys("acks=1"), []),
    ("leader_rebalance", keys(), ["ok"]),
    ("leader_rebalance", configured(auto_leader_rebalance_enable="false"), ["note"]),
    ("leader_rebalance", configured(controlled_shutdown_enable="false"), ["warning", "ok"]),
    ("retries", keys(), ["ok"]),
    ("retries", keys("retries=1000"), ["ok"]),
    ("retries", keys("retries=5"), ["warning"]),
    ("request_timeout", keys("request_timeout_ms=5000"), ["ok"]),
    ("request_timeout", keys("enable_idempotence=false"), ["ok"]),
    ("request_timeout", keys("enable_idempotence=false", "request_timeout_ms=5000"), ["warning"]),
    ("request_timeout", keys("acks=1", "request_timeout_ms=5000"), []),
    ("reconnect_backoff", keys(), ["ok"]),
    ("reconnect_backoff", keys("reconnect_backoff_max_ms=30000"), ["warning"]),
    ("metadata_age", keys(), ["ok"]),
    ("metadata_age", keys("metadata_max_age_ms=3600000"), ["warning"]),
    ("metadata_age", keys("metadata_max_age_ms=inf"), ["warning"]),
    ("metadata_age", keys("metadata_max_age_ms=1000"), ["note"]),
    ("bootstrap", keys(), ["ok"]),
    ("bootstrap", known(cluster(addresses=(Address("lb:9092", 3),))), ["ok"]),
    ("bootstrap", known(cluster(addresses=(Address("broker-1:9092", 1),))), ["warning"]),
    ("bootstrap", known(cluster(nodes=1, addresses=(Address("broker-1:9092", 1),))), ["ok"]),
    ("bootstrap", known(cluster(addresses=())), []),
    ("bootstrap", known(cluster(addresses=(
        Address("a:1", 1), Address("b:1", 1), Address("gone:1", 1, "connection refused")))),
        ["warning", "ok"]),
    ("brokers", keys(), ["ok"]),
    ("brokers", known(cluster(nodes=2)), ["warning"]),
    ("brokers", known(cluster(nodes=1)), ["error"]),
    ("controllers", keys(), ["ok"]),
    ("controllers", known(cluster(voters=(1,))), ["error"]),
    ("controllers", known(cluster(voters=(1, 2))), ["error"]),
    ("controllers", known(cluster(voters=(1, 2, 3, 4))), ["note"]),
    ("controllers", known(cluster(voters=None)), ["unread"]),
    ("controllers", known(cluster({"process.roles": ""}, voters=None)), ["note"]),
    ("leaders", on(topic()), ["ok"]),
    ("leaders", on(topic("t", (1, 2, 3), (1, 3, 2))), ["warning"]),
    ("leaders", on(topic("t", (1, 2, 3))), []),
    ("leaders", known(cluster(nodes=1)), []),
    ("racks", keys(), []),
    ("racks", known(replace(cluster(), brokers=tuple(
        broker(n, rack="abc"[n - 1]) for n in (1, 2, 3)))), ["ok"]),
    ("racks", known(replace(cluster(topics=(topic("t", (1, 2)),)), brokers=tuple(
        broker(n, rack="aab"[n - 1]) for n in (1, 2, 3)))), ["warning"]),
    ("listeners", keys(), ["ok"]),
    ("listeners", known(replace(cluster(), brokers=(
        broker(1), broker(2, unreachable="connection refused")))), ["error"]),
    ("listeners", known(replace(cluster(), brokers=(
        broker(1, host="localhost"),))), ["warning", "ok"]),
    ("listeners", known(replace(cluster(addresses=(Address("127.0.0.1:9092", 1),)), brokers=(
        broker(1, host="localhost"),))), ["ok"]),
    ("topics", keys(), []),
    ("topics", known(cluster(missing_topics=("ordres",))), ["error"]),
    ("topics", on(), ["unread"]),
    ("auto_create", keys(), []),
    ("auto_create", configured(auto_create_topics_enable="true"), ["note"]),
    ("auto_create", known(cluster({"auto.create.topics.enable": "true"}),
        "allow_auto_create_topics=false"), []),
    ("record_size", on(topic()), []),
    ("record_size", on(topic(max_message_bytes="1000")), ["note"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "about", "found"), CASES, ids=[f"{n}-{number}" for number, (n, *_) in enumerate(CASES)]
)
def test_the_rule_tells_what_holds_and_what_does_not(
    name: str, about: Known, found: list[str]
) -> None:
    assert severities(name, about) == found


def test_every_rule_is_asked_where_it_holds_and_where_it_does_not() -> None:
    """And whatever severity it announces is met in a case."""
    for rule in RULES:
        met = {severity for name, _, found in CASES if name == rule.name for severity in found}
        told = {severity.value for severity in rule.severities}
        assert told <= met, rule.name
        quiet = any(name == rule.name and not found for name, _, found in CASES)
        assert "ok" in met or quiet, rule.name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_that_cannot_read_its_setting_says_so_and_guesses_nothing(rule: Rule) -> None:
    bare = tuple(replace(b, configs={}) for b in cluster().brokers)
    seen = cluster(brokers=bare, topics=(replace(topic(), configs={}),), voters=None)
    found = {finding.severity for finding in rule.findings(known(seen))}
    assert found <= {Severity.OK, Severity.UNREAD, Severity.NOTE}
    needs = ("min_isr", "unclean_election", "session_timeout", "fetch_backoff", "leader_rebalance")
    assert (Severity.UNREAD in found) == (rule.name in (*needs, "controllers"))


def test_what_does_not_hold_has_a_value_to_set_and_a_reason() -> None:
    without_advice = {"in_sync", "topics", "session_timeout", "controllers", "delivery_timeout"}
    for name, about, _ in CASES:
        for finding in ask(name, about):
            if finding.severity in (Severity.OK, Severity.UNREAD):
                continue
            assert finding.reason.endswith("."), name
            if finding.severity is not Severity.NOTE:
                assert finding.advice or name in without_advice, (name, finding.said)


def test_the_advice_is_good_advice() -> None:
    """Whoever follows it gets an ok."""
    followed = [
        ("delivery_timeout", ["delivery_timeout_ms=40000"], None),
        ("delivery_timeout", ["delivery_timeout_ms=60000"], None),
        ("metadata_age", ["metadata_max_age_ms=3600000"], None),
        ("reconnect_backoff", ["reconnect_backoff_max_ms=30000"], None),
        ("buffer", ["buffer_memory=500000"], RATE),
        ("acks", ["acks=1"], None),
    ]
    for name, keywords, rate in followed:
        (before,) = ask(name, keys(*keywords, rate=rate))
        assert before.severity is not Severity.OK
        advice = before.advice.replace("_", "") if name == "buffer" else before.advice
        advice = advice.replace("buffermemory", "buffer_memory")
        assert severities(name, keys(*keywords, advice, rate=rate)) == ["ok"], name


def test_topics_of_which_the_same_is_true_are_told_together() -> None:
    fragile = [topic(f"t{n}", min_insync_replicas="1") for n in range(5)]
    found = ask("min_isr", on(*fragile, topic("orders")))
    assert [(f.severity.value, len(f.topics)) for f in found] == [("warning", 5), ("ok", 1)]
    assert found[0].said.endswith("t0, t1, t2 and 2 more")


# --- how long the buffer lasts --------------------------------------------------------------------


def test_the_buffer_lasts_what_its_bytes_and_the_rate_say() -> None:
    """1 000 bytes and 120 beside for each record; all partitions wait when any node dies (S7)."""
    about = keys("buffer_memory=11200000", rate=RATE)
    assert lasts_s(about) == pytest.approx(100.0)


def test_partitions_that_wait_may_have_half_of_it_while_others_deliver() -> None:
    spread = topic("t", (1, 2), (2, 3), (3, 4), (4, 1))
    seen = cluster(nodes=4, topics=(spread,))
    assert affected(seen, followers=True) == (0.5, 1)
    assert affected(seen, followers=False) == (0.25, 1)
    about = known(seen, "buffer_memory=11200000", rate=RATE)
    assert lasts_s(about) == pytest.approx(100.0 / 2 / 0.5)
    about = known(seen, "buffer_memory=11200000", "acks=1", rate=RATE)
    assert lasts_s(about) == pytest.approx(100.0 / 2 / 0.25)


# --- the whole ------------------------------------------------------------------------------------


def test_a_cluster_that_is_well_gets_nothing_but_oks() -> None:
    found = examine(known(rate=RATE))
    flat = [finding for findings in found.values() for finding in findings]
    assert {finding.severity for finding in flat} == {Severity.OK}
    assert list(found) == list(Section)
    assert len({finding.rule for finding in flat}) > 15


def codes(*severities: Severity, unread: bool = False) -> tuple[int, int]:
    """Exit codes without and with --strict."""
    findings = [Finding(severity, "") for severity in severities]
    return (
        exit_code(findings, unread=unread, strict=False),
        exit_code(findings, unread=unread, strict=True),
    )


def test_the_exit_code_goes_by_the_worst_finding() -> None:
    assert codes(Severity.OK, Severity.NOTE) == (0, 0)
    assert codes(Severity.OK, Severity.WARNING) == (0, 1)
    assert codes(Severity.UNREAD) == (0, 1)
    assert codes(Severity.OK, unread=True) == (0, 1)
    assert codes(Severity.WARNING, Severity.ERROR, Severity.OK) == (2, 2)


def test_a_cluster_without_topics_or_brokers_settings_is_judged_all_the_same() -> None:
    empty = Cluster(cluster_id=None, brokers=(), topics=())
    assert examine(known(empty))
