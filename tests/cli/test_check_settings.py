"""Where `outlast check` finds a producer's settings, and what it makes of their texts."""

from __future__ import annotations

import http.server
import io
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast import KafkaProducer
from outlast.cli.check_settings import SettingsError, gather

JAVA = """\
# as an application in Java has them
bootstrap.servers=a:1,b:2
acks=all
enable.idempotence = true
delivery.timeout.ms: 60000
retries=2147483647
linger.ms=5
key.serializer=org.apache.kafka.common.serialization.StringSerializer
sasl.jaas.config=secret
! and another comment
metadata.max.age.ms=60000
"""
INI = """\
linger_ms = 1
[consumer]
linger_ms = 2
[Producer]
linger_ms = "3"
; the end
"""


def written(folder: Path, text: str, name: str = "settings") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_said_is_the_defaults() -> None:
    producer = gather()
    assert producer.settings.delivery_timeout_s == 120.0
    assert (producer.sources, producer.ignored, producer.rate_bytes_per_s) == ({}, (), None)


def test_words_become_what_the_setting_wants() -> None:
    producer = gather(
        keywords=[
            "acks=all",
            "retries=inf",
            "linger_ms=2.5",
            "enable_idempotence=TRUE",
            "security.protocol=ssl",
            "buffer-memory=1000000",
            "ssl_cafile=none",
        ]
    )
    values = producer.values
    assert (values["acks"], values["retries"], values["linger_ms"]) == (-1, math.inf, 2.5)
    assert values["enable_idempotence"] is True
    assert (values["security_protocol"], values["ssl_cafile"]) == ("SSL", None)
    assert producer.settings.buffer_bytes == 1_000_000
    assert set(producer.sources.values()) == {"--set"}
    assert gather(keywords=["acks=1"]).settings.acks == 1
    assert gather(keywords=["acks=0"]).settings.acks == 0


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ("acks", "write NAME=VALUE"),
        ("delivery_timeout=5", "did you mean delivery_timeout_ms?"),
        ("linger_ms=often", "must be a number"),
        ("acks=two", "must be 0, 1, -1 or 'all'"),
        ("delivery_timeout_ms=1000", "it must be at least linger_ms"),
        ("bootstrap_servers=a:b:c", "bootstrap_servers"),
        ("key.serializer=str", "--set key.serializer=str: this setting is an object"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(keyword: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said.replace("?", r"\?")):
        gather(keywords=[keyword])


def test_a_properties_file_of_javas(tmp_path: Path) -> None:
    producer = gather(file=written(tmp_path, JAVA))
    assert producer.settings.bootstrap == (("a", 1), ("b", 2))
    assert producer.settings.delivery_timeout_s == 60.0
    assert producer.settings.metadata_max_age_s == 60.0
    assert producer.settings.linger_s == 0.005
    (ignored,) = producer.ignored
    assert "sasl.jaas.config" in ignored
    assert "secret" not in ignored
    assert "key_serializer" not in producer.sources


def test_the_producers_section_of_an_ini_file(tmp_path: Path) -> None:
    assert gather(file=written(tmp_path, INI)).values["linger_ms"] == 3
    with pytest.raises(SettingsError, match=r"sections a, b; name the producer's"):
        gather(file=written(tmp_path, "[a]\nlinger_ms=1\n[b]\nlinger_ms=2\n"))
    assert gather(file=written(tmp_path, "[a]\nlinger_ms=4\n")).values["linger_ms"] == 4


def test_a_json_file(tmp_path: Path) -> None:
    said = {"acks": "all", "linger_ms": 7, "bootstrap_servers": ["a:1"], "compression_type": "zstd"}
    producer = gather(file=written(tmp_path, json.dumps(said)))
    assert (producer.values["linger_ms"], producer.settings.bootstrap) == (7, (("a", 1),))
    nested = written(tmp_path, json.dumps({"settings": said}))
    assert gather(file=nested).values["linger_ms"] == 7


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("s.yaml", "linger_ms: 5", "YAML is not read"),
        ("s.json", "{", "is not JSON"),
        ("s.json", "", "is not JSON"),
        ("s.json", "[1, 2]", "is no JSON object"),
        ("s.ini", "linger_ms", "line 1"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        gather(file=written(tmp_path, text, name))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        gather(file=tmp_path / "none")


def test_the_environment_by_a_prefix() -> None:
    environment = {"KAFKA_LINGER_MS": "5", "KAFKA_HOME": "/opt", "LINGER_MS": "9"}
    producer = gather(environment=environment, prefix="KAFKA_")
    assert producer.values["linger_ms"] == 5
    assert (producer.sources, producer.ignored) == ({"linger_ms": "environment"}, ())
    assert gather(environment=environment).values["linger_ms"] == 0


def test_later_sources_win(tmp_path: Path) -> None:
    file = written(tmp_path, "linger_ms=1\nretry_backoff_ms=1\nmax_block_ms=1\nbatch_size=1\n")
    health = written(
        tmp_path, json.dumps({"settings": {"linger_ms": 0, "ack_wait_ms": 7}}), "health"
    )
    producer = gather(
        health=str(health),
        file=file,
        environment={"P_RETRY_BACKOFF_MS": "2", "P_MAX_BLOCK_MS": "2"},
        prefix="P_",
        keywords=["max_block_ms=3", "bootstrap_servers=a:3"],
        bootstrap="b:4",
    )
    names = ("ack_wait_ms", "linger_ms", "retry_backoff_ms", "max_block_ms", "bootstrap_servers")
    assert [producer.values[name] for name in names] == [7, 1, 2, 3, "b:4"]
    assert producer.sources["bootstrap_servers"] == "--bootstrap-servers"


# --- a running producer ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dumped() -> str:
    """What a producer with settings of its own says of itself."""
    settings = {"linger_ms": 5, "delivery_timeout_ms": math.inf, "buffer_memory": 2_000_000}
    with KafkaProducer(
        bootstrap_servers=["127.0.0.1:1"],
        metrics_registry=None,
        sasl_plain_password="hidden",
        proxy_url="http://me:hidden@proxy:3128",
        **settings,
    ) as producer:
        return json.dumps(producer.health().to_dict(), allow_nan=False)


def test_health_tells_the_settings_and_no_secret(dumped: str, tmp_path: Path) -> None:
    assert "hidden" not in dumped
    assert "sasl" not in dumped
    producer = gather(health=str(written(tmp_path, dumped)))
    assert producer.settings.bootstrap == (("127.0.0.1", 1),)
    assert (producer.values["linger_ms"], producer.settings.buffer_bytes) == (5, 2_000_000)
    assert math.isinf(producer.values["delivery_timeout_ms"])
    assert producer.ignored == ()


def test_health_from_standard_input(dumped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(dumped))
    assert gather(health="-").values["linger_ms"] == 5


@pytest.fixture
def served(dumped: str) -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(dumped.encode())

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_health_over_http(served: str) -> None:
    assert gather(health=f"{served}/health").values["linger_ms"] == 5
    with pytest.raises(SettingsError, match="404"):
        gather(health=f"{served}/nothing")


def test_the_present_rate_is_known_from_the_headroom(tmp_path: Path) -> None:
    said = {"headroom_s": 4.0, "buffer_bytes": 200, "buffer_limit_bytes": 1_000, "settings": {}}
    path = str(written(tmp_path, json.dumps(said)))
    assert gather(health=path).rate_bytes_per_s == 200.0
    path = str(written(tmp_path, json.dumps({**said, "headroom_s": None})))
    assert gather(health=path).rate_bytes_per_s is None


def test_health_of_an_older_outlast_has_no_settings(tmp_path: Path) -> None:
    path = str(written(tmp_path, json.dumps({"ok": True, "open_gaps": [], "headroom_s": None})))
    assert gather(health=path).sources == {}
