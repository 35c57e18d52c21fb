"""A Kafka producer whose sends outlast a failover, and which tells you what the failover did.

`KafkaProducer` takes the place of kafka-python's: `from outlast import KafkaProducer`. In code that
nobody edits `install()` does it, or `outlast run`.

Rule: kafka is imported before anything of ours. `outlast run` swaps at that moment.
"""

from kafka.producer.future import RecordMetadata

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

__all__ = [
    "AttemptRecord",
    "AttemptState",
    "BlockedError",
    "Cause",
    "ClosedError",
    "ConfigurationError",
    "ConfigurationTypeError",
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
