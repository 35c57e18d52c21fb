"""A forked child leaves the parent's connections alone, and may produce on its own."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outlast.config import Config
from outlast.engine.messages import ConnectionLost, Outcome
from outlast.errors import ClosedError, DeliveryError
from outlast.future import Delivery, DeliveryFuture
from outlast.io import process
from outlast.io.thread import Driver
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer
from tests.net.broker import until
from tests.net.engine import Engine, new_delivery

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # that is the point
]


@pytest.fixture
def cluster() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(1, rng=random.Random(1))) as server:
        server.create_topic("t", 1)
        yield server


def driver_for(bootstrap: str, **more: Any) -> Driver:
    config = Config(bootstrap_servers=bootstrap, linger_ms=200)
    return Driver(config.settings, config.values, new_delivery=new_delivery, **more)


def put(driver: Driver, value: bytes = b"v") -> DeliveryFuture:
    batch, index = driver.append("t", 0, None, value, (), 0, 10.0)
    assert isinstance(batch.delivery, Delivery)
    return DeliveryFuture(batch.delivery, index, 0, -1, len(value), -1)


def in_child(work: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """What `work` returns in a forked child."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = json.dumps(work())
        except BaseException as error:
            told = json.dumps(repr(error))
        os.write(write_end, told.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        watchdog = threading.Timer(timeout_s, os.kill, (pid, 9))
        watchdog.start()
        told = pipe.read()
        os.waitpid(pid, 0)
        watchdog.cancel()
    assert told, "the child hung"
    return json.loads(told)


def failure_of(future: DeliveryFuture) -> list[str]:
    try:
        future.get(0.1)
    except DeliveryError as error:
        return [error.kind, error.outcome.value]
    return ["delivered"]


def test_parent_and_child_each_go_on(cluster: ClusterServer) -> None:
    lost: list[object] = []

    def observer(fact: object) -> None:
        if isinstance(fact, ConnectionLost):
            lost.append(fact)

    driver = driver_for(cluster.bootstrap, observers=[observer])
    try:
        put(driver, b"before").get(10)
        inherited = put(driver, b"inherited")  # lingers
        threads = threading.active_count()

        def child() -> Any:
            told = [failure_of(inherited), threading.active_count()]
            driver.flush(1.0)
            future = put(driver, b"child")
            driver.flush(10.0)
            told += [future.succeeded(), threading.active_count()]
            driver.close(5.0)
            return [*told, threading.active_count()]

        assert in_child(child) == [["forked", Outcome.UNKNOWN.value], 1, True, 2, 1]
        assert inherited.get(10)
        put(driver, b"after").get(10)
        assert lost == []
        assert threading.active_count() == threads
    finally:
        driver.close(5)
    values = sorted(record.value for record in cluster.records("t", 0))
    assert values == [b"after", b"before", b"child", b"inherited"]


def test_the_child_closes_its_copies_of_the_descriptors(cluster: ClusterServer) -> None:
    driver = driver_for(cluster.bootstrap)
    try:
        put(driver).get(10)
        here = len(os.listdir("/proc/self/fd"))
        # Gone are the connections, the epoll set and the two ends for waking; the pipe has come.
        there = in_child(lambda: len(os.listdir("/proc/self/fd")))
        assert here - there >= 5 - 2
    finally:
        driver.close(5)


def test_a_driver_that_was_closed_stays_closed(cluster: ClusterServer) -> None:
    driver = driver_for(cluster.bootstrap)
    driver.close(5)

    def child() -> Any:
        with pytest.raises(ClosedError):
            put(driver)
        driver.close(1)
        return "closed"

    assert in_child(child) == "closed"


def test_closing_in_the_child_before_use(cluster: ClusterServer) -> None:
    driver = driver_for(cluster.bootstrap)
    try:
        put(driver).get(10)

        def child() -> Any:
            driver.close(1)
            return "closed"

        assert in_child(child) == "closed"
        assert put(driver).get(10)
    finally:
        driver.close(5)


def test_fork_while_another_thread_holds_the_lock() -> None:
    engines: list[Engine] = []

    def new_sender(_now: float) -> Any:
        engines.append(Engine())
        return engines[-1]

    driver = driver_for("127.0.0.1:9", new_sender=new_sender)
    go, holding = threading.Event(), threading.Event()

    def hold() -> None:
        holding.set()
        go.wait(20)

    inherited = put(driver)
    engines[0].on_append = hold
    holder = threading.Thread(target=put, args=(driver,))
    holder.start()
    assert holding.wait(5)

    def child() -> Any:
        told = failure_of(inherited)
        future = put(driver)
        engines[-1].settle()
        return [*told, future.get(5).offset]

    begun_s = time.monotonic()
    assert in_child(child) == ["forked", Outcome.UNKNOWN.value, 7]
    assert time.monotonic() - begun_s < 8
    go.set()
    holder.join(5)
    engines[0].on_append = None
    engines[0].settle()
    until(lambda: inherited.is_done)
    assert inherited.value.offset == 7
    driver.close(1)


def test_a_fork_in_a_callback(cluster: ClusterServer) -> None:
    driver = driver_for(cluster.bootstrap)
    told: list[Any] = []

    def callback(_: object) -> None:
        told.append(in_child(lambda: put(driver, b"child").get(10).offset))

    try:
        put(driver, b"parent").add_callback(callback)
        driver.flush(20)
        assert told == [1]
        assert put(driver).get(10).offset == 2
    finally:
        driver.close(5)


def test_a_child_without_room_for_a_thread_says_so_until_there_is(cluster: ClusterServer) -> None:
    driver = driver_for(cluster.bootstrap)
    start = threading.Thread.start
    refused = 0

    def no_room(thread: threading.Thread) -> None:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    def child() -> Any:
        threading.Thread.start = no_room  # type: ignore[assignment,method-assign]
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                put(driver, b"child")
        return put(driver, b"child").get(10).offset

    try:
        put(driver, b"parent").get(10)
        assert in_child(child) == 1
    finally:
        driver.close(5)


def test_a_fork_while_another_thread_begins_a_producer(
    cluster: ClusterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of what is done before the fork there is one more."""
    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: dropped.append(what.exc_value))
    drivers = [driver_for(cluster.bootstrap)]
    inherited = put(drivers[0])

    def profile(_frame: Any, event: str, _arg: Any) -> None:
        if event == "call" and len(drivers) < 10:
            sys.setprofile(None)
            drivers.append(driver_for(cluster.bootstrap))
            sys.setprofile(profile)

    sys.setprofile(profile)
    try:
        assert in_child(lambda: inherited.exception.outcome.value) == Outcome.UNKNOWN.value
    finally:
        sys.setprofile(None)
        for driver in drivers:
            driver.close(5)
    assert not dropped


def test_children_draw_lots_of_their_own() -> None:
    """Workers that are forked from one process must not reconnect in step."""
    first, second = (in_child(process.RNG.random) for _ in range(2))
    assert len({first, second, process.RNG.random()}) == 3
