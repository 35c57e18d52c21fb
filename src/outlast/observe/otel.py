"""Facts as OpenTelemetry spans: one root span per gap, by the API alone.

* A gap's span has a trace of its own: under the span that happens to be current it would hang
  beneath a random request.
* Times come from the gap's wall-clock anchor plus monotonic differences, so no span ends before it
  starts when the clock is set.
* The span ends with the gap but is exported when the records that met the gap are settled: only
  then is the outcome known. OpenTelemetry has no spans that are shown while open; an open gap is
  seen in the metrics and the log. `close` and the interpreter's exit end what is open as abandoned.
* Each change of phase is a span event, and the phases' sums are attributes too: on overflow an SDK
  drops the oldest events, so there are at most `EVENTS_KEPT`.
* A change of lane is an event of its partition's open gap, if it has one; else no span tells of it.
  These have a bound of their own, so that they cannot push a phase out.
* Records that met the gap link to it. The gap links to `LINKS_KEPT` of them at most: the first that
  were settled, and a delivered one (on overflow an SDK would drop the oldest).
* At most `SPANS_OPEN` spans are open at a time (an SDK's queue holds 2 048): metrics are the record
  of truth, traces are the examples. A gap without a span is counted in `suppressed`. Spans that
  nobody records (no SDK, not sampled) are not kept.
* A gap that was absorbed is no error; ERROR and `error.type` are for those that cost records.
* What the tracer raises ends here, and spans are ended on another thread (`span_ends.py`).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind, StatusCode, TracerProvider

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
from outlast.observe.attributes import (
    ERROR_TYPE,
    GAP_AT_END,
    GAP_AT_START,
    LANE,
    LANE_CHANGES,
    LANE_REASON,
    OUTCOME,
    PHASE,
    PHASE_CHANGES,
    Attributes,
    gap_attributes,
)
from outlast.observe.tracing import Tracing

SPANS_OPEN = 256
EVENTS_KEPT = 32
LINKS_KEPT = 8
CONTEXTS_KEPT = 1024  # of gaps that are over, for records and exemplars that come later


class OtelObserver:
    """Turns one producer's gaps into spans of the tracer "outlast".

    Args:
        tracer_provider: None is the global one, also if it is set later.
        client_id: told in every span, if not empty.

    Attributes:
        suppressed: gaps that have no span because too many others were open.
        tracing: what these spans have in common with others of this producer.
    """

    hears_batches = False

    def __init__(self, tracer_provider: TracerProvider | None = None, client_id: str = "") -> None:
        self.tracing = Tracing(tracer_provider, client_id)
        self.suppressed = 0
        self._forget()

    def __repr__(self) -> str:
        return f"<OtelObserver spans={len(self._spans)} suppressed={self.suppressed}>"

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._spans: dict[int, _GapSpan] = {}  # by the gap's number
        self._open: dict[tuple[str, int], _GapSpan] = {}  # of gaps that have not ended
        self._contexts: dict[int, SpanContext] = {}  # by number, of sampled ones
        self._at_exit = False

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Start, mark and end spans."""
        if self._pid != os.getpid():
            self._forget()  # forked: the parent ends its own, and the numbers begin again
        for fact in facts:
            self.tracing.hear(fact)
            with self.tracing.trouble:
                self._hear(fact)

    def _hear(self, fact: Fact) -> None:
        match fact:
            case GapOpened():
                self._start(fact)
            case GapAdvanced() | GapEnded():
                if isinstance(fact, GapEnded):
                    self._open.pop((fact.gap.topic, fact.gap.partition), None)
                if (span := self._spans.get(fact.gap.number)) is not None:
                    span.mark(fact.gap, fact.at_s)
            case LaneChanged():
                if (span := self._open.get((fact.topic, fact.partition))) is not None:
                    span.mark_lane(fact)
            case GapSettled():
                if (span := self._spans.pop(fact.gap.number, None)) is not None:
                    span.end(fact.gap)
                if not self._spans:
                    self._leave_exit()

    def close(self) -> None:
        """End the spans that are still open, as abandoned, and have them exported."""
        if self._pid != os.getpid():
            return
        for number in list(self._spans):  # at exit another thread may still be telling facts
            if (span := self._spans.pop(number, None)) is not None:
                span.abandon()
        self._open.clear()
        self._leave_exit()
        self.tracing.ends.close()

    def span_of(self, gap_number: int) -> tuple[str, str] | None:
        """The trace and the span of a gap, in hexadecimal, if it is sampled."""
        context = self.span_context(gap_number)
        if context is None:
            return None
        return f"{context.trace_id:032x}", f"{context.span_id:016x}"

    def span_context(self, gap_number: int) -> SpanContext | None:
        """The span of a gap, if it is sampled and not long over."""
        return self._contexts.get(gap_number)

    def link(self, number: int, send: SpanContext, *, delivered: bool) -> SpanContext | None:
        """This send met that gap: the gap links to it, if it is among the first; gives the gap's
        span, to be linked to.
        """
        span = self._spans.get(number)
        if span is not None:
            span.link(send, delivered=delivered)
        return self._contexts.get(number)

    def _start(self, fact: GapOpened) -> None:
        if len(self._spans) >= SPANS_OPEN:
            self.suppressed += 1
            return
        gap = fact.gap
        span = self.tracing.tracer.start_span(
            f"partition_gap {gap.topic}",
            context=Context(),  # empty: a root span
            kind=SpanKind.INTERNAL,
            attributes={
                **self.tracing.common(gap.topic),
                **self.tracing.server(gap.old_leader),
                **gap_attributes(GAP_AT_START, gap),
            },
            start_time=_unix_ns(gap, gap.begin_s),
        )
        if not span.is_recording():
            return
        if not self._spans:
            # Exit handlers run last first. There is an SDK by now, so ours comes before its own.
            self._at_exit = True
            atexit.register(self.close)
        gap_span = _GapSpan(span, gap, self.tracing)
        self._spans[gap.number] = self._open[gap.topic, gap.partition] = gap_span
        context = span.get_span_context()
        if context.trace_flags.sampled:
            self._contexts[gap.number] = context
            if len(self._contexts) > CONTEXTS_KEPT:
                del self._contexts[next(iter(self._contexts))]
        gap_span.mark(gap, fact.at_s)

    def _leave_exit(self) -> None:
        if self._at_exit:
            self._at_exit = False
            atexit.unregister(self.close)


class _GapSpan:
    """The span of one gap while it is open."""

    __slots__ = (
        "_changes",
        "_delivered",
        "_gap",
        "_lane_changes",
        "_links",
        "_phase",
        "_span",
        "_tracing",
    )

    def __init__(self, span: Span, gap: Gap, tracing: Tracing) -> None:
        self._span = span
        self._gap = gap  # as last told
        self._tracing = tracing
        self._phase: Phase | None = Phase.DETECTING  # over by the time that a gap is told
        self._changes = self._lane_changes = self._links = 0
        self._delivered = False  # a delivered record is linked

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

    def link(self, send: SpanContext, *, delivered: bool) -> None:
        """A record met the gap. The last place is for a delivered one, if there is none yet."""
        wanted = LINKS_KEPT if delivered and not self._delivered else LINKS_KEPT - 1
        if self._links < wanted:
            self._links += 1
            self._delivered = self._delivered or delivered
            self._span.add_link(send)

    def end(self, gap: Gap) -> None:
        """Everything is known: the span ends when the gap did."""
        attributes: Attributes = {
            **self._tracing.common(gap.topic),  # the cluster may be known by now
            **self._tracing.server(gap.old_leader),
            **self._tracing.peer(gap.new_leader),
            **gap_attributes(GAP_AT_END, gap),
            PHASE_CHANGES: self._changes,
            LANE_CHANGES: self._lane_changes,
        }
        if gap.outcome is None:
            attributes[OUTCOME] = GapOutcome.ABANDONED.value
        with self._tracing.trouble:
            if gap.outcome is not GapOutcome.ABSORBED:
                attributes[ERROR_TYPE] = gap.errors[-1] if gap.errors else gap.trigger
                self._span.set_status(StatusCode.ERROR)
            self._span.set_attributes(attributes)
        self._tracing.end(self._span, _unix_ns(gap, gap.begin_s + gap.duration_s))

    def abandon(self) -> None:
        """Nobody will tell what became of it: the span ends where it was last told."""
        self.end(self._gap)


def _unix_ns(gap: Gap, at_s: float) -> int:
    return round(gap.begin_unix_s * 1e9) + round((at_s - gap.begin_s) * 1e9)
