"""What `producer.metrics()` tells: kafka-python's groups and names, with the values that are true.

All of kafka-python's figures are here, under its names and with its units, as its own `KafkaMetric`
objects, so that `raw=True` and `metric_reporters` go on to work; and a group of ours,
`outlast-metrics`. Counted per request and per batch, never per record, from three sources:

* connections, whose parsers are metered (`io.metering`): what a Produce request carries counts when
  it is written, again if it is written again;
* settled batches: their time in the queue, compression, retries and largest record;
* facts of the engine: failed records, connections, metadata, gaps.

All of them come on the I/O thread; reading is any thread's. Reporters are the user's code: what
they raise ends no connection and holds up no record. kafka-python's objects, 45 kB a producer, are
made for who wants them: with a reporter at once, else when they are first read.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.metrics import AnonMeasurable, MetricConfig, Metrics
from kafka.protocol.producer import ProduceRequest

from outlast.engine.batch import Batch
from outlast.engine.messages import (
    ConnectionClosed,
    ConnectionOpened,
    Fact,
    GapEnded,
    GapOpened,
    MetadataRefreshed,
    RecordsSettled,
    TopicGone,
)
from outlast.future import Delivery, Hearing
from outlast.io.metering import MeteredParser
from outlast.record_sizes import RecordSizes
from outlast.samples import Samples, Source, average, frequency, largest, rate

log = logging.getLogger(__name__)

PRODUCER = "producer-metrics"
OURS = "outlast-metrics"
_RECORD_COUNT = slice(57, 61)  # of a record batch (engine.record_batch)


class Figures:
    """Counts for one producer."""

    hears_batches = True

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._config = MetricConfig(
            samples=values["metrics_num_samples"],
            time_window_ms=values["metrics_sample_window_ms"],
            tags={"client-id": values["client_id"]},
        )
        reporters = [_Reporter(reporter()) for reporter in values["metric_reporters"]]
        self._metrics = Metrics(self._config, reporters)
        self._nodes: dict[str, _Node] = {}
        self._topics: dict[str, _Topic] = {}
        self._lock = threading.RLock()  # of these and what is listed; a reporter may read
        self._listed = False
        self._parsers: list[weakref.ref[MeteredParser]] = []  # replaced whole: others read it
        self._queue_ms, self._per_request = self._samples(), self._samples()
        self._record_bytes, self._sizes = self._samples(), RecordSizes()
        self._opened, self._closed = self._samples(), self._samples()
        self._sent = self._failed = self._gaps = self._gaps_ended = self._connections = 0
        self._gap_seconds = 0.0
        self._refreshed_s: float | None = None
        if reporters:
            self._list()

    def __repr__(self) -> str:
        return f"<Figures sent={self._sent} failed={self._failed} gaps={self._gaps}>"

    # --- counting, on the I/O thread ---

    def __call__(self, facts: Sequence[Fact]) -> None:
        """Count these facts."""
        for fact in facts:
            match fact:
                case RecordsSettled():
                    self._settled(fact)
                case ConnectionOpened():
                    self._connections += 1
                    self._opened.record(1, time.monotonic() * 1000)
                case ConnectionClosed():
                    self._connections -= 1
                    self._closed.record(1, time.monotonic() * 1000)
                case MetadataRefreshed(ok=True):
                    self._refreshed_s = fact.at_s
                case TopicGone(partition=None):
                    self._forget(fact.topic)
                case GapOpened():
                    self._gaps += 1
                case GapEnded():
                    self._gaps_ended += 1
                    self._gap_seconds += fact.gap.duration_s

    def _settled(self, fact: RecordsSettled) -> None:
        self._sent += fact.acked
        self._failed += fact.failed
        if fact.failed:
            self._topic(fact.topic).errors.record(fact.failed, time.monotonic() * 1000)

    def meter(self, node_id: int, parser: MeteredParser) -> _Node:
        """The meter of a new connection; bootstrap addresses are called as in kafka-python."""
        others = [known for known in self._parsers if known() is not None]
        self._parsers = [*others, weakref.ref(parser)]
        name = str(node_id) if node_id >= 0 else f"bootstrap-{-1 - node_id}"
        node = self._nodes.get(name)
        if node is None:
            node = _Node(self._samples, self.produced)
            with self._lock:
                self._nodes[name] = node
                if self._listed:
                    self._register_node(name, node)
        return node

    def produced(self, request: Any, now_ms: float) -> None:
        """A Produce request was written."""
        records = 0
        for topic in request.topic_data:
            figures = self._topic(topic.name)
            for partition in topic.partition_data:
                count = int.from_bytes(partition.records[_RECORD_COUNT], "big")
                figures.records.record(count, now_ms)
                figures.batch_bytes.record(len(partition.records), now_ms)
                records += count
        self._per_request.record(records, now_ms)

    def batch_settled(self, batch: Batch) -> None:
        """A batch is done with."""
        if batch.data is None or not batch.attempts:
            return
        now_s = time.monotonic()
        now_ms = now_s * 1000
        topic = self._topic(batch.topic)
        self._queue_ms.record((batch.attempts[0].sent_s - batch.created_s) * 1000, now_ms)
        topic.compression.record(len(batch.data) / batch.plain_bytes, now_ms)
        retries = len(batch.attempts) + batch.attempts_left_out - 1
        if retries:
            topic.retries.record(retries * batch.count, now_ms)
        size_bytes = self._sizes.largest(batch.data, now_s)
        if size_bytes is not None:
            self._record_bytes.record(size_bytes, now_ms)

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = _Topic(self._samples)
            with self._lock:
                self._topics[name] = topic
                if self._listed:
                    self._register_topic(name, topic)
        return topic

    def _forget(self, topic: str) -> None:
        with self._lock:
            if self._topics.pop(topic, None) is not None:
                for name in list(self._metrics.metrics):
                    if name.group == _group_of(topic):
                        self._metrics.remove_metric(name)

    def _samples(self) -> Samples:
        return Samples(self._config)

    # --- reading ---

    def read(self, *, raw: bool) -> dict[Any, Any]:
        """Values by group and name, or kafka-python's objects by MetricName."""
        self._list()
        metrics: dict[Any, Any] = self._metrics.metrics.copy()
        if raw:
            return metrics
        groups: dict[str, dict[str, float]] = {}
        for name, metric in metrics.items():
            groups.setdefault(name.group, {})[name.name] = metric.value()
        return groups

    def close(self) -> None:
        """Close the reporters; nothing is told from here on, and there are no figures any more."""
        with self._lock:
            self._listed = True
        self._metrics.close()

    # --- the list of figures ---

    def _list(self) -> None:
        """Make kafka-python's objects, unless that was done."""
        with self._lock:
            if self._listed:
                return
            self._listed = True
            self._register_traffic(PRODUCER, lambda: list(self._nodes.values()))
            self._register_records()
            self._register_ours()
            for name, node in self._nodes.items():
                self._register_node(name, node)
            for name, topic in self._topics.items():
                self._register_topic(name, topic)

    def _register_node(self, name: str, node: _Node) -> None:
        self._register_traffic(f"producer-node-metrics.node-{name}", lambda: [node])

    def _register_traffic(self, group: str, nodes: Callable[[], list[_Node]]) -> None:
        """What goes over connections, to one node or to all."""

        def of(name: str) -> Source:
            return lambda: [getattr(node, name) for node in nodes()]

        add = self._add
        add(group, "outgoing-byte-rate", rate(of("sent_bytes")), "Bytes of requests per second")
        add(group, "request-rate", frequency(of("sent_bytes")), "Requests per second")
        add(group, "request-size-avg", average(of("sent_bytes")), "Bytes of a request, on average")
        add(group, "request-size-max", largest(of("sent_bytes")), "Bytes of the largest request")
        add(group, "incoming-byte-rate", rate(of("read_bytes")), "Bytes read per second")
        add(group, "response-rate", frequency(of("latency_ms")), "Answers per second")
        add(group, "request-latency-avg", average(of("latency_ms")), "Time to the answer in ms")
        add(group, "request-latency-max", largest(of("latency_ms")), "Longest such time in ms")
        add(group, "throttle-time-avg", average(of("throttle_ms")), "Throttle time told, in ms")
        add(group, "throttle-time-max", largest(of("throttle_ms")), "Longest such time in ms")

    def _register_records(self) -> None:
        def of(name: str) -> Source:
            return lambda: [getattr(topic, name) for topic in list(self._topics.values())]

        def reads_and_writes() -> list[Samples]:
            nodes = list(self._nodes.values())
            return [node.sent_bytes for node in nodes] + [node.read_bytes for node in nodes]

        def one(samples: Samples) -> Source:
            return lambda: [samples]

        def add(name: str, measurable: AnonMeasurable, description: str) -> None:
            self._add(PRODUCER, name, measurable, description)

        def now(read: Callable[[], float]) -> AnonMeasurable:
            return AnonMeasurable(lambda _config, _now: read())

        add("network-io-rate", frequency(reads_and_writes), "Reads and writes per second")
        add("connection-creation-rate", rate(one(self._opened)), "Connections per second")
        add("connection-close-rate", rate(one(self._closed)), "Connections ended per second")
        add("connection-count", now(lambda: self._connections), "Open connections")
        add("requests-in-flight", now(self._in_flight), "Requests that wait for an answer")
        add("metadata-age", now(self._metadata_age_s), "Seconds since metadata came")
        add("record-send-rate", rate(of("records")), "Records sent per second")
        add("byte-rate", rate(of("batch_bytes")), "Bytes of batches sent per second")
        add("batch-size-avg", average(of("batch_bytes")), "Bytes of a batch, on average")
        add("batch-size-max", largest(of("batch_bytes")), "Bytes of the largest batch")
        add("compression-rate-avg", average(of("compression")), "Sent bytes by plain bytes")
        add("record-retry-rate", rate(of("retries")), "Records sent again per second")
        add("record-error-rate", rate(of("errors")), "Records failed per second")
        requests, queued, sizes = map(one, (self._per_request, self._queue_ms, self._record_bytes))
        add("records-per-request-avg", average(requests), "Records of a request, on average")
        add("record-queue-time-avg", average(queued), "Milliseconds until a batch is first sent")
        add("record-queue-time-max", largest(queued), "Longest such time in ms")
        add("record-size-avg", average(sizes), "Bytes of a batch's largest record, on average")
        add("record-size-max", largest(sizes), "Bytes of the largest record")

    def _register_topic(self, name: str, topic: _Topic) -> None:
        group = _group_of(name)
        add = self._add
        add(group, "record-send-rate", rate(lambda: [topic.records]), f"Records/s of {name}")
        add(group, "byte-rate", rate(lambda: [topic.batch_bytes]), f"Bytes/s of {name}")
        add(group, "compression-rate", average(lambda: [topic.compression]), f"Ratio of {name}")
        add(group, "record-retry-rate", rate(lambda: [topic.retries]), f"Records/s again: {name}")
        add(group, "record-error-rate", rate(lambda: [topic.errors]), f"Failed/s of {name}")

    def _register_ours(self) -> None:
        for name, description, read in (
            ("record-send-total", "Records delivered", lambda: self._sent),
            ("record-error-total", "Records failed", lambda: self._failed),
            ("gaps-total", "Rejection gaps opened", lambda: self._gaps),
            ("gaps-open", "Gaps open now", lambda: self._gaps - self._gaps_ended),
            ("gap-seconds-total", "Seconds of ended gaps", lambda: self._gap_seconds),
        ):
            self._add(OURS, name, AnonMeasurable(lambda _c, _now, r=read: r()), description)

    def _add(self, group: str, name: str, measurable: AnonMeasurable, description: str) -> None:
        self._metrics.add_metric(self._metrics.metric_name(name, group, description), measurable)

    def _in_flight(self) -> int:
        return sum(parser.in_flight for known in self._parsers if (parser := known()) is not None)

    def _metadata_age_s(self) -> float:
        if self._refreshed_s is None:
            return float("nan")
        return time.monotonic() - self._refreshed_s


def _group_of(topic: str) -> str:
    return f"producer-topic-metrics.{topic}"


class _Reporter:
    """A user's reporter. The first exception that it raises later than at its start is logged."""

    __slots__ = ("_raised", "_reporter")

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter
        self._raised = False

    def __repr__(self) -> str:
        return f"<Reporter {self._reporter!r}>"

    def init(self, metrics: list[Any]) -> None:
        """As `AbstractMetricsReporter.init`; what it raises is the constructor's to raise."""
        self._reporter.init(metrics)

    def metric_change(self, metric: Any) -> None:
        """As `AbstractMetricsReporter.metric_change`."""
        self._tell(self._reporter.metric_change, metric)

    def metric_removal(self, metric: Any) -> None:
        """As `AbstractMetricsReporter.metric_removal`."""
        self._tell(self._reporter.metric_removal, metric)

    def close(self) -> None:
        """As `AbstractMetricsReporter.close`."""
        self._tell(self._reporter.close)

    def _tell(self, method: Callable[..., Any], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:
            if not self._raised:
                self._raised = True
                log.exception("A metrics reporter raised: %r", self._reporter)


class _Node:
    """The meter of one broker's connections."""

    __slots__ = ("_produced", "latency_ms", "read_bytes", "sent_bytes", "throttle_ms")

    def __init__(
        self, samples: Callable[[], Samples], produced: Callable[[Any, float], None]
    ) -> None:
        self._produced = produced
        self.sent_bytes, self.read_bytes = samples(), samples()
        self.latency_ms, self.throttle_ms = samples(), samples()

    def sent(self, request: Any, size_bytes: int) -> None:
        """A request was written."""
        now_ms = time.monotonic() * 1000
        self.sent_bytes.record(size_bytes, now_ms)
        if type(request) is ProduceRequest:
            self._produced(request, now_ms)

    def read(self, size_bytes: int) -> None:
        """Bytes came."""
        self.read_bytes.record(size_bytes, time.monotonic() * 1000)

    def answered(self, latency_s: float, throttle_ms: int) -> None:
        """A request was answered."""
        now_ms = time.monotonic() * 1000
        self.latency_ms.record(latency_s * 1000, now_ms)
        self.throttle_ms.record(throttle_ms, now_ms)


class _Topic:
    """What was sent to one topic."""

    __slots__ = ("batch_bytes", "compression", "errors", "records", "retries")

    def __init__(self, samples: Callable[[], Samples]) -> None:
        self.records, self.batch_bytes, self.compression = samples(), samples(), samples()
        self.retries, self.errors = samples(), samples()


class MeteredDelivery(Delivery):
    """A delivery whose batches are counted."""

    __slots__ = ("_figures",)

    def __init__(self, hearing: Hearing, figures: Figures) -> None:
        super().__init__(hearing)
        self._figures = figures

    def settle(self, batch: Batch) -> None:
        """Count the batch, then tell its futures."""
        try:
            self._figures.batch_settled(batch)
        finally:
            super().settle(batch)
