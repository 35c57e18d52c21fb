"""A producer that is closed, collected or left at exit with a transaction open; and one whose
coordinator cannot be asked what it would have to be.
"""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, UnsupportedVersionError

from outlast import GapEnd, KafkaProducer
from outlast.testing.faults import Error
from outlast.testing.server import ClusterServer
from tests.facade.test_transactions import (
    END_TXN,
    INIT,
    PRODUCE,
    TOPIC,
    Make,
    cluster,  # noqa: F401 (a fixture)
    has_marker,
    make,  # noqa: F401 (a fixture)
    seen,
    until_seen,
    write,
)
from tests.net.broker import until

FIND_COORDINATOR = 10


def with_one_open(make_one: Make, **keywords: Any) -> KafkaProducer:
    producer = make_one(**keywords)
    producer.begin_transaction()
    write(producer, "a")
    producer.flush()
    return producer


def is_aborted(server: ClusterServer) -> None:
    """The markers are there, and nothing is seen."""
    until(lambda: all(server.call(has_marker)))
    assert seen(server) == []


@pytest.mark.parametrize("fails", [False, True])
def test_an_open_transaction_is_aborted_at_close(
    cluster: ClusterServer,  # noqa: F811
    make: Make,  # noqa: F811
    fails: bool,
) -> None:
    producer = with_one_open(make)
    if fails:
        cluster.call(
            lambda mock, _: mock.faults.append(Error(api=PRODUCE, code=87, topic=TOPIC, times=1))
        )
        producer.send(TOPIC, b"bad", partition=0)
    producer.close()
    is_aborted(cluster)


def test_an_open_transaction_that_cannot_be_aborted_at_close_is_told(
    cluster: ClusterServer,  # noqa: F811
    make: Make,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = with_one_open(make)
    for node in (1, 2, 3):
        cluster.pause(node)
    with caplog.at_level(logging.WARNING):
        producer.close(timeout=0.3)
    assert "A transaction is left open" in caplog.text
    assert "transaction_timeout_ms" in caplog.text


def test_its_end_and_the_records_have_one_time_together(
    cluster: ClusterServer,  # noqa: F811
    make: Make,  # noqa: F811
) -> None:
    producer = with_one_open(make, max_block_ms=200)
    for node in (1, 2, 3):
        cluster.pause(node)
    producer.send(TOPIC, b"unknown", partition=0)
    with pytest.raises(KafkaTimeoutError):
        producer.commit_transaction()
    begun_s = time.monotonic()
    producer.close(timeout=1.0)
    assert 0.9 < time.monotonic() - begun_s < 1.5


def test_who_closes_meanwhile_does_not_cut_the_abort_short(
    cluster: ClusterServer,  # noqa: F811
    make: Make,  # noqa: F811
) -> None:
    producer = with_one_open(make)
    cluster.call(lambda mock, _: mock.faults.append(Error(api=END_TXN, code=51, times=10)))
    others = [threading.Thread(target=producer.close) for _ in range(3)]
    for other in others:
        other.start()
    producer.close()
    for other in others:
        other.join()
    is_aborted(cluster)


def test_a_callback_that_closes_meanwhile_does_not_wait_for_itself(
    cluster: ClusterServer,  # noqa: F811
    make: Make,  # noqa: F811
) -> None:
    """The abort fails what was not sent, and who is told of it closes, too."""
    producer = with_one_open(make, linger_ms=60_000)
    called: list[object] = []

    def close(error: object) -> None:
        called.append(error)
        producer.close()

    producer.send(TOPIC, b"lingers", partition=0).add_errback(close)
    begun_s = time.monotonic()
    producer.close()
    assert time.monotonic() - begun_s < 5.0
    assert called
    is_aborted(cluster)


def test_close_in_a_callback_aborts_it_elsewhere(
    cluster: ClusterServer,  # noqa: F811
    make: Make,  # noqa: F811
) -> None:
    producer = with_one_open(make)
    producer.send(TOPIC, b"last", partition=0).add_callback(lambda _: producer.close())
    is_aborted(cluster)


def test_a_producer_that_nobody_has_any_more_aborts_it(
    cluster: ClusterServer,  # noqa: F811
    make_producer: Callable[..., KafkaProducer],
) -> None:
    cluster.create_topic(TOPIC, 3, min_isr=2)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="left")
    producer.init_transactions()
    producer.begin_transaction()
    write(producer, "a")
    producer.flush()
    del producer
    gc.collect()
    is_aborted(cluster)


AT_EXIT = """
import sys
from outlast import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1], transactional_id="left")
producer.init_transactions()
producer.begin_transaction()
for n in range(9):
    producer.send("orders", b"%d" % n, partition=n % 3)
producer.flush()
"""


def test_the_exit_aborts_it(cluster: ClusterServer) -> None:  # noqa: F811
    cluster.create_topic(TOPIC, 3, min_isr=2)
    subprocess.run([sys.executable, "-c", AT_EXIT, cluster.bootstrap], check=True, timeout=60)
    assert all(cluster.call(has_marker))
    assert seen(cluster) == []


FORKS = """
import os, sys
from outlast import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1], transactional_id="forked")
producer.init_transactions()
producer.begin_transaction()
producer.send("orders", b"x", partition=0)
producer.flush()
child = os.fork()
if child:
    os.waitpid(child, 0)
    producer.send("orders", b"y", partition=0)
    producer.commit_transaction()
"""


def test_the_exit_of_a_forked_child_leaves_the_parent_its_transaction(
    cluster: ClusterServer,  # noqa: F811
) -> None:
    cluster.create_topic(TOPIC, 3, min_isr=2)
    run = subprocess.run(
        [sys.executable, "-c", FORKS, cluster.bootstrap],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert "left open" not in run.stderr
    until(lambda: seen(cluster) == [b"x", b"y"])


def test_what_a_broker_has_no_version_for_is_an_error_and_no_time_out(
    cluster: ClusterServer,  # noqa: F811
    make: Make,  # noqa: F811
) -> None:
    """Kafka before 2.5 cannot be asked for the next epoch of one's own id."""

    def narrow(mock: Any, _now: float) -> None:
        mock.settings = replace(mock.settings, api_versions={INIT: (0, 2)}, transaction_version=1)

    cluster.call(narrow)
    producer = with_one_open(make, max_block_ms=5000)
    cluster.call(lambda mock, _: mock.faults.append(Error(api=END_TXN, code=49, times=1)))
    with pytest.raises(UnsupportedVersionError, match="InitProducerId"):
        producer.commit_transaction()
    with pytest.raises(UnsupportedVersionError, match="InitProducerId"):
        producer.abort_transaction()
    producer.init_transactions()
    producer.begin_transaction()
    write(producer, "b")
    producer.commit_transaction()
    until_seen(cluster, "b")


def test_a_gap_ends_when_nobody_asks_any_more(
    cluster: ClusterServer,  # noqa: F811
    make_producer: Callable[..., KafkaProducer],
) -> None:
    """The coordinator is not to be found for a while, and then it is refused to say who it is."""
    cluster.create_topic(TOPIC, 3, min_isr=2)
    cluster.call(lambda mock, _: mock.faults.append(Error(api=FIND_COORDINATOR, code=15)))
    producer = make_producer(cluster, transactional_id="none", max_block_ms=300)
    with pytest.raises(KafkaTimeoutError):
        producer.init_transactions()
    (gap,) = producer.health().open_gaps
    assert gap.topic == "txn:none"

    def refuse(mock: Any, _now: float) -> None:
        mock.faults[:] = [Error(api=FIND_COORDINATOR, code=53)]

    cluster.call(refuse)
    until(lambda: not producer.health().open_gaps)
    (gap,) = producer.gaps()
    assert gap.ended_by is GapEnd.ABANDONED
