"""What lets anyone in, and what is in a record, is in no text that anybody might log.

The same over a real Kafka, with logins that work and that do not: tests/real/test_security.py.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from outlast import ConfigurationError, KafkaProducer
from outlast.config import Config
from outlast.engine.record_batch import Record
from outlast.testing import MockCluster
from tests.real.security import MARK, Watched, listening, secrets_in

URL = f"socks5://me:{MARK}@127.0.0.1:1080"


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl_plain_password": MARK.encode()},
        {"sasl_plain_username": MARK.encode()},
        {"sasl_oauth_token_provider": MARK},
        {"proxy_url": f"ftp://me:{MARK}@host"},
        {"proxy_url": f"me:{MARK}@host"},
        {"proxy_url": URL.encode()},
        {"proxy_url": f"socks5://me:{MARK}@host:port"},
        {"socks5_proxy": f"me:{MARK}@host"},
        {"ssl_password": MARK, "security_protocol": "SSL", "ssl_certfile": "none.pem"},
        {"sasl_plain_password": MARK, "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"},
    ],
)
def test_an_error_of_the_settings_names_them_without_the_secret(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        KafkaProducer(**settings)
    raised = caught.value
    text = str(raised) + repr(raised) + repr(raised.args) + repr(raised.__cause__)
    assert secrets_in(text) == []
    assert any(name in text for name in ("sasl_", "ssl_", "proxy"))


def test_the_settings_show_no_secret() -> None:
    config = Config(
        sasl_plain_username=MARK, sasl_plain_password=MARK, ssl_password=MARK, proxy_url=URL
    )
    assert secrets_in(repr(config)) == []
    assert "127.0.0.1:1080" in repr(config)


@pytest.mark.parametrize("item", [MARK, (MARK, MARK), (MARK,), (MARK.encode(), b""), {MARK: b""}])
def test_a_bad_header_is_told_by_its_types(item: Any) -> None:
    with (
        MockCluster() as cluster,
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer,
        pytest.raises(TypeError, match="headers items must be") as caught,
    ):
        producer.send("t", b"v", headers=[item])
    assert secrets_in(str(caught.value)) == []
    assert type(item).__name__ in str(caught.value) or "(" in str(caught.value)


def test_records_are_in_no_text_whether_they_are_delivered_or_not() -> None:
    value = f"record {MARK}".encode()
    with listening() as log, MockCluster(topics={"t": 1}) as cluster:
        settings = {"delivery_timeout_ms": 600, "request_timeout_ms": 500, "max_block_ms": 500}
        watched = Watched(bootstrap_servers=cluster.bootstrap_servers, **settings)
        with watched.producer as producer:
            producer.send("t", value, key=value, headers=[("h", value)]).get(10)
            for node_id in (1, 2, 3):
                cluster.kill(node_id)
            with pytest.raises(Exception, match="t-0") as caught:
                producer.send("t", value, key=value, headers=[("h", value)]).get(10)
            watched.failed(caught.value)
            assert watched.undelivered[0].value == value
            assert secrets_in(watched.everything()) == []
        assert secrets_in("\n".join(log.lines)) == []
        assert any("outlast" in line for line in log.lines)


def test_what_a_record_is_read_back_as_shows_no_contents() -> None:
    record = Record(0, 0, MARK.encode(), MARK.encode(), ((MARK, MARK.encode()),))
    assert secrets_in(repr(record)) == []


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, "it must be 'PLAIN', 'GSSAPI'"),
        ({"sasl_mechanism": "PLAIN"}, "it must be a string"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "it must be an AbstractTokenProvider"),
    ],
)
def test_what_is_missing_for_a_login_is_asked_for_without_none(
    settings: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config(security_protocol="SASL_SSL", **settings)
    assert wanted in str(caught.value)
    assert "None" not in str(caught.value).partition("it must be")[2]


def test_who_looks_finds_what_is_there() -> None:
    """The searcher itself: plain and in base 64, wherever it stands."""
    import base64

    assert secrets_in(f"x{MARK}y") == [MARK]
    for before in range(4):
        text = base64.b64encode(b"u" * before + f":{MARK}:".encode()).decode()
        assert secrets_in(text) != []
    with listening() as log:
        logging.getLogger("kafka.x").debug("%s", MARK)
    assert secrets_in("".join(log.lines)) != []
