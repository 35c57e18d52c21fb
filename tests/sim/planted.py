"""All planted bugs, one value each: what is changed, which rule that breaks, and who notices."""

from __future__ import annotations

from tests.sim.mutants import Edit, Mutant, Seeds, Story
from tests.sim.planted_order import CERTAINTY, ORDER, edit, guard

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
        guard("test_a_leader_that_denies_it_is_not_asked_without_a_pause"),
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
                "self.metadata.stale(*tp, now)",
                "return",
            ),
        ),
        Story("sim.test_failover", "test_without_a_hint_a_move_costs_one_back_off_at_most"),
    ),
    Mutant(
        "lower epoch accepted",
        "Rule 2 of metadata: a lagging broker brings the old leader back.",
        edit("leadership.Leadership.learn", "epoch < self.epoch_seen and", "False and"),
        Story("engine.test_metadata", "test_a_stale_broker_is_ignored_for_ever"),
    ),
    Mutant(
        "topic id ignored",
        "Rule 1 of metadata: a topic created again is taken for the old, whose epochs were higher.",
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
            Edit("inquiries.Inquiries._open", "Role.CONTROL", "Role.OPEN"),
        ),
        guard("test_a_question_does_not_wait_behind_a_produce"),
    ),
    Mutant(
        "back-off outlives its reason",
        "A node that metadata names alive again waits its reconnect back-off out.",
        edit("brokers.Brokers.revive", "link.retry_s = min(link.retry_s, now)", "pass"),
        guard("test_a_node_named_alive_again_is_connected_at_once"),
    ),
    Mutant(
        "connection closed without abort",
        "Requests that have not left this host go out after their connection was given up.",
        edit("answers.Answers.give_up", "abort=True", "abort=False"),
        guard("test_what_never_left_this_host_is_dropped_with_its_connection"),
    ),
    Mutant(
        "silence alone is enough",
        "A slow leader's connection is torn down though nobody else leads: every batch goes twice.",
        edit("silence.Silence._ask_after", "if patient and self._moved(link):", "if patient:"),
        guard("test_a_hanging_leader_that_nobody_replaces_keeps_its_connection"),
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
        Story(
            "sim.test_leader_failures",
            "test_a_throttled_connection_waits_and_has_no_gap",
            (0.0005,),
        ),
    ),
    Mutant(
        "no producer id of its own",
        "Rule 6: a partition whose numbering was refused for good is given the shared id again.",
        edit(
            "inquiries.Inquiries.want_producer_id",
            "not partition.fresh_producer_id and self.producer_id",
            "self.producer_id",
        ),
        guard("test_a_partition_that_was_fenced_gets_a_producer_id_of_its_own"),
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
        edit("verdict._judge", "cause=None, stall=True", "cause=Cause.REQUEST_TIMEOUT, stall=True"),
        Story(
            "sim.test_attempts", "test_what_follows_a_doubtful_batch_on_its_connection_proves_it"
        ),
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
