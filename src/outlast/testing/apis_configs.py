"""What a node tells of settings, its own, its cluster's and its topics', and of the controllers.

DescribeConfigs 1–4: what the mock has of a topic's and of a broker's own configuration. A value is
told to be set where it differs from the default. A clock is the longest that the mock takes.
`Error(code, api=32)` refuses one: of a topic if it names one, else of whatever is asked.

DescribeQuorum 0–2: nodes are the voters if the mock's settings make them controllers as well
(`combined_quorum`, `controller_detect_s`), else three controllers apart from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from kafka.protocol.api_message import ApiMessage

from outlast.testing.apis import HANDLERS, Handler
from outlast.testing.cluster_settings import Span, longest
from outlast.testing.codes import INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION
from outlast.testing.faults import Error, strike

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node

DESCRIBE_CONFIGS, DESCRIBE_QUORUM = 32, 55

QUORUM_TOPIC = "__cluster_metadata"
CONTROLLERS_APART = 3

# --- DescribeConfigs ----------------------------------------------------------------------------

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET_ON_TOPIC, SET_ON_BROKER, DEFAULT = 1, 4, 5
BOOLEAN, STRING, INT, LIST = 1, 2, 3, 7
UNCLEAN = "unclean.leader.election.enable"


class Config(NamedTuple):
    """One entry: what it is, what it would be if nobody had set it, and what that is called on a
    broker where a topic has it.
    """

    name: str
    type: int
    value: str
    default: str
    synonym: str = ""


def serve_describe_configs(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """The configuration of topics that exist, and of the broker that is asked."""
    request = exchange.request
    result = DescribeConfigsResponse.DescribeConfigsResult
    results = []
    for wanted in request.resources:
        kind, name, keys = wanted.resource_type, wanted.resource_name, wanted.configuration_keys
        here = [(name, -1)] if kind == TOPIC_RESOURCE else []
        fault = strike(
            cluster.faults, Error, node.node_id, now, api=DESCRIBE_CONFIGS, partitions=here
        )
        code, configs = (fault.code, ()) if fault else _configs(cluster, node, kind, name)
        is_set = SET_ON_TOPIC if kind == TOPIC_RESOURCE else SET_ON_BROKER
        entries = [
            _entry(config, is_set, request.include_synonyms)
            for config in configs
            if keys is None or config.name in keys
        ]
        results.append(
            result(
                error_code=code,
                error_message=fault.message if fault else None,
                resource_type=kind,
                resource_name=name,
                configs=entries,
            )
        )
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _configs(
    cluster: MockCluster, node: Node, kind: int, name: str
) -> tuple[int, Iterator[Config] | tuple[()]]:
    if kind == TOPIC_RESOURCE:
        known = name in cluster.topics
        return (0, _of_topic(cluster, name)) if known else (UNKNOWN_TOPIC_OR_PARTITION, ())
    if kind == BROKER_RESOURCE and name == str(node.node_id):
        return 0, _of_broker(cluster, node)
    return INVALID_REQUEST, ()


def _of_topic(cluster: MockCluster, name: str) -> Iterator[Config]:
    topic = cluster.topics[name]
    rules, limit = topic.rules, str(cluster.settings.max_message_bytes)
    policy = "compact" if rules.compacted else "delete"
    time = "LogAppendTime" if rules.log_append_time else "CreateTime"
    yield Config("cleanup.policy", LIST, policy, "delete", "log.cleanup.policy")
    yield Config("max.message.bytes", INT, str(rules.max_message_bytes), limit, "message.max.bytes")
    yield Config("message.timestamp.type", STRING, time, "CreateTime", "log.message.timestamp.type")
    yield Config("min.insync.replicas", INT, str(topic.min_isr), "1", "min.insync.replicas")
    unclean = str(cluster.settings.unclean_election).lower()
    yield Config(UNCLEAN, BOOLEAN, unclean, unclean, UNCLEAN)


def _of_broker(cluster: MockCluster, node: Node) -> Iterator[Config]:
    settings = cluster.settings
    creates, unclean = settings.auto_create_topics, settings.unclean_election
    host, port = cluster.addresses[node.node_id]
    listener = f"PLAINTEXT://{host}:{port}"
    roles = "broker,controller" if _combined(cluster) else "broker"
    session_ms = _ms(settings.detect_s)
    copies = min(3, len(cluster.nodes))
    yield Config("node.id", INT, str(node.node_id), "")
    yield Config("process.roles", LIST, roles, "")
    yield Config("listeners", STRING, listener, "PLAINTEXT://:9092")
    yield Config("advertised.listeners", STRING, listener, "")
    yield Config("auto.create.topics.enable", BOOLEAN, str(creates).lower(), "true")
    yield Config("auto.leader.rebalance.enable", BOOLEAN, "false", "true")
    yield Config("broker.heartbeat.interval.ms", INT, str(min(2_000, session_ms // 4)), "2000")
    yield Config("broker.session.timeout.ms", INT, str(session_ms), "9000")
    yield Config("controlled.shutdown.enable", BOOLEAN, "true", "true")
    # Of what KRAFT's clocks were measured with (A19); the mock has them in controller_detect_s.
    yield Config("controller.quorum.election.backoff.max.ms", INT, "1000", "1000")
    yield Config("controller.quorum.election.timeout.ms", INT, "1000", "1000")
    yield Config("controller.quorum.fetch.timeout.ms", INT, "2000", "2000")
    yield Config("default.replication.factor", INT, str(copies), "1")
    yield Config("leader.imbalance.check.interval.seconds", INT, "300", "300")
    yield Config("message.max.bytes", INT, str(settings.max_message_bytes), "1048588")
    yield Config("min.insync.replicas", INT, "1", "1")
    yield Config("num.partitions", INT, str(settings.auto_create_partitions), "1")
    yield Config("replica.fetch.backoff.ms", INT, str(_ms(settings.fetch_backoff_s)), "1000")
    yield Config("replica.fetch.wait.max.ms", INT, str(_ms(settings.replication_s)), "500")
    yield Config("replica.lag.time.max.ms", INT, "30000", "30000")
    yield Config(UNCLEAN, BOOLEAN, str(unclean).lower(), "false")
    expiry_ms = int(settings.producer_expiry_s * 1000)
    yield Config("producer.id.expiration.ms", INT, str(expiry_ms), "86400000")


def _ms(span: Span) -> int:
    return round(longest(span) * 1000)


def _combined(cluster: MockCluster) -> bool:
    """Are nodes controllers too?"""
    settings = cluster.settings
    return settings.combined_quorum or settings.controller_detect_s is not None


def _entry(config: Config, is_set: int, with_synonyms: bool) -> Any:
    entry = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    synonym = entry.DescribeConfigsSynonym
    source = DEFAULT if config.value == config.default else is_set
    synonyms = []
    if with_synonyms and source != DEFAULT:
        synonyms.append(synonym(name=config.name, value=config.value, source=source))
    if with_synonyms and config.default:
        name = config.synonym or config.name
        synonyms.append(synonym(name=name, value=config.default, source=DEFAULT))
    return entry(
        name=config.name,
        value=config.value,
        read_only=config.name == "node.id",
        config_source=source,
        is_sensitive=False,
        synonyms=synonyms,
        config_type=config.type,
        documentation=None,
    )


# --- DescribeQuorum -------------------------------------------------------------------------------


def serve_describe_quorum(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """The voters of the quorum and the active controller; the metadata log itself is not told."""
    fault = strike(cluster.faults, Error, node.node_id, now, api=DESCRIBE_QUORUM)
    if fault is not None:
        return DescribeQuorumResponse(
            error_code=fault.code, error_message=fault.message, topics=[], nodes=[]
        )
    topic = DescribeQuorumResponse.TopicData
    partition = topic.PartitionData
    voters, leader = _quorum(cluster)
    told = [
        topic(
            topic_name=asked.topic_name,
            partitions=[
                partition(
                    partition_index=index.partition_index,
                    error_code=0 if known else UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=None,
                    leader_id=leader if known else -1,
                    leader_epoch=1 if known else -1,
                    high_watermark=-1,
                    current_voters=[_replica(voter) for voter in voters if known],
                    observers=[_replica(n) for n in cluster.nodes if known and n not in voters],
                )
                for index in asked.partitions
                for known in [asked.topic_name == QUORUM_TOPIC and index.partition_index == 0]
            ],
        )
        for asked in exchange.request.topics
    ]
    return DescribeQuorumResponse(error_code=0, error_message=None, topics=told, nodes=[])


def _quorum(cluster: MockCluster) -> tuple[list[int], int]:
    """Voters, and who of them leads (−1: nobody, there is no majority)."""
    if _combined(cluster):
        return sorted(cluster.nodes), cluster.controller_node
    first = max(cluster.nodes) + 1
    return list(range(first, first + CONTROLLERS_APART)), first


def _replica(node_id: int) -> Any:
    return DescribeQuorumResponse.TopicData.PartitionData.ReplicaState(
        replica_id=node_id, log_end_offset=-1, last_fetch_timestamp=-1, last_caught_up_timestamp=-1
    )


HANDLERS[DESCRIBE_CONFIGS] = Handler(DescribeConfigsRequest, (1, 4), serve_describe_configs)
HANDLERS[DESCRIBE_QUORUM] = Handler(DescribeQuorumRequest, (0, 2), serve_describe_quorum)
