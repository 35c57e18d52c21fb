"""Leaders that are silent, gone or others by now, as one producer sees them: answer by answer."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.engine.messages import Cause, Complaint, GapEnd, LeaderChanged, Outcome, Role
from tests.engine.talk import COORDINATOR, LEADER, METADATA, PRODUCE, Talk, outcome, told
from tests.engine.test_metadata import answer, part, topic

NOT_LEADER, BUSY, REQUEST_TIMED_OUT = 6, 51, 7
UNKNOWN_NODE = 99


def owing(*, partitions: int = 1, **more: Any) -> Talk:
    """A leader that has answered before and owes an answer now."""
    talk = Talk(partitions=partitions, **more)
    talk.request(*range(partitions))
    talk.produced(*(told(offset=0, index=p) for p in range(partitions)))
    talk.request(*range(partitions))
    assert PRODUCE in talk.apis()
    return talk


class TestSilence:
    @pytest.mark.parametrize("how", ["hanging", "refusing"])
    def test_what_it_owes_goes_to_the_next_leader_once_there_is_one(self, how: str) -> None:
        talk = owing()
        setattr(talk, how, {LEADER})
        talk.pass_time(2.6)
        [gap] = talk.sender.gaps(talk.now)
        assert gap.cause is Cause.SILENT
        assert talk.next_asked().connection.node_id == LEADER, "nobody else leads"
        talk.leaders = {0: (-1, 1)}
        talk.pass_time(1.0)
        assert talk.next_asked().connection.node_id == LEADER
        talk.leaders = {0: (COORDINATOR, 2)}
        talk.pass_time(2.0)
        assert talk.next_asked().connection.node_id == COORDINATOR
        talk.produced(told(offset=1))
        assert [outcome(batch) for batch in talk.settled] == [None, None]
        [change] = [fact for fact in talk.facts if isinstance(fact, LeaderChanged)][-1:]
        assert (change.new_leader, change.by_hint) == (COORDINATOR, False)

    @pytest.mark.parametrize(("retransmits", "given_up"), [(0, False), (1, False), (2, True)])
    def test_the_kernel_is_asked_whether_the_connection_is_dead(
        self, retransmits: int, given_up: bool
    ) -> None:
        talk = owing()
        talk.pass_time(1.5)
        [connection] = set(talk.inspect)
        assert talk.next_asked().connection == connection
        talk.sender.inspected(connection, retransmits, talk.now)
        talk.pass_time(0.2)
        assert (connection in talk.closed) is given_up

    def test_one_lane_that_answers_clears_itself_alone(self) -> None:
        talk = owing(partitions=2)
        talk.produced(told(REQUEST_TIMED_OUT, offset=1), told(offset=1, index=1))
        talk.pass_time(0.2)
        talk.request(1)
        talk.hanging = {LEADER}
        talk.pass_time(2.0)
        talk.produced(told(offset=2, index=1), role=Role.OPEN)
        talk.pass_time(1.5)
        talk.leaders = {0: (COORDINATOR, 2)}
        talk.pass_time(2.0)
        assert [send.connection.node_id for send in talk.asked] == [COORDINATOR]


class TestHints:
    def refused(self, hint: tuple[int, int]) -> Talk:
        talk = owing()
        talk.keep.add(METADATA)
        talk.produced(told(NOT_LEADER, hint=hint), version=10)
        return talk

    def test_a_newer_leader_is_tried_at_once(self) -> None:
        talk = self.refused((COORDINATOR, 2))
        assert talk.next_asked().connection.node_id == COORDINATOR
        [change] = [fact for fact in talk.facts if isinstance(fact, LeaderChanged)][-1:]
        assert (change.new_leader, change.by_hint) == (COORDINATOR, True)

    @pytest.mark.parametrize("hint", [(LEADER, 1), (COORDINATOR, 1), (UNKNOWN_NODE, 2), (-1, -1)])
    def test_one_that_is_no_news_or_unknown_is_not(self, hint: tuple[int, int]) -> None:
        talk = self.refused(hint)
        talk.pass_time(1.0)
        assert METADATA in talk.apis()
        assert talk.next_asked().connection.node_id == LEADER

    def test_nor_is_anybody_asked_where_metadata_has_told_already(self) -> None:
        talk = owing(metadata_max_age_s=0.5)
        talk.request(0)
        talk.leaders = {0: (COORDINATOR, 2)}
        talk.pass_time(0.6)
        talk.produced(told(NOT_LEADER))
        talk.produced(told(NOT_LEADER))
        assert talk.next_asked().connection.node_id == COORDINATOR


def test_records_without_a_leader_have_a_gap_until_there_is_one() -> None:
    talk = owing(metadata_max_age_s=0.5)
    talk.produced(told(offset=1))
    talk.leaders = {0: (-1, 1)}
    talk.pass_time(1.0)
    assert talk.sender.available_partitions("t") == ()
    talk.request(0)
    talk.pass_time(0.5)
    [gap] = talk.sender.gaps(talk.now)
    assert (gap.cause, gap.trigger) == (Cause.LEADER_UNAVAILABLE, "LEADER_NOT_AVAILABLE")
    talk.leaders = {0: (LEADER, 2)}
    talk.pass_time(2.0)
    talk.produced(told(offset=2))
    [gap] = talk.sender.gaps(talk.now)
    assert gap.ended_by is GapEnd.ACK


def test_a_leader_that_is_lost_while_records_wait_opens_their_gap_at_once() -> None:
    talk = Talk(metadata_max_age_s=0.5)
    talk.request(0)
    talk.request(0)
    assert talk.apis() == [PRODUCE], "the second goes when the first is acknowledged"
    talk.leaders = {0: (-1, 1)}
    talk.pass_time(0.6)
    [gap] = talk.sender.gaps(talk.now)
    assert gap.cause is Cause.LEADER_UNAVAILABLE


def test_records_wait_for_a_partition_that_nobody_has_led_yet() -> None:
    talk = Talk(metadata_max_age_s=0.5)
    talk.leaders = {0: (-1, -1)}
    talk.request(0)
    talk.pass_time(1.0)
    [gap] = talk.sender.gaps(talk.now)
    assert (gap.cause, gap.old_leader) == (Cause.LEADER_UNAVAILABLE, -1)
    talk.leaders = {}
    talk.pass_time(1.0)
    assert talk.apis() == [PRODUCE]


def test_a_gap_remembers_few_leaders_however_often_they_change() -> None:
    talk = owing()
    talk.produced(told(NOT_LEADER))
    for epoch in range(2, 12):
        talk.leaders = {0: ((LEADER, COORDINATOR)[epoch % 2], epoch)}
        talk.pass_time(2.0)
        talk.produced(told(NOT_LEADER))
    talk.pass_time(2.0)
    talk.produced(told(offset=1))
    [gap] = talk.sender.gaps(talk.now)
    assert (gap.new_leader, gap.new_leader_epoch, gap.attempts) == (COORDINATOR, 11, 12)


def test_of_many_attempts_the_first_and_the_last_are_kept() -> None:
    talk = owing()
    for _ in range(20):
        talk.produced(told(NOT_LEADER))
        talk.pass_time(2.0)
    talk.produced(told(87))
    batch = talk.settled[-1]
    assert batch.result is not None
    assert batch.result.failure is not None
    assert len(batch.result.failure.attempts) == 14
    assert batch.result.failure.attempts_left_out == 7


def test_a_stall_that_ends_is_news_for_who_has_no_leader() -> None:
    """The cluster may have given up the follower that one waited for and the other's leader."""
    talk = Talk(partitions=2)
    talk.request(0, 1)
    talk.produced(told(REQUEST_TIMED_OUT, offset=0), told(offset=0, index=1))
    talk.leaders = {1: (-1, 1)}
    talk.refusing = {Role.OPEN}
    talk.lose(Role.OPEN)
    talk.request(1)
    talk.pass_time(20.0)
    assert [stall.partition for stall in talk.sender.stalls(talk.now)] == [0]
    talk.keep.add(METADATA)
    talk.produced(told(offset=0), role=Role.SLOW)
    talk.pass_time(0.1)
    assert METADATA in talk.apis()


def test_who_waits_behind_a_full_connection_has_no_stall() -> None:
    talk = Talk(partitions=2, max_in_flight=1)
    talk.request(0, 1)
    talk.produced(told(offset=0), told(offset=0, index=1))
    talk.request(0)
    talk.request(1)
    talk.pass_time(2.0)
    assert [stall.partition for stall in talk.sender.stalls(talk.now)] == [0]


def test_a_throttled_connection_is_waited_for() -> None:
    talk = owing()
    talk.throttle_ms = 1000
    talk.produced(told(offset=1))
    talk.request(0)
    assert PRODUCE not in talk.apis()
    due_s = talk.sender.next_deadline(talk.now)
    assert due_s is not None
    assert due_s - talk.now <= 1.0
    talk.pass_time(1.1)
    assert PRODUCE in talk.apis()


def test_connects_that_fail_are_a_gap_for_what_waits() -> None:
    talk = Talk()
    talk.refusing = {LEADER}
    talk.request(0)
    talk.pass_time(1.0)
    [gap] = talk.sender.gaps(talk.now)
    assert (gap.cause, gap.trigger) == (Cause.CONNECTION_LOST, "CONNECTION_REFUSED")
    talk.refusing = set()
    talk.pass_time(2.0)
    talk.produced(told(offset=0))
    [gap] = talk.sender.gaps(talk.now)
    assert gap.ended_by is GapEnd.ACK


def test_a_request_that_was_never_handed_over_was_no_attempt() -> None:
    talk = owing()
    talk.refusing = {LEADER}
    talk.lose(Role.OPEN, unsent=[talk.next_asked().token])
    talk.sender.close(talk.now, fail_rest=True)
    talk.obey()
    assert outcome(talk.settled[-1]) is Outcome.NEVER_SENT


def test_metadata_whose_answer_was_lost_are_asked_for_again() -> None:
    talk = Talk(keep={METADATA})
    talk.send()
    talk.lose(Role.CONTROL)
    talk.pass_time(1.0)
    assert METADATA in talk.apis()


def test_a_broker_that_is_only_finishing_something_is_asked_again_soon() -> None:
    talk = owing()
    talk.produced(told(BUSY))
    talk.pass_time(0.03)
    talk.produced(told(offset=1))
    assert talk.sender.gaps(talk.now) == []


@pytest.mark.parametrize("retries", [0, 2])
def test_retries_are_counted_but_for_those_that_wait_for_a_leader(retries: int) -> None:
    talk = owing(retries=retries)
    for _ in range(retries):
        talk.produced(told(NOT_LEADER))
        talk.pass_time(2.0)
        talk.produced(told(19))
        talk.pass_time(2.0)
    talk.produced(told(19))
    batch = talk.settled[-1]
    assert batch.result is not None
    assert batch.result.failure is not None
    assert batch.result.failure.kind == "retries"


def test_a_peer_that_closes_on_large_requests_gets_smaller_ones() -> None:
    """Its socket.request.max.bytes may be less than our requests."""
    talk = Talk(partitions=4, batch_bytes=1000)
    large = b"v" * 900
    for partition in range(4):
        talk.send(partition, large)
    talk.sender.flush(talk.now)
    talk.pass_time()
    for _ in range(2):
        [send] = talk.on(Role.OPEN)
        sizes = [len(p.records) for topic in send.request.topic_data for p in topic.partition_data]
        assert len(sizes) == 4
        talk.lose(Role.OPEN)
        talk.pass_time(2.0)
    [complaint] = [fact.text for fact in talk.facts if isinstance(fact, Complaint)]
    assert "closes connections instead of answering" in complaint
    sizes = [len(send.request.topic_data[0].partition_data) for send in talk.on(Role.OPEN)]
    assert sizes == [2, 2]


def test_a_node_that_left_the_cluster_is_forgotten() -> None:
    talk = owing(metadata_max_age_s=0.5)
    talk.produced(told(offset=1))
    talk.lose(Role.OPEN)
    talk.keep.add(METADATA)
    talk.pass_time(1.0)
    for _ in range(3):
        parts = [part(0, COORDINATOR, 2, isr=(COORDINATOR,))]
        talk.answer(talk.next_asked(METADATA), answer(topic("t", *parts), nodes=(COORDINATOR,)))
        talk.pass_time(1.0)
    talk.request(0)
    assert talk.next_asked().connection.node_id == COORDINATOR


def test_what_is_begun_when_a_full_batch_leaves_lingers() -> None:
    talk = Talk(linger_s=0.5)
    talk.send()
    talk.sender.flush(talk.now)
    talk.pass_time()
    talk.produced(told(offset=0))
    full = talk.send(value=b"v" * 17_000)
    young = talk.send()
    talk.pass_time()
    assert not talk.sender.attention
    assert [send.request.API_KEY for send in talk.asked] == [PRODUCE]
    talk.pass_time(0.6)
    for offset in (1, 2):
        talk.produced(told(offset=offset))
    assert talk.settled[1:] == [full, young]


class TestQuestions:
    """Whom metadata is asked of."""

    def test_another_where_the_first_is_throttled(self) -> None:
        talk = Talk(metadata_max_age_s=0.5)
        talk.request(0)
        talk.keep.add(METADATA)
        talk.pass_time(0.5)
        send = talk.next_asked(METADATA)
        response = talk.usual(send.request)
        response.throttle_time_ms = 3000
        talk.answer(send, response)
        talk.pass_time(1.0)
        assert talk.next_asked(METADATA).connection != send.connection

    def test_another_where_the_first_is_silent_elsewhere(self) -> None:
        talk = owing(metadata_max_age_s=0.2)
        talk.lose(Role.CONTROL)
        talk.pass_time(0.5)
        assert [c.node_id for c in talk.opened if c.role is Role.CONTROL][-1] == LEADER
        talk.hanging = {Role.PROBE}
        talk.pass_time(2.0)
        assert COORDINATOR in {c.node_id for c in talk.opened if c.role is Role.CONTROL}

    def test_the_first_addresses_again_where_all_nodes_hang(self) -> None:
        talk = owing()
        talk.produced(told(offset=1))
        talk.hanging = {LEADER, COORDINATOR}
        for role in (Role.OPEN, Role.CONTROL):
            talk.lose(role)
        talk.request(0)
        talk.pass_time(3.0)
        first, *others = [c.node_id for c in talk.opened if c.role is Role.CONTROL]
        assert first == -1
        assert set(others) == {-1}
        complaint = next(fact.text for fact in talk.facts if isinstance(fact, Complaint))
        assert "bootstrap_servers is resolved again" in complaint


class TestCompression:
    def test_what_is_compressed_is_waited_for(self) -> None:
        talk = Talk(compression=1)
        talk.compresses_slowly = True
        [batch] = talk.request(0)
        assert PRODUCE not in talk.apis()
        talk.compress()
        talk.pass_time()
        talk.produced(told(offset=0))
        assert talk.settled == [batch]

    def test_a_batch_that_is_full_is_compressed_at_once(self) -> None:
        talk = Talk(compression=1, linger_s=5.0, partitions=2)
        talk.compresses_slowly = True
        talk.send()
        talk.obey()
        assert not talk.compressing
        talk.send(1, b"v" * 17_000)
        talk.obey()
        assert [batch.partition for batch in talk.compressing] == [1]

    def test_what_is_compressed_at_once_is_sent_at_once(self) -> None:
        talk = Talk(compression=1, partitions=3)
        talk.compresses_slowly = True
        talk.request(0, 1, 2)
        talk.compress()
        talk.obey()
        [send] = talk.on(Role.OPEN)
        assert [p.index for p in send.request.topic_data[0].partition_data] == [0, 1, 2]

    def test_a_request_waits_for_one_that_would_miss_it_where_answers_take_long(self) -> None:
        talk = Talk(compression=1, partitions=2)
        talk.request(0, 1)
        for index in (0, 1):
            talk.pass_time(0.3)
            talk.produced(told(offset=0, index=index))
        talk.compresses_slowly = True
        first, _ = talk.request(0, 1)
        talk.sender.compressed(first, first.compressed(1), talk.now)
        talk.pass_time(0.01)
        assert PRODUCE not in talk.apis()
        talk.pass_time(0.05)
        [send] = talk.on(Role.OPEN)
        assert [p.index for p in send.request.topic_data[0].partition_data] == [0]

    def test_in_the_slow_lane_too(self) -> None:
        talk = Talk(compression=1)
        talk.isr = {0: (1, 2)}
        talk.request(0)
        talk.produced(told(REQUEST_TIMED_OUT, offset=0))
        talk.pass_time(1.5)
        talk.produced(told(offset=0), role=Role.SLOW)
        talk.compresses_slowly = True
        talk.request(0)
        assert not talk.asked
        talk.compress()
        talk.pass_time()
        assert len(talk.on(Role.SLOW)) == 1
