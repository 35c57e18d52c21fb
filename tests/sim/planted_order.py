"""Planted bugs in what a partition sends, and in what it tells of it. (How: `mutants`.)

Rules are those of docs/architecture.md. Where a rule is covered by another, so that breaking it
alone does no harm, both are broken together and the text says so.
"""

from __future__ import annotations

from outlast.engine.messages import Connection, Role
from tests.sim.mutants import Edit, Model, Mutant, Story

STATE = "partition_state.PartitionState."

HEAD_DOUBT = "if any(b.unsure for b in self.window):"
ELSEWHERE = (Connection(2, Role.OPEN, 2), 0)
KEEP = 'unsure = "fail" if self.fresh_producer_id or hole is not None else "keep"'
WINDOW = "self.limits.window_batches"


def edit(where: str, old: str, new: str) -> tuple[Edit, ...]:
    """A mutant of one change."""
    return (Edit(where, old, new),)


def unit(test: str, *arguments: object) -> Story:
    """A test of the partition alone."""
    return Story("engine.test_partition", test, arguments)


def guard(test: str) -> Story:
    """A story that is told because of a mutant."""
    return Story("sim.test_guards", test)


ORDER = (
    Mutant(
        "no one-in-flight guard",
        "Rule 3: a second batch follows before anything was acknowledged: a broker without state "
        "takes it though the first is refused.",
        edit(
            STATE + "may_pipeline",
            "if not self.limits.idempotent:",
            "if True:",
        ),
        Model("new"),
    ),
    Mutant(
        "guard without the connection",
        "Rule 3: an ack on one connection opens the pipe on the next.",
        edit(
            STATE + "may_pipeline",
            "self.proven == current",
            "(self.proven or ())[1:] == current[1:]",
        ),
        unit("test_rule_3_again_on_another_connection_or_leader_epoch", *ELSEWHERE),
    ),
    Mutant(
        "a proof never grows old",
        "Rule 3: after a day without a batch the broker has forgotten us (S12), yet five go out.",
        edit(
            STATE + "may_pipeline",
            "now - self.last_ack_s <= PROVEN_FOR_S",
            "True",
        ),
        Model("a day"),
    ),
    Mutant(
        "window counted from the newest",
        "Rule 2: what is in flight is counted, not what is unsettled: the broker's memory of five "
        "is overrun. (A link carries five requests at most, so only the partition alone shows it.)",
        (
            Edit(
                STATE + "next_batch",
                f"len(self.window) >= {WINDOW}",
                "False",
            ),
            Edit(STATE + "send", f"assert len(self.window) < {WINDOW}", "pass"),
        ),
        Model("many"),
    ),
    Mutant(
        "no rewind",
        "Rule 5: after a failure nothing is drained, the pipe goes on.",
        edit("partition.Partition._rewind", "self.proven = None", "return"),
        Model("refusal"),
    ),
    Mutant(
        "another connection while requests are open",
        "Rule 4: batches of one partition travel on two connections at once. (Rule 3 covers it, "
        "as a proof is of one connection: both are broken.)",
        (
            Edit(
                STATE + "may_pipeline",
                "self.proven == current",
                "self.proven is not None",
            ),
            Edit(
                STATE + "next_batch",
                "connection != self.connection or not",
                "not",
            ),
        ),
        unit("test_rule_4_no_other_connection_while_something_is_in_flight"),
    ),
    Mutant(
        "batch not frozen",
        "Rule 1: a closed batch, whose bytes are being compressed, takes another record.",
        edit("queue.Queue.joined", "not batch.closed\n        and ", ""),
        unit("test_a_closed_batch_takes_no_record"),
    ),
    Mutant(
        "left counts as refused",
        "A lost answer is taken for a no: the batch may be written, and a 45 for it restarts.",
        edit("partition.Partition.lose_connection", "AttemptState.LEFT", "AttemptState.REFUSED"),
        Model("losses"),
    ),
    Mutant(
        "lost answer renumbered",
        "Rule 1: what was unanswered on a lost connection is sent again under new numbers.",
        edit(
            "partition.Partition.lose_connection",
            "self.inquest = None",
            'self.restart_reason = "resequence"',
        ),
        Model("losses"),
    ),
    Mutant(
        "left batch renumbered in place",
        "Rule 7a: the numbers behind a hole are closed up though a copy was left.",
        edit("window.Window.unseen_from", "not b.doubt and ", ""),
        Model("final"),
    ),
    Mutant(
        "followers renumbered though unsure",
        "Rule 7a: only the failed batch is looked at, not those behind it.",
        edit("window.Window.unseen_from", "if i >= index", "if i == index"),
        Model("final"),
    ),
    Mutant(
        "no unresolved mark on expiry",
        "Rule 7b: an expired batch that may be written leaves the window as if it were settled.",
        edit(
            "window.Window.drop_proved",
            "self._batches[0].proved is not None",
            "(self._batches[0].proved or self._batches[0].result) is not None",
        ),
        Model("expiry"),
    ),
    Mutant(
        "left followers sent anew after an expired left head",
        "Rule 7b: they are numbered again though a copy may follow the head's.",
        edit("partition.Partition._mend", 'unsure="fail" if fillable else "keep"', 'unsure="keep"'),
        Model("expiry"),
    ),
    Mutant(
        "restart before the old epoch is drained",
        "Rule 6: numbers are given anew while requests are under way. (And its assert.)",
        (
            Edit(
                "partition.Partition._drained",
                "if self.in_flight:",
                "if self.in_flight and not self.restart_reason:",
            ),
            Edit("partition.Partition._restart", "assert self.in_flight == 0", "pass"),
        ),
        Model("forgotten"),
    ),
    Mutant(
        "hole mended before the drain",
        "What failed in flight may yet be answered 0, and is no hole.",
        (
            Edit(
                "partition.Partition._drained",
                "if self.in_flight:",
                "if self.in_flight and self.window.hole() is None:",
            ),
            Edit("partition.Partition._restart", "assert self.in_flight == 0", "pass"),
        ),
        Model("expiry"),
    ),
    Mutant(
        "restart without the next epoch",
        "Rule 6: numbers begin at 0 again under an epoch that has used them.",
        edit("window.Window.restart", "self.producer_epoch += 1", "pass"),
        Model("expiry"),
    ),
    Mutant(
        "epochs without end",
        "Rule 6: after 32 767 no fresh producer id is asked for.",
        edit("window.Window.restart", "or self.producer_epoch >= EPOCH_MAX", ""),
        Model("last numbers"),
    ),
    Mutant(
        "restart turns the order round",
        "The batches that wait for new numbers go back into the queue newest first.",
        edit("partition.Partition._restart", "reversed(rest)", "rest"),
        Model("forgotten"),
    ),
    Mutant(
        "sequence wraps to 1",
        "Rule 8: the number after 2³¹ − 1 is 0.",
        edit("window.sequence_after", "% SEQUENCES", "% (SEQUENCES - 1)"),
        unit("test_rule_8_sequences_wrap_to_zero"),
    ),
    Mutant(
        "sequence wrap by subtracting 2³²",
        "Rule 8: a sequence is 31 bits.",
        edit("window.sequence_after", "% SEQUENCES", "% (2 * SEQUENCES)"),
        Model("last numbers"),
    ),
    Mutant(
        "a fenced producer's unsure batches go on",
        "Rule 6: under a fresh producer id a copy left under the old one is a second record.",
        edit(
            "partition.Partition._renumber", KEEP, 'unsure = "fail" if hole is not None else "keep"'
        ),
        Model("fenced"),
    ),
    Mutant(
        "split pieces are numbered on",
        "The pieces of a batch take numbers behind it, and the followers keep theirs.",
        edit(
            "window.Window.replace",
            "sequence = batch.base_sequence",
            "sequence = self.next_sequence",
        ),
        unit("test_split_halves_take_the_old_numbers"),
    ),
)

CERTAINTY = (
    Mutant(
        "0 behind the head dropped",
        "Rule 5: what is accepted behind a failed head is forgotten and sent again.",
        edit(
            "partition.Partition.accept",
            "batch.proved = (base_offset, log_append_time_ms)",
            "if self.is_head(batch) or self.is_asked(batch):\n"
            "        batch.proved = (base_offset, log_append_time_ms)",
        ),
        Model("stall"),
    ),
    Mutant(
        "a later 0 proves a refused batch",
        "Rule 5: a refused one is never proved by what is accepted behind it.",
        edit("window.Window.prove_before", "or last.state is AttemptState.REFUSED", ""),
        unit("test_rule_5_a_zero_behind_an_unsure_head_that_was_refused_settles_only_itself"),
    ),
    Mutant(
        "what was passed over goes behind",
        "Rule 5: what was refused goes again though a later record is in the log.",
        edit("partition.Partition._drained", "self.window.passed_over()", "()"),
        unit("test_rule_5_what_a_later_record_passed_over_fails_and_is_not_sent_behind_it"),
    ),
    Mutant(
        "what was taken unseen is not asked for",
        "Rule 7: a head that was only refused goes behind a later record whose 0 was lost.",
        edit("partition.Partition.deny", HEAD_DOUBT, "if batch.doubt:"),
        unit("test_rule_7_a_refused_head_that_gets_45_asks_whether_a_later_one_was_taken"),
    ),
    Mutant(
        "a 0 proves what was passed over",
        "Rule 7: the first 0 of an inquest proves a batch that was refused for certain.",
        edit(
            "partition.Partition._prove_all_before", "all(other.doubt for other in before)", "True"
        ),
        unit("test_rule_7_a_refused_head_that_gets_45_asks_whether_a_later_one_was_taken"),
    ),
    Mutant(
        "offsets that begin again say nothing",
        "Rule 5: what was accepted in another log proves what may be in the old one.",
        edit("partition.Partition.accept", "self.window.begins_again(batch)", "False"),
        unit("test_rule_5_what_lies_before_the_last_ack_is_in_another_log"),
    ),
    Mutant(
        "an own no begins the questions again",
        "Rule 7: a batch that is invalid now hides for ever what is written.",
        edit(
            "answers.Answers._answered",
            "case _ if asked and (final or verdict in _OWN):",
            "case _ if asked and place.void() is not None:",
        ),
        Story(
            "engine.test_inquest_answers",
            "test_a_batch_that_is_invalid_now_does_not_hide_what_is_written",
        ),
    ),
    Mutant(
        "what was left behind a passed-over batch is sent anew",
        "Rule 7b: its copy follows what was accepted, and may be taken at any later time.",
        edit("partition.Partition._mend", "or self.window.accepted_behind(hole)", ""),
        unit("test_rule_5_what_was_sent_behind_a_passed_over_batch_drains_first"),
    ),
    Mutant(
        "45 at an unsure head taken for state lost",
        "Rule 7: the partition takes a fresh producer id, and tells *unknown* what is in the log.",
        edit(
            "partition.Partition.deny",
            HEAD_DOUBT,
            'if batch.doubt and bool(setattr(self, "fresh_producer_id", True)):',
        ),
        Model("losses"),
    ),
    Mutant(
        "unsure batch renumbered at 45",
        "Rule 7: 45 may mean written and forgotten (S1).",
        edit("partition.Partition.deny", HEAD_DOUBT, "if False:"),
        Model("losses"),
    ),
    Mutant(
        "later 45 taken for certainty",
        "Certainty belongs to the attempt: a refusal does not take an older doubt away.",
        edit(
            "batch.Batch.end_attempt",
            "if state in (AttemptState.DOUBTFUL, AttemptState.LEFT):\n        self.doubt = True",
            "self.doubt = state in (AttemptState.DOUBTFUL, AttemptState.LEFT)",
        ),
        Model("expiry"),
    ),
    Mutant(
        "a final no after a left attempt told not accepted",
        "Rule 7: an unsure batch is never told *not accepted*.",
        edit("batch.Batch.outcome_if_failed", "self.doubt or ", ""),
        Model("final"),
    ),
    Mutant(
        "in flight at the deadline told not accepted",
        "Rule 10: what is on its way may be taken.",
        edit("batch.Batch.outcome_if_failed", " or self.open_attempt is not None", ""),
        Model("expiry"),
    ),
    Mutant(
        "newest-first skipped",
        "Rule 7: 45 for the unsure head alone restarts, though those behind it are in the log.",
        edit("partition.Partition._open_inquest", "if not others:", "if True:"),
        Model("losses"),
    ),
    Mutant(
        "one 45 is enough",
        "Rule 7: all unsure batches are to be asked about.",
        edit("inquest.Inquest.exhausted", "return not self._remaining", "return True"),
        Model("losses"),
    ),
    Mutant(
        "newest-first continued on another connection",
        "Rule 7: a 45 holds for one connection and one leader epoch.",
        (
            Edit(
                "inquest.Inquest.holds",
                "return self._connection == connection and self._leader_epoch == leader_epoch",
                "return True",
            ),
            Edit("partition.Partition.lose_connection", "self.inquest = None", "pass"),
        ),
        unit("TestInquest.test_a_lost_connection_voids_it"),
    ),
    Mutant(
        "an inquest that nothing voids",
        "Rule 7: after an answer that says nothing of the log, the head is asked again.",
        edit("partition.Partition.void", "self.inquest = None", "pass"),
        unit("TestInquest.test_any_other_answer_voids_it"),
    ),
    Mutant(
        "never handed over, yet an attempt",
        "What the driver gives back unsent was not tried: nothing is in doubt.",
        edit(
            "partition.Partition.unsend",
            "batch.withdraw_attempt()",
            "batch.end_attempt(AttemptState.LEFT, '')",
        ),
        Story("sim.test_attempts", "test_a_request_that_never_left_this_host_is_no_attempt"),
    ),
    Mutant(
        "offset of a refusal ignored",
        "S2: a 6 with an offset was appended; it is no certain no.",
        edit("verdict.judge", "base_offset >= 0", "False"),
        Model("final in a move"),
    ),
    Mutant(
        "an unsure batch is cut",
        "SPLIT after a left attempt fails the batch as *unknown*; pieces would be new batches.",
        (
            Edit(
                "answers.Answers._answered",
                "case Verdict.SPLIT if not batch.doubt and",
                "case Verdict.SPLIT if",
            ),
            Edit("partition.Partition.split", "assert not batch.doubt and", "assert"),
        ),
        guard("test_an_unsure_batch_that_is_too_large_is_not_cut"),
    ),
)
