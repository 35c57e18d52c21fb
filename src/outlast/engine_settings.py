"""The engine's share of a producer's settings: in seconds and bytes, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.checks import parse_bootstrap
from outlast.config import LONGEST_S
from outlast.engine.settings import Settings


def engine_settings(values: Mapping[str, Any]) -> Settings:
    """What the engine is told of a producer's checked settings."""

    def seconds(name: str) -> float:
        return float(min(values[name] / 1000.0, LONGEST_S))

    return Settings(
        bootstrap=parse_bootstrap(values["bootstrap_servers"]),
        client_id=values["client_id"],
        acks=values["acks"],
        idempotent=values["enable_idempotence"],
        retries=values["retries"],
        max_in_flight=values["max_in_flight_requests_per_connection"],
        batch_bytes=values["batch_size"],
        linger_s=seconds("linger_ms"),
        compression=values["compression_attrs"],
        max_request_bytes=values["max_request_size"],
        buffer_bytes=values["buffer_memory"],
        delivery_timeout_s=seconds("delivery_timeout_ms"),
        request_timeout_s=seconds("request_timeout_ms"),
        retry_backoff_s=seconds("retry_backoff_ms"),
        retry_backoff_max_s=max(seconds("retry_backoff_ms"), seconds("retry_backoff_max_ms")),
        reconnect_backoff_s=seconds("reconnect_backoff_ms"),
        reconnect_backoff_max_s=max(
            seconds("reconnect_backoff_ms"), seconds("reconnect_backoff_max_ms")
        ),
        silence_timeout_s=seconds("silence_timeout_ms"),
        ack_wait_s=seconds("ack_wait_ms"),
        metadata_max_age_s=seconds("metadata_max_age_ms"),
        connections_max_idle_s=seconds("connections_max_idle_ms"),
        connection_setup_timeout_s=seconds("socket_connection_setup_timeout_ms"),
        allow_auto_create_topics=values["allow_auto_create_topics"],
        transactional_id=values["transactional_id"],
        transaction_timeout_ms=values["transaction_timeout_ms"],
        retry_wait=values["retry_wait"],
        retry_stop=values["retry_stop"],
        reconnect_wait=values["reconnect_wait"],
        metadata_wait=values["metadata_wait"],
    )
