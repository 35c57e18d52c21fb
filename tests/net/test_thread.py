"""The driver: its lock, its thread, waiting, flushing, closing, callbacks and observers."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import errors as kafka_errors

from outlast.config import Config
from outlast.engine.messages import (
    Connect,
    Connection,
    PartitionSeen,
    RecordsSettled,
    Role,
    Send,
)
from outlast.errors import BlockedError, ClosedError
from outlast.future import Delivery, DeliveryFuture
from outlast.io.thread import Driver
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer
from tests.net.broker import Stream, broker, hold, metadata, until
from tests.net.client import ask
from tests.net.engine import Engine, new_delivery

NOWHERE = "127.0.0.1:9"  # the discard port: nothing listens there


@pytest.fixture
def cluster() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(3, rng=random.Random(1))) as server:
        server.create_topic("t", 3)
        yield server


@pytest.fixture
def drivers() -> Iterator[Callable[..., Driver]]:
    """Makes drivers, and closes them at the end."""
    made: list[Driver] = []

    def make(bootstrap: str, **more: Any) -> Driver:
        names = ("observers", "new_sender", "clock", "resolver")
        options = {name: more.pop(name) for name in names if name in more}
        config = Config(bootstrap_servers=bootstrap, **more)
        made.append(
            Driver(
                config.settings,
                config.values,
                new_delivery=new_delivery,
                **options,
            )
        )
        return made[-1]

    yield make
    for driver in made:
        driver.close(0)


def with_engine(drivers: Callable[..., Driver], **more: Any) -> tuple[Driver, Engine]:
    engine = Engine()
    return drivers(NOWHERE, new_sender=lambda _now: engine, **more), engine


def put(driver: Driver, value: bytes = b"v", max_block_s: float = 10.0) -> DeliveryFuture:
    """One record to partition 0 of topic t."""
    batch, index = driver.append("t", 0, None, value, (), 0, max_block_s)
    delivery = batch.delivery
    assert isinstance(delivery, Delivery)
    return DeliveryFuture(delivery, index, 0, -1, len(value), -1)


# --- the thread -----------------------------------------------------------------------------------


def test_one_thread_more_and_none_after_close(
    cluster: ClusterServer, drivers: Callable[..., Driver]
) -> None:
    before = set(threading.enumerate())
    driver = drivers(cluster.bootstrap, client_id="me")
    assert put(driver).get(10).offset == 0
    new = set(threading.enumerate()) - before
    assert [(t.name, t.daemon) for t in new] == [("me-network-thread", True)]
    driver.close(5)
    assert set(threading.enumerate()) <= before


def test_an_idle_driver_costs_nothing(
    cluster: ClusterServer, drivers: Callable[..., Driver]
) -> None:
    driver = drivers(cluster.bootstrap)
    put(driver).get(10)
    time.sleep(0.05)  # whatever follows the first record
    cpu_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - cpu_s < 0.1


def test_the_loop_sleeps_until_something_is_appended(drivers: Callable[..., Driver]) -> None:
    driver, engine = with_engine(drivers)
    engine.settles_at_once = True
    engine.tick_s = None
    for _ in range(3):
        assert put(driver).get(5).offset == 7
    ticks = len(engine.log)
    time.sleep(0.05)
    assert len(engine.log) == ticks


def test_a_deadline_of_the_engine_is_kept_without_another_reason_to_wake(
    drivers: Callable[..., Driver],
) -> None:
    driver, engine = with_engine(drivers)
    engine.settles_at_once = True
    engine.tick_s = None
    put(driver).get(5)
    late_s = []
    for _ in range(5):
        due_s = engine.deadline_s = time.monotonic() + 0.1
        put(driver).get(5)  # it wakes, and sleeps until the deadline
        until(lambda: engine.deadline_s is None)
        late_s.append(time.monotonic() - due_s)
    assert 0.0 <= min(late_s) < 0.05, "the best of five: the machine has other work too"


def test_sixteen_threads_append_and_each_keeps_its_order(
    cluster: ClusterServer, drivers: Callable[..., Driver]
) -> None:
    driver = drivers(cluster.bootstrap, buffer_memory=60_000, batch_size=1000)
    futures: list[DeliveryFuture] = []

    def work(name: int) -> None:
        futures.extend(put(driver, b"%d %d" % (name, n), max_block_s=30) for n in range(60))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    driver.flush(30)
    assert sum(future.succeeded() for future in futures) == 960
    assert sorted(future.value.offset for future in futures) == list(range(960))
    values = [record.value.split() for record in cluster.records("t", 0)]
    for name in range(16):
        mine = [int(number) for who, number in values if int(who) == name]
        assert mine == list(range(60))


def test_own_pauses_are_not_silence(drivers: Callable[..., Driver]) -> None:
    """This process stands still while an answer comes: it counts before the deadline does."""
    paused, answered = threading.Event(), threading.Event()

    def serve(stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        assert request is not None
        paused.wait(5)
        stream.answer(request[2], metadata(12))
        answered.set()
        hold(stream)

    def clock() -> float:
        """Stops, on the I/O thread, just before it would tell that the deadline has passed."""
        due_s = engine.deadline_s
        here = threading.current_thread().name.endswith("-network-thread")
        if here and due_s is not None and time.monotonic() >= due_s and not paused.is_set():
            paused.set()
            answered.wait(5)
            time.sleep(0.02)  # until it is in this host's kernel
        return time.monotonic()

    engine = Engine()
    driver = drivers(NOWHERE, new_sender=lambda _now: engine, clock=clock)
    connection = Connection(1, Role.OPEN, 1)
    with broker(serve) as server:
        engine.commands.append(Connect(connection, server.host, server.port))
        until(lambda: ("connected", connection) in engine.log)
        engine.tick_s = None
        engine.deadline_s = time.monotonic() + 0.1
        engine.commands.append(Send(connection, 5, ask()))
        put(driver)
        until(lambda: ("tick", True) in engine.log)
        assert ("responded", 5) in engine.log
        assert engine.log.index(("responded", 5)) < engine.log.index(("tick", True))


# --- waiting --------------------------------------------------------------------------------------


def test_without_metadata_the_error_says_what_was_tried(drivers: Callable[..., Driver]) -> None:
    driver = drivers(f"{NOWHERE},localhost:7")
    begun_s = time.monotonic()
    with pytest.raises(BlockedError) as caught:
        put(driver, max_block_s=0.4)
    assert 0.35 < time.monotonic() - begun_s < 2.0
    assert isinstance(caught.value, kafka_errors.KafkaTimeoutError)
    text = str(caught.value)
    assert "'t'" in text
    assert "max_block_ms=400" in text
    assert "127.0.0.1:9: refused: " in text
    assert "localhost:7" in text


def test_zero_raises_at_once(drivers: Callable[..., Driver]) -> None:
    driver = drivers(NOWHERE)
    begun_s = time.monotonic()
    with pytest.raises(BlockedError):
        put(driver, max_block_s=0.0)
    with pytest.raises(BlockedError):
        driver.partitions_for("t", 0.0)
    assert time.monotonic() - begun_s < 0.5


def test_an_unknown_topic_is_told_by_the_brokers_word(
    cluster: ClusterServer, drivers: Callable[..., Driver]
) -> None:
    driver = drivers(cluster.bootstrap, allow_auto_create_topics=False)
    with pytest.raises(BlockedError, match="UnknownTopicOrPartition"):
        driver.append("absent", 0, None, b"v", (), 0, 0.5)
    with pytest.raises(ValueError, match="Unrecognized partition: 99"):
        driver.append("t", 99, None, b"v", (), 0, 5.0)


def test_a_full_buffer_is_told_with_its_size(
    cluster: ClusterServer, drivers: Callable[..., Driver]
) -> None:
    driver = drivers(cluster.bootstrap, buffer_memory=20_000)
    put(driver).get(10)
    for node in range(1, 4):
        cluster.pause(node)
    begun_s = time.monotonic()
    for _ in range(10):
        put(driver, b"x" * 1000)
    with pytest.raises(BlockedError, match="buffer_memory=20000"):
        put(driver, b"x" * 19_000, max_block_s=0.3)
    assert time.monotonic() - begun_s < 5
    for node in range(1, 4):
        cluster.resume(node)
    assert put(driver, max_block_s=20).get(20)


def test_waiters_go_on_when_they_are_granted(drivers: Callable[..., Driver]) -> None:
    driver, engine = with_engine(drivers)
    engine.room = False
    done: list[DeliveryFuture] = []
    threads = [threading.Thread(target=lambda: done.append(put(driver))) for _ in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: len(engine.waiting) == 5)
    driver.ask(lambda *_: engine.grant())
    for thread in threads:
        thread.join(5)
    assert len(done) == 5


def test_a_wait_that_is_given_up_is_cancelled(drivers: Callable[..., Driver]) -> None:
    driver, engine = with_engine(drivers)
    engine.room = False
    with pytest.raises(BlockedError, match="buffer_memory=33554432"):
        put(driver, max_block_s=0.05)
    until(lambda: ("cancel_wait", 1) in engine.log)


def test_the_end_of_a_wait_does_not_cost_more_the_more_others_wait(
    drivers: Callable[..., Driver],
) -> None:
    """Thousands of coroutines may end their waits at once; a look at all of them each time held
    the lock for seconds.
    """
    driver, engine = with_engine(drivers)
    engine.room = False
    others = [threading.Thread(target=expect_blocked, args=(driver, 0.4)) for _ in range(3)]
    for other in others:
        other.start()
    until(lambda: len(engine.waiting) == len(others))
    expect_blocked(driver, 0.0)
    assert len(engine.waiting) == len(others)
    for other in others:
        other.join(5)
    assert not engine.waiting
    assert not [entry for entry in engine.log if entry[0] == "keep_waiting"]


def expect_blocked(driver: Driver, max_block_s: float) -> None:
    with pytest.raises(BlockedError):
        put(driver, max_block_s=max_block_s)


def test_what_comes_while_the_thread_is_busy_is_not_slept_over(
    drivers: Callable[..., Driver],
) -> None:
    """A wait is given up while a callback runs; its room goes to another waiter, right then."""
    driver, engine = with_engine(drivers)
    busy, go = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        busy.set()
        go.wait(20)

    put(driver).add_callback(callback)
    driver.ask(lambda *_: engine.settle())
    assert busy.wait(5)
    engine.room, engine.cancel_grants, engine.tick_s = False, True, None
    done: list[DeliveryFuture] = []
    other = threading.Thread(target=lambda: done.append(put(driver, max_block_s=20)))
    other.start()
    until(lambda: len(engine.waiting) == 1)
    with pytest.raises(BlockedError):
        put(driver, max_block_s=0.0)
    engine.attention = False
    go.set()
    other.join(5)
    assert len(done) == 1


def test_in_a_callback_nothing_waits(drivers: Callable[..., Driver]) -> None:
    driver, engine = with_engine(drivers)
    raised: list[type[BaseException]] = []

    def callback(_: object) -> None:
        engine.room = False
        with pytest.raises(BlockedError):
            put(driver, max_block_s=30)
        raised.append(BlockedError)
        with pytest.raises(kafka_errors.IllegalStateError):
            driver.flush()
        raised.append(kafka_errors.IllegalStateError)

    put(driver).add_callback(callback)
    begun_s = time.monotonic()
    driver.ask(lambda *_: engine.settle())
    until(lambda: len(raised) == 2)
    assert time.monotonic() - begun_s < 4


# --- flush ----------------------------------------------------------------------------------------


def test_flush_waits_for_callbacks_too(
    cluster: ClusterServer, drivers: Callable[..., Driver]
) -> None:
    driver = drivers(cluster.bootstrap, linger_ms=60_000)
    told: list[int] = []
    for _ in range(100):
        put(driver).add_callback(lambda metadata: told.append(metadata.offset))
    begun_s = time.monotonic()
    driver.flush(20)
    assert told == list(range(100))
    assert time.monotonic() - begun_s < 10  # and does not linger


def test_flush_waits_for_a_callback_that_runs_and_for_those_behind_it(
    drivers: Callable[..., Driver],
) -> None:
    """They have their outcomes already, so that nothing is unsettled any more."""
    driver, engine = with_engine(drivers)
    running, go_on = threading.Event(), threading.Event()
    told: list[int] = []

    def callback(number: int) -> None:
        running.set()
        assert go_on.wait(20)
        told.append(number)

    for number in range(3):
        put(driver).add_callback(lambda _, number=number: callback(number))
    driver.ask(lambda *_: engine.settle())
    assert running.wait(10)
    with pytest.raises(BlockedError):
        driver.flush(0.05)
    go_on.set()
    driver.flush(10)
    assert told == [0, 1, 2]


def test_flush_that_takes_too_long(drivers: Callable[..., Driver]) -> None:
    driver, _ = with_engine(drivers)
    futures = [put(driver) for _ in range(20)]
    begun_s = time.monotonic()
    with pytest.raises(BlockedError, match=r"timeout=0\.1"):
        driver.flush(0.1)
    assert time.monotonic() - begun_s < 1.0  # in all, not for each batch
    assert not any(future.is_done for future in futures)


# --- callbacks and observers ----------------------------------------------------------------------


def test_a_callback_that_raises_hurts_nobody(
    cluster: ClusterServer, drivers: Callable[..., Driver], caplog: pytest.LogCaptureFixture
) -> None:
    driver = drivers(cluster.bootstrap)

    def callback(_: object) -> None:
        raise SystemExit("the user's mistake")

    put(driver).add_callback(callback)
    driver.flush(10)
    assert put(driver).get(10).offset == 1
    assert "the user's mistake" in caplog.text


def test_an_observer_that_raises_is_logged_once_and_dropped(
    cluster: ClusterServer, drivers: Callable[..., Driver], caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[object] = []
    facts: list[object] = []

    def broken(fact: object) -> None:
        calls.append(fact)
        raise RuntimeError("observer's mistake")

    driver = drivers(cluster.bootstrap, observers=[broken, facts.append])
    for _ in range(3):
        put(driver).get(10)
    driver.flush(10)
    assert len(calls) == 1
    assert len(facts) > 3
    assert PartitionSeen in {type(fact) for fact in facts}
    assert [r.levelname for r in caplog.records if "observer raised" in r.message] == ["ERROR"]


class NotOfBatches:
    """Has no use for what comes with each batch."""

    hears_batches = False

    def __init__(self) -> None:
        self.heard: list[object] = []

    def __call__(self, fact: object) -> None:
        self.heard.append(fact)


def test_an_observer_need_not_hear_of_each_batch(
    cluster: ClusterServer, drivers: Callable[..., Driver]
) -> None:
    facts: list[object] = []
    other = NotOfBatches()
    driver = drivers(cluster.bootstrap, observers=[other, facts.append])
    put(driver).get(10)
    driver.flush(10)
    driver.close()
    assert RecordsSettled in {type(fact) for fact in facts}
    assert other.heard == [fact for fact in facts if not isinstance(fact, RecordsSettled)]


# --- close ----------------------------------------------------------------------------------------


def test_close_delivers_what_was_taken(
    cluster: ClusterServer, drivers: Callable[..., Driver]
) -> None:
    driver = drivers(cluster.bootstrap, linger_ms=60_000)
    futures = [put(driver) for _ in range(50)]
    driver.close()
    assert [future.value.offset for future in futures] == list(range(50))
    with pytest.raises(ClosedError):
        put(driver)
    with pytest.raises(ClosedError):
        driver.partitions_for("t", 1)
    driver.flush()
    driver.close()


@pytest.mark.parametrize("timeout_s", [0.0, 0.3])
def test_close_keeps_its_time_and_fails_the_rest(
    cluster: ClusterServer, drivers: Callable[..., Driver], timeout_s: float
) -> None:
    driver = drivers(cluster.bootstrap)
    put(driver).get(10)
    for node in range(1, 4):
        cluster.pause(node)
    future = put(driver)
    time.sleep(0.02)
    begun_s = time.monotonic()
    driver.close(timeout_s)
    assert timeout_s - 0.05 <= time.monotonic() - begun_s < timeout_s + 0.5
    assert not driver_thread_alive()
    assert isinstance(future.exception, kafka_errors.IllegalStateError)


def driver_thread_alive() -> bool:
    return any(t.name.endswith("-network-thread") for t in threading.enumerate())


def test_close_wakes_those_who_wait(drivers: Callable[..., Driver]) -> None:
    driver, engine = with_engine(drivers)
    engine.room = False
    raised: list[BaseException] = []

    def work() -> None:
        try:
            put(driver, max_block_s=60)
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: engine.waiting)
    driver.close(0)
    thread.join(5)
    assert len(raised) == 1


def test_a_second_close_cuts_the_first_short(drivers: Callable[..., Driver]) -> None:
    driver, _ = with_engine(drivers)
    future = put(driver)
    first = threading.Thread(target=driver.close)
    first.start()
    until(lambda: "closed" in repr(driver))
    driver.close(0)
    first.join(5)
    assert not first.is_alive()
    assert future.failed()


def test_close_in_a_callback_returns_at_once_and_goes_on(drivers: Callable[..., Driver]) -> None:
    driver, engine = with_engine(drivers)
    took_s: list[float] = []

    def callback(_: object) -> None:
        begun_s = time.monotonic()
        driver.close(5)
        took_s.append(time.monotonic() - begun_s)

    put(driver).add_callback(callback)
    driver.ask(lambda *_: engine.settle())
    until(lambda: took_s)
    until(lambda: not driver_thread_alive())
    assert took_s[0] < 1.0
    with pytest.raises(ClosedError):
        put(driver)


def test_close_while_a_callback_hangs(drivers: Callable[..., Driver]) -> None:
    driver, engine = with_engine(drivers)
    go, hanging = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        hanging.set()
        go.wait(20)

    acked, acked_too = put(driver), put(driver)
    acked.add_callback(callback)
    driver.ask(lambda *_: engine.settle())
    assert hanging.wait(5)
    late = put(driver)
    begun_s = time.monotonic()
    driver.close(0.2)
    assert time.monotonic() - begun_s < 2.0
    assert acked_too.value.offset == 7
    assert isinstance(late.exception, kafka_errors.IllegalStateError)
    go.set()
    until(lambda: not driver_thread_alive())


def test_a_mistake_of_the_engine_leaves_nobody_waiting(
    drivers: Callable[..., Driver], caplog: pytest.LogCaptureFixture
) -> None:
    driver, engine = with_engine(drivers)
    future = put(driver)

    def mistake(_now: float) -> None:
        raise AssertionError("rule 5")

    engine.on_tick = mistake
    with pytest.raises(kafka_errors.IllegalStateError, match="rule 5"):
        future.get(5)
    with pytest.raises(ClosedError, match="rule 5"):
        put(driver)
    driver.close(1)
    assert "rule 5" in caplog.text
    assert caplog.records[0].levelno == logging.CRITICAL


# --- the end of the process -----------------------------------------------------------------------

PROGRAM = """
import sys
from outlast.config import Config
from outlast.future import Delivery, Hearing
from outlast.io.thread import Driver
config = Config(bootstrap_servers=sys.argv[1], linger_ms=60_000)
driver = Driver(config.settings, config.values, new_delivery=lambda _: Delivery(Hearing()))
driver.partitions_for("t", 20.0)
for number in range(100):
    driver.append("t", 0, None, b"%d" % number, (), 0, 20.0)
"""


def test_at_exit_what_was_taken_is_delivered(cluster: ClusterServer) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert [r.value for r in cluster.records("t", 0)] == [b"%d" % n for n in range(100)]
