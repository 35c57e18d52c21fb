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
from outlast.engine.messages import (
    AttemptFailed,
    Cause,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    Fact,
    GapEnd,
    LaneChanged,
    LaneReason,
    PartitionSeen,
    RecordsSettled,
    Role,
    StallEnd,
    Throttled,
)
from outlast.engine.stall import StallRecorder
from outlast.observe.metrics import METRICS
from outlast.observe.prometheus import (
    NODES_SHOWN,
    OTHER,
    PARTITIONS_SHOWN,
    PrometheusObserver,
)

TP = ("orders", 3)
PARTITION = {"topic": "orders", "partition": "3"}
SECONDS = "outlast_partition_gap_seconds_total"
STALLED = "outlast_partition_stalled_seconds_total"
LATE = {"lane": "open", "reason": "follower"}
THROTTLE = "outlast_throttle_seconds_total"


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


def opened(node_id: int, role: Role = Role.OPEN) -> Fact:
    return ConnectionOpened(1.0, Connection(node_id, role, 1), "kafka-1:9092", 0.1)


def closed(node_id: int, role: Role = Role.OPEN) -> Fact:
    return ConnectionClosed(2.0, Connection(node_id, role, 1))


def lane_changed(partition: int, lane: Role, reason: LaneReason) -> Fact:
    return LaneChanged(1.0, "orders", partition, 2, lane, reason)


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
    assert scrape("outlast_gap_duration_seconds_count", topic="orders", cause="not_leader") == 0
    assert scrape("outlast_gap_seconds_total", topic="orders", phase="detecting") == 0
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

    assert scrape("outlast_gaps_total", **labels, outcome="absorbed") == 0
    scrape.observer(scrape.gaps.settled(number, "delivered", 5, 14.0))
    assert scrape("outlast_gaps_total", **labels, outcome="absorbed") == 1


def test_a_stall_counts_as_far_as_the_leader_was_heard_of() -> None:
    scrape = Scrape()
    scrape.observer([PartitionSeen(0.0, *TP)])
    assert scrape(STALLED, **PARTITION) == 0.0
    scrape.observer(scrape.stalls.alive(TP, node_id=1, **LATE, sent_s=10.0, now=11.5))
    assert scrape(STALLED, **PARTITION) == 1.5  # the backdated part at once
    scrape.observer(scrape.stalls.tick(12.5))
    assert scrape(STALLED, **PARTITION) == 1.5
    scrape.stalls.alive(TP, node_id=1, **LATE, sent_s=10.0, now=13.0)
    scrape.observer(scrape.stalls.tick(13.5))
    assert scrape(STALLED, **PARTITION) == 3.0
    scrape.observer(scrape.stalls.end(TP, StallEnd.ACK, 14.25))
    assert scrape(STALLED, **PARTITION) == 4.25
    scrape.observer(
        scrape.stalls.alive(TP, node_id=1, **LATE, sent_s=20.0, now=21.0)
    )  # the next one
    assert scrape(STALLED, **PARTITION) == 5.25
    assert scrape(SECONDS, **PARTITION) == 0.0


def test_a_stall_that_becomes_a_gap_counts_no_second_twice() -> None:
    scrape = Scrape()
    scrape.observer(scrape.stalls.alive(TP, node_id=1, **LATE, sent_s=10.0, now=11.0))
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
    assert scrape("outlast_gap_duration_seconds_count", **labels) == 0
    assert scrape("outlast_gaps_total", **labels, outcome="abandoned") == 1
    assert scrape(SECONDS, **PARTITION) == 390.0


def test_seconds_of_throttle_are_counted_once_and_by_node() -> None:
    scrape = Scrape()
    scrape.observer([opened(1), opened(-1, Role.CONTROL)])
    assert scrape(THROTTLE, node_id="1") == 0.0  # so that rate() sees the first second, too
    scrape.observer([Throttled(10.0, Connection(1, Role.OPEN, 1), 4.0)])
    assert scrape(THROTTLE, node_id="1") == 4.0
    scrape.observer([Throttled(10.5, Connection(1, Role.OPEN, 1), 4.0)])  # until 14.5 in all
    scrape.observer([Throttled(11.0, Connection(1, Role.OPEN, 1), 1.0)])
    assert scrape(THROTTLE, node_id="1") == 4.5
    scrape.observer([Throttled(30.0, Connection(1, Role.OPEN, 1), 0.5)])
    assert scrape(THROTTLE, node_id="1") == 5.0
    scrape.observer([Throttled(30.0, Connection(-1, Role.CONTROL, 1), 0.25)])
    assert scrape(THROTTLE, node_id="bootstrap") == 0.25


def test_nodes_beyond_the_limit_share_one_series() -> None:
    scrape = Scrape()
    for node_id in range(NODES_SHOWN + 20):
        scrape.observer([Throttled(1.0, Connection(node_id, Role.OPEN, 1), 1.0)])
    assert scrape(THROTTLE, node_id=OTHER) == 20.0
    page = generate_latest(scrape.registry)
    assert page.count(f"\n{THROTTLE}{{".encode()) == NODES_SHOWN + 1


def test_lane_changes_are_counted_by_lane_and_reason() -> None:
    scrape = Scrape()
    changes = "outlast_lane_changes_total"
    assert scrape(changes, lane="slow", reason="stuck") == 0.0
    before = generate_latest(scrape.registry).count(f"\n{changes}{{".encode())
    assert before == len(LaneReason)
    for partition in range(200):
        scrape.observer([lane_changed(partition, Role.SLOW, LaneReason.STUCK)])
    scrape.observer([lane_changed(0, Role.OPEN, LaneReason.USUAL)])
    assert scrape(changes, lane="slow", reason="stuck") == 200.0
    assert scrape(changes, lane="open", reason="usual") == 1.0
    assert generate_latest(scrape.registry).count(f"\n{changes}{{".encode()) == before


def connections(scrape: Scrape) -> dict[str, float | None]:
    return {role.value: scrape("outlast_connections", role=role.value) for role in Role}


def test_open_connections_are_shown_by_role_for_all_producers_of_a_process() -> None:
    scrape = Scrape()
    none: dict[str, float | None] = {role.value: 0.0 for role in Role}
    assert connections(scrape) == none
    other = PrometheusObserver(scrape.registry)
    scrape.observer([opened(1), opened(2), opened(2, Role.SLOW), opened(1, Role.CONTROL)])
    other([opened(1)])  # the same name, of another producer
    assert connections(scrape) == {**none, "open": 3.0, "slow": 1.0, "control": 1.0}
    scrape.observer([closed(1), closed(2, Role.SLOW), closed(2, Role.SLOW), closed(7)])
    assert connections(scrape) == {**none, "open": 2.0, "control": 1.0}
    scrape.observer.close()  # what nobody will tell of any more
    assert connections(scrape) == {**none, "open": 1.0}
    scrape.observer([opened(3)])  # by a thread that comes too late
    assert connections(scrape) == {**none, "open": 1.0}
    other([closed(1)])
    assert connections(scrape) == none


FORKED = """
import os
from prometheus_client import CollectorRegistry
import outlast.observers  # as every producer does: metrics are held over forks then
from outlast.engine.messages import Connection, ConnectionClosed, ConnectionOpened, Role
from outlast.observe.prometheus import PrometheusObserver
registry = CollectorRegistry()
observe = PrometheusObserver(registry)
observe([ConnectionOpened(1.0, Connection(n, Role.OPEN, 1), "k:9092", 0.1) for n in range(3)])
child = os.fork()
if child == 0:
    observe([ConnectionOpened(2.0, Connection(1, Role.OPEN, 1), "k:9092", 0.1)])
shown = registry.get_sample_value("outlast_connections", {"role": "open"})
if child:
    os.waitpid(child, 0)
print("parent" if child else "child", shown, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_count_its_parents_connections() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "child 1.0\nparent 3.0\n"


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
    scrape.observer(scrape.stalls.alive(TP, node_id=1, **LATE, sent_s=1.0, now=4.0))
    assert scrape(STALLED, topic="orders", partition=OTHER) == 3.0
    for name in (SECONDS, STALLED):
        page = generate_latest(scrape.registry)
        assert page.count(f"\n{name}{{".encode()) == PARTITIONS_SHOWN + 1


def test_every_metric_of_the_list_is_made_with_its_labels_and_values_and_no_other() -> None:
    scrape = Scrape()
    scrape.observer([PartitionSeen(0.0, *TP), RecordsSettled(1.0, *TP, 1, 1, 0.1), opened(1)])
    scrape.observer([AttemptFailed(1.0, *TP, "refresh", "NOT_LEADER_OR_FOLLOWER")])
    scrape.observer(refused(scrape.gaps, sent_s=1.0, now=2.0))
    scrape.observer(scrape.gaps.accepted(TP, sent_s=2.0, leader=2, leader_epoch=8, now=3.0))
    made = {}
    for page in scrape.registry.collect():
        name = page.name + ("_total" if page.type == "counter" else "")
        made[name] = page
        metric = METRICS[name]
        assert page.type == metric.kind.value
        assert page.documentation == metric.help
        assert page.samples, f"{name} is nowhere counted"
        for sample in page.samples:
            assert sample.labels.keys() - {"le"} == set(metric.labels)
            for label, values in metric.closed.items():
                assert sample.labels[label] in values
    assert made.keys() == METRICS.keys()


WORKER = """
import os, subprocess, sys
from prometheus_client.multiprocess import mark_process_dead
from outlast.engine.gap import GapRecorder
from outlast.engine.messages import (
    AttemptFailed,
    Cause, Connection, ConnectionClosed, ConnectionOpened, LaneChanged, LaneReason, Role, Throttled
)
from outlast.observe.prometheus import PrometheusObserver
gaps, observe = GapRecorder(0.0), PrometheusObserver()
observe(gaps.refused(("orders", 3), cause=Cause.NOT_LEADER, trigger="X", sent_s=1.0, leader=1,
                     leader_epoch=1, last_ack_s=None, now=2.0))
observe(gaps.accepted(("orders", 3), sent_s=2.0, leader=2, leader_epoch=2, now=3.5))
slow = Connection(2, Role.SLOW, 1)
observe([ConnectionOpened(4.0, Connection(2, Role.OPEN, 1), "k:9092", 0.1)])
observe([ConnectionOpened(4.0, slow, "k:9092", 0.1), Throttled(4.0, slow, 1.5)])
observe([LaneChanged(4.0, "orders", 3, 2, Role.SLOW, LaneReason.STUCK)])
if os.environ.get("LIVING"):  # while another worker runs
    subprocess.run([sys.executable, "-c", os.environ["LIVING"]], check=True, timeout=30)
observe([ConnectionClosed(5.0, slow)])
mark_process_dead(os.getpid())  # as a server does it for a worker that has ended
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

    def run(code: str, living: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "LIVING": living},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(WORKER)
    living = run(WORKER, COLLECTOR)
    assert 'outlast_connections{role="open"} 1.0' in living  # of the one that lives
    assert 'outlast_connections{role="slow"} 1.0' in living
    assert "pid=" not in living
    page = run(COLLECTOR)
    assert 'outlast_throttle_seconds_total{node_id="2"} 3.0' in page
    assert 'outlast_lane_changes_total{lane="slow",reason="stuck"} 2.0' in page
    assert 'outlast_connections{role="open"}' not in page  # nobody lives
    assert 'outlast_partition_gap_seconds_total{partition="3",topic="orders"} 5.0' in page
    assert 'outlast_gap_duration_seconds_count{cause="not_leader",topic="orders"} 2.0' in page
