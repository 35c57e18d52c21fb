"""What spans tell: every attribute by its name, its meaning and how it is found.

Names are those of OpenTelemetry's messaging conventions 1.44 (still in development, so every one is
here; a test holds them to the published package), and `outlast.*` where these have none. The
package itself is no dependency: its pins exclude most SDKs. The documents' tables are made of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from opentelemetry.util.types import AttributeValue

from outlast.engine.messages import Gap

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
BATCH_COUNT = "messaging.batch.message_count"
DESTINATION = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
CLIENT_ID = "messaging.client.id"
CLUSTER_ID = "messaging.kafka.cluster.id"
OFFSET = "messaging.kafka.offset"
TOMBSTONE = "messaging.kafka.message.tombstone"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
PEER_ADDRESS = "network.peer.address"
PEER_PORT = "network.peer.port"
ERROR_TYPE = "error.type"

PHASE = "outlast.gap.phase"  # name of the event, and of its attribute
LANE = "outlast.gap.lane"  # name of the event, and of its attribute; and of the gap's
LANE_REASON = "outlast.gap.lane.reason"
OUTCOME = "outlast.gap.outcome"
PHASE_CHANGES = "outlast.gap.phase_changes"
LANE_CHANGES = "outlast.gap.lane_changes"

Attributes = dict[str, AttributeValue]


class GapAttribute(NamedTuple):
    """One attribute of a gap's span; None: not told."""

    meaning: str
    of: Callable[[Gap], AttributeValue | None]


def gap_attributes(told: dict[str, GapAttribute], gap: Gap) -> Attributes:
    """What this gap has of these."""
    values = ((name, attribute.of(gap)) for name, attribute in told.items())
    return {name: value for name, value in values if value is not None}


# Every span has these, as far as they are known.
COMMON: dict[str, str] = {
    SYSTEM: "`kafka`",
    DESTINATION: "the topic",
    PARTITION: "the partition, as a string",
    CLIENT_ID: "`client_id`",
    CLUSTER_ID: "the cluster's id",
}

GAP_AT_START: dict[str, GapAttribute] = {
    PARTITION: GapAttribute(COMMON[PARTITION], lambda gap: str(gap.partition)),
    "outlast.gap.number": GapAttribute(
        "the gap's number, as in `producer.gaps()` and the log", lambda gap: gap.number
    ),
    "outlast.gap.cause": GapAttribute(
        "what kind its first signal was", lambda gap: gap.cause.value
    ),
    "outlast.gap.trigger": GapAttribute(
        "the first signal, by its protocol name", lambda gap: gap.trigger
    ),
    LANE: GapAttribute(
        "lane of the first attempt that came to nothing", lambda gap: gap.lane or None
    ),
    "outlast.gap.leader.id": GapAttribute("the leader it began with", lambda gap: gap.old_leader),
    "outlast.gap.leader_epoch": GapAttribute(
        "and the epoch of that", lambda gap: gap.old_leader_epoch
    ),
    "outlast.gap.last_ack_age": GapAttribute(
        "seconds from the last ack to the gap's begin", lambda gap: gap.last_ack_age_s
    ),
}
# where that leader is; the conventions' names
GAP_SERVER = {SERVER_ADDRESS: "the host that this leader advertises", SERVER_PORT: "and its port"}

GAP_AT_END: dict[str, GapAttribute] = {
    LANE: GAP_AT_START[LANE],  # at first nothing may have been sent
    "outlast.gap.duration": GapAttribute("seconds", lambda gap: gap.duration_s),
    "outlast.gap.phase.detecting.duration": GapAttribute(
        "seconds of this phase, added up", lambda gap: gap.detecting_s
    ),
    "outlast.gap.phase.unavailable.duration": GapAttribute(
        "likewise", lambda gap: gap.unavailable_s
    ),
    "outlast.gap.phase.reconnecting.duration": GapAttribute(
        "likewise", lambda gap: gap.reconnecting_s
    ),
    "outlast.gap.phase.resuming.duration": GapAttribute("likewise", lambda gap: gap.resuming_s),
    "outlast.gap.connecting.duration": GapAttribute(
        "the part of *reconnecting* that was connect and authentication",
        lambda gap: gap.connecting_s,
    ),
    "outlast.gap.cluster.duration.min": GapAttribute(
        "the cluster's share in seconds, at least", lambda gap: gap.cluster_s_min
    ),
    "outlast.gap.cluster.duration.max": GapAttribute("at most", lambda gap: gap.cluster_s_max),
    "outlast.gap.new_leader.id": GapAttribute(
        "the leader that accepted, or should", lambda gap: gap.new_leader
    ),
    "outlast.gap.new_leader_epoch": GapAttribute(
        "and the epoch of that", lambda gap: gap.new_leader_epoch
    ),
    "outlast.gap.attempts": GapAttribute("attempts to deliver", lambda gap: gap.attempts),
    "outlast.gap.metadata_refreshes": GapAttribute(
        "metadata requests meanwhile", lambda gap: gap.metadata_refreshes
    ),
    "outlast.gap.records.delivered": GapAttribute(
        "records that met the gap and were delivered", lambda gap: gap.records_delivered
    ),
    "outlast.gap.records.expired": GapAttribute(
        "that ran out of time", lambda gap: gap.records_expired
    ),
    "outlast.gap.records.failed": GapAttribute(
        "that failed otherwise", lambda gap: gap.records_failed
    ),
    "outlast.gap.records.refused": GapAttribute(
        "that `send()` did not take", lambda gap: gap.records_refused
    ),
    "outlast.gap.ended_by": GapAttribute(
        "ack, leader_usable, abandoned, closed or topic_gone",
        lambda gap: gap.ended_by.value if gap.ended_by else None,
    ),
    OUTCOME: GapAttribute(
        "absorbed, reported or abandoned", lambda gap: gap.outcome.value if gap.outcome else None
    ),
}
GAP_COUNTED = {
    PHASE_CHANGES: "how often the phase changed",
    LANE_CHANGES: "how often the lane changed",
}
GAP_PEER = {PEER_ADDRESS: "the host that the new leader advertises", PEER_PORT: "and its port"}
GAP_ERROR = {ERROR_TYPE: "the last signal, only of gaps that were not absorbed"}

SEND: dict[str, str] = {
    OPERATION_NAME: "`send`",
    OPERATION_TYPE: "`send`",
    TOMBSTONE: "true, if the record has no value",
    BATCH_COUNT: "of `send_many`: how many records",
    OFFSET: "where it was written",
    SERVER_ADDRESS: "the host that the broker it was last sent to advertises",
    SERVER_PORT: "and its port",
    PEER_ADDRESS: "the same: which of its IP addresses was used is not known",
    PEER_PORT: "and its port",
    ERROR_TYPE: "why it failed: Kafka's name of the error, or `delivery_timeout`, `closed` …, or "
    "the class of what `send()` raised",
}
