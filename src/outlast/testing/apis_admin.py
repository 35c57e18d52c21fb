"""What administrators ask of a node: topics, partitions, leaders, the cluster.

Any node does it at once, by the cluster's own verbs; brokers learn of it one by one, so right after
the answer some do not know a new topic yet (A38).

CreateTopics 2–7 (partitions, replicas, assignments; of configs `min.insync.replicas`,
`cleanup.policy`, `max.message.bytes`, `message.timestamp.type`, others are refused),
DeleteTopics 1–6, CreatePartitions 0–3, DescribeCluster 0–2.
ElectLeaders 0–2: preferred ones, and unclean ones where nobody leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from kafka.protocol.api_message import ApiMessage

from outlast.testing.apis import HANDLERS, NO_ID, Handler, fault_code, is_topic_name
from outlast.testing.codes import (
    ELECTION_NOT_NEEDED,
    ELIGIBLE_LEADERS_NOT_AVAILABLE,
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_TOPIC_EXCEPTION,
    PREFERRED_LEADER_NOT_AVAILABLE,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node

CREATE_TOPICS, DELETE_TOPICS = 19, 20
CREATE_PARTITIONS, ELECT_LEADERS, DESCRIBE_CLUSTER = 37, 43, 60


PREFERRED, UNCLEAN = 0, 1


# --- CreateTopics -------------------------------------------------------------------------------


def serve_create_topics(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """Make topics, or only say whether they could be made. An `Error` fault refuses them all."""
    request = exchange.request
    code = fault_code(cluster, node, exchange, now)
    results = [
        _not_created(wanted.name, code, "refused")
        if code
        else _create(cluster, wanted, request.validate_only, now)
        for wanted in request.topics
    ]
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
    code, message = _misplaced(cluster, wanted)
    if code:
        return _not_created(name, code, message)
    partitions = len(wanted.assignments) or max(1, wanted.num_partitions)  # -1: the default
    if not validate_only:
        cluster.create_topic(name, partitions, now=now, **options)
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


def _misplaced(cluster: MockCluster, wanted: Any) -> tuple[int, str]:
    """Why the cluster has no place for the partitions of a new topic; 0 if it has."""
    nodes = len(cluster.nodes)
    if wanted.assignments:
        replicas = [list(entry.broker_ids) for entry in wanted.assignments]
        return _misassigned(cluster, replicas, len(replicas[0]))
    if wanted.num_partitions == 0 or wanted.num_partitions < -1:
        return INVALID_PARTITIONS, f"{wanted.num_partitions} is no number of partitions"
    if wanted.replication_factor == 0 or not -1 <= wanted.replication_factor <= nodes:
        return INVALID_REPLICATION_FACTOR, f"{wanted.replication_factor} of {nodes} brokers"
    return 0, ""


def _misassigned(
    cluster: MockCluster, assignment: list[list[int]], replication: int
) -> tuple[int, str]:
    """What is wrong with these replicas of partitions, which must be so many each; 0: nothing."""
    for replicas in assignment:
        if not replicas or len(set(replicas)) < len(replicas):
            return INVALID_REPLICA_ASSIGNMENT, f"{replicas}: each replica once, and at least one"
        if unknown := set(replicas) - set(cluster.nodes):
            return INVALID_REPLICA_ASSIGNMENT, f"no such brokers: {sorted(unknown)}"
        if len(replicas) != replication:
            return (
                INVALID_REPLICA_ASSIGNMENT,
                f"{len(replicas)} replicas; others have {replication}",
            )
    return 0, ""


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


# --- CreatePartitions ---------------------------------------------------------------------------


def serve_create_partitions(
    cluster: MockCluster, _node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """Give topics more partitions, or only say whether they could be given."""
    request = exchange.request
    result = CreatePartitionsResponse.CreatePartitionsTopicResult
    results = []
    for wanted in request.topics:
        code, message = _grow(cluster, wanted, request.validate_only, now)
        results.append(result(name=wanted.name, error_code=code, error_message=message))
    return CreatePartitionsResponse(throttle_time_ms=0, results=results)


def _grow(
    cluster: MockCluster, wanted: Any, validate_only: bool, now: float
) -> tuple[int, str | None]:
    topic = cluster.topics.get(wanted.name)
    if topic is None:
        return UNKNOWN_TOPIC_OR_PARTITION, None
    have, total = len(topic.partitions), wanted.count
    if total <= have:
        return INVALID_PARTITIONS, f"Topic {wanted.name} has {have} partitions; {total} is no more"
    assignment = None
    if wanted.assignments is not None:
        assignment = [list(entry.broker_ids) for entry in wanted.assignments]
        if len(assignment) != total - have:
            message = f"{len(assignment)} assignments for {total - have} new partitions"
            return INVALID_REPLICA_ASSIGNMENT, message
        code, message = _misassigned(cluster, assignment, len(topic.partitions[0].replicas))
        if code:
            return code, message
    if not validate_only:
        cluster.add_partitions(wanted.name, total, assignment=assignment, now=now)
    return 0, None


# --- ElectLeaders -------------------------------------------------------------------------------


def serve_elect_leaders(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """Make the preferred replica lead; or, where nobody leads, whoever lives.

    Of all partitions (none named) those that need no election are not mentioned. An `Error` fault
    refuses the whole request.
    """
    if code := fault_code(cluster, node, exchange, now):
        return ElectLeadersResponse(
            throttle_time_ms=0, error_code=code, replica_election_results=[]
        )
    request = exchange.request
    election = request.election_type if exchange.version >= 1 else PREFERRED
    everything = request.topic_partitions is None
    if everything:
        named = [(name, list(topic.partitions)) for name, topic in cluster.topics.items()]
    else:
        named = [(entry.topic, entry.partitions) for entry in request.topic_partitions]
    result = ElectLeadersResponse.ReplicaElectionResult
    results = []
    for name, indexes in named:
        codes = [(index, _elect(cluster, name, index, election, now)) for index in indexes]
        told = [
            result.PartitionResult(partition_id=index, error_code=code, error_message=None)
            for index, code in codes
            if not (everything and code == ELECTION_NOT_NEEDED)
        ]
        if told:
            results.append(result(topic=name, partition_result=told))
    return ElectLeadersResponse(throttle_time_ms=0, error_code=0, replica_election_results=results)


def _elect(cluster: MockCluster, name: str, index: int, election: int, now: float) -> int:
    topic = cluster.topics.get(name)
    state = topic.partitions.get(index) if topic else None
    if state is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    usable = cluster.usable_nodes()
    if election == PREFERRED:
        wanted = state.replicas[0]
        if state.leader == wanted:
            return ELECTION_NOT_NEEDED
        if wanted not in state.isr or wanted not in usable:
            return PREFERRED_LEADER_NOT_AVAILABLE
        try:
            cluster.move_leader(name, index, wanted, now, deny_s=None)
        except ValueError:  # most others do not run, and leaders are elected by a majority
            return PREFERRED_LEADER_NOT_AVAILABLE
        return 0
    if state.leader != -1:
        return ELECTION_NOT_NEEDED
    living = [node for node in (*state.isr, *state.elr, *state.replicas) if node in usable]
    if not living:
        return ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster.move_leader(name, index, living[0], now, deny_s=None, unclean=True)
    return 0


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
HANDLERS[CREATE_PARTITIONS] = Handler(CreatePartitionsRequest, (0, 3), serve_create_partitions)
HANDLERS[ELECT_LEADERS] = Handler(ElectLeadersRequest, (0, 2), serve_elect_leaders)
