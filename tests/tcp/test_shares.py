"""No partition pays for another: the buffer's shares, over TCP, with one thread for each partition.

A thread blocks in `send()` when its partition has no share left, and no other thread does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pytest
from kafka.errors import KafkaTimeoutError

from outlast import KafkaProducer
from outlast.future import DeliveryFuture
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.faults import Blackhole, Fault, Slow
from outlast.testing.server import ClusterServer
from tests.real.kafka_cluster import until
from tests.tcp.senders import LONGEST_ACK_S, Senders, assert_all_delivered, assert_unharmed
from tests.tcp.stories import PRODUCE, TOPIC, calm_cluster, warm_producer

BUFFER_BYTES = 8 * 1024 * 1024
MAX_BLOCK_S = 0.5
LATE_S = 0.2  # that a send may block longer than max_block_ms
BASE = {
    "buffer_memory": BUFFER_BYTES,
    "max_block_ms": int(MAX_BLOCK_S * 1000),
    "delivery_timeout_ms": 30_000,
}


@contextmanager
def lonely_partitions(nodes: int, leaders: Sequence[int]) -> Iterator[ClusterServer]:
    """A topic without replication: each partition lives on one node, and dies with it."""
    settings = ClusterSettings(fetch_backoff_p=0.0, deny_p=0.0, creation_deny_p=0.0)
    cluster = MockCluster(nodes, settings=settings, rng=random.Random(1))
    with ClusterServer(cluster) as server:
        server.create_topic(TOPIC, len(leaders), assignment=[[node] for node in leaders])
        yield server


@contextmanager
def senders_on(
    server: ClusterServer, partitions: int, *, rate: float, value_bytes: int, **keywords: Any
) -> Iterator[tuple[KafkaProducer, Senders]]:
    """Threads that have been sending for a while, undisturbed."""
    with warm_producer(server, partitions, **{**BASE, **keywords}) as producer:
        senders = Senders(producer, partitions, rate=rate, value_bytes=value_bytes)
        try:
            with senders:
                senders.until_past(time.monotonic() + 0.5)
                yield producer, senders
        except BaseException:
            producer.close(timeout=0)  # what is wrong is known: wait for nothing more
            raise


def assert_only_these_were_refused(senders: Senders, partitions: Sequence[int]) -> None:
    """Each of their threads saw KafkaTimeoutError, in time; the others never did."""
    for partition, account in enumerate(senders.accounts):
        assert bool(account.blocked_s) == (partition in partitions), partition
        assert account.longest_send_s <= MAX_BLOCK_S + LATE_S + senders.lag_s
        assert all(waited_s >= MAX_BLOCK_S for waited_s in account.blocked_s)


def held_up(producer: KafkaProducer) -> dict[int, int]:
    """Partition → bytes, of those that the producer says are held up."""
    return {held.partition: held.buffer_bytes for held in producer.health().held_up}


@pytest.mark.parametrize("verb", ["kill", "pause"])
def test_a_third_of_the_partitions_dead(verb: str) -> None:
    """The only replica of 20 of 60 partitions is on a node that crashes, or that goes silent."""
    rate = 20.0
    leaders = [1 + p % 3 for p in range(60)]
    dead = [p for p, node in enumerate(leaders) if node == 3]
    healthy = [p for p, node in enumerate(leaders) if node != 3]
    with (
        lonely_partitions(3, leaders) as server,
        senders_on(server, 60, rate=rate, value_bytes=8192) as (producer, senders),
    ):
        begin_s = time.monotonic()
        getattr(server, verb)(3)
        senders.until(
            lambda: all(len(senders.accounts[p].blocked_s) >= 2 for p in dead),
            "each dead partition's thread was refused twice",
        )
        shares = held_up(producer)
        assert sorted(shares) == dead
        # a silent node's partitions take room for a second before they count as held up
        assert 0.33 < sum(shares.values()) / BUFFER_BYTES <= (0.5 if verb == "kill" else 0.65)
        end_s = senders.until_past(begin_s + 5.0)
        getattr(server, {"kill": "start", "pause": "resume"}[verb])(3)
        back_s = senders.until_flowing(range(60))
        senders.until_past(back_s + 0.5)
        senders.stop()
        assert_unharmed(senders, healthy, rate, begin_s, end_s)
        assert_only_these_were_refused(senders, dead)
        assert_all_delivered(server, senders)
        assert held_up(producer) == {}


def test_one_of_two_dead() -> None:
    rate = 50.0
    with (
        lonely_partitions(2, [1, 2]) as server,
        senders_on(server, 2, rate=rate, value_bytes=64_000) as (producer, senders),
    ):
        begin_s = time.monotonic()
        server.kill(2)
        senders.until(lambda: len(senders.accounts[1].blocked_s) >= 3, "its thread is refused")
        assert list(held_up(producer)) == [1]
        assert 0.33 < held_up(producer)[1] / BUFFER_BYTES <= 0.5
        end_s = senders.until_past(begin_s + 4.0)
        server.start(2)
        senders.until_flowing([0, 1])
        senders.stop()
        assert_unharmed(senders, [0], rate, begin_s, end_s)
        assert_only_these_were_refused(senders, [1])
        assert_all_delivered(server, senders)


def test_the_only_one_dead_may_use_all_of_the_buffer() -> None:
    """There is nobody to keep room for."""
    with (
        lonely_partitions(2, [2]) as server,
        senders_on(server, 1, rate=100.0, value_bytes=64_000) as (producer, senders),
    ):
        server.kill(2)
        [account] = senders.accounts
        senders.until(lambda: account.blocked_s, "the buffer is full")
        assert senders.peak_bytes >= 0.95 * BUFFER_BYTES
        assert list(held_up(producer)) == [0]
        server.start(2)
        senders.until_flowing([0])
        senders.stop()
        assert_only_these_were_refused(senders, [0])
        assert_all_delivered(server, senders)


@pytest.mark.parametrize(
    ("fault", "keywords"),
    [
        pytest.param(Slow(node=5, api=PRODUCE, delay_s=5.0), {}, id="slow"),
        pytest.param(
            Blackhole(node=5),
            {"request_timeout_ms": 1000, "socket_connection_setup_timeout_ms": 500},
            id="blackhole",
        ),
    ],
)
def test_b06_one_slow_broker_does_not_stop_the_others(
    fault: Fault, keywords: dict[str, Any]
) -> None:
    """Its answers take 5 s, without any error; or nothing goes to it or comes from it."""
    rate = 50.0
    with (
        lonely_partitions(5, [1, 2, 3, 4, 5]) as server,
        senders_on(server, 5, rate=rate, value_bytes=48_000, **keywords) as (producer, senders),
    ):
        begin_s = time.monotonic()
        server.call(lambda cluster, _: cluster.faults.append(fault))
        slow = senders.accounts[4]
        senders.until(lambda: len(slow.blocked_s) >= 2, "the slow one's thread is refused")
        assert list(held_up(producer)) == [4]
        end_s = senders.until_past(begin_s + 4.7)
        server.call(lambda cluster, _: cluster.faults.clear())
        senders.until_flowing(range(5), timeout_s=15.0)
        senders.stop()
        assert_unharmed(senders, range(4), rate, begin_s, end_s)
        assert_only_these_were_refused(senders, [4])
        assert_all_delivered(server, senders)
        assert {gap.partition for gap in producer.gaps()} <= ({4} if keywords else set())


class TestNobodyLeftToDeliver:
    """All brokers are dead, or the only one is too slow: every thread waits, none for too long."""

    def test_all_brokers_dead_and_back(self) -> None:
        """B63: sixteen threads that ignore what they are told go on sending."""
        with (
            calm_cluster(16) as server,
            senders_on(server, 16, rate=50.0, value_bytes=16_000) as (producer, senders),
        ):
            for node in (1, 2, 3):
                server.kill(node)
            senders.until(
                lambda: all(len(account.blocked_s) >= 2 for account in senders.accounts),
                "each thread was refused twice",
            )
            assert senders.peak_bytes >= 0.95 * BUFFER_BYTES
            assert sorted(held_up(producer)) == list(range(16))
            for node in (1, 2, 3):
                server.start(node)
            senders.until_flowing(range(16))
            senders.stop()
            assert_only_these_were_refused(senders, range(16))
            assert_all_delivered(server, senders)
            assert {gap.partition for gap in producer.gaps()} == set(range(16))

    def test_b62_after_a_burst_that_did_not_fit_every_send_succeeds(self) -> None:
        """Sixteen threads send far more than one slow broker takes. Then calm: nothing of the
        buffer's room was lost, and nobody waits who is not there any more.
        """
        keywords = {"buffer_memory": 2 * 1024 * 1024, "compression_type": "gzip"}
        with (
            lonely_partitions(1, [1] * 16) as server,
            senders_on(server, 16, rate=100.0, value_bytes=4000, **keywords) as (producer, senders),
        ):
            slow, less_slow = (Slow(node=1, api=PRODUCE, delay_s=s) for s in (1.0, 0.2))
            server.call(lambda cluster, _: cluster.faults.append(slow))
            senders.until(
                lambda: sum(len(account.blocked_s) for account in senders.accounts) >= 16,
                "many sends are refused",
            )
            server.call(lambda cluster, _: cluster.faults.__setitem__(0, less_slow))
            senders.stop()
            for number in range(10):
                begin_s = time.monotonic()
                producer.send(TOPIC, b"calm", partition=number).get(timeout=5)
                assert time.monotonic() - begin_s < 0.2 + LONGEST_ACK_S
            assert producer.health().buffer_bytes == 0
            for account in senders.accounts:
                assert account.longest_send_s <= MAX_BLOCK_S + LATE_S + senders.lag_s
                assert account.failures == []
                assert len(account.acks) == len(account.taken)


class TestNeverBlock:
    """`max_block_ms=0`: for threads that must not wait for a dead partition."""

    KEYWORDS: ClassVar[dict[str, Any]] = {"buffer_memory": 1024 * 1024, "max_block_ms": 0}

    @contextmanager
    def _producer(self, server: ClusterServer, **keywords: Any) -> Iterator[KafkaProducer]:
        settings = {**self.KEYWORDS, "metrics_registry": None, **keywords}
        with KafkaProducer(bootstrap_servers=server.bootstrap, **settings) as producer:
            until(lambda: self._taken(producer, b"-1"), "it has metadata", timeout_s=5.0)
            producer.flush(timeout=10)
            yield producer

    @staticmethod
    def _taken(producer: KafkaProducer, value: bytes) -> DeliveryFuture | None:
        """None if `send()` raised KafkaTimeoutError, which it must do at once."""
        begin_s = time.monotonic()
        try:
            return producer.send(TOPIC, value, partition=0)
        except KafkaTimeoutError:
            return None
        finally:
            assert time.monotonic() - begin_s < LATE_S

    def test_it_raises_at_once_and_leaves_nothing_behind(self) -> None:
        with lonely_partitions(2, [2]) as server, self._producer(server) as producer:
            server.kill(2)
            values = [b"%d" % n + b" " * 1000 for n in range(2000)]
            futures = {value: self._taken(producer, value) for value in values}
            taken = {value: future for value, future in futures.items() if future is not None}
            assert 800 < len(taken) < 1000
            full = producer.health()
            assert full.buffer_limit_bytes * 0.95 < full.buffer_bytes <= full.buffer_limit_bytes
            server.start(2)
            producer.flush(timeout=10)
            assert all(future.succeeded() for future in taken.values())
            assert [r.value for r in server.records(TOPIC, 0)][1:] == list(taken)
            assert producer.health().buffer_bytes == 0
            assert self._taken(producer, b"more") is not None, "nobody waits before it"

    def test_what_fails_is_given_back(self) -> None:
        """`on_undelivered` gets each record that was taken and expired; not those that `send()`
        refused, which the application still has in hand.
        """
        given: list[bytes | None] = []
        with (
            lonely_partitions(2, [2]) as server,
            self._producer(
                server,
                on_undelivered=lambda record: given.append(record.value),
                request_timeout_ms=500,
                delivery_timeout_ms=1000,
            ) as producer,
        ):
            server.kill(2)
            values = [b"%d" % n + b" " * 1000 for n in range(2000)]
            taken = [value for value in values if self._taken(producer, value) is not None]
            assert 800 < len(taken) < 1000
            until(lambda: len(given) >= len(taken), "all are given back", timeout_s=10.0)
            assert given == taken
            assert producer.health().buffer_bytes == 0
            server.start(2)
            until(lambda: self._delivered(producer), "it goes on", timeout_s=10.0)

    def _delivered(self, producer: KafkaProducer) -> bool:
        future = self._taken(producer, b"more")
        with suppress(KafkaTimeoutError):
            return future is not None and future.get(timeout=5).partition == 0
        return False
