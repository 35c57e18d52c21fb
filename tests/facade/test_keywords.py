"""Every keyword that kafka-python takes does something here: each has a test that shows it.

Those below are shown on the wire, on sockets or in the cluster's log. Of the others `ELSEWHERE`
names the test, and `NONE` those without effect, which docs/compatibility.md lists, too.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from outlast import BlockedError, KafkaProducer
from outlast.testing import Error, MockCluster, Slow
from outlast.testing.cluster_settings import ClusterSettings
from tests.facade.tap import Tap

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "compatibility.md"

ELSEWHERE = {
    "key_serializer": "facade/test_producer.py::TestSerializers",
    "value_serializer": "facade/test_producer.py::TestSerializers",
    "partitioner": "facade/test_partitioners.py::TestCalledAsByKafkaPython",
    "compression_type": "facade/test_figures.py::test_compression",
    "linger_ms": "facade/test_figures.py::test_times",
    "client_dns_lookup": "net/test_tls_and_sasl.py::"
    "test_a_bootstrap_server_may_be_known_by_the_canonical_name_of_its_address",
    "kafka_client": "facade/test_kafka_client.py::TestLent",
    "metric_reporters": "facade/test_figures.py::TestReporters",
    "metrics_enabled": "facade/test_figures.py::test_none_if_switched_off_and_nothing_is_counted",
    "metrics_num_samples": "facade/test_samples.py::test_of_any_events",
    "metrics_sample_window_ms": "facade/test_samples.py::test_of_any_events",
    "proxy_url": "net/test_proxies.py::test_the_proxy_looks_the_name_up",
    "socks5_proxy": "net/test_proxies.py::test_a_bad_url_is_an_error_that_keeps_the_secret",
    "sasl_mechanism": "net/test_tls_and_sasl.py::test_plain_authentication",
    "sasl_oauth_token_provider": "net/test_tls_and_sasl.py::test_a_token_provider_that_raises",
    "sasl_plain_password": "net/test_tls_and_sasl.py::test_plain_authentication",
    "sasl_plain_username": "net/test_tls_and_sasl.py::test_plain_authentication",
    "security_protocol": "net/test_tls_keywords.py::test_ssl_cafile",
    "ssl_cafile": "net/test_tls_keywords.py::test_ssl_cafile",
    "ssl_certfile": "net/test_tls_keywords.py::test_ssl_certfile_and_ssl_keyfile",
    "ssl_check_hostname": "net/test_tls_keywords.py::test_ssl_check_hostname",
    "ssl_ciphers": "net/test_tls_and_sasl.py::test_ciphers_are_honoured",
    "ssl_context": "net/test_tls_keywords.py::test_ssl_context_takes_the_place_of_the_others",
    "ssl_crlfile": "net/test_tls_keywords.py::test_ssl_crlfile",
    "ssl_keyfile": "net/test_tls_keywords.py::test_ssl_certfile_and_ssl_keyfile",
    "ssl_password": "net/test_tls_keywords.py::test_ssl_certfile_and_ssl_keyfile",
    "transaction_timeout_ms": "facade/test_transactions.py::"
    "test_a_transaction_that_takes_too_long_is_aborted_and_the_producer_goes_on",
    "transactional_id": "facade/test_transactions.py::"
    "test_what_is_committed_is_seen_and_what_is_aborted_is_not",
}

PLAIN = ClusterSettings(creation_deny_p=0.0)  # a new topic's leader leads at once

_shown: set[str] = set()
Test = Callable[..., None]


def shows(*names: str) -> Callable[[Test], Test]:
    """The test shows what these keywords do."""

    def note(test: Test) -> Test:
        _shown.update(names)
        return test

    return note


class TestAll:
    def test_every_keyword_of_kafka_python_has_its_test(self) -> None:
        theirs = set(kafka.KafkaProducer.DEFAULT_CONFIG)
        assert _shown | set(ELSEWHERE) == theirs
        assert len(_shown) + len(ELSEWHERE) == len(theirs)

    @pytest.mark.parametrize("name", sorted(ELSEWHERE))
    def test_what_is_shown_elsewhere_is_there(self, name: str) -> None:
        path, _, test = ELSEWHERE[name].partition("::")
        text = (TESTS / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *(class|def) {test}\b", text, re.MULTILINE)


@pytest.fixture
def kafka_1() -> Iterator[MockCluster]:
    with MockCluster(1, topics={"t": 1}, settings=PLAIN) as cluster:
        yield cluster


@pytest.fixture
def make(kafka_1: MockCluster) -> Iterator[Callable[..., KafkaProducer]]:
    with contextlib.ExitStack() as producers:

        def make(**keywords: Any) -> KafkaProducer:
            given = {"bootstrap_servers": kafka_1.bootstrap_servers, "metrics_registry": None}
            producer = KafkaProducer(**{**given, **keywords})
            producers.callback(producer.close, timeout=0)
            return producer

        yield make


Make = Callable[..., KafkaProducer]


class TestIdentity:
    @shows("bootstrap_servers")
    @pytest.mark.parametrize(
        "write", [str, lambda s: f"127.0.0.1:1,{s}", lambda s: ["127.0.0.1:1", f"PLAINTEXT://{s}"]]
    )
    def test_bootstrap_servers(self, kafka_1: MockCluster, make: Make, write: Any) -> None:
        producer = make(bootstrap_servers=write(kafka_1.bootstrap_servers))
        assert producer.send("t", b"v").get(10).offset == 0

    @shows("client_id")
    def test_client_id(self, make: Make) -> None:
        tap = Tap()
        make(kafka_client=tap, client_id="billing").send("t", b"v").get(10)
        assert {r.client_id for r in tap.requests()} == {"billing"}
        tap = Tap()
        make(kafka_client=tap).send("t", b"v").get(10)
        (name,) = {r.client_id for r in tap.requests()}
        assert re.fullmatch(r"kafka-python-producer-\d+", name)

    @shows("api_version")
    @pytest.mark.parametrize("version", [(0, 9), (0, 10), (0, 11), (1, 0), (2, 1), (2, 8), (4, 1)])
    def test_api_version_bounds_the_version_of_each_request(
        self, make: Make, version: tuple[int, ...]
    ) -> None:
        tap = Tap()
        make(kafka_client=tap, api_version=version).send("t", b"v").get(10)
        known = BrokerVersionData(max(version, (0, 11))).api_versions  # nothing older is spoken
        kinds = [ProduceRequest, MetadataRequest]
        for kind in [*kinds, InitProducerIdRequest] if version >= (0, 11) else kinds:
            sent = {r.version for r in tap.requests(kind)}
            assert sent, kind
            assert max(sent) <= known[kind.API_KEY][1]


class TestDelivery:
    @shows("acks")
    @pytest.mark.parametrize("acks", [0, 1, "all"])
    def test_acks(self, make: Make, acks: Any) -> None:
        tap = Tap()
        make(kafka_client=tap, acks=acks).send("t", b"v").get(10)
        assert {r.request.acks for r in tap.requests(ProduceRequest)} == {
            -1 if acks == "all" else acks
        }

    @shows("enable_idempotence")
    @pytest.mark.parametrize("wanted", [True, False])
    def test_enable_idempotence(self, kafka_1: MockCluster, make: Make, wanted: bool) -> None:
        make(enable_idempotence=wanted).send("t", b"v").get(10)
        (record,) = kafka_1.records("t", 0)
        assert (record.producer_id >= 0) is wanted

    @shows("retries")
    @pytest.mark.parametrize("retries", [0, 3])
    def test_retries(self, kafka_1: MockCluster, make: Make, retries: int) -> None:
        kafka_1.faults.append(Error(19))  # NOT_ENOUGH_REPLICAS
        producer = make(retries=retries, retry_backoff_ms=1)
        with pytest.raises(kafka.errors.NotEnoughReplicasError):
            producer.send("t", b"v").get(10)
        assert len(kafka_1.requests(ProduceRequest.API_KEY)) == 1 + retries

    @shows("retry_backoff_ms")
    def test_retry_backoff_ms_of_records(self, kafka_1: MockCluster, make: Make) -> None:
        kafka_1.faults.append(Error(19, times=1))
        make(retry_backoff_ms=400).send("t", b"v").get(10)
        first, second = kafka_1.requests(ProduceRequest.API_KEY)
        assert second.received_at_s - first.received_at_s >= 0.8 * 0.4  # ± 20 %

    @pytest.mark.timed
    @shows("retry_backoff_ms")
    @pytest.mark.parametrize("pause_ms", [50, 400])
    def test_retry_backoff_ms_of_metadata(
        self, kafka_1: MockCluster, make: Make, pause_ms: int
    ) -> None:
        producer = make(retry_backoff_ms=pause_ms, max_block_ms=1_500)
        with pytest.raises(BlockedError):
            producer.send("unknown", b"v")
        asked = [r.received_at_s for r in kafka_1.requests(MetadataRequest.API_KEY)]
        pauses = sorted(b - a for a, b in itertools.pairwise(asked))
        assert 0.8 * pause_ms / 1000 <= pauses[len(pauses) // 2]
        assert len(asked) >= (10 if pause_ms == 50 else 3)

    @shows("delivery_timeout_ms")
    def test_delivery_timeout_ms(self, kafka_1: MockCluster, make: Make) -> None:
        producer = make(delivery_timeout_ms=600, request_timeout_ms=500)
        producer.partitions_for("t")
        kafka_1.pause(1)
        begun_s = time.monotonic()
        with pytest.raises(KafkaTimeoutError):
            producer.send("t", b"v").get(10)
        assert 0.5 <= time.monotonic() - begun_s < 5.0

    @pytest.mark.timed
    @shows("request_timeout_ms")
    def test_request_timeout_ms(self, kafka_1: MockCluster, make: Make) -> None:
        tap = Tap()
        producer = make(
            kafka_client=tap,
            request_timeout_ms=300,
            silence_timeout_ms=60_000,
            enable_idempotence=False,
            acks=1,
        )
        producer.partitions_for("t")
        kafka_1.faults.append(Slow(1.0, api=ProduceRequest.API_KEY, times=1))
        producer.send("t", b"v").get(20)
        first, second = (r.at_s for r in tap.requests(ProduceRequest)[:2])  # it was sent again
        assert 0.29 <= second - first < 5.0

    @pytest.mark.timed
    @shows("max_in_flight_requests_per_connection")
    @pytest.mark.parametrize("most", [1, 3])
    def test_max_in_flight_requests_per_connection(
        self, kafka_1: MockCluster, make: Make, most: int
    ) -> None:
        tap = Tap()
        producer = make(kafka_client=tap, max_in_flight_requests_per_connection=most, batch_size=1)
        producer.send("t", b"first").get(10)  # before it, one travels alone
        before = len(tap.requests(ProduceRequest))
        kafka_1.faults.append(Slow(0.6, api=ProduceRequest.API_KEY, times=1))
        futures = [producer.send("t", b"v") for _ in range(6)]
        kafka_1.wait_until(lambda: len(tap.requests(ProduceRequest)) >= before + most)
        begun_s = tap.requests(ProduceRequest)[before].at_s
        for future in futures:
            future.get(10)
        within = [r for r in tap.requests(ProduceRequest)[before:] if r.at_s < begun_s + 0.5]
        assert len(within) == most

    @shows("max_block_ms")
    def test_max_block_ms(self, make: Make) -> None:
        for max_block_ms in (0, 400):
            producer = make(max_block_ms=max_block_ms)
            begun_s = time.monotonic()
            with pytest.raises(BlockedError):
                producer.send("unknown", b"v")
            assert max_block_ms / 1000 <= time.monotonic() - begun_s < 5.0

    @pytest.mark.timed
    @shows("bootstrap_timeout_ms")
    def test_bootstrap_timeout_ms(self, kafka_1: MockCluster, make: Make) -> None:
        for keywords, longer in (({"bootstrap_timeout_ms": 300}, False), ({}, True)):
            producer = make(bootstrap_servers="127.0.0.1:1", max_block_ms=1_000, **keywords)
            begun_s = time.monotonic()
            with pytest.raises(BlockedError):
                producer.send("t", b"v")
            assert (time.monotonic() - begun_s >= 0.9) is longer
        producer = make(bootstrap_timeout_ms=300, max_block_ms=1_000)
        producer.partitions_for("t")  # once a broker was reached, it is max_block_ms
        kafka_1.wait_until(producer.bootstrap_connected)
        for _ in range(2):  # the second time its name is known to be a possible one
            begun_s = time.monotonic()
            with pytest.raises(BlockedError):
                producer.send("unknown", b"v")
            assert time.monotonic() - begun_s >= 0.9


class TestBatching:
    @shows("batch_size")
    @pytest.mark.parametrize(("batch_size", "batches"), [(16_384, 1), (300, 5), (0, 10)])
    def test_batch_size(
        self, kafka_1: MockCluster, make: Make, batch_size: int, batches: int
    ) -> None:
        producer = make(batch_size=batch_size, linger_ms=1_000)
        for _ in range(10):
            producer.send("t", b"v" * 90)
        producer.flush()
        sent = kafka_1.requests(ProduceRequest.API_KEY)
        assert sum(len(request.partitions) for request in sent) == batches
        assert len(kafka_1.records("t", 0)) == 10

    @shows("max_request_size")
    def test_max_request_size(self, make: Make) -> None:
        tap = Tap()
        producer = make(kafka_client=tap, max_request_size=1_000)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send("t", b"v" * 1_000)
        producer.send("t", b"v" * 800).get(10)


class TestMetadata:
    @shows("metadata_max_age_ms")
    def test_metadata_max_age_ms(self, kafka_1: MockCluster, make: Make) -> None:
        make(metadata_max_age_ms=100).send("t", b"v").get(10)

        def asked() -> int:
            return len(kafka_1.requests(MetadataRequest.API_KEY))

        before = asked()
        kafka_1.wait_until(lambda: asked() >= before + 5, timeout_s=10)

    @shows("allow_auto_create_topics")
    @pytest.mark.parametrize("allowed", [True, False])
    def test_allow_auto_create_topics(self, allowed: bool) -> None:
        settings = ClusterSettings(auto_create_topics=True)
        tap = Tap()
        with (
            MockCluster(1, settings=settings) as cluster,
            KafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers,
                metrics_registry=None,
                kafka_client=tap,
                allow_auto_create_topics=allowed,
                max_block_ms=10_000 if allowed else 500,
            ) as producer,
        ):
            if allowed:
                assert producer.send("new", b"v").get(10).offset == 0
            else:
                with pytest.raises(BlockedError):
                    producer.send("new", b"v")
            assert [p.topic for p in cluster.partitions()] == (["new"] if allowed else [])
        asked = [r.request for r in tap.requests(MetadataRequest) if r.request.topics]
        assert {request.allow_auto_topic_creation for request in asked} == {allowed}


class TestConnections:
    @shows("connections_max_idle_ms")
    def test_connections_max_idle_ms(self, kafka_1: MockCluster, make: Make) -> None:
        producer = make(connections_max_idle_ms=300)
        producer.send("t", b"v").get(10)

        def connections() -> float:
            metrics = producer.metrics()
            assert metrics is not None
            count: float = metrics["producer-metrics"]["connection-count"]
            return count

        assert connections() >= 1
        kafka_1.wait_until(lambda: connections() == 0, timeout_s=10)
        assert producer.send("t", b"v").get(10).offset == 1

    @pytest.mark.timed
    @shows("reconnect_backoff_ms", "reconnect_backoff_max_ms")
    @pytest.mark.parametrize(
        ("first_ms", "longest_ms", "accepted"),
        [(20, 20, (20, 1_000)), (300, 300, (2, 7)), (20, 1_000, (4, 12))],
    )
    def test_reconnect_backoff(
        self, make: Make, first_ms: int, longest_ms: int, accepted: tuple[int, int]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            count, ended = [0], threading.Event()

            def hang_up() -> None:
                server.settimeout(0.1)
                while not ended.is_set():
                    with contextlib.suppress(TimeoutError):
                        server.accept()[0].close()
                        count[0] += 1

            thread = threading.Thread(target=hang_up)
            thread.start()
            producer = make(
                bootstrap_servers=f"127.0.0.1:{server.getsockname()[1]}",
                reconnect_backoff_ms=first_ms,
                reconnect_backoff_max_ms=longest_ms,
                max_block_ms=1_500,
            )
            with pytest.raises(BlockedError):
                producer.send("t", b"v")
            ended.set()
            thread.join()
        assert accepted[0] <= count[0] <= accepted[1]

    @shows("receive_message_max_bytes")
    def test_receive_message_max_bytes(self, kafka_1: MockCluster, make: Make) -> None:
        for number in range(40):
            kafka_1.create_topic(f"topic-with-a-long-name-{number}", 10)
        small = make(receive_message_max_bytes=200, max_block_ms=500)
        with pytest.raises(BlockedError):
            small.send("topic-with-a-long-name-1", b"v")
        large = make(receive_message_max_bytes=100_000)
        large.send("topic-with-a-long-name-1", b"v").get(10)

    @shows("receive_buffer_bytes", "send_buffer_bytes", "socket_options")
    def test_sockets(
        self, kafka_1: MockCluster, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ports = {int(place.rpartition(":")[2]) for place in kafka_1.bootstrap_servers.split(",")}
        seen: list[tuple[int, ...]] = []

        def connect_ex(sock: socket.socket, address: Any) -> int:
            if address[1] in ports:
                level, tcp = socket.SOL_SOCKET, socket.IPPROTO_TCP
                options = (level, socket.SO_RCVBUF), (level, socket.SO_SNDBUF)
                options += (level, socket.SO_KEEPALIVE), (tcp, socket.TCP_NODELAY)  # type: ignore[assignment]
                seen.append(tuple(sock.getsockopt(*option) for option in options))
            return real(sock, address)

        real = socket.socket.connect_ex
        monkeypatch.setattr(socket.socket, "connect_ex", connect_ex)
        make(receive_buffer_bytes=20_000, send_buffer_bytes=30_000).send("t", b"v").get(10)
        assert {(r // 20_000, s // 30_000) for r, s, _, _ in seen} <= {(1, 1), (2, 2)}
        assert {(bool(k), bool(n)) for _, _, k, n in seen} == {(True, True)}
        seen.clear()
        no_delay = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        make(socket_options=[no_delay, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)]).send(
            "t", b"v"
        ).get(10)
        assert {(k, n) for _, _, k, n in seen} == {(0, 0)}

    @shows("selector")
    def test_selector(self, make: Make) -> None:
        made: list[object] = []

        class Selector(selectors.SelectSelector):
            def __init__(self) -> None:
                made.append(self)
                super().__init__()

        make(selector=Selector).send("t", b"v").get(10)
        assert len(made) == 1


class TestKerberos:
    @shows("sasl_kerberos_name", "sasl_kerberos_service_name", "sasl_kerberos_domain_name")
    def test_what_gssapi_is_given(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        given: list[dict[str, Any]] = []

        class Gssapi:
            def __init__(self, **config: Any) -> None:
                given.append(config)
                raise ValueError("as far as this test goes")

        monkeypatch.setattr("outlast.io.kafka_net.get_sasl_mechanism", lambda _: Gssapi)
        producer = make(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="GSSAPI",
            sasl_kerberos_name="me@REALM",
            sasl_kerberos_service_name="brokers",
            sasl_kerberos_domain_name="kafka.test",
            max_block_ms=1_000,
        )
        with pytest.raises(BlockedError):
            producer.send("t", b"v")
        expected = {
            "sasl_kerberos_name": "me@REALM",
            "sasl_kerberos_service_name": "brokers",
            "sasl_kerberos_domain_name": "kafka.test",
            "host": "127.0.0.1",
        }
        assert given
        assert {name: given[0][name] for name in expected} == expected
