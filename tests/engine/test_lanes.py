"""Which of a leader's two produce connections is used, answer by answer.

What lanes are for, and what they cost whom, is shown by the stories of tests/sim.
"""

from __future__ import annotations

from typing import Any

import pytest

from outlast.engine.messages import LaneChanged, LaneReason, Role, Send
from outlast.engine.txn_wire import Group, Offset
from tests.engine.talk import COMMIT_OFFSETS, COORDINATOR, LEADER, SECOND, Talk, outcome, told

TIMED_OUT = 7
STUCK, NEIGHBOUR, OTHER = 0, 1, 2  # the first two share a follower
ISR = {STUCK: (1, 2), NEIGHBOUR: (1, 2), OTHER: (1, 3)}


def talk(**more: Any) -> Talk:
    t = Talk(partitions=3, **more)
    t.isr = dict(ISR)
    return t


def partitions(send: Send) -> list[int]:
    return [p.index for topic in send.request.topic_data for p in topic.partition_data]


def stuck(**more: Any) -> Talk:
    """A follower is late: the leader has said so once, and was asked again over the slow lane."""
    t = talk(**more)
    t.request(STUCK, OTHER)
    t.produced(told(TIMED_OUT, index=STUCK, offset=0), told(offset=0, index=OTHER))
    t.pass_time(0.2)
    [send] = t.on(Role.SLOW)
    assert partitions(send) == [STUCK]
    return t


def changes(t: Talk, partition: int) -> list[tuple[Role, LaneReason]]:
    return [
        (fact.lane, fact.reason)
        for fact in t.facts
        if isinstance(fact, LaneChanged) and fact.partition == partition
    ]


def back(**more: Any) -> Talk:
    """It was stuck, and is in the open lane again."""
    t = stuck(**more)
    t.pass_time(1.0)
    t.produced(told(offset=0, index=STUCK))
    t.request(STUCK)
    t.produced(told(offset=1, index=STUCK), role=Role.SLOW)
    assert changes(t, STUCK) == [
        (Role.SLOW, LaneReason.STUCK),
        (Role.OPEN, LaneReason.USUAL),
    ]
    return t


class TestTheSlowLane:
    def test_others_go_on_in_the_open_one(self) -> None:
        t = stuck()
        t.request(OTHER)
        assert [partitions(send) for send in t.on(Role.OPEN)] == [[OTHER]]

    def test_who_shares_the_follower_is_a_suspect_and_goes_first_and_alone(self) -> None:
        t = stuck()
        t.request(STUCK, NEIGHBOUR)
        assert len(t.on(Role.SLOW)) == 1, "one request at a time"
        t.produced(told(TIMED_OUT, index=STUCK, offset=0))
        t.pass_time(0.2)
        [send] = t.on(Role.SLOW)
        assert partitions(send) == [NEIGHBOUR]
        t.produced(told(offset=0, index=NEIGHBOUR), role=Role.SLOW)
        assert changes(t, NEIGHBOUR) == [
            (Role.SLOW, LaneReason.SUSPECT),
            (Role.OPEN, LaneReason.USUAL),
        ]
        [send] = t.on(Role.SLOW)
        assert partitions(send) == [STUCK]

    def test_an_ack_that_was_late_leads_nobody_back(self) -> None:
        t = stuck()
        t.pass_time(1.5)
        t.produced(told(offset=0, index=STUCK))
        t.request(STUCK)
        assert [partitions(send) for send in t.on(Role.SLOW)] == [[STUCK]]

    def test_an_ack_that_another_held_back_leads_back_who_was_not_late_before(self) -> None:
        t = talk()
        t.request(STUCK, NEIGHBOUR)
        t.produced(*(told(TIMED_OUT, index=p, offset=0) for p in (STUCK, NEIGHBOUR)))
        t.pass_time(0.2)
        t.produced(told(offset=0, index=STUCK), told(TIMED_OUT, index=NEIGHBOUR, offset=0))
        assert changes(t, STUCK) == [(Role.SLOW, LaneReason.STUCK)], "it was late"
        t.request(STUCK)
        t.pass_time(0.2)
        t.produced(told(TIMED_OUT, index=NEIGHBOUR, offset=0))
        assert sorted(partitions(t.on(Role.SLOW)[0])) == [STUCK, NEIGHBOUR]
        t.produced(told(offset=1, index=STUCK), told(TIMED_OUT, index=NEIGHBOUR, offset=0))
        assert changes(t, STUCK)[1:] == [(Role.OPEN, LaneReason.USUAL)]

    def test_long_after_it_is_no_relapse(self) -> None:
        t = back()
        t.pass_time(400.0)
        t.request(STUCK)
        t.produced(told(TIMED_OUT, index=STUCK, offset=2))
        t.pass_time(1.5)
        t.produced(told(offset=2, index=STUCK), role=Role.SLOW)
        t.request(STUCK)
        for send in t.on(Role.SLOW):
            t.produced(told(offset=3, index=STUCK), send=send)
        assert changes(t, STUCK)[2:] == [
            (Role.SLOW, LaneReason.STUCK),
            (Role.OPEN, LaneReason.USUAL),
        ]

    def test_who_has_a_relapse_is_on_probation(self) -> None:
        t = back()
        t.request(STUCK)
        assert not t.on(Role.SLOW)
        t.produced(told(TIMED_OUT, index=STUCK, offset=2))
        t.pass_time(1.5)
        t.produced(told(offset=2, index=STUCK), role=Role.SLOW)
        t.request(STUCK)
        t.produced(told(offset=3, index=STUCK), role=Role.SLOW)
        assert changes(t, STUCK)[2:] == [
            (Role.SLOW, LaneReason.STUCK),
            (Role.SLOW, LaneReason.SUSPECT),
        ]
        t.request(STUCK)
        t.request(STUCK)
        assert len(t.on(Role.SLOW)) == 2, "as good as an open lane"
        for offset in (4, 5):
            t.produced(told(offset=offset, index=STUCK), role=Role.SLOW)
        t.pass_time(10.0)
        t.request(STUCK)
        t.produced(told(offset=6, index=STUCK), role=Role.SLOW)
        assert changes(t, STUCK)[4:] == [(Role.OPEN, LaneReason.USUAL)]

    def test_one_that_is_idle_is_forgotten(self) -> None:
        t = stuck()
        t.pass_time(1.5)
        t.produced(told(offset=0, index=STUCK))
        t.pass_time(60.0)
        assert changes(t, STUCK)[1:] == [(Role.OPEN, LaneReason.IDLE)]

    def test_at_another_leader_it_begins_in_the_open_lane(self) -> None:
        t = stuck()
        t.leaders = {STUCK: (COORDINATOR, 2)}
        t.pass_time(3.0)
        t.produced(told(6, index=STUCK), role=Role.SLOW)
        t.pass_time(1.0)
        assert changes(t, STUCK)[1:] == [(Role.OPEN, LaneReason.MOVED)]
        assert [s.connection.node_id for s in t.on(Role.OPEN)] == [COORDINATOR]

    def test_a_follower_that_is_down_is_enough(self) -> None:
        t = talk()
        t.leaders = {OTHER: (COORDINATOR, 1)}
        t.refusing = {COORDINATOR}
        t.request(OTHER)
        t.pass_time(0.5)
        t.request(STUCK)
        assert changes(t, STUCK) == [(Role.SLOW, LaneReason.FOLLOWER_DOWN)]
        t.produced(told(offset=0, index=STUCK), role=Role.SLOW)
        assert changes(t, STUCK)[1:] == [(Role.OPEN, LaneReason.USUAL)]
        t.request(STUCK)
        assert t.on(Role.OPEN), "that one is trusted without it"
        t.pass_time(40.0)
        t.request(NEIGHBOUR)
        assert changes(t, NEIGHBOUR) == [], "it is in no ISR any more"


def test_what_waits_behind_a_stuck_one_is_sent_again_at_once() -> None:
    t = talk()
    t.request(STUCK, OTHER)
    t.produced(told(offset=0, index=STUCK), told(offset=0, index=OTHER))
    t.request(STUCK)
    [other] = t.request(OTHER)
    [behind, _] = reversed(t.on(Role.OPEN))
    t.produced(told(TIMED_OUT, index=STUCK, offset=1))
    assert behind.connection in t.closed
    [again] = t.on(Role.OPEN)
    assert again.connection != behind.connection
    assert partitions(again) == [OTHER]
    t.produced(told(offset=1, index=OTHER), role=Role.OPEN)
    assert outcome(other) is None


class TestALineOfLateOnes:
    """Nobody is stuck, yet behind acks that are late by less the others would wait for each."""

    def line(self, behind: int, throttle_ms: int = 0, late_s: float = 0.7, **more: Any) -> Talk:
        t = talk(**more)
        for offset in range(3):  # what is usual
            t.request(STUCK, OTHER)
            t.produced(*(told(offset=offset, index=p) for p in (STUCK, OTHER)))
        for _ in range(4):
            t.request(STUCK)
        t.request(behind)
        assert len(t.on(Role.OPEN)) == 5
        t.pass_time(late_s)
        t.throttle_ms = throttle_ms
        t.produced(told(offset=3, index=STUCK))
        return t

    def test_the_others_leave_it_unless_the_next_one_is_quick(self) -> None:
        t = self.line(OTHER)
        [first, *_] = t.on(Role.OPEN)
        t.pass_time(0.2)
        assert first.connection in t.closed
        [send, *_] = t.on(Role.OPEN)
        assert partitions(send) == [OTHER]

    @pytest.mark.parametrize(("request_timeout_s", "leaves"), [(30.0, False), (2.0, True)])
    def test_a_shorter_one_only_where_the_request_time_out_is_near(
        self, request_timeout_s: float, leaves: bool
    ) -> None:
        """1.5 s of a line, and then who is stuck is to be told so, after an ack wait of 1 s."""
        t = self.line(OTHER, late_s=0.38, request_timeout_s=request_timeout_s)
        [first, *_] = t.on(Role.OPEN)
        t.pass_time(0.2)
        assert (first.connection in t.closed) is leaves

    def test_nobody_leaves_it_where_it_was_one_answer_alone(self) -> None:
        t = self.line(OTHER)
        first = t.on(Role.OPEN)[0]
        t.produced(told(offset=4, index=STUCK))
        t.pass_time(0.2)
        assert first.connection not in t.closed

    def test_nobody_leaves_it_while_the_broker_reads_nothing(self) -> None:
        """It says so with the late answer (KIP-219)."""
        t = self.line(OTHER, throttle_ms=2000)
        first = t.on(Role.OPEN)[0]
        t.pass_time(0.2)
        assert first.connection not in t.closed

    def test_who_was_late_long_ago_is_like_the_others(self) -> None:
        t = self.line(STUCK)
        while t.asked:
            t.produced(*(told(offset=9, index=p) for p in partitions(t.asked[0])))
        t.request(OTHER)
        t.pass_time(0.7)
        t.produced(told(offset=4, index=OTHER))
        t.pass_time(11.0)
        for offset in (5, 6):
            t.request(NEIGHBOUR)
            t.pass_time(0.7)
            t.produced(told(offset=offset, index=NEIGHBOUR))
        for _ in range(3):
            t.request(OTHER)
        assert len(t.asked) == 3

    def test_nobody_leaves_it_where_it_is_of_the_late_alone(self) -> None:
        t = self.line(STUCK)
        first = t.on(Role.OPEN)[0]
        t.pass_time(0.2)
        assert first.connection not in t.closed


class TestOneConnectionForBoth:
    @pytest.mark.parametrize(("how", "after_s"), [("refusing", 0.3), ("hanging", 2.5)])
    def test_without_the_slow_one_its_partitions_go_over_the_open_one(
        self, how: str, after_s: float
    ) -> None:
        """In one request at a time, between which the others have theirs."""
        t = talk()
        setattr(t, how, {Role.SLOW})
        t.request(STUCK, NEIGHBOUR, OTHER)
        late = [told(TIMED_OUT, index=p, offset=0) for p in (STUCK, NEIGHBOUR)]
        t.produced(*late, told(offset=0, index=OTHER))
        t.pass_time(after_s)
        t.produced(*late)
        t.pass_time(0.2)
        assert [sorted(partitions(s)) for s in t.on(Role.OPEN)] == [[STUCK, NEIGHBOUR]]
        t.request(STUCK, OTHER)
        assert [sorted(partitions(s)) for s in t.on(Role.OPEN)] == [[STUCK, NEIGHBOUR], [OTHER]]
        assert t.sender.gaps(t.now) == [], "the node lives"

    def test_without_the_open_one_the_others_take_turns_with_the_stuck(self) -> None:
        t = stuck()
        t.refusing = {Role.OPEN}
        t.lose(Role.OPEN)
        t.request(OTHER)
        t.pass_time(0.5)
        t.request(STUCK)
        seen = []
        for _ in range(3):
            [send] = t.on(Role.SLOW)
            seen.append(partitions(send))
            stuck_too = STUCK in seen[-1]
            t.produced(told(TIMED_OUT if stuck_too else 0, index=seen[-1][0], offset=0))
            t.request(OTHER)
            t.pass_time(0.2)
        assert seen == [[STUCK], [OTHER], [STUCK]]

    def test_who_is_still_under_way_elsewhere_lets_the_next_group_go(self) -> None:
        """Its leader is another by now, whose open connection cannot be had."""
        t = talk(metadata_max_age_s=0.5)
        t.leaders = {STUCK: (COORDINATOR, 1)}
        t.isr = {STUCK: (2, 3)}
        t.request(STUCK, OTHER)
        t.request(OTHER)
        [other, *_] = [s for s in t.on(Role.OPEN) if s.connection.node_id == LEADER]
        [to_stuck] = [s for s in t.on(Role.OPEN) if s.connection.node_id == COORDINATOR]
        t.produced(told(TIMED_OUT, index=STUCK, offset=0), send=to_stuck)
        t.pass_time(0.2)
        t.refusing = {Role.OPEN}
        t.lose(Role.OPEN, node_id=COORDINATOR)
        t.leaders[OTHER] = (COORDINATOR, 2)
        t.pass_time(0.7)
        t.produced(told(TIMED_OUT, index=STUCK, offset=0), role=Role.SLOW)
        t.pass_time(0.2)
        assert partitions(t.on(Role.SLOW)[0]) == [STUCK]
        assert other in t.asked


def test_in_the_slow_lane_first_batches_wait_for_offsets_that_join() -> None:
    """By KIP-890 a broker asks the transaction's coordinator for both, one at a time."""
    t = talk(transactional_id="shop", versions=SECOND)
    engine = t.sender.transactions
    assert engine is not None
    assert t.call(engine.init) is None
    engine.begin(t.now)
    t.request(STUCK)
    t.produced(told(TIMED_OUT, index=STUCK, offset=0))
    t.pass_time(1.5)
    t.coordinator = LEADER
    t.keep.add(COMMIT_OFFSETS)
    engine.send_offsets({("in", 0): Offset(1)}, Group("readers"), t.now)
    t.pass_time(0.2)
    t.produced(told(TIMED_OUT, index=STUCK, offset=0), role=Role.SLOW)
    t.pass_time(1.0)
    assert not t.on(Role.SLOW)
    t.answers(COMMIT_OFFSETS)
    t.pass_time(0.2)
    assert t.on(Role.SLOW)
