"""The mock administered by kafka-python's admin client, while it is whole and while it is not."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import kafka.errors
import pytest
from kafka.admin import ConfigResource, KafkaAdminClient, NewTopic

from outlast.testing.cluster import FAST, MockCluster
from outlast.testing.server import ClusterServer
from tests.mock.foreign_admin import PREFERRED, TOPIC, UNCLEAN, administer, partitions_of
from tests.real.kafka_cluster import until

# kafka-python leaves the sockets of refused connects to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

NOT_NEEDED = kafka.errors.ElectionNotNeededError.errno
AWAY = (
    kafka.errors.KafkaConnectionError,
    kafka.errors.KafkaTimeoutError,
    kafka.errors.RequestTimedOutError,
    kafka.errors.NodeNotReadyError,
    kafka.errors.UnknownBrokerIdError,
)


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(3, rng=random.Random(7))) as it:
        yield it
    gc.collect()


class Operator:
    """Asks again as long as there is hope, then with a new client: kafka-python's admin client
    holds on to the controller that it knew first, be it dead.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client: KafkaAdminClient | None = None

    def __call__(self, ask: Callable[[KafkaAdminClient], Any]) -> Any:
        answers: list[Any] = []

        def asked() -> bool:
            try:
                if self._client is None:
                    self._client = self._connect()
                answers.append(ask(self._client))
            except AWAY:
                self.close()
            return bool(answers)

        until(asked, "the cluster answers", timeout_s=20.0)
        return answers[0]

    def _connect(self) -> KafkaAdminClient:
        return KafkaAdminClient(
            bootstrap_servers=self._bootstrap, request_timeout_ms=500, bootstrap_timeout_ms=2_000
        )

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- what is asked for most ---

    def partitions(self, topic: str = TOPIC) -> dict[int, dict[str, Any]]:
        return self(lambda admin: partitions_of(admin, topic))

    def leaders(self) -> dict[int, int]:
        return {index: part["leader_id"] for index, part in self.partitions().items()}

    def brokers(self) -> list[int]:
        return [broker["broker_id"] for broker in self(describe)["brokers"]]

    def topics(self) -> list[str]:
        return self(lambda admin: admin.list_topics())


def describe(admin: KafkaAdminClient) -> Any:
    return admin.describe_cluster()


@pytest.fixture
def operator(server: ClusterServer) -> Iterator[Operator]:
    server.create_topic(TOPIC, 3, min_isr=2)
    operator = Operator(server.bootstrap)
    until(lambda: operator.leaders() == {0: 1, 1: 2, 2: 3}, "the topic is known")
    yield operator
    operator.close()


def test_every_verb_does_and_tells_what_kafka_does(server: ClusterServer) -> None:
    administer(server.bootstrap)


def use_every_verb(ask: Operator, name: str) -> None:
    """Make, grow, describe and delete a topic. What was done although its answer was lost is
    refused when it is asked for again.
    """
    with suppress(kafka.errors.TopicAlreadyExistsError):
        ask(lambda admin: admin.create_topics([NewTopic(name, 2, 2)]))
    until(lambda: name in ask.topics(), "it is listed")
    with suppress(kafka.errors.InvalidPartitionsError):
        ask(lambda admin: admin.create_partitions({name: 3}))
    until(lambda: len(ask.partitions(name)) == 3, "it has grown")
    resource = ConfigResource("TOPIC", name)
    told = ask(lambda admin: admin.describe_configs([resource], config_filter="all"))
    assert told["topic"][name]["min.insync.replicas"]["value"] == "1"
    with suppress(kafka.errors.UnknownTopicOrPartitionError):
        ask(lambda admin: admin.delete_topics([name]))
    until(lambda: name not in ask.topics(), "it is gone")


def test_a_move_is_seen_and_taken_back(server: ClusterServer, operator: Operator) -> None:
    server.move_leader(TOPIC, 0, to=2)
    until(lambda: operator.leaders() == {0: 2, 1: 2, 2: 3}, "the move is seen")
    use_every_verb(operator, "made-afterwards")
    told = operator(lambda admin: admin.elect_leaders(PREFERRED, {TOPIC: [0, 1]}))
    (result,) = told.replica_election_results
    assert [part.error_code for part in result.partition_result] == [0, NOT_NEEDED]
    until(lambda: operator.leaders() == {0: 1, 1: 2, 2: 3}, "the preferred one leads")
    assert server.leader(TOPIC, 0) == (1, 2)


@pytest.mark.parametrize("victim", [1, 3])
def test_a_node_dies_and_returns(server: ClusterServer, operator: Operator, victim: int) -> None:
    server.kill(victim)
    use_every_verb(operator, "made-meanwhile")
    until(lambda: victim not in operator.brokers(), "it is not listed")
    until(lambda: victim not in operator.leaders().values(), "others lead")
    its_own = {TOPIC: [victim - 1]}
    with pytest.raises(kafka.errors.PreferredLeaderNotAvailableError):
        operator(lambda admin: admin.elect_leaders(PREFERRED, its_own))
    server.start(victim)
    until(lambda: operator.brokers() == [1, 2, 3], "it is listed again")

    def in_sync() -> bool:
        parts = operator.partitions().values()
        return all(sorted(part["isr_nodes"]) == [1, 2, 3] for part in parts)

    until(in_sync, "it is in sync again")
    operator(lambda admin: admin.elect_leaders(PREFERRED))  # of all partitions
    until(lambda: operator.leaders() == {0: 1, 1: 2, 2: 3}, "each leads its own")


@pytest.mark.parametrize("silent", [1, 3])
def test_a_node_is_silent_and_wakes(server: ClusterServer, operator: Operator, silent: int) -> None:
    each = [ConfigResource("BROKER", str(node)) for node in (1, 2, 3)]
    operator(lambda admin: admin.describe_configs(each))  # a connection to every node
    server.pause(silent)
    use_every_verb(operator, "made-meanwhile")
    until(lambda: silent not in operator.leaders().values(), "others lead")
    server.resume(silent)
    until(lambda: operator.brokers() == [1, 2, 3], "it is listed again")
    use_every_verb(operator, "made-afterwards")


def test_the_controllers_are_told_apart_from_the_nodes_or_on_them(operator: Operator) -> None:
    def quorum(ask: Operator) -> tuple[set[int], int, set[int]]:
        told = ask(lambda admin: admin.describe_metadata_quorum())
        ((part,),) = [topic["partitions"] for topic in told["topics"]]
        voters = {voter["replica_id"] for voter in part["current_voters"]}
        return voters, part["leader_id"], {each["replica_id"] for each in part["observers"]}

    assert quorum(operator) == ({4, 5, 6}, 4, {1, 2, 3})
    both = MockCluster(3, settings=replace(FAST, combined_quorum=True), rng=random.Random(1))
    with ClusterServer(both) as server, closing(Operator(server.bootstrap)) as ask:
        assert quorum(ask) == ({1, 2, 3}, 1, set())
        server.kill(1)
        until(lambda: quorum(ask) == ({1, 2, 3}, 2, set()), "another controller is active")


def test_an_unclean_election_gives_a_leader(server: ClusterServer, operator: Operator) -> None:
    """Of two replicas the one that was in sync alone is dead."""
    server.create_topic("two", 1, assignment=[[1, 2]])
    until(lambda: "two" in operator.topics(), "it is known")
    server.kill(2)
    until(lambda: operator.partitions("two")[0]["isr_nodes"] == [1], "1 is in sync alone")
    server.kill(1)
    until(lambda: operator.partitions("two")[0]["leader_id"] == -1, "nobody leads")
    two = {"two": [0]}
    with pytest.raises(kafka.errors.EligibleLeadersNotAvailableError):
        operator(lambda admin: admin.elect_leaders(UNCLEAN, two))
    server.start(2)
    until(lambda: 2 in operator.brokers(), "2 is back")
    operator(lambda admin: admin.elect_leaders(UNCLEAN, two))
    until(lambda: operator.partitions("two")[0]["leader_id"] == 2, "2 leads")
