"""Each merge rule of `engine/metadata.py`, then any order of answers at all."""

from __future__ import annotations

from itertools import takewhile
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from outlast.engine.metadata import (
    Leader,
    LeaderChange,
    Metadata,
    Node,
    PartitionGone,
    TopicError,
    TopicFound,
    TopicRecreated,
)
from outlast.engine.settings import Settings
from tests.engine.usual import USUAL

A, B, C, D = (UUID(int=n) for n in (1, 2, 3, 4))
NODES = (1, 2, 3)
TopicEntry = MetadataResponse.MetadataResponseTopic
PartitionEntry = TopicEntry.MetadataResponsePartition
BrokerEntry = MetadataResponse.MetadataResponseBroker


def part(index, leader, epoch, *, error=0, isr=(1, 2)):
    return PartitionEntry(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=[1, 2],
        isr_nodes=list(isr),
        offline_replicas=[],
    )


def topic(name, *parts, topic_id=A, error=0):
    return TopicEntry(
        error_code=error, name=name, topic_id=topic_id, is_internal=False, partitions=list(parts)
    )


def answer(*topics, nodes=NODES, version=12, port=9000):
    """A response as the driver would hand it over: through the bytes of that version."""
    brokers = [BrokerEntry(node_id=n, host=f"h{n}", port=port + n, rack=None) for n in nodes]
    response = MetadataResponse(
        throttle_time_ms=0, brokers=brokers, cluster_id="c", controller_id=1, topics=list(topics)
    )
    return MetadataResponse.decode(bytes(response.encode(version=version)), version=version)


def cache(*topics, names=("t",), **more) -> Metadata:
    metadata = Metadata(Settings(**(USUAL | more)))
    for name in names:
        metadata.interest(name, 0.0)
    if topics:
        metadata.merge(answer(*topics), 1, 0.0)
    return metadata


def test_a_first_answer():
    metadata = cache(names=("t", "u"))
    assert not metadata.known("t")
    assert metadata.partitions("t") is None
    assert metadata.leader("t", 0) is None
    changes = metadata.merge(
        answer(
            topic("u", part(0, 3, 1), topic_id=B),
            topic("t", part(1, 2, 5, isr=(2, 3)), part(0, 1, 4)),
            topic("not-ours", part(0, 1, 1), topic_id=C),
        ),
        -1,
        1.0,
    )
    assert changes == [
        TopicFound("t"),
        LeaderChange("t", 0, None, Leader(1, 4)),
        LeaderChange("t", 1, None, Leader(2, 5)),
        TopicFound("u"),
        LeaderChange("u", 0, None, Leader(3, 1)),
    ]
    assert metadata.known("t")
    assert metadata.partitions("t") == (0, 1)
    assert metadata.leader("t", 1) == Leader(2, 5, usable=True)
    assert metadata.leader("t", 2) is None
    assert metadata.isr("t", 1) == (2, 3)
    assert metadata.isr("t", 9) == ()
    assert (metadata.topic_id("t"), metadata.topic_id("u")) == (A, B)
    assert metadata.nodes[2] == Node(2, "h2", 9002, None)
    assert metadata.alive == {1, 2, 3}
    assert metadata.cluster_id == "c"
    assert not metadata.known("not-ours")
    assert metadata.topic_id("not-ours") is None
    assert repr(metadata) == "<Metadata nodes=[1, 2, 3] partitions={'t': 2, 'u': 1}>"


def test_the_same_again_changes_nothing_and_an_equal_epoch_renews_the_isr():
    metadata = cache(topic("t", part(0, 1, 4)))
    before = metadata.partitions("t")
    assert metadata.merge(answer(topic("t", part(0, 1, 4, isr=(1,)))), 2, 1.0) == []
    assert metadata.isr("t", 0) == (1,)
    assert metadata.partitions("t") is before


def test_a_higher_epoch_is_taken():
    metadata = cache(topic("t", part(0, 1, 4)))
    changes = metadata.merge(answer(topic("t", part(0, 2, 5))), 2, 1.0)
    assert changes == [LeaderChange("t", 0, Leader(1, 4), Leader(2, 5))]


def test_more_partitions_are_found():
    metadata = cache(topic("t", part(0, 1, 4)))
    changes = metadata.merge(answer(topic("t", part(0, 1, 4), part(1, 2, 0))), 2, 1.0)
    assert changes == [TopicFound("t"), LeaderChange("t", 1, None, Leader(2, 0))]
    assert metadata.partitions("t") == (0, 1)


# --- rule 2 and 5: lower epochs and insistence ---


def lower_answers(metadata, senders, times, *, entry=None, nodes=NODES):
    """Feed answers that name leader 1 at epoch 3; true for each at which it was believed."""
    entry = entry or part(0, 1, 3)
    believed = []
    for sender, now in zip(senders, times, strict=True):
        changes = metadata.merge(answer(topic("t", entry), nodes=nodes), sender, now)
        believed.append(bool(changes))
    return believed


def test_a_stale_broker_is_ignored_for_ever():
    metadata = cache(topic("t", part(0, 2, 7)))
    believed = lower_answers(metadata, [3] * 100, [n * 0.1 for n in range(100)])
    assert believed == [False] * 100
    assert metadata.leader("t", 0) == Leader(2, 7)


def test_five_lower_answers_of_two_brokers_over_a_second_are_believed():
    metadata = cache(topic("t", part(0, 2, 7)))
    believed = lower_answers(metadata, [1, 3, 1, 3, 1], [0.0, 0.25, 0.5, 0.75, 1.0])
    assert believed == [False] * 4 + [True]
    assert metadata.leader("t", 0) == Leader(1, 3)
    metadata.merge(answer(topic("t", part(0, 2, 4))), 2, 2.0)
    assert metadata.leader("t", 0) == Leader(2, 4)


@pytest.mark.parametrize(
    ("senders", "times"),
    [
        ([1, 3, 1, 3], [0.0, 0.4, 0.8, 1.2]),  # four
        ([1, 3, 1, 3, 1], [0.0, 0.2, 0.4, 0.6, 0.99]),  # within a second
        ([-1, 3, -1, 3, -2], [0.0, 0.4, 0.8, 1.2, 1.6]),  # bootstrap addresses may all be 3
        ([-1, -2, -3, -1, -2], [0.0, 0.4, 0.8, 1.2, 1.6]),
    ],
)
def test_fewer_are_not(senders, times):
    metadata = cache(topic("t", part(0, 2, 7)))
    assert lower_answers(metadata, senders, times) == [False] * len(senders)


def test_the_only_broker_is_believed_alone():
    metadata = cache()
    metadata.merge(answer(topic("t", part(0, 1, 7)), nodes=(1,)), 1, 0.0)
    believed = lower_answers(metadata, [1] * 5, [1.0, 1.3, 1.6, 1.9, 2.2], nodes=(1,))
    assert believed == [False] * 4 + [True]


def test_insistence_starts_anew_after_any_other_answer():
    for other in (part(0, 2, 7), part(0, 1, 2), part(0, 3, 3)):
        metadata = cache(topic("t", part(0, 2, 7)))
        assert lower_answers(metadata, [1, 3, 1, 3], [0.0, 0.4, 0.8, 1.2]) == [False] * 4
        metadata.merge(answer(topic("t", other)), 2, 1.3)
        assert lower_answers(metadata, [1], [1.4]) == [False]
        assert metadata.leader("t", 0) == Leader(2, 7)


def test_insistence_that_nobody_leads_takes_the_epoch_back_too():
    metadata = cache(topic("t", part(0, 2, 7)))
    nobody = part(0, -1, 3, error=5)
    lower_answers(metadata, [1, 3, 1, 3, 1], [0.0, 0.25, 0.5, 0.75, 1.0], entry=nobody)
    assert metadata.leader("t", 0) == Leader(2, 3, usable=False)
    assert metadata.hint("t", 0, 3, 4, None, 1.1)


def test_below_v9_an_epoch_is_not_reliable():
    metadata = cache()
    for epoch, leader in ((9, 1), (3, 2), (0, 3)):  # as they come, epochs unseen
        metadata.merge(answer(topic("t", part(0, leader, epoch)), version=8), 1, 0.0)
        assert metadata.leader("t", 0) == Leader(leader, -1)
    assert metadata.topic_id("t") is None
    metadata.merge(answer(topic("t", part(0, 1, 5))), 2, 1.0)
    assert metadata.leader("t", 0) == Leader(1, 5)
    old = answer(topic("t", part(0, 2, 6)), version=8)
    assert metadata.merge(old, 3, 2.0) == []  # a broker not yet upgraded does not turn it back
    assert metadata.leader("t", 0) == Leader(1, 5)


# --- rule 3: no leader ---


def test_no_leader_keeps_the_last_one_unusable_and_its_epoch_counts():
    metadata = cache(topic("t", part(0, 1, 4)))
    changes = metadata.merge(answer(topic("t", part(0, -1, 5, error=5, isr=()))), 2, 1.0)
    assert changes == [LeaderChange("t", 0, Leader(1, 4), Leader(1, 4, usable=False))]
    assert metadata.isr("t", 0) == ()
    assert metadata.merge(answer(topic("t", part(0, 1, 4))), 3, 1.1) == []  # a lagging broker
    assert not metadata.leader("t", 0).usable
    changes = metadata.merge(answer(topic("t", part(0, 3, 5))), 2, 2.0)
    assert changes == [LeaderChange("t", 0, Leader(1, 4, usable=False), Leader(3, 5))]


def test_no_leader_from_a_lagging_broker_takes_nothing_away():
    metadata = cache(topic("t", part(0, 2, 7)))
    assert metadata.merge(answer(topic("t", part(0, -1, 6, error=5))), 3, 1.0) == []
    assert metadata.leader("t", 0) == Leader(2, 7)


def test_no_leader_from_the_start():
    metadata = cache(topic("t", part(0, -1, 2, error=5)))
    assert metadata.partitions("t") == (0,)
    assert metadata.leader("t", 0) is None


@pytest.mark.parametrize("error", [0, 9, 72])
def test_a_leader_absent_from_the_broker_list_counts_as_none(error):
    metadata = cache(topic("t", part(0, 1, 4)))
    metadata.merge(answer(topic("t", part(0, 3, 5, error=error)), nodes=(1, 2)), 2, 1.0)
    assert metadata.leader("t", 0) == Leader(1, 4, usable=False)
    assert set(metadata.nodes) == {1, 2}
    metadata.merge(answer(topic("t", part(0, 3, 5))), 2, 2.0)
    assert metadata.leader("t", 0) == Leader(3, 5)


# --- rule 4: what was known is kept ---


def test_an_empty_broker_list_wipes_nothing():
    metadata = cache(topic("t", part(0, 1, 4)))
    changes = metadata.merge(answer(topic("t", part(0, 2, 5)), nodes=()), 2, 1.0)
    assert changes == [LeaderChange("t", 0, Leader(1, 4), Leader(2, 5))]
    assert set(metadata.nodes) == {1, 2, 3}
    assert metadata.alive == frozenset()


def test_missing_entries_keep_what_was_known():
    metadata = cache(topic("t", part(0, 1, 4), part(1, 2, 4)))
    assert metadata.merge(answer(), 2, 1.0) == []
    assert metadata.merge(answer(topic("t")), 2, 1.0) == []
    metadata.merge(answer(topic("t", part(1, 3, 5))), 2, 1.0)
    assert metadata.partitions("t") == (0, 1)
    assert metadata.leader("t", 0) == Leader(1, 4)
    assert metadata.leader("t", 1) == Leader(3, 5)


@pytest.mark.parametrize("error", [3, 29, 56])
def test_an_entry_with_an_error_keeps_what_was_known(error):
    metadata = cache(topic("t", part(0, 1, 4)))
    assert metadata.merge(answer(topic("t", part(0, 2, 9, error=error))), 2, 1.0) == []
    assert metadata.merge(answer(topic("t", part(0, -1, -1, error=error))), 2, 1.0) == []
    assert metadata.leader("t", 0) == Leader(1, 4)


def test_leader_not_available_beside_a_leader_keeps_what_was_known():
    metadata = cache(topic("t", part(0, 1, 4)))
    assert metadata.merge(answer(topic("t", part(0, 2, 5, error=5))), 2, 1.0) == []
    assert metadata.leader("t", 0) == Leader(1, 4)


def test_replica_not_available_with_a_leader_is_used():
    metadata = cache(topic("t", part(0, 1, 4)))
    metadata.merge(answer(topic("t", part(0, 2, 5, error=9))), 2, 1.0)
    assert metadata.leader("t", 0) == Leader(2, 5)


def test_a_topics_error_is_told_when_it_changes_and_wipes_nothing():
    metadata = cache(topic("t", part(0, 1, 4)))
    gone = answer(topic("t", topic_id=None, error=3))
    assert metadata.merge(gone, 2, 1.0) == [TopicError("t", 3)]
    assert metadata.merge(gone, 3, 1.1) == []
    assert metadata.topic_error("t") == 3
    assert metadata.leader("t", 0) == Leader(1, 4)
    assert metadata.merge(answer(topic("t", part(0, 1, 4))), 2, 1.2) == [TopicError("t", 0)]
    assert metadata.topic_error("t") == 0
    assert metadata.topic_error("unheard-of") == 0


def test_an_answer_that_is_an_error_as_a_whole_is_no_answer():
    metadata = cache(topic("t", part(0, 1, 4)))
    refused = answer(nodes=(9,), version=13)
    refused.error_code = 129
    assert metadata.merge(refused, 1, 1.0) == []
    assert set(metadata.nodes) == {1, 2, 3}


# --- rule 1: topic ids; a topic created again begins at epoch 0 ---


def test_a_topic_created_again_replaces_everything():
    metadata = cache(topic("t", part(0, 1, 7), part(1, 2, 7)))
    changes = metadata.merge(answer(topic("t", part(0, 2, 0), topic_id=B)), 2, 1.0)
    assert changes == [
        TopicRecreated("t", A, B),
        TopicFound("t"),
        LeaderChange("t", 0, Leader(1, 7), Leader(2, 0)),
        PartitionGone("t", 1),
    ]
    assert metadata.partitions("t") == (0,)
    assert metadata.leader("t", 1) is None
    assert metadata.topic_id("t") == B


def test_a_topic_created_again_may_have_no_leader_yet():
    metadata = cache(topic("t", part(0, 1, 7)))
    changes = metadata.merge(answer(topic("t", part(0, -1, 0, error=5), topic_id=B)), 2, 1.0)
    assert changes == [TopicRecreated("t", A, B), LeaderChange("t", 0, Leader(1, 7), None)]


def test_the_last_two_replaced_ids_are_ignored():
    metadata = cache(topic("t", part(0, 1, 7)))
    metadata.merge(answer(topic("t", part(0, 2, 0), topic_id=B)), 2, 1.0)
    metadata.merge(answer(topic("t", part(0, 3, 0), topic_id=C)), 2, 2.0)
    for lagging in (A, B):
        old = answer(topic("t", part(0, 1, 9), topic_id=lagging))
        assert metadata.merge(old, 1, 3.0) == []
    assert (metadata.topic_id("t"), metadata.leader("t", 0)) == (C, Leader(3, 0))
    metadata.merge(answer(topic("t", part(0, 2, 1), topic_id=D)), 2, 4.0)
    assert metadata.topic_id("t") == D


def test_ten_seconds_of_insistence_bring_a_replaced_id_back():
    """If the first answer was the new topic's and the second a lagging broker's, the ids were
    learned in the wrong order: without a way back the true one would be ignored for ever.
    """
    metadata = cache(topic("t", part(0, 2, 0), topic_id=B))
    metadata.merge(answer(topic("t", part(0, 1, 7), topic_id=A)), 3, 0.01)
    assert metadata.topic_id("t") == A
    for n in range(100):
        metadata.merge(answer(topic("t", part(0, 2, 0), topic_id=B)), n % 3 + 1, 0.1 + n * 0.1)
        assert metadata.topic_id("t") == A
    changes = metadata.merge(answer(topic("t", part(0, 2, 0), topic_id=B)), 1, 10.11)
    assert changes[0] == TopicRecreated("t", A, B)
    assert metadata.leader("t", 0) == Leader(2, 0)


def test_insistence_on_a_replaced_id_starts_anew_after_any_other_answer():
    metadata = cache(topic("t", part(0, 1, 7)))
    metadata.merge(answer(topic("t", part(0, 2, 0), topic_id=B)), 2, 0.0)
    for n in range(200):
        lagging = answer(topic("t", part(0, 1, 7), topic_id=A))
        assert metadata.merge(lagging, n % 2 + 1, n * 0.1) == []
        if n % 50 == 0:
            metadata.merge(answer(topic("t", part(0, 2, 0), topic_id=B)), 3, n * 0.1)
    assert metadata.topic_id("t") == B


def test_answers_without_ids_speak_of_the_topic_we_know():
    metadata = cache(topic("t", part(0, 1, 4), topic_id=None))
    assert metadata.topic_id("t") is None
    assert metadata.merge(answer(topic("t", part(0, 1, 4), topic_id=A)), 2, 1.0) == []
    assert metadata.topic_id("t") == A
    metadata.merge(answer(topic("t", part(0, 2, 5)), version=9), 2, 1.0)
    assert (metadata.topic_id("t"), metadata.leader("t", 0)) == (A, Leader(2, 5))


# --- nodes ---


def test_nodes_come_from_the_last_answer():
    metadata = cache(topic("t", part(0, 1, 4)))
    metadata.merge(answer(topic("t", part(0, 1, 4)), nodes=(1, 2), port=9100), 2, 1.0)
    assert metadata.nodes == {1: Node(1, "h1", 9101), 2: Node(2, "h2", 9102)}
    assert metadata.alive == {1, 2}


def test_an_answer_too_old_to_know_the_leader_in_use_does_not_take_its_address_away():
    metadata = cache(topic("t", part(0, 1, 4)))
    metadata.hint("t", 0, 4, 5, Node(4, "h4", 9004), 1.0)
    metadata.merge(answer(topic("t", part(0, 1, 4))), 2, 1.1)
    assert metadata.leader("t", 0) == Leader(4, 5)
    assert set(metadata.nodes) == {1, 2, 3, 4}
    assert metadata.alive == {1, 2, 3}
    metadata.merge(answer(topic("t", part(0, 2, 6))), 2, 1.2)
    assert set(metadata.nodes) == {1, 2, 3}


# --- hints ---


def test_a_hint_at_a_newer_epoch_with_a_known_address_is_taken_once():
    metadata = cache(topic("t", part(0, 1, 4)))
    metadata.stale("t", 0, 1.0)
    change = metadata.hint("t", 0, 2, 5, None, 1.0)
    assert change == LeaderChange("t", 0, Leader(1, 4), Leader(2, 5))
    assert metadata.stale_since_s("t", 0) is None
    assert metadata.isr("t", 0) == ()  # nobody told
    assert metadata.hint("t", 0, 2, 5, None, 1.1) is None
    assert metadata.hint("t", 0, 1, 5, None, 1.1) is None  # a broker that disagrees
    assert metadata.leader("t", 0) == Leader(2, 5)


@pytest.mark.parametrize(
    ("leader", "epoch", "endpoint"),
    [
        (1, 4, Node(1, "h1", 9001)),  # survivors of a crash: the dead leader (S6)
        (2, 3, Node(2, "h2", 9002)),  # the new leader, that does not know it yet
        (-1, 5, None),  # no replica left
        (-1, 5, Node(-1, "", 0)),
        (4, 5, None),  # where is it?
    ],
)
def test_a_useless_hint_is_not_taken(leader, epoch, endpoint):
    metadata = cache(topic("t", part(0, 1, 4)))
    assert metadata.hint("t", 0, leader, epoch, endpoint, 1.0) is None
    assert metadata.leader("t", 0) == Leader(1, 4)
    assert set(metadata.nodes) == {1, 2, 3}


def test_a_hint_brings_an_address():
    metadata = cache(topic("t", part(0, 1, 4)))
    assert metadata.hint("t", 0, 4, 5, Node(4, "h4", 9004), 1.0)
    assert metadata.nodes[4] == Node(4, "h4", 9004)


def test_a_hint_where_nobody_led():
    metadata = cache(topic("t", part(0, 1, 4)))
    metadata.merge(answer(topic("t", part(0, -1, 6, error=5))), 2, 1.0)
    assert metadata.hint("t", 0, 3, 5, None, 1.1) is None  # older than that nobody led
    assert metadata.hint("t", 0, 3, 6, None, 1.2)
    assert metadata.leader("t", 0) == Leader(3, 6)


def test_a_hint_about_the_topic_before_this_one_is_not_taken():
    metadata = cache(topic("t", part(0, 1, 4)))
    metadata.merge(answer(topic("t", part(0, 2, 0), topic_id=B)), 2, 1.0)
    assert metadata.hint("t", 0, 3, 8, None, 1.1, topic_id=A) is None
    assert metadata.hint("t", 0, 3, 1, None, 1.1, topic_id=B)
    assert metadata.hint("t", 7, 3, 1, None, 1.1) is None
    assert metadata.hint("u", 0, 3, 1, None, 1.1) is None


# --- doubts ---


def test_a_doubt_stays_until_a_newer_epoch_is_heard_of():
    metadata = cache(topic("t", part(0, 1, 4)))
    assert metadata.stale_since_s("t", 0) is None
    assert metadata.stale("t", 0, 1.0)
    assert not metadata.stale("t", 0, 2.0)
    metadata.merge(answer(topic("t", part(0, 1, 4))), 2, 3.0)  # A20
    assert metadata.stale_since_s("t", 0) == 1.0
    metadata.merge(answer(topic("t", part(0, 2, 3))), 2, 3.0)
    assert metadata.stale_since_s("t", 0) == 1.0
    metadata.merge(answer(topic("t", part(0, 1, 5))), 2, 4.0)
    assert metadata.stale_since_s("t", 0) is None


def test_a_doubt_ends_when_the_leader_accepts_or_another_one_is_named_without_epochs():
    metadata = cache(topic("t", part(0, 1, 4)))
    metadata.stale("t", 0, 1.0)
    metadata.fresh("t", 0)
    assert metadata.stale_since_s("t", 0) is None
    assert metadata.stale("t", 0, 2.0)
    assert metadata.stale_since_s("t", 0) == 2.0
    old = cache()
    old.merge(answer(topic("t", part(0, 1, 0)), version=7), 1, 0.0)
    old.stale("t", 0, 1.0)
    old.merge(answer(topic("t", part(0, 1, 0)), version=7), 1, 1.5)
    assert old.stale_since_s("t", 0) == 1.0
    old.merge(answer(topic("t", part(0, 2, 0)), version=7), 1, 2.0)
    assert old.stale_since_s("t", 0) is None


def test_insistence_ends_a_doubt():
    metadata = cache(topic("t", part(0, 2, 7)))
    metadata.stale("t", 0, 0.0)
    lower_answers(metadata, [1, 3, 1, 3, 1], [0.0, 0.25, 0.5, 0.75, 1.0], entry=part(0, 2, 3))
    assert metadata.leader("t", 0) == Leader(2, 3)
    assert metadata.stale_since_s("t", 0) is None


def test_what_is_not_known_cannot_be_doubted():
    metadata = cache(topic("t", part(0, 1, 4)))
    assert not metadata.stale("t", 5, 1.0)
    assert not metadata.stale("u", 0, 1.0)
    metadata.fresh("u", 0)
    assert metadata.stale_since_s("u", 0) is None


# --- requests and interest ---


def test_a_request_names_the_topics_in_use():
    metadata = cache(names=("u", "t"))
    request = metadata.build_request()
    assert [entry.name for entry in request.topics] == ["t", "u"]
    assert request.allow_auto_topic_creation is True
    for version in range(1, 14):
        decoded = MetadataRequest.decode(bytes(request.encode(version=version)), version=version)
        assert [entry.name for entry in decoded.topics] == ["t", "u"]
    assert [entry.name for entry in metadata.build_request(["x"]).topics] == ["x"]
    quiet = Metadata(Settings(**(USUAL | {"allow_auto_create_topics": False})))
    assert quiet.build_request().topics == []
    assert quiet.build_request().allow_auto_topic_creation is False


def test_topics_are_forgotten_when_nothing_was_written_for_five_minutes():
    metadata = cache(topic("t", part(0, 1, 4)))
    assert metadata.interest("u", 10.0)
    assert not metadata.interest("u", 20.0)
    metadata.interest("held", 0.0)
    assert metadata.expire((), 300.0) == []
    assert metadata.expire({"held"}, 301.0) == [("t", 0)]
    assert not metadata.known("t")
    assert [entry.name for entry in metadata.build_request().topics] == ["held", "u"]


# --- any order at all ---

answers = st.tuples(
    st.just("answer"),
    st.sampled_from((A, B, None)),
    st.integers(-1, 4),  # leader; 4 is never listed
    st.integers(0, 4),  # epoch
    st.sampled_from((0, 0, 0, 0, 3, 5, 9)),
    st.sampled_from((1, 2, 3, -1)),  # sender
    st.sampled_from((12, 12, 12, 8)),
    st.sampled_from((0.0, 0.1, 0.5, 3.0)),  # time since the last event
)
hints = st.tuples(st.just("hint"), st.integers(-1, 4), st.integers(0, 5), st.booleans())
again = st.tuples(st.just("again"), st.integers(1, 3))  # the last answer, from somebody


@settings(max_examples=500, deadline=None)
@given(st.lists(answers | hints | again, max_size=40))
def test_the_epoch_in_use_goes_back_only_by_insistence_or_a_new_id(events):
    metadata = cache()
    now = 0.0
    # (claim, sender, when) of answers that speak of the partition
    heard: list[tuple[Any, ...]] = []
    last = None
    for event in events:
        before, id_before = metadata.leader("t", 0), metadata.topic_id("t")
        if event[0] == "hint":
            _, leader, epoch, addressed = event
            metadata.hint("t", 0, leader, epoch, Node(leader, "h", 1) if addressed else None, now)
        else:
            if event[0] == "answer":
                last = event
            elif last is not None:
                last = (*last[:5], event[1], last[6], 0.3)
            if last is None:
                continue
            _, topic_id, leader, epoch, error, sender, version, wait = last
            now += wait
            entry = topic("t", part(0, leader, epoch, error=error), topic_id=topic_id)
            metadata.merge(answer(entry, version=version), sender, now)
            # an answer under an ignored topic id says nothing of this topic's partition
            if error != 3 and (version < 10 or topic_id in (None, metadata.topic_id("t"))):
                claim = (leader, -1 if version < 9 else epoch)
                heard.append((claim, sender, now))
        leader = metadata.leader("t", 0)
        if leader is not None and leader.usable:
            assert leader.node_id in metadata.nodes
        if before is None or leader is None or metadata.topic_id("t") != id_before:
            continue
        if leader.epoch < before.epoch:
            claim = heard[-1][0]
            assert claim[1] == leader.epoch
            assert claim[0] == leader.node_id or not leader.usable
            agreeing = list(takewhile(lambda told, claim=claim: told[0] == claim, heard[::-1]))
            assert len(agreeing) >= 5
            assert len({sender for _, sender, _ in agreeing if sender > 0}) >= 2
            assert agreeing[0][2] - agreeing[-1][2] >= 1.0
