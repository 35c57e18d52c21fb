"""Beside the public instrumentation of kafka-python: one span and one trace for each record."""

from __future__ import annotations

import random
from collections.abc import Iterator

import kafka
import pytest
from opentelemetry.instrumentation.kafka import KafkaInstrumentor

from outlast import KafkaProducer
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer
from tests.observe.spans import Recorded, wait_for

TOPIC = "orders"


@pytest.fixture(scope="module")
def server() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(1, rng=random.Random(1))) as server:
        server.create_topic(TOPIC, 1, replication=1)
        yield server


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.provider.shutdown()


@pytest.fixture
def instrumentor(recorded: Recorded) -> Iterator[KafkaInstrumentor]:
    instrumentor = KafkaInstrumentor()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


def traces(server: ClusterServer) -> list[int]:
    """How many traceparent headers each record has."""
    return [
        [name for name, _ in record.headers].count("traceparent")
        for record in server.records(TOPIC, 0)
    ]


class Subclass(KafkaProducer):
    """An application's own."""

    def send(self, topic: str, *args: object, **keywords: object) -> object:  # type: ignore[override]
        return super().send(topic, *args, **keywords)


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("producer_class", [KafkaProducer, Subclass])
def test_one_span_and_one_header(
    server: ClusterServer,
    recorded: Recorded,
    instrumentor: KafkaInstrumentor,
    producer_class: type[KafkaProducer],
    made: str,
) -> None:
    def make() -> KafkaProducer:
        return producer_class(
            bootstrap_servers=server.bootstrap,
            metrics_registry=None,
            tracer_provider=recorded.provider,
        )

    producer = make() if made == "before" else None
    instrumentor.instrument(tracer_provider=recorded.provider)
    assert hasattr(kafka.KafkaProducer.send, "__wrapped__")
    producer = producer or make()
    before = len(traces(server))
    headers = [("id", b"7")]
    with recorded.tracer.start_as_current_span("request"):
        for _ in range(2):  # with the same list
            producer.send(TOPIC, b"v", headers=headers).get(10)
    producer.close()
    assert traces(server)[before:] == [1, 1]
    assert headers == [("id", b"7")]
    names = sorted(span.name for span in recorded.named())
    assert names == ["request", f"send {TOPIC}", f"send {TOPIC}"]


def test_an_instrumented_consumer_goes_on_with_the_trace(
    server: ClusterServer, recorded: Recorded, instrumentor: KafkaInstrumentor
) -> None:
    instrumentor.instrument(tracer_provider=recorded.provider)
    server.create_topic("read", 1, replication=1)
    with (
        KafkaProducer(
            bootstrap_servers=server.bootstrap,
            metrics_registry=None,
            tracer_provider=recorded.provider,
        ) as producer,
        recorded.tracer.start_as_current_span("request"),
    ):
        producer.send("read", b"v").get(10)
    consumer = kafka.KafkaConsumer(
        "read",
        bootstrap_servers=server.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    assert next(consumer).value == b"v"
    consumer.close()
    (sent,) = recorded.named("send")
    (read,) = recorded.named("read receive")
    assert read.parent is not None
    assert sent.context is not None
    assert read.parent.span_id == sent.context.span_id


def test_the_hook_is_there_and_makes_spans_of_kafka_pythons_own_producer(
    server: ClusterServer, recorded: Recorded, instrumentor: KafkaInstrumentor
) -> None:
    instrumentor.instrument(tracer_provider=recorded.provider)
    producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap)
    before = len(traces(server))
    producer.send(TOPIC, b"v").get(10)
    producer.close()
    assert traces(server)[before:] == [1]
    assert [span.name for span in recorded.named()] == [f"{TOPIC} send"]


def test_a_hook_on_our_own_class_leaves_one_header(
    server: ClusterServer,
    recorded: Recorded,
    instrumentor: KafkaInstrumentor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka, "KafkaProducer", KafkaProducer)
    instrumentor.instrument(tracer_provider=recorded.provider)
    producer = KafkaProducer(
        bootstrap_servers=server.bootstrap,
        metrics_registry=None,
        tracer_provider=recorded.provider,
    )
    before = len(traces(server))
    producer.send(TOPIC, b"v").get(10)
    wait_for(lambda: len(recorded.named()) == 2)
    ours, theirs = sorted(recorded.named(), key=lambda span: span.name, reverse=True)
    assert traces(server)[before:] == [1]
    assert theirs.context is not None
    assert [link.context.span_id for link in ours.links] == [theirs.context.span_id]
    producer.close()
    instrumentor.uninstrument()
