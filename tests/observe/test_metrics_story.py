"""Metrics of whole runs on a virtual clock: they say what the run's own records say."""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from outlast.engine.messages import (
    AttemptFailed,
    BufferLevel,
    Gap,
    GapEnd,
    LeaderChanged,
    PartitionSeen,
    SendersBlocked,
    TopicGone,
)
from outlast.observe.metrics import CAUSES, FATES, OUTCOMES, PHASES
from outlast.observe.prometheus import PrometheusObserver
from outlast.testing.faults import Error
from outlast.testing.simulation import Simulation
from outlast.testing.wire import attempts
from tests.demands import need
from tests.sim.stories import CALM, load, simulation


class Page:
    """What a scrape shows, when everything that a run told so far has been told."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry, delivery_timeout_s=120.0)
        self.told = 0

    def __call__(self, name: str, **labels: str) -> float:
        facts, self.told = self.sim.facts[self.told :], len(self.sim.facts)
        self.observer(facts)
        value = self.registry.get_sample_value(name, labels)
        assert value is not None, f"there is no {name}{labels}"
        return value

    def series(self, name: str) -> int:
        self("outlast_delivery_timeout_seconds")
        pages = [page for page in self.registry.collect() if page.name == name]
        return len(pages[0].samples)


SLOW = replace(CALM, detect_s=3.0)


def failed_over(seed: int = 3) -> Simulation:
    """A leader is killed under load, and comes back; another is moved."""
    sim = simulation(seed, linger_ms=5, cluster=SLOW)
    load(sim, interval_s=0.02, count=600)
    killed = sim.leader(0)
    sim.at(2.0, lambda: sim.kill(killed))
    sim.at(9.0, lambda: sim.start(killed))
    sim.at(11.0, lambda: sim.move_leader(1))
    sim.run_until(sim.all_settled, 60.0)
    sim.run_for(13.0)  # until nothing comes any more
    return sim


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(failed_over())


def total(page: Page, name: str, label: str, values: tuple[str, ...], **labels: str) -> float:
    return sum(page(name, topic="t", **labels, **{label: value}) for value in values)


def ended(page: Page) -> list[Gap]:
    gaps = page.sim.gaps()
    assert gaps
    assert all(gap.ended_by is not None for gap in gaps)
    return gaps


def test_promtool_finds_nothing_wrong(page: Page) -> None:
    need("prometheus", "promtool")
    page("outlast_delivery_timeout_seconds")
    text = generate_latest(page.registry)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_gap_seconds_are_those_of_the_gaps(page: Page) -> None:
    for partition in range(3):
        true_s = sum(gap.duration_s for gap in ended(page) if gap.partition == partition)
        labels = {"topic": "t", "partition": str(partition)}
        assert page("outlast_partition_gap_seconds_total", **labels) == pytest.approx(true_s)
    for phase in PHASES:
        true_s = sum(getattr(gap, f"{phase}_s") for gap in ended(page))
        shown_s = page("outlast_gap_seconds_total", topic="t", phase=phase)
        assert shown_s == pytest.approx(true_s)


def test_gaps_are_counted_by_cause_outcome_and_fate(page: Page) -> None:
    true = Counter((gap.cause.value, gap.outcome.value) for gap in ended(page) if gap.outcome)
    for cause in CAUSES:
        for outcome in OUTCOMES:
            shown = page("outlast_gaps_total", topic="t", cause=cause, outcome=outcome)
            assert shown == true[cause, outcome]
    for fate in FATES:
        true_count = sum(getattr(gap, f"records_{fate}") for gap in ended(page))
        assert page("outlast_gap_records_total", topic="t", fate=fate) == true_count
    assert page("outlast_gap_records_total", topic="t", fate="delivered") > 0
    durations = Counter(gap.cause.value for gap in ended(page))
    for cause, count in durations.items():
        labels = {"topic": "t", "cause": cause}
        assert page("outlast_gap_duration_seconds_count", **labels) == count


def test_records_and_their_time_to_the_ack_are_those_of_the_ledger(page: Page) -> None:
    assert page("outlast_records_total", topic="t", result="acked") == 1800
    assert page("outlast_records_total", topic="t", result="failed") == 0
    batches = page("outlast_send_duration_seconds_count", topic="t")
    assert 0 < batches <= 1800
    longest_s = max(e.settled_at - e.sent_at for e in page.sim.ledger.entries if e.settled_at)
    assert longest_s > 1.0
    within = page("outlast_send_duration_seconds_bucket", topic="t", le="1.0")
    assert 0 < within < batches


def test_what_led_to_the_gaps_is_counted(page: Page) -> None:
    facts = page.sim.facts
    told = {(f.verdict, f.error) for f in facts if isinstance(f, AttemptFailed)}
    shown = Counter(
        {
            error: page("outlast_verdicts_total", topic="t", verdict=verdict, error=error)
            for verdict, error in told
        }
    )
    wire = attempts(page.sim.network.requests)
    answers = Counter(attempt.code for attempt in wire if attempt.code not in (0, None))
    assert shown["NOT_LEADER_OR_FOLLOWER"] == answers[6] > 0  # its leader was moved
    assert shown["REQUEST_TIMED_OUT"] == answers[7] > 0  # followers were late
    changes = [f for f in facts if isinstance(f, LeaderChanged)]
    true = {(f.partition, f.new_leader, f.new_leader_epoch) for f in changes if f.new_leader >= 0}
    first = 3  # that a partition has a leader at all is no change
    assert page("outlast_leader_changes_total", topic="t") == len(true) - first
    refreshes = page("outlast_metadata_refresh_duration_seconds_count", result="ok")
    assert refreshes > 0


def test_a_lost_connection_is_counted_once_for_each_of_its_partitions() -> None:
    sim = simulation(3, topics={"t": 6})
    page = Page(sim)
    load(sim, count=5)
    sim.run_until(sim.all_settled)
    killed = sim.leader(0)
    led = sum(sim.leader(partition) == killed for partition in range(6))
    for _ in range(3):
        for partition in range(6):
            sim.send("t", partition)
        sim.run_for(0.0002)
    sim.kill(killed)
    sim.run_until(sim.all_settled, 60.0)
    lost = page("outlast_verdicts_total", topic="t", verdict="unsure", error="CONNECTION_CLOSED")
    assert lost == led > 1


def test_gauges_are_back_where_they_were(page: Page) -> None:
    assert page("outlast_open_gaps", topic="t") == 0
    assert page("outlast_open_gap_seconds", topic="t") == 0
    assert page("outlast_buffer_bytes") == 0
    assert page("outlast_buffer_limit_bytes") == 32 * 1024 * 1024
    for gap in ended(page):
        labels = {"topic": "t", "partition": str(gap.partition)}
        assert page("outlast_partition_gap_phase", **labels) == 0
    last = max((gap for gap in ended(page) if gap.partition == 0), key=lambda gap: gap.begin_s)
    labels = {"topic": "t", "partition": "0"}
    shown = page("outlast_partition_last_gap_duration_seconds", **labels)
    assert shown == pytest.approx(last.duration_s)
    begun = page("outlast_partition_last_gap_start_time_seconds", **labels)
    assert begun == pytest.approx(last.begin_unix_s)


def test_an_open_gap_is_seen_while_it_is_open() -> None:
    sim = simulation(3)
    page = Page(sim)
    load(sim, interval_s=0.02, count=400)
    sim.run_for(1.0)
    hit = [p for p in range(3) if sim.leader(p) == sim.leader(0)]
    for node in (1, 2, 3):
        sim.kill(node)
    sim.run_for(4.2)
    assert page("outlast_open_gaps", topic="t") == 3
    for partition in hit:
        labels = {"topic": "t", "partition": str(partition)}
        assert page("outlast_partition_gap_phase", **labels) in (1, 2, 3)
        shown_s = page("outlast_partition_gap_seconds_total", **labels)
        assert shown_s == pytest.approx(4.2, abs=1.1)  # told once a second
    oldest_s = max(sim.now - gap.begin_s for gap in sim.gaps())
    assert page("outlast_open_gap_seconds", topic="t") == pytest.approx(oldest_s, abs=1.1)
    assert page("outlast_delivery_timeout_seconds") == 120.0
    sim.close(fail_rest=True)
    assert page("outlast_open_gaps", topic="t") == 0
    assert page("outlast_open_gap_seconds", topic="t") == 0
    page.observer.close()
    assert page("outlast_delivery_timeout_seconds") == math.inf
    assert page("outlast_buffer_limit_bytes") == 0


def test_the_longest_open_gap_is_the_oldest_of_those_that_are_left() -> None:
    sim = simulation(3, topics={"t": 6}, cluster=SLOW)
    page = Page(sim)
    load(sim, interval_s=0.02, count=900)
    sim.at(1.0, lambda: sim.kill(sim.leader(0)))
    sim.at(2.0, lambda: sim.kill(sim.leader(1)))
    seen = 0
    for _ in range(120):
        sim.run_for(0.25)
        page("outlast_delivery_timeout_seconds")
        open_ = [gap for gap in sim.gaps() if gap.ended_by is None]
        oldest_s = max((sim.now - gap.begin_s for gap in open_), default=0.0)
        if page.told and sim.gaps():
            assert page("outlast_open_gaps", topic="t") == len(open_)
            shown_s = page("outlast_open_gap_seconds", topic="t")
            assert oldest_s - 1.1 <= shown_s <= oldest_s + 0.001
            seen += bool(open_)
    assert seen > 8


def blocked_s(page: Page) -> dict[str, float]:
    reasons = ("memory", "share", "metadata")
    return {r: page("outlast_send_blocked_seconds_total", reason=r) for r in reasons}


def test_blocked_time_advances_while_senders_wait_and_is_the_time_that_they_waited() -> None:
    sim = simulation(5, topics={"t": 1}, buffer_memory=40_000, max_block_s=30.0)
    page = Page(sim)
    sim.send("t", 0)
    sim.run_until(sim.all_settled)
    for node in (1, 2, 3):
        sim.kill(node)
    for number in range(8):
        sim.send("t", 0, size_bytes=9_000, thread=f"sender {number}")
    waiting = sum(e.taken_at is None for e in sim.ledger.entries)
    assert waiting >= 3
    before_s = 0.0
    for _ in range(6):
        sim.run_for(1.0)
        now_s = sum(blocked_s(page).values())
        assert now_s >= before_s + 0.9 * waiting or before_s == 0.0
        before_s = now_s
    for node in (1, 2, 3):
        sim.start(node)
    sim.run_until(sim.all_settled, 120.0)
    sim.run_for(2.0)
    true_s = sum((e.taken_at or math.nan) - e.sent_at for e in sim.ledger.entries)
    assert sum(blocked_s(page).values()) == pytest.approx(true_s, rel=0.01)
    assert blocked_s(page)["metadata"] == pytest.approx(0.0, abs=0.1)


def test_waiting_for_a_share_is_told_apart_from_waiting_for_room() -> None:
    sim = simulation(5, topics={"t": 3}, buffer_memory=100_000, max_block_s=30.0)
    page = Page(sim)
    load(sim, interval_s=0.05, count=200)
    sim.cluster.faults.append(Error(code=19, topic="t", partition=0, times=10_000))
    for number in range(12):
        sim.at(4.0, lambda n=number: sim.send("t", 0, size_bytes=9_000, thread=f"held {n}"))
    sim.run_for(8.0)
    blocked = blocked_s(page)
    assert blocked["share"] > 5.0
    assert blocked["memory"] == pytest.approx(0.0, abs=0.1)


def test_waiting_for_metadata_is_blocked_time_too() -> None:
    sim = simulation(5, topics={"t": 1}, max_block_s=60.0)
    page = Page(sim)
    sim.send("late", 0)
    sim.at(7.0, lambda: sim.create_topic("late", 1))
    sim.run_until(sim.all_settled, 30.0)
    sim.run_for(2.0)
    [entry] = sim.ledger.entries
    assert entry.taken_at is not None
    assert blocked_s(page)["metadata"] == pytest.approx(entry.taken_at, rel=0.02)
    assert sum(blocked_s(page).values()) == pytest.approx(entry.taken_at, rel=0.02)


def test_the_buffer_is_told_of_once_a_second_and_never_stays_at_an_old_level() -> None:
    sim = simulation(5, topics={"t": 1}, buffer_memory=400_000)
    page = Page(sim)
    sim.send("t", 0)
    sim.run_for(1.5)
    for number in range(30):
        sim.send("t", 0, size_bytes=10_000, thread=f"sender {number}")
    for node in (1, 2, 3):
        sim.kill(node)
    sim.run_for(1.2)
    assert page("outlast_buffer_bytes") == sim.sender.health(sim.now).buffer_bytes > 300_000
    assert 0 < page("outlast_buffer_headroom_seconds") < 10
    for node in (1, 2, 3):
        sim.start(node)
    sim.run_until(sim.all_settled, 60.0)
    sim.run_for(1.1)
    assert page("outlast_buffer_bytes") < 4_000  # and nobody sends any more
    sim.run_for(11.0)
    assert page("outlast_buffer_headroom_seconds") == math.inf
    levels = [f.at_s for f in sim.facts if isinstance(f, BufferLevel)]
    assert all(b - a >= 1.0 for a, b in pairwise(levels))
    blocked = [f.at_s for f in sim.facts if isinstance(f, SendersBlocked)]
    assert len(blocked) <= 3 * sim.now


def test_a_producer_of_few_records_is_not_woken_for_its_observers() -> None:
    sim = simulation(5, topics={"t": 1})
    sim.send_every(0, 5.0, 20, topic="t")
    sim.run_for(100.0)
    steps = len([f for f in sim.facts if isinstance(f, BufferLevel)])
    assert steps <= 2 * 20 + 2


def test_series_of_a_deleted_topic_go_away_and_begin_anew_with_it() -> None:
    sim = simulation(
        7,
        topics={"t": 1, "kept": 1},
        allow_auto_create_topics=False,
        metadata_max_age_ms=60_000,
    )
    page = Page(sim)
    for partition in (0,):
        sim.send("t", partition)
    sim.send_every(0, 10.0, 60, topic="kept")
    sim.run_for(1.0)
    assert page("outlast_records_total", topic="t", result="acked") == 1
    assert page.series("outlast_records") == 4
    sim.delete_topic("t")
    sim.run_for(200.0)
    assert page.series("outlast_records") == 4  # brokers may be behind: five minutes are waited
    sim.run_for(300.0)
    assert [f.topic for f in sim.facts if isinstance(f, TopicGone)] == ["t"]
    page("outlast_delivery_timeout_seconds")
    shown = {
        sample.labels.get("topic", "kept")
        for metric in page.registry.collect()
        for sample in metric.samples
    }
    assert shown == {"kept"}
    sim.create_topic("t", 1)
    sim.send("t", 0)
    sim.run_until(lambda: sim.ledger.entries[-1].outcome != "", 60.0)
    assert page("outlast_records_total", topic="t", result="acked") == 1
    assert page("outlast_partition_gap_seconds_total", topic="t", partition="0") == 0
    assert [f.topic for f in sim.facts if isinstance(f, PartitionSeen)] == ["t", "kept", "t"]


def test_a_gap_that_nobody_waits_for_ends_with_its_topic() -> None:
    sim = simulation(
        7,
        topics={"t": 1, "kept": 1},
        allow_auto_create_topics=False,
        request_timeout_ms=1_000,
        delivery_timeout_ms=2_000,
    )
    page = Page(sim)
    for topic in ("t", "kept"):
        sim.send(topic, 0)
    sim.run_until(sim.all_settled)
    sim.delete_topic("t")
    sim.run_for(2.0)
    sim.send("t", 0)  # refused until it expires
    sim.send_every(0, 10.0, 60, topic="kept")
    sim.run_for(290.0)
    assert page("outlast_open_gaps", topic="t") == 1
    sim.run_for(400.0)
    [gap] = sim.gaps(0)
    assert gap.ended_by is GapEnd.TOPIC_GONE
    page("outlast_delivery_timeout_seconds")
    samples = (s for metric in page.registry.collect() for s in metric.samples)
    assert {s.labels["topic"] for s in samples if "topic" in s.labels} == {"kept"}


def test_a_topic_that_is_only_not_written_to_keeps_its_series() -> None:
    sim = simulation(7, topics={"t": 1, "busy": 1}, metadata_max_age_ms=60_000)
    page = Page(sim)
    sim.send("t", 0)
    sim.send_every(0, 10.0, 60, topic="busy")
    sim.run_for(600.0)
    assert page("outlast_records_total", topic="t", result="acked") == 1


def test_a_partition_that_a_new_topic_has_not_is_gone_too() -> None:
    sim = simulation(7, topics={"t": 3})
    page = Page(sim)
    load(sim, count=3)
    sim.run_until(sim.all_settled)
    assert page.series("outlast_partition_gap_seconds") == 3
    sim.delete_topic("t")
    sim.create_topic("t", 1)
    sim.run_for(1.0)
    sim.send("t", 0)
    sim.run_until(sim.all_settled, 30.0)
    assert page.series("outlast_partition_gap_seconds") == 1
    assert page.series("outlast_records") == 2
