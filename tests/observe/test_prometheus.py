"""Metrics: what a scrape shows while a gap is open, when it ended, when its records are settled."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from outlast.engine.gap import GapRecorder
from outlast.engine.messages import Cause, Fact, GapEnd, PartitionSeen, RecordsSettled, StallEnd
from outlast.engine.stall import StallRecorder
from outlast.observe.prometheus import OTHER, PARTITIONS_SHOWN, PrometheusObserver

TP = ("orders", 3)
PARTITION = {"topic": "orders", "partition": "3"}
SECONDS = "outlast_partition_gap_seconds_total"
STALLED = "outlast_partition_stalled_seconds_total"


def refused(gaps: GapRecorder, sent_s: float, now: float) -> list[Fact]:
    return gaps.refused(
        TP,
        cause=Cause.NOT_LEADER,
        trigger="NOT_LEADER_OR_FOLLOWER",
        sent_s=sent_s,
        leader=1,
        leader_epoch=7,
        last_ack_s=None,
        now=now,
    )


class Scrape:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry)
        self.gaps = GapRecorder(0.0)
        self.stalls = StallRecorder(0.0)

    def __call__(self, name: str, **labels: Any) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_a_partition_starts_at_zero_and_advances_while_its_gap_is_open() -> None:
    scrape = Scrape()
    assert scrape(SECONDS, **PARTITION) is None
    scrape.observer([PartitionSeen(0.0, *TP)])
    assert scrape(SECONDS, **PARTITION) == 0.0
    scrape.observer(refused(scrape.gaps, sent_s=10.0, now=12.5))
    assert scrape(SECONDS, **PARTITION) == 2.5  # the backdated part at once
    scrape.observer(scrape.gaps.tick(13.5))
    assert scrape(SECONDS, **PARTITION) == 3.5
    scrape.observer(scrape.gaps.accepted(TP, sent_s=14.0, leader=2, leader_epoch=8, now=14.5))
    assert scrape(SECONDS, **PARTITION) == 4.5
    scrape.observer(refused(scrape.gaps, sent_s=20.0, now=20.5))  # the next one adds to it
    assert scrape(SECONDS, **PARTITION) == 5.0


def test_duration_and_phases_come_at_the_end_and_the_outcome_when_records_are_settled() -> None:
    scrape = Scrape()
    scrape.observer(refused(scrape.gaps, sent_s=10.0, now=10.5))
    number = scrape.gaps.met(TP)
    assert number is not None
    scrape.gaps.joined(number)
    scrape.observer(scrape.gaps.evidence(TP, leader=2, leader_epoch=8, now=12.5))
    assert scrape("outlast_gap_duration_seconds_count", topic="orders", cause="not_leader") is None
    assert scrape("outlast_gap_seconds_total", topic="orders", phase="detecting") is None
    scrape.observer(scrape.gaps.accepted(TP, sent_s=13.0, leader=2, leader_epoch=8, now=13.25))

    labels = {"topic": "orders", "cause": "not_leader"}
    assert scrape("outlast_gap_duration_seconds_sum", **labels) == 3.25
    assert scrape("outlast_gap_duration_seconds_bucket", **labels, le="3.0") == 0
    assert scrape("outlast_gap_duration_seconds_bucket", **labels, le="5.0") == 1
    seconds = {
        phase: scrape("outlast_gap_seconds_total", topic="orders", phase=phase)
        for phase in ("detecting", "unavailable", "reconnecting", "resuming")
    }
    assert seconds == {"detecting": 0.5, "unavailable": 2.0, "reconnecting": 0.5, "resuming": 0.25}

    assert scrape("outlast_gaps_total", **labels, outcome="absorbed") is None
    scrape.observer(scrape.gaps.settled(number, "delivered", 5, 14.0))
    assert scrape("outlast_gaps_total", **labels, outcome="absorbed") == 1


def test_a_stall_counts_as_far_as_the_leader_was_heard_of() -> None:
    scrape = Scrape()
    scrape.observer([PartitionSeen(0.0, *TP)])
    assert scrape(STALLED, **PARTITION) == 0.0
    scrape.observer(scrape.stalls.alive(TP, node_id=1, sent_s=10.0, now=11.5))
    assert scrape(STALLED, **PARTITION) == 1.5  # the backdated part at once
    scrape.observer(scrape.stalls.tick(12.5))
    assert scrape(STALLED, **PARTITION) == 1.5
    scrape.stalls.alive(TP, node_id=1, sent_s=10.0, now=13.0)
    scrape.observer(scrape.stalls.tick(13.5))
    assert scrape(STALLED, **PARTITION) == 3.0
    scrape.observer(scrape.stalls.end(TP, StallEnd.ACK, 14.25))
    assert scrape(STALLED, **PARTITION) == 4.25
    scrape.observer(scrape.stalls.alive(TP, node_id=1, sent_s=20.0, now=21.0))  # the next one
    assert scrape(STALLED, **PARTITION) == 5.25
    assert scrape(SECONDS, **PARTITION) == 0.0


def test_a_stall_that_becomes_a_gap_counts_no_second_twice() -> None:
    scrape = Scrape()
    scrape.observer(scrape.stalls.alive(TP, node_id=1, sent_s=10.0, now=11.0))
    scrape.observer(scrape.stalls.tick(12.0))
    scrape.observer(scrape.stalls.tick(13.0))
    scrape.observer(scrape.stalls.end(TP, StallEnd.GAP, 13.5))
    scrape.observer(refused(scrape.gaps, sent_s=11.0, now=13.5))
    assert scrape(STALLED, **PARTITION) == 1.0
    assert scrape(SECONDS, **PARTITION) == 2.5


@pytest.mark.parametrize("reason", [GapEnd.ABANDONED, GapEnd.CLOSED, GapEnd.TOPIC_GONE])
def test_a_gap_without_an_ack_stays_out_of_the_histogram(reason: GapEnd) -> None:
    scrape = Scrape()
    scrape.observer(refused(scrape.gaps, sent_s=10.0, now=10.5))
    scrape.observer(scrape.gaps.abandon(TP, reason, 400.0))
    labels = {"topic": "orders", "cause": "not_leader"}
    assert scrape("outlast_gap_duration_seconds_count", **labels) is None
    assert scrape("outlast_gaps_total", **labels, outcome="abandoned") == 1
    assert scrape(SECONDS, **PARTITION) == 390.0


def test_records_are_counted_by_result() -> None:
    scrape = Scrape()
    scrape.observer([RecordsSettled(1.0, *TP, acked=90, failed=0, oldest_age_s=0.1)])
    scrape.observer([RecordsSettled(1.0, *TP, acked=7, failed=3, oldest_age_s=0.1)])
    assert scrape("outlast_records_total", topic="orders", result="acked") == 97
    assert scrape("outlast_records_total", topic="orders", result="failed") == 3


def test_producers_share_the_metrics_of_a_registry() -> None:
    scrape = Scrape()
    other, other_gaps = PrometheusObserver(scrape.registry), GapRecorder(0.0)
    scrape.observer(refused(scrape.gaps, sent_s=10.0, now=11.0))
    other(refused(other_gaps, sent_s=10.0, now=12.0))  # the same number, of another producer
    assert scrape(SECONDS, **PARTITION) == 3.0
    other(other_gaps.close(12.0))
    other.close()
    scrape.observer(scrape.gaps.tick(13.0))
    assert scrape(SECONDS, **PARTITION) == 5.0


def test_registries_do_not_share_and_are_not_kept_alive() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry)([PartitionSeen(0.0, *TP)])
    assert Scrape()(SECONDS, **PARTITION) is None
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None


def test_partitions_beyond_the_limit_share_one_series() -> None:
    scrape = Scrape()
    scrape.observer([PartitionSeen(0.0, "wide", n) for n in range(PARTITIONS_SHOWN)])
    scrape.observer([PartitionSeen(0.0, *TP)])
    assert scrape(SECONDS, **PARTITION) is None
    scrape.observer(refused(scrape.gaps, sent_s=1.0, now=3.0))
    assert scrape(SECONDS, topic="orders", partition=OTHER) == 2.0
    scrape.observer(scrape.stalls.alive(TP, node_id=1, sent_s=1.0, now=4.0))
    assert scrape(STALLED, topic="orders", partition=OTHER) == 3.0
    for name in (SECONDS, STALLED):
        page = generate_latest(scrape.registry)
        assert page.count(f"\n{name}{{".encode()) == PARTITIONS_SHOWN + 1


WORKER = """
from outlast.engine.gap import GapRecorder
from outlast.engine.messages import Cause
from outlast.observe.prometheus import PrometheusObserver
gaps, observe = GapRecorder(0.0), PrometheusObserver()
observe(gaps.refused(("orders", 3), cause=Cause.NOT_LEADER, trigger="X", sent_s=1.0, leader=1,
                     leader_epoch=1, last_ack_s=None, now=2.0))
observe(gaps.accepted(("orders", 3), sent_s=2.0, leader=2, leader_epoch=2, now=3.5))
"""
COLLECTOR = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_workers_of_a_multiprocess_application_add_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(WORKER)
    run(WORKER)
    page = run(COLLECTOR)
    assert 'outlast_partition_gap_seconds_total{partition="3",topic="orders"} 5.0' in page
    assert 'outlast_gap_duration_seconds_count{cause="not_leader",topic="orders"} 2.0' in page
