"""What the mock answers to administrators."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

from outlast.testing import apis_admin  # noqa: F401  (registers its handlers)
from tests.mock.bench import RESPONSES, Bench

RESPONSES.update({19: CreateTopicsResponse, 20: DeleteTopicsResponse, 60: DescribeClusterResponse})

NO_ID = UUID(int=0)


def create(bench: Bench, name: str, version: int = 7, **fields: Any) -> Any:
    topic = CreateTopicsRequest.CreatableTopic
    configs = [
        topic.CreatableTopicConfig(name=key, value=value)
        for key, value in fields.pop("configs", {}).items()
    ]
    assignments = [
        topic.CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
        for index, nodes in fields.pop("assignments", {}).items()
    ]
    only = fields.pop("validate_only", False)
    wanted = topic(
        **{
            "name": name,
            "num_partitions": 2,
            "replication_factor": 3,
            "assignments": assignments,
            "configs": configs,
            **fields,
        }
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=1000, validate_only=only)
    (result,) = bench.send(bench.connect(2), request, version).response.topics
    assert result.name == name
    return result


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_made_as_asked(bench: Bench, version: int) -> None:
    result = create(bench, "new", version, configs={"min.insync.replicas": "2"})
    topic = bench.cluster.topics["new"]
    assert result.error_code == 0
    assert (result.topic_id == topic.topic_id) == (version >= 7)
    assert (len(topic.partitions), topic.min_isr) == (2, 2)
    bench.run(1.0)
    assert bench.produced(bench.connect(1), topic="new").result == (0, 0)


def test_configs_and_assignments_are_taken_over(bench: Bench) -> None:
    configs = {
        "max.message.bytes": "100",
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
    }
    fields = {"num_partitions": -1, "replication_factor": -1}
    create(bench, "new", assignments={1: (2, 1), 0: (3, 2)}, configs=configs, **fields)
    topic = bench.cluster.topics["new"]
    assert [state.replicas for state in topic.partitions.values()] == [(3, 2), (2, 1)]
    rules = topic.rules
    assert (rules.max_message_bytes, rules.compacted, rules.log_append_time) == (100, True, True)


@pytest.mark.parametrize(
    ("code", "name", "fields"),
    [
        (36, "t", {}),
        (17, "no topic", {}),
        (37, "new", {"num_partitions": 0}),
        (38, "new", {"replication_factor": 4}),
        (38, "new", {"replication_factor": 0}),
        (39, "new", {"assignments": {0: (1,), 1: (1, 2)}}),
        (39, "new", {"assignments": {0: (1, 1)}}),
        (39, "new", {"assignments": {0: (9,)}}),
        (40, "new", {"configs": {"no.such": "1"}}),
        (40, "new", {"configs": {"min.insync.replicas": "many"}}),
    ],
)
def test_a_topic_that_cannot_be_made_is_refused(
    bench: Bench, code: int, name: str, fields: dict[str, Any]
) -> None:
    result = create(bench, name, **fields)
    assert result.error_code == code
    assert result.error_message
    assert list(bench.cluster.topics) == ["t"]


def test_to_validate_makes_nothing(bench: Bench) -> None:
    assert create(bench, "new", validate_only=True).error_code == 0
    assert list(bench.cluster.topics) == ["t"]


def delete(bench: Bench, version: int, name: str | None, topic_id: UUID = NO_ID) -> int:
    state = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=topic_id)
    names = [name] if version < 6 else []
    request = DeleteTopicsRequest(topics=[state], topic_names=names, timeout_ms=1000)
    (result,) = bench.send(bench.connect(3), request, version).response.responses
    return int(result.error_code)


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_is_deleted_by_name(bench: Bench, version: int) -> None:
    assert delete(bench, version, "none") == 3
    assert delete(bench, version, "t") == 0
    assert not bench.cluster.topics


def test_a_topic_is_deleted_by_its_id_and_no_other(bench: Bench) -> None:
    old = bench.topic_id("t")
    bench.cluster.delete_topic("t", bench.now)
    bench.cluster.create_topic("t", 1, now=bench.now)
    assert delete(bench, 6, None, UUID(int=4)) == 100
    assert delete(bench, 6, None, old) == 100
    assert delete(bench, 6, None, bench.topic_id("t")) == 0
    assert not bench.cluster.topics


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described_as_this_node_knows_it(bench: Bench, version: int) -> None:
    bench.cluster.kill(1, bench.now)
    bench.run(1.0)
    answer = bench.send(bench.connect(3), DescribeClusterRequest(), version).response
    found = {broker.broker_id: (broker.host, broker.port) for broker in answer.brokers}
    assert found == {node: bench.cluster.addresses[node] for node in (2, 3)}
    assert answer.cluster_id == bench.cluster.cluster_id
