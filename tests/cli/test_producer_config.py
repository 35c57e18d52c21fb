"""Keywords from a file, the environment and the command line: which wins, and for whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient

from outlast.cli.check_settings import SettingsError
from outlast.cli.producer_config import for_client, given


def test_a_file_with_all_that_reaches_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text(
        "# as in Java\nacks=all\nclient.id=app\ncompression.type=gzip\nsecurity.protocol=SASL_SSL\n"
        "sasl_mechanism=PLAIN\nsasl_plain_username=u\nsasl_plain_password=p\nssl_cafile=ca.pem\n"
        "sasl.jaas.config=x\n"
    )
    found = given(None, file, [], None, {})
    assert found.keywords == {
        "acks": -1,
        "client_id": "app",
        "compression_type": "gzip",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
        "ssl_cafile": "ca.pem",
    }
    (ignored,) = found.ignored
    assert ignored.startswith("'sasl.jaas.config'")


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "producer.json"
    file.write_text('{"acks": 1, "linger_ms": 5, "client_id": "f", "bootstrap_servers": ["a:1"]}')
    environment = {"APP_LINGER_MS": "6", "APP_CLIENT_ID": "e", "APP_OTHER": "1", "ACKS": "all"}
    assert given("b:2", file, ["client_id=s"], "APP_", environment).keywords == {
        "acks": 1,
        "linger_ms": 6,
        "client_id": "s",
        "bootstrap_servers": "b:2",
    }


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="none cannot be read"):
        given(None, tmp_path / "none", [], None)
    with pytest.raises(SettingsError, match="write NAME=VALUE"):
        given(None, None, ["acks"], None)
    with pytest.raises(SettingsError, match="acks='2' is not allowed"):
        given(None, None, ["acks=2"], None)


@pytest.mark.parametrize("client", [KafkaAdminClient, KafkaConsumer])
def test_other_clients_get_what_reaches_the_cluster_and_nothing_else(client: type) -> None:
    reach = {"bootstrap_servers": "a:1", "security_protocol": "SSL", "ssl_cafile": "ca.pem"}
    own = {"acks": 1, "linger_ms": 5, "request_timeout_ms": 1, "client_id": "x"}
    assert for_client({**own, **reach}, client) == reach
    ciphers = for_client({"ssl_ciphers": "HIGH"}, client)
    assert ciphers == ({} if client is KafkaAdminClient else {"ssl_ciphers": "HIGH"})
