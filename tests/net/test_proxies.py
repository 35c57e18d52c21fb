"""Through SOCKS5 and HTTP proxies: who looks names up, who may come, and why it did not work."""

from __future__ import annotations

import time
from typing import Any

import pytest

from outlast import ConfigurationError
from outlast.engine.messages import Loss
from outlast.io.events import Connected
from outlast.io.kafka_net import Network
from tests.net.broker import Server, Stream, answer_all, broker, hold
from tests.net.client import Client, client
from tests.net.proxies import HttpConnect, Proxy, Socks5

KINDS = [(Socks5, "socks5h"), (HttpConnect, "http")]
every_kind = pytest.mark.parametrize(("kind", "scheme"), KINDS, ids=["socks5h", "http"])
LOGIN = ("m:e", "p@ss w/rd" + "x" * 120)  # kafka-python's packs no length over 127
IN_URL = "m%3Ae:p%40ss%20w%2Frd" + "x" * 120


def url(scheme: str, proxy: Proxy, user: str = "") -> str:
    return f"{scheme}://{user}{'@' if user else ''}127.0.0.1:{proxy.port}"


def answers(c: Client, server: Server, host: str = "broker.test") -> None:
    connection = c.connect(host, server.port)
    event = c.next(connection)
    assert isinstance(event, Connected), event
    c.send(connection, 1)
    assert c.answered(connection).token == 1


@every_kind
@pytest.mark.parametrize("with_login", [False, True])
def test_the_proxy_looks_the_name_up(kind: type[Proxy], scheme: str, with_login: bool) -> None:
    with broker(answer_all) as server:
        names = {"broker.test": (server.host, server.port)}
        with (
            kind(names, LOGIN if with_login else None) as proxy,
            client(proxy_url=url(scheme, proxy, IN_URL if with_login else "")) as c,
        ):
            answers(c, server)
            assert proxy.asked == [("broker.test", server.port)]


def test_socks5_looks_names_up_here() -> None:
    with broker(answer_all) as server, Socks5() as proxy:
        resolved: list[str] = []

        def resolver(host: str, port: int) -> list[Any]:
            resolved.append(host)
            return [(2, 1, 6, "", (server.host, port))]

        with client(proxy_url=url("socks5", proxy), resolver=resolver) as c:
            answers(c, server)
        assert resolved == ["broker.test"]
        assert proxy.asked == [(server.host, server.port)]


@every_kind
def test_an_address_of_version_6_goes_through(kind: type[Proxy], scheme: str) -> None:
    with (
        broker(answer_all) as server,
        kind({"::1": (server.host, server.port)}) as proxy,
        client(proxy_url=url(scheme, proxy)) as c,
    ):
        answers(c, server, "::1")
        assert proxy.asked == [("::1", server.port)]


@every_kind
@pytest.mark.parametrize("given", ["", "me:wrong-SECRET"])
def test_a_login_that_the_proxy_does_not_take(kind: type[Proxy], scheme: str, given: str) -> None:
    with kind(login=LOGIN) as proxy, client(proxy_url=url(scheme, proxy, given)) as c:
        event = c.lost(c.connect("broker.test", 9092))
        assert event.loss is Loss.AUTHENTICATION
        assert f"proxy {scheme}://127.0.0.1:{proxy.port}: " in event.detail
        assert "check user and password in proxy_url" in event.detail
        assert "SECRET" not in event.detail
        assert "SECRET" not in repr(c.network.dialer)


@every_kind
def test_a_proxy_that_refuses_says_why(kind: type[Proxy], scheme: str) -> None:
    with kind() as proxy, client(proxy_url=url(scheme, proxy)) as c:
        proxy.refusing = True
        event = c.lost(c.connect("broker.test", 9092))
        assert event.loss is Loss.REFUSED
        why = "not allowed by its rules" if kind is Socks5 else "403 Forbidden"
        assert why in event.detail
        assert "broker.test:9092" in event.detail


@pytest.mark.parametrize("scheme", ["socks5h", "http"])
def test_a_proxy_that_closes_at_once(scheme: str) -> None:
    def serve(stream: Stream) -> None:
        stream.sock.recv(1000)

    with (
        broker(serve) as server,
        client(proxy_url=f"{scheme}://127.0.0.1:{server.port}") as c,
    ):
        event = c.lost(c.connect("broker.test", 9092))
        assert event.loss is Loss.REFUSED
        assert "it closed the connection without an answer" in event.detail


@every_kind
def test_a_proxy_that_hangs_costs_the_deadline_and_no_cpu(kind: type[Proxy], scheme: str) -> None:
    with kind() as proxy, client(proxy_url=url(scheme, proxy), setup_timeout_s=0.4) as c:
        proxy.hanging = True
        cpu_s = time.thread_time()
        assert c.lost(c.connect("broker.test", 9092)).loss is Loss.SETUP_TIMEOUT
        assert time.thread_time() - cpu_s < 0.1


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "http"])
def test_what_is_no_proxy_and_what_is_not_there(scheme: str) -> None:
    with (
        broker(lambda stream: stream.sock.sendall(b"SSH-2.0-x\r\n\r\n")) as server,
        client(proxy_url=f"{scheme}://127.0.0.1:{server.port}") as c,
    ):
        event = c.lost(c.connect("127.0.0.1", 9092))
        assert event.loss is Loss.REFUSED
        assert f"is no {'HTTP' if scheme == 'http' else 'SOCKS5'}" in event.detail
    with client(proxy_url=f"{scheme}://127.0.0.1:9") as c:
        event = c.lost(c.connect("127.0.0.1", 9092))
        assert event.loss is Loss.REFUSED
        assert f"proxy {scheme}://127.0.0.1:9: " in event.detail


def test_the_proxy_s_name_is_looked_up_each_time_and_beside_the_loop() -> None:
    with broker(hold) as server:
        asked: list[str] = []

        def resolver(host: str, _port: int) -> list[Any]:
            asked.append(host)
            return [(2, 1, 6, "", (server.host, server.port))]

        url = "http://proxy.test:1"
        with client(proxy_url=url, resolver=resolver, setup_timeout_s=0.2) as c:
            for _ in range(2):
                c.lost(c.connect("broker.test", 9092))
        assert asked == ["proxy.test", "proxy.test"]


@pytest.mark.parametrize("bad", ["http://", "socks4://a:1", "http://me:SECRET@a:port", "SECRET"])
@pytest.mark.parametrize("setting", ["proxy_url", "socks5_proxy"])
def test_a_bad_url_is_an_error_that_keeps_the_secret(setting: str, bad: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{setting}=") as caught:
        Network({setting: bad}, setup_timeout_s=1)
    assert "SECRET" not in str(caught.value)
    assert "socks5://host:1080" in str(caught.value)
