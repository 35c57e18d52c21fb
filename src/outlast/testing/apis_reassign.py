"""AlterPartitionReassignments 0–1: other replicas for a partition, or the same in another order.

The first replica is the preferred leader, so the same nodes in another order and a preferred
election (`apis_admin`) move a leader, as administrators' tools do it. A real cluster copies the log
to new replicas first; here it is one step (A17), and so there is never one to cancel (85).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from kafka.protocol.api_message import ApiMessage

from outlast.testing.apis import HANDLERS, Handler, fault_code
from outlast.testing.codes import (
    INVALID_REPLICA_ASSIGNMENT,
    NO_REASSIGNMENT_IN_PROGRESS,
    UNKNOWN_TOPIC_OR_PARTITION,
)

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node

ALTER_PARTITION_REASSIGNMENTS = 45


def serve_alter_reassignments(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """Each partition on its own; an `Error` fault refuses the whole request."""
    code = fault_code(cluster, node, exchange, now)
    told = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    responses = []
    for topic in () if code else exchange.request.topics:
        parts = []
        for wanted in topic.partitions:
            error, message = _reassign(cluster, topic.name, wanted, now)
            parts.append(
                told.ReassignablePartitionResponse(
                    partition_index=wanted.partition_index,
                    error_code=error,
                    error_message=message or None,
                )
            )
        responses.append(told(name=topic.name, partitions=parts))
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=code, error_message=None, responses=responses
    )


def _reassign(cluster: MockCluster, name: str, wanted: Any, now: float) -> tuple[int, str]:
    topic = cluster.topics.get(name)
    if topic is None or wanted.partition_index not in topic.partitions:
        return UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
    replicas = wanted.replicas
    if replicas is None:
        return NO_REASSIGNMENT_IN_PROGRESS, "none is under way"
    if not replicas or len(set(replicas)) < len(replicas) or set(replicas) - set(cluster.nodes):
        return INVALID_REPLICA_ASSIGNMENT, f"{replicas}: brokers of this cluster, each once"
    try:
        cluster.reassign(name, wanted.partition_index, replicas, now)
    except ValueError as error:  # no one in it is in sync: the copying would never end
        return INVALID_REPLICA_ASSIGNMENT, str(error)
    return 0, ""


HANDLERS[ALTER_PARTITION_REASSIGNMENTS] = Handler(
    AlterPartitionReassignmentsRequest, (0, 1), serve_alter_reassignments
)
