"""`producer.metrics()`: kafka-python's groups and names, held to a ledger of what was done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka.protocol.producer import ProduceRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from outlast import KafkaProducer
from outlast.config import Config
from outlast.engine.messages import RecordsSettled, TopicGone
from outlast.engine.record_batch import RecordBatchBuilder
from outlast.figures import Figures
from outlast.record_sizes import RecordSizes
from outlast.testing import Error, MockCluster, Slow, Throttle
from outlast.testing.cluster_settings import ClusterSettings

Make = Callable[..., KafkaProducer]
OURS = "outlast-metrics"
NOW_MS = 1_700_000_000_000
WINDOWS = {"metrics_num_samples": 2, "metrics_sample_window_ms": 600_000}


@pytest.fixture
def kafka_3() -> Iterator[MockCluster]:
    settings = ClusterSettings(creation_deny_p=0.0)  # a new topic's leader leads at once
    with MockCluster(3, topics={"t": 3}, settings=settings) as cluster:
        yield cluster


def made(cluster: MockCluster, **keywords: Any) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        metrics_registry=None,
        client_id="me",
        **{**WINDOWS, **keywords},
    )


def amount(per_second: float) -> float:
    """What a rate is of: with one young sample it is over one whole window and its own age."""
    return per_second * 600.0


def record_bytes(value_bytes: int, key_bytes: int = 0) -> int:
    """A record of the one time that is used here, without headers, as kafka-python encodes it."""
    key = b"k" * key_bytes or None
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    before = builder.size()
    builder.append(0, NOW_MS, key, b"v" * value_bytes, [])
    size: int = builder.size() - before
    return size


def producer_metrics(producer: KafkaProducer) -> dict[str, float]:
    metrics = producer.metrics()
    assert metrics is not None
    group: dict[str, float] = metrics["producer-metrics"]
    return group


@pytest.mark.parametrize("read_before", [True, False])
def test_after_close_there_are_none_as_in_kafka_python(
    kafka_3: MockCluster, read_before: bool
) -> None:
    with made(kafka_3) as producer:
        if read_before:
            assert producer.metrics()
    assert producer.metrics() == producer.metrics(raw=True) == {}


class TestTheSameNames:
    def names(self, metrics: Any) -> dict[str, set[str]]:
        return {
            group: set(figures)
            for group, figures in metrics.items()
            if not group.startswith("producer-node-metrics.")
        }

    def test_as_kafka_pythons_producer(self, kafka_3: MockCluster) -> None:
        keywords = {"bootstrap_servers": kafka_3.bootstrap_servers, "client_id": "me"}
        with kafka.KafkaProducer(**keywords) as theirs, made(kafka_3) as ours:
            for producer in (theirs, ours):
                for partition in range(3):
                    producer.send("t", b"v", partition=partition).get(10)
            expected, got = theirs.metrics(), ours.metrics()
            assert got is not None
            raw_expected, raw = theirs.metrics(raw=True), ours.metrics(raw=True)
            assert raw is not None
        assert len(expected["producer-metrics"]) == 28
        assert self.names(got) == self.names(expected) | {OURS: set(got[OURS])}
        for node_id in (1, 2, 3):
            group = f"producer-node-metrics.node-{node_id}"
            assert set(got[group]) == set(expected[group])
            assert len(got[group]) == 10
        assert any(group.startswith("producer-node-metrics.node-bootstrap-") for group in got)
        assert {type(name) for name in raw} == {type(name) for name in raw_expected}
        assert {type(metric) for metric in raw.values()} == {
            type(metric) for metric in raw_expected.values()
        }
        assert set(raw_expected) - set(raw) == {  # equal by name, group and tags
            name for name in raw_expected if "bootstrap" in name.group and name not in raw
        }

    def test_all_of_them_before_anything_was_sent(self, kafka_3: MockCluster) -> None:
        with made(kafka_3) as producer:
            figures = producer_metrics(producer)
            assert len(figures) == 28
            assert figures["record-send-rate"] == 0
            assert figures["batch-size-avg"] == 0
            assert figures["batch-size-max"] == float("-inf")
            assert producer.metrics()["kafka-metrics-count"]["count"] >= 29  # type: ignore[index]

    def test_none_if_switched_off_and_nothing_is_counted(self, kafka_3: MockCluster) -> None:
        with made(kafka_3, metrics_enabled=False) as producer:
            assert producer.send("t", b"v").get(10).topic == "t"
            assert producer.metrics() is None
            assert producer.metrics(raw=True) is None


class TestTrue:
    """Figures beside what the cluster and the test itself have counted."""

    def test_records_batches_and_requests(self, kafka_3: MockCluster) -> None:
        with made(kafka_3, linger_ms=20) as producer:
            for size in (10, 200, 3_000):
                producer.send("t", b"v" * size, partition=0, timestamp_ms=NOW_MS)
            producer.flush()
            for _ in range(5):
                producer.send("t", b"v" * 10, key=b"k", partition=1, timestamp_ms=NOW_MS).get(10)
            figures = producer_metrics(producer)
            topic = producer.metrics()["producer-topic-metrics.t"]  # type: ignore[index]
            nodes = {
                group: figures
                for group, figures in producer.metrics().items()
                if group.startswith("producer-node-metrics.")
            }
            ours = producer.metrics()[OURS]  # type: ignore[index]
        log = [r for p in range(3) for r in kafka_3.records("t", p)]
        assert len(log) == 8 == ours["record-send-total"]
        requests = [r for r in kafka_3.requests() if r.api_key == ProduceRequest.API_KEY]
        assert len(requests) == 6
        assert amount(topic["record-send-rate"]) == pytest.approx(8, rel=0.02)
        assert figures["record-send-rate"] == pytest.approx(topic["record-send-rate"], rel=0.01)
        assert figures["records-per-request-avg"] == 8 / 6
        first = 61 + sum(record_bytes(size) for size in (10, 200, 3_000))
        assert figures["batch-size-max"] == first
        assert figures["batch-size-avg"] == (first + 5 * (61 + record_bytes(10, 1))) / 6
        sent_bytes = figures["batch-size-avg"] * 6
        assert amount(topic["byte-rate"]) == pytest.approx(sent_bytes, rel=0.02)
        assert figures["record-size-max"] == record_bytes(3_000)
        assert figures["record-size-avg"] == (record_bytes(3_000) + 5 * record_bytes(10, 1)) / 6
        assert figures["compression-rate-avg"] == 1.0 == topic["compression-rate"]
        assert figures["record-retry-rate"] == figures["record-error-rate"] == 0
        # the sizes of the requests include those of the batches, and not much more
        outgoing = sum(amount(node["outgoing-byte-rate"]) for node in nodes.values())
        assert outgoing == pytest.approx(amount(figures["outgoing-byte-rate"]), rel=0.02)
        assert sent_bytes < outgoing < sent_bytes + 150 * len(kafka_3.requests())
        assert first < figures["request-size-max"] < first + 150
        count = amount(figures["request-rate"])
        assert count == pytest.approx(len(kafka_3.requests()), rel=0.05)
        assert amount(figures["response-rate"]) == pytest.approx(count, rel=0.05)
        assert figures["requests-in-flight"] == 0
        assert figures["network-io-rate"] > figures["request-rate"]

    def test_every_connection(self, kafka_3: MockCluster) -> None:
        with made(kafka_3) as producer:
            for partition in range(3):
                producer.send("t", b"v", partition=partition).get(10)
            opened = amount(producer_metrics(producer)["connection-creation-rate"])
            count = producer_metrics(producer)["connection-count"]
            kafka_3.kill(kafka_3.leader("t", 0))
            kafka_3.wait_until(lambda: producer_metrics(producer)["connection-count"] < count)
            closed = amount(producer_metrics(producer)["connection-close-rate"])
        assert round(opened) >= count >= 3
        assert round(closed) >= 1

    def test_retries_and_errors(self, kafka_3: MockCluster) -> None:
        with made(kafka_3, linger_ms=20) as producer:
            kafka_3.faults.append(Error(6, times=2))  # NOT_LEADER_OR_FOLLOWER
            futures = [producer.send("t", b"v", partition=0) for _ in range(4)]
            for future in futures:
                future.get(10)
            figures = producer_metrics(producer)
            assert amount(figures["record-retry-rate"]) == pytest.approx(2 * 4, rel=0.02)
            assert figures["record-error-rate"] == 0
            kafka_3.faults.append(Error(87, times=1))  # INVALID_RECORD
            with pytest.raises(kafka.errors.InvalidRecordError):
                producer.send("t", b"v", partition=0).get(10)
            figures = producer_metrics(producer)
            topic = producer.metrics()["producer-topic-metrics.t"]  # type: ignore[index]
            assert amount(figures["record-error-rate"]) == pytest.approx(1, rel=0.02)
            assert topic["record-error-rate"] == pytest.approx(
                figures["record-error-rate"], rel=0.01
            )

    @pytest.mark.timed
    def test_times(self, kafka_3: MockCluster) -> None:
        with made(kafka_3, linger_ms=200) as producer:
            producer.partitions_for("t")
            kafka_3.faults.append(Slow(0.4, api=ProduceRequest.API_KEY))
            begun_s = time.monotonic()
            producer.send("t", b"v", partition=0).get(10)
            took_ms = (time.monotonic() - begun_s) * 1000
            figures = producer_metrics(producer)
        assert 190 <= figures["record-queue-time-avg"] == figures["record-queue-time-max"]
        assert figures["record-queue-time-max"] <= took_ms - 390
        assert 390 <= figures["request-latency-max"] <= took_ms - 190
        assert 0 < figures["request-latency-avg"] < figures["request-latency-max"]
        assert 0 <= figures["metadata-age"] < 60
        assert figures["throttle-time-max"] == figures["throttle-time-avg"] == 0

    def test_throttle_times(self, kafka_3: MockCluster) -> None:
        kafka_3.faults.append(Throttle(0.3, api=ProduceRequest.API_KEY, times=1))
        with made(kafka_3) as producer:
            producer.send("t", b"v", partition=0).get(10)
            figures = producer_metrics(producer)
        assert figures["throttle-time-max"] == 300
        assert 0 < figures["throttle-time-avg"] < 300

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_compression(self, kafka_3: MockCluster, codec: str) -> None:
        with made(kafka_3, linger_ms=50, compression_type=codec) as producer:
            for size in (5, 4_000, 500):
                producer.send("t", b"v" * size, partition=0, timestamp_ms=NOW_MS)
            producer.flush()
            figures = producer_metrics(producer)
        plain_bytes = 61 + sum(record_bytes(size) for size in (5, 4_000, 500))
        assert figures["record-size-max"] == record_bytes(4_000)
        assert figures["compression-rate-avg"] < 0.2
        assert figures["compression-rate-avg"] == figures["batch-size-avg"] / plain_bytes

    def test_requests_in_flight(self, kafka_3: MockCluster) -> None:
        with made(kafka_3) as producer:
            producer.send("t", b"v", partition=0).get(10)
            kafka_3.pause(kafka_3.leader("t", 0))
            future = producer.send("t", b"v", partition=0)
            kafka_3.wait_until(lambda: producer_metrics(producer)["requests-in-flight"] >= 1)
            kafka_3.heal()
            future.get(30)
            kafka_3.wait_until(lambda: producer_metrics(producer)["requests-in-flight"] == 0)


class TestReporters:
    def test_are_made_and_fed_and_closed(self, kafka_3: MockCluster) -> None:
        made_here: list[Any] = []

        class Reporter(kafka.metrics.DictReporter):
            def __init__(self) -> None:
                super().__init__("")
                self.closed = False
                made_here.append(self)

            def close(self) -> None:
                self.closed = True

        with made(kafka_3, metric_reporters=[Reporter, Reporter]) as producer:
            producer.send("t", b"v", partition=0).get(10)
            one, other = made_here
            snapshot = one.snapshot()
            assert {g: set(names) for g, names in snapshot.items()} == {
                g: set(names) for g, names in other.snapshot().items()
            }
            assert sum(map(len, snapshot.values())) == len(producer.metrics(raw=True) or ())
            assert not one.closed
        assert one.closed
        assert other.closed
        assert producer.metrics() == {}

    @pytest.mark.parametrize("group", ["producer-topic-metrics", "producer-node-metrics"])
    def test_what_one_raises_ends_no_connection_and_holds_up_no_record(
        self, kafka_3: MockCluster, group: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Raising(kafka.metrics.DictReporter):
            def metric_change(self, metric: Any) -> None:
                if metric.metric_name.group.startswith(group):
                    raise ZeroDivisionError

            def close(self) -> None:
                raise ZeroDivisionError

        with made(kafka_3, metric_reporters=[lambda: Raising("")]) as producer:
            assert producer.send("t", b"v", partition=0).get(10).offset == 0
            assert producer.send("t", b"w", partition=0).get(10).offset == 1
        assert [r.message.split(":")[0] for r in caplog.records if r.levelname == "ERROR"] == [
            "A metrics reporter raised"
        ]


class TestLittle:
    def test_a_topic_that_is_gone_leaves_no_figures(self) -> None:
        figures = Figures(Config(client_id="me").values)
        for topic in ("t", "u"):
            figures([RecordsSettled(1.0, topic, 0, 0, 1, 0.1)])
        assert {"producer-topic-metrics.t", "producer-topic-metrics.u"} <= set(
            figures.read(raw=False)
        )
        figures([TopicGone(2.0, "t", 0), TopicGone(2.0, "u")])  # one partition; all of them
        assert "producer-topic-metrics.t" in figures.read(raw=False)
        assert "producer-topic-metrics.u" not in figures.read(raw=False)
        figures([RecordsSettled(3.0, "u", 0, 0, 1, 0.1)])  # it may come back
        assert "producer-topic-metrics.u" in figures.read(raw=False)

    def test_largest_records_are_looked_for_a_thousandth_of_the_time(self) -> None:
        builder = RecordBatchBuilder()
        for size in (10, 300, 70_000, 20):
            builder.append(0, b"k", b"v" * size, ())
        batch = builder.seal(0)
        sizes = RecordSizes()
        assert sizes.largest(batch, 100.0) == 70_012
        took_s = 4 * 2e-7
        assert sizes.largest(batch, 100.0 + 999 * took_s) is None
        assert sizes.largest(batch, 100.0 + 1_001 * took_s) == 70_012

    def test_may_be_read_while_things_happen(self, kafka_3: MockCluster) -> None:
        failures: list[BaseException] = []
        ended = threading.Event()

        def read() -> None:
            try:
                while not ended.is_set():
                    producer.metrics()
                    producer.metrics(raw=True)
            except BaseException as error:
                failures.append(error)

        with made(kafka_3) as producer:
            readers = [threading.Thread(target=read) for _ in range(2)]
            for reader in readers:
                reader.start()
            for number in range(8):
                kafka_3.create_topic(f"many-{number}")
                producer.send(f"many-{number}", b"v").get(10)
            ended.set()
            for reader in readers:
                reader.join()
        assert not failures
