"""Settings: names, defaults and errors as in kafka-python, and stricter where it hangs."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
import threading
from typing import Any

import kafka
import pytest
import tenacity
from kafka.errors import KafkaConfigurationError
from opentelemetry.metrics import NoOpMeterProvider
from prometheus_client import CollectorRegistry

from outlast import config
from outlast.config import SETTINGS, Config
from outlast.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    MissingCodecError,
    OutlastError,
)

KAFKA_DEFAULTS = kafka.KafkaProducer.DEFAULT_CONFIG
# Deliberate differences: name → (kafka-python's default, ours).
DIFFERENT_DEFAULTS = {"reconnect_backoff_max_ms": (30_000, 1_000)}
NEW_SETTINGS = {
    "ack_wait_ms",
    "buffer_memory",
    "metadata_wait",
    "meter_provider",
    "metrics",
    "metrics_labels",
    "metrics_registry",
    "on_gap",
    "on_undelivered",
    "partition_metrics_limit",
    "reconnect_wait",
    "retry_backoff_max_ms",
    "retry_stop",
    "retry_wait",
    "silence_timeout_ms",
    "send_spans",
    "socket_connection_setup_timeout_ms",
    "tracer_provider",
}


class TestTable:
    def test_has_every_keyword_of_kafka_python_and_the_listed_new_ones(self) -> None:
        assert set(SETTINGS) - set(KAFKA_DEFAULTS) == NEW_SETTINGS
        assert set(KAFKA_DEFAULTS) <= set(SETTINGS)

    @pytest.mark.parametrize("name", sorted(KAFKA_DEFAULTS))
    def test_default_is_kafka_pythons(self, name: str) -> None:
        theirs, ours = KAFKA_DEFAULTS[name], SETTINGS[name].default
        if name in DIFFERENT_DEFAULTS:
            assert (theirs, ours) == DIFFERENT_DEFAULTS[name]
            assert SETTINGS[name].differs
        elif name == "partitioner":
            assert type(ours) is type(theirs)
        else:
            assert ours == theirs
            assert type(ours) is type(theirs)

    @pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda row: row.name)
    def test_rows_are_whole_and_defaults_pass_their_own_check(
        self, setting: config.Setting
    ) -> None:
        assert setting.doc.endswith((".", "?"))
        assert setting.check.allowed
        assert setting.check(setting.name, setting.default) == setting.default

    def test_new_settings_say_so(self) -> None:
        assert {name for name, row in SETTINGS.items() if row.differs == "new"} == NEW_SETTINGS


class TestEngineSettings:
    def test_defaults_in_seconds_and_bytes(self) -> None:
        got = config.settings(client_id="c")
        assert got.client_id == "c"
        assert got.bootstrap == (("localhost", 9092),)
        assert (got.acks, got.idempotent, got.retries, got.max_in_flight) == (-1, True, math.inf, 5)
        assert (got.batch_bytes, got.max_request_bytes) == (16_384, 1_048_576)
        assert got.buffer_bytes == 32 * 1024 * 1024
        assert (got.linger_s, got.delivery_timeout_s, got.request_timeout_s) == (0.0, 120.0, 30.0)
        assert (got.retry_backoff_s, got.retry_backoff_max_s) == (0.1, 1.0)
        assert (got.reconnect_backoff_s, got.reconnect_backoff_max_s) == (0.05, 1.0)
        assert (got.silence_timeout_s, got.ack_wait_s) == (1.0, 1.0)
        assert (got.metadata_max_age_s, got.connections_max_idle_s) == (300.0, 540.0)
        assert got.connection_setup_timeout_s == 10.0
        assert got.compression == 0
        assert got.retry_wait is None

    def test_tenacity_objects_reach_the_engine_as_they_are(self) -> None:
        schedules = {
            "retry_wait": tenacity.wait_fixed(1),
            "retry_stop": tenacity.stop_after_attempt(3),
            "reconnect_wait": tenacity.wait_random(0, 1),
            "metadata_wait": tenacity.wait_exponential(),
        }
        got = config.settings(**schedules)
        for name, schedule in schedules.items():
            assert getattr(got, name) is schedule

    def test_infinite_times_become_finite(self) -> None:
        got = config.settings(delivery_timeout_ms=math.inf, metadata_max_age_ms=math.inf)
        assert math.isfinite(got.delivery_timeout_s)
        assert got.delivery_timeout_s > 365 * 86_400
        assert math.isfinite(got.metadata_max_age_s)

    def test_a_longer_first_pause_lifts_the_longest(self) -> None:
        got = config.settings(reconnect_backoff_ms=5_000, retry_backoff_ms=3_000)
        assert got.reconnect_backoff_max_s == 5.0
        assert got.retry_backoff_max_s == 3.0

    @pytest.mark.parametrize(
        ("codec", "bits"), [(None, 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)]
    )
    def test_codecs(self, codec: str | None, bits: int) -> None:
        assert config.settings(compression_type=codec).compression == bits

    def test_client_ids_count_up(self) -> None:
        first, second = Config()["client_id"], Config()["client_id"]
        prefix = "kafka-python-producer-"
        assert first.startswith(prefix)
        assert int(second.removeprefix(prefix)) == int(first.removeprefix(prefix)) + 1


class TestBootstrap:
    @pytest.mark.parametrize(
        ("given", "addresses"),
        [
            ("localhost", [("localhost", 9092)]),
            ("a:1", [("a", 1)]),
            ("a:1,b:2", [("a", 1), ("b", 2)]),
            (" a:1 , b ", [("a", 1), ("b", 9092)]),
            ("a:1,,b:2,", [("a", 1), ("b", 2)]),
            (["a:1", "b"], [("a", 1), ("b", 9092)]),
            (("a:1",), [("a", 1)]),
            ("PLAINTEXT://a:1", [("a", 1)]),
            (["SASL_SSL://a:1", "b:2"], [("a", 1), ("b", 2)]),
            ("[::1]:1", [("::1", 1)]),
            ("[::1]", [("::1", 9092)]),
            ("::1", [("::1", 9092)]),
            ("fe80::1:2", [("fe80::1:2", 9092)]),
            ("10.0.0.1:19092", [("10.0.0.1", 19_092)]),
        ],
    )
    def test_forms(self, given: object, addresses: list[tuple[str, int]]) -> None:
        assert list(config.settings(bootstrap_servers=given).bootstrap) == addresses

    @pytest.mark.parametrize(
        "given", ["", [], "a:b", "a:0", "a:70000", "a:", ":1", "[::1", "[::1]9", ",", "a b:1"]
    )
    def test_bad_addresses(self, given: object) -> None:
        with pytest.raises(ConfigurationError, match=r"bootstrap_servers=.*is not allowed"):
            Config(bootstrap_servers=given)

    @pytest.mark.parametrize("given", [None, 9092, b"a:1", [9092], {"a": 1}])
    def test_bad_types(self, given: object) -> None:
        with pytest.raises(TypeError, match=r"bootstrap_servers=.*is not allowed"):
            Config(bootstrap_servers=given)


# keyword, value, classes that must catch it, words of the message beside name and value
BAD_VALUES = [
    ("acks", 2, ValueError, "0, 1, -1 or 'all'"),
    ("acks", "1", ValueError, "0, 1, -1 or 'all'"),
    ("acks", True, TypeError, "0, 1, -1 or 'all'"),
    ("acks", 1.0, TypeError, "0, 1, -1 or 'all'"),
    ("linger_ms", -1, ValueError, "a number ≥ 0"),
    ("linger_ms", "5", TypeError, "a number ≥ 0"),
    ("linger_ms", True, TypeError, "a number ≥ 0"),
    ("linger_ms", math.nan, ValueError, "a number ≥ 0"),
    ("linger_ms", math.inf, ValueError, "a number ≥ 0"),
    ("batch_size", -5, ValueError, "a whole number ≥ 0"),
    ("batch_size", 0.5, ValueError, "a whole number ≥ 0"),
    ("batch_size", None, TypeError, "a whole number ≥ 0"),
    ("retries", -1, ValueError, "float('inf')"),
    ("retries", -math.inf, ValueError, "float('inf')"),
    ("buffer_memory", 0, ValueError, "a whole number ≥ 1"),
    ("max_block_ms", -1, ValueError, "a number ≥ 0"),
    ("request_timeout_ms", 0, ValueError, "a number ≥ 1"),
    ("max_in_flight_requests_per_connection", 0, ValueError, "a whole number ≥ 1"),
    ("max_request_size", "1M", TypeError, "a whole number ≥ 1"),
    ("compression_type", "foo", ValueError, "'gzip', 'snappy', 'lz4' or 'zstd'"),
    ("compression_type", 1, TypeError, "None"),
    ("security_protocol", "FOO", ValueError, "'SASL_SSL'"),
    ("sasl_mechanism", "PLIAN", ValueError, "'PLAIN'"),
    ("client_dns_lookup", "x", ValueError, "'use_all_dns_ips'"),
    ("enable_idempotence", "true", TypeError, "True, False"),
    ("allow_auto_create_topics", None, TypeError, "True, False"),
    ("client_id", 7, TypeError, "a string or None"),
    ("key_serializer", "utf-8", TypeError, "a kafka.Serializer"),
    ("value_serializer", 7, TypeError, "a kafka.Serializer"),
    ("partitioner", None, TypeError, "a Partitioner"),
    ("partitioner", 3, TypeError, "a Partitioner"),
    ("retry_wait", 3, TypeError, "a callable or None"),
    ("on_gap", "print", TypeError, "a callable or None"),
    ("on_undelivered", [], TypeError, "a callable or None"),
    ("metrics_registry", "on", TypeError, "prometheus_client registry"),
    ("metrics", "statsd", ValueError, "'prometheus', 'otel' or None"),
    ("metrics", True, TypeError, "'prometheus', 'otel' or None"),
    ("metrics_labels", "app", TypeError, "a dict of strings"),
    ("metrics_labels", {"app": 7}, TypeError, "a dict of strings"),
    ("metrics_labels", {"topic": "x"}, ValueError, "'topic' cannot be one of them"),
    ("metrics_labels", {"le": "x"}, ValueError, "'le' cannot be one of them"),
    ("metrics_labels", {"my-app": "x"}, ValueError, "'my-app' cannot be one of them"),
    ("metrics_labels", {"__app": "x"}, ValueError, "'__app' cannot be one of them"),
    ("meter_provider", "x", TypeError, "a MeterProvider or None"),
    ("partition_metrics_limit", -1, ValueError, "a whole number ≥ 0"),
    ("tracer_provider", object, TypeError, "a TracerProvider or None"),
    ("send_spans", "sometimes", ValueError, "'with_parent', 'always' or 'never'"),
    ("metric_reporters", "x", TypeError, "a list of classes"),
    ("socket_options", [1], TypeError, "setsockopt"),
    ("receive_buffer_bytes", -1, ValueError, "a whole number from 0 to 2147483647 or None"),
    ("send_buffer_bytes", 2**31, ValueError, "a whole number from 0 to 2147483647 or None"),
    ("proxy_url", "foo.bar", ValueError, "socks5://"),
    ("ssl_cafile", 7, TypeError, "a path or None"),
    ("ssl_context", "x", TypeError, "an SSLContext or None"),
    ("sasl_oauth_token_provider", "x", TypeError, "an AbstractTokenProvider or None"),
    ("api_version", 2, TypeError, "a tuple such as (2, 8)"),
    ("api_version", "new", ValueError, "a tuple such as (2, 8)"),
]


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "value", "error_class", "words"),
        BAD_VALUES,
        ids=[f"{row[0]}={row[1]!r}" for row in BAD_VALUES],
    )
    def test_class_and_message(
        self, name: str, value: object, error_class: type[Exception], words: str
    ) -> None:
        threads = threading.active_count()
        with pytest.raises(KafkaConfigurationError) as caught:
            Config(**{name: value})
        assert isinstance(caught.value, error_class)
        assert isinstance(caught.value, ValueError)  # as for an unknown keyword
        assert isinstance(caught.value, OutlastError)
        text = str(caught.value)
        assert text.startswith(f"{name}=")
        assert words in text
        if not isinstance(value, tuple):
            assert repr(value) in text or isinstance(value, str)
        assert threading.active_count() == threads

    def test_unknown_keywords_name_near_ones(self) -> None:
        with pytest.raises(ValueError, match="Unrecognized configs") as caught:
            Config(bufer_memory=1, foo_bar=2)
        assert "'bufer_memory' (did you mean buffer_memory?)" in str(caught.value)
        assert "'foo_bar'" in str(caught.value)
        assert isinstance(caught.value, KafkaConfigurationError)

    def test_delivery_timeout_below_linger_and_request_timeout(self) -> None:
        with pytest.raises(KafkaConfigurationError) as caught:
            Config(delivery_timeout_ms=5_000, linger_ms=10)
        for part in ("delivery_timeout_ms=5000", "linger_ms", "request_timeout_ms", "10 + 30000"):
            assert part in str(caught.value)

    @pytest.mark.parametrize(
        ("keywords", "words"),
        [
            ({"metrics": "otel", "metrics_registry": CollectorRegistry()}, "metrics='otel'"),
            ({"metrics": None, "metrics_registry": CollectorRegistry()}, "metrics=None"),
            ({"meter_provider": NoOpMeterProvider()}, "metrics='prometheus'"),
            ({"metrics": None, "meter_provider": NoOpMeterProvider()}, "metrics=None"),
        ],
    )
    def test_metrics_go_to_one_place_only(self, keywords: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigurationError, match="to one place only") as caught:
            Config(**keywords)
        assert words in str(caught.value)
        Config(metrics="otel", metrics_registry=None, meter_provider=NoOpMeterProvider())

    def test_missing_codec(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(config.CODECS, "lz4", (3, lambda: False))
        with pytest.raises(RuntimeError, match="Libraries for lz4 compression codec not found"):
            Config(compression_type="lz4")
        with pytest.raises(MissingCodecError):
            Config(compression_type="lz4")

    def test_zstd_needs_2_1(self) -> None:
        with pytest.raises(ValueError, match=r"zstd.*\(2, 1\)"):
            Config(compression_type="zstd", api_version=(2, 0))
        Config(compression_type="zstd", api_version=(2, 1))

    def test_passwords_are_never_shown(self) -> None:
        with pytest.raises(ConfigurationTypeError) as caught:
            Config(sasl_plain_password=b"hunter2")
        assert "hunter2" not in str(caught.value)
        secret = Config(sasl_plain_password="hunter2")
        assert "hunter2" not in repr(secret)

    @pytest.mark.parametrize(
        ("keywords", "missing"),
        [
            ({}, "sasl_mechanism=None"),
            ({"sasl_mechanism": "PLAIN"}, "sasl_plain_username=None"),
            (
                {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "u"},
                "sasl_plain_password=None",
            ),
            ({"sasl_mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider=None"),
            ({"sasl_mechanism": "AWS_MSK_IAM"}, "security_protocol='SASL_SSL'"),
        ],
    )
    def test_incomplete_sasl(self, keywords: dict[str, str], missing: str) -> None:
        with pytest.raises(KafkaConfigurationError) as caught:
            Config(security_protocol="SASL_PLAINTEXT", **keywords)
        assert missing in str(caught.value)

    def test_transactions_need_idempotence(self) -> None:
        assert Config(transactional_id="t").settings.transactional_id == "t"
        with pytest.raises(KafkaConfigurationError, match="without enable_idempotence"):
            Config(transactional_id="t", enable_idempotence=False)


class TestIdempotence:
    """KIP-679, as kafka-python's test_kip679_config.py has it."""

    @pytest.mark.parametrize(
        ("keywords", "conflict"),
        [
            ({"acks": 0}, "acks=0"),
            ({"acks": 1}, "acks=1"),
            ({"retries": 0}, "retries=0"),
            (
                {"max_in_flight_requests_per_connection": 6},
                "max_in_flight_requests_per_connection=6",
            ),
            ({"acks": 1, "retries": 0}, "acks=1, retries=0"),
            ({"api_version": (0, 10)}, "api_version=(0, 10)"),
            ({"api_version": (0, 10, 2)}, "api_version=(0, 10, 2)"),
        ],
    )
    def test_default_gives_way_with_a_warning_and_a_wish_is_an_error(
        self, keywords: dict[str, Any], conflict: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            got = Config(**keywords)
        assert got["enable_idempotence"] is False
        assert got.settings.idempotent is False
        assert [r for r in caplog.records if conflict in r.getMessage()]
        for name, value in keywords.items():
            assert got[name] == value
        with pytest.raises(KafkaConfigurationError) as caught:
            Config(enable_idempotence=True, **keywords)
        assert conflict in str(caught.value)
        with pytest.raises(KafkaConfigurationError) as caught:
            Config(transactional_id="t", **keywords)
        assert conflict in str(caught.value)

    @pytest.mark.parametrize(
        "keywords",
        [
            {},
            {"acks": "all"},
            {"acks": -1},
            {"retries": 3},
            {"max_in_flight_requests_per_connection": 1},
            {"enable_idempotence": True},
        ],
    )
    def test_stays_on_without_a_conflict(
        self, keywords: dict[str, object], caplog: pytest.LogCaptureFixture
    ) -> None:
        got = Config(**keywords)
        assert got["enable_idempotence"] is True
        assert got["acks"] == -1
        assert not caplog.records

    def test_can_be_switched_off(self, caplog: pytest.LogCaptureFixture) -> None:
        got = Config(enable_idempotence=False, acks=1, max_in_flight_requests_per_connection=20)
        assert got.settings.idempotent is False
        assert not caplog.records


class TestNormalised:
    def test_acks_all(self) -> None:
        assert Config(acks="all")["acks"] == -1

    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            (None, None),
            ((2, 8), (2, 8)),
            ((0, 11), (0, 11)),
            ("2.8", (2, 8)),
            ("auto", None),
        ],
    )
    def test_api_version(self, given: object, shown: tuple[int, ...]) -> None:
        assert Config(api_version=given)["api_version"] == shown

    def test_flags_take_0_and_1(self) -> None:
        assert Config(enable_idempotence=0)["enable_idempotence"] is False
        assert Config(ssl_check_hostname=1)["ssl_check_hostname"] is True

    def test_callable_serializers_are_wrapped_with_a_warning(self) -> None:
        with pytest.warns(DeprecationWarning, match="value_serializer does not implement"):
            got = Config(value_serializer=str.encode)
        assert isinstance(got["value_serializer"], kafka.Serializer)
        assert got["value_serializer"].serialize("t", [], "x") == b"x"

    def test_serializers_are_taken_as_they_are(self) -> None:
        serializer = kafka.JsonSerializer()
        assert Config(value_serializer=serializer)["value_serializer"] is serializer


def test_importing_starts_nothing() -> None:
    program = (
        "import threading, socket; made = []; real = socket.socket.__init__\n"
        "def spy(self, *a, **k): made.append(a); real(self, *a, **k)\n"
        "socket.socket.__init__ = spy\n"
        "import outlast.config; outlast.config.Config()\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert not made, made"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile is without effect: .* nothing is encrypted"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_plain_username": "me", "security_protocol": "SSL"},
            "sasl_mechanism, sasl_plain_username are without effect: .* nothing is logged in",
        ),
    ],
)
def test_what_asks_for_protection_that_is_not_there_is_told(caplog, keywords, told):
    Config(**keywords)
    assert re.search(told, caplog.text)


def test_a_protocol_with_all_that_it_needs_is_no_warning(caplog):
    Config(security_protocol="SSL", ssl_ciphers="HIGH", ssl_check_hostname=False)
    Config()
    assert caplog.text == ""
