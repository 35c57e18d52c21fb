"""A mock Kafka cluster, faults on demand and a simulator, for our tests and for yours.

What is named here is public: docs/testing.md shows it in use. The rest of this package serves it.

Rule: a name is imported when it is first asked for, so that the mock cluster can be had without
the simulator, and the simulator without sockets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.testing.cluster_settings import FAST, KRAFT, ClusterSettings
    from outlast.testing.delivery import DeliveryLedger, DeliveryVerdict, SentRecord
    from outlast.testing.designs import DESIGNS, DETACHED, HOSTED, MAJORITY, QUEUE
    from outlast.testing.faults import (
        Blackhole,
        ConnectionLimit,
        CutAfter,
        CutBefore,
        Error,
        ErrorAfter,
        Fault,
        ForgetProducer,
        Freeze,
        Garble,
        LeaderNotListed,
        LoseRequest,
        LoseResponse,
        MetadataLag,
        MetadataLeaderless,
        Slow,
        SlowFollower,
        Throttle,
    )
    from outlast.testing.ledger import Verdict
    from outlast.testing.mock_kafka import MockCluster, PartitionStatus
    from outlast.testing.network import NetworkSettings
    from outlast.testing.request_log import LogRecord, RequestRecord
    from outlast.testing.simulation import Simulation, SimulationError

__all__ = [
    "DESIGNS",
    "DETACHED",
    "FAST",
    "HOSTED",
    "KRAFT",
    "MAJORITY",
    "QUEUE",
    "Blackhole",
    "ClusterSettings",
    "ConnectionLimit",
    "CutAfter",
    "CutBefore",
    "DeliveryLedger",
    "DeliveryVerdict",
    "Error",
    "ErrorAfter",
    "Fault",
    "ForgetProducer",
    "Freeze",
    "Garble",
    "LeaderNotListed",
    "LogRecord",
    "LoseRequest",
    "LoseResponse",
    "MetadataLag",
    "MetadataLeaderless",
    "MockCluster",
    "NetworkSettings",
    "PartitionStatus",
    "RequestRecord",
    "SentRecord",
    "Simulation",
    "SimulationError",
    "Slow",
    "SlowFollower",
    "Throttle",
    "Verdict",
]

_HOMES = {
    "ClusterSettings": "cluster_settings",
    "DESIGNS": "designs",
    "DETACHED": "designs",
    "DeliveryLedger": "delivery",
    "DeliveryVerdict": "delivery",
    "FAST": "cluster_settings",
    "HOSTED": "designs",
    "KRAFT": "cluster_settings",
    "LogRecord": "request_log",
    "MAJORITY": "designs",
    "MockCluster": "mock_kafka",
    "NetworkSettings": "network",
    "PartitionStatus": "mock_kafka",
    "QUEUE": "designs",
    "RequestRecord": "request_log",
    "SentRecord": "delivery",
    "Simulation": "simulation",
    "SimulationError": "simulation",
    "Verdict": "ledger",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'faults')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
