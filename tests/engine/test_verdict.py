"""The table, checked against a second one, written from what each verdict means and Kafka's own
list of codes. Every line here is literal: nothing is computed from the code under test.
"""

from __future__ import annotations

import pytest

from outlast.engine.messages import AttemptState, Cause, Loss
from outlast.engine.verdict import (
    Verdict,
    code_name,
    judge,
    judge_abort,
    judge_loss,
    judge_silence,
    judge_timeout,
    table,
)

ACCEPTED, REFUSED = AttemptState.ACCEPTED, AttemptState.REFUSED
DOUBTFUL, LEFT = AttemptState.DOUBTFUL, AttemptState.LEFT

# code: name, verdict, state, cause; for several records, no transactional id, base_offset −1
PRODUCE = {
    -1: ("UNKNOWN_SERVER_ERROR", "UNSURE", DOUBTFUL, "other"),
    0: ("NONE", "DELIVERED", ACCEPTED, None),
    2: ("CORRUPT_MESSAGE", "RETRY", REFUSED, "other"),
    3: ("UNKNOWN_TOPIC_OR_PARTITION", "REFRESH", REFUSED, "leader_unavailable"),
    5: ("LEADER_NOT_AVAILABLE", "REFRESH", REFUSED, "leader_unavailable"),
    6: ("NOT_LEADER_OR_FOLLOWER", "REFRESH", REFUSED, "not_leader"),
    7: ("REQUEST_TIMED_OUT", "UNSURE", DOUBTFUL, "request_timeout"),
    8: ("BROKER_NOT_AVAILABLE", "RETRY", REFUSED, "other"),
    9: ("REPLICA_NOT_AVAILABLE", "REFRESH", REFUSED, "not_leader"),
    10: ("MESSAGE_TOO_LARGE", "SPLIT", REFUSED, None),
    13: ("NETWORK_EXCEPTION", "REFRESH", REFUSED, "connection_lost"),
    14: ("COORDINATOR_LOAD_IN_PROGRESS", "RETRY", REFUSED, "other"),
    15: ("COORDINATOR_NOT_AVAILABLE", "RETRY", REFUSED, "other"),
    16: ("NOT_COORDINATOR", "RETRY", REFUSED, "other"),
    17: ("INVALID_TOPIC_EXCEPTION", "FAIL_BATCH", REFUSED, None),
    18: ("RECORD_LIST_TOO_LARGE", "SPLIT", REFUSED, None),
    19: ("NOT_ENOUGH_REPLICAS", "RETRY", REFUSED, "not_enough_replicas"),
    20: ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "UNSURE", DOUBTFUL, "not_enough_replicas"),
    21: ("INVALID_REQUIRED_ACKS", "FAIL_BATCH", REFUSED, None),
    29: ("TOPIC_AUTHORIZATION_FAILED", "FAIL_BATCH", REFUSED, None),
    31: ("CLUSTER_AUTHORIZATION_FAILED", "FAIL_BATCH", REFUSED, None),
    32: ("INVALID_TIMESTAMP", "FAIL_BATCH", REFUSED, None),
    42: ("INVALID_REQUEST", "FAIL_BATCH", REFUSED, None),
    43: ("UNSUPPORTED_FOR_MESSAGE_FORMAT", "FAIL_BATCH", REFUSED, None),
    44: ("POLICY_VIOLATION", "FAIL_BATCH", REFUSED, None),
    45: ("OUT_OF_ORDER_SEQUENCE_NUMBER", "RESEQUENCE", REFUSED, "other"),
    46: ("DUPLICATE_SEQUENCE_NUMBER", "DELIVERED", ACCEPTED, None),
    47: ("INVALID_PRODUCER_EPOCH", "RESEQUENCE", REFUSED, "other"),
    48: ("INVALID_TXN_STATE", "FAIL_BATCH", REFUSED, None),
    49: ("INVALID_PRODUCER_ID_MAPPING", "RESEQUENCE", REFUSED, "other"),
    51: ("CONCURRENT_TRANSACTIONS", "RETRY", REFUSED, None),
    53: ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "RESEQUENCE", REFUSED, "other"),
    56: ("KAFKA_STORAGE_ERROR", "REFRESH", REFUSED, "storage_error"),
    59: ("UNKNOWN_PRODUCER_ID", "RESEQUENCE", REFUSED, "other"),
    72: ("LISTENER_NOT_FOUND", "REFRESH", REFUSED, "leader_unavailable"),
    74: ("FENCED_LEADER_EPOCH", "REFRESH", REFUSED, "not_leader"),
    75: ("UNKNOWN_LEADER_EPOCH", "REFRESH", REFUSED, "not_leader"),
    76: ("UNSUPPORTED_COMPRESSION_TYPE", "FAIL_BATCH", REFUSED, None),
    87: ("INVALID_RECORD", "FAIL_BATCH", REFUSED, None),
    89: ("THROTTLING_QUOTA_EXCEEDED", "RETRY", REFUSED, "other"),
    90: ("PRODUCER_FENCED", "RESEQUENCE", REFUSED, "other"),
    100: ("UNKNOWN_TOPIC_ID", "REFRESH", REFUSED, "leader_unavailable"),
    103: ("INCONSISTENT_TOPIC_ID", "REFRESH", REFUSED, "leader_unavailable"),
    120: ("TRANSACTION_ABORTABLE", "RESEQUENCE", REFUSED, "other"),
}
# not answers to Produce: these records fail, and nobody knows at which stage
OTHERS = {
    1: "OFFSET_OUT_OF_RANGE",
    4: "INVALID_FETCH_SIZE",
    11: "STALE_CONTROLLER_EPOCH",
    12: "OFFSET_METADATA_TOO_LARGE",
    22: "ILLEGAL_GENERATION",
    23: "INCONSISTENT_GROUP_PROTOCOL",
    24: "INVALID_GROUP_ID",
    25: "UNKNOWN_MEMBER_ID",
    26: "INVALID_SESSION_TIMEOUT",
    27: "REBALANCE_IN_PROGRESS",
    28: "INVALID_COMMIT_OFFSET_SIZE",
    30: "GROUP_AUTHORIZATION_FAILED",
    33: "UNSUPPORTED_SASL_MECHANISM",
    34: "ILLEGAL_SASL_STATE",
    35: "UNSUPPORTED_VERSION",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    39: "INVALID_REPLICA_ASSIGNMENT",
    40: "INVALID_CONFIG",
    41: "NOT_CONTROLLER",
    50: "INVALID_TRANSACTION_TIMEOUT",
    52: "TRANSACTION_COORDINATOR_FENCED",
    54: "SECURITY_DISABLED",
    55: "OPERATION_NOT_ATTEMPTED",
    57: "LOG_DIR_NOT_FOUND",
    58: "SASL_AUTHENTICATION_FAILED",
    60: "REASSIGNMENT_IN_PROGRESS",
    61: "DELEGATION_TOKEN_AUTH_DISABLED",
    62: "DELEGATION_TOKEN_NOT_FOUND",
    63: "DELEGATION_TOKEN_OWNER_MISMATCH",
    64: "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    65: "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    66: "DELEGATION_TOKEN_EXPIRED",
    67: "INVALID_PRINCIPAL_TYPE",
    68: "NON_EMPTY_GROUP",
    69: "GROUP_ID_NOT_FOUND",
    70: "FETCH_SESSION_ID_NOT_FOUND",
    71: "INVALID_FETCH_SESSION_EPOCH",
    73: "TOPIC_DELETION_DISABLED",
    77: "STALE_BROKER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    79: "MEMBER_ID_REQUIRED",
    80: "PREFERRED_LEADER_NOT_AVAILABLE",
    81: "GROUP_MAX_SIZE_REACHED",
    82: "FENCED_INSTANCE_ID",
    83: "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    84: "ELECTION_NOT_NEEDED",
    85: "NO_REASSIGNMENT_IN_PROGRESS",
    86: "GROUP_SUBSCRIBED_TO_TOPIC",
    88: "UNSTABLE_OFFSET_COMMIT",
    91: "RESOURCE_NOT_FOUND",
    92: "DUPLICATE_RESOURCE",
    93: "UNACCEPTABLE_CREDENTIAL",
    94: "INCONSISTENT_VOTER_SET",
    95: "INVALID_UPDATE_VERSION",
    96: "FEATURE_UPDATE_FAILED",
    97: "PRINCIPAL_DESERIALIZATION_FAILURE",
    98: "SNAPSHOT_NOT_FOUND",
    99: "POSITION_OUT_OF_RANGE",
    101: "DUPLICATE_BROKER_REGISTRATION",
    102: "BROKER_ID_NOT_REGISTERED",
    104: "INCONSISTENT_CLUSTER_ID",
    105: "TRANSACTIONAL_ID_NOT_FOUND",
    106: "FETCH_SESSION_TOPIC_ID_ERROR",
    107: "INELIGIBLE_REPLICA",
    108: "NEW_LEADER_ELECTED",
    109: "OFFSET_MOVED_TO_TIERED_STORAGE",
    110: "FENCED_MEMBER_EPOCH",
    111: "UNRELEASED_INSTANCE_ID",
    112: "UNSUPPORTED_ASSIGNOR",
    113: "STALE_MEMBER_EPOCH",
    114: "MISMATCHED_ENDPOINT_TYPE",
    115: "UNSUPPORTED_ENDPOINT_TYPE",
    116: "UNKNOWN_CONTROLLER_ID",
    117: "UNKNOWN_SUBSCRIPTION_ID",
    118: "TELEMETRY_TOO_LARGE",
    119: "INVALID_REGISTRATION",
    121: "INVALID_RECORD_STATE",
    122: "SHARE_SESSION_NOT_FOUND",
    123: "INVALID_SHARE_SESSION_EPOCH",
    124: "FENCED_STATE_EPOCH",
    125: "INVALID_VOTER_KEY",
    126: "DUPLICATE_VOTER",
    127: "VOTER_NOT_FOUND",
    128: "INVALID_REGULAR_EXPRESSION",
    129: "REBOOTSTRAP_REQUIRED",
    130: "STREAMS_INVALID_TOPOLOGY",
    131: "STREAMS_INVALID_TOPOLOGY_EPOCH",
    132: "STREAMS_TOPOLOGY_FENCED",
    133: "SHARE_SESSION_LIMIT_REACHED",
}
NAMES = {code: row[0] for code, row in PRODUCE.items()} | OTHERS
REFRESH = {3, 5, 6, 9, 13, 56, 72, 74, 75, 100, 103}


def test_the_two_lists_are_all_135_codes():
    assert sorted(NAMES) == list(range(-1, 134))
    assert not PRODUCE.keys() & OTHERS.keys()


@pytest.mark.parametrize("code", PRODUCE)
def test_what_a_broker_answers_to_produce(code):
    name, verdict, state, cause = PRODUCE[code]
    got = judge(code, -1, records=5)
    assert (got.name, got.verdict.name, got.state) == (name, verdict, state)
    assert (got.cause and got.cause.value) == cause
    assert got.error_code == code
    assert got.stale_leader == (code in REFRESH)
    assert got.fresh_producer_id == (code in {47, 49, 53, 59, 90, 120})
    assert got.tries_max == (3 if code == -1 else None)
    assert not got.stall


@pytest.mark.parametrize("code", [*OTHERS, -32768, -2, 134, 5000, 32767])
def test_any_other_code_fails_the_batch_as_unknown_and_names_itself(code):
    got = judge(code, -1, records=5)
    assert (got.verdict, got.state, got.cause) == (Verdict.FAIL_BATCH, DOUBTFUL, None)
    assert got.name == OTHERS.get(code, f"UNKNOWN_CODE_{code}")
    assert got.error_code == code
    assert judge(code, 7, records=1, transactional=True) == got


@pytest.mark.parametrize("code", sorted(REFRESH))
def test_a_refusal_with_an_offset_was_appended_and_leaves_a_doubt(code):
    got = judge(code, 0, records=5)
    assert (got.verdict, got.state) == (Verdict.UNSURE, DOUBTFUL)
    assert got.stale_leader
    assert got.cause is judge(code, -1, records=5).cause


@pytest.mark.parametrize("code", sorted(PRODUCE.keys() - REFRESH - {0, 46}))
def test_no_certain_no_with_an_offset(code):
    got = judge(code, 0, records=5)
    usual = judge(code, -1, records=5).verdict
    # "your numbering is lost" and "it is at this offset" cannot both be so: believe the offset
    assert got.verdict is (Verdict.UNSURE if usual is Verdict.RESEQUENCE else usual)
    assert not got.fresh_producer_id
    assert got.state is DOUBTFUL


def test_appended_but_not_replicated_is_a_stall_and_opens_no_gap():
    got = judge(7, 0, records=5)
    assert (got.verdict, got.state, got.cause) == (Verdict.UNSURE, DOUBTFUL, None)
    assert got.stall
    assert not got.stale_leader


@pytest.mark.parametrize("code", [10, 18])
def test_one_record_that_is_too_large_cannot_be_split(code):
    got = judge(code, -1, records=1)
    assert (got.verdict, got.state, got.cause) == (Verdict.FAIL_BATCH, REFUSED, None)


@pytest.mark.parametrize("code", sorted(PRODUCE.keys() - {10, 18}))
def test_no_other_verdict_depends_on_the_number_of_records(code):
    assert judge(code, -1, records=1) == judge(code, -1, records=5)


TRANSACTIONAL = {47: "ABORT", 48: "ABORT", 49: "ABORT", 53: "ABORT", 120: "ABORT"} | {
    90: "FAIL_PRODUCER"
}


@pytest.mark.parametrize("code", TRANSACTIONAL)
def test_with_a_transactional_id_the_transaction_fails(code):
    got = judge(code, -1, records=5, transactional=True)
    assert got.verdict.name == TRANSACTIONAL[code]
    assert (got.state, got.cause, got.fresh_producer_id) == (REFUSED, None, False)


@pytest.mark.parametrize("code", sorted(PRODUCE.keys() - TRANSACTIONAL.keys()))
def test_no_other_verdict_depends_on_a_transactional_id(code):
    assert judge(code, -1, records=5, transactional=True) == judge(code, -1, records=5)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (Loss.UNRESOLVED, "HOST_UNRESOLVED"),
        (Loss.REFUSED, "CONNECTION_REFUSED"),
        (Loss.SETUP_TIMEOUT, "CONNECTION_SETUP_TIMEOUT"),
        (Loss.AUTHENTICATION, "AUTHENTICATION_FAILED"),
        (Loss.UNSUPPORTED, "UNSUPPORTED_VERSION"),
        (Loss.CLOSED, "CONNECTION_CLOSED"),
        (Loss.BAD_BYTES, "UNREADABLE_ANSWER"),
    ],
)
def test_a_lost_connection(loss, name):
    unsent = judge_loss(loss, sent=False)
    assert (unsent.verdict, unsent.state) == (Verdict.REFRESH, REFUSED)
    sent = judge_loss(loss, sent=True)
    assert (sent.verdict, sent.state) == (Verdict.UNSURE, LEFT)
    for got in (unsent, sent):
        assert (got.name, got.cause) == (name, Cause.CONNECTION_LOST)
        assert got.stale_leader
        assert got.error_code is None


def test_every_loss_has_a_name():
    assert all(judge_loss(loss, sent=False).name for loss in Loss)


def test_giving_up_a_connection_leaves_what_was_unanswered():
    late, silent, aborted = judge_timeout(), judge_silence(), judge_abort()
    for got in (late, silent, aborted):
        assert (got.verdict, got.state, got.error_code) == (Verdict.UNSURE, LEFT, None)
    assert (late.name, late.cause, late.stale_leader) == (
        "REQUEST_TIMED_OUT",
        Cause.REQUEST_TIMEOUT,
        True,
    )
    assert (silent.name, silent.cause, silent.stale_leader) == ("SILENT", Cause.SILENT, True)
    assert (aborted.name, aborted.cause, aborted.stale_leader) == ("ABORTED", None, False)


def test_names_are_kafkas():
    assert {code: code_name(code) for code in range(-1, 134)} == NAMES
    assert code_name(134) == "UNKNOWN_CODE_134"
    assert code_name(-2) == "UNKNOWN_CODE_-2"


def test_the_documented_table_has_every_code_once_as_usual_case_and_each_special_case():
    rows = table()
    usual = [row.code for row in rows if row.code is not None and row.when == ""]
    assert usual == list(range(-1, 134))
    special = {(row.code, row.when) for row in rows if row.code is not None and row.when}
    assert (7, "base_offset ≥ 0") in special
    assert (6, "base_offset ≥ 0") in special
    assert (10, "one record") in special
    assert (90, "with a transactional id") in special
    assert (0, "base_offset ≥ 0") not in special
    names = {row.judgement.name for row in rows}
    assert {"ABORTED", "SILENT", "CONNECTION_CLOSED", "CONNECTION_REFUSED"} <= names
    assert len(rows) == len(set(rows))
