"""Who is held up, and what the held-up ones may take of the buffer: together, and in turn."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from outlast.engine.accumulator import Accumulator
from outlast.engine.batch import Batch
from outlast.engine.partition import Partition
from outlast.engine.queue import Limits
from outlast.engine.shares import DELIVERED_WITHIN_S, LOOK_S, Shares

LIMIT_BYTES = 1000
LINGER_S = 0.5
PATIENCE_S = LINGER_S + 1.0
PARTITIONS = [("t", p) for p in range(4)]
A, B, C, D = PARTITIONS

TopicPartition = tuple[str, int]


LIMITS = Limits(
    idempotent=True,
    window_batches=5,
    batch_bytes=LIMIT_BYTES,
    compression=0,
    linger_s=LINGER_S,
    batch_age_s=PATIENCE_S,
    delivery_timeout_s=120.0,
    unix_offset_s=0.0,
)


class Buffer:
    """A send buffer as the engine has it: what was charged lies in batches of partitions."""

    def __init__(self) -> None:
        self.now = 100.0
        self.shares = Shares(LINGER_S)
        self.room = Accumulator(LIMIT_BYTES, self.shares)
        self.busy: dict[TopicPartition, Partition] = {}

    def send(self, tp: TopicPartition, size_bytes: int, ticket: int = 0) -> bool:
        if not self.room.charge(tp, size_bytes, ticket):
            return False
        batch = Batch(tp, self.now)
        batch.charge_bytes = size_bytes
        self.busy.setdefault(tp, Partition(*tp, LIMITS)).queue.batches.append(batch)
        return True

    def settle(self, tp: TopicPartition, *, delivered: bool) -> list[int]:
        """The partition's oldest batch has its outcome; returns who gets its room."""
        batch = self.busy[tp].queue.batches.popleft()
        if self.busy[tp].idle:
            del self.busy[tp]
        if delivered:
            self.shares.delivered(tp, self.now)
        return self.room.refund(tp, batch.charge_bytes)

    def judge(self, gaps: Collection[TopicPartition] = ()) -> list[int]:
        self.shares.judge(self.busy, gaps, self.room.reserved(), self.now)
        return self.room.grant()

    def held_up(self, gaps: Collection[TopicPartition] = ()) -> set[TopicPartition]:
        return self.shares.held_up(self.now, self.busy, gaps)


@pytest.fixture
def buffer() -> Buffer:
    """Partition B has delivered."""
    made = Buffer()
    assert made.send(B, 10)
    made.settle(B, delivered=True)
    return made


class TestHeldUp:
    def test_by_a_gap(self, buffer: Buffer) -> None:
        assert buffer.held_up(gaps=[A]) == {A}

    def test_by_a_record_that_waits_for_longer_than_linger_and_a_second(
        self, buffer: Buffer
    ) -> None:
        buffer.send(A, 10)
        buffer.now += PATIENCE_S
        assert buffer.held_up() == set()
        buffer.send(C, 10)
        buffer.now += 0.01
        assert buffer.held_up() == {A}
        buffer.settle(A, delivered=True)
        assert buffer.held_up() == set()

    def test_the_oldest_counts(self, buffer: Buffer) -> None:
        buffer.send(A, 10)
        buffer.now += 1.0
        buffer.send(A, 10)
        buffer.now += 1.0
        assert buffer.held_up() == {A}
        buffer.settle(A, delivered=True)
        assert buffer.held_up() == set()

    def test_it_is_looked_at_ten_times_a_second_and_at_once_when_a_gap_opens(
        self, buffer: Buffer
    ) -> None:
        buffer.judge()
        assert buffer.shares.due_at() == buffer.now + LOOK_S
        buffer.shares.changed()
        assert buffer.shares.due_at() <= buffer.now


class TestBound:
    def test_held_up_ones_together_may_hold_what_is_free(self, buffer: Buffer) -> None:
        buffer.judge(gaps=[A, C])
        assert buffer.send(A, 300)
        assert buffer.send(C, 200)
        assert not buffer.send(A, 1)
        assert not buffer.send(C, 1)
        assert buffer.send(B, 500), "the healthy have the rest"

    def test_the_more_the_healthy_take_the_less_is_left(self, buffer: Buffer) -> None:
        assert buffer.send(B, 600)
        buffer.judge(gaps=[A])
        assert not buffer.send(A, 201)
        assert buffer.send(A, 200)

    def test_what_was_taken_before_counts(self, buffer: Buffer) -> None:
        assert buffer.send(A, 490)
        buffer.judge(gaps=[A])
        assert not buffer.send(A, 11)
        assert buffer.send(A, 10)
        buffer.settle(A, delivered=False)
        assert buffer.send(A, 480), "and comes back with what is settled"

    def test_without_anybody_who_delivers_they_may_take_everything(self) -> None:
        buffer = Buffer()
        buffer.judge(gaps=[A])
        assert buffer.send(A, LIMIT_BYTES)

    def test_who_delivered_and_is_held_up_itself_is_nobody_to_keep_room_for(
        self, buffer: Buffer
    ) -> None:
        buffer.judge(gaps=[A, B])
        assert buffer.send(A, LIMIT_BYTES)

    def test_where_all_are_late_room_is_kept_for_those_that_go_on(self, buffer: Buffer) -> None:
        """The application is faster than the cluster: every oldest record waits for too long."""
        for tp in (A, B, C):
            assert buffer.send(tp, 100)
        for tp in (A, B, C):
            assert buffer.send(tp, 100)
        buffer.now += 2.0
        for tp in (A, B):
            buffer.settle(tp, delivered=True)
        assert buffer.held_up() == {A, B, C}
        buffer.judge(gaps=[A])
        assert [buffer.shares.bounded(tp) for tp in (A, B, C)] == [True, False, True]
        assert not buffer.send(C, 151), "A and C hold 300, and 600 are free"
        assert buffer.send(B, 300)
        buffer.now += PATIENCE_S + 0.1
        buffer.judge(gaps=[A])
        assert not any(buffer.shares.bounded(tp) for tp in (A, B, C)), "nobody goes on"

    def test_a_delivery_counts_for_ten_seconds(self, buffer: Buffer) -> None:
        buffer.now += DELIVERED_WITHIN_S
        buffer.judge(gaps=[A])
        assert not buffer.send(A, 501)
        buffer.now += 0.1
        buffer.judge(gaps=[A])
        assert buffer.send(A, LIMIT_BYTES)


class TestTurns:
    def test_a_held_up_waiter_is_passed_over_and_keeps_its_place(self, buffer: Buffer) -> None:
        assert buffer.send(A, 400)
        assert buffer.send(B, 500)
        buffer.judge(gaps=[A])
        assert not buffer.send(A, 60)
        buffer.room.wait(A, 1, 60)
        buffer.room.wait(B, 2, 110)
        assert buffer.settle(B, delivered=True) == [1, 2]

    def test_a_healthy_waiter_goes_on_while_a_held_up_one_waits_before_it(
        self, buffer: Buffer
    ) -> None:
        assert buffer.send(A, 500)
        assert buffer.send(C, 500)
        buffer.judge(gaps=[A])
        buffer.room.wait(A, 1, 50)
        buffer.room.wait(B, 2, 100)
        assert buffer.settle(C, delivered=True) == [2]

    def test_when_its_gap_ends_a_waiter_is_served_at_once(self, buffer: Buffer) -> None:
        assert buffer.send(A, 500)
        buffer.judge(gaps=[A])
        assert not buffer.send(A, 100)
        buffer.room.wait(A, 1, 100)
        assert buffer.judge(gaps=[A]) == []
        assert buffer.judge() == [1]

    def test_held_up_ones_wait_in_the_order_of_asking(self, buffer: Buffer) -> None:
        assert buffer.send(A, 250)
        assert buffer.send(C, 250)
        buffer.judge(gaps=[A, C])
        buffer.room.wait(A, 1, 200)
        buffer.room.wait(C, 2, 10)
        assert not buffer.send(C, 5), "nobody comes in between"
        assert buffer.settle(C, delivered=False) == [1, 2]


class TestUsable:
    def test_those_that_are_not_held_up_or_all_and_the_same_object_meanwhile(
        self, buffer: Buffer
    ) -> None:
        everything = (0, 1, 2)
        buffer.judge()
        assert buffer.shares.free("t", everything) is everything
        buffer.judge(gaps=[A])
        usable = buffer.shares.free("t", everything)
        assert list(usable) == [1, 2]
        buffer.judge(gaps=[A])
        assert buffer.shares.free("t", everything) is usable
        buffer.judge(gaps=[A, C])
        assert list(buffer.shares.free("t", everything)) == [1]
        buffer.judge(gaps=[A, B, C])
        assert list(buffer.shares.free("t", everything)) == [0, 1, 2]
        assert buffer.shares.free("u", (0, 1)) == (0, 1)
        buffer.judge()
        assert buffer.shares.free("t", everything) is everything


@dataclass(frozen=True)
class Wish:
    tp: TopicPartition
    size_bytes: int


class AnySchedule(RuleBasedStateMachine):
    """Any order of sends, waits, withdrawals, outcomes, gaps and time, against a plain account."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = Buffer()
        self.charges: dict[TopicPartition, list[tuple[int, float]]] = {tp: [] for tp in PARTITIONS}
        self.waiting: dict[int, Wish] = {}  # by ticket, in the order of asking
        self.granted: dict[int, Wish] = {}
        self.delivered_s: dict[TopicPartition, float] = {}
        self.gaps: set[TopicPartition] = set()
        self.bounded: set[TopicPartition] = set()  # held up, while others deliver
        self.tickets = 0

    # --- the account ---

    def used_bytes(self, of: Collection[TopicPartition] = PARTITIONS) -> int:
        charged = sum(size for tp in of for size, _ in self.charges[tp])
        return charged + sum(w.size_bytes for w in self.granted.values() if w.tp in of)

    def may_take(self, wish: Wish) -> bool:
        free_bytes = LIMIT_BYTES - self.used_bytes() - wish.size_bytes
        if wish.tp in self.bounded:
            return self.used_bytes(self.bounded) + wish.size_bytes <= free_bytes
        return free_bytes >= 0

    def first(self, *, bounded: bool) -> int | None:
        """The oldest waiter of those that are, or are not, bound to the common share."""
        tickets = (t for t, wish in self.waiting.items() if (wish.tp in self.bounded) == bounded)
        return next(tickets, None)

    def serve(self, tickets: list[int]) -> None:
        for ticket in tickets:
            wish = self.waiting[ticket]
            assert ticket == self.first(bounded=wish.tp in self.bounded), "out of turn"
            assert self.may_take(wish)
            del self.waiting[ticket]
            self.granted[ticket] = wish

    # --- what happens ---

    @initialize(gaps=st.sets(st.sampled_from(PARTITIONS)))
    def begin(self, gaps: set[TopicPartition]) -> None:
        """Everybody has delivered by now, and some have a gap."""
        for tp in PARTITIONS:
            assert self.buffer.send(tp, 1)
            self.buffer.settle(tp, delivered=True)
            self.delivered_s[tp] = self.buffer.now
        self.gaps = gaps
        self.judge()

    @rule(tp=st.sampled_from(PARTITIONS), size_bytes=st.integers(1, 400))
    def send(self, tp: TopicPartition, size_bytes: int) -> None:
        wish = Wish(tp, size_bytes)
        before_it = self.first(bounded=False) if tp not in self.bounded else bool(self.waiting)
        if self.buffer.send(tp, size_bytes):
            assert self.may_take(wish)
            assert not before_it, "somebody waited whose turn it was"
            self.charges[tp].append((size_bytes, self.buffer.now))
            return
        assert before_it or not self.may_take(wish), "refused without a reason"
        self.tickets += 1
        self.waiting[self.tickets] = wish
        self.buffer.room.wait(tp, self.tickets, size_bytes)
        self.serve(self.buffer.room.grant())

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), change_bytes=st.sampled_from([0, 0, -50, 50]))
    def ask_again(self, data: st.DataObject, change_bytes: int) -> None:
        """As `append` does with a ticket; by then the record may need more, or less, than then."""
        ticket = data.draw(st.sampled_from(sorted(self.granted)))
        kept = self.granted.pop(ticket)
        wish = Wish(kept.tp, max(1, kept.size_bytes + change_bytes))
        if self.buffer.send(wish.tp, wish.size_bytes, ticket):
            assert wish.size_bytes <= kept.size_bytes or self.may_take(wish)
            self.charges[wish.tp].append((wish.size_bytes, self.buffer.now))
        else:
            assert wish.size_bytes > kept.size_bytes, "what was kept was not given"
            self.waiting[ticket] = wish
            self.buffer.room.wait(wish.tp, ticket, wish.size_bytes)
        self.serve(self.buffer.room.grant())

    @precondition(lambda self: self.waiting or self.granted)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted({*self.waiting, *self.granted})))
        self.waiting.pop(ticket, None)
        self.granted.pop(ticket, None)
        self.serve(self.buffer.room.cancel(ticket))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), tp=st.sampled_from(PARTITIONS))
    def may_go_elsewhere(self, data: st.DataObject, tp: TopicPartition) -> None:
        """A record without key waits for another partition than before."""
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting[ticket] = Wish(tp, self.waiting[ticket].size_bytes)
        self.buffer.room.move(ticket, tp)
        self.serve(self.buffer.room.grant())

    @precondition(lambda self: any(self.charges.values()))
    @rule(data=st.data(), delivered=st.booleans())
    def settle(self, data: st.DataObject, delivered: bool) -> None:
        tp = data.draw(st.sampled_from([tp for tp in PARTITIONS if self.charges[tp]]))
        self.charges[tp].pop(0)
        if delivered:
            self.delivered_s[tp] = self.buffer.now
        self.serve(self.buffer.settle(tp, delivered=delivered))

    @rule(tp=st.sampled_from(PARTITIONS))
    def gap_opens_or_ends(self, tp: TopicPartition) -> None:
        self.gaps ^= {tp}
        self.judge()

    @rule(duration_s=st.sampled_from([0.1, 1.0, 6.0]))
    def time_passes(self, duration_s: float) -> None:
        self.buffer.now += duration_s
        self.judge()

    def judge(self) -> None:
        now = self.buffer.now
        late = {tp for tp, c in self.charges.items() if c and now - c[0][1] > PATIENCE_S}
        held_up = self.gaps | late
        ago_s = {tp: now - at_s for tp, at_s in self.delivered_s.items()}
        healthy = {tp for tp in ago_s if ago_s[tp] <= DELIVERED_WITHIN_S and tp not in held_up}
        going = {tp for tp in ago_s if ago_s[tp] <= PATIENCE_S and tp not in self.gaps}
        self.bounded = held_up if healthy else held_up - going if going else set()
        self.serve(self.buffer.judge(self.gaps))

    # --- what must hold ---

    @invariant()
    def every_byte_is_accounted_for(self) -> None:
        assert self.buffer.room.used_bytes == self.used_bytes() <= LIMIT_BYTES

    @invariant()
    def nobody_waits_who_could_be_served(self) -> None:
        healthy, held_up = self.first(bounded=False), self.first(bounded=True)
        if healthy is not None:
            assert not self.may_take(self.waiting[healthy])
        if held_up is not None and (healthy is None or held_up < healthy):
            assert not self.may_take(self.waiting[held_up])

    def teardown(self) -> None:
        """All is settled and nobody gives up: everybody is served, and nothing is left."""
        self.gaps = set()
        while self.waiting or self.granted or any(self.charges.values()):
            for tp in PARTITIONS:
                while self.charges[tp]:
                    self.charges[tp].pop(0)
                    self.serve(self.buffer.settle(tp, delivered=True))
            self.judge()
            served = list(self.granted.items())
            assert served or not self.waiting, "a waiter was lost"
            for ticket, wish in served:
                assert self.buffer.send(wish.tp, wish.size_bytes, ticket)
                del self.granted[ticket]
                self.charges[wish.tp].append((wish.size_bytes, self.buffer.now))
        assert self.buffer.room.used_bytes == 0
        assert self.buffer.room.reserved() == {}
        assert not self.buffer.room.anybody_waits


AnySchedule.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAnySchedule = AnySchedule.TestCase
