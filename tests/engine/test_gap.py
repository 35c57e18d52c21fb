"""Gaps: when they open and end, whose time they were, what became of the records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from outlast.engine.gap import IDLE_LIMIT_S, GapRecorder
from outlast.engine.messages import (
    Cause,
    Fact,
    Gap,
    GapAdvanced,
    GapEnd,
    GapEnded,
    GapOpened,
    GapOutcome,
    GapSettled,
    Phase,
)

TP = ("orders", 3)
OLD = {"leader": 1, "leader_epoch": 7}
NEW = {"leader": 2, "leader_epoch": 8}


class Story:
    """A recorder told about one partition, with the words that the hub uses."""

    def __init__(self, unix_offset_s: float = 0.0) -> None:
        self.gaps = GapRecorder(unix_offset_s)
        self.facts: list[Fact] = []

    def refused(
        self,
        sent_s: float,
        now: float,
        by: dict[str, int] = OLD,
        cause: Cause = Cause.NOT_LEADER,
        trigger: str = "NOT_LEADER_OR_FOLLOWER",
        last_ack_s: float | None = None,
    ) -> None:
        self.facts += self.gaps.refused(
            TP,
            cause=cause,
            trigger=trigger,
            sent_s=sent_s,
            last_ack_s=last_ack_s,
            now=now,
            **by,
        )

    def unreachable(self, ready_s: float, now: float) -> None:
        self.facts += self.gaps.unreachable(
            TP,
            cause=Cause.CONNECTION_LOST,
            trigger="refused",
            ready_s=ready_s,
            last_ack_s=None,
            now=now,
            **OLD,
        )

    def evidence(self, now: float, named: dict[str, int] = NEW) -> None:
        self.facts += self.gaps.evidence(TP, now=now, **named)

    def sent(self, now: float) -> None:
        self.facts += self.gaps.sent(TP, now)

    def accepted(self, sent_s: float, now: float, by: dict[str, int] = NEW) -> Gap:
        self.facts += self.gaps.accepted(TP, sent_s=sent_s, now=now, **by)
        return self.gaps.gaps(now)[-1]

    def of(self, kind: type[Any]) -> list[Gap]:
        return [fact.gap for fact in self.facts if isinstance(fact, kind)]


def phases(gap: Gap) -> tuple[float, float, float, float]:
    return (gap.detecting_s, gap.unavailable_s, gap.reconnecting_s, gap.resuming_s)


# --- phases -------------------------------------------------------------------------------------


def test_a_move_with_a_hint_has_no_unavailable_time() -> None:
    story = Story(unix_offset_s=1000.0)
    story.refused(sent_s=10.0, now=10.5, last_ack_s=9.0)
    story.evidence(10.5)
    story.sent(11.5)
    gap = story.accepted(sent_s=11.5, now=13.5)

    assert phases(gap) == (0.5, 0.0, 1.0, 2.0)
    assert (gap.begin_s, gap.begin_unix_s, gap.duration_s) == (10.0, 1010.0, 3.5)
    assert (gap.cause, gap.trigger) == (Cause.NOT_LEADER, "NOT_LEADER_OR_FOLLOWER")
    assert (gap.old_leader, gap.old_leader_epoch, gap.new_leader, gap.new_leader_epoch) == (
        1,
        7,
        2,
        8,
    )
    assert gap.last_ack_age_s == 1.0
    assert gap.attempts == 2
    assert gap.ended_by is GapEnd.ACK
    assert gap.phase is None
    assert [type(fact) for fact in story.facts] == [
        GapOpened,
        GapAdvanced,  # reconnecting
        GapAdvanced,  # resuming
        GapEnded,
        GapSettled,
    ]
    assert [gap.phase for gap in story.of(GapAdvanced)] == [Phase.RECONNECTING, Phase.RESUMING]


def test_a_refused_attempt_returns_the_gap_to_unavailable_from_its_sending() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    story.evidence(3.0)  # unavailable 1-3
    story.sent(4.0)  # reconnecting 3-4
    story.refused(sent_s=4.0, now=6.0, by=NEW)  # the new leader denies: unavailable from 4
    story.evidence(9.0)
    story.sent(9.5)
    gap = story.accepted(sent_s=9.5, now=10.0)
    assert phases(gap) == (1.0, 2.0 + 5.0, 1.0 + 0.5, 0.5)


def test_back_off_before_a_refusal_is_unavailable_and_before_the_ack_reconnecting() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0, cause=Cause.NOT_ENOUGH_REPLICAS)
    for at in (2.0, 4.0, 8.0):  # the same leader again and again, on a timer
        story.sent(at)
        story.refused(sent_s=at, now=at + 0.5, cause=Cause.NOT_ENOUGH_REPLICAS)
    story.sent(10.0)
    gap = story.accepted(sent_s=10.0, now=10.5, by=OLD)
    assert phases(gap) == (1.0, 7.5, 1.5, 0.5)


def test_a_leader_that_cannot_be_reached_was_no_evidence() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0, cause=Cause.CONNECTION_LOST)
    story.evidence(2.0, OLD)  # a survivor still names the dead leader
    story.unreachable(ready_s=0.0, now=3.0)
    assert story.gaps.gaps(5.0)[0].phase is Phase.UNAVAILABLE
    assert phases(story.gaps.gaps(5.0)[0]) == (1.0, 4.0, 0.0, 0.0)
    story.evidence(6.0)
    story.sent(6.5)
    gap = story.accepted(sent_s=6.5, now=7.0)
    assert phases(gap) == (1.0, 5.0, 0.5, 0.5)


def test_a_refusal_from_before_the_evidence_does_not_void_it() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    story.evidence(1.0)
    story.refused(sent_s=0.1, now=1.1)  # pipelined behind the first one
    story.sent(2.0)
    gap = story.accepted(sent_s=2.0, now=3.0)
    assert phases(gap) == (1.0, 0.0, 1.0, 1.0)
    assert gap.attempts == 3


def test_evidence_during_an_attempt_counts_once_that_attempt_is_refused() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    story.evidence(2.0, OLD)
    story.sent(3.0)
    story.evidence(4.0, NEW)
    story.evidence(5.0, NEW)  # again: the first one led to it
    story.refused(sent_s=3.0, now=6.0)
    story.sent(6.5)
    gap = story.accepted(sent_s=6.5, now=7.0)
    #                     1-2 and 3-4 ; 2-3 and 4-6.5
    assert phases(gap) == (1.0, 2.0, 3.5, 0.5)


def test_evidence_for_the_leader_that_refused_meanwhile_is_void() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    story.sent(3.0)
    story.evidence(4.0, OLD)
    story.refused(sent_s=3.0, now=6.0, by=OLD)
    assert story.gaps.gaps(6.0)[0].phase is Phase.UNAVAILABLE
    assert phases(story.gaps.gaps(6.0)[0]) == (1.0, 5.0, 0.0, 0.0)


def test_another_leader_named_later_is_the_evidence_that_counts() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    story.evidence(2.0, OLD)
    story.evidence(2.5, OLD)  # again: changes nothing
    assert phases(story.gaps.gaps(3.0)[0]) == (1.0, 1.0, 1.0, 0.0)
    story.evidence(4.0, NEW)
    story.sent(5.0)
    assert phases(story.accepted(sent_s=5.0, now=6.0)) == (1.0, 3.0, 1.0, 1.0)


def test_an_ack_of_an_attempt_sent_before_the_first_signal() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    story.evidence(1.5)
    assert phases(story.accepted(sent_s=0.5, now=2.0)) == (1.0, 0.0, 0.0, 1.0)


def test_connecting_is_the_part_of_reconnecting_spent_in_connects() -> None:
    story = Story()
    story.gaps.connecting(TP, 0.0, 1.0)  # no gap: not kept
    story.refused(sent_s=0.0, now=1.0, cause=Cause.CONNECTION_LOST)
    story.evidence(3.0)
    story.gaps.connecting(TP, 2.5, 4.5)
    story.sent(5.0)
    gap = story.accepted(sent_s=5.0, now=6.0)
    assert gap.reconnecting_s == 2.0
    assert gap.connecting_s == 1.5


def test_connects_side_by_side_do_not_exceed_reconnecting() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0, cause=Cause.CONNECTION_LOST)
    story.evidence(3.0)
    story.gaps.connecting(TP, 3.0, 5.0)
    story.gaps.connecting(TP, 3.0, 5.0)
    assert story.accepted(sent_s=5.0, now=6.0).connecting_s == 2.0


# --- begin and end ------------------------------------------------------------------------------


def test_nothing_could_be_sent_begins_when_the_batch_was_ready() -> None:
    story = Story()
    story.unreachable(ready_s=4.0, now=5.0)
    story.unreachable(ready_s=4.0, now=6.0)
    assert len(story.of(GapOpened)) == 1
    gap = story.gaps.gaps(6.0)[0]
    assert (gap.begin_s, gap.duration_s, gap.attempts) == (4.0, 2.0, 0)
    assert gap.errors == ("refused", "refused")
    assert phases(gap) == (1.0, 1.0, 0.0, 0.0)


def test_no_second_belongs_to_two_gaps() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    first = story.accepted(sent_s=2.0, now=3.0)
    story.refused(sent_s=2.5, now=4.0, by=NEW)  # was under way when the first one ended
    second = story.gaps.gaps(4.0)[-1]
    assert second.number == first.number + 1
    assert second.begin_s == first.begin_s + first.duration_s == 3.0


def test_an_ack_without_a_gap_is_nothing() -> None:
    story = Story()
    story.facts += story.gaps.accepted(TP, sent_s=0.0, now=1.0, **NEW)
    story.evidence(1.0)
    story.sent(1.0)
    story.facts += story.gaps.leader_usable(TP, now=1.0)
    story.facts += story.gaps.abandon(TP, GapEnd.TOPIC_GONE, 1.0)
    assert story.facts == []
    assert story.gaps.gaps(1.0) == []
    assert story.gaps.met(TP) is None
    assert story.gaps.next_deadline(1.0) is None


def test_leader_usable_ends_without_resuming() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    story.evidence(4.0)
    story.sent(5.0)  # and its batch expired
    story.facts += story.gaps.leader_usable(TP, now=6.0, **NEW)
    gap = story.of(GapEnded)[0]
    assert gap.ended_by is GapEnd.LEADER_USABLE
    assert phases(gap) == (1.0, 4.0, 1.0, 0.0)
    assert gap.new_leader == 2


def test_a_gap_that_nobody_waits_for_is_abandoned_after_five_minutes() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    number = story.gaps.met(TP)
    assert number is not None
    story.gaps.joined(number)
    story.facts += story.gaps.tick(1.0 + 2 * IDLE_LIMIT_S)  # a batch waits: no limit
    assert story.gaps.open(TP)
    settled_s = 2 + 2 * IDLE_LIMIT_S
    story.facts += story.gaps.settled(number, "expired", 10, settled_s)
    story.facts += story.gaps.tick(settled_s + IDLE_LIMIT_S - 1)
    assert story.gaps.open(TP)
    story.facts += story.gaps.tick(settled_s + IDLE_LIMIT_S)
    assert not story.gaps.open(TP)
    (gap,) = story.of(GapSettled)
    assert (gap.ended_by, gap.outcome) == (GapEnd.ABANDONED, GapOutcome.ABANDONED)
    assert gap.records_expired == 10


def test_close_ends_and_settles_everything_once() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    number = story.gaps.met(TP)
    assert number is not None
    story.gaps.joined(number)
    story.accepted(sent_s=1.0, now=2.0)  # ended, one batch outstanding
    story.refused(sent_s=2.0, now=3.0)  # open
    story.facts += story.gaps.close(4.0)
    story.facts += story.gaps.close(5.0)
    assert story.gaps.settled(number, "delivered", 1, 6.0) == []
    settled = sorted(story.of(GapSettled), key=lambda gap: gap.number)
    assert [(gap.number, gap.ended_by, gap.outcome) for gap in settled] == [
        (1, GapEnd.ACK, GapOutcome.REPORTED),
        (2, GapEnd.CLOSED, GapOutcome.ABANDONED),
    ]


# --- outcome ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fates", "outcome"),
    [
        (["delivered", "delivered"], GapOutcome.ABSORBED),
        (["delivered", "expired"], GapOutcome.REPORTED),
        (["failed", "delivered"], GapOutcome.REPORTED),
        ([], GapOutcome.ABSORBED),
    ],
)
def test_outcome_waits_for_all_records_that_met_the_gap(
    fates: list[str], outcome: GapOutcome
) -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    number = story.gaps.met(TP)
    assert number is not None
    for _ in fates:
        story.gaps.joined(number)
    story.accepted(sent_s=1.0, now=2.0)
    for fate in fates:
        assert story.of(GapSettled) == []
        story.facts += story.gaps.settled(number, fate, 3, 3.0)
    (gap,) = story.of(GapSettled)
    assert gap.outcome is outcome
    assert gap.records_delivered == 3 * fates.count("delivered")
    assert gap.duration_s == 2.0  # not when it was settled
    assert story.of(GapEnded)[0].outcome is None


def test_a_refused_send_is_reported() -> None:
    story = Story()
    story.gaps.send_refused(TP, 0.5)  # no gap: not its fault
    story.refused(sent_s=0.0, now=1.0)
    story.gaps.send_refused(TP, 1.5)
    story.accepted(sent_s=1.0, now=2.0)
    (gap,) = story.of(GapSettled)
    assert (gap.records_refused, gap.outcome) == (1, GapOutcome.REPORTED)


def test_part_of_a_batch_may_fail_while_the_rest_goes_on() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0)
    number = story.gaps.met(TP)
    assert number is not None
    story.gaps.joined(number)
    story.accepted(sent_s=1.0, now=2.0)
    story.facts += story.gaps.settled(number, "failed", 2, 2.5, last=False)
    assert story.of(GapSettled) == []
    story.facts += story.gaps.settled(number, "delivered", 8, 3.0)
    (gap,) = story.of(GapSettled)
    assert (gap.records_failed, gap.records_delivered) == (2, 8)


# --- the cluster's share ------------------------------------------------------------------------


def test_share_of_an_election_seen_through_metadata() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=1.0, cause=Cause.CONNECTION_LOST)
    for asked_s, leader in ((1.0, 1), (5.0, -1), (8.0, 1), (8.5, 2)):
        epoch = 8 if leader == 2 else 7
        story.facts += story.gaps.leader_seen(
            TP, leader=leader, leader_epoch=epoch, asked_s=asked_s, now=asked_s + 0.2
        )
    story.evidence(8.7)
    story.sent(11.0)  # the client took its time
    gap = story.accepted(sent_s=11.0, now=11.5)
    assert gap.cluster_s_min == 8.0 - 1.0
    assert gap.cluster_s_max == pytest.approx(8.7 + 0.1)


def test_share_of_a_named_leader_that_denied_for_long() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=0.5)
    story.evidence(0.5)
    story.refused(sent_s=0.6, now=0.7, by=NEW)
    gap = story.accepted(sent_s=3.0, now=3.5)
    assert gap.cluster_s_min == pytest.approx(0.1)
    assert gap.cluster_s_max == 3.0


def test_share_of_a_leader_that_refused_and_then_accepted() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=0.5, cause=Cause.NOT_ENOUGH_REPLICAS)
    story.refused(sent_s=9.0, now=9.5, cause=Cause.NOT_ENOUGH_REPLICAS)
    gap = story.accepted(sent_s=10.0, now=10.5, by=OLD)
    assert (gap.cluster_s_min, gap.cluster_s_max) == (8.5, 10.0)


def test_a_lost_connection_to_the_same_leader_proves_nothing_against_the_cluster() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=0.5, cause=Cause.CONNECTION_LOST)
    story.refused(sent_s=9.0, now=9.5, cause=Cause.CONNECTION_LOST)
    story.gaps.leader_seen(TP, asked_s=9.6, now=9.7, **OLD)
    gap = story.accepted(sent_s=10.0, now=10.5, by=OLD)
    assert (gap.cluster_s_min, gap.cluster_s_max) == (0.0, 10.0)


def test_refusals_of_a_stale_leader_prove_nothing_against_the_cluster() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=0.5)
    story.refused(sent_s=3.0, now=3.5)  # still asking the old one
    gap = story.accepted(sent_s=4.0, now=4.5)
    assert gap.cluster_s_min == 0.0


# --- bounds -------------------------------------------------------------------------------------


def test_errors_keep_the_first_and_the_last_seven() -> None:
    story = Story()
    for number in range(20):
        story.refused(sent_s=float(number), now=number + 0.5, trigger=f"E{number}")
    gap = story.gaps.gaps(20.0)[0]
    assert gap.errors == tuple(f"E{n}" for n in (*range(7), *range(13, 20)))
    assert gap.attempts == 20


def test_gaps_keeps_the_last_and_always_the_open_ones() -> None:
    gaps = GapRecorder(0.0, limit=3)
    signal = {"cause": Cause.OTHER, "trigger": "X", "last_ack_s": None, **OLD}
    gaps.refused(("t", 99), sent_s=0.0, now=0.0, **signal)  # stays open
    for number in range(5):
        gaps.refused(("t", number), sent_s=1.0, now=1.0, **signal)
        gaps.accepted(("t", number), sent_s=1.0, now=2.0, **NEW)
    assert [gap.partition for gap in gaps.gaps(2.0)] == [99, 3, 4]


def test_tick_tells_each_open_gap_once_a_second() -> None:
    story = Story()
    story.refused(sent_s=0.0, now=0.25)
    now = 0.25
    ticks = 0
    while now < 10.25:
        deadline = story.gaps.next_deadline(now)
        assert deadline is not None
        assert deadline > now
        now = deadline
        story.facts += story.gaps.tick(now)
        ticks += 1
    assert ticks == 10
    assert [gap.duration_s for gap in story.of(GapAdvanced)] == [1.25 + n for n in range(10)]
    assert story.gaps.tick(now) == []


# --- any order of events ------------------------------------------------------------------------

PARTITIONS = [("t", 0), ("t", 1)]
LEADERS = st.fixed_dictionaries({"leader": st.integers(1, 3), "leader_epoch": st.integers(5, 7)})
STEP = st.tuples(
    st.sampled_from(
        [
            "refused",
            "refused_old",
            "unreachable",
            "evidence",
            "sent",
            "sent",
            "accepted",
            "usable",
            "abandon",
            "tick",
            "joined",
            "settled",
            "settled_expired",
            "send_refused",
            "refreshed",
            "connecting",
            "seen",
        ]
    ),
    st.sampled_from(PARTITIONS),
    st.sampled_from([0.0, 0.001, 0.07, 1.3]),  # time since the step before
    LEADERS,
)


class Hub:
    """Calls a recorder in legal orders, and holds what was said to its promises."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.gaps = GapRecorder(7.0)
        self.last: dict[int, Gap] = {}
        self.state: dict[int, str] = {}
        self.batches: list[int] = []
        self.sent_s = dict.fromkeys(PARTITIONS, self.now)
        self.seconds = dict.fromkeys(PARTITIONS, 0.0)

    def step(self, name: str, tp: tuple[str, int], leader: dict[str, int]) -> list[Fact]:
        gaps, now = self.gaps, self.now
        signal = {"cause": Cause.NOT_LEADER, "trigger": "X", "last_ack_s": None, **leader}
        match name:
            case "refused":
                return gaps.refused(tp, sent_s=self.sent_s[tp], now=now, **signal)
            case "refused_old":
                return gaps.refused(tp, sent_s=self.sent_s[tp] - 0.5, now=now, **signal)
            case "unreachable":
                return gaps.unreachable(tp, ready_s=now - 0.1, now=now, **signal)
            case "evidence":
                return gaps.evidence(tp, now=now, **leader)
            case "sent":
                self.sent_s[tp] = now
                return gaps.sent(tp, now)
            case "accepted":
                return gaps.accepted(tp, sent_s=self.sent_s[tp], now=now, **leader)
            case "usable":
                return gaps.leader_usable(tp, now=now, **leader)
            case "abandon":
                return gaps.abandon(tp, GapEnd.TOPIC_GONE, now)
            case "tick":
                return gaps.tick(now)
            case "joined":
                if (number := gaps.met(tp)) is not None:
                    gaps.joined(number)
                    self.batches.append(number)
                return []
            case "settled" | "settled_expired":
                fate = "expired" if name == "settled_expired" else "delivered"
                return gaps.settled(self.batches.pop(0), fate, 2, now) if self.batches else []
            case "send_refused":
                return gaps.send_refused(tp, now)
            case "refreshed":
                return gaps.refreshed(now)
            case "connecting":
                return gaps.connecting(tp, now - 0.05, now)
            case _:
                return gaps.leader_seen(tp, asked_s=now - 0.01, now=now, **leader)

    def check(self, fact: Fact) -> None:
        assert isinstance(fact, GapOpened | GapAdvanced | GapEnded | GapSettled)
        gap, number = fact.gap, fact.gap.number
        tp = (gap.topic, gap.partition)
        before = self.state.get(number, "unknown")
        match fact:
            case GapOpened():
                assert before == "unknown"
                self.state[number] = "open"
                alive = [
                    n
                    for n, state in self.state.items()
                    if state == "open" and (self.last.get(n, gap).partition == gap.partition)
                ]
                assert alive == [number]
            case GapAdvanced():
                assert before == "open"
            case GapEnded():
                assert before == "open"
                assert gap.outcome is None
                self.state[number] = "ended"
            case GapSettled():
                assert before == "ended"
                assert gap.outcome is not None
                self.state[number] = "settled"
        self.check_numbers(gap, self.last.get(number))
        self.seconds[tp] += gap.duration_s - (
            self.last[number].duration_s if before != "unknown" else 0
        )
        self.last[number] = gap

    def check_numbers(self, gap: Gap, before: Gap | None) -> None:
        parts = phases(gap)
        assert min(parts) >= 0.0
        assert sum(parts) == pytest.approx(gap.duration_s, abs=1e-9)
        assert -1e-9 <= gap.connecting_s <= gap.reconnecting_s + 1e-9
        assert 0.0 <= gap.cluster_s_min <= gap.cluster_s_max + 1e-9
        assert gap.cluster_s_max <= gap.duration_s + 1e-9
        assert gap.begin_s + gap.duration_s <= self.now
        assert gap.begin_unix_s == gap.begin_s + 7.0
        if before is not None:
            assert gap.begin_s == before.begin_s
            assert gap.cause is before.cause
            for name in (
                "duration_s",
                "attempts",
                "metadata_refreshes",
                "records_delivered",
                "records_expired",
                "records_refused",
            ):
                assert getattr(gap, name) >= getattr(before, name)
            if before.ended_by is not None:
                assert parts == phases(before)
                assert gap.duration_s == before.duration_s


@settings(max_examples=400, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_any_order_keeps_the_promises(steps: list[Any]) -> None:
    hub = Hub()
    begun_s = hub.now
    for name, tp, later_s, leader in steps:
        hub.now += later_s
        for fact in hub.step(name, tp, leader):
            hub.check(fact)
        shown = hub.gaps.gaps(hub.now)
        for gap in shown:
            hub.check_numbers(gap, hub.last[gap.number])
        assert [gap.number for gap in shown] == sorted(hub.state)
        deadline = hub.gaps.next_deadline(hub.now)
        assert (deadline is not None and deadline > hub.now) or not any(
            map(hub.gaps.open, PARTITIONS)
        )
    for fact in hub.gaps.close(hub.now):
        hub.check(fact)
    assert set(hub.state.values()) <= {"settled"}
    # gap seconds of a partition never exceed the time that passed: gaps do not overlap
    for seconds in hub.seconds.values():
        assert seconds <= hub.now - begun_s + 0.6 + 1e-6
