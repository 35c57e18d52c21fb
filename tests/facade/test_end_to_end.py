"""The producer as users have it, against the mock cluster over TCP, read back by kafka-python."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import kafka
import kafka.errors
import pytest
from kafka.partitioner.default import murmur2
from kafka.protocol.producer import ProduceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from outlast import DeliveryError, DeliveryFuture, Gap, KafkaProducer, Outcome, Undelivered
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic, read_back

DEADLINE_S = 20.0
MakeProducer = Callable[..., KafkaProducer]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        threading.Event().wait(0.005)


class TestRecords:
    @pytest.mark.parametrize(
        "keywords",
        [
            {},
            {"acks": "all"},
            {"acks": 1},
            {"acks": 0},
            {"enable_idempotence": False},
            {"enable_idempotence": False, "acks": 1, "max_in_flight_requests_per_connection": 1},
            {"linger_ms": 20, "batch_size": 1_000_000},
            {"batch_size": 0},
        ],
        ids=str,
    )
    def test_each_arrives_once_and_in_order(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer, keywords: dict[str, Any]
    ) -> None:
        topic = new_topic(shared_cluster, 3)
        with make_producer(shared_cluster) as first:  # a new topic's leader may first deny it
            for partition in range(3):
                first.send(topic, b"first", partition=partition)
        producer = make_producer(shared_cluster, **keywords)
        futures = [producer.send(topic, b"%d" % n, partition=n % 3) for n in range(300)]
        producer.flush(timeout=DEADLINE_S)
        assert all(future.succeeded() for future in futures)
        told = [future.get(timeout=0) for future in futures]
        producer.close()
        lengths = [101, 101, 101]  # with acks=0 the last may still be under way
        until(
            lambda: [len(shared_cluster.records(topic, n)) for n in range(3)] == lengths,
            "all are there",
        )
        for number, (_, *log) in enumerate(read_back(shared_cluster, topic, 3)):
            assert [record.value for record in log] == [b"%d" % n for n in range(number, 300, 3)]
            offsets = [-1] * 100 if keywords.get("acks") == 0 else [r.offset for r in log]
            assert [m.offset for m in told[number::3]] == offsets
            assert [m.timestamp for m in told[number::3]] == [r.timestamp for r in log]

    @pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
    def test_every_codec(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer, codec: str | None
    ) -> None:
        topic = new_topic(shared_cluster)
        values = [b"compressible " * 50 + b"%d" % n for n in range(200)]
        producer = make_producer(shared_cluster, compression_type=codec, linger_ms=20)
        for value in values:
            producer.send(topic, value)
        producer.flush(timeout=DEADLINE_S)
        (log,) = read_back(shared_cluster, topic)
        assert [record.value for record in log] == values

    def test_what_is_compressed_at_once_is_sent_at_once(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        """Batches of thirty partitions, in one request to each of three brokers, or in two where
        their time did not come in the same moment.
        """
        topic = new_topic(shared_cluster, 30)
        producer = make_producer(shared_cluster, compression_type="gzip", linger_ms=100)

        def produced() -> int:
            return shared_cluster.call(
                lambda cluster, _: sum(
                    r.api_key == ProduceRequest.API_KEY for r in cluster.request_log
                )
            )

        for _ in range(2):  # first, a new topic's leader may deny it
            before = produced()
            futures = [producer.send(topic, b"v" * 500, partition=p) for p in range(30)]
            for future in futures:
                future.get(timeout=DEADLINE_S)
        assert produced() - before <= 6

    def test_every_part_of_a_record(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster)
        producer = make_producer(shared_cluster)
        headers = [("a", b"1"), ("ü", b""), ("a", b"2")]
        metadata = producer.send(
            topic, b"value", b"key", headers=headers, partition=0, timestamp_ms=1_234_567
        ).get(timeout=DEADLINE_S)
        producer.send(topic, None, key=b"key").get(timeout=DEADLINE_S)
        producer.send(topic, b"").get(timeout=DEADLINE_S)
        first, tombstone, empty = read_back(shared_cluster, topic)[0]
        assert (first.key, first.value, first.timestamp) == (b"key", b"value", 1_234_567)
        assert list(first.headers) == headers
        assert metadata == (topic, 0, (topic, 0), 0, 1_234_567, None, 3, 5, 6)
        assert (tombstone.key, tombstone.value) == (b"key", None)
        assert (empty.key, empty.value) == (None, b"")

    def test_serializers(self, shared_cluster: ClusterServer, make_producer: MakeProducer) -> None:
        topic = new_topic(shared_cluster)
        producer = make_producer(
            shared_cluster,
            key_serializer=kafka.DefaultSerializer(),
            value_serializer=kafka.JsonSerializer(),
        )
        producer.send(topic, {"n": 1}, "key")
        producer.flush(timeout=DEADLINE_S)
        (record,) = read_back(shared_cluster, topic)[0]
        assert (record.key, json.loads(record.value)) == (b"key", {"n": 1})

    def test_keys_go_where_kafka_python_sends_them(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 7)
        producer = make_producer(shared_cluster)
        keys = [b"key-%d" % n for n in range(100)]
        futures = [producer.send(topic, b"v", key) for key in keys]
        for key, future in zip(keys, futures, strict=True):
            expected = (murmur2(key) & 0x7FFFFFFF) % 7
            assert future.get(timeout=DEADLINE_S).partition == expected

    def test_a_users_partitioner(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 4)

        class Last(kafka.partitioner.Partitioner):
            def partition(self, topic: str, *record: Any) -> int:
                result: int = max(record[-1].available_partitions_for_topic(topic))
                return result

        producer = make_producer(shared_cluster, partitioner=Last())
        assert producer.send(topic, b"v").get(timeout=DEADLINE_S).partition == 3

    def test_large_batches_are_split_and_too_large_records_fail_alone(
        self, make_cluster: Callable[..., ClusterServer], make_producer: MakeProducer
    ) -> None:
        cluster = make_cluster(max_message_bytes=10_000)
        topic = new_topic(cluster)
        producer = make_producer(cluster, batch_size=100_000, linger_ms=100)
        values = [b"%d" % n + b"x" * 900 for n in range(60)]
        values[30] = b"y" * 20_000
        futures = [producer.send(topic, value) for value in values]
        producer.flush(timeout=DEADLINE_S)
        with pytest.raises(kafka.errors.MessageSizeTooLargeError) as caught:
            futures.pop(30).get(timeout=0)
        assert caught.value.outcome is Outcome.NOT_ACCEPTED
        del values[30]
        (log,) = read_back(cluster, topic)
        assert [record.value for record in log] == values
        assert [f.get(timeout=0).offset for f in futures] == [record.offset for record in log]


class TestBlocking:
    def test_partitions_for(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 5)
        producer = make_producer(shared_cluster)
        partitions = producer.partitions_for(topic)
        assert partitions == {0, 1, 2, 3, 4}
        assert type(partitions) is set
        assert producer.config["api_version"] >= (3, 0)
        assert producer.bootstrap_connected()

    def test_unknown_topic(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        producer = make_producer(shared_cluster, max_block_ms=300, allow_auto_create_topics=False)
        for call in (
            lambda: producer.send("nowhere", b"v"),
            lambda: producer.partitions_for("nowhere"),
        ):
            began = time.monotonic()
            with pytest.raises(
                kafka.errors.KafkaTimeoutError,
                match="No metadata for topic 'nowhere' within max_block_ms=300",
            ):
                call()
            assert 0.3 <= time.monotonic() - began < 0.5

    def test_partition_that_does_not_exist(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster, 2)
        producer = make_producer(shared_cluster, max_block_ms=2_000)
        producer.send(topic, b"v", partition=1).get(timeout=DEADLINE_S)
        with pytest.raises(ValueError, match="partition"):
            producer.send(topic, b"v", partition=2)

    def test_room_that_comes_free_lets_a_blocked_send_go_on(
        self, cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(cluster)
        producer = make_producer(cluster, buffer_memory=50_000, max_block_ms=DEADLINE_S * 1000)
        producer.send(topic, b"first").get(timeout=DEADLINE_S)
        for node in (1, 2, 3):
            cluster.pause(node)
        values = [b"%d" % n + b"x" * 1_000 for n in range(100)]
        sent: list[Any] = []

        def send_all() -> None:
            for value in values:
                future = producer.send(topic, value)
                sent.append(future)

        thread = threading.Thread(target=send_all)
        thread.start()
        until(lambda: len(sent) > 20, "the buffer is full")
        for node in (1, 2, 3):
            cluster.resume(node)
        thread.join(DEADLINE_S)
        assert len(sent) == 100
        producer.flush(timeout=DEADLINE_S)
        (log,) = read_back(cluster, topic)
        assert [r.value for r in log[1:]] == values


class TestUnreachable:
    def test_constructor_returns_at_once_and_send_names_the_addresses(self) -> None:
        threads = threading.active_count()
        began = time.monotonic()
        producer = KafkaProducer(
            bootstrap_servers="127.0.0.1:1,127.0.0.1:2", max_block_ms=400, metrics_registry=None
        )
        assert time.monotonic() - began < 0.3
        assert threading.active_count() == threads + 1
        try:
            began = time.monotonic()
            with pytest.raises(kafka.errors.KafkaTimeoutError) as caught:
                producer.send("t", b"v")
            assert 0.4 <= time.monotonic() - began < 0.6
            for part in ("127.0.0.1:1", "127.0.0.1:2", "refused", "max_block_ms=400"):
                assert part in str(caught.value)
        finally:
            producer.close(timeout=0)
        assert threading.active_count() == threads

    def test_max_block_ms_0_raises_at_once(self) -> None:
        with KafkaProducer(
            bootstrap_servers="127.0.0.1:1", max_block_ms=0, metrics_registry=None
        ) as producer:
            began = time.monotonic()
            with pytest.raises(kafka.errors.KafkaTimeoutError):
                producer.send("t", b"v")
            assert time.monotonic() - began < 0.2


class TestFlushAndClose:
    def test_one_deadline_for_all_of_flush(
        self, cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(cluster, 6)
        producer = make_producer(cluster)
        for partition in range(6):
            producer.send(topic, b"first", partition=partition).get(timeout=DEADLINE_S)
        for node in (1, 2, 3):
            cluster.pause(node)
        futures = [producer.send(topic, b"v", partition=partition) for partition in range(6)]
        began = time.monotonic()
        with pytest.raises(kafka.errors.KafkaTimeoutError, match="flush"):
            producer.flush(timeout=0.4)
        assert 0.4 <= time.monotonic() - began < 0.7
        for node in (1, 2, 3):
            cluster.resume(node)
        producer.flush(timeout=DEADLINE_S)
        assert all(future.succeeded() for future in futures)

    def test_flush_waits_for_callbacks(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster)
        producer = make_producer(shared_cluster, linger_ms=10_000)
        heard: list[int] = []

        def slow(metadata: Any) -> None:
            threading.Event().wait(0.01)
            heard.append(metadata.offset)

        for n in range(10):
            producer.send(topic, b"%d" % n).add_callback(slow)
        began = time.monotonic()
        producer.flush(timeout=DEADLINE_S)
        assert heard == list(range(10))
        assert time.monotonic() - began < 5  # it does not linger

    def test_close_keeps_its_time_and_gives_records_back(
        self, cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(cluster)
        back: list[Undelivered] = []
        threads = threading.active_count()
        producer = make_producer(cluster, on_undelivered=back.append)
        producer.send(topic, b"first").get(timeout=DEADLINE_S)
        for node in (1, 2, 3):
            cluster.pause(node)
        futures = [
            producer.send(topic, b"%d" % n, b"key", headers=[("h", b"1")], timestamp_ms=n)
            for n in range(5)
        ]
        began = time.monotonic()
        producer.close(timeout=0.4)
        assert time.monotonic() - began < 1.0
        assert threading.active_count() == threads
        for future in futures:
            with pytest.raises(DeliveryError) as caught:
                future.get(timeout=0)
            assert isinstance(caught.value, kafka.errors.IllegalStateError)
            assert caught.value.outcome in (Outcome.UNKNOWN, Outcome.NEVER_SENT)
        assert [(r.value, r.key, r.headers, r.timestamp_ms) for r in back] == [
            (b"%d" % n, b"key", (("h", b"1"),), n) for n in range(5)
        ]
        assert [r.outcome for r in back] == [f.exception.outcome for f in futures]
        with pytest.raises(kafka.errors.IllegalStateError):
            producer.send(topic, b"late")

    def test_context_manager_delivers(self, shared_cluster: ClusterServer) -> None:
        topic = new_topic(shared_cluster)
        threads = threading.active_count()
        with KafkaProducer(
            bootstrap_servers=shared_cluster.bootstrap, linger_ms=10_000, metrics_registry=None
        ) as producer:
            assert threading.active_count() == threads + 1
            future = producer.send(topic, b"v")
        assert future.succeeded()
        assert threading.active_count() == threads

    def test_a_collected_producer_delivers_what_it_has(self, shared_cluster: ClusterServer) -> None:
        topic = new_topic(shared_cluster)
        threads = threading.active_count()
        producer = KafkaProducer(
            bootstrap_servers=shared_cluster.bootstrap, linger_ms=500, metrics_registry=None
        )
        future = producer.send(topic, b"v")
        del producer
        assert future.get(timeout=DEADLINE_S).offset == 0
        until(lambda: threading.active_count() == threads, "its thread is gone")

    @pytest.mark.parametrize("how", ["", "del producer", "sys.exit(0)"])
    def test_at_exit_it_delivers_what_it_has(self, shared_cluster: ClusterServer, how: str) -> None:
        topic = new_topic(shared_cluster)
        program = (
            "import sys; from outlast import KafkaProducer\n"
            "producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=300)\n"
            "for n in range(10): producer.send(sys.argv[2], b'%d' % n)\n" + how
        )
        ended = subprocess.run(
            [sys.executable, "-c", program, shared_cluster.bootstrap, topic],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        (log,) = read_back(shared_cluster, topic)
        assert [record.value for record in log] == [b"%d" % n for n in range(10)]


class TestCallbacks:
    def test_run_on_the_network_thread_and_may_send(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster)
        producer = make_producer(shared_cluster, client_id="me")
        heard: list[tuple[str, int]] = []
        more: list[Any] = []

        def note(metadata: Any) -> None:
            heard.append((threading.current_thread().name, metadata.offset))
            if len(heard) == 1:
                more.append(producer.send(topic, b"again").add_callback(note))

        producer.send(topic, b"v").add_callback(note)
        until(lambda: len(heard) == 2, "both callbacks")
        assert heard == [("me-network-thread", 0), ("me-network-thread", 1)]

    def test_flush_raises_and_close_goes_on_elsewhere(
        self, shared_cluster: ClusterServer, make_producer: MakeProducer
    ) -> None:
        topic = new_topic(shared_cluster)
        threads = threading.active_count()
        producer = make_producer(shared_cluster)
        heard: list[Any] = []

        def flush_and_close(_: Any) -> None:
            try:
                producer.flush(timeout=5)
            except kafka.errors.IllegalStateError as error:
                heard.append(error)
            began = time.monotonic()
            producer.close(timeout=5)
            heard.append(time.monotonic() - began)

        future = producer.send(topic, b"v").add_callback(flush_and_close)
        until(lambda: len(heard) == 2, "the callback")
        assert future.succeeded()
        assert heard[1] < 0.5
        until(lambda: threading.active_count() == threads, "its threads are gone")

    def test_errors_in_callbacks_stop_nothing(
        self,
        shared_cluster: ClusterServer,
        make_producer: MakeProducer,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        topic = new_topic(shared_cluster)
        producer = make_producer(shared_cluster)
        producer.send(topic, b"v").add_callback(lambda _: 1 / 0)
        producer.flush(timeout=DEADLINE_S)
        assert "ZeroDivisionError" in caplog.text
        producer.send(topic, b"v").get(timeout=DEADLINE_S)


class TestGaps:
    def test_a_killed_leader_is_outlasted_and_told(self, cluster: ClusterServer) -> None:
        topic = new_topic(cluster, 3)
        registry, exporter = CollectorRegistry(), InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        told: list[Gap] = []
        with KafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            metrics_registry=registry,
            tracer_provider=provider,
            on_gap=told.append,
        ) as producer:
            for partition in range(3):
                producer.send(topic, b"first", partition=partition).get(timeout=DEADLINE_S)
            assert producer.gaps() == []
            killed = cluster.leader(topic, 1)[0]
            cluster.kill(killed)
            futures: list[DeliveryFuture] = []
            began = time.monotonic()
            while time.monotonic() - began < 1.5 or not futures[-1].is_done:
                futures.append(producer.send(topic, b"%d" % len(futures), partition=1))
                assert time.monotonic() - began < DEADLINE_S
                threading.Event().wait(0.01)
            producer.flush(timeout=DEADLINE_S)
            assert all(future.succeeded() for future in futures)
            until(lambda: bool(told), "on_gap")
            gap = next(gap for gap in producer.gaps() if gap.partition == 1)
            metrics = producer.metrics()
        assert [g.partition for g in told] == [1]
        assert told[0].outcome is not None
        assert told[0].ended_by is not None
        assert gap.topic == topic
        assert gap.duration_s > 0.1
        assert gap.old_leader != gap.new_leader
        assert json.loads(json.dumps(gap.to_dict()))["outcome"] == "absorbed"
        assert metrics is not None
        assert metrics["outlast-metrics"]["gaps-total"] == 1
        assert metrics["outlast-metrics"]["record-send-total"] == len(futures) + 3
        labels = {"topic": topic, "partition": "1"}
        seconds = registry.get_sample_value("outlast_partition_gap_seconds_total", labels)
        assert seconds == pytest.approx(told[0].duration_s, abs=0.01)
        spans = [span for span in exporter.get_finished_spans() if span.attributes]
        assert len(spans) == 1
        cluster.start(killed)  # kafka-python's consumer leaks a socket when it is refused
        until(lambda: cluster.call(lambda mock, _: mock.listens(killed)), "it is up")
        values = [record.value for record in read_back(cluster, topic, 3)[1]]
        assert values == [b"first", *(b"%d" % n for n in range(len(futures)))]
