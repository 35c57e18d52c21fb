"""Facts as OpenTelemetry spans: one root span per gap, by the API alone.

* A gap's span has a trace of its own: under the span that happens to be current it would hang
  beneath a random request.
* Times come from the gap's wall-clock anchor plus monotonic differences, so no span ends before it
  starts when the clock is set.
* The span ends with the gap but is exported when the records that met the gap are settled: only
  then is the outcome known. OpenTelemetry has no spans that are shown while open; an open gap is
  seen in the metrics and the log.
* Each change of phase is a span event, and the phases' sums are attributes too: on overflow an SDK
  drops the oldest events, so there are at most `EVENTS_KEPT`.
* A change of lane is an event of its partition's open gap, if it has one; else no span tells of it.
  These have a bound of their own, so that they cannot push a phase out.
* At most `SPANS_OPEN` spans are open at a time (an SDK's queue holds 2 048): metrics are the record
  of truth, traces are the examples. A gap without a span is counted in `suppressed`.
* A gap that was absorbed is no error; ERROR and `error.type` are for those that cost records.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, get_tracer
from opentelemetry.util.types import AttributeValue

from outlast.engine.messages import (
    Fact,
    Gap,
    GapAdvanced,
    GapEnd,
    GapEnded,
    GapOpened,
    GapOutcome,
    GapSettled,
    LaneChanged,
    Phase,
)

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SPANS_OPEN = 256
EVENTS_KEPT = 32
CLIENT_ID = "messaging.client.id"
ERROR_TYPE = "error.type"
PHASE = "outlast.gap.phase"  # name of the event, and of its attribute
LANE = "outlast.gap.lane"  # of the first attempt that came to nothing; and name of the event
LANE_REASON = "outlast.gap.lane.reason"

# every name in one place: messaging conventions are still in development
ATTRIBUTES_AT_START: dict[str, Callable[[Gap], AttributeValue | None]] = {
    "messaging.system": lambda _: "kafka",
    "messaging.destination.name": lambda gap: gap.topic,
    "messaging.destination.partition.id": lambda gap: str(gap.partition),
    "outlast.gap.number": lambda gap: gap.number,
    "outlast.gap.cause": lambda gap: gap.cause.value,
    "outlast.gap.trigger": lambda gap: gap.trigger,
    LANE: lambda gap: gap.lane or None,  # nothing may have been sent yet
    "outlast.gap.leader.id": lambda gap: gap.old_leader,
    "outlast.gap.leader_epoch": lambda gap: gap.old_leader_epoch,
    "outlast.gap.last_ack_age": lambda gap: gap.last_ack_age_s,
}
ATTRIBUTES_AT_END: dict[str, Callable[[Gap], AttributeValue | None]] = {
    LANE: lambda gap: gap.lane or None,
    "outlast.gap.duration": lambda gap: gap.duration_s,
    "outlast.gap.phase.detecting.duration": lambda gap: gap.detecting_s,
    "outlast.gap.phase.unavailable.duration": lambda gap: gap.unavailable_s,
    "outlast.gap.phase.reconnecting.duration": lambda gap: gap.reconnecting_s,
    "outlast.gap.phase.resuming.duration": lambda gap: gap.resuming_s,
    "outlast.gap.connecting.duration": lambda gap: gap.connecting_s,
    "outlast.gap.cluster.duration.min": lambda gap: gap.cluster_s_min,
    "outlast.gap.cluster.duration.max": lambda gap: gap.cluster_s_max,
    "outlast.gap.new_leader.id": lambda gap: gap.new_leader,
    "outlast.gap.new_leader_epoch": lambda gap: gap.new_leader_epoch,
    "outlast.gap.attempts": lambda gap: gap.attempts,
    "outlast.gap.metadata_refreshes": lambda gap: gap.metadata_refreshes,
    "outlast.gap.records.delivered": lambda gap: gap.records_delivered,
    "outlast.gap.records.expired": lambda gap: gap.records_expired,
    "outlast.gap.records.failed": lambda gap: gap.records_failed,
    "outlast.gap.records.refused": lambda gap: gap.records_refused,
    "outlast.gap.ended_by": lambda gap: gap.ended_by.value if gap.ended_by else None,
    "outlast.gap.outcome": lambda gap: gap.outcome.value if gap.outcome else None,
}
PHASE_CHANGES = "outlast.gap.phase_changes"
LANE_CHANGES = "outlast.gap.lane_changes"


class OtelObserver:
    """Turns one producer's gaps into spans of the tracer "outlast".

    Args:
        tracer_provider: None is the global one, also if it is set later.
        client_id: told in every span, if not empty.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, client_id: str = "") -> None:
        self._tracer = get_tracer("outlast", version("outlast"), tracer_provider, SCHEMA_URL)
        self._client_id = client_id
        self._spans: dict[int, _GapSpan] = {}  # by the gap's number
        self._open: dict[tuple[str, int], _GapSpan] = {}  # of gaps that have not ended
        self._at_exit = False
        self.suppressed = 0

    def __repr__(self) -> str:
        return f"<OtelObserver spans={len(self._spans)} suppressed={self.suppressed}>"

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Start, mark and end spans."""
        for fact in facts:
            match fact:
                case GapOpened():
                    self._start(fact)
                case GapAdvanced() | GapEnded():
                    if (span := self._spans.get(fact.gap.number)) is not None:
                        span.mark(fact.gap, fact.at_s)
                    if isinstance(fact, GapEnded):
                        self._open.pop((fact.gap.topic, fact.gap.partition), None)
                case LaneChanged():
                    if (span := self._open.get((fact.topic, fact.partition))) is not None:
                        span.mark_lane(fact)
                case GapSettled():
                    if (span := self._spans.pop(fact.gap.number, None)) is not None:
                        span.end(fact.gap)

    def close(self) -> None:
        """End the spans that are still open, as abandoned."""
        while self._spans:  # at exit another thread may still be telling facts
            self._spans.popitem()[1].abandon()
        self._open.clear()
        if self._at_exit:
            self._at_exit = False
            atexit.unregister(self.close)

    def trace_id(self, gap_number: int) -> str | None:
        """The trace of a gap whose span is open and sampled, in hexadecimal."""
        span = self._spans.get(gap_number)
        return None if span is None else span.trace_id

    def _start(self, fact: GapOpened) -> None:
        if len(self._spans) >= SPANS_OPEN:
            self.suppressed += 1
            return
        if not self._at_exit:
            # exit handlers run last first: registered now, ours comes before the SDK's
            self._at_exit = True
            atexit.register(self.close)
        gap = fact.gap
        attributes = _attributes(ATTRIBUTES_AT_START, gap)
        if self._client_id:
            attributes[CLIENT_ID] = self._client_id
        span = self._tracer.start_span(
            f"partition_gap {gap.topic}",
            context=Context(),  # empty: a root span
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            start_time=_unix_ns(gap, gap.begin_s),
        )
        gap_span = _GapSpan(span, gap)
        self._spans[gap.number] = self._open[gap.topic, gap.partition] = gap_span
        gap_span.mark(gap, fact.at_s)


class _GapSpan:
    """The span of one gap while it is open."""

    __slots__ = ("_changes", "_gap", "_lane_changes", "_phase", "_span")

    def __init__(self, span: Span, gap: Gap) -> None:
        self._span = span
        self._gap = gap  # as last told
        self._phase: Phase | None = Phase.DETECTING  # over by the time that a gap is told
        self._changes = self._lane_changes = 0

    @property
    def trace_id(self) -> str | None:
        context = self._span.get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else None

    def mark(self, gap: Gap, at_s: float) -> None:
        """An event, if the phase changed."""
        self._gap = gap
        if gap.phase is self._phase:
            return
        self._phase = gap.phase
        self._changes += 1
        if gap.phase is not None:
            name = gap.phase.value
        else:
            name = "accepted" if gap.ended_by is GapEnd.ACK else "ended"
        if self._changes < EVENTS_KEPT or gap.phase is None:  # the last place is the end's
            self._span.add_event(PHASE, {PHASE: name}, timestamp=_unix_ns(gap, at_s))

    def mark_lane(self, fact: LaneChanged) -> None:
        """An event: the partition took the other lane."""
        self._lane_changes += 1
        if self._lane_changes <= EVENTS_KEPT:
            attributes = {LANE: fact.lane.value, LANE_REASON: fact.reason.value}
            self._span.add_event(LANE, attributes, timestamp=_unix_ns(self._gap, fact.at_s))

    def end(self, gap: Gap) -> None:
        """Everything is known: the span ends when the gap did."""
        if self._span.is_recording():
            attributes = _attributes(ATTRIBUTES_AT_END, gap)
            attributes[PHASE_CHANGES] = self._changes
            attributes[LANE_CHANGES] = self._lane_changes
            if gap.outcome is not GapOutcome.ABSORBED:
                attributes[ERROR_TYPE] = gap.errors[-1] if gap.errors else gap.trigger
                self._span.set_status(StatusCode.ERROR)
            self._span.set_attributes(attributes)
        self._span.end(_unix_ns(gap, gap.begin_s + gap.duration_s))

    def abandon(self) -> None:
        """Nobody will tell what became of it: the span ends where it was last told."""
        if self._span.is_recording():
            self._span.set_attribute("outlast.gap.outcome", GapOutcome.ABANDONED.value)
        self.end(self._gap)


def _attributes(
    names: dict[str, Callable[[Gap], AttributeValue | None]], gap: Gap
) -> dict[str, AttributeValue]:
    values = ((name, value_of(gap)) for name, value_of in names.items())
    return {name: value for name, value in values if value is not None}


def _unix_ns(gap: Gap, at_s: float) -> int:
    return round(gap.begin_unix_s * 1e9) + round((at_s - gap.begin_s) * 1e9)
