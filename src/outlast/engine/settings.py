"""What the engine must be told, in its own units: seconds and bytes.

Defaults, Kafka's names and the checks live in `outlast.config`; this is only what comes out of
them, so that one fact stands in one place. Values are trusted: `outlast.config` has checked them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The engine's share of the producer's configuration."""

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str
    acks: int  # -1 (all), 0 or 1
    idempotent: bool
    retries: float
    max_in_flight: int  # Produce requests per connection
    batch_bytes: int
    linger_s: float
    compression: int  # codec bits: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
    max_request_bytes: int
    buffer_bytes: int
    delivery_timeout_s: float
    request_timeout_s: float
    retry_backoff_s: float
    retry_backoff_max_s: float
    reconnect_backoff_s: float
    reconnect_backoff_max_s: float
    silence_timeout_s: float
    ack_wait_s: float
    metadata_max_age_s: float
    connections_max_idle_s: float
    connection_setup_timeout_s: float
    allow_auto_create_topics: bool
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    # tenacity objects; None is the default schedule (engine/retry.py)
    retry_wait: Any | None = None
    retry_stop: Any | None = None
    reconnect_wait: Any | None = None
    metadata_wait: Any | None = None
