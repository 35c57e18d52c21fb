"""Each `ssl_…` keyword does what it says, against a broker that speaks TLS."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from outlast.engine.messages import Loss
from outlast.io.events import Connected
from tests.net.broker import answer_all, broker
from tests.net.client import client
from tests.real.certificates import Authority, Issued


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


def serving(issued: Issued, asks_for: Authority | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(issued.file)
    if asks_for is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(asks_for.file)
    return context


def connects(context: ssl.SSLContext, **settings: Any) -> bool:
    with broker(answer_all, context) as server, client(security_protocol="SSL", **settings) as c:
        event = c.next(c.connect(server.host, server.port))
        if isinstance(event, Connected):
            return True
        assert event.loss in (Loss.AUTHENTICATION, Loss.CLOSED)
        return False


def test_ssl_cafile(authority: Authority, tmp_path: Path) -> None:
    context = serving(authority.issue("broker", "127.0.0.1"))
    assert connects(context, ssl_cafile=str(authority.file))
    assert not connects(context, ssl_cafile=str(Authority(tmp_path, "stranger").file))
    assert not connects(context)  # this host does not know it


def test_ssl_check_hostname(authority: Authority) -> None:
    context = serving(authority.issue("broker", "other.test"))
    assert not connects(context, ssl_cafile=str(authority.file))
    assert connects(context, ssl_cafile=str(authority.file), ssl_check_hostname=False)


def test_ssl_certfile_and_ssl_keyfile(authority: Authority, tmp_path: Path) -> None:
    context = serving(authority.issue("broker", "127.0.0.1"), asks_for=authority)
    own, stranger = authority.issue("client"), Authority(tmp_path, "stranger").issue("client")
    trusting = {"ssl_cafile": str(authority.file)}
    assert not connects(context, **trusting)
    assert not connects(context, **trusting, ssl_certfile=str(stranger.file))
    assert connects(context, **trusting, ssl_certfile=str(own.file))
    key = own.encrypted_key("secret")  # a file of its own
    files = {"ssl_certfile": str(own.file), "ssl_keyfile": str(key)}
    assert connects(context, **trusting, **files, ssl_password="secret")


def test_ssl_crlfile(authority: Authority) -> None:
    good, bad = (authority.issue(name, "127.0.0.1") for name in ("good", "bad"))
    trusting = {
        "ssl_cafile": str(authority.file),
        "ssl_crlfile": str(authority.revoked("revoked", bad)),
    }
    assert connects(serving(good), **trusting)
    assert not connects(serving(bad), **trusting)


def test_ssl_context_takes_the_place_of_the_others(authority: Authority) -> None:
    context = serving(authority.issue("broker", "127.0.0.1"))
    own = ssl.create_default_context(cafile=str(authority.file))
    assert connects(context, ssl_context=own, ssl_cafile="not/read.pem")
    assert not connects(context, ssl_context=ssl.create_default_context())
