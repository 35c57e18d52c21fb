"""All planted bugs, one value each: what is changed, which rule that breaks, and who notices."""

from __future__ import annotations

from tests.sim.mutants import Edit, Mutant, Seeds, Story
from tests.sim.planted_blame import BLAME
from tests.sim.planted_lanes import LANES, WAITS
from tests.sim.planted_order import CERTAINTY, ORDER, edit, guard, unit
from tests.sim.planted_runs import RUNS
from tests.sim.planted_shares import SHARES

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
        edit("gap.GapRecorder.may_end", "self.heard(tp, answered_s)", "False"),
        Story(
            "sim.test_leader_failures",
            "test_a_gap_that_nobody_waits_for_ends_when_a_usable_leader_is_seen",
        ),
    ),
    Mutant(
        "stall taken for silence",
        "A leader that answers its probe rejects nothing: a stall is no gap.",
        edit(
            "silence.Silence.probe_answered",
            "suspect.silent = False",
            "self._unanswered(link, suspect, now)",
        ),
        guard("test_a_leader_that_takes_its_time_has_a_stall_and_no_gap"),
    ),
    Mutant(
        "7 with an offset opens a gap",
        "It is appended, and a follower is late: a stall.",
        edit("verdict._judge", "cause=None, stall=True", "cause=Cause.REQUEST_TIMEOUT, stall=True"),
        Story("sim.test_lane_rules", "test_what_waits_behind_a_stuck_one_waits_once"),
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
            "self.accumulator.refund(batch.tp, batch.charge_bytes)",
            "self.accumulator.refund(batch.tp, batch.charge_bytes * (result.failure is None))",
        ),
        Story("sim.test_room", "test_the_room_of_what_expired_comes_back"),
    ),
    Mutant(
        "waiters are not woken",
        "A caller that waits for room is told when there is some.",
        edit("hub.Hub.grant", "for ticket in tickets", "for ticket in ()"),
        Seeds(60),
    ),
)

WAYS = (
    Mutant(
        "a dead link is never inspected",
        "A healthy leader whose one connection has gone deaf is asked for what only the kernel "
        "knows: that nothing it sends is acknowledged.",
        edit(
            "silence.Silence.probe_answered",
            "self._hub.out.commands.append(Inspect(link.connection))",
            "pass",
        ),
        guard("test_a_deaf_connection_of_a_healthy_leader_is_given_up"),
    ),
    Mutant(
        "more in flight than allowed",
        "`max_in_flight_requests_per_connection` bounds a connection; with 1 order is kept also "
        "without idempotence (rule 9).",
        edit(
            "outgoing.Outgoing._pump_link",
            "len(link.pending)) > 0",
            "len(link.pending)) >= 0",
        ),
        guard("test_one_in_flight_is_one_in_flight"),
    ),
    Mutant(
        "a request larger than allowed",
        "`max_request_size` bounds all batches of a request together.",
        edit("outgoing.Outgoing._send_one", "room -= batch.size_bytes", "pass"),
        guard("test_a_request_holds_no_more_than_allowed"),
    ),
    Mutant(
        "an election uses retries up",
        "With `retries=3` an election of seconds is outlasted: a stale leader does not count. "
        "(Said by verdict and by what the answer is about: both are broken.)",
        edit(
            "answers.Answers._exhausted",
            "if judgement.verdict not in (Verdict.RETRY, Verdict.UNSURE):\n"
            "        return False\n"
            "    if judgement.stall or judgement.stale_leader or judgement.soon:",
            "if judgement.stall:",
        ),
        guard("test_an_election_does_not_use_retries_up"),
    ),
    Mutant(
        "a leader that is no more is still used",
        "Rule 3 of metadata: where nobody leads, the last leader is kept, not usable.",
        edit("leadership.Leadership._lose", "usable=False", "usable=True"),
        Story(
            "engine.test_metadata",
            "test_no_leader_keeps_the_last_one_unusable_and_its_epoch_counts",
        ),
    ),
    Mutant(
        "one lagging answer is enough",
        "Rule 5 of metadata: five answers of two brokers over a second.",
        edit("leadership.Insistence.convinces", "self._answers >= INSISTENT_ANSWERS", "True"),
        Story("engine.test_metadata", "test_fewer_are_not", ([1, 3, 1, 3], [0.0, 0.4, 0.8, 1.2])),
    ),
    Mutant(
        "a signal is lost under way",
        "What is wanted after the request left is asked again.",
        edit("refresh.RefreshClock.finished", "and self._wanted_s <= self._started_s", ""),
        Story(
            "engine.test_refresh_clock", "test_a_signal_that_came_after_the_request_left_asks_again"
        ),
    ),
    Mutant(
        "an old topic's batches go to the new one",
        "A new topic id ends the old numbering: what may be in the old topic fails as *unknown*.",
        edit(
            "partition.Partition.leave_topic",
            "b.doubt or b.open_attempt is not None",
            "False",
        ),
        unit("test_a_recreated_topic_gets_only_what_cannot_be_in_the_old_one"),
    ),
    Mutant(
        "a batch takes records for ever",
        "Rule 10: none joins half a second after the first, or it would fail so much early.",
        edit("queue.Queue.joined", "now - batch.created_s <= self.batch_age_s", "True"),
        unit("test_rule_10_a_batch_takes_no_record_half_a_second_younger_than_its_first"),
    ),
    Mutant(
        "a full queue goes first again",
        "Those whose batch did not fit into a request come first in the next.",
        edit("outgoing.Outgoing._sent", ".move_to_end(place.tp)", ""),
        guard("test_what_did_not_fit_into_a_request_goes_first_in_the_next"),
    ),
    Mutant(
        "an answer makes nobody due",
        "What waited behind a batch in flight is looked at when that is settled.",
        edit("hub.Hub.settle", "self.agenda.changed(place)", "pass"),
        guard("test_what_waits_for_the_first_ack_goes_with_it"),
    ),
    Mutant(
        "a batch begun behind one that left early lies for ever",
        "A time that was noted for what has left is moved to that of what is there now.",
        edit("agenda.Agenda.next_s", "due_s is not None and due_s > at_s", "False"),
        Story("engine.test_agenda", "test_the_batch_after_one_that_left_early_has_its_own_time"),
    ),
    Mutant(
        "a time for each batch",
        "Batches that fill up at once leave no times behind, or an hour's linger holds millions.",
        edit("agenda.Agenda.look_at", "timed is None or at_s < timed[0]", "True"),
        Story("engine.test_agenda", "test_times_do_not_pile_up"),
    ),
    Mutant(
        "an expired partition takes its neighbours along",
        "A partition without a leader holds back no other on the same node.",
        edit(
            "outgoing.Outgoing.pump",
            "self._look(place, now)",
            "self._look(place, now)\n    if hub.troubled:\n        return",
        ),
        Story(
            "sim.test_leader_failures",
            "test_a_partition_without_a_leader_for_longer_than_the_delivery_time_out",
        ),
    ),
)

MUTANTS = (*ORDER, *CERTAINTY, *LEADERS, *TRUTH, *WAYS, *LANES, *BLAME, *WAITS, *SHARES, *RUNS)
