"""TLS settings that cannot be used say which, and files may be replaced while a producer runs."""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from outlast import ConfigurationError
from outlast.engine.messages import Loss
from outlast.io.events import Connected
from outlast.io.kafka_net import Network
from tests.net.broker import answer_all, broker
from tests.net.client import client
from tests.real.certificates import DAY, Authority, Issued

PASSWORD = "SECRET of the key"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def own(authority: Authority) -> Issued:
    return authority.issue("client")


def refused(**settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Network({"security_protocol": "SSL", **settings}, setup_timeout_s=1)
    assert "SECRET" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["ssl_cafile", "ssl_certfile", "ssl_crlfile", "ssl_keyfile"])
@pytest.mark.parametrize("what", ["missing", "no PEM"])
def test_a_file_that_cannot_be_used_is_named(
    name: str, what: str, own: Issued, tmp_path: Path
) -> None:
    path = tmp_path / "file.pem"
    if what == "no PEM":
        path.write_text("not a certificate")
    settings = {name: str(path)}
    if name == "ssl_keyfile":
        settings["ssl_certfile"] = str(own.file)
    told = refused(**settings)
    assert told.startswith(f"{name}='{path}' cannot be used for TLS (")
    assert ("No such file" in told) == (what == "missing")
    assert "as PEM" in told


def test_ciphers_that_do_not_exist_are_named() -> None:
    told = refused(ssl_ciphers="no such")
    assert told.startswith("ssl_ciphers='no such' cannot be used for TLS (")
    assert "ECDHE+AESGCM" in told


def test_an_encrypted_key_needs_its_password_and_the_terminal_is_not_asked(own: Issued) -> None:
    files = {"ssl_certfile": str(own.file), "ssl_keyfile": str(own.encrypted_key(PASSWORD))}
    assert refused(**files).startswith("ssl_password=None is not allowed: the key in ssl_keyfile=")
    told = refused(**files, ssl_password="a wrong SECRET")
    assert told.startswith("ssl_password=… does not open the key in ssl_keyfile=")
    for password in (PASSWORD, PASSWORD.encode(), lambda: PASSWORD):
        Network(
            {"security_protocol": "SSL", **files, "ssl_password": password}, setup_timeout_s=1
        ).close()


def test_a_key_of_another_certificate(own: Issued, authority: Authority) -> None:
    other = authority.issue("other").file
    told = refused(ssl_certfile=str(own.file), ssl_keyfile=str(other))
    assert told.startswith(f"ssl_keyfile='{other}' cannot be used for TLS (")
    assert "the key of the certificate in ssl_certfile" in told


def test_files_are_read_anew_when_they_change(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where certificates live for hours. What cannot be read leaves all as it was."""
    stranger = Authority(tmp_path, "stranger")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(stranger.file.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("broker", "127.0.0.1").file)
    with (
        broker(answer_all, context) as server,
        client(security_protocol="SSL", ssl_cafile=str(trusted)) as c,
    ):
        event = c.lost(c.connect(server.host, server.port))
        assert event.loss is Loss.AUTHENTICATION
        assert "ssl_cafile must have the authority that signed it" in event.detail
        trusted.write_bytes(authority.file.read_bytes())
        c.connected(server)
        trusted.unlink()
        c.connected(server)
        c.connected(server)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"ssl_cafile='{trusted}'" in warnings[0].getMessage()


def test_files_and_passwords_that_take_their_time_hold_up_nobody(
    authority: Authority, own: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    """A key on a file system that hangs, a password that is fetched from a vault."""
    key = own.encrypted_key(PASSWORD)
    go = threading.Event()
    go.set()
    asked: list[threading.Thread] = []
    failing = False

    def password() -> str:
        asked.append(threading.current_thread())
        assert go.wait(5)
        if failing:
            raise LookupError(PASSWORD)
        return PASSWORD

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("broker", "127.0.0.1").file)
    settings = {"ssl_certfile": str(own.file), "ssl_keyfile": str(key), "ssl_password": password}
    with (
        broker(answer_all, context) as server,
        client(security_protocol="SSL", ssl_cafile=str(authority.file), **settings) as c,
    ):
        open_one = c.connected(server)
        go.clear()
        key.write_bytes(key.read_bytes() + b"\n")
        waiting = c.connect(server.host, server.port)
        c.poll_until(lambda: len(asked) == 2)
        c.send(open_one, 1)
        assert c.answered(open_one).token == 1
        c.connected(server)  # with what there is
        failing = True
        go.set()
        assert isinstance(c.next(waiting), Connected)
        failing = False
        c.connected(server)
        assert len(asked) == 3  # it is tried again
        c.connected(server)
        assert len(asked) == 3
    assert threading.current_thread() not in asked[1:]
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "TLS files were replaced, and the old ones stay in use: LookupError"
    ]


def test_a_certificate_whose_time_is_over(authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("old", "127.0.0.1", lasts=-DAY).file)
    with (
        broker(answer_all, context) as server,
        client(security_protocol="SSL", ssl_cafile=str(authority.file)) as c,
    ):
        event = c.lost(c.connect(server.host, server.port))
        assert event.loss is Loss.AUTHENTICATION
        assert "certificate has expired; it has expired: the broker needs" in event.detail
