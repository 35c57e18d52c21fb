"""From a producer's keywords: those for a connection of kafka-python's, and limits of versions."""

from __future__ import annotations

import selectors
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kafka.protocol.broker_version_data import BrokerVersionData

OLDEST_VERSION = (0, 11)
_PASSED_ON = (
    *("client_id", "receive_message_max_bytes", "security_protocol", "sasl_mechanism"),
    *("sasl_plain_username", "sasl_plain_password", "sasl_kerberos_name"),
    *("sasl_kerberos_service_name", "sasl_kerberos_domain_name"),
)


def connection_config(config: Mapping[str, Any], setup_timeout_s: float) -> dict[str, Any]:
    """What goes on to each connection. In-flight limit and time-outs are the engine's."""
    return {
        "receive_message_max_bytes": 100_000_000,
        **{name: config[name] for name in _PASSED_ON if config.get(name) is not None},
        "client_software_name": "outlast",
        "max_in_flight_requests_per_connection": sys.maxsize,
        "request_timeout_ms": setup_timeout_s * 1000,  # of re-authentication only
    }


def version_limits(api_version: tuple[int, ...] | None) -> dict[int, tuple[int, int]]:
    """The newest version of each request that brokers of this version know; {}: ask each broker.
    One older than 0.11 is spoken to as if it were that: nothing older can carry our records.
    """
    if api_version is None:
        return {}
    limits: dict[int, tuple[int, int]] = BrokerVersionData(
        max(api_version, OLDEST_VERSION)
    ).api_versions
    return limits


def versions_within(
    offered: Mapping[int, tuple[int, int]], limits: Mapping[int, tuple[int, int]]
) -> Mapping[int, tuple[int, int]]:
    """What a broker offers, with our limits: one table for all connections to which it is the
    same, for it takes 2 kB.
    """
    table = {
        key: (oldest, min(newest, limits[key][1]) if key in limits else newest)
        for key, (oldest, newest) in offered.items()
    }
    return _shared(tuple(sorted(table.items())))


@lru_cache(maxsize=16)
def _shared(table: tuple[tuple[int, tuple[int, int]], ...]) -> Mapping[int, tuple[int, int]]:
    return dict(table)


def selector_class(config: Mapping[str, Any]) -> Any:
    """What was chosen, or the default of this moment."""
    return config.get("selector") or selectors.DefaultSelector
