"""What the facade does before a record meets the engine; the driver below it is a stub."""

# ruff: noqa: ARG002

from __future__ import annotations

import gc
import itertools
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import kafka.errors
import pytest
from kafka.partitioner import DefaultPartitioner, Partitioner, StickyPartitioner

import outlast.assembly
import outlast.producer
from outlast import BlockedError, ClosedError, KafkaProducer, Outcome, Undelivered
from outlast.engine.batch import Batch, Result
from outlast.io.thread import Refused

DEADLINE_S = 10.0


class StubDriver:
    """Takes records into one batch per partition; settles them when told to."""

    def __init__(
        self, settings: Any, keywords: Any, *, new_delivery: Callable[..., Any], observers: Any
    ) -> None:
        self.new_delivery = new_delivery
        self.observers = observers
        self.appended: list[tuple[Any, ...]] = []
        self.batches: dict[tuple[str, int | None], Batch] = {}
        self.closed_with: list[float | None] = []
        self.flushed_with: list[float | None] = []
        self.in_callback = False
        self.is_inside = lambda: False  # see Entrance
        self.broker_version: tuple[int, ...] | None = None
        self.raises: Exception | None = None
        self.partitions = frozenset(range(4))
        stubs.append(self)

    def append(self, *arguments: Any) -> tuple[Batch, int]:
        if self.raises is not None:
            raise self.raises
        self.appended.append(arguments)
        topic, partition, key, value, headers, timestamp_ms, _ = arguments
        place = (topic, partition)
        batch = self.batches.get(place)
        if batch is None:
            batch = self.batches[place] = Batch((topic, partition or 0), 0.0)
            batch.delivery = self.new_delivery(batch)
        assert batch.builder is not None
        batch.builder.append(timestamp_ms, key, value, headers)
        batch.count += 1
        return batch, batch.count - 1

    def partitions_for(self, topic: str, max_block_s: float) -> frozenset[int]:
        if self.raises is not None:
            raise self.raises
        return self.partitions

    def available_partitions(self, _: str) -> tuple[int, ...]:
        return tuple(sorted(self.partitions))

    def begins_batch(self, topic: str, partition: int, _: int) -> bool:
        return (topic, partition) not in self.batches

    def give_back(self, refused: Refused) -> None:
        refused.give_back()

    def settle(self, result: Result) -> None:
        for batch in self.batches.values():
            batch.result = result
            batch.delivery.settle(batch)  # type: ignore[attr-defined]
        self.batches.clear()

    def flush(self, timeout_s: float | None) -> None:
        self.flushed_with.append(timeout_s)

    def close(self, timeout_s: float | None) -> None:
        self.closed_with.append(timeout_s)

    def gaps(self) -> list[Any]:
        return []


stubs: list[StubDriver] = []
Made = Callable[..., tuple[KafkaProducer, StubDriver]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    monkeypatch.setattr(outlast.assembly, "Driver", StubDriver)
    made = []

    def make(**keywords: Any) -> tuple[KafkaProducer, StubDriver]:
        producer = KafkaProducer(**keywords)
        made.append(producer)
        return producer, stubs[-1]

    yield make
    for producer in made:
        producer.close()
    stubs.clear()


class TestSend:
    def test_reaches_the_driver(self, make: Made) -> None:
        producer, driver = make(max_block_ms=1_500)
        headers = [("a", b"1"), ("ü", b"")]
        future = producer.send("t", b"v", b"k", headers, 3, 1_234)
        assert driver.appended == [("t", 3, b"k", b"v", headers, 1_234, 1.5)]
        assert future.args == (0, 1_234, None, 1, 1, 4)
        second = producer.send("t", b"vv", partition=3)
        assert second.args[0] == 1
        assert second.args[3:] == (-1, 2, -1)
        driver.settle(Result(base_offset=40))
        assert (future.get(0).offset, second.get(0).offset) == (40, 41)

    def test_now_is_the_default_time(self, make: Made) -> None:
        producer, driver = make()
        before = int(time.time() * 1000)
        producer.send("t", b"v")
        after = int(time.time() * 1000)
        assert before <= driver.appended[0][5] <= after

    def test_without_a_key_or_with_one_the_engine_chooses(self, make: Made) -> None:
        for partitioner in (DefaultPartitioner(), StickyPartitioner()):
            producer, driver = make(partitioner=partitioner)
            producer.send("t", b"v")
            producer.send("t", b"v", b"k")
            assert [record[1] for record in driver.appended] == [None, None]

    def test_mutable_bytes_are_copied(self, make: Made) -> None:
        producer, driver = make()
        value, key = bytearray(b"value"), memoryview(b"key")
        producer.send("t", value, key)
        value[0:5] = b"other"
        assert driver.appended[0][2:4] == (b"key", b"value")

    def test_numbers_that_only_act_like_ints(self, make: Made) -> None:
        class Index:
            def __index__(self) -> int:
                return 2

        producer, driver = make()
        producer.send("t", b"v", partition=Index())
        assert driver.appended[0][1] == 2


LARGE = b"x" * 2_000_000
BAD_RECORDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topic": "t"}, ValueError, "Need at least one: key or value"),
    ({"topic": None, "value": b"v"}, TypeError, "must not be None"),
    ({"topic": b"t", "value": b"v"}, TypeError, "must be strings"),
    ({"topic": "", "value": b"v"}, ValueError, "non-empty"),
    ({"topic": "a/b", "value": b"v"}, ValueError, "illegal"),
    ({"topic": "..", "value": b"v"}, ValueError, "cannot be"),
    ({"topic": "t" * 250, "value": b"v"}, ValueError, "longer than"),
    ({"topic": "t", "value": "v"}, TypeError, "Unsupported type for serialized value: <class 'str"),
    ({"topic": "t", "key": 7}, TypeError, "Unsupported type for serialized key: <class 'int'>"),
    ({"topic": "t", "value": b"v", "headers": {}}, TypeError, "headers must be list-type, not dic"),
    ({"topic": "t", "value": b"v", "headers": ()}, TypeError, "headers must be list-type, not tup"),
    ({"topic": "t", "value": b"v", "headers": [("a", None)]}, TypeError, "(str, bytes) tuples, no"),
    ({"topic": "t", "value": b"v", "headers": [(b"a", b"")]}, TypeError, "(str, bytes) tuples, no"),
    ({"topic": "t", "value": b"v", "headers": [["a", b""]]}, TypeError, "(str, bytes) tuples, no"),
    ({"topic": "t", "value": b"v", "partition": -1}, ValueError, "partition must be >= 0, not -1"),
    ({"topic": "t", "value": b"v", "partition": "1"}, TypeError, "partition='1'"),
    ({"topic": "t", "value": b"v", "timestamp_ms": 1.5}, TypeError, "timestamp_ms=1.5 is not allo"),
    ({"topic": "t", "value": b"v", "timestamp_ms": -1}, ValueError, "timestamp_ms=-1 is not allow"),
    ({"topic": "t", "value": b"v", "timestamp_ms": 2**63}, ValueError, "milliseconds since the"),
    ({"topic": "t", "value": LARGE}, kafka.errors.MessageSizeTooLargeError, "max_request_size"),
    ({"topic": "t", "key": LARGE}, kafka.errors.MessageSizeTooLargeError, "2000088 bytes"),
    (
        {"topic": "t", "value": b"v", "headers": [("h", LARGE)]},
        kafka.errors.MessageSizeTooLargeError,
        "(1048576)",
    ),
]


class TestBadRecords:
    @pytest.mark.parametrize(("record", "error", "words"), BAD_RECORDS)
    def test_class_and_message(
        self, make: Made, record: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        producer, driver = make()
        with pytest.raises(error) as caught:
            producer.send(**record)
        assert words in str(caught.value)
        assert driver.appended == []

    def test_size_limit_is_exactly_kafka_pythons(self, make: Made) -> None:
        producer, driver = make(max_request_size=1_000)
        overhead = 61 + 21 + 1 + 2 + 1  # batch, record, no key, length of the value, no headers
        producer.send("t", b"x" * (1_000 - overhead))
        with pytest.raises(kafka.errors.MessageSizeTooLargeError, match="is 1001 bytes"):
            producer.send("t", b"x" * (1_001 - overhead))
        assert len(driver.appended) == 1

    def test_what_the_driver_raises_comes_through(self, make: Made) -> None:
        producer, driver = make()
        for error in (BlockedError("late"), ValueError("no such partition"), ClosedError("x")):
            driver.raises = error
            with pytest.raises(type(error)) as caught:
                producer.send("t", b"v")
            assert caught.value is error
        driver.raises = kafka.errors.MessageSizeTooLargeError("larger than buffer_memory")
        with pytest.raises(kafka.errors.MessageSizeTooLargeError):
            producer.send("t", b"v")

    @pytest.mark.parametrize("headers", [None, [("h", b"1")]], ids=["usual", "with headers"])
    def test_a_topic_the_cluster_refuses_is_told_by_the_future(
        self, make: Made, caplog: pytest.LogCaptureFixture, headers: list[Any] | None
    ) -> None:
        back: list[Undelivered] = []
        producer, driver = make(on_undelivered=back.append)
        producer.send("t", b"v")  # its name is known to be a possible one
        driver.raises = kafka.errors.TopicAuthorizationFailedError("t")
        future = producer.send("t", b"v", b"k", headers, timestamp_ms=5)
        assert future.is_done
        with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
            future.get(0)
        (record,) = back
        assert (record.topic, record.partition, record.key, record.value) == ("t", None, b"k", b"v")
        assert (record.headers, record.timestamp_ms) == (tuple(headers or ()), 5)
        assert record.outcome is Outcome.NEVER_SENT
        assert record.error is future.exception
        assert "cannot write to topic t" in caplog.text
        with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
            producer.partitions_for("t")

    def test_a_refused_record_has_the_time_of_its_call(
        self, make: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        back: list[Undelivered] = []
        now_ns = 1_000_000_000
        monkeypatch.setattr(time, "time_ns", lambda: now_ns)
        append = StubDriver.append

        def waits(driver: StubDriver, *arguments: Any) -> tuple[Batch, int]:
            nonlocal now_ns
            now_ns += 60_000_000_000  # for metadata
            return append(driver, *arguments)

        monkeypatch.setattr(StubDriver, "append", waits)
        producer, driver = make(on_undelivered=back.append)
        producer.send("t", b"v")
        driver.raises = kafka.errors.TopicAuthorizationFailedError("t")
        producer.send("t", b"v")
        assert [record.timestamp_ms for record in back] == [61_000]

    def test_a_refused_record_is_let_go_of_with_its_future(self, make: Made) -> None:
        producer, driver = make()
        producer.send("t", b"v")
        driver.raises = kafka.errors.TopicAuthorizationFailedError("t")
        value = b"v" * 1_000
        held = sys.getrefcount(value)
        gc.disable()  # else it would be found in time, or not
        try:
            producer.send("t", value)
            driver.raises = None  # whose traceback has it, too
            assert sys.getrefcount(value) == held
        finally:
            gc.enable()

    def test_a_subclass_may_want_more_for_its_name(self, make: Made) -> None:
        class Named(KafkaProducer):
            def __init__(self, **keywords: Any) -> None:
                super().__init__(**keywords)
                self.name = "orders"

            def __str__(self) -> str:
                return self.name

        with Named() as producer:
            assert str(producer) == "orders"


class Upper(kafka.Serializer):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.closed = False

    def serialize(self, topic: str, headers: list[tuple[str, bytes]], data: Any) -> bytes:
        self.calls.append((topic, list(headers), data))
        result: bytes = data.upper().encode()
        return result

    def close(self) -> None:
        self.closed = True


class TestSerializers:
    def test_are_called_once_with_topic_headers_and_data(self, make: Made) -> None:
        key, value = Upper(), Upper()
        producer, driver = make(key_serializer=key, value_serializer=value)
        producer.send("t", "v", "k", [("h", b"1")])
        assert driver.appended[0][2:4] == (b"K", b"V")
        assert key.calls == [("t", [("h", b"1")], "k")]
        assert value.calls == [("t", [("h", b"1")], "v")]
        producer.close()
        assert key.closed
        assert value.closed

    def test_kafka_pythons_own(self, make: Made) -> None:
        producer, driver = make(
            key_serializer=kafka.DefaultSerializer(), value_serializer=kafka.JsonSerializer()
        )
        producer.send("t", {"a": 1}, "k")
        assert driver.appended[0][2:4] == (b"k", b'{"a": 1}')

    def test_a_type_error_inside_is_not_masked(self, make: Made) -> None:
        class Broken(kafka.Serializer):
            calls = 0

            def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
                self.calls += 1
                raise TypeError("not JSON serializable")

        broken = Broken()
        producer, _ = make(value_serializer=broken)
        with pytest.raises(TypeError, match="not JSON serializable"):
            producer.send("t", "v")
        assert broken.calls == 1

    def test_may_add_headers_and_never_to_another_record(self, make: Made) -> None:
        class Tagging(kafka.Serializer):
            def serialize(self, topic: str, headers: Any, data: Any) -> Any:
                headers.append(("schema", b"7"))
                return data

        producer, driver = make(value_serializer=Tagging())
        futures = [producer.send("t", b"v") for _ in range(2)]
        assert [record[4] for record in driver.appended] == [[("schema", b"7")]] * 2
        assert futures[1].args[5] == 7

    def test_headers_made_by_a_serializer_are_checked(self, make: Made) -> None:
        class Spoiling(kafka.Serializer):
            def serialize(self, topic: str, headers: Any, data: Any) -> Any:
                headers.append("junk")
                return data

        producer, _ = make(value_serializer=Spoiling())
        with pytest.raises(TypeError, match="tuples"):
            producer.send("t", b"v")

    def test_plain_callables_work_with_a_warning_at_the_callers_line(self, make: Made) -> None:
        with pytest.warns(DeprecationWarning, match="value_serializer does not") as caught:
            producer = KafkaProducer(value_serializer=str.encode)
        assert caught[0].filename == __file__
        producer.send("t", "v")
        assert stubs[-1].appended[0][3] == b"v"
        producer.close()

    def test_two_argument_serializers_work_with_a_warning(self, make: Made) -> None:
        class Old(kafka.Serializer):
            def serialize(self, topic: str, data: Any) -> bytes:
                return f"{topic}:{data}".encode()

        with pytest.warns(DeprecationWarning, match=r"serialize\(topic, headers, data\)") as caught:
            producer = KafkaProducer(value_serializer=Old())
        assert caught[0].filename == __file__
        producer.send("t", "v")
        assert stubs[-1].appended[0][3] == b"t:v"
        producer.close()

    def test_what_they_make_is_checked(self, make: Made) -> None:
        class Wrong(kafka.Serializer):
            def serialize(self, topic: str, headers: Any, data: Any) -> Any:
                return 7

        producer, _ = make(key_serializer=Wrong())
        with pytest.raises(TypeError, match="serialized key: <class 'int'>"):
            producer.send("t", b"v", "k")


class TestPartitioners:
    def test_todays_form(self, make: Made) -> None:
        asked: list[tuple[Any, ...]] = []

        class Last(Partitioner):
            def partition(self, topic: str, *record: Any) -> int:
                *rest, cluster = record
                asked.append((topic, *rest))
                assert cluster.topics() == {topic}
                assert cluster.partitions_for_topic("other") is None
                assert cluster.available_partitions_for_topic(topic) <= {0, 1, 2, 3}
                result: int = max(cluster.partitions_for_topic(topic))
                return result

        producer, driver = make(partitioner=Last(), key_serializer=Upper())
        producer.send("t", b"v", "k")
        assert driver.appended[0][1] == 3
        assert asked == [("t", "k", b"K", b"v", b"v")]
        producer.send("t", b"v", "k", partition=1)
        assert driver.appended[1][1] == 1
        assert len(asked) == 1

    def test_subclass_of_a_default_is_asked(self, make: Made) -> None:
        class Fixed(DefaultPartitioner):
            def partition(self, *arguments: Any) -> int:
                return 2

        producer, driver = make(partitioner=Fixed())
        producer.send("t", b"v")
        assert driver.appended[0][1] == 2

    def test_sticky_subclass_moves_on_with_each_batch(self, make: Made) -> None:
        class MySticky(StickyPartitioner):
            pass

        producer, driver = make(partitioner=MySticky())
        places = []
        for _ in range(6):
            for _ in range(3):
                producer.send("t", b"v")
                places.append(driver.appended[-1][1])
            driver.settle(Result(base_offset=0))  # the next record begins a new batch
        assert all(a == b == c for a, b, c in zip(*[iter(places)] * 3, strict=True))
        assert all(a != b for a, b in itertools.pairwise(places[::3]))

    def test_deprecated_forms(self, make: Made) -> None:
        class Object:
            def partition(self, topic: str, key_bytes: Any, cluster: Any) -> int:
                assert (topic, key_bytes) == ("t", b"k")
                return min(cluster.partitions_for_topic(topic)) + 1

        def function(key_bytes: Any, all_partitions: list[int], available: list[int]) -> int:
            assert (key_bytes, all_partitions, available) == (b"k", [0, 1, 2, 3], [0, 1, 2, 3])
            return 2

        for partitioner, chosen in ((Object(), 1), (function, 2)):
            with pytest.warns(DeprecationWarning, match="partitioner does not implement") as caught:
                producer = KafkaProducer(partitioner=partitioner)
            assert caught[0].filename == __file__
            producer.send("t", b"v", b"k")
            assert stubs[-1].appended[0][1] == chosen
            producer.close()

    def test_none_is_no_partition(self, make: Made) -> None:
        class Undecided(Partitioner):
            def partition(self, *arguments: Any) -> None:
                return None

        producer, _ = make(partitioner=Undecided())
        with pytest.raises(ValueError, match="Partitioner did not assign a partition for topic t!"):
            producer.send("t", b"v")

    def test_its_time_is_not_counted_but_waiting_for_metadata_is(
        self, make: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])

        class Slow(Partitioner):
            def partition(self, *arguments: Any) -> int:
                now[0] += 50.0
                return 0

        producer, driver = make(partitioner=Slow(), max_block_ms=10_000)

        def slow_metadata(topic: str, max_block_s: float) -> frozenset[int]:
            now[0] += 4.0
            return frozenset({0})

        driver.partitions_for = slow_metadata  # type: ignore[method-assign]
        producer.send("t", b"v")
        assert driver.appended[0][6] == 6.0


class TestClosing:
    def test_once(self, make: Made) -> None:
        producer, driver = make()
        producer.close(3.5)
        producer.close()
        producer.close(timeout=0)
        assert driver.closed_with == [3.5]
        with pytest.raises(kafka.errors.IllegalStateError, match="already closed"):
            producer.send("t", b"v")
        with pytest.raises(ClosedError):
            producer.partitions_for("t")
        producer.flush()

    @pytest.mark.parametrize("timeout", [-1, -0.001, 1e12])
    def test_invalid_timeouts(self, make: Made, timeout: float) -> None:
        producer, driver = make()
        with pytest.raises(ValueError, match="Invalid timeout"):
            producer.close(timeout)
        assert driver.closed_with == []

    def test_context_manager(self, make: Made) -> None:
        producer, driver = make()
        with producer as entered:
            assert entered is producer
        assert driver.closed_with == [None]

    def test_in_a_callback_it_does_not_wait(self, make: Made) -> None:
        producer, driver = make()
        driver.in_callback = True
        done = threading.Event()
        threads: list[threading.Thread] = []

        def close(timeout_s: float | None) -> None:
            threads.append(threading.current_thread())
            done.set()

        driver.close = close  # type: ignore[method-assign]
        producer.close(2)
        assert done.wait(DEADLINE_S)
        assert threads[0] is not threading.current_thread()

    def test_a_serializer_that_cannot_close_stops_nothing(
        self, make: Made, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Bad(kafka.Serializer):
            def serialize(self, topic: str, headers: Any, data: Any) -> Any:
                return data

            def close(self) -> None:
                raise RuntimeError("cannot close")

        value = Upper()
        producer, driver = make(key_serializer=Bad(), value_serializer=value)
        producer.close()
        assert driver.closed_with == [None]
        assert value.closed
        assert "cannot close" in caplog.text

    def test_collected_producers_close_within_a_second(self, make: Made) -> None:
        producer = KafkaProducer()
        driver = stubs[-1]
        done = threading.Event()

        def close(timeout_s: float | None) -> None:
            driver.closed_with.append(timeout_s)
            done.set()

        driver.close = close  # type: ignore[method-assign]
        del producer
        gc.collect()
        assert done.wait(DEADLINE_S)
        assert driver.closed_with == [1.0]

    def test_half_built_objects_are_collected_in_silence(
        self, make: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: Any, **keywords: Any) -> None:
            raise kafka.errors.KafkaConfigurationError("ssl_cafile: no such file")

        closed: list[str] = []

        class Reporter(kafka.metrics.DictReporter):
            def close(self) -> None:
                closed.append("reporter")

        monkeypatch.setattr(outlast.assembly, "Driver", fail)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(kafka.errors.KafkaConfigurationError):
                KafkaProducer(metric_reporters=[Reporter])
            with pytest.raises(ValueError, match="Unrecognized"):
                KafkaProducer(nonsense=1)
            gc.collect()
        assert closed == ["reporter"]


class TestConfig:
    def test_api_version_follows_the_brokers_unless_given(self, make: Made) -> None:
        producer, driver = make()
        driver.broker_version = (3, 7)
        assert producer.config["api_version"] == (3, 7)
        assert producer.bootstrap_connected()
        producer, driver = make(api_version=(2, 8))
        driver.broker_version = (3, 7)
        assert producer.config["api_version"] == (2, 8)

    def test_max_block_may_be_infinite(self, make: Made) -> None:
        producer, driver = make(max_block_ms=float("inf"))
        producer.send("t", b"v")
        assert driver.appended[0][6] > 365 * 86_400

    def test_on_gap_hears_of_settled_gaps_and_its_errors_are_logged(
        self, make: Made, caplog: pytest.LogCaptureFixture
    ) -> None:
        from outlast.engine.messages import Cause, Gap, GapEnded, GapSettled

        heard: list[Gap] = []

        def on_gap(gap: Gap) -> None:
            heard.append(gap)
            raise RuntimeError("pager is down")

        _, driver = make(on_gap=on_gap, metrics_registry=None)
        gap = Gap(
            topic="t",
            partition=0,
            number=1,
            cause=Cause.NOT_LEADER,
            trigger="NOT_LEADER_OR_FOLLOWER",
            begin_s=1.0,
            begin_unix_s=2.0,
            duration_s=3.0,
            phase=None,
        )
        with caplog.at_level(logging.ERROR):
            for observer in driver.observers:
                observer(GapEnded(4.0, gap))
                observer(GapSettled(4.0, gap))
        assert heard == [gap]
        assert "pager is down" in caplog.text
