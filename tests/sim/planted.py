"""The planted bugs, one value each: what is changed, which rule that breaks, and who notices.

Rules are those of docs/architecture.md. Where a rule is covered by another, so that breaking it
alone does no harm, both are broken together and the text says so.
"""

from __future__ import annotations

from tests.sim.mutants import Edit, Model, Mutant, Seeds, Story

PROVED = "            self.proven == current\n"
HEAD_DOUBT = "elif batch.doubt:"
KEEP = 'unsure = "fail" if self.fresh_producer_id or hole is not None else "keep"'
WINDOW = "self.limits.window_batches"


def edit(where: str, old: str, new: str) -> tuple[Edit, ...]:
    """A mutant of one change."""
    return (Edit(where, old, new),)


def unit(test: str, *arguments: object) -> Story:
    """A test of the partition alone."""
    return Story("engine.test_partition", test, arguments)


ORDER = (
    Mutant(
        "no one-in-flight guard",
        "Rule 3: a second batch follows before anything was acknowledged: a broker without state "
        "takes it though the first is refused.",
        edit("partition.Partition.may_pipeline", "if not self.limits.idempotent:", "if True:"),
        Model("new"),
    ),
    Mutant(
        "guard without the connection",
        "Rule 3: an ack on one connection opens the pipe on the next.",
        edit(
            "partition.Partition.may_pipeline",
            PROVED,
            "            (self.proven or ())[1:] == current[1:]\n",
        ),
        unit("test_rule_3_again_on_another_connection_or_leader_epoch"),
    ),
    Mutant(
        "a proof never grows old",
        "Rule 3: after a day without a batch the broker has forgotten us (S12), yet five go out.",
        edit("partition.Partition.may_pipeline", "now - self.last_ack_s <= PROVEN_FOR_S", "True"),
        Model("a day"),
    ),
    Mutant(
        "window counted from the newest",
        "Rule 2: what is in flight is counted, not what is unsettled: the broker's memory of five "
        "is overrun. (A link carries five requests at most, so only the partition alone shows it.)",
        (
            Edit("partition.Partition.next_batch", f"len(self.window) >= {WINDOW}", "False"),
            Edit("partition.Partition.send", f"assert len(self.window) < {WINDOW}", "pass"),
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
        "Rule 4: batches of one partition travel on two connections at once.",
        edit("partition.Partition.next_batch", "connection != self.connection or not", "not"),
        unit("test_rule_4_no_other_connection_while_something_is_in_flight"),
    ),
    Mutant(
        "batch not frozen",
        "Rule 1: a closed batch, whose bytes are being compressed, takes another record.",
        edit("queue.Queue.takes", "not batch.closed\n            and ", ""),
        Seeds(60),
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
        edit("partition.Partition._mend", 'unsure="fail" if doubt else "keep"', 'unsure="keep"'),
        Model("expiry"),
    ),
    Mutant(
        "restart before the old epoch is drained",
        "Rule 6: numbers are given anew while requests are under way. (An assert stands behind it.)",
        (
            Edit(
                "partition.Partition._drained",
                "if self.in_flight:",
                "if self.in_flight and not self.restart_reason:",
            ),
            Edit("partition.Partition._restart", "assert self.in_flight == 0", "pass"),
        ),
        Model("refusal"),
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
        Model("losses"),
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
        Model("losses"),
    ),
    Mutant(
        "sequence wraps to 1",
        "Rule 8: the number after 2³¹ − 1 is 0.",
        edit("window.sequence_after", "% SEQUENCES", "% (SEQUENCES - 1)"),
        Model("last numbers"),
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
            "partition.Partition._drained", KEEP, 'unsure = "fail" if hole is not None else "keep"'
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
        unit("test_rule_5_a_zero_behind_a_refused_head_settles_only_itself"),
    ),
    Mutant(
        "45 at an unsure head taken for state lost",
        "Rule 7: the partition restarts with a fresh producer id and tells *unknown* what is in the log.",
        edit(
            "partition.Partition.deny",
            HEAD_DOUBT,
            'elif batch.doubt and bool(setattr(self, "fresh_producer_id", True)):',
        ),
        Model("losses"),
    ),
    Mutant(
        "unsure batch renumbered at 45",
        "Rule 7: 45 may mean written and forgotten (S1).",
        edit("partition.Partition.deny", HEAD_DOUBT, "elif False:"),
        Model("losses"),
    ),
    Mutant(
        "later 45 taken for certainty",
        "Certainty belongs to the attempt: a refusal does not take an older doubt away.",
        edit(
            "batch.Batch.end_attempt",
            "    if state in (AttemptState.DOUBTFUL, AttemptState.LEFT):\n        self.doubt = True",
            "    self.doubt = state in (AttemptState.DOUBTFUL, AttemptState.LEFT)",
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
        "Rule 7: 45 for the unsure head alone restarts, though the batches behind it are in the log.",
        edit("partition.Partition._open_inquest", "if not others:", "if True:"),
        Model("losses"),
    ),
    Mutant(
        "oldest first",
        "Rule 7: after a restart only the last batch is remembered; the older ones prove nothing.",
        (
            Edit("inquest.Inquest.batch", "self._remaining[-1]", "self._remaining[0]"),
            Edit("inquest.Inquest.denied", ".pop()", ".pop(0)"),
        ),
        Model("losses"),
    ),
    Mutant(
        "one 45 is enough",
        "Rule 7: all unsure batches are to be asked about.",
        edit("inquest.Inquest.denied", "return not self._remaining", "return True"),
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
        Model("losses"),
    ),
    Mutant(
        "an inquest that nothing voids",
        "Rule 7: after an answer that says nothing of the log, the head is asked again.",
        edit("partition.Partition.void", "self.inquest = None", "pass"),
        Model("moves in a stall"),
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
        edit(
            "answers.Answers._answered",
            "answer.error_code, answer.base_offset,",
            "answer.error_code, -1,",
        ),
        Seeds(60),
    ),
    Mutant(
        "an unsure batch is cut",
        "SPLIT after a left attempt fails the batch as *unknown*; cut, its records get new batches.",
        (
            Edit(
                "answers.Answers._answered",
                "case Verdict.SPLIT if not batch.doubt:",
                "case Verdict.SPLIT:",
            ),
            Edit("partition.Partition.split", "assert not batch.doubt", "pass"),
        ),
        Seeds(60),
    ),
)

LEADERS = (
    Mutant(
        "equal-epoch hint accepted",
        "A hint at the epoch in use is no news: survivors of a crash hint at the dead (S6).",
        edit(
            "leadership.Leadership.take_hint",
            "epoch <= self.leader.epoch",
            "epoch < self.leader.epoch",
        ),
        Story(
            "engine.test_metadata",
            "test_a_hint_at_a_newer_epoch_with_a_known_address_is_taken_once",
        ),
    ),
    Mutant(
        "no free-pass limit",
        "Two brokers that disagree keep the partition running between them without a pause.",
        edit(
            "answers.Answers._doubt_leader",
            "leader.epoch > attempt.leader_epoch",
            "leader.epoch >= attempt.leader_epoch",
        ),
        Seeds(60),
    ),
    Mutant(
        "hint ignored",
        "The answer names the new leader; only the next refresh is believed.",
        edit("answers.Answers._doubt_leader", "answer.leader_id >= 0", "answer.leader_id < -1"),
        Story("sim.test_recovery", "test_a_hint_is_followed_in_the_step_that_brings_it"),
    ),
    Mutant(
        "forgotten refresh",
        "A leader refuses or is gone, and nobody asks who leads now.",
        (
            Edit(
                "hub.Hub.trouble",
                "self.metadata.stale(*tp, now)\n    self.troubled.setdefault(tp, now)\n    self.inquiries.clock.want(now)",
                "pass",
            ),
        ),
        Seeds(60),
    ),
    Mutant(
        "lower epoch accepted",
        "Rule 2 of metadata: a lagging broker brings the old leader back.",
        edit("leadership.Leadership.learn", "epoch < self.epoch_seen and", "False and"),
        Story("engine.test_metadata", "test_a_stale_broker_is_ignored_for_ever"),
    ),
    Mutant(
        "topic id ignored",
        "Rule 1 of metadata: a topic created again is taken for the old one, whose epochs were higher.",
        edit("metadata.Metadata._merge_topic", "new_id != topic.id", "topic.id is None"),
        Story("engine.test_metadata", "test_a_topic_created_again_replaces_everything"),
    ),
    Mutant(
        "hint about the topic before this one",
        "A hint is taken though the request was sent under another topic id.",
        edit("metadata.Metadata.hint", "topic_id is not None and", "False and"),
        Story("engine.test_metadata", "test_a_hint_about_the_topic_before_this_one_is_not_taken"),
    ),
    Mutant(
        "no hedge",
        "A node that does not answer is the only one that is asked.",
        edit("inquiries.Inquiries._hedge_metadata", "return bool(asked) and", "return False and"),
        Story("sim.test_recovery", "test_a_silent_node_is_not_the_only_one_that_is_asked"),
    ),
    Mutant(
        "control requests on a produce connection",
        "Metadata waits behind a produce that waits for its followers (S8).",
        (
            Edit(
                "inquiries.Inquiries.links", "link.role is Role.CONTROL", "link.role is Role.OPEN"
            ),
            Edit("inquiries.Inquiries._open_another", "Role.CONTROL", "Role.OPEN"),
        ),
        Story(
            "sim.test_failover",
            "test_a_moved_leader_costs_one_round_trip_where_the_answer_names_the_new_one",
        ),
    ),
    Mutant(
        "back-off outlives its reason",
        "A node that metadata names alive again waits its reconnect back-off out.",
        edit("brokers.Brokers.revive", "link.retry_s = min(link.retry_s, now)", "pass"),
        Story(
            "sim.test_recovery", "test_a_leader_that_returns_is_connected_as_soon_as_it_is_named"
        ),
    ),
    Mutant(
        "connection closed without abort",
        "Requests that have not left this host go out after their connection was given up.",
        edit("answers.Answers.give_up", "abort=True", "abort=False"),
        Seeds(60),
    ),
    Mutant(
        "silence alone is enough",
        "A slow leader's connection is torn down though nobody else leads: every batch goes twice.",
        edit("silence.Silence._ask_after", "if patient and self._moved(link):", "if patient:"),
        Story("sim.test_leader_failures", "test_a_slow_leader_is_left_alone"),
    ),
    Mutant(
        "silence is waited out",
        "A new leader is known, and the request to the silent one is still waited for.",
        edit("silence.Silence._moved", "return True", "return False"),
        Story(
            "sim.test_leader_failures",
            "TestSilentLeader.test_a_new_leader_at_once_costs_the_silence_time_out_and_a_little",
        ),
    ),
    Mutant(
        "throttle ignored",
        "KIP-219: the broker reads nothing from us meanwhile.",
        edit("sender.Sender.responded", "if throttle_ms > 0:", "if throttle_ms < 0:"),
        Story("sim.test_leader_failures", "test_a_throttled_connection_waits_and_has_no_gap"),
    ),
    Mutant(
        "one producer id in no partition's hands",
        "A partition that asked for a producer id is not told of it.",
        edit(
            "inquiries.Inquiries.producer_id_came",
            "if not partition.fresh_producer_id:",
            "if False:",
        ),
        Seeds(3),
    ),
)

TRUTH = (
    Mutant(
        "gap not ended",
        "An accepted attempt ends the gap.",
        edit("gap.GapRecorder.accepted", "if gap is None:", "if True:"),
        Story(
            "sim.test_failover", "test_one_gap_for_the_partition_that_moved_and_none_for_the_others"
        ),
    ),
    Mutant(
        "gap begins at its signal",
        "It began when the refused attempt was sent.",
        edit(
            "hub.Hub.gap_refused",
            "sent_s=max(attempt.sent_s, self.stalls.alive_s(place.tp) or attempt.sent_s)",
            "sent_s=now",
        ),
        Story("sim.test_gap_truth", "test_begin_and_end_are_exact", ("move", 0)),
    ),
    Mutant(
        "gap that nobody waits for never ends",
        "It ends when a usable leader is seen.",
        edit("gap.GapRecorder.may_end", "answered_s >= gap.begin_s", "False"),
        Story(
            "sim.test_leader_failures",
            "test_a_gap_that_nobody_waits_for_ends_when_a_usable_leader_is_seen",
        ),
    ),
    Mutant(
        "stall taken for silence",
        "A live leader that waits for a follower rejects nothing: a stall is no gap.",
        edit(
            "silence.Silence.probe_answered",
            "suspect.silent = False",
            "self._unanswered(link, suspect, now)",
        ),
        Story(
            "sim.test_leader_failures",
            "test_acks_that_wait_for_a_dead_follower_are_one_stall_of_true_length",
            (8.0,),
        ),
    ),
    Mutant(
        "7 with an offset opens a gap",
        "It is appended, and a follower is late: a stall.",
        edit(
            "answers.Answers._answered",
            "if judgement.cause is not None:",
            "if judgement.cause is not None or judgement.stall:",
        ),
        Seeds(60),
    ),
    Mutant(
        "charge not returned on split",
        "The pieces of a cut batch together hold its bytes of the buffer.",
        edit(
            "batch.Batch._piece",
            "self.charge_bytes -= piece.charge_bytes",
            "piece.charge_bytes = 0",
        ),
        Story("sim.test_room", "test_the_room_of_a_batch_that_was_cut_comes_back"),
    ),
    Mutant(
        "charge not returned on failure",
        "What expires gives its room back.",
        edit(
            "hub.Hub._settle_batch",
            "self.accumulator.refund(batch.charge_bytes)",
            "self.accumulator.refund(batch.charge_bytes * (result.failure is None))",
        ),
        Story("sim.test_room", "test_the_room_of_what_expired_comes_back"),
    ),
    Mutant(
        "waiters are not woken",
        "A caller that waits for room is told when there is some.",
        edit("hub.Hub._settle_batch", "self.out.completions.append(Granted(ticket))", "pass"),
        Seeds(60),
    ),
)

MUTANTS = (*ORDER, *CERTAINTY, *LEADERS, *TRUTH)
