"""Facts as Prometheus metrics: plain counters and histograms, so that multiprocess mode works.

* `outlast_partition_gap_seconds_total` is the base of dashboards. It starts at 0 with a
  partition's first record (a series that is born above 0 loses its first value to `rate()`),
  takes the backdated part of a gap at once and advances while the gap is open; a polled gauge
  would miss most short gaps. At most `PARTITIONS_SHOWN` partitions of a registry have a series of
  their own, later ones share `partition="_other"` of their topic.
* What can still change is not counted: phases are added when the gap has ended, its outcome when
  the records that met it are settled. Counters never go back.
* The duration histogram takes gaps that ended in an ack, no others: the rest are censored.
* Series of lanes, throttle and connections begin at 0, too, for the same reason.
* Connections are counted by role alone. A producer has at most one of each role to a broker, so a
  role's count shows both a leak and how many brokers need a slow lane; which ones is for the log
  and `health()`. Throttle is a broker's own quota, so it is told by node, of at most `NODES_SHOWN`:
  node ids are few, yet a cluster may renumber the nodes it replaces.
* Per batch one cached child is increased (0.3 µs), nothing per record.

All producers of a process share the metrics of a registry; a gap's number is of one producer, so
each has a `PrometheusObserver` of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from outlast.engine.messages import (
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    Fact,
    Gap,
    GapAdvanced,
    GapEnd,
    GapEnded,
    GapOpened,
    GapSettled,
    LaneChanged,
    LaneReason,
    PartitionSeen,
    Phase,
    RecordsSettled,
    Role,
    Stall,
    StallAdvanced,
    StallEnded,
    StallOpened,
    Throttled,
)

# Kafka's clocks are edges: back-off 0.1, KRaft session 9, request 30, max block 60, delivery 120
GAP_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120)
PARTITIONS_SHOWN = 1000
NODES_SHOWN = 100
OTHER = "_other"
BOOTSTRAP = "bootstrap"

_LANE_OF = {
    LaneReason.STUCK: Role.SLOW,
    LaneReason.SUSPECT: Role.SLOW,
    LaneReason.FOLLOWER_DOWN: Role.SLOW,
    LaneReason.USUAL: Role.OPEN,
    LaneReason.IDLE: Role.OPEN,
    LaneReason.MOVED: Role.OPEN,
}


class PrometheusObserver:
    """Turns one producer's facts into metrics of `registry`."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._metrics = _MetricSet.of(registry)
        self._gaps_told_s: dict[int, float] = {}  # seconds of each open gap that are counted
        self._stalls_told_s: dict[int, float] = {}  # and of each open stall
        self._throttled_until_s: dict[Connection, float] = {}
        self._closed = False

    def __repr__(self) -> str:
        gaps, stalls = len(self._gaps_told_s), len(self._stalls_told_s)
        return f"<PrometheusObserver open_gaps={gaps} open_stalls={stalls}>"

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Count these facts."""
        for fact in facts:
            match fact:
                case RecordsSettled():
                    self._metrics.count_records(fact)
                case PartitionSeen():
                    self._metrics.partition_seconds(fact.topic, fact.partition)
                case GapOpened() | GapAdvanced():
                    self._advance_gap(fact.gap)
                case StallOpened() | StallAdvanced():
                    self._advance_stall(fact.stall)
                case StallEnded():
                    self._advance_stall(fact.stall)
                    self._stalls_told_s.pop(fact.stall.number, None)
                case GapEnded():
                    self._advance_gap(fact.gap)
                    self._gaps_told_s.pop(fact.gap.number, None)
                    self._metrics.count_duration(fact.gap)
                case GapSettled():
                    self._metrics.count_outcome(fact.gap)
                case LaneChanged():
                    self._metrics.count_lane_change(fact)
                case Throttled():
                    self._throttled(fact)
                case ConnectionOpened() if not self._closed:
                    self._metrics.connections.opened(self, fact.connection)
                    self._metrics.throttle_seconds(fact.connection.node_id)
                case ConnectionClosed():
                    self._metrics.connections.closed(self, fact.connection)
                    self._throttled_until_s.pop(fact.connection, None)

    def close(self) -> None:
        """What was counted stays; connections that nobody will tell of are not open any more."""
        self._closed = True
        self._metrics.connections.forget(self)

    def _advance_gap(self, gap: Gap) -> None:
        more_s = _more_s(self._gaps_told_s, gap)
        self._metrics.partition_seconds(gap.topic, gap.partition).gap.inc(more_s)

    def _advance_stall(self, stall: Stall) -> None:
        more_s = _more_s(self._stalls_told_s, stall)
        self._metrics.partition_seconds(stall.topic, stall.partition).stalled.inc(more_s)

    def _throttled(self, fact: Throttled) -> None:
        """Answers that were under way together tell of the same pause: no second counts twice."""
        until_s = self._throttled_until_s.get(fact.connection, fact.at_s)
        end_s = max(until_s, fact.at_s + fact.throttle_s)
        self._throttled_until_s[fact.connection] = end_s
        more_s = end_s - max(until_s, fact.at_s)
        self._metrics.throttle_seconds(fact.connection.node_id).inc(more_s)


def _more_s(told_s: dict[int, float], it: Gap | Stall) -> float:
    """The seconds of a gap or stall that were not told yet."""
    before_s = told_s.get(it.number, 0.0)
    told_s[it.number] = max(it.duration_s, before_s)
    return told_s[it.number] - before_s


class _Seconds(NamedTuple):
    """One partition's two counters."""

    gap: Counter
    stalled: Counter


class _OpenConnections:
    """How many connections this process has open, by role: those of all its producers.

    The gauge is set to what is known, never moved by one: in a forked child, where the parent's
    connections are nobody's business, it begins at 0 whatever the metric was copied with.
    """

    __slots__ = ("_gauges", "_lock", "_open", "_pid")

    def __init__(self, gauge: Gauge) -> None:
        self._gauges = {role: gauge.labels(role.value) for role in Role}  # all shown from the start
        self._lock = threading.Lock()
        self._open: dict[object, set[Connection]] = {}  # by producer
        self._pid = os.getpid()

    def opened(self, producer: object, connection: Connection) -> None:
        """One more."""
        with self._lock:
            self._leave_to_parent()
            self._open.setdefault(producer, set()).add(connection)
            self._show()

    def closed(self, producer: object, connection: Connection) -> None:
        """One less, if it was there."""
        with self._lock:
            self._leave_to_parent()
            self._open.get(producer, set()).discard(connection)
            self._show()

    def forget(self, producer: object) -> None:
        """The producer is closed."""
        with self._lock:
            self._leave_to_parent()
            self._open.pop(producer, None)
            self._show()

    def _leave_to_parent(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._open.clear()

    def _show(self) -> None:
        every = [connection.role for known in self._open.values() for connection in known]
        for role, gauge in self._gauges.items():
            gauge.set(every.count(role))


class _MetricSet:
    """The metrics in one registry, shared by all producers of the process."""

    _sets: ClassVar[WeakKeyDictionary[CollectorRegistry, _MetricSet]] = WeakKeyDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def of(cls, registry: CollectorRegistry) -> _MetricSet:
        """The registry's set; registering the same names twice would raise."""
        with cls._lock:
            if registry not in cls._sets:
                cls._sets[registry] = cls(registry)
            return cls._sets[registry]

    def __init__(self, registry: CollectorRegistry) -> None:
        self._partition_gap_seconds = Counter(
            "outlast_partition_gap_seconds_total",
            "Seconds in which a partition did not take this process's records; "
            "advances while a gap is open.",
            ["topic", "partition"],
            registry=registry,
        )
        self._partition_stalled_seconds = Counter(
            "outlast_partition_stalled_seconds_total",
            "Seconds in which a partition's leader lived, rejected nothing and acknowledged "
            "nothing; advances while a stall is open.",
            ["topic", "partition"],
            registry=registry,
        )
        self._gap_seconds = Counter(
            "outlast_gap_seconds_total",
            "Partition-seconds of ended gaps, by whose time it was.",
            ["topic", "phase"],
            registry=registry,
        )
        self._gaps = Counter(
            "outlast_gaps_total",
            "Gaps whose records are all settled: absorbed (all delivered), reported (some failed) "
            "or abandoned (no end was seen).",
            ["topic", "cause", "outcome"],
            registry=registry,
        )
        self._durations = Histogram(
            "outlast_gap_duration_seconds",
            "From the first attempt refused to the first one accepted, per partition.",
            ["topic", "cause"],
            buckets=GAP_BUCKETS_S,
            registry=registry,
        )
        self._records = Counter(
            "outlast_records_total",
            "Records acknowledged or failed.",
            ["topic", "result"],
            registry=registry,
        )
        self._lane_changes = Counter(
            "outlast_lane_changes_total",
            "Partitions whose requests went over to the other of their leader's two produce "
            "connections, by the connection they went to and why.",
            ["lane", "reason"],
            registry=registry,
        )
        for reason in LaneReason:
            self._lane_changes.labels(_LANE_OF[reason].value, reason.value)
        self._throttle_seconds = Counter(
            "outlast_throttle_seconds_total",
            "Seconds for which a broker had a connection of this process wait, for a quota; "
            "counted when it is told.",
            ["node_id"],
            registry=registry,
        )
        self.connections = _OpenConnections(
            Gauge(
                "outlast_connections",
                "Connections that this process has open to brokers, by what they are for.",
                ["role"],
                registry=registry,
                multiprocess_mode="livesum",  # a worker's connections end with it
            )
        )
        self._nodes: dict[int, Counter] = {}
        self._partitions: dict[tuple[str, int], _Seconds] = {}
        self._results: dict[str, tuple[Counter, Counter]] = {}

    def partition_seconds(self, topic: str, partition: int) -> _Seconds:
        """The partition's counters, or its topic's common ones once the limit is reached."""
        children = self._partitions.get((topic, partition))
        if children is not None:
            return children
        with self._lock:
            if len(self._partitions) >= PARTITIONS_SHOWN:
                return self._labelled(topic, OTHER)
            children = self._labelled(topic, str(partition))
            return self._partitions.setdefault((topic, partition), children)

    def _labelled(self, *labels: str) -> _Seconds:
        return _Seconds(
            self._partition_gap_seconds.labels(*labels),
            self._partition_stalled_seconds.labels(*labels),
        )

    def count_records(self, fact: RecordsSettled) -> None:
        """One batch."""
        children = self._results.get(fact.topic)
        if children is None:
            acked = self._records.labels(fact.topic, "acked")
            failed = self._records.labels(fact.topic, "failed")
            children = self._results.setdefault(fact.topic, (acked, failed))
        if fact.acked:
            children[0].inc(fact.acked)
        if fact.failed:
            children[1].inc(fact.failed)

    def count_duration(self, gap: Gap) -> None:
        """A gap has ended: its phases are final."""
        for phase in Phase:
            seconds: float = getattr(gap, f"{phase.value}_s")
            self._gap_seconds.labels(gap.topic, phase.value).inc(seconds)
        if gap.ended_by is GapEnd.ACK:
            self._durations.labels(gap.topic, gap.cause.value).observe(gap.duration_s)

    def count_outcome(self, gap: Gap) -> None:
        """The records that met a gap are settled."""
        outcome = gap.outcome.value if gap.outcome else "unknown"
        self._gaps.labels(gap.topic, gap.cause.value, outcome).inc()

    def count_lane_change(self, fact: LaneChanged) -> None:
        """One partition took the other lane."""
        self._lane_changes.labels(fact.lane.value, fact.reason.value).inc()

    def throttle_seconds(self, node_id: int) -> Counter:
        """The node's counter, or the common one once the limit is reached."""
        with self._lock:
            child = self._nodes.get(node_id)
            if child is None:
                if len(self._nodes) >= NODES_SHOWN:
                    return self._throttle_seconds.labels(OTHER)
                name = str(node_id) if node_id >= 0 else BOOTSTRAP
                child = self._nodes[node_id] = self._throttle_seconds.labels(name)
            return child
