"""Keywords from a file, the environment and the command line: which wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient

from outlast.cli.producer_config import for_client, keywords, value
from outlast.errors import ConfigurationError

LINES = """
# how we produce
acks=all
linger_ms = 5
security_protocol=SASL_SSL
ssl_check_hostname=false
api_version=(2, 8)
"""


def test_a_file_of_lines(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text(LINES)
    assert keywords(None, file, [], {}) == {
        "acks": "all",
        "linger_ms": 5,
        "security_protocol": "SASL_SSL",
        "ssl_check_hostname": False,
        "api_version": (2, 8),
    }


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "producer.json"
    file.write_text('{"acks": 1, "linger_ms": 5, "client_id": "f", "bootstrap_servers": ["a:1"]}')
    environment = {"OUTLAST_LINGER_MS": "6", "OUTLAST_CLIENT_ID": "e", "OUTLAST_NO_SUCH": "1"}
    assert keywords("b:2", file, ["client_id=s"], environment) == {
        "acks": 1,
        "linger_ms": 6,
        "client_id": "s",
        "bootstrap_servers": "b:2",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [("all", "all"), ("5", 5), ("null", None), ("True", True), ("a:1,b:2", "a:1,b:2"), ("", "")],
)
def test_values(text: str, expected: object) -> None:
    assert value(text) == expected


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing, bad_json, bad_line = tmp_path / "none", tmp_path / "json", tmp_path / "line"
    bad_json.write_text("{acks: 1}")
    bad_line.write_text("acks=1\nlinger\n")
    for file, told in (
        (missing, "none cannot be read: No such file"),
        (bad_json, "json is no JSON"),
        (bad_line, "line:2: 'linger' is no setting; write NAME=VALUE"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            keywords(None, file, [], {})
    with pytest.raises(ConfigurationError, match="--set: 'acks' is no setting"):
        keywords(None, None, ["acks"], {})


@pytest.mark.parametrize("client", [KafkaAdminClient, KafkaConsumer])
def test_other_clients_get_what_reaches_the_cluster_and_nothing_else(client: type) -> None:
    reach = {"bootstrap_servers": "a:1", "security_protocol": "SSL", "ssl_cafile": "ca.pem"}
    own = {"acks": 1, "linger_ms": 5, "request_timeout_ms": 1, "client_id": "x"}
    assert for_client({**own, **reach}, client) == reach
    ciphers = for_client({"ssl_ciphers": "HIGH"}, client)
    assert ciphers == ({} if client is KafkaAdminClient else {"ssl_ciphers": "HIGH"})
