"""What several producers, a deleted topic, a limit or a fork make of the series."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanContext, TraceFlags
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from outlast.engine.gap import GapRecorder
from outlast.engine.messages import (
    AttemptFailed,
    BufferLevel,
    Cause,
    Fact,
    LeaderChanged,
    MetadataRefreshed,
    PartitionRestarted,
    PartitionSeen,
    RecordsSettled,
    SendersBlocked,
    TopicGone,
)
from outlast.observe.metric_set import TOPICS_SHOWN
from outlast.observe.metrics import METRICS, OTHER, REFRESH_RESULTS, RESTART_REASONS
from outlast.observe.prometheus import PrometheusObserver

TP = ("orders", 3)
PARTITION = {"topic": "orders", "partition": "3"}
SECONDS = "outlast_partition_gap_seconds_total"


class Spans:
    """Stands for the spans of gaps."""

    def __init__(self) -> None:
        self.suppressed = 0
        self.contexts: dict[int, SpanContext] = {}

    def span_context(self, gap_number: int) -> SpanContext | None:
        return self.contexts.get(gap_number)


class Scrape:
    def __init__(self, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.options = options
        self.observer = self.producer()
        self.gaps = GapRecorder(1000.0)

    def producer(self, **options: Any) -> PrometheusObserver:
        return PrometheusObserver(self.registry, **self.options | options)

    def __call__(self, name: str, **labels: Any) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def topics(self) -> set[str]:
        pages = self.registry.collect()
        samples = (sample for page in pages for sample in page.samples)
        return {s.labels["topic"] for s in samples if "topic" in s.labels}


def opening(
    gaps: GapRecorder, tp: tuple[str, int] = TP, at_s: float = 10.0, late_s: float = 0.5
) -> list[Fact]:
    return gaps.refused(
        tp,
        cause=Cause.NOT_LEADER,
        trigger="NOT_LEADER_OR_FOLLOWER",
        sent_s=at_s,
        leader=1,
        leader_epoch=7,
        last_ack_s=None,
        now=at_s + late_s,
    )


def ending(gaps: GapRecorder, tp: tuple[str, int] = TP, at_s: float = 14.0) -> list[Fact]:
    return gaps.accepted(tp, sent_s=at_s - 0.25, leader=2, leader_epoch=8, now=at_s)


# --- series begin at 0 ---


def test_series_of_closed_labels_begin_at_0_with_the_first_record() -> None:
    scrape = Scrape()
    for result in REFRESH_RESULTS:
        assert scrape("outlast_metadata_refresh_duration_seconds_count", result=result) == 0
    assert scrape("outlast_gap_spans_suppressed_total") == 0
    assert scrape("outlast_send_blocked_seconds_total", reason="memory") == 0
    assert scrape.topics() == set()
    scrape.observer([PartitionSeen(0.0, *TP)])
    for name, metric in METRICS.items():
        if metric.labels[:1] != ("topic",) or metric.kind.value == "histogram":
            continue
        if all(label in metric.closed for label in metric.labels[1:]):
            closed = {label: values[0] for label, values in metric.closed.items()}
            assert scrape(name, topic="orders", **closed) == 0, name
    assert scrape("outlast_send_duration_seconds_count", topic="orders") == 0
    assert scrape("outlast_gap_duration_seconds_count", topic="orders", cause="silent") is None
    scrape.observer(opening(scrape.gaps))
    assert scrape("outlast_gap_duration_seconds_count", topic="orders", cause="not_leader") == 0


# --- single facts ---


def test_a_batch_counts_its_records_and_its_oldest_ones_time() -> None:
    scrape = Scrape()
    scrape.observer([RecordsSettled(1.0, *TP, 90, 0, 0.004), RecordsSettled(1.0, *TP, 0, 5, 120.0)])
    assert scrape("outlast_records_total", topic="orders", result="acked") == 90
    assert scrape("outlast_records_total", topic="orders", result="failed") == 5
    labels = {"topic": "orders"}
    assert scrape("outlast_send_duration_seconds_count", **labels) == 1  # failures have none
    assert scrape("outlast_send_duration_seconds_sum", **labels) == 0.004
    assert scrape("outlast_send_duration_seconds_bucket", **labels, le="0.0025") == 0
    assert scrape("outlast_send_duration_seconds_bucket", **labels, le="0.005") == 1
    scrape.observer([RecordsSettled(1.0, *TP, 1, 0, 0.005)])  # an edge is within its bucket
    assert scrape("outlast_send_duration_seconds_bucket", **labels, le="0.005") == 2
    assert scrape("outlast_send_duration_seconds_bucket", **labels, le="+Inf") == 2


def test_leaders_that_become_known_are_no_changes() -> None:
    scrape = Scrape()
    moves = [(-1, -1, 1, 5), (1, 5, -1, 6), (1, 5, 2, 7), (2, 7, 2, 7), (2, 7, 2, 8)]
    for old, old_epoch, new, new_epoch in moves:
        scrape.observer([LeaderChanged(1.0, *TP, old, old_epoch, new, new_epoch, False)])
    assert scrape("outlast_leader_changes_total", topic="orders") == 2


def test_unknown_codes_share_a_series() -> None:
    scrape = Scrape()
    for code in range(1000, 1300):
        scrape.observer([AttemptFailed(1.0, *TP, "fail_batch", f"UNKNOWN_CODE_{code}")])
    labels = {"topic": "orders", "verdict": "fail_batch", "error": "UNKNOWN_CODE"}
    assert scrape("outlast_verdicts_total", **labels) == 300


def test_restarts_refreshes_and_blocked_senders_are_counted() -> None:
    scrape = Scrape()
    for reason in RESTART_REASONS:
        scrape.observer([PartitionRestarted(1.0, *TP, 7, 1, reason)])
        assert scrape("outlast_partition_restarts_total", topic="orders", reason=reason) == 1
    scrape.observer([MetadataRefreshed(1.0, 1, 0.02, True), MetadataRefreshed(1.0, 1, 3.0, False)])
    name = "outlast_metadata_refresh_duration_seconds"
    assert scrape(f"{name}_sum", result="ok") == 0.02
    assert scrape(f"{name}_sum", result="failed") == 3.0
    scrape.observer([SendersBlocked(1.0, "share", 2, 1.5), SendersBlocked(2.0, "share", 0, 0.25)])
    assert scrape("outlast_send_blocked_seconds_total", reason="share") == 1.75


def test_the_records_that_met_a_gap_are_counted_when_they_are_settled() -> None:
    scrape = Scrape()
    scrape.observer(opening(scrape.gaps))
    number = scrape.gaps.met(TP)
    assert number is not None
    scrape.gaps.joined(number)
    scrape.gaps.joined(number)
    scrape.observer(ending(scrape.gaps))
    scrape.observer(scrape.gaps.settled(number, "delivered", 5, 14.0))
    assert scrape("outlast_gap_records_total", topic="orders", fate="delivered") == 0
    scrape.observer(scrape.gaps.settled(number, "expired", 2, 15.0))
    assert scrape("outlast_gap_records_total", topic="orders", fate="delivered") == 5
    assert scrape("outlast_gap_records_total", topic="orders", fate="expired") == 2
    labels = {"topic": "orders", "cause": "not_leader", "outcome": "reported"}
    assert scrape("outlast_gaps_total", **labels) == 1


# --- several producers ---


def test_gauges_are_sum_least_or_most_of_what_the_producers_show() -> None:
    scrape = Scrape(delivery_timeout_s=120.0)
    other = scrape.producer(delivery_timeout_s=30.0)
    assert scrape("outlast_buffer_headroom_seconds") == math.inf
    scrape.observer([BufferLevel(1.0, 100, 1000, 7.0)])
    other([BufferLevel(1.0, 50, 2000, None)])
    assert scrape("outlast_buffer_bytes") == 150
    assert scrape("outlast_buffer_limit_bytes") == 3000
    assert scrape("outlast_buffer_headroom_seconds") == 7.0
    assert scrape("outlast_delivery_timeout_seconds") == 30.0
    gaps = GapRecorder(1000.0)
    scrape.observer(opening(scrape.gaps, at_s=10.0))
    other(opening(gaps, at_s=12.0))
    other(gaps.evidence(TP, leader=2, leader_epoch=8, now=13.0))
    assert scrape("outlast_open_gaps", topic="orders") == 2
    assert scrape("outlast_partition_gap_phase", **PARTITION) == 3
    scrape.observer(scrape.gaps.tick(13.5))
    assert scrape("outlast_open_gap_seconds", topic="orders") == 3.5
    scrape.observer(ending(scrape.gaps))
    assert scrape("outlast_open_gap_seconds", topic="orders") == 1.0  # the other's, as last told
    assert scrape("outlast_open_gaps", topic="orders") == 1
    other.close()
    assert scrape("outlast_open_gaps", topic="orders") == 0
    assert scrape("outlast_partition_gap_phase", **PARTITION) == 0
    assert scrape("outlast_delivery_timeout_seconds") == 120.0
    assert scrape("outlast_buffer_bytes") == 100
    other([BufferLevel(2.0, 50, 2000, 1.0)])  # by a thread that comes too late
    assert scrape("outlast_buffer_bytes") == 100


def test_the_longest_open_gap_is_the_one_that_began_first_whenever_it_was_told() -> None:
    scrape = Scrape()
    age = "outlast_open_gap_seconds"
    for partition, at_s, late_s in ((1, 12.0, 0.5), (2, 14.0, 0.5), (3, 10.0, 5.0)):
        scrape.observer(opening(scrape.gaps, ("orders", partition), at_s, late_s))
    assert scrape(age, topic="orders") == 5.0
    scrape.observer(ending(scrape.gaps, ("orders", 1), 16.0))
    assert scrape(age, topic="orders") == 6.0
    scrape.observer(ending(scrape.gaps, ("orders", 3), 17.0))
    assert scrape(age, topic="orders") == 3.0
    scrape.observer(ending(scrape.gaps, ("orders", 2), 18.0))
    assert scrape(age, topic="orders") == 0.0


def test_the_last_gap_is_the_one_that_began_last() -> None:
    scrape = Scrape()
    for begin_s in (10.0, 20.0):
        scrape.observer(opening(scrape.gaps, at_s=begin_s))
        scrape.observer(ending(scrape.gaps, at_s=begin_s + 4.0))
    start = "outlast_partition_last_gap_start_time_seconds"
    assert scrape(start, **PARTITION) == 1020.0
    assert scrape("outlast_partition_last_gap_duration_seconds", **PARTITION) == 4.0


@pytest.mark.parametrize("multiprocess", [False, True])
def test_labels_of_the_applications_own_are_on_every_series(
    multiprocess: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if multiprocess:  # its plain objects
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    scrape = Scrape(own_labels={"team": "a", "app": "one"})
    other = scrape.producer(own_labels={"app": "two", "team": "a"})
    same = scrape.producer()
    for observe in (scrape.observer, other, same):
        observe([RecordsSettled(1.0, *TP, 1, 0, 0.1), BufferLevel(1.0, 7, 1000, 9.0)])
        observe(opening(GapRecorder(0.0)))
    scrape.producer().close()  # nothing is held back any more
    own = {"team": "a", "app": "one"}
    labels = {"topic": "orders", "result": "acked"}
    assert scrape("outlast_records_total", **labels, **own) == 2
    assert scrape("outlast_records_total", **labels, team="a", app="two") == 1
    assert scrape("outlast_buffer_bytes", **own) == 14
    assert scrape("outlast_open_gaps", topic="orders", **own) == 2
    for page in scrape.registry.collect():
        for sample in page.samples:
            assert sample.labels.keys() >= own.keys()
    with pytest.raises(ValueError, match="need the same names"):
        scrape.producer(own_labels={"app": "three"})


# --- limits, and what goes away ---


def test_partitions_beyond_the_limit_have_no_series_of_their_own() -> None:
    scrape = Scrape(partition_limit=2)
    scrape.observer([PartitionSeen(0.0, "orders", number) for number in range(5)])
    for number in (0, 4):
        scrape.observer(opening(scrape.gaps, ("orders", number)))
    names = {"outlast_partition_gap_phase", "outlast_partition_last_gap_duration_seconds"}
    for page in scrape.registry.collect():
        shown = [s.labels["partition"] for s in page.samples if "partition" in s.labels]
        assert set(shown) <= ({"0"} if page.name in names else {"0", "1", OTHER})
        assert len(shown) == len(set(shown))
    assert scrape(SECONDS, topic="orders", partition=OTHER) == 0.5
    assert scrape("outlast_open_gaps", topic="orders") == 2


def test_a_limit_of_0_leaves_topics_alone() -> None:
    scrape = Scrape(partition_limit=0)
    scrape.observer([PartitionSeen(0.0, *TP)])
    assert scrape(SECONDS, topic="orders", partition=OTHER) == 0.0
    assert scrape.topics() == {"orders"}


def test_topics_beyond_the_limit_share_one_name() -> None:
    scrape = Scrape()
    for number in range(TOPICS_SHOWN + 30):
        scrape.observer([RecordsSettled(1.0, f"topic-{number}", 0, 1, 0, 0.1)])
    for number in range(TOPICS_SHOWN, TOPICS_SHOWN + 3):
        scrape.observer(opening(scrape.gaps, (f"topic-{number}", 0)))
    assert len(scrape.topics()) == TOPICS_SHOWN + 1
    assert scrape("outlast_records_total", topic=OTHER, result="acked") == 30
    assert scrape("outlast_open_gaps", topic=OTHER) == 3
    scrape.observer([TopicGone(2.0, "topic-0"), RecordsSettled(3.0, "late", 0, 1, 0, 0.1)])
    assert scrape("outlast_records_total", topic="late", result="acked") == 1  # there is room


def test_a_topic_that_is_gone_takes_all_its_series_and_no_others() -> None:
    scrape = Scrape()
    for topic in ("orders", "orders2"):
        scrape.observer([RecordsSettled(1.0, topic, 3, 1, 1, 0.1)])
        scrape.observer([AttemptFailed(1.0, topic, 3, "refresh", "SILENT")])
        scrape.observer(opening(scrape.gaps, (topic, 3)))
        scrape.observer(ending(scrape.gaps, (topic, 3)))
    before = generate_latest(scrape.registry).count(b"\n")
    own = generate_latest(scrape.registry).count(b'topic="orders"')
    assert own > 80
    scrape.observer([TopicGone(2.0, "orders")])
    assert scrape.topics() == {"orders2"}
    assert generate_latest(scrape.registry).count(b"\n") == before - own
    scrape.observer([RecordsSettled(3.0, *TP, 1, 0, 0.1)])  # somebody wrote to it after all
    assert scrape("outlast_records_total", topic="orders", result="acked") == 1
    assert scrape(SECONDS, **PARTITION) == 0.0


def test_a_partition_that_is_gone_leaves_its_topic() -> None:
    scrape = Scrape()
    scrape.observer([PartitionSeen(0.0, "orders", number) for number in (3, 33)])
    scrape.observer([TopicGone(2.0, *TP)])
    assert scrape(SECONDS, **PARTITION) is None
    assert scrape(SECONDS, topic="orders", partition="33") == 0.0
    assert scrape("outlast_records_total", topic="orders", result="acked") == 0.0


# --- exemplars ---


def context(trace_id: int, sampled: bool = True) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return SpanContext(trace_id, 0xABC, is_remote=False, trace_flags=flags)


def exemplars(scrape: Scrape) -> list[dict[str, str]]:
    """As Prometheus gets them."""
    page = openmetrics_latest(scrape.registry).decode()
    samples = (s for family in text_string_to_metric_families(page) for s in family.samples)
    return [dict(sample.exemplar.labels) for sample in samples if sample.exemplar]


@pytest.mark.parametrize("sampled", [True, False])
def test_a_gaps_duration_names_its_trace_if_it_is_sampled(sampled: bool) -> None:
    spans = Spans()
    spans.contexts[1] = context((1 << 128) - 1, sampled=sampled)
    scrape = Scrape(spans=spans)
    scrape.observer(opening(scrape.gaps))
    scrape.observer(ending(scrape.gaps))
    labels = {"trace_id": "f" * 32, "span_id": "0000000000000abc"}
    assert exemplars(scrape) == ([labels] if sampled else [])
    assert sum(map(len, [*labels, *labels.values()])) <= 128
    duration = "outlast_gap_duration_seconds_count"
    assert scrape(duration, topic="orders", cause="not_leader") == 1


def test_an_exemplar_that_is_too_long_is_left_out() -> None:
    spans = Spans()
    spans.contexts[1] = context(1 << 600)
    scrape = Scrape(spans=spans)
    scrape.observer(opening(scrape.gaps))
    scrape.observer(ending(scrape.gaps))
    assert exemplars(scrape) == []
    assert scrape("outlast_gap_duration_seconds_count", topic="orders", cause="not_leader") == 1


def test_gaps_without_a_span_are_counted_once_for_each_producer() -> None:
    spans = Spans()
    scrape = Scrape(spans=spans)
    scrape.observer(opening(scrape.gaps))
    spans.suppressed = 2
    scrape.observer(opening(scrape.gaps, ("orders", 4)))
    scrape.observer(opening(scrape.gaps, ("orders", 5)))
    assert scrape("outlast_gap_spans_suppressed_total") == 2


# --- forks ---

FORKED = """
import os, signal, sys, threading
from prometheus_client import CollectorRegistry
import outlast.observers  # as every producer does: metrics are held over forks then
from outlast.engine.gap import GapRecorder
from outlast.engine.messages import Cause, BufferLevel
from outlast.observe.prometheus import PrometheusObserver

def opening(gaps, at_s):
    return gaps.refused(("orders", 3), cause=Cause.SILENT, trigger="SILENT", sent_s=at_s, leader=1,
                        leader_epoch=1, last_ack_s=None, now=at_s + 3.0)

registry, gaps = CollectorRegistry(), GapRecorder(0.0)
observe = PrometheusObserver(registry, delivery_timeout_s=120.0)
observe([BufferLevel(1.0, 100, 1000, 7.0)])
observe(opening(gaps, 1.0))
busy = threading.Event()
stop = threading.Event()

def count():
    while not stop.is_set():
        observe([BufferLevel(1.0, 100, 1000, 7.0)])
        busy.set()

other = threading.Thread(target=count)
other.start()
busy.wait()
for _ in range(20):  # the other thread is in the midst of something most of the time
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # should it find a lock held
        other_gaps = GapRecorder(0.0)
        observe([BufferLevel(1.0, 5, 1000, None)])
        observe(opening(other_gaps, 2.0))  # its number is that of the parent's open gap
        def shown(name, **labels):
            return registry.get_sample_value(name, labels)
        told = (shown("outlast_buffer_bytes"), shown("outlast_open_gaps", topic="orders"),
                shown("outlast_partition_gap_seconds_total", topic="orders", partition="3"),
                shown("outlast_delivery_timeout_seconds"),
                shown("outlast_buffer_headroom_seconds"))
        counted_s = 3.0 if "PROMETHEUS_MULTIPROC_DIR" in os.environ else 6.0  # the parent's, too
        os._exit(0 if told == (5.0, 1.0, counted_s, 120.0, float("inf")) else 1)
    _, status = os.waitpid(child, 0)
    if status:
        print("child", status)
        break
stop.set()
other.join()
print("parent", registry.get_sample_value("outlast_open_gaps", {"topic": "orders"}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("multiprocess", [False, True])
def test_a_forked_child_counts_for_itself_and_finds_no_lock_held(
    multiprocess: bool, tmp_path: Path
) -> None:
    folder = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)} if multiprocess else {}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        env={**os.environ, **folder},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "parent 1.0\n"
