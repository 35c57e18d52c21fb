"""The surface is kafka-python's: whatever its KafkaProducer has, ours has of its own."""

from __future__ import annotations

import gc
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import kafka
import kafka.errors
import psutil
import pytest
from kafka.future import Future
from kafka.producer.future import FutureRecordMetadata

import outlast
from outlast import config
from outlast.future import DeliveryFuture

THEIRS, OURS = kafka.KafkaProducer, outlast.KafkaProducer
FROM_OBJECT = {"__class__", "__dict__", "__doc__", "__module__", "__weakref__"}


def public_members(cls: type) -> list[str]:
    return sorted(
        name
        for name in vars(cls)
        if not name.startswith("_") or (name.startswith("__") and name not in FROM_OBJECT)
    )


def signature(function: object) -> list[tuple[str, object, object]]:
    assert callable(function)
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


class TestProducer:
    def test_there_is_something_to_compare(self) -> None:
        members = public_members(THEIRS)
        assert {"send", "flush", "close", "__del__", "__enter__", "__str__"} <= set(members)

    @pytest.mark.parametrize("name", public_members(THEIRS))
    def test_member_is_overridden(self, name: str) -> None:
        assert name in vars(OURS), f"{name} is inherited: it would use the parent's missing state"

    @pytest.mark.parametrize(
        "name", [name for name in public_members(THEIRS) if callable(getattr(THEIRS, name))]
    )
    def test_same_signature(self, name: str) -> None:
        theirs, ours = signature(getattr(THEIRS, name)), signature(getattr(OURS, name))
        assert [(n, k) for n, k, _ in ours] == [(n, k) for n, k, _ in theirs]
        assert [d for _, _, d in ours] == [d for _, _, d in theirs]

    def test_every_keyword_and_default(self) -> None:
        theirs, ours = THEIRS.DEFAULT_CONFIG, OURS.DEFAULT_CONFIG
        assert set(theirs) <= set(ours)
        different = {
            name
            for name in theirs
            if ours[name] != theirs[name] and type(ours[name]) is not type(theirs[name])
        } | {
            name
            for name in theirs
            if isinstance(theirs[name], (int, float, str, tuple, type(None)))
            and ours[name] != theirs[name]
        }
        assert different == {"reconnect_backoff_max_ms"}
        assert set(OURS.DEPRECATED_CONFIGS) == set(THEIRS.DEPRECATED_CONFIGS)
        assert ours == config.DEFAULTS

    def test_is_one(self) -> None:
        assert issubclass(OURS, THEIRS)
        with OURS(bootstrap_servers="127.0.0.1:1") as producer:
            assert isinstance(producer, THEIRS)

    @pytest.mark.parametrize("version", [(0, 8), (0, 10), (0, 10, 0), (0, 11), (2, 8), (4, 0)])
    def test_max_usable_produce_magic(self, version: tuple[int, ...]) -> None:
        assert OURS.max_usable_produce_magic(version) == THEIRS.max_usable_produce_magic(version)


class TestFuture:
    @pytest.mark.parametrize(
        "name",
        sorted(
            name
            for cls in (Future, FutureRecordMetadata)
            for name, member in vars(cls).items()
            if not name.startswith("_") and inspect.isfunction(member)
        ),
    )
    def test_same_signature(self, name: str) -> None:
        theirs, ours = getattr(FutureRecordMetadata, name), getattr(DeliveryFuture, name)
        assert signature(ours) == signature(theirs)

    @pytest.mark.parametrize("name", ["is_done", "value", "exception", "args"])
    def test_state_is_read_only_and_comes_from_the_delivery(self, name: str) -> None:
        assert isinstance(vars(DeliveryFuture)[name], property)


@pytest.fixture
def producer() -> Iterator[outlast.KafkaProducer]:
    with outlast.KafkaProducer(bootstrap_servers="127.0.0.1:1", client_id="me") as producer:
        yield producer


class TestTransactions:
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("init_transactions", ()),
            ("begin_transaction", ()),
            ("send_offsets_to_transaction", ({}, "group")),
            ("commit_transaction", ()),
            ("abort_transaction", ()),
        ],
    )
    def test_need_a_transactional_id(
        self, producer: outlast.KafkaProducer, name: str, arguments: tuple[object, ...]
    ) -> None:
        with pytest.raises(kafka.errors.IllegalStateError, match="Cannot"):
            getattr(producer, name)(*arguments)


class TestLooks:
    def test_str(self, producer: outlast.KafkaProducer) -> None:
        assert str(producer) == "<KafkaProducer client_id=me transactional_id=None>"

    def test_config_is_normalised(self, producer: outlast.KafkaProducer) -> None:
        assert producer.config["acks"] == -1
        assert producer.config["client_id"] == "me"
        assert producer.config["enable_idempotence"] is True
        assert producer.config["api_version"] == config.NEWEST_API_VERSION
        assert set(THEIRS.DEFAULT_CONFIG) <= set(producer.config)

    def test_nothing_has_happened_yet(self, producer: outlast.KafkaProducer) -> None:
        assert producer.gaps() == []
        assert producer.stalls() == []
        assert producer.bootstrap_connected() is False

    def test_metrics(self, producer: outlast.KafkaProducer) -> None:
        metrics = producer.metrics()
        assert metrics is not None
        assert metrics["outlast-metrics"]["record-send-total"] == 0
        assert metrics["kafka-metrics-count"]["count"] >= 5
        raw = producer.metrics(raw=True)
        assert raw is not None
        assert {name.group for name in raw} == set(metrics)

    def test_metrics_can_be_off_and_reporters_hear_of_them(self) -> None:
        with outlast.KafkaProducer(
            bootstrap_servers="127.0.0.1:1", metrics_enabled=False
        ) as producer:
            assert producer.metrics() is None
        heard: list[object] = []

        class Reporter(kafka.metrics.DictReporter):  # type: ignore[misc]
            def metric_change(self, metric: object) -> None:
                heard.append(metric)

            def close(self) -> None:
                heard.append("closed")

        with outlast.KafkaProducer(
            bootstrap_servers="127.0.0.1:1", metric_reporters=[Reporter]
        ) as producer:
            assert heard
        assert heard[-1] == "closed"
        assert producer.metrics() == {}


class TestNothingHalfBuilt:
    @pytest.mark.parametrize(
        ("keywords", "error"),
        [
            ({"nonsense": 1}, ValueError),
            ({"acks": 7}, ValueError),
            ({"linger_ms": "5"}, TypeError),
            ({"bootstrap_servers": "a:b"}, ValueError),
            ({"transactional_id": "t"}, kafka.errors.KafkaConfigurationError),
            ({"delivery_timeout_ms": 1}, kafka.errors.KafkaConfigurationError),
            (
                {"security_protocol": "SSL", "ssl_cafile": "no/such/file.pem"},
                kafka.errors.KafkaConfigurationError,
            ),
        ],
        ids=str,
    )
    def test_no_thread_and_no_socket_stays_behind(
        self, keywords: dict[str, Any], error: type[Exception]
    ) -> None:
        process = psutil.Process()
        gc.collect()
        threads, descriptors = threading.active_count(), process.num_fds()
        with pytest.raises(error):
            OURS(**keywords)
        gc.collect()
        assert threading.active_count() == threads
        assert process.num_fds() == descriptors
