"""Variables `OUTLAST_…`: what they say, what counts for more, and what is said about wrong ones."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import kafka
import pytest
import tenacity

import outlast
from outlast import environment, texts
from outlast.cli.check_settings import gather
from outlast.config import SETTINGS, Config
from outlast.errors import ConfigurationError, ConfigurationTypeError
from outlast.testing import MockCluster

Set = Callable[..., None]
schedule = tenacity.wait_fixed(2)


class Registry:
    """Found by its name."""

    def register(self, collector: Any) -> None: ...


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Sets variables, by the names of settings."""

    def put(**settings: str) -> None:
        for name, text in settings.items():
            monkeypatch.setenv(environment.variable(name), text)

    return put


def built(**keywords: Any) -> dict[str, Any]:
    """The settings of a producer that is built and closed."""
    producer = outlast.KafkaProducer(**{"bootstrap_servers": "localhost:1", **keywords})
    producer.close(0)
    return producer.config


HERE = __name__
EXAMPLES: dict[str, tuple[str, Any]] = {
    "bootstrap_servers": ("a:1,b:2", "a:1,b:2"),
    "client_id": ("billing", "billing"),
    "acks": ("ALL", -1),
    "enable_idempotence": ("False", False),
    "retries": ("inf", math.inf),
    "delivery_timeout_ms": ("60000", 60_000),
    "linger_ms": (" 2.5 ", 2.5),
    "buffer_memory": ("67_108_864", 67_108_864),
    "compression_type": ("gzip", "gzip"),
    "receive_buffer_bytes": ("none", None),
    "api_version": ("2.8", (2, 8)),
    "socket_options": ("[(6, 1, 0)]", [(6, 1, 0)]),
    "proxy_url": ("none", None),
    "security_protocol": ("ssl", "SSL"),
    "ssl_cafile": ("ca.pem", "ca.pem"),
    "ssl_check_hostname": ("0", False),
    "sasl_mechanism": ("none", None),
    "sasl_plain_password": ("s3cret,=:x", "s3cret,=:x"),
    "metrics": ("none", None),
    "metrics_labels": ("app=billing, team = x=y", {"app": "billing", "team": "x=y"}),
    "metric_reporters": (f"{HERE}:Registry,{HERE}:Registry", [Registry, Registry]),
    "metrics_registry": (f"{HERE}:Registry", Registry),
    "retry_wait": (f"{HERE}:schedule", schedule),
    "on_gap": ("builtins:print", print),
    "on_undelivered": ("none", None),
    "send_spans": ("never", "never"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_text_becomes_what_the_setting_wants(
    name: str, variables: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, meant = EXAMPLES[name]
    variables(**{name: text})
    with environment.defaults({}) as values:
        assert values == {name: meant}
        assert type(values[name]) is type(meant)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_setting_can_be_set(setting: Any, variables: Set) -> None:
    """By its default's own text, or the name of an object."""
    default = setting.default
    if texts.is_object(setting.check):
        text = "none" if default is None else f"{HERE}:DEFAULTS.{setting.name}"
    elif setting.name == "metrics_labels":
        text, default = "a=b", {"a": "b"}
    else:
        text = str(default)
    variables(**{setting.name: text})
    with environment.defaults({}) as values:
        if setting.name == "metric_reporters":
            default = [Registry]
        assert values == {setting.name: default}
    assert texts.written(setting.check)


class DEFAULTS:
    """Every setting's default, as an attribute."""


for _setting in SETTINGS.values():
    setattr(DEFAULTS, _setting.name, _setting.default)
DEFAULTS.metric_reporters = Registry  # type: ignore[attr-defined]


# --- what counts for more -------------------------------------------------------------------------


def test_a_variable_is_a_default(variables: Set) -> None:
    variables(linger_ms="7", buffer_memory="1000000", client_id="", batch_size="")
    assert (built()["linger_ms"], built()["buffer_memory"]) == (7, 1_000_000)
    assert built()["client_id"].startswith("kafka-python-producer-")
    config = built(linger_ms=3)
    assert (config["linger_ms"], config["buffer_memory"]) == (3, 1_000_000)


class Hurried(kafka.KafkaProducer):
    """Kafka-python heeds what a class has in its DEFAULT_CONFIG."""

    DEFAULT_CONFIG: ClassVar = {**kafka.KafkaProducer.DEFAULT_CONFIG, "acks": 1, "linger_ms": 4}


def test_defaults_of_a_class_are_the_applications(variables: Set, installed: None) -> None:
    variables(acks="0", batch_size="1000")
    producer = Hurried(bootstrap_servers="localhost:1", linger_ms=3)
    producer.close(0)
    config = producer.config
    assert (config["acks"], config["linger_ms"], config["batch_size"]) == (1, 3, 1_000)
    assert config["reconnect_backoff_max_ms"] == 1_000  # copied from kafka-python, not chosen
    assert built()["acks"] == 0


def test_a_changed_default_config_counts(monkeypatch: pytest.MonkeyPatch, installed: None) -> None:
    monkeypatch.setitem(kafka.KafkaProducer.DEFAULT_CONFIG, "linger_ms", 9)
    assert built()["linger_ms"] == 9
    monkeypatch.setitem(kafka.KafkaProducer.DEFAULT_CONFIG, "linger_ms", -9)
    with pytest.raises(ConfigurationError, match="linger_ms=-9 is not allowed"):
        built()


def test_what_the_application_says_itself_hides_a_bad_variable(variables: Set) -> None:
    variables(linger_ms="soon")
    assert built(linger_ms=3)["linger_ms"] == 3


def test_a_swapped_application_is_tuned(
    variables: Set, installed: None, cluster: MockCluster
) -> None:
    variables(silence_timeout_ms="500", on_undelivered="builtins:print", linger_ms="1")
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0)
    producer.send("t", b"x").get(10)
    settings = producer.health().settings
    assert producer.config["on_undelivered"] is print
    producer.close()
    assert (settings["silence_timeout_ms"], settings["linger_ms"]) == (500, 0)


def test_a_default_gives_way_where_a_wish_would_be_an_error(
    variables: Set, caplog: pytest.LogCaptureFixture
) -> None:
    variables(enable_idempotence="true")
    assert built(acks=1)["enable_idempotence"] is False
    assert "Idempotence will be disabled" in caplog.text
    with pytest.raises(ConfigurationError, match="incompatible with user-provided acks=1"):
        built(acks=1, enable_idempotence=True)


def test_other_uses_of_settings_know_nothing_of_variables(variables: Set) -> None:
    """A simulation that a seed replays must not depend on them."""
    variables(linger_ms="7")
    assert Config()["linger_ms"] == 0


# --- what is said about wrong ones ----------------------------------------------------------------

BAD: dict[tuple[str, str], tuple[type[Exception], str]] = {
    ("linger_ms", "soon"): (
        ConfigurationTypeError,
        "OUTLAST_LINGER_MS='soon' is not allowed: it must be a number ≥ 0",
    ),
    ("linger_ms", "-1"): (
        ConfigurationError,
        "OUTLAST_LINGER_MS=-1 is not allowed: it must be a number ≥ 0",
    ),
    ("acks", "2"): (
        ConfigurationError,
        "OUTLAST_ACKS='2' is not allowed: it must be 0, 1, -1 or 'all'",
    ),
    ("metrics_labels", "billing"): (
        ConfigurationTypeError,
        "OUTLAST_METRICS_LABELS='billing' is not allowed: it must be a dict of strings; names of "
        "letters, digits and _ that no metric has",
    ),
    ("on_gap", "nowhere_to_be_found:f"): (
        ConfigurationError,
        "OUTLAST_ON_GAP='nowhere_to_be_found:f' is not allowed: it must be a callable or None, "
        "written as `module:name` or `none` (ModuleNotFoundError: No module "
        "named 'nowhere_to_be_found')",
    ),
    ("on_gap", "math:pi"): (
        ConfigurationTypeError,
        "OUTLAST_ON_GAP=3.141592653589793 is not allowed: it must be a callable or None",
    ),
    ("bootstrap_servers", "a:b"): (
        ConfigurationError,
        "bootstrap_servers='a:b' is not allowed: it must be 'host[:port]', several of it "
        "with commas between, or a list of it ('a:b' is none) (set in the environment: "
        "OUTLAST_BOOTSTRAP_SERVERS)",
    ),
    ("delivery_timeout_ms", "5"): (
        ConfigurationError,
        "delivery_timeout_ms=5 is not allowed: it must be at least linger_ms + "
        "request_timeout_ms, which is 0 + 30000; raise it or lower those (set in the "
        "environment: OUTLAST_DELIVERY_TIMEOUT_MS)",
    ),
}


@pytest.mark.parametrize(("name", "text"), BAD)
def test_an_error_names_the_variable(name: str, text: str, variables: Set) -> None:
    kind, message = BAD[name, text]
    variables(**{name: text})
    with pytest.raises(ConfigurationError) as caught:
        outlast.KafkaProducer()
    assert type(caught.value) is kind
    assert str(caught.value) == message


def test_an_error_that_is_the_applications_own_names_no_variable(variables: Set) -> None:
    variables(linger_ms="1")
    with pytest.raises(ConfigurationError) as caught:
        outlast.KafkaProducer(acks=7)
    assert "OUTLAST" not in str(caught.value)


def test_a_password_is_not_shown(variables: Set) -> None:
    variables(ssl_password="s3cret", sasl_plain_password="s3cret", metrics="nobody")
    with pytest.raises(ConfigurationError) as caught:
        outlast.KafkaProducer()
    assert "s3cret" not in str(caught.value)
    check = SETTINGS["linger_ms"].check
    with pytest.raises(ConfigurationError) as caught:
        check(environment.variable("sasl_plain_password"), "s3cret")
    assert "s3cret" not in str(caught.value)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "outlast.environment"]


def test_an_unknown_variable_is_told_once_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OUTLAST_LINGRE_MS", "5")
    monkeypatch.setenv("OUTLAST_ZZZZZZ", "5")
    monkeypatch.setenv("SOMEBODYS_OUTLAST_X", "5")
    for _ in range(2):
        built()
    assert told(caplog) == [
        "OUTLAST_LINGRE_MS is set, but there is no such setting; did you mean OUTLAST_LINGER_MS?",
        "OUTLAST_ZZZZZZ is set, but there is no such setting",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_known_and_empty_variables_are_not_told(
    variables: Set, caplog: pytest.LogCaptureFixture
) -> None:
    variables(linger_ms="5", on_gap="")
    built()
    assert told(caplog) == []


# --- `outlast check` ------------------------------------------------------------------------------


def test_check_knows_of_them(tmp_path: Path) -> None:
    texts_of: Mapping[str, str] = {
        "OUTLAST_LINGER_MS": "7",
        "OUTLAST_DELIVERY_TIMEOUT_MS": "40000",
        "OUTLAST_ON_GAP": "nowhere_to_be_found:f",
        "APP_LINGER_MS": "8",
    }
    producer = gather(environment=texts_of)
    assert producer.sources == {"linger_ms": "environment", "delivery_timeout_ms": "environment"}
    assert producer.values["linger_ms"] == 7
    assert gather(environment=texts_of, prefix="APP_").values["linger_ms"] == 8
    running = tmp_path / "health.json"
    running.write_text(json.dumps({"open_gaps": [], "settings": {"linger_ms": 9}}))
    assert gather(environment=texts_of, health=str(running)).values["linger_ms"] == 9
