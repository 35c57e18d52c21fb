"""The list of metrics: names, kinds, labels, meanings. Backends make them, documents show them.

Names are Prometheus', with base units and `_total` on counters; `otel` is the same metric's name in
OpenTelemetry, where the unit stands beside it. Rules:

* Counters, not gauges, for what must not be missed: a polled gauge misses most gaps of a few
  seconds. Gauges tell how things stand now.
* The values of a label are few. Those in `closed` are all there are, and their series are made at
  0 with the topic's first record (or at once, where there is no topic): `rate()` does not see the
  first value of a series that is born above 0.
* A histogram has no partition: a thousand of them would be a page of 6 MB.
* `joins` tells what several producers of a process, and several processes, make of one gauge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from outlast.engine.messages import Cause, GapOutcome, LaneReason, Phase, Role

OTHER = "_other"  # the label of everything beyond a limit
BOOTSTRAP = "bootstrap"  # a broker whose number is not known yet

# labels by their names in OpenTelemetry: those of the spans
ATTRIBUTES = {
    "topic": "messaging.destination.name",
    "partition": "messaging.destination.partition.id",
    "error": "error.type",
    "cause": "outlast.gap.cause",
    "outcome": "outlast.gap.outcome",
    "phase": "outlast.gap.phase",
    "fate": "outlast.record.fate",
    "result": "outlast.result",
    "reason": "outlast.reason",
    "verdict": "outlast.verdict",
    "lane": "outlast.lane",
    "role": "outlast.connection.role",
    "node_id": "outlast.node.id",
}


class Kind(Enum):
    """What can be done with a metric's values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Joins(Enum):
    """What several producers and processes make of one gauge."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    RECENT = "mostrecent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        name: in Prometheus.
        labels: names of its labels.
        closed: labels of which all values are known, with these.
        help: what it counts.
        example: a query to begin with, in PromQL.
        buckets: upper edges of a histogram's buckets.
        joins: of a gauge, see `Joins`.
        otel: the name in OpenTelemetry.
        unit: in OpenTelemetry, by UCUM.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...] = ()
    closed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    help: str
    example: str
    buckets: tuple[float, ...] = ()
    joins: Joins = Joins.SUM
    otel: str
    unit: str


# Kafka's clocks are edges: back-off 0.1, KRaft session 9, request 30, max block 60, delivery 120
GAP_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120)
SEND_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 15, 20, 30, 60, 120),
)
REFRESH_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

CAUSES = tuple(cause.value for cause in Cause)
OUTCOMES = tuple(outcome.value for outcome in GapOutcome)
PHASES = tuple(phase.value for phase in Phase)
FATES = ("delivered", "expired", "failed", "refused")
RESULTS = ("acked", "failed")
REFRESH_RESULTS = ("ok", "failed")
RESTART_REASONS = ("expired", "refused", "resequence", "recreated")
BLOCKED_REASONS = ("memory", "share", "metadata")
ROLES = tuple(role.value for role in Role)
LANES = (Role.OPEN.value, Role.SLOW.value)
LANE_REASONS = tuple(reason.value for reason in LaneReason)
PHASE_NUMBERS = {phase: number for number, phase in enumerate(Phase, 1)}  # 0: accepting

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_PER_TOPIC, _PER_PARTITION = ("topic",), ("topic", "partition")

GAP_DURATION = Metric(
    name="outlast_gap_duration_seconds",
    kind=_H,
    labels=("topic", "cause"),
    closed={"cause": CAUSES},
    buckets=GAP_BUCKETS_S,
    help="How long gaps lasted that ended with an ack: from the first attempt that came to nothing "
    "to the first one accepted, per partition. Exemplars name the gap's trace.",
    example="histogram_quantile(0.99, sum by (le) (rate(outlast_gap_duration_seconds_bucket[1h])))",
    otel="outlast.gap.duration",
    unit="s",
)
GAPS = Metric(
    name="outlast_gaps_total",
    kind=_C,
    labels=("topic", "cause", "outcome"),
    closed={"cause": CAUSES, "outcome": OUTCOMES},
    help="Gaps whose records are all settled: absorbed (all delivered), reported (some failed) or "
    "abandoned (no end was seen).",
    example="sum by (cause, outcome) (increase(outlast_gaps_total[1h]))",
    otel="outlast.gap.count",
    unit="{gap}",
)
GAP_SECONDS = Metric(
    name="outlast_gap_seconds_total",
    kind=_C,
    labels=("topic", "phase"),
    closed={"phase": PHASES},
    help="Partition-seconds of ended gaps, by whose time it was.",
    example="sum by (phase) (increase(outlast_gap_seconds_total[1h]))",
    otel="outlast.gap.time",
    unit="s",
)
OPEN_GAPS = Metric(
    name="outlast_open_gaps",
    kind=_G,
    labels=_PER_TOPIC,
    help="Gaps that are open now.",
    example="sum by (topic) (outlast_open_gaps)",
    otel="outlast.gap.open.count",
    unit="{gap}",
)
OPEN_GAP_SECONDS = Metric(
    name="outlast_open_gap_seconds",
    kind=_G,
    labels=_PER_TOPIC,
    joins=Joins.MAX,
    help="How long the topic's longest open gap has lasted; 0 if none is open.",
    example="max by (topic) (outlast_open_gap_seconds) "
    "/ on () group_left () min(outlast_delivery_timeout_seconds)",
    otel="outlast.gap.open.age",
    unit="s",
)
DELIVERY_TIMEOUT = Metric(
    name="outlast_delivery_timeout_seconds",
    kind=_G,
    joins=Joins.MIN,
    help="The retry budget: how long a record may take, delivery_timeout_ms.",
    example="min(outlast_delivery_timeout_seconds)",
    otel="outlast.delivery.timeout",
    unit="s",
)
GAP_RECORDS = Metric(
    name="outlast_gap_records_total",
    kind=_C,
    labels=("topic", "fate"),
    closed={"fate": FATES},
    help="Records that met a gap, by what became of them: delivered after all, expired, failed or "
    "refused by send(). Counted when the last record of the gap is settled.",
    example='sum by (topic, fate) (increase(outlast_gap_records_total{fate!="delivered"}[1h]))',
    otel="outlast.gap.records",
    unit="{record}",
)
PARTITION_GAP_SECONDS = Metric(
    name="outlast_partition_gap_seconds_total",
    kind=_C,
    labels=_PER_PARTITION,
    help="Seconds in which the partition did not take this process's records; advances while a gap "
    "is open.",
    example="sum by (topic) (rate(outlast_partition_gap_seconds_total[1m]) > bool 0)",
    otel="outlast.partition.gap.time",
    unit="s",
)
PARTITION_STALLED_SECONDS = Metric(
    name="outlast_partition_stalled_seconds_total",
    kind=_C,
    labels=_PER_PARTITION,
    help="Seconds in which the partition's leader lived, rejected nothing and acknowledged "
    "nothing; advances while a stall is open. No second is in both.",
    example="sum by (topic) (rate(outlast_partition_stalled_seconds_total[1m]) > bool 0)",
    otel="outlast.partition.stall.time",
    unit="s",
)
PARTITION_GAP_PHASE = Metric(
    name="outlast_partition_gap_phase",
    kind=_G,
    labels=_PER_PARTITION,
    joins=Joins.MAX,
    help="Where the partition's gap stands: 0 accepting, "
    + ", ".join(f"{number} {phase.value}" for phase, number in PHASE_NUMBERS.items())
    + ". Only of partitions that had a gap.",
    example="max by (topic, partition) (outlast_partition_gap_phase) > 0",
    otel="outlast.partition.gap.phase",
    unit="{phase}",
)
LAST_GAP_START = Metric(
    name="outlast_partition_last_gap_start_time_seconds",
    kind=_G,
    labels=_PER_PARTITION,
    joins=Joins.RECENT,
    help="When the partition's last gap began, in seconds since 1970. Only of partitions that had "
    "one.",
    example="topk(20, outlast_partition_last_gap_start_time_seconds)",
    otel="outlast.partition.last_gap.start_time",
    unit="s",
)
LAST_GAP_DURATION = Metric(
    name="outlast_partition_last_gap_duration_seconds",
    kind=_G,
    labels=_PER_PARTITION,
    joins=Joins.RECENT,
    help="How long that gap lasted, or has lasted so far.",
    example="topk(20, outlast_partition_last_gap_duration_seconds)",
    otel="outlast.partition.last_gap.duration",
    unit="s",
)
RECORDS = Metric(
    name="outlast_records_total",
    kind=_C,
    labels=("topic", "result"),
    closed={"result": RESULTS},
    help="Records acknowledged or failed.",
    example="sum by (topic, result) (rate(outlast_records_total[1m]))",
    otel="outlast.records",
    unit="{record}",
)
SEND_DURATION = Metric(
    name="outlast_send_duration_seconds",
    kind=_H,
    labels=_PER_TOPIC,
    buckets=SEND_BUCKETS_S,
    help="From send() to the ack, retries included: of each batch that was delivered, its oldest "
    "record.",
    example="histogram_quantile(0.99, sum by (le) "
    "(rate(outlast_send_duration_seconds_bucket[5m])))",
    otel="outlast.send.duration",
    unit="s",
)
SEND_BLOCKED_SECONDS = Metric(
    name="outlast_send_blocked_seconds_total",
    kind=_C,
    labels=("reason",),
    closed={"reason": BLOCKED_REASONS},
    help="Seconds that threads waited in send(), added up: for room in the buffer (memory), for "
    "the partition's share of it (share), for the topic's metadata (metadata). Advances while they "
    "wait.",
    example="sum by (reason) (rate(outlast_send_blocked_seconds_total[1m]))",
    otel="outlast.send.blocked.time",
    unit="s",
)
REFRESH_DURATION = Metric(
    name="outlast_metadata_refresh_duration_seconds",
    kind=_H,
    labels=("result",),
    closed={"result": REFRESH_RESULTS},
    buckets=REFRESH_BUCKETS_S,
    help="How long metadata requests took, answered (ok) or not (failed).",
    example='rate(outlast_metadata_refresh_duration_seconds_count{result="failed"}[5m])',
    otel="outlast.metadata.refresh.duration",
    unit="s",
)
VERDICTS = Metric(
    name="outlast_verdicts_total",
    kind=_C,
    labels=("topic", "verdict", "error"),
    help="Attempts to deliver a batch that did not deliver it, by what was done about it and by "
    "the protocol name of the answer, or of the loss.",
    example="sum by (verdict, error) (increase(outlast_verdicts_total[1h]))",
    otel="outlast.verdicts",
    unit="{attempt}",
)
LEADER_CHANGES = Metric(
    name="outlast_leader_changes_total",
    kind=_C,
    labels=_PER_TOPIC,
    help="Partitions of which another leader, or another epoch of the same one, became known.",
    example="sum by (topic) (increase(outlast_leader_changes_total[1h]))",
    otel="outlast.leader.changes",
    unit="{change}",
)
RESTARTS = Metric(
    name="outlast_partition_restarts_total",
    kind=_C,
    labels=("topic", "reason"),
    closed={"reason": RESTART_REASONS},
    help="Partitions that began to number from 0 again, under the next producer epoch.",
    example="sum by (topic, reason) (increase(outlast_partition_restarts_total[1h]))",
    otel="outlast.partition.restarts",
    unit="{restart}",
)
BUFFER_BYTES = Metric(
    name="outlast_buffer_bytes",
    kind=_G,
    help="Bytes of the send buffer that are taken by records without an outcome. Told once a "
    "second; a last move of less than 1/128 of the buffer may be told 11 s late.",
    example="sum(outlast_buffer_bytes) / sum(outlast_buffer_limit_bytes)",
    otel="outlast.buffer.used",
    unit="By",
)
BUFFER_LIMIT = Metric(
    name="outlast_buffer_limit_bytes",
    kind=_G,
    help="Bytes of the send buffer in all, buffer_memory.",
    example="sum(outlast_buffer_limit_bytes)",
    otel="outlast.buffer.limit",
    unit="By",
)
BUFFER_HEADROOM = Metric(
    name="outlast_buffer_headroom_seconds",
    kind=_G,
    joins=Joins.MIN,
    help="How long the fullest buffer lasts if nothing leaves it and records keep coming at the "
    "rate of the last ten seconds; +Inf while none come.",
    example="min(outlast_buffer_headroom_seconds)",
    otel="outlast.buffer.headroom",
    unit="s",
)
LANE_CHANGES = Metric(
    name="outlast_lane_changes_total",
    kind=_C,
    labels=("lane", "reason"),
    closed={"lane": LANES, "reason": LANE_REASONS},
    help="Partitions that went over to the lane: slow because they are stuck, suspect or have a "
    "follower_down, open because acks are usual again, the leader moved, or nothing was written to "
    "it for a minute (idle). A suspect that turns out to be stuck is counted again.",
    example="sum by (lane, reason) (increase(outlast_lane_changes_total[1h]))",
    otel="outlast.lane.changes",
    unit="{change}",
)
THROTTLE_SECONDS = Metric(
    name="outlast_throttle_seconds_total",
    kind=_C,
    labels=("node_id",),
    help="Seconds for which a broker's quota kept a connection waiting; counted when told, "
    "overlaps once.",
    example="sum by (node_id) (rate(outlast_throttle_seconds_total[5m]))",
    otel="outlast.throttle.time",
    unit="s",
)
CONNECTIONS = Metric(
    name="outlast_connections",
    kind=_G,
    labels=("role",),
    closed={"role": ROLES},
    help="Open connections, by what they are for: open and slow lane, control (metadata, producer "
    "ids), probe (is a silent node alive?).",
    example="sum by (role) (outlast_connections)",
    otel="outlast.connections",
    unit="{connection}",
)
SPANS_SUPPRESSED = Metric(
    name="outlast_gap_spans_suppressed_total",
    kind=_C,
    help="Gaps without a span, because as many as may be were open.",
    example="increase(outlast_gap_spans_suppressed_total[1h])",
    otel="outlast.gap.spans.suppressed",
    unit="{span}",
)

METRICS: dict[str, Metric] = {
    metric.name: metric for metric in list(vars().values()) if isinstance(metric, Metric)
}
