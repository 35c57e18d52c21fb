"""Send spans: from `send()` to the outcome, one trace in the record, no record pays for them."""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.serializer import Serializer
from opentelemetry import context as otel_context, propagate
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outlast import KafkaProducer
from outlast.engine.messages import GapOutcome
from outlast.errors import BlockedError
from outlast.observe.attributes import COMMON, SEND
from outlast.observe.otel import LINKS_KEPT, OtelObserver
from outlast.observe.send_spans import SendSpans
from outlast.observe.tracing import Tracing
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.faults import Error, Slow
from outlast.testing.server import ClusterServer
from tests.observe.spans import Recorded, wait_for

_topics = itertools.count(1)
Header = tuple[str, bytes]
FOREIGN = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


@pytest.fixture(scope="module")
def server() -> Iterator[ClusterServer]:
    settings = ClusterSettings(fetch_backoff_p=0.0, deny_p=0.0, creation_deny_p=0.0)
    with ClusterServer(MockCluster(3, settings=settings, rng=random.Random(1))) as server:
        yield server


class World:
    """A producer that traces, its spans, and a topic of its own."""

    def __init__(self, server: ClusterServer) -> None:
        self.server = server
        self.topic = f"t{next(_topics)}"
        server.create_topic(self.topic, 1)
        self.recorded = Recorded()
        self.made: list[KafkaProducer] = []

    def producer(self, **keywords: Any) -> KafkaProducer:
        defaults: dict[str, Any] = {
            "bootstrap_servers": self.server.bootstrap,
            "metrics_registry": None,
            "tracer_provider": self.recorded.provider,
            "client_id": "billing",
            "retry_backoff_ms": 10,
        }
        self.made.append(KafkaProducer(**{**defaults, **keywords}))
        return self.made[-1]

    def sends(self, count: int = 1) -> list[ReadableSpan]:
        """The send spans, once there are so many."""
        wait_for(lambda: len(self.recorded.named("send")) >= count)
        return self.recorded.named("send")

    def headers(self) -> list[list[tuple[str, bytes | None]]]:
        """Of each record in the log."""
        return [list(record.headers) for record in self.server.records(self.topic, 0)]

    def strike(self, *faults: Any) -> None:
        self.server.call(lambda cluster, _: cluster.faults.extend(faults))


@pytest.fixture
def world(server: ClusterServer) -> Iterator[World]:
    world = World(server)
    yield world
    for producer in world.made:
        producer.close(2)
    server.call(lambda cluster, _: cluster.faults.clear())
    world.recorded.provider.shutdown()


def traceparent(span: ReadableSpan | SpanContext) -> Header:
    context = span if isinstance(span, SpanContext) else span.context
    assert context is not None
    flags = f"{context.trace_flags:02x}"
    return "traceparent", f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}".encode()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_without_a_span_of_the_sender_there_is_none_and_no_header(world: World) -> None:
    producer = world.producer()
    producer.send(world.topic, b"v").get(10)
    assert world.headers() == [[]]
    producer.close()
    assert world.recorded.named() == []


def test_the_span_tells_where_the_record_went_and_the_record_carries_it(world: World) -> None:
    producer = world.producer()
    producer.send(world.topic, b"before").get(10)
    given = [("id", b"7")]
    with world.recorded.tracer.start_as_current_span("request") as request:
        producer.send(world.topic, b"v", headers=given).get(10)
        producer.send(world.topic, key=b"k", partition=0).get(10)
    first, second = world.sends(2)
    assert first.name == f"send {world.topic}"
    assert first.kind is SpanKind.PRODUCER
    assert first.parent == request.get_span_context()
    assert first.status.status_code is StatusCode.UNSET
    assert first.instrumentation_scope is not None
    assert first.instrumentation_scope.name == "outlast"
    assert first.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"
    node_id, _ = world.server.leader(world.topic, 0)
    address = world.server.call(lambda cluster, _: cluster.addresses[node_id])
    assert attributes(first) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": world.topic,
        "messaging.destination.partition.id": "0",
        "messaging.client.id": "billing",
        "messaging.kafka.cluster.id": world.server.call(lambda cluster, _: cluster.cluster_id),
        "messaging.kafka.offset": 1,
        "server.address": address[0],
        "server.port": address[1],
        "network.peer.address": address[0],
        "network.peer.port": address[1],
    }
    assert attributes(second)["messaging.kafka.message.tombstone"] is True
    documented = set(COMMON) | set(SEND)
    assert set(attributes(first)) | set(attributes(second)) == documented - {
        "error.type",
        "messaging.batch.message_count",
    }
    assert world.headers() == [
        [],
        [("id", b"7"), traceparent(first)],
        [traceparent(second)],
    ]
    assert given == [("id", b"7")]


def test_the_span_lasts_until_the_outcome_is_known(world: World) -> None:
    producer = world.producer()
    producer.send(world.topic, b"before").get(10)
    world.strike(Slow(0.3, api=0, times=1))
    with world.recorded.tracer.start_as_current_span("request"):
        future = producer.send(world.topic, b"v")
        assert world.recorded.named("send") == []
    future.get(10)
    (span,) = world.sends()
    (request,) = world.recorded.named("request")
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time - span.start_time >= 0.3e9
    assert request.end_time is not None
    assert span.end_time > request.end_time


def test_a_forked_child_leaves_it_to_its_parent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = world.producer()
    producer.send(world.topic, b"before").get(10)
    world.strike(Slow(0.1, api=0, times=1))
    with world.recorded.tracer.start_as_current_span("request"):
        future = producer.send(world.topic, b"v")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    future.get(10)
    monkeypatch.undo()
    producer.close()
    assert world.recorded.named("send") == []


@pytest.mark.parametrize("given", [[FOREIGN], [("x", b"1"), ("Traceparent", FOREIGN[1])]])
def test_a_trace_that_the_record_carries_already_stays(world: World, given: list[Header]) -> None:
    producer = world.producer()
    with world.recorded.tracer.start_as_current_span("request") as request:
        producer.send(world.topic, b"v", headers=given).get(10)
    (span,) = world.sends()
    assert world.headers() == [given]
    assert span.kind is SpanKind.CLIENT  # the message was created elsewhere
    assert span.parent == request.get_span_context()
    assert [traceparent(link.context) for link in span.links] == [FOREIGN]


def test_no_half_of_another_trace_is_added_to_it(world: World) -> None:
    producer = world.producer()
    carrier = {"traceparent": FOREIGN[1].decode(), "tracestate": "vendor=1"}
    token = otel_context.attach(TraceContextTextMapPropagator().extract(carrier))
    try:
        producer.send(world.topic, b"ours").get(10)
        producer.send(world.topic, b"theirs", headers=[FOREIGN]).get(10)
    finally:
        otel_context.detach(token)
    first, _ = world.sends(2)
    assert world.headers() == [[traceparent(first), ("tracestate", b"vendor=1")], [FOREIGN]]


def test_one_that_cannot_be_read_stays_too(world: World) -> None:
    given = [("traceparent", b"\xff nonsense")]
    producer = world.producer()
    with world.recorded.tracer.start_as_current_span("request"):
        producer.send(world.topic, b"v", headers=given).get(10)
    (span,) = world.sends()
    assert world.headers() == [given]
    assert span.links == ()


def test_a_serializer_may_bring_a_trace_of_its_own(world: World) -> None:
    def serialize(_topic: str, headers: list[Header], value: bytes) -> bytes:
        headers += [("schema", b"1"), FOREIGN] if value == b"theirs" else [("schema", b"1")]
        return value

    class Serializer:
        def serialize(self, topic: str, headers: list[Header], data: bytes) -> bytes:
            return serialize(topic, headers, data)

    with pytest.warns(DeprecationWarning, match="does not implement"):
        producer = world.producer(value_serializer=Serializer())
    with world.recorded.tracer.start_as_current_span("request"):
        producer.send(world.topic, b"ours").get(10)
        producer.send(world.topic, b"theirs").get(10)
    first, _ = world.sends(2)
    assert world.headers() == [[traceparent(first), ("schema", b"1")], [("schema", b"1"), FOREIGN]]


def test_a_trace_that_is_not_sampled_is_carried_on_without_a_span(world: World) -> None:
    world.recorded = Recorded(ALWAYS_OFF)
    producer = world.producer()
    with world.recorded.tracer.start_as_current_span("request") as request:
        producer.send(world.topic, b"v").get(10)
    ((header,),) = world.headers()
    name, value = header
    assert name == "traceparent"
    assert value is not None
    assert value.startswith(f"00-{request.get_span_context().trace_id:032x}-".encode())
    assert int(value[-2:], 16) & TraceFlags.SAMPLED == 0
    producer.close()
    assert world.recorded.named() == []


def test_without_an_sdk_a_trace_from_outside_is_carried_on(world: World) -> None:
    producer = world.producer(tracer_provider=None)
    carrier = {FOREIGN[0]: FOREIGN[1].decode()}
    token = otel_context.attach(TraceContextTextMapPropagator().extract(carrier))
    try:
        producer.send(world.topic, b"v").get(10)
    finally:
        otel_context.detach(token)
    assert world.headers() == [[FOREIGN]]


def test_baggage_alone_makes_no_span(world: World) -> None:
    producer = world.producer()
    token = otel_context.attach(propagate.extract({"baggage": "tenant=7"}))
    try:
        producer.send(world.topic, b"v").get(10)
    finally:
        otel_context.detach(token)
    assert world.headers() == [[]]


def test_baggage_goes_along_unless_the_record_has_its_own(world: World) -> None:
    producer = world.producer()
    token = otel_context.attach(propagate.extract({"baggage": "tenant=7"}))
    try:
        with world.recorded.tracer.start_as_current_span("request"):
            producer.send(world.topic, b"v").get(10)
            producer.send(world.topic, b"v", headers=[("baggage", b"tenant=8")]).get(10)
    finally:
        otel_context.detach(token)
    first, second = world.sends(2)
    assert world.headers() == [
        [traceparent(first), ("baggage", b"tenant=7")],
        [("baggage", b"tenant=8"), traceparent(second)],
    ]


def test_where_instrumentation_is_off_nothing_is_traced(world: World) -> None:
    producer = world.producer()
    with world.recorded.tracer.start_as_current_span("request"):
        token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
        try:
            producer.send(world.topic, b"v").get(10)
        finally:
            otel_context.detach(token)
    assert world.headers() == [[]]
    producer.close()
    assert world.recorded.named("send") == []


def test_always_and_never(world: World) -> None:
    always, never = world.producer(send_spans="always"), world.producer(send_spans="never")
    always.send(world.topic, b"v").get(10)
    (span,) = world.sends()
    assert span.parent is None
    with world.recorded.tracer.start_as_current_span("request"):
        never.send(world.topic, b"v").get(10)
    assert world.headers() == [[traceparent(span)], []]


def test_a_retry_that_helped_leaves_no_error(world: World) -> None:
    producer = world.producer()
    producer.send(world.topic, b"before").get(10)
    world.strike(Error(19, topic=world.topic, times=2))
    with world.recorded.tracer.start_as_current_span("request"):
        producer.send(world.topic, b"v").get(10)
    (span,) = world.sends()
    assert span.status.status_code is StatusCode.UNSET
    assert "error.type" not in attributes(span)
    assert span.events == ()


@pytest.mark.parametrize(
    ("code", "error_type"), [(87, "INVALID_RECORD"), (-1, "UNKNOWN_SERVER_ERROR")]
)
def test_a_record_that_failed_is_an_error_by_kafkas_name(
    world: World, code: int, error_type: str
) -> None:
    producer = world.producer()
    producer.send(world.topic, b"before").get(10)
    world.strike(Error(code, topic=world.topic))
    with world.recorded.tracer.start_as_current_span("request"):
        future = producer.send(world.topic, b"v")
        wait_for(lambda: future.is_done)
    (span,) = world.sends()
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == error_type
    assert attributes(span)["messaging.destination.partition.id"] == "0"
    assert "messaging.kafka.offset" not in attributes(span)


def test_what_send_raises_ends_the_span(world: World) -> None:
    producer = world.producer(max_block_ms=50, allow_auto_create_topics=False)
    with world.recorded.tracer.start_as_current_span("request"):
        with pytest.raises(BlockedError):
            producer.send("no-such-topic", b"v")
        with pytest.raises(TypeError):
            producer.send(world.topic, b"v", headers=("not", "a list"))
    (span,) = world.sends()
    assert attributes(span)["error.type"] == "BlockedError"
    assert span.status.status_code is StatusCode.ERROR


def test_records_and_the_gap_that_held_them_up_are_linked(world: World) -> None:
    producer = world.producer(linger_ms=5)
    with world.recorded.tracer.start_as_current_span("request"):
        producer.send(world.topic, b"before").get(10)
        world.strike(Error(19, topic=world.topic, times=3))
        futures = [producer.send(world.topic, b"during") for _ in range(20)]
        for future in futures:
            future.get(10)
        producer.send(world.topic, b"after").get(10)
    producer.close()
    (gap,) = producer.gaps()
    assert gap.outcome is GapOutcome.ABSORBED
    assert {future.gaps for future in futures} == {(gap.number,)}
    assert {future.node_id for future in futures} == {world.server.leader(world.topic, 0)[0]}
    (span,) = world.recorded.named("partition_gap")
    sends = world.sends(22)
    linked = [s for s in sends if [link.context for link in s.links] == [span.context]]
    assert linked == sends[1:21]
    assert 1 <= len(span.links) <= LINKS_KEPT
    assert all(link.context in [s.context for s in linked] for link in span.links)


# --- a tracer in trouble --------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.name == "outlast" and text in r.getMessage()]


class Hanging(SpanExporter):
    """Never comes back, until it is let go."""

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()

    def export(self, _spans: Any) -> SpanExportResult:
        self.asked.set()
        self.let_go.wait(60)
        return SpanExportResult.SUCCESS


def test_an_exporter_that_hangs_stops_no_record_and_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = Hanging()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    producer = world.producer(tracer_provider=provider)
    request = provider.get_tracer("app").start_span("request")
    try:
        with use_span(request):
            producer.send(world.topic, b"v").get(10)
            assert exporter.asked.wait(10)
            world.strike(Error(19, topic=world.topic, times=2))  # a gap, whose span ends as well
            for future in [producer.send(world.topic, b"v") for _ in range(2500)]:
                future.get(10)
        assert producer.gaps()[0].ended_by is not None
        assert len(told(caplog, "exporter hangs")) == 1  # the queue is full
        begun_s = time.monotonic()
        producer.close(5)
        assert time.monotonic() - begun_s < 3.0
        assert len(told(caplog, "exporter hangs")) == 1
    finally:
        exporter.let_go.set()


class Raising(TracerProvider):
    """Its spans raise in the method that is named."""

    def __init__(self, method: str) -> None:
        super().__init__(shutdown_on_exit=False)
        self.method = method

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        tracer = super().get_tracer(*args, **kwargs)
        if args[0] == "app":
            return tracer
        start = tracer.start_span

        def fail(*_args: Any, **_kwargs: Any) -> Any:
            raise ZeroDivisionError(self.method)

        def start_span(*args: Any, **kwargs: Any) -> Any:
            span = start(*args, **kwargs)
            setattr(span, self.method, fail)
            return span

        failing = fail if self.method == "start_span" else start_span
        setattr(tracer, "start_span", failing)  # noqa: B010
        return tracer


def test_a_provider_that_raises_costs_the_spans_only(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class NoTracer(TracerProvider):
        def get_tracer(self, *_args: Any, **_kwargs: Any) -> Any:
            raise ZeroDivisionError("no tracer")

    producer = world.producer(tracer_provider=NoTracer(shutdown_on_exit=False))
    with world.recorded.tracer.start_as_current_span("request") as request:
        producer.send(world.topic, b"v").get(10)
    assert len(told(caplog, "The tracer raised")) == 1
    assert world.headers() == [[traceparent(request.get_span_context())]]


@pytest.mark.parametrize(
    "method", ["start_span", "set_attributes", "add_link", "add_event", "set_status", "end"]
)
def test_a_tracer_that_raises_stops_no_record_and_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    provider = Raising(method)
    producer = world.producer(tracer_provider=provider)
    producer.send(world.topic, b"v").get(10)
    world.strike(Error(19, topic=world.topic, times=2), Error(87, topic=world.topic, times=1))
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    fates: list[str] = []
    with provider.get_tracer("app").start_as_current_span("request"):
        for _ in range(3):
            future = producer.send(world.topic, b"v")
            future.add_callback(lambda _: fates.append("delivered"))
            future.add_errback(lambda _: fates.append("failed"))
            wait_for(lambda: future.is_done)  # noqa: B023
    producer.flush(10)
    producer.close(5)
    assert fates == ["failed", "delivered", "delivered"]
    assert len(told(caplog, "The tracer raised")) == 1
    assert not [r for r in caplog.records if "observer" in r.getMessage()]
    assert producer.gaps()[0].ended_by is not None
    names = [s.name.partition(" ")[0] for s in exporter.get_finished_spans()]
    if method in ("start_span", "end"):
        assert names == ["request"]
    else:  # what else fails, they end
        assert sorted(names) == ["partition_gap", "request", "send", "send", "send"]


# --- send_many ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
def test_many_records_have_one_span_and_all_carry_it(world: World, keyed: bool) -> None:
    producer = world.producer(batch_size=300)
    producer.send(world.topic, b"before").get(10)
    given = [("id", b"7")]
    values = [b"%d" % n for n in range(100)]
    world.strike(Slow(0.2, api=0, times=1))
    with world.recorded.tracer.start_as_current_span("request") as request:
        many = producer.send_many(world.topic, iter(values), values if keyed else None, given)
        many.add_both(lambda _: ends.append(len(world.recorded.named("send"))))
        assert world.recorded.named("send") == []
    ends: list[int] = []
    many.get(10)
    producer.flush(10)
    (span,) = world.sends()
    assert ends == [1], "the span's callback came first"
    assert span.name == f"send {world.topic}"
    assert span.kind is SpanKind.PRODUCER
    assert span.parent == request.get_span_context()
    assert span.status.status_code is StatusCode.UNSET
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time - span.start_time >= 0.2e9
    node_id, _ = world.server.leader(world.topic, 0)
    address = world.server.call(lambda cluster, _: cluster.addresses[node_id])
    assert attributes(span) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 100,
        "messaging.destination.name": world.topic,
        "messaging.client.id": "billing",
        "messaging.kafka.cluster.id": world.server.call(lambda cluster, _: cluster.cluster_id),
        "server.address": address[0],
        "server.port": address[1],
        "network.peer.address": address[0],
        "network.peer.port": address[1],
    }
    assert world.headers() == [[], *[[("id", b"7"), traceparent(span)]] * 100]
    assert given == [("id", b"7")]
    assert [record.value for record in world.server.records(world.topic, 0)][1:] == values


def test_many_records_without_a_span_of_the_sender_have_none(world: World) -> None:
    producer = world.producer()
    producer.send_many(world.topic, [b"v"] * 3).get(10)
    assert world.headers() == [[]] * 3
    producer.close()
    assert world.recorded.named() == []


def test_many_records_to_one_partition_name_it_and_a_foreign_trace_stays(world: World) -> None:
    producer = world.producer()
    with world.recorded.tracer.start_as_current_span("request"):
        producer.send_many(world.topic, [b"v"] * 3, headers=[FOREIGN], partition=0).get(10)
    (span,) = world.sends()
    assert span.kind is SpanKind.CLIENT
    assert [traceparent(link.context) for link in span.links] == [FOREIGN]
    assert attributes(span)["messaging.destination.partition.id"] == "0"
    assert world.headers() == [[FOREIGN]] * 3


def test_of_many_records_those_keep_their_trace_whose_serializer_brings_one(world: World) -> None:
    class Serializing(Serializer):
        def serialize(self, _topic: str, headers: list[Header], data: int) -> bytes:
            if data % 2:
                headers.append(FOREIGN)
            return b"%d" % data

    producer = world.producer(value_serializer=Serializing())
    with world.recorded.tracer.start_as_current_span("request"):
        producer.send_many(world.topic, range(5)).get(10)
    (span,) = world.sends()
    ours = traceparent(span)
    assert world.headers() == [[ours], [FOREIGN], [ours], [FOREIGN], [ours]]


def test_if_one_of_many_records_fails_their_span_is_an_error(world: World) -> None:
    producer = world.producer(batch_size=300, enable_idempotence=False)
    producer.send(world.topic, b"before").get(10)
    world.strike(Error(87, topic=world.topic, times=1))
    with world.recorded.tracer.start_as_current_span("request"):
        many = producer.send_many(world.topic, [b"v"] * 100)
    failed = many.failed(10)
    assert 0 < len(failed) < 100
    (span,) = world.sends()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == str(failed[0][1])
    assert attributes(span)["error.type"] == "INVALID_RECORD"


def test_what_send_many_raises_or_cannot_take_ends_the_span(world: World) -> None:
    producer = world.producer(max_block_ms=0, buffer_memory=5_000, batch_size=100)
    wait_for(lambda: takes(producer, world.topic))
    producer.flush(10)
    with world.recorded.tracer.start_as_current_span("request"):
        with pytest.raises(ValueError, match=r"values\[1\]"):
            producer.send_many(world.topic, [b"v", None])
        with pytest.raises(BlockedError):
            producer.send_many(f"{world.topic}-new", [b"v"] * 3)
        world.strike(Slow(0.2, api=0, times=1))
        many = producer.send_many(world.topic, [b"v" * 100] * 100)
        assert many.failed(10)
    names = [attributes(span)["error.type"] for span in world.sends(3)]
    assert names == ["ValueError", "BlockedError", "blocked"]
    assert {span.status.status_code for span in world.sends(3)} == {StatusCode.ERROR}


def takes(producer: KafkaProducer, topic: str) -> bool:
    try:
        return bool(producer.send(topic, b"first"))
    except BlockedError:
        return False


def test_many_records_and_the_gap_that_held_them_up_are_linked(world: World) -> None:
    producer = world.producer(batch_size=300)
    producer.send(world.topic, b"before").get(10)
    world.strike(Error(19, topic=world.topic, times=3))
    with world.recorded.tracer.start_as_current_span("request"):
        many = producer.send_many(world.topic, [b"v"] * 100)
    many.get(10)
    assert many.gaps == (1,)
    (span,) = world.sends()
    producer.close()
    (gap,) = world.recorded.named("partition_gap")
    assert span.context is not None
    assert gap.context is not None
    assert [link.context.span_id for link in span.links] == [gap.context.span_id]
    assert [link.context.span_id for link in gap.links] == [span.context.span_id]


# --- cost -----------------------------------------------------------------------------------------


def cpu_ns(action: Callable[[], object], count: int = 20_000) -> float:
    """The least of several measurements, of this thread's own time."""
    best = float("inf")
    for _ in range(7):
        begun = time.thread_time_ns()
        for _ in range(count):
            action()
        best = min(best, (time.thread_time_ns() - begun) / count)
    return best


def test_the_context_is_looked_at_once_for_each_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[otel_context.Context] = []
    usual = otel_context._RUNTIME_CONTEXT

    class Kept:
        """As contexts are that are kept otherwise: all that can be done is to ask."""

        attach, detach = usual.attach, usual.detach

        def get_current(self) -> otel_context.Context:
            looks.append(usual.get_current())
            return looks[-1]

    monkeypatch.setattr(otel_context, "_RUNTIME_CONTEXT", Kept())
    producer = world.producer(tracer_provider=Raising("start_span"))
    for _ in range(100):
        producer.send(world.topic, b"v")
    producer.flush(10)
    assert looks == [{}] * 100


def test_without_a_current_span_a_record_costs_one_look() -> None:
    tracing = Tracing()
    wanted = SendSpans(tracing, OtelObserver()).wanted
    cost_ns = cpu_ns(wanted) - cpu_ns(lambda: None)
    assert not wanted()
    assert cost_ns < 300
