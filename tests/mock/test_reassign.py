"""Other replicas, or another order: what the mock answers, and how a leader is moved with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidReplicationAssignmentError,
    NoReassignmentInProgressError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from outlast.testing import Error, MockCluster

CREATE_TOPICS, ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS = 19, 43, 45


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with MockCluster(topics={"t": 2}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: MockCluster) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    yield admin
    admin.close()


def test_another_order_and_a_preferred_election_move_the_leader(
    cluster: MockCluster, admin: KafkaAdminClient
) -> None:
    before = cluster.partitions("t")[0]
    order = (*before.replicas[1:], before.replicas[0])
    assert admin.alter_partition_reassignments({TopicPartition("t", 0): order}) == {
        TopicPartition("t", 0): None
    }
    assert cluster.partitions("t")[0].replicas == order
    assert cluster.leader("t", 0) == before.leader
    admin.elect_leaders(0, {"t": [0]})
    assert cluster.leader("t", 0) == order[0]
    assert cluster.partitions("t")[0].epoch > before.epoch


def test_what_cannot_be_is_refused(admin: KafkaAdminClient) -> None:
    wanted = {
        TopicPartition("t", 9): [1],
        TopicPartition("none", 0): [1],
        TopicPartition("t", 0): [1, 9],
        TopicPartition("t", 1): None,
    }
    told = admin.alter_partition_reassignments(wanted)
    assert told == {
        TopicPartition("t", 9): UnknownTopicOrPartitionError,
        TopicPartition("none", 0): UnknownTopicOrPartitionError,
        TopicPartition("t", 0): InvalidReplicationAssignmentError,
        TopicPartition("t", 1): NoReassignmentInProgressError,
    }


def test_a_fault_refuses_an_administrator(cluster: MockCluster, admin: KafkaAdminClient) -> None:
    cluster.faults.append(Error(31, api=ALTER_PARTITION_REASSIGNMENTS, times=1))
    with pytest.raises(ClusterAuthorizationFailedError):
        admin.alter_partition_reassignments({TopicPartition("t", 0): [1]})
    cluster.faults.append(Error(31, api=ELECT_LEADERS, times=1))
    with pytest.raises(ClusterAuthorizationFailedError):
        admin.elect_leaders(0, {"t": [0]})
    cluster.faults.append(Error(29, api=CREATE_TOPICS, times=1))
    with pytest.raises(TopicAuthorizationFailedError):
        admin.create_topics(["new"])
    assert {p.topic for p in cluster.partitions()} == {"t"}
