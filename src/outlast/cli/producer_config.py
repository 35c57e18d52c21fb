"""A producer's keywords as a command line gives them: by file, by environment, one by one.

Later sources win: `--config FILE`, the environment (`OUTLAST_SASL_PLAIN_PASSWORD`), `--set
NAME=VALUE`, `--bootstrap-servers`. So one file serves several clusters, and a password needs
neither a file nor a command line that others can read.

Rule: this file reads text and knows no setting; whether a name or a value is allowed is for
`outlast.config.Config` to say.
"""

from __future__ import annotations

import json
import os
from ast import literal_eval
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.config import SETTINGS
from outlast.errors import ConfigurationError

PREFIX = "OUTLAST_"
_JSON_WORDS = {"true": True, "false": False, "null": None}
_PRODUCERS_OWN = frozenset(  # names that other clients have too, with defaults of their own
    {"client_id", "request_timeout_ms", "retry_backoff_ms", "metadata_max_age_ms"}
    | {"reconnect_backoff_ms", "reconnect_backoff_max_ms", "connections_max_idle_ms"}
    | {"max_in_flight_requests_per_connection", "allow_auto_create_topics", "kafka_client"}
    | {"bootstrap_timeout_ms", "metric_reporters", "metrics_enabled"}
)


def keywords(
    bootstrap_servers: str | None,
    file: Path | None,
    settings: Sequence[str],
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """The keywords that `outlast.KafkaProducer` is to be given.

    Args:
        file: a JSON object, or lines `name=value`; empty lines and those with a # are skipped.
        settings: texts `name=value`.

    Raises:
        ConfigurationError: the file cannot be read, or a text is no `name=value`.
    """
    chosen = _from_file(file) if file else {}
    for name in SETTINGS:
        if (text := environment.get(PREFIX + name.upper())) is not None:
            chosen[name] = value(text)
    for text in settings:
        name, given = _pair(text, "--set")
        chosen[name] = given
    if bootstrap_servers is not None:
        chosen["bootstrap_servers"] = bootstrap_servers
    return chosen


def for_client(chosen: Mapping[str, Any], client_class: Any) -> dict[str, Any]:
    """How to reach the cluster, for kafka-python's admin client or consumer: addresses, TLS, SASL,
    proxy. What a client does not take, and what is the producer's own pace, is left out.
    """
    taken = set(client_class.DEFAULT_CONFIG) & set(SETTINGS) - _PRODUCERS_OWN
    return {name: given for name, given in chosen.items() if name in taken}


def value(text: str) -> Any:
    """A value as it is written: a Python literal, JSON's true, false or null, else the text."""
    text = text.strip()
    if text in _JSON_WORDS:
        return _JSON_WORDS[text]
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _from_file(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config {file} cannot be read: {_why(error)}") from None
    if text.lstrip().startswith("{"):
        try:
            chosen = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigurationError(f"--config {file} is no JSON: {error}") from None
        return dict(chosen)
    lines = enumerate(text.splitlines(), start=1)
    wanted = ((n, line.strip()) for n, line in lines if line.strip())
    return dict(_pair(line, f"{file}:{n}") for n, line in wanted if not line.startswith("#"))


def _pair(text: str, where: str) -> tuple[str, Any]:
    name, equals, given = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise ConfigurationError(
            f"{where}: {text.strip()!r} is no setting; write NAME=VALUE, acks=all"
        )
    return name.strip(), value(given)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
