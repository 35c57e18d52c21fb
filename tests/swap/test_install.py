"""`install()` and `uninstall()`: whose producer an application gets, and what stays as it is."""

from __future__ import annotations

import abc
import copy
import inspect
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Generic, TypeVar

import kafka
import kafka.producer.kafka
import pytest
from kafka import KafkaProducer as ImportedBefore
from kafka.admin import KafkaAdminClient

import outlast
from outlast.testing import MockCluster

T = TypeVar("T")


def arrives(cluster: MockCluster, producer: Any, value: bytes) -> bool:
    """It is sent, acknowledged and in the log; then the producer is closed."""
    offset = producer.send("t", value).get(10).offset
    producer.close()
    return cluster.records("t", 0)[offset].value == value


# --- whose it is ----------------------------------------------------------------------------------


def test_every_name_under_which_it_was_imported(installed: None, cluster: MockCluster) -> None:
    from kafka import KafkaProducer as ImportedAfter

    names = (
        ImportedBefore,
        ImportedAfter,
        kafka.KafkaProducer,
        kafka.producer.KafkaProducer,
        kafka.producer.kafka.KafkaProducer,
    )
    for number, name in enumerate(names):
        producer = name(bootstrap_servers=cluster.bootstrap_servers)
        assert type(producer) is outlast.KafkaProducer
        assert isinstance(producer, kafka.KafkaProducer)
        assert type(producer).__name__ == "KafkaProducer"
        assert producer.gaps() == []
        assert arrives(cluster, producer, b"name %d" % number)


class ByName(ImportedBefore):
    """As many write it, and with calls that go round `super()`."""

    def __init__(self, servers: str, **configs: Any) -> None:
        kafka.KafkaProducer.__init__(self, bootstrap_servers=servers, **configs)
        self.calls: list[str] = []

    def send(self, topic: str, *args: Any, **keywords: Any) -> Any:
        self.calls.append("send")
        return ImportedBefore.send(self, topic, *args, **keywords)

    def close(self, *args: Any, **keywords: Any) -> None:
        self.calls.append("close")
        ImportedBefore.close(self, *args, **keywords)


class BySuper(ImportedBefore):
    def __init__(self, servers: str, **configs: Any) -> None:
        self.calls: list[str] = []
        super().__init__(bootstrap_servers=servers, **configs)

    def send(self, topic: str, *args: Any, **keywords: Any) -> Any:
        self.calls.append("send")
        return super().send(topic, *args, **keywords)

    def close(self, *args: Any, **keywords: Any) -> None:
        self.calls.append("close")
        super().close(*args, **keywords)

    def __getstate__(self) -> Any:
        return self.config["bootstrap_servers"]

    def __setstate__(self, servers: Any) -> None:
        self.__init__(servers)


class Below(BySuper):
    """A subclass's subclass."""


class Registered(ImportedBefore):
    """Its subclasses must say a name, and are counted."""

    known: ClassVar[list[str]] = []

    def __init_subclass__(cls, *, name: str) -> None:
        cls.known.append(name)

    def __init__(self, servers: str) -> None:
        super().__init__(bootstrap_servers=servers)
        self.calls = ["send", "close"]


class Slotted(BySuper, abc.ABC):
    __slots__ = ("more",)

    def __init__(self, servers: str) -> None:
        self.more = 1
        super().__init__(servers)


class Meta(type):
    """Somebody's own."""


class Mixin:
    def close(self, *args: Any, **keywords: Any) -> None:
        super().close(*args, **keywords)


class After(BySuper, Mixin):
    """With other bases after it."""


class Single(BySuper):
    """Makes its objects itself."""

    def __new__(cls, servers: str) -> Single:
        assert servers
        return object.__new__(cls)


SUBCLASSES = [ByName, BySuper, Below, Registered, Slotted, After, Single]


@pytest.mark.parametrize("kind", SUBCLASSES, ids=lambda kind: kind.__name__)
def test_a_subclass_keeps_its_methods_and_gets_our_engine(
    kind: Any, installed: None, cluster: MockCluster
) -> None:
    producer = kind(cluster.bootstrap_servers)
    twin = type(producer)
    for expected in (kind, outlast.KafkaProducer, kafka.KafkaProducer):
        assert isinstance(producer, expected)
        assert issubclass(twin, expected)
    assert (twin.__name__, twin.__qualname__) == (kind.__name__, kind.__qualname__)
    assert (twin.__module__, twin.__doc__) == (kind.__module__, kind.__doc__)
    assert type(twin) is type(kind)
    assert producer.health().open_gaps == ()
    assert arrives(cluster, producer, kind.__name__.encode())
    assert producer.calls == ["send", "close"]
    again = kind(cluster.bootstrap_servers)
    assert type(again) is twin
    again.close()


def test_a_metaclass_generics_and_a_guarded_setattr(installed: None, cluster: MockCluster) -> None:
    class Guarded(BySuper, Generic[T], metaclass=Meta):
        def __setattr__(self, name: str, value: Any) -> None:
            assert name != "__class__"
            super().__setattr__(name, value)

    producer = Guarded[int](cluster.bootstrap_servers)
    assert isinstance(producer, outlast.KafkaProducer)
    assert type(type(producer)) is Meta
    assert arrives(cluster, producer, b"guarded")


def test_a_hook_for_subclasses_is_not_called_for_what_we_make(
    installed: None, cluster: MockCluster
) -> None:
    Registered(cluster.bootstrap_servers).close()
    assert Registered.known == []


def test_a_picklable_subclass_stays_so(installed: None, cluster: MockCluster) -> None:
    producer = BySuper(cluster.bootstrap_servers)
    producer.close()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        text = pickle.dumps(producer, protocol)
        there = pickle.loads(text)
        assert type(there) is type(producer)
        assert arrives(cluster, there, b"pickled %d" % protocol)
    copied = copy.copy(producer)
    assert arrives(cluster, copied, b"copied")


class Rebuilt(ImportedBefore):
    """Pickles as people write it."""

    def __init__(self, servers: str) -> None:
        super().__init__(bootstrap_servers=servers)

    def __reduce__(self) -> Any:
        return self.__class__, (self.config["bootstrap_servers"],)


def test_a_class_that_pickles_itself_stays_picklable(installed: None, cluster: MockCluster) -> None:
    producer = Rebuilt(cluster.bootstrap_servers)
    there = pickle.loads(pickle.dumps(producer))
    producer.close()
    assert isinstance(there, outlast.KafkaProducer)
    assert arrives(cluster, there, b"rebuilt")
    assert pickle.loads(pickle.dumps(Rebuilt)) is Rebuilt
    assert pickle.loads(pickle.dumps(kafka.KafkaProducer)) is kafka.KafkaProducer


def test_keywords_and_their_errors_are_ours(installed: None) -> None:
    threads = threading.active_count()
    with pytest.raises(ValueError, match=r"Unrecognized configs: 'linger'.*did you mean linger_ms"):
        kafka.KafkaProducer(linger=1)
    with pytest.raises(TypeError):
        kafka.KafkaProducer("localhost:9092")
    producer = kafka.KafkaProducer(bootstrap_servers="localhost:1", buffer_memory=100_000)
    producer.close(0)
    assert threading.active_count() == threads


def test_the_class_attributes_are_ours_too(installed: None, cluster: MockCluster) -> None:
    """Applications take what they know of a file's keys from it, or pass all of it on."""
    assert "buffer_memory" in kafka.KafkaProducer.DEFAULT_CONFIG
    settings = copy.copy(kafka.KafkaProducer.DEFAULT_CONFIG)
    settings["bootstrap_servers"] = cluster.bootstrap_servers
    producer = kafka.KafkaProducer(**settings)
    assert producer.config["reconnect_backoff_max_ms"] == 1_000
    assert arrives(cluster, producer, b"all defaults")


def test_signatures_are_as_before() -> None:
    kinds = (kafka.KafkaProducer, ByName, kafka.KafkaProducer.send, kafka.KafkaProducer.close)
    before = [inspect.signature(kind) for kind in kinds]
    outlast.install()
    try:
        assert [inspect.signature(kind) for kind in kinds] == before
    finally:
        outlast.uninstall()


# --- what does not change -------------------------------------------------------------------------


def members() -> dict[str, dict[str, Any]]:
    """Everything in kafka's modules and their classes."""
    found: dict[str, dict[str, Any]] = {}
    for name, module in list(sys.modules.items()):
        if name == "kafka" or name.startswith("kafka."):
            found[name] = dict(vars(module))
            for value in vars(module).values():
                if isinstance(value, type) and value.__module__.startswith("kafka."):
                    found[f"{value.__module__}.{value.__qualname__}"] = dict(vars(value))
    return found


def test_only_the_producers_class_changes_and_uninstall_puts_all_back() -> None:
    before = members()
    outlast.install()
    while_installed = members()
    outlast.uninstall()
    assert members() == before
    changed = {name for name, held in while_installed.items() if held != before[name]}
    assert changed == {"kafka.producer.kafka.KafkaProducer"}


def test_consumer_and_admin_client_work_beside_it(installed: None, cluster: MockCluster) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    offset = producer.send("t", b"read me").get(10).offset
    producer.close()
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    assert "t" in admin.list_topics()
    admin.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    partition = kafka.TopicPartition("t", 0)
    consumer.assign([partition])
    consumer.seek(partition, offset)
    assert next(consumer).value == b"read me"
    consumer.close()


@pytest.fixture
def kafka_pythons(cluster: MockCluster) -> Iterator[Any]:
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    assert not isinstance(producer, outlast.KafkaProducer)
    yield producer
    producer.close()


def test_producers_that_exist_already_stay_kafka_pythons(
    kafka_pythons: Any, installed: None, cluster: MockCluster
) -> None:
    assert not isinstance(kafka_pythons, outlast.KafkaProducer)
    assert kafka_pythons.partitions_for("t") == {0}
    assert arrives(cluster, kafka_pythons, b"old")


def test_producers_of_ours_stay_so_after_uninstall(cluster: MockCluster) -> None:
    outlast.install()
    plain = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    subclass = BySuper(cluster.bootstrap_servers)
    outlast.uninstall()
    after = BySuper(cluster.bootstrap_servers)
    assert not isinstance(after, outlast.KafkaProducer)
    assert type(after) is BySuper
    assert arrives(cluster, after, b"kafka-python's")
    assert arrives(cluster, plain, b"plain")
    assert arrives(cluster, subclass, b"twin")


def test_it_is_a_switch_and_not_a_count() -> None:
    before = members()
    outlast.uninstall()  # without effect
    assert members() == before
    outlast.install()
    once = members()
    outlast.install()
    assert members() == once
    outlast.uninstall()
    assert members() == before


def test_what_somebody_else_has_put_there_stays() -> None:
    """A tracer that wraps `send`, and does not expect us to take that away."""
    before = vars(kafka.KafkaProducer)["send"]
    outlast.install()

    def traced(self: Any, *args: Any, **keywords: Any) -> Any:
        raise AssertionError("never called")

    kafka.KafkaProducer.send = traced
    try:
        outlast.uninstall()
        assert vars(kafka.KafkaProducer)["send"] is traced
    finally:
        kafka.KafkaProducer.send = before


def test_outlasts_own_class_is_the_same_swapped_or_not(
    installed: None, cluster: MockCluster
) -> None:
    assert outlast.KafkaProducer.__bases__[-1] is kafka.KafkaProducer
    producer = outlast.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    assert type(producer) is outlast.KafkaProducer
    assert arrives(cluster, producer, b"direct")


@pytest.fixture
def rapid_switches() -> Iterator[None]:
    """Threads take turns as often as they can, so that what is not guarded shows."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


def test_threads_that_install_and_build_at_once(rapid_switches: None) -> None:
    before = members()
    workers = 4
    barrier = threading.Barrier(workers)

    def work(kind: Any) -> type:
        barrier.wait()
        outlast.install()
        producer = kind(bootstrap_servers="localhost:1")
        producer.close(0)
        return type(producer)

    with ThreadPoolExecutor(workers) as pool:
        for _ in range(20):
            fresh = type("Fresh", (ImportedBefore,), {})  # without a twin yet
            try:
                kinds = set(pool.map(work, [fresh] * workers))
            finally:
                outlast.uninstall()
            assert len(kinds) == 1
            assert issubclass(kinds.pop(), outlast.KafkaProducer)
            assert members() == before
