"""What kafka-python's admin client does and is told, on the mock and on a real Kafka alike."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import kafka.errors
import pytest
from kafka.admin import ConfigResource, KafkaAdminClient, NewPartitions, NewTopic

from tests.real.kafka_cluster import until

TOPIC = "administered"
PREFERRED, UNCLEAN = 0, 1  # elections


def administer(bootstrap: str) -> None:
    """Every verb, and what is wrong with it."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        before = set(admin.list_topics())
        create(admin)
        assert set(admin.list_topics()) - before == {TOPIC}
        describe_cluster(admin)
        grow(admin)
        describe_configs(admin)
        elect(admin)
        delete(admin)


def create(admin: KafkaAdminClient) -> None:
    configs = {"min.insync.replicas": "2", "max.message.bytes": "50000"}
    admin.create_topics([NewTopic(TOPIC, 3, 3, topic_configs=configs)])
    admin.wait_for_topics([TOPIC])
    refused = [
        (NewTopic(TOPIC, 3, 3), kafka.errors.TopicAlreadyExistsError),
        (NewTopic("four-replicas", 3, 4), kafka.errors.InvalidReplicationFactorError),
        (NewTopic("no-partition", 0, 3), kafka.errors.InvalidPartitionsError),
        (NewTopic("no/name", 3, 3), kafka.errors.InvalidTopicError),
        (
            NewTopic("no-such-config", 3, 3, topic_configs={"no.such": "1"}),
            kafka.errors.InvalidConfigurationError,
        ),
        (
            NewTopic("no-such-broker", replica_assignments={0: [99]}),
            kafka.errors.InvalidReplicationAssignmentError,
        ),
        (
            NewTopic("uneven", replica_assignments={0: [1], 1: [1, 2]}),
            kafka.errors.InvalidReplicationAssignmentError,
        ),
    ]
    for topic, error in refused:
        with pytest.raises(error):
            admin.create_topics([topic])
    admin.create_topics([NewTopic("only-asked", 3, 3)], validate_only=True)
    assert not {"only-asked"} & set(admin.list_topics())


def describe_cluster(admin: KafkaAdminClient) -> None:
    told = admin.describe_cluster()
    assert [broker["broker_id"] for broker in told["brokers"]] == [1, 2, 3]
    assert told["controller_id"] in (1, 2, 3)
    assert told["cluster_id"]


def partitions_of(admin: KafkaAdminClient, topic: str = TOPIC) -> dict[int, dict[str, Any]]:
    (told,) = admin.describe_topics([topic])
    return {part["partition_index"]: part for part in told["partitions"]}


def grow(admin: KafkaAdminClient) -> None:
    assert sorted(partitions_of(admin)) == [0, 1, 2]
    admin.create_partitions({TOPIC: 4}, validate_only=True)
    assert sorted(partitions_of(admin)) == [0, 1, 2]
    admin.create_partitions({TOPIC: 4})
    admin.create_partitions({TOPIC: NewPartitions(5, [[3, 1, 2]])})
    until(lambda: sorted(partitions_of(admin)) == [0, 1, 2, 3, 4], "there are five partitions")
    last = partitions_of(admin)[4]
    assert (last["leader_id"], last["replica_nodes"], last["error_code"]) == (3, [3, 1, 2], 0)
    refused: list[tuple[dict[str, Any], type[Exception]]] = [
        ({TOPIC: 5}, kafka.errors.InvalidPartitionsError),
        ({TOPIC: 2}, kafka.errors.InvalidPartitionsError),
        ({"nowhere": 2}, kafka.errors.UnknownTopicOrPartitionError),
        ({TOPIC: NewPartitions(6, [[99]])}, kafka.errors.InvalidReplicationAssignmentError),
        ({TOPIC: NewPartitions(6, [[1, 2]])}, kafka.errors.InvalidReplicationAssignmentError),
        ({TOPIC: NewPartitions(6, [[1, 2, 2]])}, kafka.errors.InvalidReplicationAssignmentError),
        ({TOPIC: NewPartitions(7, [[1, 2, 3]])}, kafka.errors.InvalidReplicationAssignmentError),
    ]
    for wanted, error in refused:
        with pytest.raises(error):
            admin.create_partitions(wanted)


def describe_configs(admin: KafkaAdminClient) -> None:
    told = admin.describe_configs([ConfigResource("TOPIC", TOPIC)])["topic"][TOPIC]
    found = {name: (entry["value"], entry["config_source"]) for name, entry in told.items()}
    assert found == {
        "min.insync.replicas": ("2", "DYNAMIC_TOPIC_CONFIG"),
        "max.message.bytes": ("50000", "DYNAMIC_TOPIC_CONFIG"),
    }
    everything = admin.describe_configs(
        [ConfigResource("TOPIC", TOPIC)], config_filter="all", include_synonyms=True
    )["topic"][TOPIC]
    known = {
        "cleanup.policy": ("delete", "LIST", ["log.cleanup.policy"]),
        "message.timestamp.type": ("CreateTime", "STRING", ["log.message.timestamp.type"]),
        "max.message.bytes": ("50000", "INT", ["max.message.bytes", "message.max.bytes"]),
    }
    for name, (value, kind, synonyms) in known.items():
        entry = everything[name]
        assert (entry["value"], entry["config_type"]) == (value, kind)
        assert [synonym["name"] for synonym in entry["synonyms"]] == synonyms
    told = admin.describe_configs([ConfigResource("BROKER", "2")], config_filter="all")
    assert told["broker"]["2"]["node.id"]["value"] == "2"
    assert told["broker"]["2"]["message.max.bytes"]["value"] == "1048588"
    only = admin.describe_configs(
        [ConfigResource("TOPIC", TOPIC, {"cleanup.policy": None})], config_filter="all"
    )
    assert list(only["topic"][TOPIC]) == ["cleanup.policy"]


def elect(admin: KafkaAdminClient) -> None:
    """Where nobody need be elected; that is an error in the answer and none to this client."""
    for election in (PREFERRED, UNCLEAN):
        told = admin.elect_leaders(election, {TOPIC: [0]})
        ((part,),) = [result.partition_result for result in told.replica_election_results]
        assert part.error_code == kafka.errors.ElectionNotNeededError.errno
        with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
            admin.elect_leaders(election, {TOPIC: [9]})


def delete(admin: KafkaAdminClient) -> None:
    admin.delete_topics([TOPIC])
    until(lambda: TOPIC not in admin.list_topics(), "the topic is gone")
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        admin.delete_topics([TOPIC])
