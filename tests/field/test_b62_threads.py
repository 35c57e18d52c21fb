"""Field cases of section 6: buffer, threads, close, exit (B63 to B76), most of them over TCP."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from prometheus_client import CollectorRegistry

from outlast import ClosedError, KafkaProducer
from outlast.engine.batch import Result
from outlast.engine.messages import Outcome
from outlast.future import Delivery, Hearing
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer
from tests.facade.test_future import futures_of, settled
from tests.field.oracles import MAX_BLOCK_S, Account, Room, blocked, c1, logs_of, o1, o4, o6
from tests.real.kafka_cluster import until
from tests.tcp.stories import TOPIC, calm_cluster, warm_producer

MIB = 1 << 20


def test_b63_memory_does_not_follow_the_outage() -> None:
    """A thread sends 1 KiB as fast as it can and ignores errors, while the broker refuses. (How
    the process grows: tests/facade/test_memory.py.)
    """
    sim = c1(63, buffer_memory=MIB, delivery_timeout_ms=60_000)
    sim.send()
    sim.run_until(sim.all_settled)
    room = Room(sim, until_s=25.0, every_s=0.25)
    sim.refuse(1)
    sim.at(20.0, lambda: sim.accept(1))

    def send_next(last: Any) -> None:
        if last is None or last.entry.taken_at is not None or last.done:
            last = sim.send("t", 0, size_bytes=1024)
        if sim.now < 22.0:
            sim.at(sim.now + 0.005, lambda: send_next(last))

    send_next(None)
    sim.run_until(sim.all_settled, 90.0)
    refused = blocked(sim.ledger.entries)
    assert len(refused) > 3
    o6(refused)
    room.check()
    assert room.peak_bytes > 0.9 * MIB
    o1(sim.ledger.entries, logs_of(sim))
    sim.check()


@contextmanager
def threads(count: int, work: Callable[[int], None]) -> Iterator[None]:
    """Run `work(number)` in so many threads; they must end, and without an error."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    made = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in made:
        thread.start()
    yield
    for thread in made:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert errors == []


def test_b65_close_ends_in_its_time_in_a_storm_of_retries() -> None:
    timeout_s = 1.0
    before = threading.active_count()
    with calm_cluster(50) as server:
        serving = threading.active_count()
        with warm_producer(server, 50) as producer:
            for node in (1, 2, 3):
                server.kill(node)
            futures = [producer.send(TOPIC, b"v", partition=n % 50) for n in range(1000)]
            ended_s: list[float] = []

            def send_on(_: int) -> None:
                while True:
                    try:
                        futures.append(producer.send(TOPIC, b"more", partition=0))
                    except ClosedError:
                        ended_s.append(time.monotonic())
                        return
                    time.sleep(0.005)

            with threads(4, send_on):
                until(lambda: len(futures) >= 1100, "the storm is on, four threads go on")
                begin_s = time.monotonic()
                producer.close(timeout=timeout_s)
                took_s = time.monotonic() - begin_s
            assert took_s <= timeout_s + 0.5
            assert max(ended_s) - begin_s <= 0.3
            assert all(future.is_done for future in futures)
            outcomes = {future.exception.outcome for future in futures if future.failed()}
            assert outcomes <= {Outcome.NEVER_SENT, Outcome.UNKNOWN, Outcome.NOT_ACCEPTED}
            producer.close(timeout=0)
        until(lambda: threading.active_count() == serving, "the producer's thread is gone")
    until(lambda: threading.active_count() <= before, "the servers' threads are gone")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_b67_a_callback_that_exits_does_not_end_the_engine(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    with calm_cluster(1) as server, warm_producer(server, 1) as producer:

        def leave(_: object) -> None:
            raise error("from a callback")

        producer.send(TOPIC, b"a", partition=0).add_callback(leave)
        later = [producer.send(TOPIC, b"%d" % n, partition=0) for n in range(5)]
        for future in later:
            assert future.get(timeout=5).offset > 0
        producer.flush(timeout=5)
        assert producer.send(TOPIC, b"b", partition=0).get(timeout=5)
        assert "from a callback" in caplog.text


def test_b69_each_callback_runs_exactly_once() -> None:
    """One thread settles futures while two others add callbacks, switched as often as can be."""
    rounds, adders = 1000, 2
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    deliveries = [Delivery(Hearing()) for _ in range(rounds)]
    futures = [futures_of(delivery, 1)[0] for delivery in deliveries]
    heard: list[list[int]] = [[] for _ in range(rounds)]
    gate = threading.Barrier(adders + 1)

    def add(adder: int) -> None:
        gate.wait(10)
        for future, calls in zip(futures, heard, strict=True):
            future.add_callback(lambda _, calls=calls: calls.append(adder))

    try:
        with threads(adders, add):
            gate.wait(10)
            for delivery in deliveries:
                delivery.settle(settled(1, Result(base_offset=0)))
    finally:
        sys.setswitchinterval(usual_s)
    assert [sorted(calls) for calls in heard] == [[0, 1]] * rounds


def test_b70_flush_covers_what_was_sent_before_it_and_does_not_wait_for_a_flood() -> None:
    with (
        calm_cluster(3) as server,
        warm_producer(server, 3, compression_type="gzip", linger_ms=3) as producer,
    ):
        first = {tp: len(log) for tp, log in logs_of(server, {TOPIC: 3}).items()}
        account = Account(producer)
        over = threading.Event()

        def send_some(number: int) -> None:
            for _ in range(200):
                account.send(TOPIC, number % 3)

        def flood(_: int) -> None:
            while not over.is_set():
                producer.send(TOPIC, b"flood", partition=2)
                time.sleep(0.001)

        with threads(1, flood):
            with threads(20, send_some):
                pass
            begin_s = time.monotonic()
            producer.flush(timeout=30)
            took_s = time.monotonic() - begin_s
            undone = [future for future in account.futures if not future.is_done]
            over.set()
        producer.flush(timeout=10)
        assert undone == []
        assert took_s <= 3.0
        logs = {
            tp: [(offset, value) for offset, value in log[first[tp] :] if value != b"flood"]
            for tp, log in logs_of(server, {TOPIC: 3}).items()
        }
        assert len(account.entries) == 4000
        o1(account.entries, logs, lambda entry: account.thread_of[entry.value])
        o4(account.entries, logs)


def test_b72_closed_producers_are_collected_and_leave_nothing() -> None:
    with calm_cluster(1) as server:
        process = psutil.Process()
        registry = CollectorRegistry()

        def once() -> weakref.ref[KafkaProducer]:
            producer = KafkaProducer(bootstrap_servers=server.bootstrap, metrics_registry=registry)
            for _ in range(5):
                producer.send(TOPIC, b"v", partition=0)
            producer.close(timeout=10)
            return weakref.ref(producer)

        once()
        gc.collect()
        begun = threading.active_count(), process.num_fds()
        made = [once() for _ in range(50)]
        gc.collect()
        assert [ref() for ref in made if ref() is not None] == []
        until(lambda: process.num_fds() <= begun[1], "the cluster's ends are closed too")
        assert (threading.active_count(), process.num_fds()) == begun
        dropped = KafkaProducer(bootstrap_servers=server.bootstrap, metrics_registry=registry)
        dropped.send(TOPIC, b"v", partition=0)
        del dropped
        gc.collect()
        until(lambda: threading.active_count() == begun[0], "its thread is gone")
        assert registry.get_sample_value("outlast_connections", {"role": "open"}) == 0.0


def test_b74_send_does_not_wait_for_a_busy_engine() -> None:
    """Its thread hangs in a callback while 20 000 records are sent: each must wake it."""
    busy, release = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        busy.set()
        release.wait(30)

    with calm_cluster(1) as server, warm_producer(server, 1) as producer:
        producer.send(TOPIC, b"v", partition=0).add_callback(hold)
        assert busy.wait(5)
        longest_s, futures = 0.0, []
        for _ in range(20_000):
            begin_s = time.monotonic()
            futures.append(producer.send(TOPIC, b"v", partition=0))
            longest_s = max(longest_s, time.monotonic() - begin_s)
        release.set()
        producer.flush(timeout=20)
        assert all(future.succeeded() for future in futures)
        assert longest_s < MAX_BLOCK_S / 4


def test_b76_a_blocked_event_loop_does_not_keep_records_back() -> None:
    def held(cluster: MockCluster, _: float) -> int:
        return len(cluster.records(TOPIC, 0))

    async def app(server: ClusterServer, producer: KafkaProducer) -> float:
        before = server.call(held)
        begin_s = time.monotonic()
        producer.send(TOPIC, b"v", partition=0)
        while server.call(held) == before:  # it never goes back to the loop
            assert time.monotonic() < begin_s + 5
            time.sleep(0.005)  # noqa: ASYNC251 - that is the case
        return time.monotonic() - begin_s

    with calm_cluster(1) as server, warm_producer(server, 1) as producer:
        assert asyncio.run(app(server, producer)) <= 0.2
