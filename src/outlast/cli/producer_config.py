"""A producer's keywords as a command line gives them, for commands that start one.

They are gathered as `outlast check` gathers them, from a file, the environment and single options
(see `check_settings`), and nothing is left out: TLS, SASL and proxy too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outlast.cli.check_settings import gather
from outlast.config import SETTINGS

_PRODUCERS_OWN = frozenset(  # names that other clients have too, with defaults of their own
    {"client_id", "request_timeout_ms", "retry_backoff_ms", "metadata_max_age_ms"}
    | {"reconnect_backoff_ms", "reconnect_backoff_max_ms", "connections_max_idle_ms"}
    | {"max_in_flight_requests_per_connection", "allow_auto_create_topics", "kafka_client"}
    | {"bootstrap_timeout_ms", "metric_reporters", "metrics_enabled"}
)


class Given(NamedTuple):
    """What was given: keywords for `outlast.KafkaProducer`, and what it has no setting for."""

    keywords: dict[str, Any]
    ignored: tuple[str, ...]


def given(
    bootstrap_servers: str | None,
    file: Path | None,
    settings: Sequence[str],
    env_prefix: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Given:
    """The keywords; of two that differ the later wins: file, environment, settings, bootstrap.

    Args:
        file: JSON, or lines NAME=VALUE.
        settings: texts NAME=VALUE.

    Raises:
        SettingsError: a source cannot be read, or a value is not allowed.
    """
    producer = gather(
        file=file,
        environment=environment,
        prefix=env_prefix,
        keywords=settings,
        bootstrap=bootstrap_servers,
        left_out=(),
    )
    return Given({name: producer.values[name] for name in producer.sources}, producer.ignored)


def for_client(keywords: Mapping[str, Any], client_class: Any) -> dict[str, Any]:
    """How to reach the cluster, for kafka-python's admin client or consumer: addresses, TLS, SASL,
    proxy. What a client does not take, and what is the producer's own pace, is left out.
    """
    taken = set(client_class.DEFAULT_CONFIG) & set(SETTINGS) - _PRODUCERS_OWN
    return {name: value for name, value in keywords.items() if name in taken}
