"""Planted bugs in lanes: which connection a request takes, and for how long a broker may keep its
answer back. How: `mutants`.
"""

from __future__ import annotations

from tests.sim.mutants import Edit, Mutant, Story
from tests.sim.planted_order import STATE, edit


def rule(test: str) -> Story:
    """A small story of one rule."""
    return Story("sim.test_lane_rules", test)


def connections(test: str, *arguments: object) -> Story:
    """A story about a broker's connections."""
    return Story("sim.test_lanes_connections", test, arguments)


def slow(test: str, *arguments: object) -> Story:
    """A story about followers that are late for long."""
    return Story("sim.test_lanes_slow", test, arguments)


def in_line(test: str, *arguments: object) -> Story:
    """A story about acks that are late, but not by an ack wait."""
    return Story("sim.test_lanes_in_line", test, arguments)


def shares(test: str, *arguments: object) -> Story:
    """A story about the buffer's room."""
    return Story("sim.test_shares", test, arguments)


def doubt(test: str, *arguments: object) -> Story:
    """A story about connections and rooms that cannot be had."""
    return Story("sim.test_lanes_in_doubt", test, arguments)


BEHIND = rule("test_what_waits_behind_a_stuck_one_waits_once")
NEWCOMER = rule("test_a_newcomer_with_the_same_follower_holds_nobody_up")
UNREACHABLE = rule("test_a_node_that_we_cannot_reach_may_be_a_good_follower")
ONE_LANE = connections(
    "TestOneLane.test_without_idempotence_there_is_one_produce_connection_a_broker", "all"
)
LEARNT = slow("test_replication_that_always_takes_1200_ms_is_learnt", 1, 3.0)
SUSPECTS = slow("test_suspects_that_are_well_are_back_after_one_ack")
HICCUPS = doubt("test_hiccups_of_a_follower_cost_its_neighbours_no_more_than_two")
ALWAYS_LATE = rule("test_a_follower_that_is_always_late_keeps_its_partition_slow")

LANES = (
    Mutant(
        "an open lane is given up in name only",
        "What is in flight behind a stuck one goes over another connection, and the old one still "
        "stands: batches of one partition travel on two.",
        edit(
            "answers.Answers._clear_lane",
            "self._hub.out.commands.append(Disconnect(connection, abort=True))",
            "pass",
        ),
        BEHIND,
    ),
    Mutant(
        "a lane changes with batches in flight",
        "The stuck partition goes on in the slow lane while the open one owes answers for it. "
        "(Rules 3 and 4 of the partition and its assert stand behind that: all are broken.)",
        (
            Edit("steering.Steering.steer", "self._clear_lane(link, now)", "pass"),
            Edit(
                STATE + "next_batch",
                "connection != self.connection or not",
                "not",
            ),
            Edit(STATE + "may_pipeline", "self.proven == current", "True"),
            Edit("partition.Partition._rewind", "self.in_flight > 0", "False"),
            Edit(
                STATE + "send",
                "assert not self.in_flight or self.connection == attempt.connection",
                "pass",
            ),
        ),
        BEHIND,
    ),
    Mutant(
        "the open lane is kept",
        "What is in flight behind a stuck one waits its turn, one ack wait for each request.",
        edit("steering.Steering.steer", "if link.pending and stuck", "if False"),
        BEHIND,
    ),
    Mutant(
        "nobody is suspect",
        "A partition that has the late follower, too, takes the open lane: everybody waits again.",
        edit("lanes.Lanes._starts_slow", "return LaneReason.SUSPECT", "pass"),
        NEWCOMER,
    ),
    Mutant(
        "suspect though acked since",
        "An ack that was asked for after the stuck request clears a suspect.",
        edit(
            "lanes.Lanes._starts_slow",
            "acked_s < blamed.get(follower, acked_s)",
            "follower in blamed",
        ),
        SUSPECTS,
    ),
    Mutant(
        "suspect though the follower is well",
        "With the stuck one's return nobody is blamed any more.",
        (
            Edit("lanes.Lanes._leave", "self._changed_nodes.add(slow.node_id)", "pass"),
            Edit("lanes.Lanes._rename", "in (before, reason)", "is reason"),
        ),
        rule("test_nobody_is_suspect_any_more_when_the_follower_is_well_again"),
    ),
    Mutant(
        "a line behind late acks",
        "Five requests are under way however late the broker's acks are.",
        edit("outgoing.Outgoing._in_flight_max", "max(expected_s, default=0.0)", "0.0"),
        in_line("test_while_it_lasts_neighbours_wait_for_one_late_ack_at_a_time", 0),
    ),
    Mutant(
        "who stands in line stays there",
        "Nobody is sent again on account of a line, and each of it is served in turn.",
        edit("steering.Steering.tick", "if self._is_long_line(link, now)", "if False"),
        in_line("test_a_neighbour_waits_for_one_late_ack_when_it_begins", 0),
    ),
    Mutant(
        "a line is for those who stand in it",
        "Who comes while it stands, and has no place in it, is not thought of.",
        edit(
            "steering.Steering._is_long_line",
            "under_way + self._hub.waiting_for(link, now)",
            "under_way",
        ),
        in_line("test_who_comes_later_does_not_wait_for_a_line_of_others", 0),
    ),
    Mutant(
        "once late, never pipelined again",
        "A broker that was late once gets one request at a time for ever.",
        edit("lateness.Lateness.answered", "self._of.pop(tp, None)", "pass"),
        in_line("test_once_it_is_over_requests_are_pipelined_again"),
    ),
    Mutant(
        "once late, late until the next answer",
        "However long ago it was.",
        edit("lateness.Lateness.answered", "> LATE_FOR_S", "> 1e9"),
        in_line("test_who_was_late_ten_seconds_ago_is_not_held_to_be"),
    ),
    Mutant(
        "an ack in between makes forget who is late",
        "The line is reckoned by the last answer, whosever it was.",
        edit(
            "lateness.Lateness.expected_s",
            "max([unknown_s, *(took_s for took_s, _ in filter(None, known))])",
            "unknown_s",
        ),
        in_line("test_what_is_acked_at_once_hides_no_line_of_late_ones_behind_it", 0),
    ),
    Mutant(
        "the late share requests with others",
        "Who waits behind a late ack then shares the next one.",
        edit("outgoing.Outgoing._late_apart", "[others, late]", "[due]"),
        in_line("test_while_it_lasts_neighbours_wait_for_one_late_ack_at_a_time", 0),
    ),
    Mutant(
        "the late go when nobody else does",
        "Others that send without a pause leave them no turn.",
        edit("outgoing.Outgoing._late_apart", "left == 1", "False"),
        in_line("test_the_late_have_their_turn_however_much_the_others_send", 5),
    ),
    Mutant(
        "the late go first",
        "Whoever is well waits for them each time.",
        edit(
            "outgoing.Outgoing._late_apart",
            "left == 1 and due[0][0] is late[0][0]",
            "True",
        ),
        in_line("test_while_it_lasts_neighbours_wait_for_one_late_ack_at_a_time", 0),
    ),
    Mutant(
        "the late follow what is sent again",
        "Of the others one batch each goes ahead of them, and what waits for its ack does not.",
        edit("outgoing.Outgoing._late_apart", "if link.pending and", "if False and"),
        in_line("test_what_is_acked_at_once_hides_no_line_of_late_ones_behind_it", 0),
    ),
    Mutant(
        "suspects that were late go with the others",
        "Who only shares a healthy follower with them is held up by them once more.",
        edit("lanes.Lanes.in_turn", "*self.lateness.apart(suspects)", "suspects"),
        in_line("test_of_suspects_those_that_were_late_do_not_hold_up_the_others"),
    ),
    Mutant(
        "a late broker's request goes without what is being compressed",
        "It takes long, and what misses it waits for it and for the next one.",
        edit("outgoing.Outgoing._pump_link", "if patient and", "if False and"),
        in_line(
            "test_bytes_that_have_yet_to_be_compressed_do_not_miss_a_request_that_takes_long", 0
        ),
    ),
    Mutant(
        "a suspect under compression loses its turn",
        "The stuck take the slow lane while the bytes of a suspect are being compressed.",
        edit(
            "outgoing.Outgoing._send_in_turn",
            "if is_sealing:",
            "if False:",
        ),
        slow("test_a_suspect_goes_first_although_its_bytes_have_yet_to_be_compressed"),
    ),
    Mutant(
        "suspects go with the stuck",
        "In one request with a stuck one a suspect that is well waits for it once more.",
        edit("lanes.Lanes.in_turn", "elif slow.reason is LaneReason.SUSPECT:", "elif False:"),
        SUSPECTS,
    ),
    Mutant(
        "a dead follower is waited for",
        "A partition whose follower is known to be down takes the open lane.",
        edit("lanes.Lanes._starts_slow", "since_s = down.get(follower)", "since_s = None"),
        connections(
            "TestReasons."
            "test_a_partition_whose_follower_is_known_to_be_down_starts_in_the_slow_lane"
        ),
    ),
    Mutant(
        "an unreachable follower is slow for ever",
        "What we cannot reach may follow well: an ack in usual time says more.",
        edit("lanes.Lanes._starts_slow", "acked_s <= since_s or", "True or"),
        UNREACHABLE,
    ),
    Mutant(
        "the slow lane is never left",
        "An ack in usual time leads back.",
        edit(
            "lanes.Lanes.acked_while_slow",
            "self._leave(tp, slow.node_id, LaneReason.USUAL, now)",
            "pass",
        ),
        rule("test_an_ack_in_usual_time_leads_back"),
    ),
    Mutant(
        "a late ack leads back",
        "A slow partition would be back in the open lane with every ack, and hold up the others.",
        edit("lanes.Lanes.acked_while_slow", "not usual", "False"),
        ALWAYS_LATE,
    ),
    Mutant(
        "an old copy leads back",
        "A repeat of what was in flight when the open lane was given up may have been there for "
        "long: that it is acked at once says nothing of the follower.",
        edit("steering.Steering.steer", "is LaneReason.STUCK", "is LaneReason.MOVED"),
        ALWAYS_LATE,
    ),
    Mutant(
        "a slow lane outlives its leader",
        "A new leader has other followers to wait for: begin in its open lane.",
        edit("lanes.Lanes.steer", "slow.node_id != node_id", "False"),
        connections("TestReasons.test_a_new_leader_is_a_new_start"),
    ),
    Mutant(
        "slow though nobody writes",
        "After a minute without a record nothing is known of the follower any more.",
        edit("lanes.Lanes.wants_look", "now - slow.seen_s > FORGET_S", "False"),
        rule("test_a_slow_partition_that_nobody_writes_to_is_forgotten"),
    ),
    Mutant(
        "every hiccup is news",
        "Who is led back and stuck again soon, again and again, stays until it is well for longer.",
        edit("lanes.Lanes.stuck", "now - returned_s <= RELAPSE_WITHIN_S", "False"),
        HICCUPS,
    ),
    Mutant(
        "a probation without end",
        "It is over once acks have been usual for long enough.",
        edit("lanes.Lanes.acked_while_slow", "now - slow.usual_since_s < slow", "slow"),
        HICCUPS,
    ),
    Mutant(
        "on probation ahead of the stuck",
        "With steady traffic it would leave them no turn.",
        edit("lanes.Lanes.in_turn", "or slow.usual_since_s is not None", ""),
        doubt("test_who_is_on_probation_takes_turns_with_the_stuck"),
    ),
    Mutant(
        "a minute from the first trouble",
        "Who is written to, if rarely, is not forgotten: it would hold up others once a minute.",
        edit(
            "lanes.Lanes.wants_look",
            "slow.seen_s",
            "slow.since_s",
        ),
        doubt("test_a_partition_that_is_rarely_used_is_remembered_while_it_is_used"),
    ),
    Mutant(
        "a node is down for ever",
        "A dead follower leaves in-sync sets within 30 s; if it is in one later, it is well.",
        edit("outgoing.Outgoing.pump", "hub.brokers.forget_down(now)", "pass"),
        rule("test_a_node_that_was_down_long_ago_may_be_followed"),
    ),
    Mutant(
        "a 7 at once is answered at once",
        "A broker that does not wait for its followers is asked without a pause.",
        edit(
            "answers.Answers._answered",
            "place.retry_at_s = attempt.sent_s + self._hub.settings.retry_backoff_s",
            "pass",
        ),
        rule("test_a_broker_that_says_7_at_once_is_not_asked_at_once_again"),
    ),
    Mutant(
        "the stuck are always first",
        "Who is well and has to go over their lane would have no turn while they are stuck.",
        edit("lanes.Lanes.in_turn", "if held_back", "if False"),
        rule("test_the_stuck_leave_others_of_their_lane_a_turn"),
    ),
    Mutant(
        "throttled time is silence",
        "The broker reads nothing meanwhile, so it cannot answer.",
        edit("silence.Silence._silent_since_s", "link.throttled_until_s", "0.0"),
        shares("TestThrottle.test_what_was_under_way_when_it_was_told_waits_without_being_missed"),
    ),
    Mutant(
        "an abort is a rejection",
        "What was in flight behind a stuck one has a gap, though nobody refused it.",
        edit(
            "verdict.judge_abort",
            'replace(_GIVEN_UP, name="ABORTED", stale_leader=False)',
            "judge_timeout()",
        ),
        BEHIND,
    ),
    Mutant(
        "several requests in a slow lane",
        "They are served one by one: who could leave the lane waits for the stuck.",
        edit("outgoing.Outgoing._pump_link", "if not link.pending:", "if True:"),
        rule("test_a_slow_lane_has_one_request_under_way"),
    ),
    Mutant(
        "an idle slow lane stays",
        "A connection that nobody needs any more is closed after ten seconds.",
        edit("brokers.Link.deadline_s", "if self.role is Role.SLOW:", "if False:"),
        connections("TestIdle.test_the_slow_lane_closes_when_it_is_not_used_for_10_s"),
    ),
    Mutant(
        "control requests in a slow lane",
        "Metadata waits behind a produce that waits for its followers (S8).",
        (
            Edit(
                "inquiries.Inquiries.links", "link.role is Role.CONTROL", "link.role is Role.SLOW"
            ),
            Edit("inquiries.Inquiries._open", "Role.CONTROL", "Role.SLOW"),
        ),
        BEHIND,
    ),
    Mutant(
        "nobody looks at in-sync sets",
        "A follower that leaves them raises no epoch (A8): ask once a second meanwhile.",
        edit("lanes.Lanes.wants_look", "return any(", "return False and any("),
        connections(
            "TestControl.test_in_sync_sets_are_asked_for_once_a_second_while_a_partition_is_stuck"
        ),
    ),
)

WAITS = (
    Mutant(
        "the ack wait does not follow",
        "Acks that usually take 700 ms may take 2.8 s.",
        edit(
            "lanes.Lanes.sample",
            "max(self._settings.ack_wait_s, USUAL_TIMES * _median(times_s))",
            "self._settings.ack_wait_s",
        ),
        connections("TestAckWait.test_it_is_four_times_what_acks_usually_take"),
    ),
    Mutant(
        "an ack wait without bound",
        "It is at most half of the request time-out, or our own time-out would come first.",
        edit("lanes.Lanes._bounded", "min(ack_wait_s, ", "max(ack_wait_s, 0 * "),
        connections("TestAckWait.test_it_is_at_most_half_of_the_request_time_out"),
    ),
    Mutant(
        "usual time measured from the repeat",
        "Acks that always take longer than the ack wait would look quick, and change lanes always.",
        edit(
            "lanes.served_since_s",
            "_first_sent_s(batch, attempt, (AttemptState.DOUBTFUL,))",
            "attempt.sent_s",
        ),
        LEARNT,
    ),
    Mutant(
        "what a 7 held back is a measure",
        "A healthy ack in an answer that waited for a stuck one took the whole ack wait, and the "
        "next ack wait would be four of it.",
        edit("steering.Steering.steer", "elif waits_s and not behind:", "if waits_s:"),
        rule("test_what_a_7_held_back_is_no_measure"),
    ),
    Mutant(
        "every partition has a vote",
        "Twenty stuck ones in one request decide what is usual.",
        edit("lanes.Lanes.sample", "times_s.append(_median(waits_s))", "times_s.extend(waits_s)"),
        rule("test_many_stuck_ones_do_not_outvote_the_others"),
    ),
    Mutant(
        "ack wait without idempotence",
        "A repeat after a 7 would be a second copy: the request time-out is the broker's.",
        edit("outgoing.Outgoing._send_batches", "if self._hub.lanes.enabled:", "if True:"),
        ONE_LANE,
    ),
    Mutant(
        "lanes without idempotence",
        "What is sent again after an abort would be there twice.",
        edit("lanes.Lanes.__init__", "settings.idempotent", "True"),
        ONE_LANE,
    ),
    Mutant(
        "silence before the broker's word",
        "A node that keeps an answer back for as long as it may is probed.",
        edit("silence.Silence.timeout_s", "max(least_s, owed_s + ACK_WAIT_GRACE_S)", "least_s"),
        rule("test_a_broker_that_keeps_an_answer_for_the_ack_wait_is_not_silent"),
    ),
    Mutant(
        "throttled time counts",
        "The broker reads nothing meanwhile: that is no reason to give requests up.",
        edit("brokers.Link.throttled", "pending.deadline_s += longer_s", "pass"),
        shares("TestThrottle.test_what_was_under_way_when_it_was_told_waits_without_being_missed"),
    ),
    Mutant(
        "one connection in doubt is a node down",
        "Partitions elsewhere that it follows would go into slow lanes.",
        edit("brokers.Brokers.unreachable", "not reached and", ""),
        rule("test_a_lane_that_cannot_be_opened_goes_over_the_other"),
    ),
    Mutant(
        "a lane is tried once",
        "After one refused connect all partitions share one lane for ever. (It is dialled while "
        "the other takes what is due, and its failure forgotten if not: both are broken.)",
        (
            Edit("outgoing.Outgoing._look", "self._redial[own] = None", "pass"),
            Edit("brokers.Link.forget_failure", "self.unreachable_since_s = None", "pass"),
        ),
        rule("test_it_is_tried_again_meanwhile"),
    ),
    Mutant(
        "a failed connect is believed for ever",
        "Where nobody has tried since, it says nothing any more.",
        edit("brokers.Link.forget_failure", "self.unreachable_since_s = None", "pass"),
        doubt("test_a_connect_that_failed_long_ago_is_forgotten", 1),
    ),
    Mutant(
        "an idle lane must prove itself",
        "Nothing was sent over it that an answer could prove it alive by: try.",
        edit("lanes.Lanes.shared", "or not link.pending", ""),
        doubt("test_an_idle_open_lane_takes_what_the_slow_one_cannot"),
    ),
    Mutant(
        "a throttled lane idles",
        "Closed and dialled anew it would evade its quota.",
        edit("brokers.Link.deadline_s", "max(self.used_s, self.throttled_until_s)", "self.used_s"),
        doubt("test_a_throttled_slow_lane_is_not_idle"),
    ),
    Mutant(
        "a gap while the other lane is up",
        "One connection that cannot be opened rejects nobody: the other one takes it.",
        edit("answers.Answers.unreachable", "if self._hub.lanes.may_share(link):", "if False:"),
        connections("TestNoSecondConnection.test_both_lanes_share_one_and_records_flow", 1),
    ),
    Mutant(
        "a dead follower's lane without idempotence",
        "One lane, whoever is down.",
        edit("lanes.Lanes.calm", "not self.enabled or", ""),
        doubt("test_without_idempotence_a_follower_that_is_down_changes_no_lane", 1),
    ),
    Mutant(
        "the slow lane is dialled first",
        "Should there be but one connection to be had, it is the open lane's.",
        edit("outgoing.Outgoing.pump", "key=_is_slow", "key=lambda link: not _is_slow(link)"),
        rule("test_a_lane_that_cannot_be_opened_goes_over_the_other"),
    ),
    Mutant(
        "a lane that cannot be opened is not shared",
        "Its partitions wait, though the other lane's connection would do.",
        edit("lanes.Lanes.link", "other if self.shared(other) else own", "own"),
        rule("test_a_lane_that_cannot_be_opened_goes_over_the_other"),
    ),
)
