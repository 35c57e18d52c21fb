"""Planted bugs in shares: who may hold how much of the buffer, who waits for room behind whom, and
where records without key go. How: `mutants`.
"""

from __future__ import annotations

from tests.sim.mutants import Edit, Mutant, Story
from tests.sim.planted_lanes import doubt, rule, shares
from tests.sim.planted_order import edit

NO_WAIT = shares("TestRoom.test_no_record_of_a_healthy_partition_waits_while_others_are_dead", 7)
OVERLOAD = doubt("test_room_is_kept_for_who_delivers_even_where_all_are_late")

SHARES = (
    Mutant(
        "no bound for the dead",
        "Dead partitions fill the buffer, and the living wait for room.",
        edit("shares.Shares.bounded", "tp in self._bounded", "False"),
        NO_WAIT,
    ),
    Mutant(
        "a share for each",
        "Held-up partitions together may hold what is free, not each.",
        edit(
            "shares.Shares.allows",
            "self._bounded_bytes +",
            "self._bounded_bytes / len(self._bounded) +",
        ),
        NO_WAIT,
    ),
    Mutant(
        "bounded though nobody delivers",
        "The only partition may use all of the buffer.",
        edit(
            "shares.Shares._who_leaves_room",
            "if going else set()",
            "",
        ),
        shares("TestRoom.test_the_only_one_may_use_all_of_it"),
    ),
    Mutant(
        "no bound where all are late",
        "The application is faster than the cluster, and the dead take what the living drain.",
        edit("shares.Shares._who_leaves_room", "self._held - going if going else", ""),
        OVERLOAD,
    ),
    Mutant(
        "a bound for the late",
        "Who is late but delivers may use what the dead leave.",
        edit("shares.Shares._who_leaves_room", "self._held - going if", "self._held if"),
        OVERLOAD,
    ),
    Mutant(
        "the way in is too quick",
        "While nobody waits a dead partition's record is taken unseen.",
        edit("accumulator.Accumulator.charge", "2 * used_bytes <=", "used_bytes <="),
        NO_WAIT,
    ),
    Mutant(
        "newcomers come first",
        "Who comes takes what others wait for.",
        (
            Edit("accumulator.Accumulator.charge", "ticket or self._waiting", "ticket"),
            Edit("accumulator.Accumulator._comes_later", "bounded(tp) or any", "False and any"),
        ),
        Story("engine.test_accumulator", "test_who_comes_later_takes_nothing_while_others_wait"),
    ),
    Mutant(
        "who waits without a key waits for the dead",
        "Its partition is held up by now: another one will do.",
        edit("intake.Intake.choose_again", "for ticket in self._keyless:", "for ticket in ():"),
        doubt("test_without_a_key_nobody_waits_for_a_partition_that_is_held_up"),
    ),
    Mutant(
        "a delivery counts for ever",
        "Ten seconds after the last one there is nobody to keep room for.",
        edit("shares.Shares._forget_old", "<= DELIVERED_WITHIN_S", "<= 1000.0"),
        shares("TestRoom.test_when_nobody_delivers_any_more_a_dead_one_may_go_on"),
    ),
    Mutant(
        "time alone frees nobody",
        "Who waits for room is looked after though nothing happens.",
        edit(
            "sender.Sender.next_deadline",
            "self._hub.shares.due_at() if self._hub.accumulator.anybody_waits else None",
            "None",
        ),
        shares("TestRoom.test_when_nobody_delivers_any_more_a_dead_one_may_go_on"),
    ),
    Mutant(
        "only a gap holds up",
        "A partition whose oldest record has waited for a second gets no records without key.",
        edit("shares.Shares._late", "return oldest is not None and", "return False and"),
        shares("TestKeyless.test_a_partition_whose_oldest_record_waits_for_a_second_is_avoided"),
    ),
    Mutant(
        "keyless records go to the dead",
        "A record that may go anywhere need not wait.",
        edit("shares.Shares.free", "return free", "return partitions"),
        shares("TestKeyless.test_a_partition_whose_oldest_record_waits_for_a_second_is_avoided"),
    ),
    Mutant(
        "a dead partition's waiter blocks the queue",
        "It may take nothing, and those behind it who may wait with it.",
        edit(
            "accumulator.Accumulator.grant",
            "if passed_over:\n                continue",
            "if passed_over:\n                break",
        ),
        rule("test_a_dead_partitions_waiter_holds_up_nobody_elses"),
    ),
    Mutant(
        "a grant is taken by others",
        "Room that was set aside is given again to somebody who comes in between.",
        edit("accumulator.Accumulator.grant", "self.used_bytes += wish.size_bytes", "pass"),
        Story("engine.test_accumulator", "test_a_grant_is_a_reservation_for_its_ticket_alone"),
    ),
    Mutant(
        "room of who gave up is lost",
        "It goes to the next one.",
        edit("accumulator.Accumulator._give_back", "self.used_bytes -= wish.size_bytes", "pass"),
        Story("engine.test_accumulator", "test_a_waiter_that_gives_up_hands_its_room_on"),
    ),
    Mutant(
        "the room of what is settled is lost",
        "The buffer is full for ever.",
        edit("accumulator.Accumulator.refund", "self.used_bytes -= size_bytes", "pass"),
        Story("sim.test_room", "test_the_room_of_a_batch_that_was_cut_comes_back"),
    ),
    Mutant(
        "a full buffer makes batches small",
        "What waits to be sent is closed, and each record that finds room is a batch of its own.",
        edit("intake.Intake._wait_for_room", "place.queue.hurry()", "place.queue.end_linger()"),
        shares("TestRoom.test_a_full_buffer_does_not_make_batches_small"),
    ),
    Mutant(
        "a slow broker's partition draws without bound",
        "Its batches leave late, so each of its turns is long (KAFKA-10888).",
        edit(
            "partitioner.StickyPartitioner._draw",
            "drawn != last and given.get(drawn, 0) <= even_bytes + self._batch_bytes",
            "drawn != last",
        ),
        Story(
            "engine.test_partitioner",
            "test_a_partition_whose_batches_leave_late_gets_no_more_than_the_others",
        ),
    ),
)
