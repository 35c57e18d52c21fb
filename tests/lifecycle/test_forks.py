"""What a forked child finds, when its parent was busy at that very moment."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.errors import IllegalStateError, KafkaError
from prometheus_client import CollectorRegistry

from outlast import KafkaProducer, Outcome
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic
from tests.net.test_fork import in_child
from tests.tcp.stories import calm_cluster

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # that is the point
]

FORKS = 15
EVENTS = frozenset({"call", "return", "c_return"})  # where CPython looks for signals


@pytest.fixture(scope="module")
def server() -> Iterator[ClusterServer]:
    with calm_cluster(1) as server:
        yield server


@pytest.fixture
def producer(server: ClusterServer) -> Iterator[KafkaProducer]:
    with KafkaProducer(
        bootstrap_servers=server.bootstrap, metrics_registry=None, linger_ms=20
    ) as producer:
        yield producer


def test_callbacks_run_in_the_parent_and_nothing_comes_back_in_the_child(
    server: ClusterServer,
) -> None:
    topic = new_topic(server)
    told: list[str] = []
    with KafkaProducer(
        bootstrap_servers=server.bootstrap,
        metrics_registry=None,
        linger_ms=300,
        on_undelivered=lambda _: told.append("undelivered"),
    ) as producer:
        producer.partitions_for(topic)
        future = producer.send(topic, b"inherited")
        future.add_callback(lambda _: told.append("delivered"))
        future.add_errback(lambda _: told.append("failed"))

        def child() -> Any:
            error = future.exception
            assert error is not None
            late: list[str] = []
            future.add_errback(lambda _: late.append("added in the child"))
            return [told, late, error.outcome.name]

        assert in_child(child) == [[], ["added in the child"], Outcome.UNKNOWN.name]
        assert future.get(timeout=10).offset == 0
        producer.flush()
        assert told == ["delivered"]


def test_a_fork_waits_for_a_callback_so_that_all_of_it_or_nothing_is_inherited(
    server: ClusterServer, producer: KafkaProducer
) -> None:
    topic = new_topic(server)
    producer.partitions_for(topic)
    begun, told = threading.Event(), []

    def callback(_: object) -> None:
        begun.set()
        time.sleep(0.3)
        told.append("told")

    futures = [producer.send(topic, b"%d" % n) for n in range(2)]
    futures[0].add_callback(callback)
    assert begun.wait(10)
    assert in_child(lambda: [told, [f.succeeded() for f in futures]]) == [["told"], [True, True]]


def test_a_child_that_is_forked_in_a_callback_may_wait(
    server: ClusterServer, producer: KafkaProducer
) -> None:
    topic = new_topic(server)
    told: queue.Queue[Any] = queue.Queue()

    def callback(_: object) -> None:
        told.put(in_child(lambda: producer.send(topic, b"child").get(10).topic))

    producer.send(topic, b"v").add_callback(callback)
    assert told.get(timeout=15) == topic
    assert producer.send(topic, b"v").get(10)


def test_forks_beside_threads_that_send_wait_and_add_callbacks(
    server: ClusterServer, producer: KafkaProducer
) -> None:
    """Locks of futures, of the engine and of the metrics are taken at any moment."""
    topic = new_topic(server)
    producer.partitions_for(topic)
    over = threading.Event()
    recent: tuple[Any, ...] = (producer.send(topic, b"first"),)

    def send() -> None:
        nonlocal recent
        while not over.is_set():
            recent = (*recent[-5:], producer.send(topic, b"v"))

    def listen() -> None:
        while not over.is_set():
            for future in recent:
                future.add_callback(lambda _: None)
            time.sleep(0)

    def wait() -> None:
        while not over.is_set():
            for future in recent:
                if not future.is_done:
                    with contextlib.suppress(KafkaError):
                        future.get(timeout=0.0005)

    def child() -> Any:
        for future in recent:
            with contextlib.suppress(IllegalStateError):  # it is the parent's
                future.get(timeout=5)
            future.add_both(lambda _: None)
        return producer.send(topic, b"child").get(timeout=10).topic

    usual_s = sys.getswitchinterval()
    threads = [threading.Thread(target=work) for work in (send, listen, listen, wait)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(FORKS):
            assert in_child(child) == topic
    finally:
        sys.setswitchinterval(usual_s)
        over.set()
        for thread in threads:
            thread.join(10)
    producer.flush(timeout=20)
    stored = [record.value for record in server.records(topic, 0)]
    assert stored.count(b"child") == FORKS


def test_a_fork_waits_for_a_callback_and_for_nothing_else(server: ClusterServer) -> None:
    """What counts metrics is held after the producers: held before them, it would keep the thread
    that runs the callback from ending what the fork waits for.
    """
    topic, inside = new_topic(server), threading.Event()

    def callback(_metadata: object) -> None:
        inside.set()
        time.sleep(0.2)  # it takes its time

    with KafkaProducer(
        bootstrap_servers=server.bootstrap, metrics_registry=CollectorRegistry()
    ) as producer:
        producer.send(topic, b"v").add_callback(callback)
        assert inside.wait(10)
        begun_s = time.monotonic()
        assert in_child(lambda: "child") == "child"
        assert time.monotonic() - begun_s < 0.8


class HandledError(Exception):
    """Raised by a signal handler."""


def test_a_signal_handler_that_raises_while_a_fork_is_under_way_leaves_no_lock_taken(
    server: ClusterServer, producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python drops what is raised there. Each step of what is done around a fork is tried."""
    topic = new_topic(server)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    registry = CollectorRegistry()
    with KafkaProducer(bootstrap_servers=server.bootstrap, metrics_registry=registry) as other:
        producers = (producer, other)
        step, more = 0, True
        while more:
            step += 1
            more = fork_broken_off(step)
            for one in producers:
                assert sent_elsewhere(one, topic), f"locked for good at step {step}"
        assert step > 10


def fork_broken_off(step: int) -> bool:
    """Fork, with an exception at one step of ours, counted from 1. False: there were less."""
    count = 0

    def profile(frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        if event in EVENTS and "outlast" in frame.f_code.co_filename:
            count += 1
            if count == step:
                raise HandledError

    sys.setprofile(profile)
    try:
        pid = os.fork()
    finally:
        sys.setprofile(None)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return count == step


def sent_elsewhere(producer: KafkaProducer, topic: str) -> bool:
    """Whether a thread that holds no lock can send, and is told."""
    offsets: list[int] = []
    thread = threading.Thread(
        target=lambda: offsets.append(producer.send(topic, b"v").get(timeout=5).offset),
        daemon=True,
    )
    thread.start()
    thread.join(6)
    return bool(offsets)
