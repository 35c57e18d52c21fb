"""A Kafka producer whose sends outlast a failover, and which tells you what the failover did.

`KafkaProducer` takes the place of kafka-python's: `from outlast import KafkaProducer`. In code that
nobody edits `install()` does it, or `outlast run`.

Rule: kafka is imported before anything of ours. `outlast run` swaps at that moment.
"""

import typing

from kafka.producer.future import RecordMetadata

from outlast.deliveries import Deliveries
from outlast.errors import (
    BlockedError,
    ClosedError,
    ConfigurationError,
    ConfigurationTypeError,
    DeliveryError,
    MissingCodecError,
    OutlastError,
)
from outlast.future import DeliveryFuture, Undelivered
from outlast.producer import KafkaProducer
from outlast.swap import install, uninstall

if typing.TYPE_CHECKING:
    from outlast.engine.outcomes import (
        AttemptRecord,
        AttemptState,
        Cause,
        Gap,
        GapEnd,
        GapOutcome,
        Health,
        HeldUp,
        Outcome,
        Phase,
        Stall,
        StallEnd,
    )

__all__ = [
    "AttemptRecord",
    "AttemptState",
    "BlockedError",
    "Cause",
    "ClosedError",
    "ConfigurationError",
    "ConfigurationTypeError",
    "Deliveries",
    "DeliveryError",
    "DeliveryFuture",
    "Gap",
    "GapEnd",
    "GapOutcome",
    "Health",
    "HeldUp",
    "KafkaProducer",
    "MissingCodecError",
    "Outcome",
    "OutlastError",
    "Phase",
    "RecordMetadata",
    "Stall",
    "StallEnd",
    "Undelivered",
    "install",
    "uninstall",
]


def __getattr__(name: str) -> typing.Any:
    """What tells of gaps and outcomes comes when it is asked for: it takes long to load."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outlast.engine import outcomes

    value = globals()[name] = getattr(outcomes, name)
    return value
