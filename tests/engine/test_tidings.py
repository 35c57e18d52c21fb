"""What metadata answers do besides naming leaders: addresses, topics that go, grow or come back."""

from __future__ import annotations

from typing import Any

from outlast.engine.batch import Batch
from outlast.engine.intake import Waiting
from outlast.engine.messages import GapEnd, Outcome, PartitionRestarted, Role, TopicGone
from tests.engine.talk import COORDINATOR, INIT, LEADER, METADATA, PRODUCE, Talk, outcome, told
from tests.engine.test_metadata import B, D, answer, part, topic

NOT_LEADER, UNKNOWN_TOPIC, LOADING = 6, 3, 14


def asked_for_metadata(talk: Talk, response: Any) -> None:
    """A refresh is due: what the broker says."""
    while METADATA not in talk.apis():
        talk.pass_time(0.2)
        assert talk.now < 1000.0, "nobody asks"
    talk.answer(talk.next_asked(METADATA), response)


def two_topics() -> Talk:
    """t and u with two partitions each; a record was written to each of t's."""
    talk = Talk(partitions=2, metadata_max_age_s=30.0)
    for partition in (0, 1):
        talk.batch(partition=partition)
        talk.produced(told(offset=0, index=partition))
    talk.keep.add(METADATA)
    waiting = talk.sender.append("u", 0, None, b"v", (), 0, talk.now)
    assert isinstance(waiting, Waiting)
    talk.pass_time()
    parts = [part(p, LEADER, 1, isr=(1,)) for p in (0, 1)]
    nodes = (LEADER, COORDINATOR)
    asked_for_metadata(
        talk, answer(topic("t", *parts), topic("u", *parts, topic_id=B), nodes=nodes)
    )
    taken = talk.sender.append("u", 0, None, b"v", (), 0, talk.now, waiting.ticket)
    assert isinstance(taken, Batch)
    talk.pass_time()
    talk.lose(Role.OPEN)
    talk.pass_time(0.5)
    return talk


def test_a_node_at_another_address_is_connected_there() -> None:
    """Its idle connection is given up; one that owes something may still give it."""
    talk = Talk(metadata_max_age_s=5.0)
    talk.batch()
    talk.produced(told(offset=0))
    talk.keep.add(METADATA)
    parts = [part(0, LEADER, 1, isr=(1,))]
    asked_for_metadata(talk, answer(topic("t", *parts), nodes=(LEADER, COORDINATOR), port=9100))
    assert [c.role for c in talk.closed if c.node_id == LEADER] == [Role.OPEN]
    talk.batch()
    [again] = [c for c in talk.opened if c.node_id == LEADER and c.role is Role.OPEN][1:]
    assert talk.next_asked().connection == again
    asked_for_metadata(talk, answer(topic("t", *parts), nodes=(LEADER, COORDINATOR), port=9200))
    assert again not in talk.closed


def test_a_topic_that_is_gone_is_forgotten_once_it_is_idle() -> None:
    talk = two_topics()
    gone = answer(topic("t", error=UNKNOWN_TOPIC), nodes=(LEADER, COORDINATOR))
    while not [fact for fact in talk.facts if isinstance(fact, TopicGone)]:
        asked_for_metadata(talk, gone)
    [fact] = [fact for fact in talk.facts if isinstance(fact, TopicGone)]
    assert (fact.topic, fact.partition) == ("t", None)
    assert talk.now > 300.0


def test_a_partition_that_is_gone_and_idle_is_told_of() -> None:
    talk = two_topics()
    parts = [part(0, LEADER, 0, isr=(1,))]
    asked_for_metadata(talk, answer(topic("t", *parts, topic_id=D), nodes=(1, 2)))
    [fact] = [fact for fact in talk.facts if isinstance(fact, TopicGone)]
    assert (fact.topic, fact.partition) == ("t", 1)


def test_a_topic_that_was_created_anew_with_fewer_partitions() -> None:
    """Records for one that is gone fail; those of another topic go on."""
    talk = two_topics()
    [lost] = talk.request(1)
    talk.refusing = {LEADER}
    talk.lose(Role.OPEN)
    [unsent] = talk.request(1)
    parts = [part(0, LEADER, 0, isr=(1,))]
    old = [part(p, LEADER, 1, isr=(1,)) for p in (0, 1)]
    new = answer(topic("t", *parts, topic_id=D), topic("u", *old, topic_id=B), nodes=(1, 2))
    asked_for_metadata(talk, new)
    [fact] = [fact for fact in talk.facts if isinstance(fact, TopicGone)]
    assert (fact.topic, fact.partition) == ("t", 1)
    assert talk.sender.available_partitions("t") == (0,)
    assert [outcome(batch) for batch in (lost, unsent)] == [Outcome.UNKNOWN, Outcome.NEVER_SENT]
    talk.refusing = set()
    talk.pass_time(2.0)
    assert PRODUCE in talk.apis()


def test_gaps_that_nobody_waits_for_end_with_their_topic_alone() -> None:
    talk = Talk(partitions=1, delivery_timeout_s=2.0, request_timeout_s=1.5)
    talk.batch()
    talk.produced(told(NOT_LEADER))
    talk.keep.add(METADATA)
    while not talk.settled:
        talk.pass_time(0.5)
        if PRODUCE in talk.apis():
            talk.produced(told(NOT_LEADER))
    talk.sender.append("u", 0, None, b"v", (), 0, talk.now)
    parts = [part(0, LEADER, 1, isr=(1,))]
    nodes = (LEADER, COORDINATOR)
    both = answer(topic("t", *parts), topic("u", *parts, topic_id=B), nodes=nodes)
    asked_for_metadata(talk, both)
    anew = answer(topic("t", *parts), topic("u", *parts, topic_id=D), nodes=nodes)
    asked_for_metadata(talk, anew)
    assert [gap.ended_by for gap in talk.sender.gaps(talk.now)] == [None]
    gone = answer(topic("t", *parts, topic_id=D), topic("u", *parts, topic_id=D), nodes=nodes)
    asked_for_metadata(talk, gone)
    assert [gap.ended_by for gap in talk.sender.gaps(talk.now)] == [GapEnd.TOPIC_GONE]


def test_created_anew_before_there_was_a_producer_id() -> None:
    """The partition has one of its own then, as each that starts to number anew."""
    talk = Talk(keep={INIT}, metadata_max_age_s=0.2)
    batch = talk.batch()
    talk.keep.add(METADATA)
    talk.pass_time(0.21)
    assert talk.apis() == [INIT, METADATA]
    talk.answers(INIT, LOADING)
    parts = [part(0, LEADER, 0, isr=(1,))]
    new = answer(topic("t", *parts, topic_id=D), nodes=(LEADER, COORDINATOR))
    talk.answer(talk.next_asked(METADATA), new)
    [restarted] = [fact for fact in talk.facts if isinstance(fact, PartitionRestarted)]
    assert restarted.reason == "recreated"
    for _ in range(2):
        talk.pass_time(0.03)
        assert PRODUCE not in talk.apis()
        talk.answers(INIT)
    talk.pass_time(0.03)
    talk.produced(told(offset=0))
    assert outcome(batch) is None
