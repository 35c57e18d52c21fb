"""The APIs a node serves: the registry, and the handlers that every client meets first.

A handler is registered in `HANDLERS` under its API key. `serve(cluster, node, exchange, now)` gets
the decoded request as `exchange.request` and gives back a `kafka.protocol` response (version and
header are set for it), or `DEFERRED` if it will call `cluster.answer(exchange, response, now)`
later, or `NO_ANSWER`. Until it is answered nothing else on the connection is read.

Useful to a handler: `node.replicas[(topic, partition)]` (a `Replica`: `leading`, `batches`,
`high_watermark`, `watch(callback)`), `node.view` (what the node may tell clients),
`node.at(time, callback, *args)` (a timer that dies with the node and waits while it is paused).

ApiVersions 0–4: an unknown version gets 35 in the layout of version 0 (C17). The one feature that
is told is `transaction.version`.
Metadata 0–13: by name, and by id from 12; every broker answers from its own view (A13).
InitProducerId without a transactional id: always a new id with epoch 0 from the broker's own block
of 1 000 (S9); a broker's first one, and all for some 45 ms after it, get 14 (S10). Whoever has a
transactional id is served by `apis_transactions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import InitProducerIdResponse

from outlast.testing.cluster_settings import draw
from outlast.testing.codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from outlast.testing.controller import Topic
from outlast.testing.faults import Error, LeaderNotListed, MetadataLeaderless, strike
from outlast.testing.replica import PartitionState

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22


NO_ID = UUID(int=0)
PRODUCER_ID_BLOCK = 1000
TRANSACTION_FEATURE, TRANSACTION_VERSION_MAX = "transaction.version", 2
TOPIC_NAME_MAX = 249
TOPIC_NAME_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class Later(Enum):
    """What a handler gives back instead of a response."""

    DEFERRED = "deferred"  # it will call cluster.answer
    NO_ANSWER = "no answer"  # there is none; go on with the next request


DEFERRED = Later.DEFERRED
NO_ANSWER = Later.NO_ANSWER

Serve = Callable[["MockCluster", "Node", "Exchange", float], "ApiMessage | Later"]


@dataclass(frozen=True, slots=True)
class Handler:
    """One API: the versions that are served, those that ApiVersions lists, and who serves it."""

    request_class: Any
    versions: tuple[int, int]
    serve: Serve
    listed: tuple[int, int] | None = None  # as `versions` if None
    receive: Callable[[MockCluster, Exchange], None] | None = None  # on receipt, before its turn


HANDLERS: dict[int, Handler] = {}


def fault_code(cluster: MockCluster, node: Node, exchange: Exchange, now: float) -> int:
    """The code of an `Error` fault for this whole request; 0 if there is none."""
    if exchange.fate is not None:
        return 0
    api, name = exchange.record.api_key, exchange.connection.name
    fault = strike(cluster.faults, Error, node.node_id, now, api=api, connection=name)
    return fault.code if fault else 0


# --- ApiVersions --------------------------------------------------------------------------------


def serve_api_versions(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """Every API in the registry, within the settings' narrower ranges."""
    code = fault_code(cluster, node, exchange, now)
    if code:
        exchange.version = 0
    entry = ApiVersionsResponse.ApiVersion
    keys = [
        entry(api_key=key, min_version=versions[0], max_version=versions[1])
        for key in sorted(cluster.handlers)
        if (versions := cluster.versions(key, listed=True)) is not None
    ]
    level, features = cluster.settings.transaction_version, ApiVersionsResponse
    supported = features.SupportedFeatureKey(
        name=TRANSACTION_FEATURE, min_version=0, max_version=TRANSACTION_VERSION_MAX
    )
    finalized = features.FinalizedFeatureKey(
        name=TRANSACTION_FEATURE, max_version_level=level, min_version_level=level
    )
    return ApiVersionsResponse(
        error_code=code,
        api_keys=keys,
        supported_features=[supported] if exchange.version >= 4 else [],  # from 0: not before 4
        finalized_features_epoch=0,
        finalized_features=[finalized],
    )


def unsupported_api_versions(cluster: MockCluster) -> ApiMessage:
    """The answer to an ApiVersions of a version from the future."""
    low, high = cluster.versions(API_VERSIONS) or (0, 0)
    entry = ApiVersionsResponse.ApiVersion
    keys = [entry(api_key=API_VERSIONS, min_version=low, max_version=high)]
    return ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=keys)


# --- Metadata -----------------------------------------------------------------------------------


def serve_metadata(cluster: MockCluster, node: Node, exchange: Exchange, now: float) -> ApiMessage:
    """The node's own view of brokers, topics and leaders."""
    request, view = exchange.request, node.view
    wanted = request.topics
    everything = wanted is None or (exchange.version == 0 and not wanted)
    unlisted: list[int] = []
    if everything:
        topics = [_topic(cluster, node, name, now, unlisted) for name in view.topics]
    else:
        may_create = exchange.version < 4 or request.allow_auto_topic_creation
        once = {(w.topic_id or NO_ID, w.name): w for w in wanted}.values()  # as a broker does
        topics = [_wanted_topic(cluster, node, w, now, unlisted, may_create) for w in once]
    broker = MetadataResponse.MetadataResponseBroker
    brokers = [
        broker(node_id=n, host=cluster.addresses[n][0], port=cluster.addresses[n][1], rack=None)
        for n in view.brokers
        if n not in unlisted
    ]
    live = view.brokers or (-1,)
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=brokers,
        cluster_id=cluster.cluster_id,
        controller_id=live[int(cluster.rng.random() * len(live))],  # any of them (A45)
        topics=topics,
        error_code=0,
    )


def _wanted_topic(
    cluster: MockCluster,
    node: Node,
    wanted: Any,
    now: float,
    unlisted: list[int],
    may_create: bool,
) -> Any:
    topic_id = wanted.topic_id or NO_ID
    name: str | None = wanted.name
    if topic_id != NO_ID:
        name = node.view.names.get(topic_id)
        if name is None:
            return _no_topic(UNKNOWN_TOPIC_ID, None, topic_id)
    if name is None or not is_topic_name(name):
        return _no_topic(INVALID_TOPIC_EXCEPTION, name, NO_ID)
    if name in node.view.topics or strike_is_set(cluster, name):
        return _topic(cluster, node, name, now, unlisted)
    if may_create and cluster.settings.auto_create_topics and name not in cluster.topics:
        cluster.create_topic(name, cluster.settings.auto_create_partitions, now=now)
    return _no_topic(UNKNOWN_TOPIC_OR_PARTITION, name, NO_ID)


def strike_is_set(cluster: MockCluster, name: str) -> bool:
    """Is there a Metadata error for a topic of this name, known or not?"""
    return any(
        type(fault) is Error and fault.api == METADATA and fault.topic == name
        for fault in cluster.faults
    )


def is_topic_name(name: str) -> bool:
    """May a topic be called so?"""
    return (
        0 < len(name) <= TOPIC_NAME_MAX
        and name not in (".", "..")
        and not (set(name) - TOPIC_NAME_SIGNS)
    )


def _no_topic(code: int, name: str | None, topic_id: UUID) -> Any:
    return MetadataResponse.MetadataResponseTopic(
        error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
    )


def _topic(cluster: MockCluster, node: Node, name: str, now: float, unlisted: list[int]) -> Any:
    fault = strike(cluster.faults, Error, node.node_id, now, api=METADATA, partitions=[(name, -1)])
    if fault is not None:
        return _no_topic(fault.code, name, NO_ID)
    known = node.view.topics.get(name)
    if known is None:
        return _no_topic(UNKNOWN_TOPIC_OR_PARTITION, name, NO_ID)
    topic, states = known
    partitions = [
        _partition(cluster, node, topic, index, states[index], now, unlisted)
        for index in sorted(states)
    ]
    return MetadataResponse.MetadataResponseTopic(
        error_code=0,
        name=name,
        topic_id=topic.topic_id,
        is_internal=name.startswith("__"),
        partitions=partitions,
    )


def _partition(
    cluster: MockCluster,
    node: Node,
    topic: Topic,
    index: int,
    state: PartitionState,
    now: float,
    unlisted: list[int],
) -> Any:
    leader, here = state.leader, [(topic.name, index)]
    if cluster.faults:
        if strike(cluster.faults, MetadataLeaderless, node.node_id, now, partitions=here):
            leader = -1
        elif strike(cluster.faults, LeaderNotListed, node.node_id, now, partitions=here):
            unlisted.append(leader)
    brokers = node.view.brokers
    return MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
        error_code=LEADER_NOT_AVAILABLE if leader == -1 else 0,
        partition_index=index,
        leader_id=leader,
        leader_epoch=state.epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=[n for n in state.replicas if n not in brokers],
    )


# --- InitProducerId -----------------------------------------------------------------------------


def serve_init_producer_id(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage:
    """Without a transactional id: a new producer id, whatever id and epoch were given (S9)."""
    code = fault_code(cluster, node, exchange, now)
    if code:
        return no_producer_id(code)
    request = exchange.request
    if exchange.version >= 3 and (request.producer_id >= 0) != (request.producer_epoch >= 0):
        return no_producer_id(INVALID_REQUEST)  # B12
    producer_id = new_producer_id(cluster, node, now)
    if producer_id is None:
        return no_producer_id(COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=0, producer_id=producer_id, producer_epoch=0
    )


def new_producer_id(cluster: MockCluster, node: Node, now: float) -> int | None:
    """The next id of the node's own block; None: it has none yet (S10)."""
    if node.producer_ids_ready_s is None:
        node.producer_ids_ready_s = now + draw(cluster.settings.producer_id_load_s, cluster.rng)
    if now < node.producer_ids_ready_s:
        return None
    if not node.producer_ids:
        node.producer_ids = cluster.next_producer_ids(PRODUCER_ID_BLOCK)
    producer_id, node.producer_ids = node.producer_ids[0], node.producer_ids[1:]
    return producer_id


def no_producer_id(code: int) -> ApiMessage:
    """An answer to InitProducerId that gives none."""
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=code, producer_id=-1, producer_epoch=-1
    )


HANDLERS[API_VERSIONS] = Handler(ApiVersionsRequest, (0, 4), serve_api_versions)
HANDLERS[METADATA] = Handler(MetadataRequest, (0, 13), serve_metadata)
