"""Field cases B01 to B37 that need sockets, threads or the texts that users read."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psutil
import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError
from prometheus_client import CollectorRegistry

from outlast import KafkaProducer
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.faults import Blackhole, Error, Fault, LoseRequest
from outlast.testing.server import ClusterServer, Peer
from tests.field.oracles import (
    CALM,
    Account,
    D,
    logs_of,
    o1,
    o2,
    o3,
    o4,
    o5,
    o6,
    o7,
    o10,
)
from tests.real.kafka_cluster import until
from tests.tcp.stories import produce_connections

PRODUCE = 0
TOO_LARGE = 10
BUSY_S = 1.0  # a busy machine may be so late; virtual time holds the tight figures


@contextmanager
def served(
    nodes: int = 1, topics: dict[str, int] | None = None, settings: ClusterSettings = CALM
) -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(nodes, settings=settings, rng=random.Random(1))) as server:
        for name, partitions in (topics or {"t": 1}).items():
            server.create_topic(name, partitions)
        yield server


@contextmanager
def account(server: ClusterServer, **keywords: Any) -> Iterator[Account]:
    chosen = {**D, "metrics_registry": None, "max_block_ms": 2000, **keywords}
    with KafkaProducer(bootstrap_servers=server.bootstrap, **chosen) as producer:
        yield Account(producer)


def fault(server: ClusterServer, *faults: Fault) -> None:
    server.call(lambda cluster, _: cluster.faults.extend(faults))


def heal(server: ClusterServer) -> None:
    server.call(lambda cluster, _: cluster.faults.clear())


class TestB09:
    """Bytes of one topic in another's request: a buffer was freed while it was being written."""

    TOPICS = {"a": 1, "b": 1}  # noqa: RUF012

    @pytest.mark.parametrize("reachable", [False, True], ids=["expires", "goes another way"])
    def test_b09_a_half_written_request_is_never_continued_with_other_bytes(
        self, reachable: bool
    ) -> None:
        keywords = {
            "delivery_timeout_ms": 1500,
            "linger_ms": 100,
            "batch_size": 1 << 20,
            "max_request_size": 2 << 20,
            "send_buffer_bytes": 16384,  # or the kernel takes all of it at once
        }
        with served(topics=self.TOPICS) as server, account(server, **keywords) as sent:
            sent.send("a")
            sent.send("b")
            sent.producer.flush(timeout=5)
            [peer] = produce_connections(server)
            server.stop_reading(peer, 65536)
            for _ in range(250):
                sent.send("a", size_bytes=4000)
            until(lambda: half_read(server, peer), "a part of the request is read", 5.0)
            if not reachable:
                fault(server, Blackhole(node=1))
            until(lambda: all(f.is_done for f in sent.futures), "the large batch expires", 5.0)
            for _ in range(200):
                sent.send("b", size_bytes=4096)
            server.stop_reading(peer, 1 << 30)
            heal(server)
            sent.producer.flush(timeout=5)
            logs = logs_of(server, self.TOPICS)
        entries = sent.entries
        large = [e for e in entries if e.topic == "a" and len(e.value) == 4000]
        assert {e.outcome for e in large} == {"acked" if reachable else "unknown"}
        own = {name: {e.value for e in entries if e.topic == name} for name in self.TOPICS}
        for (topic, _), log in logs.items():
            assert {value for _, value in log} <= own[topic], f"{topic} holds another's bytes"
        o1([e for e in entries if e.topic == "b"], {("b", 0): logs["b", 0]})
        for check in (o2, o4, o5):
            check(entries, logs)


def half_read(server: ClusterServer, peer: Peer) -> bool:
    return server.call(lambda _cluster, _now: len(peer.inbox) > 0 and peer.read_bytes_left == 0)


class TestB12:
    """flush() returns before the pieces of a batch that was too large are out."""

    SMALL = replace(CALM, max_message_bytes=2000)
    KEYWORDS = {"batch_size": 65536, "linger_ms": 50}  # noqa: RUF012

    def test_b12_flush_waits_for_the_pieces_and_only_the_large_record_fails(self) -> None:
        with served(settings=self.SMALL) as server, account(server, **self.KEYWORDS) as sent:
            sent.send(size_bytes=10)
            sent.producer.flush(timeout=5)
            sizes = [150] * 20 + [5000] + [150] * 20
            futures = [sent.send(size_bytes=n) for n in sizes]
            sent.producer.flush()
            assert all(f.is_done for f in futures)
            assert isinstance(futures[20].exception, MessageSizeTooLargeError)
            assert futures[20].exception.outcome.value == "not accepted"
            others = [e for e in sent.entries if e.outcome != "not accepted"]
            assert len(others) == 1 + 40
            o1(others, logs_of(server))
            o7(sent.producer.health(), 0)
            sent.send().get(timeout=5)

    def test_b12_flush_says_so_when_the_pieces_do_not_get_out(self) -> None:
        with served() as server, account(server, **self.KEYWORDS) as sent:
            sent.send(size_bytes=10)
            sent.producer.flush(timeout=5)
            fault(server, Error(TOO_LARGE, times=1), LoseRequest(api=PRODUCE))
            for _ in range(40):
                sent.send(size_bytes=150)
            with pytest.raises(KafkaTimeoutError):
                sent.producer.flush(timeout=0.5)
            heal(server)
            sent.producer.flush(timeout=8)
            o1(sent.entries, logs_of(server))
            o7(sent.producer.health(), 0)


def test_b26_while_kafka_is_down_send_says_what_it_lacks() -> None:
    """(The whole course, in virtual time: test_b01_b37_topics.py.)"""
    with served(3) as server:
        for node in (1, 2, 3):
            server.kill(node)
        begin_s = time.monotonic()
        with account(server, max_block_ms=300) as sent:
            assert time.monotonic() - begin_s < BUSY_S, "the constructor waited"
            error = sent.send()
            assert isinstance(error, KafkaTimeoutError)
            assert "No metadata for topic 't'" in str(error)
            for address in server.bootstrap.split(","):
                assert address in str(error)
            o6(sent.blocked_s, 0.3, BUSY_S)
            for node in (1, 2, 3):
                server.start(node)
            until(lambda: not isinstance(sent.send(), Exception), "a send is taken", 5.0)
            sent.producer.flush(timeout=5)
            o1(sent.entries, logs_of(server))


def test_b28_a_missing_topic_is_told_by_the_brokers_word() -> None:
    """And another thread goes on. (Rates and the end of asking: test_b01_b37_topics.py.)"""
    with served() as server, account(server, max_block_ms=300) as sent:
        sent.send().get(timeout=5)
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(0.01):
                sent.send()

        thread = threading.Thread(target=go_on)
        thread.start()
        bad = [sent.send("missing") for _ in range(5)]
        over.set()
        thread.join()
        sent.producer.flush(timeout=5)
        for error in bad:
            assert isinstance(error, KafkaTimeoutError)
            assert "UnknownTopicOrPartitionError" in str(error)
            assert "'missing'" in str(error)
        assert min(sent.blocked_s) >= 0.3
        o6(sent.blocked_s, 0.3, BUSY_S)
        o1([e for e in sent.entries if e.topic == "t"], logs_of(server))
        server.create_topic("missing", 1)
        until(lambda: not isinstance(sent.send("missing"), Exception), "it is there", 5.0)


def test_b35_failures_are_told_by_the_future_a_count_and_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="outlast")
    registry = CollectorRegistry()
    keywords = {"delivery_timeout_ms": 500, "request_timeout_ms": 300}
    with served() as server, account(server, metrics_registry=registry, **keywords) as sent:
        sent.send().get(timeout=5)
        server.kill(1)
        for _ in range(3):
            future = sent.send()
            sent.producer.flush()
            assert future.is_done, "flush() did not wait for the outcome"
            assert isinstance(future.exception, KafkaTimeoutError)
        server.start(1)
        sent.send().get(timeout=5)
        sent.producer.flush()
        until(lambda: sent.producer.gaps()[-1].outcome is not None, "the gap is settled", 5.0)
        o3(sent.entries, {**D, **keywords})
        for check in (o2, o4, o5):
            check(sent.entries, logs_of(server))
        told = {
            s.labels["result"]: s.value
            for metric in registry.collect()
            for s in metric.samples
            if s.name == "outlast_records_total"
        }
        assert told.pop("acked") == 2
        assert sum(told.values()) == 3
    [text] = [r.getMessage() for r in caplog.records if "not all delivered" in r.getMessage()]
    assert "t-0" in text
    assert "3 expired" in text


def network_thread_cpu_s() -> float:
    (thread,) = (t for t in threading.enumerate() if t.name.endswith("-network-thread"))
    (times,) = (t for t in psutil.Process().threads() if t.id == thread.native_id)
    return times.user_time + times.system_time


def rested(cpu_s: float, begin_s: float) -> None:
    """The network thread rested since it had used so much CPU time."""
    used_s, took_s = network_thread_cpu_s() - cpu_s, time.monotonic() - begin_s
    print(f"\n{used_s / took_s:.1%} of a core")
    o10(used_s, took_s)


class TestB37:
    """A core is burnt while a connection is stuck."""

    def test_b37_a_connect_that_hangs_costs_no_cpu(self) -> None:
        with served(3, {"t": 3}) as server, account(server) as sent:
            for p in range(3):
                sent.send(partition=p).get(timeout=5)
            fault(server, Blackhole(node=1))
            for _ in range(100):
                sent.send(size_bytes=1000)  # six full batches
            network_s, begin_s = network_thread_cpu_s(), time.monotonic()
            until(lambda: time.monotonic() - begin_s > 3.0, "3 s", 10.0)
            rested(network_s, begin_s)
            assert not sent.futures[-1].is_done
            for p in (1, 2):
                sent.send(partition=p).get(timeout=1)
            heal(server)
            sent.producer.flush(timeout=9)
            o1(sent.entries, logs_of(server, {"t": 3}))

    def test_b37_an_idle_connection_that_the_peer_closes_is_noticed(self) -> None:
        with served() as server, account(server) as sent:
            sent.send().get(timeout=5)
            until(lambda: open_sockets(server), "it is connected")
            before = open_sockets(server)
            server.kill(1)
            server.start(1)
            until(lambda: not before & open_sockets(server), "the closed ones are given up", 5.0)
            network_s, begin_s = network_thread_cpu_s(), time.monotonic()
            until(lambda: time.monotonic() - begin_s > 1.0, "1 s", 10.0)
            rested(network_s, begin_s)
            sent.send().get(timeout=5)
            o1(sent.entries, logs_of(server))


def open_sockets(server: ClusterServer) -> set[tuple[Any, Any]]:
    """The addresses of this process's sockets that lead to the cluster."""
    ports = {int(address.split(":")[1]) for address in server.bootstrap.split(",")}
    return {
        (tuple(c.laddr), tuple(c.raddr))
        for c in psutil.Process().net_connections("tcp")
        if c.raddr and c.raddr.port in ports and c.status in ("ESTABLISHED", "CLOSE_WAIT")
    }
