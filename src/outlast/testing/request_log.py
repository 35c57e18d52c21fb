"""What the mock cluster noted down: every request, and what became of each partition in it.

Rule: these are the mock's own notes, made without any code of the producer under test, so that
gap records and delivery reports can be checked against them. Times are the cluster's.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class PartitionRecord:
    """One partition's share of a Produce request.

    `error_code` and `base_offset` are None until decided; `appended` tells whether this request
    (and no earlier copy) put the batch into the serving broker's log.
    """

    topic: str
    partition: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = 0
    error_code: int | None = None
    base_offset: int | None = None
    appended: bool = False


@dataclass(slots=True)
class RequestRecord:
    """One request as a broker saw it. `late`: taken after its connection had ended."""

    received_at_s: float
    node_id: int
    connection: Hashable
    api_key: int
    version: int
    partitions: list[PartitionRecord] = field(default_factory=list)
    served_at_s: float | None = None
    answered_at_s: float | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as a consumer would read it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    sequence: int
