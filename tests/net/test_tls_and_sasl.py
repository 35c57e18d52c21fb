"""TLS with a certificate made here, and SASL against a broker that speaks just enough of it."""

from __future__ import annotations

import gc
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaConfigurationError
from kafka.net.sasl.oauth import AbstractTokenProvider

from outlast.engine.messages import Connect, Connection, Loss, Role
from outlast.io.events import Connected
from outlast.io.kafka_net import Network
from tests.net.broker import (
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Stream,
    answer_all,
    broker,
    hold,
    metadata,
    produced,
    sasl_authenticate,
    sasl_handshake,
    until,
)
from tests.net.client import client, produce

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make a certificate"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and broker.test that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(cert), "-subj", "/CN=broker.test"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:broker.test"),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def server_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def tls(certificate: tuple[Path, Path], **more: Any) -> dict[str, Any]:
    return {"security_protocol": "SSL", "ssl_cafile": str(certificate[0]), **more}


@needs_openssl
def test_requests_of_any_size_go_through_tls(certificate: tuple[Path, Path]) -> None:
    with broker(answer_all, server_context(certificate)) as server, client(**tls(certificate)) as c:
        connection = c.connected(server)
        for token, size in enumerate((10, 100_000, 10_000_000)):
            c.send(connection, token, produce(size))
        assert [c.answered(connection).token for _ in range(3)] == [0, 1, 2]


@needs_openssl
@pytest.mark.parametrize(("name", "fits"), [("broker.test", True), ("other.test", False)])
def test_the_certificate_must_name_the_host(
    certificate: tuple[Path, Path], name: str, fits: bool
) -> None:
    with broker(answer_all, server_context(certificate)) as server:
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (server.host, server.port))
        with client(**tls(certificate), resolver=lambda *_: [address]) as c:
            event = c.next(c.connect(name, server.port))
            if fits:
                assert isinstance(event, Connected)
            else:
                assert not isinstance(event, Connected)
                assert event.loss is Loss.AUTHENTICATION
                assert "other.test" in event.detail


@needs_openssl
@pytest.mark.parametrize(
    ("node_id", "lookup", "fits"),
    [
        (-1, "resolve_canonical_bootstrap_servers_only", True),
        (1, "resolve_canonical_bootstrap_servers_only", False),  # is no bootstrap server
        (-1, "use_all_dns_ips", False),
    ],
)
def test_a_bootstrap_server_may_be_known_by_the_canonical_name_of_its_address(
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    node_id: int,
    lookup: str,
    fits: bool,
) -> None:
    monkeypatch.setattr(socket, "getnameinfo", lambda address, _: ("broker.test", address[1]))
    with broker(answer_all, server_context(certificate)) as server:
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (server.host, server.port))
        with client(
            **tls(certificate), client_dns_lookup=lookup, resolver=lambda *_: [address]
        ) as c:
            connection = Connection(node_id, Role.CONTROL, 1)
            c.network.execute(Connect(connection, "all-brokers.test", server.port))
            event = c.next(connection)
            assert isinstance(event, Connected) is fits
            if not isinstance(event, Connected):
                assert "all-brokers.test" in event.detail


@needs_openssl
def test_a_bootstrap_server_without_a_canonical_name_keeps_its_own(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object) -> None:
        raise socket.gaierror("no name")

    monkeypatch.setattr(socket, "getnameinfo", nothing)
    options = {"client_dns_lookup": "resolve_canonical_bootstrap_servers_only"}
    with broker(answer_all, server_context(certificate)) as server:
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (server.host, server.port))
        with client(**tls(certificate), **options, resolver=lambda *_: [address]) as c:
            connection = Connection(-1, Role.CONTROL, 1)
            c.network.execute(Connect(connection, "broker.test", server.port))
            assert isinstance(c.next(connection), Connected)


@needs_openssl
def test_a_tls_peer_that_is_silent_meets_the_same_deadline(certificate: tuple[Path, Path]) -> None:
    with broker(hold) as server, client(**tls(certificate), setup_timeout_s=0.3) as c:
        begun_s = time.monotonic()
        assert c.lost(c.connect(server.host, server.port)).loss is Loss.SETUP_TIMEOUT
        assert time.monotonic() - begun_s < 3.0


@needs_openssl
def test_given_up_in_the_handshake_the_socket_is_closed(certificate: tuple[Path, Path]) -> None:
    gc.disable()  # it would close it too, some time
    try:
        with broker(hold) as server, client(**tls(certificate)) as c:
            connection = c.connect(server.host, server.port)
            c.poll_until(lambda: len(server.threads) == 2)
            c.poll_for(0.05)
            c.give_up(connection, abort=False)
            until(lambda: not server.threads[1].is_alive())
            c.poll_for(0.05)
            assert c.events == []
    finally:
        gc.enable()


@needs_openssl
def test_under_tls_an_answer_before_the_end_counts_too(certificate: tuple[Path, Path]) -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        assert request is not None
        stream.answer(request[2], metadata(12))

    with broker(serve, server_context(certificate)) as server, client(**tls(certificate)) as c:
        connection = c.connected(server)
        c.send(connection, 1)
        until(lambda: not server.threads[1].is_alive())  # the answer and the end are both here
        assert c.answered(connection).token == 1
        assert c.lost(connection).loss is Loss.CLOSED


@needs_openssl
def test_a_peer_that_speaks_no_tls(certificate: tuple[Path, Path]) -> None:
    def plain(stream: Stream) -> None:
        stream.sock.recv(1000)
        stream.sock.sendall(b"\0\0\0\4\0\0\0\0" * 4)
        hold(stream)

    with broker(plain) as server, client(**tls(certificate)) as c:
        assert c.lost(c.connect(server.host, server.port)).loss is Loss.AUTHENTICATION


@needs_openssl
def test_ciphers_are_honoured(certificate: tuple[Path, Path]) -> None:
    only = server_context(certificate)
    only.maximum_version = ssl.TLSVersion.TLSv1_2
    only.set_ciphers("ECDHE-RSA-AES256-GCM-SHA384")
    with broker(answer_all, only) as server:
        with client(**tls(certificate, ssl_ciphers="ECDHE-RSA-AES256-GCM-SHA384")) as c:
            c.connected(server)
        server.errors.clear()
        with client(**tls(certificate, ssl_ciphers="ECDHE-RSA-AES128-GCM-SHA256")) as c:
            c.lost(c.connect(server.host, server.port))


def test_tls_that_cannot_be_set_up_names_the_setting(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    with pytest.raises(KafkaConfigurationError, match=r"ssl_cafile=.*none\.pem"):
        Network({"security_protocol": "SSL", "ssl_cafile": missing}, setup_timeout_s=1)
    with pytest.raises(KafkaConfigurationError, match="ssl_ciphers='no such'"):
        Network({"security_protocol": "SSL", "ssl_ciphers": "no such"}, setup_timeout_s=1)


# --- SASL -----------------------------------------------------------------------------------------

PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "me",
    "sasl_plain_password": "secret",
}


def sasl_broker(
    mechanism: str, accepts: Callable[[bytes], bool], lifetime_ms: int = 0
) -> Callable[[Stream], None]:
    def serve(stream: Stream) -> None:
        stream.set_up()
        while (request := stream.request()) is not None:
            key, version, correlation_id, body = request
            if key == SASL_HANDSHAKE:
                answer = sasl_handshake(version, mechanism)
            elif key == SASL_AUTHENTICATE:
                error = 0 if accepts(body) else 58
                answer = sasl_authenticate(version, error, lifetime_ms)
            else:
                assert key in (METADATA, PRODUCE)
                answer = (produced if key == PRODUCE else metadata)(version)
            stream.answer(correlation_id, answer)

    return serve


def test_plain_authentication() -> None:
    with broker(sasl_broker("PLAIN", lambda body: b"me\0me\0secret" in body)) as server:
        with client(**PLAIN) as c:
            connection = c.connected(server)
            c.send(connection, 1)
            assert c.answered(connection).token == 1
        with client(**{**PLAIN, "sasl_plain_password": "wrong"}) as c:
            event = c.lost(c.connect(server.host, server.port))
            assert event.loss is Loss.AUTHENTICATION
            assert "SaslAuthenticationFailedError" in event.detail
            assert "wrong" not in event.detail


def test_a_mechanism_that_the_broker_does_not_have() -> None:
    with broker(sasl_broker("GSSAPI", lambda _: True)) as server, client(**PLAIN) as c:
        event = c.lost(c.connect(server.host, server.port))
        assert event.loss is Loss.AUTHENTICATION


class Provider(AbstractTokenProvider):
    """Gives tokens 1, 2, …, once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.threads: list[threading.Thread] = []

    def token(self) -> str:
        self.threads.append(threading.current_thread())
        assert self.go.wait(5)
        return f"token-{len(self.threads)}"

    def extensions(self) -> dict[str, str]:
        return {"traceId": "7"}


def oauth(provider: Any) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }


def test_a_slow_token_holds_up_no_other_connection() -> None:
    provider = Provider()
    with broker(
        sasl_broker("OAUTHBEARER", lambda body: b"token-1" in body and b"traceId=7" in body)
    ) as server:
        with client(**oauth(provider)) as c:
            waiting = c.connect(server.host, server.port)
            begun_s = time.monotonic()
            c.poll_for(0.05)
            assert time.monotonic() - begun_s < 0.5  # the loop was not held up
            provider.go.set()
            assert isinstance(c.next(waiting), Connected)
        assert threading.current_thread() not in provider.threads


def test_a_token_provider_that_raises() -> None:
    class Broken(Provider):
        def token(self) -> str:
            raise RuntimeError("no identity server")

    with broker(hold) as server, client(**oauth(Broken())) as c:
        event = c.lost(c.connect(server.host, server.port))
        assert event.loss is Loss.AUTHENTICATION
        assert "no identity server" in event.detail


@pytest.mark.slow
def test_authentication_is_renewed_with_a_fresh_token_while_requests_flow() -> None:
    provider, seen = Provider(), []

    def accepts(body: bytes) -> bool:
        seen.append(body)
        return True

    provider.go.set()
    with broker(sasl_broker("OAUTHBEARER", accepts, lifetime_ms=1000)) as server:
        with client(**oauth(provider)) as c:
            connection = c.connected(server)
            provider.go.clear()
            c.poll_until(lambda: len(provider.threads) == 2)  # the second token is being fetched
            c.send(connection, 1)
            assert c.answered(connection).token == 1  # and requests flow meanwhile
            provider.go.set()
            sent = iter(range(2, 10_000))
            expected = iter(range(2, 10_000))
            while len(seen) < 2:
                c.send(connection, next(sent))
                assert c.answered(connection).token == next(expected)
        assert b"token-1" in seen[0]
        assert b"token-2" in seen[1]
        assert threading.current_thread() not in provider.threads


@pytest.mark.slow
def test_requests_wait_for_a_renewal_and_nothing_else_does() -> None:
    """Ten requests come while it goes on; then all are written, whatever was throttled before."""
    renewing, go = threading.Event(), threading.Event()
    logins: list[int] = []

    def serve(stream: Stream) -> None:
        stream.set_up()
        held: list[tuple[int, int]] = []
        while (request := stream.request()) is not None:
            key, version, correlation_id, _ = request
            if key == SASL_HANDSHAKE:
                logins.append(correlation_id)
                if len(logins) == 2:
                    renewing.set()
                    assert go.wait(5)
                stream.answer(correlation_id, sasl_handshake(version, "PLAIN"))
            elif key == SASL_AUTHENTICATE:
                stream.answer(correlation_id, sasl_authenticate(version, 0, 1000))
            else:
                held.append((version, correlation_id))
                if len(logins) == 1 or len(held) == 10:
                    for kept_version, kept_id in held:
                        body = metadata(kept_version)
                        stream.answer(kept_id, body[:1] + (60_000).to_bytes(4, "big") + body[5:])
                    held = []

    with broker(serve) as server, client(**PLAIN) as c:
        connection = c.connected(server)
        c.send(connection, 0)
        assert c.answered(connection).token == 0
        c.poll_until(renewing.is_set)
        for token in range(1, 11):
            c.send(connection, token)
        go.set()
        assert [c.answered(connection).token for _ in range(10)] == list(range(1, 11))


@pytest.mark.slow
def test_what_waited_for_a_renewal_that_failed_was_never_sent() -> None:
    renewing, go = threading.Event(), threading.Event()
    logins: list[int] = []

    def serve(stream: Stream) -> None:
        stream.set_up()
        while (request := stream.request()) is not None:
            key, version, correlation_id, _ = request
            if key == SASL_HANDSHAKE:
                logins.append(correlation_id)
                stream.answer(correlation_id, sasl_handshake(version, "PLAIN"))
                continue
            if len(logins) == 2:
                renewing.set()
                assert go.wait(5)
            stream.answer(correlation_id, sasl_authenticate(version, 58 * (len(logins) - 1), 1000))

    with broker(serve) as server, client(**PLAIN) as c:
        connection = c.connected(server)
        c.poll_until(renewing.is_set)
        for token in (1, 2):
            c.send(connection, token)
        go.set()
        event = c.lost(connection)
        assert event.loss is Loss.AUTHENTICATION
        assert event.unsent == [1, 2]
