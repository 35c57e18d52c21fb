"""Field case B22: all brokers replaced at new addresses behind the bootstrap name, over sockets and
a resolver.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outlast import KafkaProducer
from outlast.io import thread
from outlast.io.addresses import AddressInfo
from outlast.testing.server import ClusterServer
from tests.real.kafka_cluster import until
from tests.real.load import CLEAN, Load, account
from tests.real.metadata import MetadataConnection
from tests.tcp.stories import TOPIC, calm_cluster, log_of

NAME = "kafka.test:9092"
SETUP_S, BACKOFF_S = 2.0, 0.5
KEYWORDS = {
    "socket_connection_setup_timeout_ms": 2000,
    "reconnect_backoff_max_ms": 500,
}
FLOWING_S = 2 * (SETUP_S + BACKOFF_S)
RATE = 50


@contextmanager
def behind_a_name(
    server: ClusterServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KafkaProducer, list[str]]]:
    """A producer that is told one name; it leads to the nodes that run. Every look-up is noted."""
    looked_up: list[str] = []

    def resolve(host: str, port: int) -> list[AddressInfo]:
        looked_up.append(f"{host}:{port}")
        up = server.call(
            lambda cluster, _: [cluster.addresses[n] for n, k in cluster.nodes.items() if k.running]
        )
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in up]

    class NamedDriver(thread.Driver):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, resolver=resolve, **keywords)

    monkeypatch.setattr("outlast.assembly.Driver", NamedDriver)
    with KafkaProducer(bootstrap_servers=NAME, metrics_registry=None, **KEYWORDS) as producer:
        for partition in range(3):
            producer.send(TOPIC, b"-1", partition=partition)
        producer.flush(timeout=20)
        yield producer, looked_up


def replace_node(server: ClusterServer, node_id: int) -> None:
    server.kill(node_id)
    server.readdress(node_id)
    server.start(node_id)


def test_all_at_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="outlast")
    with (
        calm_cluster() as server,
        behind_a_name(server, monkeypatch) as (producer, looked_up),
        Load(producer, TOPIC, 3, RATE) as load,
    ):
        begun_s = time.monotonic()
        until(lambda: load.flowing_since(begun_s + 0.5), "records flow")
        assert set(looked_up) == {NAME}
        before = len(looked_up)
        assert told(caplog) == []
        for node_id in (1, 2, 3):
            server.kill(node_id)
            server.readdress(node_id)
        threading.Event().wait(1.0)  # they are gone for a while: every known address is tried
        for node_id in (1, 2, 3):
            server.start(node_id)
        started_s = time.monotonic()
        until(lambda: load.flowing_since(started_s), "records flow again", timeout_s=FLOWING_S + 5)
        back_s = (
            max(
                min(a.at_s for a in acks.values() if a.at_s > started_s)
                for acks in load.ledger.acks.values()
            )
            - started_s
        )
        ledger = load.stop()
        print(f"\nflowing after {back_s:.3f} s, {len(looked_up) - before} look-ups")
        assert back_s <= FLOWING_S
        assert len(looked_up) > before
        assert str(account(ledger, log_of(server))) == CLEAN
        [text] = told(caplog)
        assert "bootstrap_servers is resolved again (kafka.test:9092)" in text


def test_one_by_one(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Those that are left name the new address: nothing is resolved again."""
    caplog.set_level(logging.WARNING, logger="outlast")
    with (
        calm_cluster() as server,
        behind_a_name(server, monkeypatch) as (producer, _),
        Load(producer, TOPIC, 3, RATE) as load,
    ):
        begun_s = time.monotonic()
        until(lambda: load.flowing_since(begun_s + 0.5), "records flow")
        for node_id in (1, 2, 3):
            replaced_s = time.monotonic()
            replace_node(server, node_id)
            until(lambda: load.flowing_since(replaced_s + 0.1), "records flow again")  # noqa: B023
            back_s = time.monotonic() - replaced_s
            print(f"\nnode {node_id}: flowing after {back_s:.3f} s")
            assert back_s <= FLOWING_S
            until(lambda: in_sync(server), "all replicas in sync")
        ledger = load.stop()
        assert str(account(ledger, log_of(server))) == CLEAN
        assert told(caplog) == []


def in_sync(server: ClusterServer) -> bool:
    host, port = server.call(lambda cluster, _: cluster.addresses[1])
    with MetadataConnection(host, port) as admin:
        return admin.topics([TOPIC])[TOPIC].in_sync(3, 3)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "resolved again" in r.getMessage()]
