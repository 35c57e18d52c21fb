"""The sequencing rules of one partition (docs/architecture.md), each by inputs and outputs."""

from __future__ import annotations

import struct

import pytest

from outlast.engine.batch import Attempt, Batch
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.messages import AttemptState, Connection, Outcome, Role
from outlast.engine.partition import Partition
from outlast.engine.queue import Limits
from outlast.engine.window import EPOCH_MAX, sequence_after

LINE = Connection(1, Role.OPEN, 1)
OTHER_LINE = Connection(2, Role.OPEN, 2)
NO = FailureReason("broker", 87, "INVALID_RECORD")


class Bench:
    """A partition with a producer id, and short words for what happens to it."""

    def __init__(self, *, idempotent: bool = True, window: int = 5, linger_s: float = 0.0) -> None:
        self.limits = Limits(
            idempotent=idempotent,
            window_batches=window,
            batch_bytes=16_384,
            compression=0,
            linger_s=linger_s,
            batch_age_s=max(linger_s, 0.5),
            delivery_timeout_s=10.0,
            unix_offset_s=0.0,
        )
        self.partition = Partition("t", 0, self.limits)
        self.now = 1.0
        self.made = 0
        self.offset = 90
        if idempotent:
            self.partition.use_producer_id(7000, 0)

    def queue(self, batches: int = 1, records: int = 2) -> list[Batch]:
        """Batches of `records` records each, closed."""
        out = []
        for _ in range(batches):
            batch = self.partition.queue.begin(self.now)
            for _ in range(records):
                batch.append(0, None, b"v%d" % self.made, ())
                self.made += 1
            self.partition.queue.end_linger()
            out.append(batch)
        return out

    def send(self, line: Connection = LINE, epoch: int = 0) -> Batch | None:
        """Send the next batch, if one may go."""
        batch = self.partition.next_batch(line, epoch, self.now)
        if batch is not None:
            if batch.data is None:
                batch.seal(batch.compressed(0))
            self.partition.send(batch, Attempt(line, epoch, None, self.now))
        return batch

    def send_all(self, line: Connection = LINE, epoch: int = 0) -> list[Batch]:
        sent = []
        while (batch := self.send(line, epoch)) is not None:
            sent.append(batch)
        return sent

    def accept(self, batch: Batch, offset: int | None = None) -> list[Batch]:
        """At an offset of one's own, or behind all that was accepted before."""
        self.offset = self.offset + 10 if offset is None else offset
        return self.partition.accept(batch, self.offset, -1, self.now)

    def refuse(self, batch: Batch, state: AttemptState = AttemptState.REFUSED) -> list[Batch]:
        return self.partition.refuse(batch, state, "NOT_LEADER_OR_FOLLOWER", -1)

    def fail(self, batch: Batch, state: AttemptState = AttemptState.REFUSED) -> list[Batch]:
        return self.partition.fail(batch, state, "INVALID_RECORD", NO)

    def pipelined(self, count: int) -> list[Batch]:
        """`count` batches in flight, after a first that was acknowledged."""
        (first,) = self.queue()
        self.send()
        self.accept(first)
        batches = self.queue(count)
        assert self.send_all() == batches[:5]
        return batches


def header(batch: Batch) -> tuple[int, int, int]:
    """Producer id, epoch and base sequence, read from the bytes."""
    assert batch.data is not None
    producer_id, epoch, sequence = struct.unpack_from(">qhi", batch.data, 43)
    return producer_id, epoch, sequence


def outcome(batch: Batch) -> Outcome | None:
    """None: delivered."""
    assert batch.result is not None, "not settled"
    return None if batch.result.failure is None else batch.result.failure.outcome


def refused_now_and_unsure() -> tuple[Bench, list[Batch]]:
    """The head was left on one connection and refused on the next; another is behind it there."""
    bench = Bench()
    batches = bench.pipelined(2)
    bench.partition.lose_connection(LINE, "CONNECTION_CLOSED")
    bench.send(OTHER_LINE, 1)
    bench.accept(batches[0])
    batches += bench.queue()
    assert bench.send_all(OTHER_LINE, 1) == batches[1:]
    bench.refuse(batches[1])
    return bench, batches


def test_numbers_are_given_when_a_batch_is_first_sent_and_follow_each_other() -> None:
    bench = Bench()
    first, second = bench.queue(2, records=3)
    bench.send()
    bench.accept(first)
    bench.send()
    assert header(first) == (7000, 0, 0)
    assert header(second) == (7000, 0, 3)


def test_rule_1_a_retry_is_byte_identical() -> None:
    bench = Bench()
    (batch,) = bench.queue()
    bench.send()
    assert batch.data is not None
    before = bytes(batch.data)
    bench.refuse(batch)
    assert bench.send(OTHER_LINE, 1) is batch
    assert bytes(batch.data) == before


def test_rule_2_the_window_is_counted_from_the_oldest_unsettled_batch() -> None:
    bench = Bench()
    batches = bench.pipelined(5)
    bench.queue(3)
    bench.partition.lose_connection(LINE, "CONNECTION_CLOSED")
    bench.send(OTHER_LINE)  # the head again
    for batch in batches[1:]:  # four others settle before it: still nothing new may go
        assert batch.result is None
    assert bench.send(OTHER_LINE) is None
    bench.accept(batches[0])
    assert bench.send_all(OTHER_LINE)[:4] == batches[1:]
    assert len([b for b in bench.partition.window if b.open_attempt]) == 5


def test_rule_3_one_in_flight_until_the_first_ack() -> None:
    bench = Bench()
    first, second = bench.queue(2)
    assert bench.send_all() == [first]
    bench.accept(first)
    assert bench.send_all() == [second]


@pytest.mark.parametrize(
    ("line", "epoch"),
    [(Connection(1, Role.OPEN, 9), 0), (LINE, 1)],
    ids=["connection", "leader epoch"],
)
def test_rule_3_again_on_another_connection_or_leader_epoch(line: Connection, epoch: int) -> None:
    bench = Bench()
    (first,) = bench.queue()
    bench.send()
    bench.accept(first)
    batches = bench.queue(3)
    assert bench.send_all(line, epoch) == batches[:1]
    bench.accept(batches[0])
    assert bench.send_all(line, epoch) == batches[1:]


def test_rule_3_again_after_a_minute_without_an_ack() -> None:
    bench = Bench()
    (first,) = bench.queue()
    bench.send()
    bench.accept(first)
    bench.now += 60.1
    batches = bench.queue(3)
    assert bench.send_all() == batches[:1]


def test_rule_3_again_under_another_producer_epoch() -> None:
    bench = Bench()
    batches = bench.pipelined(1)
    bench.partition.deny(batches[0], "OUT_OF_ORDER")
    bench.queue(2)
    assert bench.send_all() == batches
    assert header(batches[0]) == (7000, 1, 0)


def test_rule_4_no_other_connection_while_something_is_in_flight() -> None:
    bench = Bench()
    batches = bench.pipelined(1)
    bench.queue()
    assert bench.send(OTHER_LINE, 1) is None
    bench.accept(batches[0])
    assert bench.send(OTHER_LINE, 1) is not None


def test_rule_5_a_failed_head_is_sent_again_only_after_the_drain_and_alone() -> None:
    bench = Bench()
    batches = bench.pipelined(3)
    bench.refuse(batches[0])
    assert bench.send() is None
    bench.refuse(batches[1])
    assert bench.send() is None
    bench.refuse(batches[2])
    assert bench.send_all() == batches[:1]
    bench.accept(batches[0])
    assert bench.send_all() == batches[1:]
    assert [header(b)[2] for b in batches] == [2, 4, 6]


def test_rule_5_what_a_later_record_passed_over_fails_and_is_not_sent_behind_it() -> None:
    """The topic was created again, and its log began with the second (simulation seed 7005890)."""
    bench = Bench()
    batches = bench.pipelined(2)
    (waiting,) = bench.queue()
    bench.refuse(batches[0])
    assert bench.accept(batches[1]) == [batches[1], batches[0]]
    assert outcome(batches[0]) is Outcome.NOT_ACCEPTED
    assert bench.partition.restarted == "recreated"
    assert bench.send_all() == [waiting]
    assert header(waiting) == (7000, 1, 0)


def test_rule_5_what_was_sent_behind_a_passed_over_batch_drains_first() -> None:
    bench = Bench()
    batches = bench.pipelined(3)
    bench.refuse(batches[0])
    assert bench.accept(batches[1]) == [batches[1]]
    assert bench.send() is None
    assert bench.partition.lose_connection(LINE, "CONNECTION_CLOSED") == [batches[0], batches[2]]
    assert outcome(batches[0]) is Outcome.NOT_ACCEPTED
    assert outcome(batches[2]) is Outcome.UNKNOWN, "its copy follows what was accepted"


def test_rule_5_a_zero_behind_an_unsure_head_that_was_refused_settles_only_itself() -> None:
    """19 comes before a broker looks whether it has the batch already (S5)."""
    bench, batches = refused_now_and_unsure()
    assert bench.accept(batches[2]) == [batches[2]]
    assert batches[1].result is None
    assert bench.send(OTHER_LINE, 1) is batches[1]


def test_rule_5_what_lies_before_the_last_ack_is_in_another_log() -> None:
    """So an unsure head that was refused there is not proved by it: it may be in the old one."""
    bench, batches = refused_now_and_unsure()
    assert bench.accept(batches[2], offset=0) == [batches[1], batches[2]]
    assert outcome(batches[1]) is Outcome.UNKNOWN
    assert outcome(batches[2]) is None
    (waiting,) = bench.queue()
    assert bench.send(OTHER_LINE, 1) is waiting
    assert header(waiting) == (7000, 1, 0)


def test_rule_5_a_log_that_begins_again_breaks_nothing_where_all_is_in_order() -> None:
    bench = Bench()
    batches = bench.pipelined(2)
    assert bench.accept(batches[0], offset=0) == [batches[0]]
    assert bench.accept(batches[1], offset=2) == [batches[1]]
    assert not bench.partition.restarted


def test_rule_7_a_refused_head_that_gets_45_asks_whether_a_later_one_was_taken() -> None:
    """What was taken behind it, by a leader that knew nothing, may have been left unanswered."""
    bench = Bench()
    batches = bench.pipelined(2)
    bench.refuse(batches[0])
    bench.partition.lose_connection(LINE, "CONNECTION_CLOSED")
    assert bench.send(OTHER_LINE) is batches[0]
    bench.partition.deny(batches[0], "OUT_OF_ORDER")
    assert bench.send(OTHER_LINE) is batches[1]
    assert bench.accept(batches[1]) == [batches[1], batches[0]]
    assert outcome(batches[0]) is Outcome.NOT_ACCEPTED
    assert bench.partition.restarted == "recreated"


def test_rule_5_a_zero_behind_a_doubtful_head_proves_it_too() -> None:
    bench = Bench()
    batches = bench.pipelined(2)
    bench.refuse(batches[0], AttemptState.DOUBTFUL)
    assert bench.accept(batches[1], offset=55) == batches
    assert [b.result.base_offset for b in batches if b.result] == [-1, 55]


def test_rule_5_an_unsure_head_before_a_passed_over_batch_is_not_proved() -> None:
    bench = Bench()
    batches = bench.pipelined(3)
    bench.refuse(batches[0], AttemptState.DOUBTFUL)
    bench.refuse(batches[1], AttemptState.REFUSED)
    assert bench.accept(batches[2]) == [batches[2], batches[1], batches[0]]
    assert outcome(batches[1]) is Outcome.NOT_ACCEPTED
    assert outcome(batches[0]) is Outcome.UNKNOWN


def test_rule_7a_a_hole_nobody_saw_is_closed_in_place() -> None:
    bench = Bench()
    batches = bench.pipelined(3)
    assert bench.fail(batches[0]) == [batches[0]]
    assert outcome(batches[0]) is Outcome.NOT_ACCEPTED
    bench.refuse(batches[1])
    bench.refuse(batches[2])
    assert bench.send() is batches[1]
    assert header(batches[1]) == (7000, 0, 2)
    bench.accept(batches[1])
    assert bench.send() is batches[2]
    assert header(batches[2]) == (7000, 0, 4)


def test_rule_7a_new_batches_follow_the_renumbered_ones() -> None:
    bench = Bench()
    batches = bench.pipelined(2)
    bench.fail(batches[0])
    bench.refuse(batches[1])
    (later,) = bench.queue()
    bench.send()
    bench.accept(batches[1])
    bench.send()
    assert header(later) == (7000, 0, 4)


def test_rule_7b_a_hole_that_may_be_written_restarts_the_partition() -> None:
    bench = Bench()
    batches = bench.pipelined(3)
    bench.refuse(batches[0], AttemptState.DOUBTFUL)
    bench.refuse(batches[1], AttemptState.DOUBTFUL)
    bench.refuse(batches[2])
    bench.send()
    settled = bench.fail(batches[0])
    assert settled == batches[:2]
    assert [outcome(b) for b in settled] == [Outcome.UNKNOWN, Outcome.UNKNOWN]
    assert bench.send() is batches[2]
    assert header(batches[2]) == (7000, 1, 0)


def test_rule_7b_an_expired_unsure_batch_takes_the_unsure_behind_it_along() -> None:
    bench = Bench()
    batches = bench.pipelined(2)
    bench.now += 5
    (young,) = bench.queue()
    bench.partition.lose_connection(LINE, "CONNECTION_CLOSED")
    bench.now += 5.5
    assert bench.partition.expire(bench.now) == batches
    assert {outcome(b) for b in batches} == {Outcome.UNKNOWN}
    assert bench.send() is young
    assert header(young) == (7000, 1, 0)


def test_rule_7_a_restart_waits_for_the_drain() -> None:
    bench = Bench()
    batches = bench.pipelined(2)
    bench.partition.deny(batches[0], "OUT_OF_ORDER")
    assert bench.send() is None
    assert bench.refuse(batches[1]) == []
    assert bench.send() is batches[0]
    assert header(batches[0]) == (7000, 1, 0)
    assert bench.partition.restarted == "resequence"


class TestInquest:
    """45 for an unsure head: newest first (rule 7)."""

    def lost(self, count: int) -> tuple[Bench, list[Batch]]:
        """All in flight left; the head was sent again and got 45."""
        bench = Bench()
        batches = bench.pipelined(count)
        bench.partition.lose_connection(LINE, "CONNECTION_CLOSED")
        assert bench.send(OTHER_LINE, 1) is batches[0]
        assert bench.partition.deny(batches[0], "OUT_OF_ORDER") == []
        return bench, batches

    def test_the_first_zero_proves_all_before_it(self) -> None:
        bench, batches = self.lost(4)
        assert bench.send(OTHER_LINE, 1) is batches[3]
        assert bench.send(OTHER_LINE, 1) is None, "one at a time"
        bench.partition.deny(batches[3], "OUT_OF_ORDER")
        assert bench.send(OTHER_LINE, 1) is batches[2]
        assert bench.accept(batches[2], offset=140) == batches[:3]
        assert [b.result.base_offset for b in batches[:3] if b.result] == [-1, -1, 140]
        assert bench.send_all(OTHER_LINE, 1) == [batches[3]]
        assert header(batches[3]) == (7000, 0, 8), "under its old number"
        assert batches[3].unsure

    def test_45_for_all_restarts_with_all(self) -> None:
        bench, batches = self.lost(3)
        for batch in (batches[2], batches[1]):
            assert bench.send(OTHER_LINE, 1) is batch
            bench.partition.deny(batch, "OUT_OF_ORDER")
        assert bench.send(OTHER_LINE, 1) is batches[0]
        assert header(batches[0]) == (7000, 1, 0)
        assert bench.partition.restarted == "resequence"

    def test_alone_it_restarts_at_once(self) -> None:
        bench, batches = self.lost(1)
        assert bench.send(OTHER_LINE, 1) is batches[0]
        assert header(batches[0]) == (7000, 1, 0)

    def test_one_accepted_behind_the_head_answers_the_question(self) -> None:
        bench, batches = refused_now_and_unsure()
        bench.accept(batches[2])
        bench.send(OTHER_LINE, 1)
        assert bench.partition.deny(batches[1], "OUT_OF_ORDER") == [batches[1]]
        assert bench.partition.idle

    def test_a_stall_or_a_refusal_of_the_moment_asks_the_same_again(self) -> None:
        bench, batches = self.lost(3)
        bench.send(OTHER_LINE, 1)
        bench.partition.refuse(batches[2], AttemptState.DOUBTFUL, "REQUEST_TIMED_OUT", 77)
        assert bench.send(OTHER_LINE, 1) is batches[2]

    def test_a_lost_connection_voids_it(self) -> None:
        bench, batches = self.lost(3)
        bench.send(OTHER_LINE, 1)
        bench.partition.lose_connection(OTHER_LINE, "CONNECTION_CLOSED")
        assert bench.send(Connection(3, Role.OPEN, 3), 1) is batches[0]

    @pytest.mark.parametrize(
        ("line", "epoch"), [(OTHER_LINE, 2), (Connection(2, Role.OPEN, 9), 1)], ids=str
    )
    def test_another_epoch_or_connection_voids_it(self, line: Connection, epoch: int) -> None:
        bench, batches = self.lost(3)
        assert bench.send(line, epoch) is batches[0]

    def test_any_other_answer_voids_it(self) -> None:
        bench, batches = self.lost(3)
        bench.send(OTHER_LINE, 1)
        bench.partition.void()
        bench.refuse(batches[2])
        assert bench.send(OTHER_LINE, 1) is batches[0]

    def test_an_unsure_batch_kept_by_a_restart_is_never_told_not_accepted(self) -> None:
        bench, batches = self.lost(1)
        bench.send(OTHER_LINE, 1)
        bench.fail(batches[0])
        assert outcome(batches[0]) is Outcome.UNKNOWN


def test_rule_7c_behind_a_hole_that_was_only_refused_unsure_batches_go_on() -> None:
    bench = Bench()
    batches = bench.pipelined(2)
    bench.fail(batches[0])
    bench.partition.lose_connection(LINE, "CONNECTION_CLOSED")
    assert batches[1].result is None
    assert bench.send(OTHER_LINE, 1) is batches[1]
    assert header(batches[1]) == (7000, 1, 0)


def test_in_flight_at_the_deadline_fails_as_unknown_and_an_ack_then_leaves_no_hole() -> None:
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.now += 10.0
    assert bench.partition.expire(bench.now) == [batch]
    assert outcome(batch) is Outcome.UNKNOWN
    (later,) = bench.queue()
    assert bench.send() is None  # the answer is still to come
    assert bench.accept(batch) == []
    assert bench.send() is later
    assert header(later) == (7000, 0, 4)


def test_in_flight_at_the_deadline_then_lost_restarts() -> None:
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.now += 10.0
    bench.partition.expire(bench.now)
    (later,) = bench.queue()
    bench.partition.lose_connection(LINE, "CONNECTION_CLOSED")
    assert bench.send() is later
    assert header(later) == (7000, 1, 0)
    assert batch.result is not None


def test_never_sent_expires_as_never_sent() -> None:
    bench = Bench()
    (batch,) = bench.queue()
    bench.now += 10.0
    assert bench.partition.expire(bench.now) == [batch]
    assert outcome(batch) is Outcome.NEVER_SENT
    assert bench.partition.idle


def test_refused_only_expires_as_not_accepted_and_its_number_is_used_again() -> None:
    bench = Bench()
    (batch,) = bench.queue()
    bench.send()
    bench.refuse(batch)
    bench.now += 10.0
    (later,) = bench.queue()
    assert bench.partition.expire(bench.now) == [batch]
    assert outcome(batch) is Outcome.NOT_ACCEPTED
    bench.send()
    assert header(later) == (7000, 0, 0)


def test_a_request_that_was_never_handed_over_is_no_attempt() -> None:
    bench = Bench()
    (batch,) = bench.queue()
    bench.send()
    bench.partition.unsend(batch)
    bench.now += 10.0
    bench.partition.expire(bench.now)
    assert outcome(batch) is Outcome.NEVER_SENT


def test_rule_6_a_lost_producer_needs_a_fresh_id() -> None:
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.partition.lose_producer(batch, "UNKNOWN_PRODUCER_ID")
    assert bench.send() is None
    assert bench.partition.needs_producer_id()
    bench.partition.use_producer_id(8000, 0)
    assert bench.send() is batch
    assert header(batch) == (8000, 0, 0)


def test_rule_6_after_the_last_epoch_comes_a_fresh_producer_id() -> None:
    bench = Bench()
    bench.partition.window.producer_epoch = EPOCH_MAX
    (batch,) = bench.queue()
    bench.send()
    bench.partition.deny(batch, "OUT_OF_ORDER")
    assert bench.partition.needs_producer_id()
    assert bench.partition.fresh_producer_id


def test_rule_8_sequences_wrap_to_zero() -> None:
    assert sequence_after(2**31 - 3, 5) == 2
    assert sequence_after(2**31 - 1, 1) == 0
    bench = Bench()
    bench.partition.window.next_sequence = 2**31 - 3
    first, second = bench.queue(2, records=5)
    bench.send()
    bench.accept(first)
    bench.send()
    assert (header(first)[2], header(second)[2]) == (2**31 - 3, 2)


def test_rule_9_without_idempotence_every_answer_decides_for_itself() -> None:
    bench = Bench(idempotent=False, window=2)
    first, second = bench.queue(2)
    assert bench.send_all() == [first, second]
    bench.refuse(first)
    assert bench.accept(second) == [second]
    assert bench.send() is first
    assert header(first) == (-1, -1, -1)


def test_rule_9_one_in_flight_keeps_the_order() -> None:
    bench = Bench(idempotent=False, window=1)
    first, second = bench.queue(2)
    assert bench.send_all() == [first]
    bench.refuse(first)
    assert bench.send_all() == [first]
    bench.accept(first)
    assert bench.send_all() == [second]


def test_rule_10_a_batch_takes_no_record_half_a_second_younger_than_its_first() -> None:
    bench = Bench(linger_s=0.1)
    queue = bench.partition.queue
    batch = queue.begin(1.0)
    assert queue.joined(10, 1.5) is batch
    assert queue.joined(10, 1.51) is None


def test_a_closed_batch_takes_no_record() -> None:
    """Also before it has its bytes: they may be being compressed in another thread."""
    bench = Bench(linger_s=1.0)
    queue = bench.partition.queue
    batch = queue.begin(bench.now)
    assert queue.joined(10, bench.now) is batch
    queue.end_linger()
    assert queue.joined(10, bench.now) is None


def test_linger_is_over_with_time_with_a_full_batch_or_with_flush() -> None:
    bench = Bench(linger_s=0.1)
    queue = bench.partition.queue
    queue.begin(1.0)
    assert bench.partition.due_s() == pytest.approx(1.1)
    queue.end_linger()
    assert bench.partition.due_s() == 1.0


def test_a_refused_batch_does_not_linger_again() -> None:
    bench = Bench(linger_s=4.0)
    (batch,) = bench.queue()
    bench.send()
    bench.refuse(batch)
    assert bench.partition.due_s() == bench.now


def test_split_halves_take_the_old_numbers() -> None:
    bench = Bench()
    (first,) = bench.queue(records=5)
    bench.send()
    bench.accept(first)
    big, follower = bench.queue(2, records=5)
    bench.send_all()
    halves, _ = bench.partition.split(big, "MESSAGE_TOO_LARGE", (0, 2), {})
    bench.refuse(follower)
    assert [h.count for h in halves] == [2, 3]
    assert [h.first_index for h in halves] == [0, 2]
    assert bench.send_all() == [halves[0]]
    bench.accept(halves[0])
    assert bench.send_all() == [halves[1], follower]
    assert [header(b)[2] for b in (*halves, follower)] == [5, 7, 10]
    values = [r.value for half in halves for r in half.records()]
    assert values == [b"v5", b"v6", b"v7", b"v8", b"v9"]


def test_blamed_records_fail_alone_and_the_rest_closes_up() -> None:
    bench = Bench()
    (first,) = bench.queue()
    bench.send()
    bench.accept(first)
    mixed, follower = bench.queue(2, records=5)
    bench.send_all()
    pieces, _ = bench.partition.split(mixed, "INVALID_RECORD", (0, 1, 2, 4), {1: NO, 4: NO})
    assert [p.result is not None for p in pieces] == [False, True, False, True]
    assert [outcome(p) for p in pieces if p.result] == [Outcome.NOT_ACCEPTED] * 2
    bench.refuse(follower)
    assert bench.send() is pieces[0]
    bench.accept(pieces[0])
    assert bench.send_all() == [pieces[2], follower]
    assert [header(b)[2] for b in (pieces[0], pieces[2], follower)] == [2, 3, 5]
    assert [p.first_index for p in pieces] == [0, 1, 2, 4]
    assert [r.value for p in pieces for r in p.records()] == [b"v%d" % n for n in range(2, 7)]


def test_close_tells_each_batch_what_is_known() -> None:
    bench = Bench()
    (sent,) = bench.pipelined(1)
    (queued,) = bench.queue()
    assert bench.partition.fail_all(FailureReason("closed", None, "closed")) == [sent, queued]
    assert (outcome(sent), outcome(queued)) == (Outcome.UNKNOWN, Outcome.NEVER_SENT)


def test_offsets_in_a_recreated_topic_are_not_compared_with_the_old_ones() -> None:
    bench = Bench()
    batches = bench.pipelined(2)
    bench.accept(batches[0], offset=500)
    assert bench.partition.leave_topic(NO) == [batches[1]]
    bench.accept(batches[1], offset=502)  # from the old topic, though it was told to have failed
    new = bench.queue(2)
    bench.send(OTHER_LINE, 1)
    bench.refuse(new[0], AttemptState.DOUBTFUL)
    assert bench.send(OTHER_LINE, 1) is new[0]
    bench.accept(new[0], offset=-1)
    more = bench.queue()
    assert bench.send_all(OTHER_LINE, 1) == [new[1], *more]
    bench.refuse(new[1], AttemptState.DOUBTFUL)
    assert bench.accept(more[0], offset=3) == [new[1], *more]
    assert outcome(new[1]) is None


def test_a_recreated_topic_gets_only_what_cannot_be_in_the_old_one() -> None:
    bench = Bench()
    (sent,) = bench.pipelined(1)
    (queued,) = bench.queue()
    gone = FailureReason("recreated", None, "gone")
    assert bench.partition.leave_topic(gone) == [sent]
    assert bench.send() is None
    bench.partition.lose_connection(LINE, "CONNECTION_CLOSED")
    assert bench.send(OTHER_LINE) is queued
    assert header(queued) == (7000, 1, 0)


def test_a_connection_that_nothing_went_over_takes_nothing_along() -> None:
    bench = Bench()
    batches = bench.pipelined(1)
    assert bench.partition.lose_connection(OTHER_LINE, "CONNECTION_CLOSED") == []
    assert batches[0].open_attempt is not None


def test_a_hole_before_something_in_flight_is_no_reason_to_send() -> None:
    bench = Bench()
    batches = bench.pipelined(2)
    bench.fail(batches[0])
    assert bench.partition.ready_s() is None


def test_of_many_pieces_no_more_are_sent_than_a_broker_remembers() -> None:
    bench = Bench()
    (first,) = bench.queue()
    bench.send()
    bench.accept(first)
    batches = bench.queue(5, records=3)
    assert bench.send_all() == batches
    pieces, _ = bench.partition.split(batches[0], "MESSAGE_TOO_LARGE", (0, 1, 2), {})
    for batch in batches[1:]:
        bench.refuse(batch)
    assert bench.send_all() == [pieces[0]]
    bench.accept(pieces[0])
    assert bench.send_all() == [*pieces[1:], *batches[1:4]]
    assert batches[4].pending


def test_what_was_only_refused_in_the_old_topic_goes_to_the_new() -> None:
    bench = Bench()
    batches = bench.pipelined(1)
    bench.refuse(batches[0])
    assert bench.partition.leave_topic(FailureReason("recreated", None, "it is gone")) == []
    assert bench.send() is batches[0]
    assert header(batches[0]) == (7000, 1, 0)
