"""What administrators ask of a node: topics made and deleted, and what the cluster consists of.

Any node does it at once, by the cluster's own verbs; brokers learn of it one by one, so right after
the answer some do not know a new topic yet (A38).

CreateTopics 2–7 (partitions, replicas, assignments; of configs `min.insync.replicas`,
`cleanup.policy`, `max.message.bytes`, `message.timestamp.type`, others are refused),
DeleteTopics 1–6, DescribeCluster 0–2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kafka.protocol.api_message import ApiMessage

from outlast.testing.apis import (
    HANDLERS,
    INVALID_TOPIC_EXCEPTION,
    NO_ID,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    Handler,
    is_topic_name,
)

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node

CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CLUSTER = 19, 20, 60

TOPIC_ALREADY_EXISTS = 36
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40


# --- CreateTopics -------------------------------------------------------------------------------


def serve_create_topics(
    cluster: MockCluster, _node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """Make topics, or only say whether they could be made."""
    request = exchange.request
    results = [_create(cluster, wanted, request.validate_only, now) for wanted in request.topics]
    return CreateTopicsResponse(throttle_time_ms=0, topics=results)


def _create(cluster: MockCluster, wanted: Any, validate_only: bool, now: float) -> Any:
    name = wanted.name
    if not is_topic_name(name):
        return _not_created(name, INVALID_TOPIC_EXCEPTION, "not a topic name")
    if name in cluster.topics:
        return _not_created(name, TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    try:
        options = _options(wanted)
    except ValueError as error:
        return _not_created(name, INVALID_CONFIG, str(error))
    partitions = len(wanted.assignments) or max(1, wanted.num_partitions)  # -1: the default
    if not validate_only:
        try:
            cluster.create_topic(name, partitions, now=now, **options)
        except ValueError as error:
            return _not_created(name, INVALID_REPLICA_ASSIGNMENT, str(error))
    topic = cluster.topics.get(name)
    return CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=topic.topic_id if topic else NO_ID,
        error_code=0,
        error_message=None,
        num_partitions=partitions,
        replication_factor=len(topic.partitions[0].replicas) if topic else -1,
        configs=[],
    )


def _not_created(name: str, code: int, message: str) -> Any:
    return CreateTopicsResponse.CreatableTopicResult(
        name=name, topic_id=NO_ID, error_code=code, error_message=message, configs=[]
    )


def _options(wanted: Any) -> dict[str, Any]:
    """Keywords for `MockCluster.create_topic`. Raises ValueError for a config it has not."""
    options: dict[str, Any] = {}
    if wanted.assignments:
        by_index = sorted(wanted.assignments, key=lambda entry: entry.partition_index)
        options["assignment"] = [list(entry.broker_ids) for entry in by_index]
    elif wanted.replication_factor > 0:
        options["replication"] = wanted.replication_factor
    for config in wanted.configs:
        value = config.value or ""
        if config.name == "min.insync.replicas":
            options["min_isr"] = int(value)
        elif config.name == "max.message.bytes":
            options["max_message_bytes"] = int(value)
        elif config.name == "cleanup.policy":
            options["compacted"] = value == "compact"
        elif config.name == "message.timestamp.type":
            options["log_append_time"] = value == "LogAppendTime"
        else:
            raise ValueError(f"the mock has no topic config {config.name!r}")
    return options


# --- DeleteTopics -------------------------------------------------------------------------------


def serve_delete_topics(
    cluster: MockCluster, _node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """Delete topics by name, or by id from version 6."""
    request = exchange.request
    if exchange.version < 6:
        results = [_delete(cluster, name, NO_ID, now) for name in request.topic_names]
    else:
        results = [_delete(cluster, t.name, t.topic_id or NO_ID, now) for t in request.topics]
    return DeleteTopicsResponse(throttle_time_ms=0, responses=results)


def _delete(cluster: MockCluster, name: str | None, topic_id: Any, now: float) -> Any:
    by_id = topic_id != NO_ID
    known = cluster.topic_name(topic_id) if by_id else name or ""
    topic = cluster.topics.get(known)
    code = 0
    if topic is None or (by_id and topic.topic_id != topic_id):
        code = UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic_id = topic.topic_id
        cluster.delete_topic(known, now)
    return DeleteTopicsResponse.DeletableTopicResult(
        name=known or None, topic_id=topic_id, error_code=code, error_message=None
    )


# --- DescribeCluster ----------------------------------------------------------------------------


def serve_describe_cluster(
    cluster: MockCluster, node: Node, _exchange: Exchange, _now: float
) -> ApiMessage:
    """The brokers that this node knows of."""
    broker = DescribeClusterResponse.DescribeClusterBroker
    listed = node.view.brokers
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        endpoint_type=1,
        cluster_id=cluster.cluster_id,
        controller_id=min(listed, default=-1),
        brokers=[
            broker(
                broker_id=node_id,
                host=cluster.addresses[node_id][0],
                port=cluster.addresses[node_id][1],
                rack=None,
                is_fenced=False,
            )
            for node_id in listed
        ],
    )


HANDLERS[CREATE_TOPICS] = Handler(CreateTopicsRequest, (2, 7), serve_create_topics)
HANDLERS[DELETE_TOPICS] = Handler(DeleteTopicsRequest, (1, 6), serve_delete_topics)
HANDLERS[DESCRIBE_CLUSTER] = Handler(DescribeClusterRequest, (0, 2), serve_describe_cluster)
