"""Logins that take long, fail or say too much: what waits for them, and what is told."""

from __future__ import annotations

import logging
import math
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kafka.net import sasl as kafka_sasl
from kafka.net.sasl.abc import SaslMechanism

from outlast.engine.messages import Loss
from outlast.io.events import Connected
from tests.net.broker import (
    API_VERSIONS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Stream,
    broker,
    hold,
    metadata,
    sasl_authenticate,
    sasl_handshake,
    until,
)
from tests.net.client import client, produce
from tests.net.test_tls_and_sasl import PLAIN, oauth, sasl_broker
from tests.real.certificates import Authority


class Slow(SaslMechanism):
    """As GSSAPI and AWS_MSK_IAM are when a ticket or a token is far away."""

    go = threading.Event()
    threads: set[threading.Thread]

    def __init__(self, **config: Any) -> None:
        assert config["host"] == "127.0.0.1"
        self.done = False
        self._wait()

    def _wait(self) -> None:
        self.threads.add(threading.current_thread())
        logging.getLogger("kafka.net.sasl.gssapi").warning("a SECRET ticket")
        assert self.go.wait(5)

    def auth_bytes(self) -> bytes:
        self._wait()
        return b"x"

    def receive(self, _auth_bytes: bytes) -> None:
        self._wait()
        self.done = True

    def is_done(self) -> bool:
        return self.done

    def is_authenticated(self) -> bool:
        return self.done


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Slow]]:
    Slow.go.clear()
    Slow.threads = set()
    monkeypatch.setitem(kafka_sasl.SASL_MECHANISMS, "GSSAPI", Slow)
    yield Slow
    Slow.go.set()


GSSAPI = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}


def test_a_mechanism_that_waits_holds_up_no_other_connection(
    slow: type[Slow], caplog: pytest.LogCaptureFixture
) -> None:
    with broker(sasl_broker("GSSAPI", lambda _: True)) as server, client(**GSSAPI) as c:
        slow.go.set()
        open_one = c.connected(server)
        slow.go.clear()
        waiting = c.connect(server.host, server.port)
        c.poll_until(lambda: len(slow.threads) == 3)  # after two of the first login
        begun_s = time.monotonic()
        c.send(open_one, 1)
        assert c.answered(open_one).token == 1
        assert time.monotonic() - begun_s < 1.0
        slow.go.set()
        assert isinstance(c.next(waiting), Connected)
    assert threading.current_thread() not in slow.threads
    assert "SECRET" not in caplog.text


def test_credentials_of_aws_are_fetched_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """kafka-python's AWS_MSK_IAM, with a botocore that asks an instance's metadata for long."""
    go, threads = threading.Event(), set[threading.Thread]()
    keys = SimpleNamespace(access_key="key", secret_key="SECRET", token=None)

    class BotoSession:
        def get_credentials(self) -> Any:
            threads.add(threading.current_thread())
            assert go.wait(5)
            return SimpleNamespace(get_frozen_credentials=lambda: keys)

        def get_config_variable(self, _name: str) -> str:
            return "eu-central-1"

    monkeypatch.setitem(sys.modules, "botocore", ModuleType("botocore"))
    monkeypatch.setitem(sys.modules, "botocore.session", SimpleNamespace(Session=BotoSession))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority = Authority(tmp_path, "authority")
    context.load_cert_chain(authority.issue("broker", "127.0.0.1").file)
    said: list[bytes] = []

    def serve(stream: Stream) -> None:
        stream.set_up()
        while (request := stream.request()) is not None:
            key, version, correlation_id, body = request
            if key == SASL_HANDSHAKE:
                stream.answer(correlation_id, sasl_handshake(version, "AWS_MSK_IAM"))
            else:
                said.append(body)
                stream.answer(correlation_id, authenticated(version, b'{"version": "2020_10_22"}'))

    settings = {"sasl_mechanism": "AWS_MSK_IAM", "ssl_cafile": str(authority.file)}
    with (
        broker(serve, context) as server,
        client(security_protocol="SASL_SSL", **settings) as c,
    ):
        connection = c.connect(server.host, server.port)
        c.poll_until(lambda: threads)
        begun_s = time.monotonic()
        c.poll_for(0.05)
        assert time.monotonic() - begun_s < 1.0  # the loop was not held up
        go.set()
        assert isinstance(c.next(connection), Connected)
    assert threading.current_thread() not in threads
    assert b"kafka-cluster:Connect" in said[0]
    assert b"SECRET" not in said[0]


def test_a_mechanism_that_fails_says_so_and_keeps_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(Slow):
        def __init__(self, **_config: Any) -> None:
            raise RuntimeError("no ticket")

    monkeypatch.setitem(kafka_sasl.SASL_MECHANISMS, "GSSAPI", Broken)
    with broker(sasl_broker("GSSAPI", lambda _: True)) as server, client(**GSSAPI) as c:
        event = c.lost(c.connect(server.host, server.port))
    assert event.loss is Loss.AUTHENTICATION
    assert "SASL GSSAPI failed: RuntimeError: no ticket; check the ticket" in event.detail


SCRAM = {**PLAIN, "sasl_mechanism": "SCRAM-SHA-256"}


@pytest.mark.parametrize(
    ("final", "why"),
    [
        (b"e=invalid-proof", "an answer that is none of this mechanism"),
        (b"v=AAAA", "ValueError: Server sent wrong signature!"),
    ],
)
def test_a_broker_that_does_not_know_the_password_either(final: bytes, why: str) -> None:
    """SCRAM proves both sides: who cannot prove it gets no records."""

    def serve(stream: Stream) -> None:
        stream.set_up()
        said = 0
        while (request := stream.request()) is not None:
            key, version, correlation_id, body = request
            if key == SASL_HANDSHAKE:
                stream.answer(correlation_id, sasl_handshake(version, "SCRAM-SHA-256"))
                continue
            assert key == SASL_AUTHENTICATE
            said += 1
            nonce = body[body.index(b"r=") + 2 :][:32]
            first = b"r=" + nonce + b"xyz,s=AAAA,i=4096"
            answer = first if said == 1 else final
            stream.answer(correlation_id, authenticated(version, answer))

    with broker(serve) as server, client(**SCRAM) as c:
        event = c.lost(c.connect(server.host, server.port))
    assert event.loss is Loss.AUTHENTICATION
    assert why in event.detail


def test_an_exchange_that_ends_without_a_login() -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        while (request := stream.request()) is not None:
            key, version, correlation_id, _ = request
            login = key == SASL_AUTHENTICATE
            answer = authenticated(version, b"?") if login else sasl_handshake(version, "PLAIN")
            stream.answer(correlation_id, answer)

    with broker(serve) as server, client(**PLAIN) as c:
        event = c.lost(c.connect(server.host, server.port))
    assert event.loss is Loss.AUTHENTICATION
    assert "the exchange ended without a login" in event.detail


def authenticated(version: int, auth_bytes: bytes) -> bytes:
    from kafka.protocol.sasl import SaslAuthenticateResponse

    response = SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=auth_bytes, session_lifetime_ms=0
    )
    return (b"\0" if version >= 2 else b"") + bytes(response.encode(version=version))


def test_the_broker_s_reason_counts_though_the_end_comes_with_it(tmp_path: Path) -> None:
    asked = threading.Event()

    def serve(stream: Stream) -> None:
        stream.set_up()
        for _ in range(2):
            request = stream.request()
            assert request is not None
            key, version, correlation_id, _body = request
            if key == SASL_HANDSHAKE:
                stream.answer(correlation_id, sasl_handshake(version, "PLAIN"))
            else:
                asked.set()
                stream.answer(correlation_id, sasl_authenticate(version, 58))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # under TLS all is read at once
    authority = Authority(tmp_path, "authority")
    context.load_cert_chain(authority.issue("broker", "127.0.0.1").file)
    settings = {**PLAIN, "security_protocol": "SASL_SSL", "ssl_cafile": str(authority.file)}
    with broker(serve, context) as server, client(**settings) as c:
        connection = c.connect(server.host, server.port)
        c.poll_until(asked.is_set)
        until(lambda: not server.threads[1].is_alive())  # the answer and the end are both here
        event = c.lost(connection)
    assert event.loss is Loss.AUTHENTICATION, event
    assert "SASL PLAIN was refused" in event.detail


class Provider:
    """Not of kafka-python's class: what it has is enough."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0
        self.failing = False

    def token(self) -> str:
        self.asked += 1
        number = self.asked
        assert self.go.wait(5)
        if self.failing:
            raise RuntimeError("no identity server")
        return f"token-{number}"

    def extensions(self) -> dict[str, str]:
        return {}


def test_a_provider_is_asked_by_one_at_a_time_and_all_get_the_answer() -> None:
    provider = Provider()
    accepts: Callable[[bytes], bool] = lambda body: b"token-1" in body  # noqa: E731
    with broker(sasl_broker("OAUTHBEARER", accepts)) as server, client(**oauth(provider)) as c:
        connections = [c.connect(server.host, server.port) for _ in range(5)]
        c.poll_for(0.1)
        c.give_up(connections.pop(), abort=True)  # who has gone is not waited for
        provider.go.set()
        assert all(isinstance(c.next(connection), Connected) for connection in connections)
        assert provider.asked == 1


def test_a_provider_that_hangs_for_good_is_asked_again() -> None:
    provider = Provider()
    with (
        broker(sasl_broker("OAUTHBEARER", lambda body: b"token-2" in body)) as server,
        client(**oauth(provider), setup_timeout_s=0.3) as c,
    ):
        assert c.lost(c.connect(server.host, server.port)).loss is Loss.SETUP_TIMEOUT
        second = c.connect(server.host, server.port)
        c.poll_until(lambda: provider.asked == 2)
        provider.go.set()
        assert isinstance(c.next(second), Connected)


def test_a_provider_that_hangs_for_good_is_asked_ever_more_rarely() -> None:
    """Each question that hangs keeps a thread."""
    provider = Provider()
    setup_timeout_s = 0.03
    with (
        broker(sasl_broker("OAUTHBEARER", lambda _: True)) as server,
        client(**oauth(provider), setup_timeout_s=setup_timeout_s) as c,
    ):
        begun_s = time.monotonic()
        for _ in range(20):
            assert c.lost(c.connect(server.host, server.port)).loss is Loss.SETUP_TIMEOUT
        passed = (time.monotonic() - begun_s) / setup_timeout_s
        assert 2 <= provider.asked <= 1 + math.log2(1 + passed)
        provider.go.set()


@pytest.mark.slow
def test_a_renewal_is_tried_again_while_the_session_lasts() -> None:
    provider = Provider()
    provider.go.set()
    logins: list[bytes] = []

    def accepts(body: bytes) -> bool:
        logins.append(body)
        return True

    serve = sasl_broker("OAUTHBEARER", accepts, lifetime_ms=3000)
    with broker(serve) as server, client(**oauth(provider)) as c:
        connection = c.connected(server)
        provider.failing = True
        c.poll_until(lambda: provider.asked == 2)
        provider.failing = False
        c.poll_until(lambda: len(logins) == 2)
        c.send(connection, 1)
        assert c.answered(connection).token == 1
    assert provider.asked == 3


def test_a_short_session_is_renewed_before_its_end_though_the_provider_fails_at_first() -> None:
    """With less left than there usually is between two tries."""
    provider = Provider()
    provider.go.set()
    logins_s: list[float] = []

    def accepts(_: bytes) -> bool:
        logins_s.append(time.monotonic())
        return True

    serve = sasl_broker("OAUTHBEARER", accepts, lifetime_ms=1500)
    with broker(serve) as server, client(**oauth(provider)) as c:
        c.connected(server)
        provider.failing = True
        c.poll_until(lambda: provider.asked == 2)
        provider.failing = False
        c.poll_until(lambda: len(logins_s) == 2)
    assert logins_s[1] - logins_s[0] < 1.5


@pytest.mark.slow
def test_a_renewal_that_fails_to_the_end_says_why(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider()
    provider.go.set()
    serve = sasl_broker("OAUTHBEARER", lambda _: True, lifetime_ms=3000)
    with broker(serve) as server, client(**oauth(provider)) as c:
        connection = c.connected(server)
        provider.failing = True
        event = c.lost(connection)
    assert event.loss is Loss.AUTHENTICATION
    assert "no identity server" in event.detail
    assert len([r for r in caplog.records if "the session lasts" in r.getMessage()]) == 1


def test_no_debug_line_shows_what_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "kafka")
    with broker(sasl_broker("PLAIN", lambda _: True)) as server, client(**PLAIN) as c:
        connection = c.connected(server)
        c.send(connection, 1, produce(10))
        c.answered(connection)
    assert "secret" not in caplog.text
    assert "ProduceRequest" not in caplog.text
    assert "kafka.net.transport" in caplog.text  # lines without contents pass


# --- spoken to in the wrong way -------------------------------------------------------------------


def closes_at(key: int) -> Callable[[Stream], None]:
    """A peer that closes when this request comes; None before the first."""

    def serve(stream: Stream) -> None:
        if key == API_VERSIONS:
            stream.request()
            return
        stream.set_up()
        stream.request()

    return serve


@pytest.mark.parametrize(
    ("settings", "serve", "words"),
    [
        ({}, closes_at(API_VERSIONS), "before it answered ApiVersions over PLAINTEXT; does the"),
        (PLAIN, closes_at(SASL_HANDSHAKE), "during the SASL login over SASL_PLAINTEXT"),
        ({}, lambda s: s.sock.sendall(b"\x15\x03\x03\x00\x02\x02\x50"), "answers in TLS"),
        ({}, lambda s: s.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "answers in HTTP"),
    ],
)
def test_what_may_be_wrong_is_said(
    settings: dict[str, Any], serve: Callable[[Stream], None], words: str
) -> None:
    with broker(serve) as server, client(**settings) as c:
        event = c.lost(c.connect(server.host, server.port))
        assert words in event.detail


def test_a_close_at_the_first_request_may_mean_that_sasl_is_wanted() -> None:
    with broker(closes_at(METADATA)) as server, client() as c:
        connection = c.connected(server)
        c.send(connection, 1)
        event = c.lost(connection)
        assert event.loss is Loss.CLOSED
        assert "set security_protocol to 'SASL_PLAINTEXT'" in event.detail


def test_a_close_later_on_is_no_riddle() -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        assert request is not None
        stream.answer(request[2], metadata(request[1]))
        stream.request()

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        c.send(connection, 1)
        c.answered(connection)
        c.send(connection, 2)
        assert c.lost(connection).detail == "closed by the broker"


def test_a_silent_peer_is_no_riddle_either() -> None:
    with broker(hold) as server, client(setup_timeout_s=0.2) as c:
        assert c.lost(c.connect(server.host, server.port)).loss is Loss.SETUP_TIMEOUT
