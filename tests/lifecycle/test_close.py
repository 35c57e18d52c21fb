"""close() closes in its time, whatever brokers, callbacks and other threads do; flush() ends."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from outlast import BlockedError, ClosedError, KafkaProducer
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic
from tests.lifecycle.programs import run
from tests.real.kafka_cluster import until
from tests.tcp.stories import calm_cluster

SLACK_S = 0.6  # the I/O thread's last round, on a busy machine
MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with calm_cluster(3) as server:
        yield server


def made(server: ClusterServer | str, **settings: Any) -> KafkaProducer:
    where = server if isinstance(server, str) else server.bootstrap
    return KafkaProducer(bootstrap_servers=where, metrics_registry=None, **settings)


def unreachable(server: ClusterServer, how: str) -> None:
    for node in (1, 2, 3):
        if how == "silent":
            server.pause(node)
        else:
            server.kill(node)


def timed(call: Callable[..., object], *arguments: object, **more: Any) -> float:
    begun_s = time.monotonic()
    call(*arguments, **more)
    return time.monotonic() - begun_s


@pytest.mark.timed
class TestInItsTime:
    @pytest.mark.parametrize("timeout_s", [0, 0.5])
    @pytest.mark.parametrize("how", ["dead", "silent"])
    def test_brokers_that_are_away(self, server: ClusterServer, how: str, timeout_s: float) -> None:
        topic = new_topic(server, 3)
        threads = threading.active_count()
        producer = made(server)
        for partition in range(3):
            producer.send(topic, b"first", partition=partition).get(10)
        unreachable(server, how)
        futures = [producer.send(topic, b"v", partition=n % 3) for n in range(30)]
        took_s = timed(producer.close, timeout=timeout_s)
        assert timeout_s <= took_s < timeout_s + SLACK_S
        assert all(future.failed() for future in futures)
        assert threading.active_count() == threads
        assert timed(producer.close) < SLACK_S

    def test_no_broker_ever(self) -> None:
        with made("127.0.0.1:9", max_block_ms=50) as producer:
            with pytest.raises(BlockedError):
                producer.send("t", b"v")
            assert timed(producer.close, timeout=5) < SLACK_S, "there is nothing to wait for"

    def test_a_negative_time_is_refused_and_closes_nothing(self, server: ClusterServer) -> None:
        topic = new_topic(server)
        with made(server) as producer:
            with pytest.raises(ValueError, match="Invalid timeout"):
                producer.close(timeout=-1)
            assert producer.send(topic, b"v").get(10)

    def test_from_a_callback_with_dead_brokers(self, server: ClusterServer) -> None:
        topic = new_topic(server)
        threads = threading.active_count()
        producer = made(server, delivery_timeout_ms=1500, request_timeout_ms=500)
        producer.send(topic, b"first").get(10)
        unreachable(server, "dead")
        took_s: list[float] = []
        future = producer.send(topic, b"v")
        future.add_errback(lambda _: took_s.append(timed(producer.close, timeout=0.5)))
        until(lambda: took_s, "the callback")
        assert took_s[0] < 0.2
        until(lambda: threading.active_count() == threads, "its threads are gone")

    def test_from_two_threads_the_shorter_one_counts(self, server: ClusterServer) -> None:
        topic = new_topic(server)
        producer = made(server)
        producer.send(topic, b"first").get(10)
        unreachable(server, "silent")
        future = producer.send(topic, b"v")
        longer = threading.Thread(target=producer.close)
        longer.start()
        until(lambda: "closed" in refusal(producer, topic), "the first close has begun")
        took_s = timed(producer.close, timeout=0.5)
        assert 0.5 <= took_s < 0.5 + SLACK_S
        assert future.failed()
        longer.join(SLACK_S)
        assert not longer.is_alive()

    def test_interrupted_it_can_be_closed_again(self, server: ClusterServer) -> None:
        topic = new_topic(server)
        threads = threading.active_count()
        producer = made(server)
        producer.send(topic, b"first").get(10)
        unreachable(server, "silent")
        future = producer.send(topic, b"v")
        ctrl_c = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        ctrl_c.start()
        with pytest.raises(KeyboardInterrupt):
            producer.close()
        ctrl_c.join()
        assert timed(producer.close, timeout=0) < SLACK_S
        assert future.failed()
        assert threading.active_count() == threads

    def test_with_and_an_exception(self, server: ClusterServer) -> None:
        topic = new_topic(server)
        futures = []

        def send_and_fail() -> None:
            with made(server, linger_ms=60_000) as producer:
                futures.append(producer.send(topic, b"v"))
                raise ArithmeticError

        with pytest.raises(ArithmeticError):
            send_and_fail()
        assert futures[0].succeeded()


def refusal(producer: KafkaProducer, topic: str) -> str:
    try:
        producer.send(topic, b"v")
    except ClosedError as error:
        return str(error)
    return ""


@pytest.mark.timed
def test_flush_has_one_budget_and_ends_while_a_flood_goes_on(server: ClusterServer) -> None:
    topic = new_topic(server, 3)
    over = threading.Event()
    with made(server) as producer:
        producer.partitions_for(topic)

        def flood() -> None:
            while not over.is_set():
                producer.send(topic, b"flood")

        threads = [threading.Thread(target=flood) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            futures = [producer.send(topic, b"mine", partition=n % 3) for n in range(300)]
            assert timed(producer.flush) < 5
            assert all(future.succeeded() for future in futures)
        finally:
            over.set()
            for thread in threads:
                thread.join(10)
        producer.flush(timeout=10)
        unreachable(server, "silent")
        for n in range(30):
            producer.send(topic, b"v", partition=n % 3)
        begun_s = time.monotonic()
        with pytest.raises(BlockedError):
            producer.flush(timeout=0.5)
        assert 0.5 <= time.monotonic() - begun_s < 0.5 + SLACK_S
        producer.close(timeout=0)


def test_32_threads_send_each_in_its_own_order(server: ClusterServer) -> None:
    topic = new_topic(server, 4)
    with made(server, buffer_memory=200_000) as producer:

        def work(name: int) -> None:
            for n in range(100):
                producer.send(topic, b"%d %d" % (name, n), partition=name % 4)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        producer.flush(timeout=10)
    stored = [record.value.split() for p in range(4) for record in server.records(topic, p)]
    assert len(stored) == 3200
    for name in range(32):
        assert [int(n) for who, n in stored if int(who) == name] == list(range(100))


def test_b72_500_producers_leave_nothing(server: ClusterServer) -> None:
    topic = new_topic(server)
    process = psutil.Process()

    def once() -> None:
        producer = made(server)
        futures = [producer.send(topic, b"v") for _ in range(5)]
        producer.close(timeout=10)
        assert all(future.succeeded() for future in futures)

    for _ in range(20):  # what is made once, and what the allocator keeps
        once()
    gc.collect()
    begun = threading.active_count(), process.num_fds()
    begun_bytes = process.memory_info().rss
    for _ in range(500):
        once()
    gc.collect()
    until(lambda: process.num_fds() <= begun[1], "the cluster's ends are closed too")
    assert (threading.active_count(), process.num_fds()) == begun
    assert process.memory_info().rss - begun_bytes < 10 * MIB


HUNDRED = """
import gc, json, psutil
process = psutil.Process()

def grown(count):
    producers = [made() for _ in range(count)]
    for producer in producers:
        producer.send(sys.argv[2], b"v").get(20)
    if sys.argv[3] == "close":
        for producer in producers:
            producer.close(timeout=10)
    del producer, producers
    gc.collect()
    while threading.active_count() > 1:
        time.sleep(0.01)
    gc.collect()
    return [process.num_fds(), process.memory_info().rss]

print(json.dumps([grown(count) for count in (5, 100, 100)]))
"""


@pytest.mark.parametrize("end", ["close", "collect"])
def test_100_producers_at_once_leave_nothing(server: ClusterServer, end: str) -> None:
    """The second hundred needs what the first has given back, though not to the system."""
    ended = run(HUNDRED, server.bootstrap, new_topic(server), end)
    assert (ended.code, ended.err) == (0, "")
    before, first, second = json.loads(ended.out)
    print(ended.out)
    assert before[0] == first[0] == second[0]
    assert first[1] - before[1] < 10 * MIB
    assert second[1] - first[1] < 10 * MIB / 2
