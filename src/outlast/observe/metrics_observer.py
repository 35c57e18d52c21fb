"""Facts as metrics, whoever shows them.

* `outlast_partition_gap_seconds_total` is the base of dashboards. It starts at 0 with a
  partition's first record, takes the backdated part of a gap at once and advances while the gap is
  open; a polled gauge would miss most short gaps.
* What can still change is not counted: phases are added when the gap has ended, its outcome and
  its records when the records that met it are settled. Counters never go back.
* The duration histogram takes gaps that ended in an ack, no others: the rest are censored.
* Connections are counted by role alone. A producer has at most one of each role to a broker, so a
  role's count shows both a leak and how many brokers need a slow lane; which ones is for the log
  and `health()`. Throttle is a broker's own quota, so it is told by node, of at most `NODES_SHOWN`:
  node ids are few, yet a cluster may renumber the nodes it replaces.
* Per batch one counter and one histogram are increased (1 µs), nothing per record.

A gap's number is of one producer, so each producer has an observer of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from opentelemetry.trace import SpanContext

from outlast.engine.messages import (
    AttemptFailed,
    BufferLevel,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    Fact,
    Gap,
    GapAdvanced,
    GapEnd,
    GapEnded,
    GapOpened,
    GapOutcome,
    GapSettled,
    LaneChanged,
    LeaderChanged,
    MetadataRefreshed,
    PartitionRestarted,
    PartitionSeen,
    Phase,
    RecordsSettled,
    SendersBlocked,
    Stall,
    StallAdvanced,
    StallEnded,
    StallOpened,
    Throttled,
    TopicGone,
)
from outlast.observe import metrics
from outlast.observe.metric_set import MetricSet, after_fork
from outlast.observe.metrics import OTHER, PHASE_NUMBERS

PARTITIONS_SHOWN = 1000
UNKNOWN_CODE = "UNKNOWN_CODE"
CLOSE_WAIT_S = 1.0


class Spans(Protocol):
    """Who makes the spans of gaps."""

    suppressed: int

    def span_context(self, gap_number: int) -> SpanContext | None:
        """Of a gap whose span is sampled."""


class MetricsObserver:
    """Turns one producer's facts into the series of a set.

    Args:
        shared: the set, of all producers of the process.
        delivery_timeout_s: the producer's retry budget, if it is to be shown.
        partition_limit: how many partitions have series of their own.
        spans: for exemplars, and for the count of gaps without a span.
    """

    hears_batches = True

    def __init__(
        self,
        shared: MetricSet,
        *,
        delivery_timeout_s: float | None = None,
        partition_limit: int = PARTITIONS_SHOWN,
        spans: Spans | None = None,
    ) -> None:
        self._set = shared
        self._limit = partition_limit
        self._budget_s = delivery_timeout_s
        self._spans = spans
        self._suppressed = 0  # of the spans' count, what was told
        self._gaps_told_s: dict[int, float] = {}  # seconds of each open gap that are counted
        self._stalls_told_s: dict[int, float] = {}  # and of each open stall
        self._open: dict[str, _OpenGaps] = {}  # by topic
        self._connections: dict[str, set[Connection]] = {}  # open ones, by role
        self._throttled_until_s: dict[Connection, float] = {}
        self._closed = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            RecordsSettled: self._records_settled,
            PartitionSeen: self._partition_seen,
            GapOpened: self._gap_opened,
            GapAdvanced: self._gap_advanced,
            GapEnded: self._gap_ended,
            GapSettled: self._gap_settled,
            StallOpened: self._stall_advanced,
            StallAdvanced: self._stall_advanced,
            StallEnded: self._stall_ended,
            AttemptFailed: self._attempt_failed,
            LeaderChanged: self._leader_changed,
            PartitionRestarted: self._restarted,
            MetadataRefreshed: self._refreshed,
            TopicGone: self._topic_gone,
            BufferLevel: self._buffer_level,
            SendersBlocked: self._senders_blocked,
            LaneChanged: self._lane_changed,
            Throttled: self._throttled,
            ConnectionOpened: self._connection_opened,
            ConnectionClosed: self._connection_closed,
        }
        with shared.lock:
            self._put(metrics.DELIVERY_TIMEOUT, delivery_timeout_s)
        after_fork.add(self)

    def __repr__(self) -> str:
        gaps, stalls = len(self._gaps_told_s), len(self._stalls_told_s)
        return f"<{type(self).__name__} open_gaps={gaps} open_stalls={stalls}>"

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Count these facts."""
        known = [(self._handlers[type(f)], f) for f in facts if type(f) in self._handlers]
        if not known:
            return
        with self._set.lock:
            if self._set.forked:
                self._set.show_all()
            for handler, fact in known:
                handler(fact)

    def close(self) -> None:
        """What was counted stays; what nobody will tell of any more is no part of a gauge."""
        lock = self._set.lock
        if not lock.acquire(timeout=CLOSE_WAIT_S):  # a backend that hangs holds it
            return
        try:
            self._closed = True
            self._set.forget(self)
        finally:
            lock.release()

    def begin_again(self) -> None:
        """In a forked child: its engine is a new one, which numbers its gaps from 1."""
        for told in (self._gaps_told_s, self._stalls_told_s, self._open, self._connections):
            told.clear()
        self._throttled_until_s.clear()
        if self._budget_s is not None and not self._closed:
            part = (self, None)
            self._set.joint(metrics.DELIVERY_TIMEOUT).parts[part] = self._budget_s

    def _put(
        self,
        metric: metrics.Metric,
        value: float | None,
        *labels: str,
        part: str | None = None,
    ) -> None:
        """This producer's part of a gauge."""
        if not self._closed:
            self._set.joint(metric, *labels).set((self, part), value)

    # --- records ---

    def _records_settled(self, fact: RecordsSettled) -> None:
        topic = self._set.topics.get(fact.topic)
        if topic is None:
            topic = self._set.topic(fact.topic)
            self._set.partition(fact.topic, fact.partition, self._limit)
        if fact.acked:
            topic.acked.inc(fact.acked)
            topic.send_duration.observe(fact.oldest_age_s)
        if fact.failed:
            topic.failed.inc(fact.failed)

    def _partition_seen(self, fact: PartitionSeen) -> None:
        self._set.partition(fact.topic, fact.partition, self._limit)

    def _topic_gone(self, fact: TopicGone) -> None:
        self._set.gone(fact.topic, fact.partition)

    # --- gaps and stalls ---

    def _gap_opened(self, fact: GapOpened) -> None:
        gap = fact.gap
        topic = self._set.topic(gap.topic).name
        self._set.child(metrics.GAP_DURATION, topic, gap.cause.value)  # begins at 0
        open_ = self._open.setdefault(gap.topic, _OpenGaps())
        open_.add(gap)
        self._put(metrics.OPEN_GAPS, len(open_.numbers), topic, part=gap.topic)
        self._count_gap(gap)
        self._show_age(open_, gap.topic, fact.at_s)
        if self._spans is not None:
            suppressed = self._spans.suppressed
            self._set.child(metrics.SPANS_SUPPRESSED).inc(suppressed - self._suppressed)
            self._suppressed = suppressed

    def _gap_advanced(self, fact: GapAdvanced) -> None:
        self._count_gap(fact.gap)
        open_ = self._open.get(fact.gap.topic)
        if open_ is not None and open_.is_oldest(fact.gap):
            self._show_age(open_, fact.gap.topic, fact.at_s)

    def _count_gap(self, gap: Gap) -> None:
        series = self._set.partition(gap.topic, gap.partition, self._limit)
        series.gap.inc(_more_s(self._gaps_told_s, gap))
        topic, partition = series.labels
        if partition != OTHER:
            phase = 0 if gap.phase is None else PHASE_NUMBERS[gap.phase]
            self._put(metrics.PARTITION_GAP_PHASE, phase, topic, partition)
            self._set.child(metrics.LAST_GAP_START, topic, partition).set(gap.begin_unix_s)
            self._set.child(metrics.LAST_GAP_DURATION, topic, partition).set(gap.duration_s)

    def _show_age(self, open_: _OpenGaps, topic: str, at_s: float) -> None:
        shown = self._set.topic(topic).name
        self._put(metrics.OPEN_GAP_SECONDS, at_s - open_.since_s(at_s), shown, part=topic)

    def _gap_ended(self, fact: GapEnded) -> None:
        gap = fact.gap
        self._count_gap(gap)
        self._gaps_told_s.pop(gap.number, None)
        topic = self._set.topic(gap.topic).name
        open_ = self._open.setdefault(gap.topic, _OpenGaps())
        open_.numbers.discard(gap.number)
        self._put(metrics.OPEN_GAPS, len(open_.numbers), topic, part=gap.topic)
        self._show_age(open_, gap.topic, fact.at_s)
        if not open_.numbers:
            del self._open[gap.topic]
        for phase in Phase:
            seconds: float = getattr(gap, f"{phase.value}_s")
            self._set.child(metrics.GAP_SECONDS, topic, phase.value).inc(seconds)
        if gap.ended_by is GapEnd.ACK:
            span = None if self._spans is None else self._spans.span_context(gap.number)
            duration = self._set.child(metrics.GAP_DURATION, topic, gap.cause.value)
            duration.observe(gap.duration_s, self._set.exemplar(span))

    def _gap_settled(self, fact: GapSettled) -> None:
        gap = fact.gap
        topic = self._set.topic(gap.topic).name
        outcome = gap.outcome or GapOutcome.ABANDONED
        self._set.child(metrics.GAPS, topic, gap.cause.value, outcome.value).inc(1)
        for fate in metrics.FATES:
            count: int = getattr(gap, f"records_{fate}")
            self._set.child(metrics.GAP_RECORDS, topic, fate).inc(count)

    def _stall_advanced(self, fact: StallOpened | StallAdvanced | StallEnded) -> None:
        stall = fact.stall
        series = self._set.partition(stall.topic, stall.partition, self._limit)
        series.stalled.inc(_more_s(self._stalls_told_s, stall))

    def _stall_ended(self, fact: StallEnded) -> None:
        self._stall_advanced(fact)
        self._stalls_told_s.pop(fact.stall.number, None)

    # --- what led to them ---

    def _attempt_failed(self, fact: AttemptFailed) -> None:
        topic = self._set.topic(fact.topic).name
        unknown = fact.error.startswith(UNKNOWN_CODE)  # and its number, of which there are 65 536
        error = UNKNOWN_CODE if unknown else fact.error
        self._set.child(metrics.VERDICTS, topic, fact.verdict, error).inc(1)

    def _leader_changed(self, fact: LeaderChanged) -> None:
        old = (fact.old_leader, fact.old_leader_epoch)
        new = (fact.new_leader, fact.new_leader_epoch)
        if fact.old_leader >= 0 and fact.new_leader >= 0 and old != new:
            topic = self._set.topic(fact.topic).name
            self._set.child(metrics.LEADER_CHANGES, topic).inc(1)

    def _restarted(self, fact: PartitionRestarted) -> None:
        topic = self._set.topic(fact.topic).name
        self._set.child(metrics.RESTARTS, topic, fact.reason).inc(1)

    def _refreshed(self, fact: MetadataRefreshed) -> None:
        result = "ok" if fact.ok else "failed"
        self._set.child(metrics.REFRESH_DURATION, result).observe(fact.duration_s)

    # --- buffer, lanes, connections ---

    def _buffer_level(self, fact: BufferLevel) -> None:
        self._put(metrics.BUFFER_BYTES, fact.used_bytes)
        self._put(metrics.BUFFER_LIMIT, fact.limit_bytes)
        headroom_s = math.inf if fact.headroom_s is None else fact.headroom_s
        self._put(metrics.BUFFER_HEADROOM, headroom_s)

    def _senders_blocked(self, fact: SendersBlocked) -> None:
        self._set.child(metrics.SEND_BLOCKED_SECONDS, fact.reason).inc(fact.blocked_s)

    def _lane_changed(self, fact: LaneChanged) -> None:
        self._set.child(metrics.LANE_CHANGES, fact.lane.value, fact.reason.value).inc(1)

    def _throttled(self, fact: Throttled) -> None:
        """Answers that were under way together tell of the same pause: no second counts twice."""
        until_s = self._throttled_until_s.get(fact.connection, fact.at_s)
        end_s = max(until_s, fact.at_s + fact.throttle_s)
        self._throttled_until_s[fact.connection] = end_s
        self._set.throttled(fact.connection.node_id).inc(end_s - max(until_s, fact.at_s))

    def _connection_opened(self, fact: ConnectionOpened) -> None:
        self._set.throttled(fact.connection.node_id).inc(0.0)
        role = fact.connection.role.value
        self._connections.setdefault(role, set()).add(fact.connection)
        self._put(metrics.CONNECTIONS, len(self._connections[role]), role)

    def _connection_closed(self, fact: ConnectionClosed) -> None:
        self._throttled_until_s.pop(fact.connection, None)
        role = fact.connection.role.value
        self._connections.setdefault(role, set()).discard(fact.connection)
        self._put(metrics.CONNECTIONS, len(self._connections[role]), role)


class _OpenGaps:
    """A topic's open gaps, the oldest at hand."""

    __slots__ = ("_begins", "numbers")

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self._begins: list[tuple[float, int]] = []  # a heap; ended ones stay until they are first

    def add(self, gap: Gap) -> None:
        """One more."""
        self.numbers.add(gap.number)
        heappush(self._begins, (gap.begin_s, gap.number))

    def is_oldest(self, gap: Gap) -> bool:
        """Whether none began before it."""
        return gap.begin_s <= self.since_s(gap.begin_s)

    def since_s(self, default_s: float) -> float:
        """When the oldest began."""
        while self._begins and self._begins[0][1] not in self.numbers:
            heappop(self._begins)
        return self._begins[0][0] if self._begins else default_s


def _more_s(told_s: dict[int, float], it: Gap | Stall) -> float:
    """The seconds of a gap or stall that were not told yet."""
    before_s = told_s.get(it.number, 0.0)
    told_s[it.number] = max(it.duration_s, before_s)
    return told_s[it.number] - before_s
