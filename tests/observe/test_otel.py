"""Spans: one root span per gap, with the gap's own times and what became of its records."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, SamplingResult, StaticSampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from outlast.engine.gap import GapRecorder
from outlast.engine.messages import (
    Cause,
    Connection,
    ConnectionLost,
    ConnectionOpened,
    Fact,
    LaneChanged,
    LaneReason,
    Loss,
    MetadataRefreshed,
    Role,
)
from outlast.observe import span_ends
from outlast.observe.attributes import LANE
from outlast.observe.otel import EVENTS_KEPT, LINKS_KEPT, SPANS_OPEN, OtelObserver
from outlast.observe.span_ends import WAITING, SpanEnds, Trouble

UNIX_S = 1_700_000_000.0
TP = ("orders", 3)


class Traced:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = OtelObserver(self.provider, client_id="billing")
        self.gaps = GapRecorder(UNIX_S)

    @property
    def spans(self) -> list[ReadableSpan]:
        assert self.observer.tracing.ends.drain(10)
        return list(self.exporter.get_finished_spans())

    def refused(self, sent_s: float, now: float, tp: tuple[str, int] = TP) -> None:
        self.observer(refused(self.gaps, sent_s, now, tp))

    def evidence(self, now: float) -> None:
        self.observer(self.gaps.evidence(TP, leader=2, leader_epoch=8, now=now))

    def accepted(self, sent_s: float, now: float) -> None:
        self.observer(self.gaps.sent(TP, sent_s))
        self.observer(self.gaps.accepted(TP, sent_s=sent_s, leader=2, leader_epoch=8, now=now))


def refused(gaps: GapRecorder, sent_s: float, now: float, tp: tuple[str, int] = TP) -> list[Fact]:
    return gaps.refused(
        tp,
        cause=Cause.NOT_LEADER,
        trigger="NOT_LEADER_OR_FOLLOWER",
        sent_s=sent_s,
        lane="open",
        leader=1,
        leader_epoch=7,
        last_ack_s=4.0,
        now=now,
    )


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.observer.close()
    traced.provider.shutdown()


def ns(at_s: float) -> int:
    return int(UNIX_S) * 10**9 + round(at_s * 1e9)


def test_an_absorbed_gap_is_one_root_span_without_an_error(traced: Traced) -> None:
    with traced.provider.get_tracer("app").start_as_current_span("request"):
        traced.refused(sent_s=5.0, now=5.25)
        traced.evidence(6.0)
        traced.accepted(sent_s=6.5, now=7.0)
        span = traced.spans[0]
    assert span.name == "partition_gap orders"
    assert span.kind is SpanKind.INTERNAL
    assert span.parent is None
    assert (span.start_time, span.end_time) == (ns(5.0), ns(7.0))
    assert span.status.status_code is StatusCode.UNSET
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "outlast"
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.client.id": "billing",
        "outlast.gap.number": 1,
        "outlast.gap.cause": "not_leader",
        "outlast.gap.trigger": "NOT_LEADER_OR_FOLLOWER",
        "outlast.gap.leader.id": 1,
        "outlast.gap.leader_epoch": 7,
        "outlast.gap.last_ack_age": 1.0,
        "outlast.gap.duration": 2.0,
        "outlast.gap.phase.detecting.duration": 0.25,
        "outlast.gap.phase.unavailable.duration": 0.75,
        "outlast.gap.phase.reconnecting.duration": 0.5,
        "outlast.gap.phase.resuming.duration": 0.5,
        "outlast.gap.connecting.duration": 0.0,
        "outlast.gap.cluster.duration.min": 0.0,
        "outlast.gap.cluster.duration.max": pytest.approx(1.1),
        "outlast.gap.new_leader.id": 2,
        "outlast.gap.new_leader_epoch": 8,
        "outlast.gap.attempts": 2,
        "outlast.gap.metadata_refreshes": 0,
        "outlast.gap.records.delivered": 0,
        "outlast.gap.records.expired": 0,
        "outlast.gap.records.failed": 0,
        "outlast.gap.records.refused": 0,
        "outlast.gap.ended_by": "ack",
        "outlast.gap.outcome": "absorbed",
        "outlast.gap.phase_changes": 4,
        "outlast.gap.lane": "open",
        "outlast.gap.lane_changes": 0,
    }
    told = [
        (dict(event.attributes or {})["outlast.gap.phase"], event.timestamp)
        for event in span.events
    ]
    assert told == [
        ("unavailable", ns(5.25)),
        ("reconnecting", ns(6.0)),
        ("resuming", ns(6.5)),
        ("accepted", ns(7.0)),
    ]


def test_the_span_waits_for_the_outcome_and_ends_with_the_gap(traced: Traced) -> None:
    traced.refused(sent_s=5.0, now=5.25)
    number = traced.gaps.met(TP)
    assert number is not None
    traced.gaps.joined(number)
    traced.accepted(sent_s=6.5, now=7.0)
    assert traced.spans == []
    traced.observer(traced.gaps.settled(number, "expired", 4, 90.0))
    (span,) = traced.spans
    assert span.end_time == ns(7.0)
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "NOT_LEADER_OR_FOLLOWER"
    assert span.attributes["outlast.gap.outcome"] == "reported"
    assert span.attributes["outlast.gap.records.expired"] == 4


def test_close_ends_an_open_gap_as_abandoned(traced: Traced) -> None:
    traced.refused(sent_s=5.0, now=5.25)
    traced.observer(traced.gaps.tick(8.0))
    traced.observer.close()
    traced.observer.close()
    (span,) = traced.spans
    assert span.end_time == ns(8.0)  # when it was last told
    assert span.attributes is not None
    assert span.attributes["outlast.gap.outcome"] == "abandoned"
    assert span.status.status_code is StatusCode.ERROR


def test_a_forked_child_begins_anew(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    traced.refused(sent_s=5.0, now=5.25)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    traced.observer(refused(GapRecorder(UNIX_S), sent_s=8.0, now=8.5))  # number 1 again
    traced.observer.close()
    (span,) = traced.spans
    assert span.start_time == ns(8.0)
    monkeypatch.undo()
    traced.observer.close()


def test_events_are_bounded_and_the_first_and_the_last_survive(traced: Traced) -> None:
    traced.refused(sent_s=5.0, now=5.25)
    for round_ in range(100):
        at = 6.0 + round_
        traced.evidence(at)
        traced.observer(traced.gaps.sent(TP, at + 0.1))
        traced.refused(sent_s=at + 0.1, now=at + 0.2)
    traced.accepted(sent_s=200.0, now=201.0)
    (span,) = traced.spans
    assert len(span.events) == EVENTS_KEPT
    assert span.events[0].timestamp == ns(5.25)
    assert span.events[-1].timestamp == ns(201.0)
    assert span.attributes is not None
    assert span.attributes["outlast.gap.phase_changes"] == 303


def lane_changed(at_s: float, lane: Role, reason: LaneReason, partition: int = 3) -> list[Fact]:
    return [LaneChanged(at_s, "orders", partition, 2, lane, reason)]


def test_a_change_of_lane_is_an_event_of_the_open_gap(traced: Traced) -> None:
    traced.observer(lane_changed(4.0, Role.SLOW, LaneReason.STUCK))  # no gap yet
    traced.refused(sent_s=5.0, now=5.25)
    number = traced.gaps.met(TP)
    assert number is not None
    traced.gaps.joined(number)
    traced.observer(lane_changed(6.0, Role.SLOW, LaneReason.FOLLOWER_DOWN))
    traced.observer(lane_changed(6.0, Role.SLOW, LaneReason.FOLLOWER_DOWN, partition=4))
    traced.accepted(sent_s=6.5, now=7.0)
    traced.observer(lane_changed(8.0, Role.OPEN, LaneReason.USUAL))  # it is over
    traced.observer(traced.gaps.settled(number, "delivered", 1, 9.0))
    (span,) = traced.spans
    told = [(dict(e.attributes or {}), e.timestamp) for e in span.events if e.name == LANE]
    attributes = {"outlast.gap.lane": "slow", "outlast.gap.lane.reason": "follower_down"}
    assert told == [(attributes, ns(6.0))]
    assert span.attributes is not None
    assert span.attributes["outlast.gap.lane"] == "open"  # of the first attempt that failed
    assert span.attributes["outlast.gap.lane_changes"] == 1


def test_the_lane_is_told_also_if_nothing_could_be_sent_at_first(traced: Traced) -> None:
    traced.observer(
        traced.gaps.refused(
            TP,
            cause=Cause.CONNECTION_LOST,
            trigger="CONNECTION_REFUSED",
            sent_s=5.0,
            leader=1,
            leader_epoch=7,
            last_ack_s=None,
            now=5.25,
        )
    )
    traced.refused(sent_s=6.0, now=6.25)
    traced.accepted(sent_s=6.5, now=7.0)
    (span,) = traced.spans
    assert span.attributes is not None
    assert span.attributes["outlast.gap.lane"] == "open"


def test_changes_of_lane_are_bounded_and_leave_the_phases_alone(traced: Traced) -> None:
    traced.refused(sent_s=5.0, now=5.25)
    for n in range(500):
        traced.observer(lane_changed(6.0 + n, Role.SLOW, LaneReason.STUCK))
    traced.accepted(sent_s=600.0, now=601.0)
    (span,) = traced.spans
    assert len(span.events) < 100
    assert span.events[0].timestamp == ns(5.25)
    assert span.events[-1].timestamp == ns(601.0)
    assert span.attributes is not None
    assert span.attributes["outlast.gap.lane_changes"] == 500


def test_open_spans_are_bounded_and_the_rest_counted(traced: Traced) -> None:
    for partition in range(SPANS_OPEN + 5):
        traced.refused(sent_s=5.0, now=5.25, tp=("orders", partition))
    assert traced.observer.suppressed == 5
    traced.observer(traced.gaps.close(6.0))
    assert len(traced.spans) == SPANS_OPEN
    traced.refused(sent_s=7.0, now=7.25)
    assert traced.observer.suppressed == 5


def test_spans_that_nobody_records_are_not_counted() -> None:
    for provider in (None, TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)):
        observer, gaps = OtelObserver(provider), GapRecorder(UNIX_S)
        for partition in range(SPANS_OPEN + 5):
            observer(refused(gaps, 5.0, 5.25, ("orders", partition)))
        assert observer.suppressed == 0


def send(number: int) -> SpanContext:
    return SpanContext(number, number, is_remote=False, trace_flags=TraceFlags(1))


@pytest.mark.parametrize(
    ("failed_first", "linked"),
    [(0, range(LINKS_KEPT - 1)), (100, [*range(LINKS_KEPT - 1), 100]), (3, range(LINKS_KEPT - 1))],
)
def test_a_gap_links_to_few_records_and_a_delivered_one(
    traced: Traced, failed_first: int, linked: Sequence[int]
) -> None:
    traced.refused(sent_s=5.0, now=5.25)
    traced.observer(traced.gaps.tick(6.0))
    contexts = [
        traced.observer.link(1, send(n + 1), delivered=n >= failed_first) for n in range(200)
    ]
    assert traced.observer.link(2, send(999), delivered=True) is None  # no such gap
    traced.accepted(sent_s=6.5, now=7.0)
    (span,) = traced.spans
    assert contexts == [span.context] * 200
    assert [link.context.span_id - 1 for link in span.links] == list(linked)
    assert traced.observer.link(1, send(9), delivered=True) == span.context  # also when it is over


def test_the_brokers_and_the_cluster_are_named(traced: Traced) -> None:
    traced.observer(
        [
            ConnectionOpened(1.0, Connection(1, Role.OPEN, 1), "kafka-1.example:9092", 0.01),
            ConnectionOpened(1.0, Connection(-1, Role.CONTROL, 1), "seed.example:9092", 0.01),
            MetadataRefreshed(1.0, 1, 0.01, True, cluster_id="4L6g3nShT-eMCtK--X86sw"),
        ]
    )
    traced.refused(sent_s=5.0, now=5.25)
    lost = Connection(2, Role.OPEN, 2)
    traced.observer([ConnectionLost(6.0, lost, "[2001:db8::2]:9093", Loss.REFUSED, "", 0)])
    traced.accepted(sent_s=6.5, now=7.0)
    (span,) = traced.spans
    assert span.attributes is not None
    assert span.attributes["messaging.kafka.cluster.id"] == "4L6g3nShT-eMCtK--X86sw"
    assert span.attributes["server.address"] == "kafka-1.example"
    assert span.attributes["server.port"] == 9092
    assert span.attributes["network.peer.address"] == "2001:db8::2"
    assert span.attributes["network.peer.port"] == 9093


def test_a_sampler_sees_what_is_known_at_the_opening() -> None:
    class Sampler(StaticSampler):
        seen: dict[str, object] = {}  # noqa: RUF012

        def should_sample(self, *args: object, **keywords: object) -> SamplingResult:
            type(self).seen = dict(args[4])  # type: ignore[call-overload]
            return super().should_sample(*args, **keywords)

    provider = TracerProvider(sampler=Sampler(Decision.DROP), shutdown_on_exit=False)
    observer, gaps = OtelObserver(provider, "billing"), GapRecorder(UNIX_S)
    observer([ConnectionOpened(1.0, Connection(1, Role.OPEN, 1), "kafka-1:9092", 0.01)])
    observer(refused(gaps, 5.0, 5.25))
    assert set(Sampler.seen) >= {
        "messaging.system",
        "messaging.destination.name",
        "messaging.destination.partition.id",
        "messaging.client.id",
        "server.address",
        "server.port",
        "outlast.gap.cause",
        "outlast.gap.trigger",
        "outlast.gap.leader.id",
        "outlast.gap.leader_epoch",
        "outlast.gap.last_ack_age",
    }


def test_the_documents_sampler_keeps_gaps() -> None:
    page = Path(__file__).parents[2] / "docs" / "observability.md"
    found = re.search(
        r"```python\n(from opentelemetry.*?class KeepGaps.*?)```",
        page.read_text("utf-8"),
        re.DOTALL,
    )
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    provider = TracerProvider(sampler=names["KeepGaps"](), shutdown_on_exit=False)
    observer, gaps = OtelObserver(provider), GapRecorder(UNIX_S)
    for partition in range(50):
        observer(refused(gaps, 5.0, 5.25, ("orders", partition)))
    assert all(observer.span_of(number) for number in range(1, 51))
    tracer = provider.get_tracer("app")
    assert sum(tracer.start_span("request").is_recording() for _ in range(300)) < 50
    observer.close()


class Hanging(NonRecordingSpan):
    """Its end takes until it is let go."""

    def __init__(self) -> None:
        super().__init__(send(1))
        self.begun, self.let_go = threading.Event(), threading.Event()

    def end(self, _end_time: int | None = None) -> None:
        self.begun.set()
        self.let_go.wait(60)


def test_an_end_that_hangs_is_told_when_another_comes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, span = SpanEnds(Trouble()), Hanging()
    try:
        ends.end(span, 1)
        assert span.begun.wait(10)
        ends.end(span, 1)
        assert caplog.records == []
        monkeypatch.setattr(span_ends, "HANGS_S", -1.0)
        ends.end(span, 1)
        ends.end(span, 1)
        assert len(caplog.records) == 1
        assert "exporter hangs" in caplog.text
    finally:
        span.let_go.set()
    ends.close()


def test_what_hangs_at_the_end_of_spans_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    ends, span = SpanEnds(Trouble()), Hanging()
    try:
        for _ in range(3 * WAITING):
            ends.end(span, 1)
        assert repr(ends) in (f"<SpanEnds waiting={n}>" for n in (WAITING - 1, WAITING))
        assert not ends.drain(0.01)
        ends.close(0.01)
    finally:
        span.let_go.set()
    assert [r.name for r in caplog.records] == ["outlast"]
    assert "exporter hangs" in caplog.text


def test_the_trace_is_told_only_of_a_sampled_span(traced: Traced) -> None:
    traced.refused(sent_s=5.0, now=5.25)
    told = traced.observer.span_of(1)
    assert told is not None
    traced.observer(traced.gaps.close(6.0))
    assert traced.observer.span_of(1) == told  # for exemplars, which come at the end
    context = traced.spans[0].context
    assert context is not None
    assert told == (f"{context.trace_id:032x}", f"{context.span_id:016x}")

    unsampled = OtelObserver(TracerProvider(sampler=ALWAYS_OFF))
    unsampled(refused(GapRecorder(UNIX_S), 1.0, 2.0))
    assert unsampled.span_of(1) is None
    unsampled.close()


def test_without_an_sdk_nothing_happens_and_nothing_breaks() -> None:
    assert not isinstance(trace.get_tracer_provider(), TracerProvider)
    observer, gaps = OtelObserver(), GapRecorder(UNIX_S)
    observer(refused(gaps, 5.0, 5.25))
    observer(gaps.tick(9.0))
    observer(gaps.close(10.0))
    observer.close()
