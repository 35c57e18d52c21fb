"""`kafka_client=`: a client that the user lends makes the transports, on its own event loop."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import kafka
import pytest
from kafka.errors import KafkaConfigurationError, KafkaConnectionError
from kafka.net.compat import KafkaNetClient

from outlast import BlockedError, KafkaProducer
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic, read_back

Make = Callable[..., KafkaProducer]


class Lender:
    """Makes clients, as kafka-python's MockBroker.client_factory() does, and looks over them."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.clients: list[KafkaNetClient] = []
        self.dialled: list[tuple[int, str, int]] = []
        self.threads: set[str] = set()
        self.refuses = False

    def __call__(self, **keywords: Any) -> KafkaNetClient:
        self.calls.append(keywords)
        client = KafkaNetClient(**keywords)
        self.clients.append(client)
        usual = client._manager._build_transport

        async def build(node: Any, timeout_at: float | None = None) -> Any:
            self.dialled.append((node.node_id, node.host, node.port))
            self.threads.add(threading.current_thread().name)
            if self.refuses:
                raise KafkaConnectionError("the lender says no")
            return await usual(node, timeout_at=timeout_at)

        client._manager._build_transport = build
        return client


class TestLent:
    def test_it_is_made_as_kafka_python_makes_it(
        self, shared_cluster: ClusterServer, make_producer: Make
    ) -> None:
        lender = Lender()
        make_producer(shared_cluster, kafka_client=lender, client_id="me", max_block_ms=4_000)
        (call,) = lender.calls
        assert set(call) == {
            *kafka.KafkaProducer.DEFAULT_CONFIG,
            *("metrics", "metric_group_prefix", "wakeup_timeout_ms"),
        }
        assert call["metric_group_prefix"] == "producer"
        assert call["wakeup_timeout_ms"] == 4_000
        assert call["bootstrap_servers"] == shared_cluster.bootstrap
        assert call["client_id"] == "me"

    def test_every_connection_is_its(
        self, shared_cluster: ClusterServer, make_producer: Make
    ) -> None:
        topic, lender = new_topic(shared_cluster, 3), Lender()
        producer = make_producer(shared_cluster, kafka_client=lender, client_id="me")
        for number in range(3):
            producer.send(topic, b"v", partition=number).get(10)
        assert [len(records) for records in read_back(shared_cluster, topic, 3)] == [1, 1, 1]
        nodes = {node for node, _, _ in lender.dialled if node >= 0}
        assert nodes == {1, 2, 3}
        places = {f"{host}:{port}" for _, host, port in lender.dialled}
        assert places <= set(shared_cluster.bootstrap.split(","))
        assert lender.threads == {"me-network-thread"}

    def test_what_it_raises_is_told(
        self, shared_cluster: ClusterServer, make_producer: Make
    ) -> None:
        lender = Lender()
        lender.refuses = True
        producer = make_producer(shared_cluster, kafka_client=lender, max_block_ms=300)
        with pytest.raises(BlockedError, match="the lender says no"):
            producer.send("t", b"v")
        lender.refuses = False  # and it is asked again
        assert producer.send(new_topic(shared_cluster), b"v").get(10).offset == 0

    def test_it_is_closed_with_the_producer(
        self, shared_cluster: ClusterServer, make_producer: Make
    ) -> None:
        lender = Lender()
        producer = make_producer(shared_cluster, kafka_client=lender)
        producer.send(new_topic(shared_cluster), b"v").get(10)
        assert not lender.clients[0]._manager.closed
        producer.close()
        assert lender.clients[0]._manager.closed

    def test_also_by_the_first_producer_of_a_swapped_application(self) -> None:
        program = (
            "import outlast; outlast.install()\n"
            "import kafka; from kafka.net.compat import KafkaNetClient\n"
            "calls = []\n"
            "def client(**keywords): calls.append(keywords); return KafkaNetClient(**keywords)\n"
            "kafka.KafkaProducer(bootstrap_servers='127.0.0.1:1', kafka_client=client).close()\n"
            "assert 'buffer_memory' not in calls[0] and calls[0]['metrics'] is None, calls"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


class TestNotLent:
    def test_one_that_makes_kafka_pythons_transports_is_not_needed(
        self, shared_cluster: ClusterServer, make_producer: Make
    ) -> None:
        made: list[KafkaNetClient] = []

        class Client(KafkaNetClient):
            def __init__(self, **keywords: Any) -> None:
                super().__init__(**keywords)
                made.append(self)

        producer = make_producer(shared_cluster, kafka_client=Client)
        producer.send(new_topic(shared_cluster), b"v").get(10)
        assert made[0]._manager.closed
        assert not made[0]._manager._conns

    def test_what_is_no_client_is_refused_before_anything_starts(
        self, shared_cluster: ClusterServer, make_producer: Make
    ) -> None:
        threads = threading.active_count()
        with pytest.raises(KafkaConfigurationError, match=r"kafka_client=.*_manager"):
            make_producer(shared_cluster, kafka_client=lambda **_: object())
        assert threading.active_count() == threads
