"""What an error code, a lost connection or a local time-out means for a batch, as one table.

Theory. A verdict answers three questions that other clients mix up:

* *What next?* The `Verdict`: the same bytes again, to this leader or to another; other numbers;
  smaller batches; or nothing, because the answer will never change.
* *Is this attempt in the log?* The `AttemptState`: accepted, refused (a certain no), doubtful
  (perhaps in that leader's log, no copy under way) or left (a copy may be taken at any later
  time). Certainty belongs to the attempt: what a batch's *earlier* attempts did is not asked here.
* *Was the partition refusing?* The `Cause` of the gap that this signal opens, or None: a record
  that is too large, or a 7 with an offset (appended, a follower is late), says nothing about
  the partition's ability to accept.

A refusal that carries an offset was appended before leadership was lost: half of those survive
(S2). So `base_offset` ≥ 0 turns every certain no into a doubt. And a code that brokers do not
answer to Produce, or that we have never heard of, comes from a stage that we do not know: the
batch fails for good, with the number in its message, but as *unknown*.

Rules of this file:

* The table is the only place where codes are told apart; one `match` on the verdict acts on it.
* Nothing here counts, waits or remembers: `tries_max` tells the caller what to count.
* Codes are Kafka's; 6 is called by its present name, which kafka-python's tables do not have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from outlast.engine.messages import AttemptState, Cause, Loss


class Verdict(Enum):
    """What is done about a batch."""

    DELIVERED = "delivered"  # written
    REFRESH = "refresh"  # our leader is stale: the same bytes, to the leader that we find
    RETRY = "retry"  # the same bytes to the same leader, after a back-off
    UNSURE = "unsure"  # may be written: only the same bytes under the same sequence may follow
    RESEQUENCE = "resequence"  # the broker lost or outran our numbering
    SPLIT = "split"  # too large, and it can be halved
    FAIL_BATCH = "fail batch"  # these records will never be accepted
    ABORT = "abort"  # the transaction fails, the producer goes on
    FAIL_PRODUCER = "fail producer"  # a newer producer took the transactional id over


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one signal means for one batch.

    Attributes:
        verdict: what is done.
        name: the code's protocol name, or the loss's; UNKNOWN_CODE_n for a number we do not know.
        state: what became of this attempt.
        cause: of the gap that this opens; None opens none.
        stale_leader: our picture of the partition's leader is out of date: refresh it.
        fresh_producer_id: the partition goes on under another producer id (rule 6).
        stall: the leader lives and has the batch, followers are late: not a rejection.
        tries_max: after so many such answers the batch fails as *unknown*; None: no such limit.
        error_code: Kafka's, or None for a loss or a local time-out.
    """

    verdict: Verdict
    name: str
    state: AttemptState
    cause: Cause | None = None
    stale_leader: bool = False
    fresh_producer_id: bool = False
    stall: bool = False
    tries_max: int | None = None
    error_code: int | None = None

    @property
    def soon(self) -> bool:
        """The broker is only finishing something: no failure, and asked again after a moment."""
        return self.error_code == CONCURRENT_TRANSACTIONS


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line of the table; verdicts of special cases where they differ."""

    verdict: Verdict
    cause: Cause | None = None
    one_record: Verdict | None = None
    transactional: Verdict | None = None
    fresh_producer_id: bool = False
    known_stage: bool = True  # where the broker says this, nothing was appended (but see S2)


_REFRESH_NOT_LEADER = _Rule(Verdict.REFRESH, Cause.NOT_LEADER)
_REFRESH_UNAVAILABLE = _Rule(Verdict.REFRESH, Cause.LEADER_UNAVAILABLE)
_RETRY = _Rule(Verdict.RETRY, Cause.OTHER)
_FAIL = _Rule(Verdict.FAIL_BATCH)
_SPLIT = _Rule(Verdict.SPLIT, one_record=Verdict.FAIL_BATCH)
_FRESH_ID = _Rule(Verdict.RESEQUENCE, Cause.OTHER, fresh_producer_id=True)
_FRESH_ID_OR_ABORT = replace(_FRESH_ID, transactional=Verdict.ABORT)
_NOT_FOR_PRODUCE = _Rule(Verdict.FAIL_BATCH, known_stage=False)

_RULES: dict[int, _Rule] = {
    -1: _Rule(Verdict.UNSURE, Cause.OTHER),  # any stage; also undecodable data (S16)
    0: _Rule(Verdict.DELIVERED),
    2: _RETRY,  # damaged on its way: our bytes are checked before they leave
    3: _REFRESH_UNAVAILABLE,
    5: _REFRESH_UNAVAILABLE,
    6: _REFRESH_NOT_LEADER,
    7: _Rule(Verdict.UNSURE, Cause.REQUEST_TIMEOUT),
    8: _RETRY,
    9: _REFRESH_NOT_LEADER,
    10: _SPLIT,
    13: _Rule(Verdict.REFRESH, Cause.CONNECTION_LOST),
    14: _RETRY,
    15: _RETRY,
    16: _RETRY,
    17: _FAIL,
    18: _SPLIT,
    19: _Rule(Verdict.RETRY, Cause.NOT_ENOUGH_REPLICAS),  # before the append (S5)
    20: _Rule(Verdict.UNSURE, Cause.NOT_ENOUGH_REPLICAS),  # after it
    21: _FAIL,
    29: _FAIL,
    31: _FAIL,
    32: _FAIL,
    42: _FAIL,
    43: _FAIL,
    44: _FAIL,
    45: _Rule(Verdict.RESEQUENCE, Cause.OTHER),
    46: _Rule(Verdict.DELIVERED),  # an older broker's word for a repeat
    47: _FRESH_ID_OR_ABORT,
    48: _Rule(Verdict.FAIL_BATCH, transactional=Verdict.ABORT),
    49: _FRESH_ID_OR_ABORT,
    51: _Rule(Verdict.RETRY),  # KIP-890: the last transaction's markers are being written
    53: _FRESH_ID_OR_ABORT,
    56: _Rule(Verdict.REFRESH, Cause.STORAGE_ERROR),
    59: _FRESH_ID,
    72: _REFRESH_UNAVAILABLE,
    74: _REFRESH_NOT_LEADER,
    75: _REFRESH_NOT_LEADER,
    76: _FAIL,
    87: _FAIL,
    89: _RETRY,
    90: replace(_FRESH_ID, transactional=Verdict.FAIL_PRODUCER),
    100: _REFRESH_UNAVAILABLE,
    103: _REFRESH_UNAVAILABLE,
    120: _FRESH_ID_OR_ABORT,
}

UNKNOWN_SERVER_ERROR_TRIES_MAX = 3
UNSUPPORTED_VERSION = 35
CONCURRENT_TRANSACTIONS = 51
SOON_S = 0.02  # until a broker that is only finishing something is asked again

# Codes −1 to 133 in order; Kafka leaves none out.
_NAMES = """
    UNKNOWN_SERVER_ERROR NONE OFFSET_OUT_OF_RANGE CORRUPT_MESSAGE UNKNOWN_TOPIC_OR_PARTITION
    INVALID_FETCH_SIZE LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT
    BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE MESSAGE_TOO_LARGE STALE_CONTROLLER_EPOCH
    OFFSET_METADATA_TOO_LARGE NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS
    COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR INVALID_TOPIC_EXCEPTION RECORD_LIST_TOO_LARGE
    NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REQUIRED_ACKS
    ILLEGAL_GENERATION INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID UNKNOWN_MEMBER_ID
    INVALID_SESSION_TIMEOUT REBALANCE_IN_PROGRESS INVALID_COMMIT_OFFSET_SIZE
    TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED
    INVALID_TIMESTAMP UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE UNSUPPORTED_VERSION
    TOPIC_ALREADY_EXISTS INVALID_PARTITIONS INVALID_REPLICATION_FACTOR
    INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG NOT_CONTROLLER INVALID_REQUEST
    UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION OUT_OF_ORDER_SEQUENCE_NUMBER
    DUPLICATE_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH INVALID_TXN_STATE
    INVALID_PRODUCER_ID_MAPPING INVALID_TRANSACTION_TIMEOUT CONCURRENT_TRANSACTIONS
    TRANSACTION_COORDINATOR_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED SECURITY_DISABLED
    OPERATION_NOT_ATTEMPTED KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND SASL_AUTHENTICATION_FAILED
    UNKNOWN_PRODUCER_ID REASSIGNMENT_IN_PROGRESS DELEGATION_TOKEN_AUTH_DISABLED
    DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_AUTHORIZATION_FAILED
    DELEGATION_TOKEN_EXPIRED INVALID_PRINCIPAL_TYPE NON_EMPTY_GROUP GROUP_ID_NOT_FOUND
    FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND
    TOPIC_DELETION_DISABLED FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH
    UNSUPPORTED_COMPRESSION_TYPE STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE MEMBER_ID_REQUIRED
    PREFERRED_LEADER_NOT_AVAILABLE GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID
    ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS
    GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD UNSTABLE_OFFSET_COMMIT THROTTLING_QUOTA_EXCEEDED
    PRODUCER_FENCED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL
    INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED
    PRINCIPAL_DESERIALIZATION_FAILURE SNAPSHOT_NOT_FOUND POSITION_OUT_OF_RANGE UNKNOWN_TOPIC_ID
    DUPLICATE_BROKER_REGISTRATION BROKER_ID_NOT_REGISTERED INCONSISTENT_TOPIC_ID
    INCONSISTENT_CLUSTER_ID TRANSACTIONAL_ID_NOT_FOUND FETCH_SESSION_TOPIC_ID_ERROR
    INELIGIBLE_REPLICA NEW_LEADER_ELECTED OFFSET_MOVED_TO_TIERED_STORAGE FENCED_MEMBER_EPOCH
    UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH MISMATCHED_ENDPOINT_TYPE
    UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE
    INVALID_REGISTRATION TRANSACTION_ABORTABLE INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND
    INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER
    VOTER_NOT_FOUND INVALID_REGULAR_EXPRESSION REBOOTSTRAP_REQUIRED STREAMS_INVALID_TOPOLOGY
    STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED SHARE_SESSION_LIMIT_REACHED
""".split()  # noqa: SIM905 - one name a line would fill three screens
_FIRST_CODE = -1

_LOSS_NAMES = {
    Loss.UNRESOLVED: "HOST_UNRESOLVED",
    Loss.REFUSED: "CONNECTION_REFUSED",
    Loss.SETUP_TIMEOUT: "CONNECTION_SETUP_TIMEOUT",
    Loss.AUTHENTICATION: "AUTHENTICATION_FAILED",
    Loss.UNSUPPORTED: "UNSUPPORTED_VERSION",
    Loss.CLOSED: "CONNECTION_CLOSED",
    Loss.BAD_BYTES: "UNREADABLE_ANSWER",
}


def code_name(error_code: int) -> str:
    """The protocol name of a code; UNKNOWN_CODE_n where Kafka 4.1 has none."""
    index = error_code - _FIRST_CODE
    if 0 <= index < len(_NAMES):
        return _NAMES[index]
    return f"UNKNOWN_CODE_{error_code}"


def judge(
    error_code: int, base_offset: int, *, records: int, transactional: bool = False
) -> Judgement:
    """What a broker's answer for one partition of a Produce request means.

    Args:
        error_code: of the partition's answer; any number.
        base_offset: of the partition's answer; −1 with an error says that nothing was appended.
        records: in the batch that was sent.
        transactional: the producer has a transactional id.
    """
    return _judge(error_code, base_offset >= 0, records == 1, transactional)


@lru_cache(maxsize=512)
def _judge(error_code: int, has_offset: bool, one_record: bool, transactional: bool) -> Judgement:
    rule = _RULES.get(error_code, _NOT_FOR_PRODUCE)
    verdict = rule.verdict
    if transactional and rule.transactional is not None:
        verdict = rule.transactional
    elif one_record and rule.one_record is not None:
        verdict = rule.one_record
    judgement = Judgement(
        verdict,
        code_name(error_code),
        AttemptState.REFUSED,
        rule.cause if verdict is rule.verdict else None,
        stale_leader=verdict is Verdict.REFRESH,
        fresh_producer_id=rule.fresh_producer_id and verdict is Verdict.RESEQUENCE,
        tries_max=UNKNOWN_SERVER_ERROR_TRIES_MAX if error_code == -1 else None,
        error_code=error_code,
    )
    if verdict is Verdict.DELIVERED:
        return replace(judgement, state=AttemptState.ACCEPTED)
    if error_code == 7 and has_offset:  # appended, not yet replicated (S2, S4)
        return replace(judgement, state=AttemptState.DOUBTFUL, cause=None, stall=True)
    if verdict is Verdict.REFRESH and has_offset:  # appended before leadership was lost (S2)
        return replace(judgement, verdict=Verdict.UNSURE, state=AttemptState.DOUBTFUL)
    if verdict is Verdict.RESEQUENCE and has_offset:  # contradicts itself: believe the offset
        return replace(
            judgement,
            verdict=Verdict.UNSURE,
            state=AttemptState.DOUBTFUL,
            fresh_producer_id=False,
        )
    if verdict is Verdict.UNSURE or has_offset or not rule.known_stage:
        return replace(judgement, state=AttemptState.DOUBTFUL)
    return judgement


def judge_loss(loss: Loss, sent: bool) -> Judgement:
    """What the end of a connection means for a batch that was to go, or went, over it.

    Args:
        loss: why it ended, unasked.
        sent: the request was handed to the open connection and is unanswered. A peer's host takes
            what it has received even after the connection is closed (B16).
    """
    return Judgement(
        Verdict.UNSURE if sent else Verdict.REFRESH,
        _LOSS_NAMES[loss],
        AttemptState.LEFT if sent else AttemptState.REFUSED,
        Cause.CONNECTION_LOST,
        stale_leader=True,
    )


def judge_timeout() -> Judgement:
    """A request was unanswered for `request_timeout_ms`; its connection is given up."""
    return replace(_GIVEN_UP, name="REQUEST_TIMED_OUT", cause=Cause.REQUEST_TIMEOUT)


def judge_silence() -> Judgement:
    """The node does not answer its probe either; its connections are given up."""
    return replace(_GIVEN_UP, name="SILENT", cause=Cause.SILENT)


def judge_abort() -> Judgement:
    """We gave the connection up for a lane's or another partition's sake: no rejection."""
    return replace(_GIVEN_UP, name="ABORTED", stale_leader=False)


_GIVEN_UP = Judgement(Verdict.UNSURE, "", AttemptState.LEFT, stale_leader=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table as documentation shows it."""

    code: int | None
    when: str  # '' is the usual case
    judgement: Judgement


def table() -> list[Row]:
    """Every signal and what it means, made by asking the functions above.

    The usual case of every code comes first, then the cases that differ from it.
    """
    rows: list[Row] = []
    for code in range(_FIRST_CODE, _FIRST_CODE + len(_NAMES)):
        usual = judge(code, -1, records=2)
        special = (
            ("base_offset ≥ 0", judge(code, 0, records=2)),
            ("one record", judge(code, -1, records=1)),
            ("with a transactional id", judge(code, -1, records=2, transactional=True)),
        )
        rows.append(Row(code, "", usual))
        rows += [Row(code, when, other) for when, other in special if other != usual]
    for loss in Loss:
        rows.append(Row(None, "before the request was sent", judge_loss(loss, sent=False)))
    rows.append(Row(None, "after the request was sent", judge_loss(Loss.CLOSED, sent=True)))
    rows.append(Row(None, "after the request was sent", judge_loss(Loss.BAD_BYTES, sent=True)))
    rows += [Row(None, "", j) for j in (judge_timeout(), judge_silence(), judge_abort())]
    return rows
