"""Exceptions: what users catch goes on to catch them, and they tell the outcome."""

from __future__ import annotations

import copy
import pickle

import kafka.errors
import pytest
from kafka.structs import TopicPartition

from outlast.engine.messages import AttemptRecord, AttemptState, Failure, Outcome
from outlast.errors import (
    BlockedError,
    ClosedError,
    ConfigurationError,
    DeliveryError,
    OutlastError,
    error_for,
)

TP = TopicPartition("orders", 3)


def attempt(
    at: float, *, error: str = "", state: AttemptState = AttemptState.REFUSED, node: int = 2
) -> AttemptRecord:
    return AttemptRecord(at, node, f"{node}/open#1", 5, state, error)


def failure(
    kind: str = "refused",
    code: int | None = None,
    *,
    outcome: Outcome = Outcome.NOT_ACCEPTED,
    attempts: tuple[AttemptRecord, ...] = (),
    left_out: int = 0,
) -> Failure:
    return Failure(kind, code, "the reason", outcome, attempts, left_out)


@pytest.mark.parametrize(
    ("code", "caught_as"),
    [
        (6, kafka.errors.NotLeaderForPartitionError),
        (10, kafka.errors.MessageSizeTooLargeError),
        (29, kafka.errors.TopicAuthorizationFailedError),
        (31, kafka.errors.ClusterAuthorizationFailedError),
        (87, kafka.errors.InvalidRecordError),
        (-1, kafka.errors.UnknownError),
        (9_999, kafka.errors.UnknownError),
    ],
)
def test_error_codes_give_kafka_pythons_class(code: int, caught_as: type[Exception]) -> None:
    error = error_for(failure(code=code), TP)
    assert isinstance(error, caught_as)
    assert isinstance(error, DeliveryError)
    assert isinstance(error, kafka.errors.KafkaError)
    assert error.errno == code
    assert f"[Error {code}]" in str(error)
    assert error.retriable is kafka.errors.for_code(code).retriable


@pytest.mark.parametrize(
    ("kind", "caught_as", "retriable"),
    [
        ("delivery_timeout", kafka.errors.KafkaTimeoutError, True),
        ("closed", kafka.errors.IllegalStateError, False),
        ("forked", kafka.errors.IllegalStateError, False),
        ("retries", kafka.errors.KafkaConnectionError, True),
        ("topic_gone", kafka.errors.UnknownTopicOrPartitionError, True),
        ("no_producer_id", kafka.errors.UnsupportedVersionError, False),
        ("something new", kafka.errors.KafkaError, False),
    ],
)
def test_kinds_without_code(
    kind: str, caught_as: type[kafka.errors.KafkaError], retriable: bool
) -> None:
    error = error_for(failure(kind), TP)
    assert isinstance(error, caught_as)
    assert error.retriable is retriable
    assert isinstance(error, kafka.errors.RetriableError) is retriable
    assert error.kind == kind
    assert error.error_code is None


def test_one_class_for_each_code() -> None:
    assert type(error_for(failure(code=6), TP)) is type(error_for(failure(code=6), TP))
    assert type(error_for(failure(code=9_999), TP)) is type(error_for(failure(code=9_999), TP))
    assert type(error_for(failure(code=6), TP)) is not type(error_for(failure(code=5), TP))


def test_tells_outcome_and_attempts() -> None:
    attempts = (attempt(10.0, error="REQUEST_TIMED_OUT"), attempt(13.2, error="NOT_LEADER", node=1))
    error = error_for(failure(code=6, outcome=Outcome.UNKNOWN, attempts=attempts, left_out=5), TP)
    assert error.outcome is Outcome.UNKNOWN
    assert error.attempts == attempts
    assert error.attempts_left_out == 5
    assert error.topic_partition == TP
    text = str(error)
    assert "orders-3: it may be in the log: the reason" in text
    assert "tried 7 times over 3.2 s; last NOT_LEADER from node 1" in text


@pytest.mark.parametrize(
    ("attempts", "words"),
    [
        ((), "(never tried)"),
        ((attempt(1.0, error="X"),), "(tried once: X from node 2)"),
        ((attempt(1.0, state=AttemptState.OPEN),), "(tried once: unanswered by node 2)"),
    ],
)
def test_summary_of_attempts(attempts: tuple[AttemptRecord, ...], words: str) -> None:
    text = str(error_for(failure("closed", attempts=attempts, outcome=Outcome.NEVER_SENT), TP))
    assert words in text
    assert "never sent" in text


@pytest.mark.parametrize("code", [None, 6, 9_999])
def test_pickles_and_copies(code: int | None) -> None:
    error = error_for(failure("closed", code, attempts=(attempt(1.0, error="X"),), left_out=2), TP)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert other.attempts == error.attempts
        assert other.outcome is error.outcome
        assert other.topic_partition == error.topic_partition
        assert other.attempts_left_out == 2


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (BlockedError, kafka.errors.KafkaTimeoutError),
        (ClosedError, kafka.errors.IllegalStateError),
        (ConfigurationError, kafka.errors.KafkaConfigurationError),
        (ConfigurationError, ValueError),
    ],
)
def test_the_rest_of_the_tree(ours: type[Exception], theirs: type[Exception]) -> None:
    assert issubclass(ours, theirs)
    assert issubclass(ours, OutlastError)
    error = pickle.loads(pickle.dumps(ours("words")))
    assert type(error) is ours
    assert "words" in str(error)
