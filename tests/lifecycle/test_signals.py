"""A signal handler runs between any two steps of the main thread, and may raise or call again."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.errors import IllegalStateError

from outlast import BlockedError, KafkaProducer
from outlast.testing.server import ClusterServer
from tests.real.kafka_cluster import until
from tests.tcp.stories import TOPIC, calm_cluster, warm_producer

EVENTS = frozenset({"call", "return", "c_return"})  # where CPython looks for signals


class HandledError(Exception):
    """Raised by a signal handler."""


@contextmanager
def interrupted(step: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Act at one step of this thread, counted from 1. Gives how many there were."""
    steps = [0]

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event in EVENTS and frame.f_code.co_filename != __file__:
            steps[0] += 1
            if steps[0] == step:
                act()

    sys.setprofile(profile)
    try:
        yield steps
    finally:
        sys.setprofile(None)


def raise_it() -> None:
    raise HandledError


@pytest.fixture(scope="module")
def server() -> Iterator[ClusterServer]:
    with calm_cluster(3) as server:
        yield server


def takes(producer: KafkaProducer) -> bool:
    """Whether there is room, and metadata, within `max_block_ms`."""
    try:
        producer.send(TOPIC, bytes(500), partition=1)
    except BlockedError:
        return False
    return True


def values(server: ClusterServer, partition: int) -> list[bytes | None]:
    return [record.value for record in server.records(TOPIC, partition)]


@pytest.mark.source  # a step is a line that is traced
@pytest.mark.parametrize("linger_ms", [0, 10])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_an_exception_at_any_step_of_send_costs_one_record_at_most(
    server: ClusterServer, linger_ms: int, compression: str | None
) -> None:
    with warm_producer(
        server, 3, linger_ms=linger_ms, compression_type=compression, batch_size=300
    ) as producer:
        begun = len(values(server, 0))
        sure: list[bytes] = []
        doubtful: list[bytes] = []
        step, steps = 0, 1
        while step <= steps:
            step += 1
            value = b"%d" % step
            sure.append(b"before %d" % step)
            producer.send(TOPIC, sure[-1], partition=0)
            try:
                with interrupted(step, raise_it) as count:
                    producer.send(TOPIC, value, partition=0)
                steps = max(steps, count[0])
                sure.append(value)
            except HandledError:
                steps = max(steps, step)
                doubtful.append(value)
            sure.append(b"after %d" % step)
            future = producer.send(TOPIC, sure[-1], partition=0)
            assert future.get(timeout=5).partition == 0
        assert len(doubtful) > 20
        producer.flush(timeout=5)
        assert producer.health().buffer_bytes == 0
        stored = values(server, 0)[begun:]
        assert len(set(stored)) == len(stored)
        assert [value for value in stored if value not in doubtful] == sure


def test_an_exception_at_any_step_of_a_wait_for_room_takes_no_room(
    server: ClusterServer,
) -> None:
    with KafkaProducer(
        bootstrap_servers=server.bootstrap,
        buffer_memory=20_000,
        batch_size=0,  # every record takes the same
        max_block_ms=30,
        metrics_registry=None,
    ) as producer:
        until(lambda: takes(producer), "the topic is known")
        producer.flush(timeout=5)

        def fill() -> int:
            taken = 0
            while takes(producer):
                taken += 1
            return taken

        for node in (1, 2, 3):
            server.pause(node)
        room = fill()
        cut, step, steps = 0, 0, 1
        while step <= steps:
            step += 1
            try:
                with interrupted(step, raise_it) as count:
                    producer.send(TOPIC, bytes(500), partition=1)
            except BlockedError:
                steps = max(steps, count[0])
            except HandledError:
                steps = max(steps, step)
                cut += 1
        assert cut > 50
        for node in (1, 2, 3):
            server.resume(node)
        producer.flush(timeout=10)
        assert producer.health().buffer_bytes == 0
        for node in (1, 2, 3):
            server.pause(node)
        again = fill()
        for node in (1, 2, 3):
            server.resume(node)
        assert again == room


@pytest.mark.source  # so is this
def test_a_handler_may_send_and_is_told_where_that_cannot_be(server: ClusterServer) -> None:
    told: list[IllegalStateError] = []
    taken: list[bytes] = []
    with warm_producer(server, 3) as producer:
        begun = len(values(server, 2))

        def send_again() -> None:
            sys.setprofile(None)
            try:
                producer.send(TOPIC, b"handler", partition=2)
                taken.append(b"handler")
                producer.partitions_for(TOPIC)
                producer.health()
            except IllegalStateError as error:
                told.append(error)

        step, steps = 0, 1
        while step <= steps:
            step += 1
            with interrupted(step, send_again) as count:
                producer.send(TOPIC, b"main", partition=2)
            taken.append(b"main")
            steps = max(steps, min(step, count[0]))
        producer.flush(timeout=5)
        assert sorted(values(server, 2)[begun:]) == sorted(taken)
        assert len(told) > 3
        assert all("signal handler" in str(error) for error in told)


@pytest.mark.parametrize("call", ["close", "flush"])
def test_a_handler_may_close_or_flush_at_any_step(server: ClusterServer, call: str) -> None:
    longest_s, elsewhere, step, steps = 0.0, 0, 1, 40
    threads = threading.active_count()
    while step <= steps:
        with warm_producer(server, 1, linger_ms=20) as producer:
            raised: list[BaseException] = []

            def act(producer: KafkaProducer = producer, raised: Any = raised) -> None:
                sys.setprofile(None)
                try:
                    getattr(producer, call)(timeout=5)
                except IllegalStateError as error:
                    raised.append(error)

            begun_s = time.monotonic()
            with interrupted(step, act):
                try:
                    future = producer.send(TOPIC, b"v", partition=0)
                except IllegalStateError:  # it was closed before that came to it
                    future = None
            longest_s = max(longest_s, time.monotonic() - begun_s)
            elsewhere += bool(raised)
        if future is not None:
            assert future.get(timeout=5)
        step += 3
    assert longest_s < 2.0
    assert (elsewhere > 0) == (call == "flush")
    until(lambda: threading.active_count() <= threads, "no thread stays")
