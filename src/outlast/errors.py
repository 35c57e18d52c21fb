"""The exceptions of outlast.

    OutlastError
    ├── ConfigurationError           is a KafkaConfigurationError and a ValueError
    │   ├── ConfigurationTypeError   is a TypeError too: the value has the wrong type
    │   └── MissingCodecError        is a RuntimeError too: a compression library is not installed
    ├── BlockedError                 is a KafkaTimeoutError: send() and its like waited too long
    ├── ClosedError                  is an IllegalStateError: the producer is closed
    └── DeliveryError                a record failed; what a future raises
        └── one class for each class of kafka.errors, made when it is first needed; such as
            NotLeaderForPartitionError(DeliveryError, kafka.errors.NotLeaderForPartitionError)

Rules: whatever kafka-python's users catch today goes on to catch these; every one can be pickled;
a DeliveryError tells the outcome (was the record written?) and the attempts.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

if TYPE_CHECKING:
    from outlast.engine.outcomes import AttemptRecord, Failure, Outcome


class OutlastError(Exception):
    """Root of everything that outlast raises on its own account."""


class ConfigurationError(OutlastError, kafka_errors.KafkaConfigurationError, ValueError):  # type: ignore[misc]
    """A setting is unknown, its value is not allowed, or two settings exclude each other."""

    # kafka-python's puts the class name first: a traceback would have it twice
    __str__ = Exception.__str__


class ConfigurationTypeError(ConfigurationError, TypeError):
    """A setting's value has the wrong type."""


class MissingCodecError(ConfigurationError, RuntimeError):
    """The library for this compression type is not installed."""


class BlockedError(OutlastError, kafka_errors.KafkaTimeoutError):  # type: ignore[misc]
    """A call that may wait (send, flush, partitions_for) has waited as long as it may."""

    __str__ = Exception.__str__


class ClosedError(OutlastError, kafka_errors.IllegalStateError):  # type: ignore[misc]
    """The producer is closed and takes no more records."""

    __str__ = Exception.__str__


class DeliveryError(OutlastError):
    """A record failed.

    Every instance is also of the class that kafka-python raises for the same trouble, so
    `except kafka.errors.KafkaTimeoutError` and the `retriable` attribute work as before.

    Attributes:
        outcome: what is known of the record: `Outcome.NEVER_SENT`, `NOT_ACCEPTED` or `UNKNOWN`.
            Only after *unknown* may the record be in the log.
        topic_partition: where it was to go.
        attempts: tries to deliver its batch, oldest first: the first seven and the last seven.
        attempts_left_out: how many lie between those.
        kind: the cause, such as 'delivery_timeout' or 'closed'; see `Failure`.
        error_code: Kafka's error code, or None.
        retriable: as kafka-python's class has it.
    """

    retriable: bool

    def __init__(self, failure: Failure, topic_partition: TopicPartition) -> None:
        Exception.__init__(self, _text(failure, topic_partition))
        self._failure = failure
        self.topic_partition = topic_partition
        self.outcome: Outcome = failure.outcome
        self.attempts: tuple[AttemptRecord, ...] = failure.attempts
        self.attempts_left_out: int = failure.attempts_left_out
        self.kind: str = failure.kind
        self.error_code: int | None = failure.error_code

    def __reduce__(self) -> tuple[Any, ...]:
        return error_for, (self._failure, self.topic_partition)


# What kafka-python raises where no broker gave an error code.
_CLASS_OF_KIND: dict[str, type[Exception]] = {
    "delivery_timeout": kafka_errors.KafkaTimeoutError,
    "blocked": kafka_errors.KafkaTimeoutError,
    "closed": kafka_errors.IllegalStateError,
    "forked": kafka_errors.IllegalStateError,
    "retries": kafka_errors.KafkaConnectionError,
    "no_producer_id": kafka_errors.UnsupportedVersionError,
    "topic_gone": kafka_errors.UnknownTopicOrPartitionError,
}


def error_for(failure: Failure, topic_partition: TopicPartition) -> DeliveryError:
    """The exception that a future with this failure raises."""
    if failure.error_code is None:
        base = _CLASS_OF_KIND.get(failure.kind, kafka_errors.KafkaError)
    else:
        base = _class_of_code(failure.error_code)
    return _delivery_class(base)(failure, topic_partition)


def is_refusal(error: BaseException) -> bool:
    """Whether it is the cluster that will not have a record, as the record's future tells; and not
    this producer, which raises at once where a record is too large for it, or where it is fenced.
    """
    ours = kafka_errors.MessageSizeTooLargeError, kafka_errors.ProducerFencedError
    return isinstance(error, kafka_errors.BrokerResponseError) and not isinstance(error, ours)


def never_sent(error: Exception) -> Failure:
    """The failure of a record that was not taken because of this."""
    from outlast.engine.outcomes import Failure, Outcome

    kinds = {"blocked": BlockedError, "closed": ClosedError, "refused": Exception}
    kind = next(name for name, cls in kinds.items() if isinstance(error, cls))
    code = error.errno if isinstance(error, kafka_errors.BrokerResponseError) else None
    return Failure(kind, code, str(error), Outcome.NEVER_SENT)


@functools.cache
def _class_of_code(code: int) -> type[Exception]:
    """kafka-python's class for a code; cached, for it makes a new one for each unknown code."""
    found: type[Exception] = kafka_errors.for_code(code)
    return found


@functools.cache
def _delivery_class(base: type[Exception]) -> type[DeliveryError]:
    return type(
        base.__name__,
        (DeliveryError, base),
        {"__module__": __name__, "__doc__": f"A record failed with {base.__name__}."},
    )


def _text(failure: Failure, topic_partition: TopicPartition) -> str:
    from outlast.engine.outcomes import Outcome

    doubt = "it may be in the log" if failure.outcome is Outcome.UNKNOWN else failure.outcome.value
    text = f"{topic_partition.topic}-{topic_partition.partition}: {doubt}"
    if failure.message:
        text += f": {failure.message}"
    return f"{text} ({_tries(failure)})"


def _tries(failure: Failure) -> str:
    """Such as: tried 7 times over 3.2 s; last NOT_LEADER_OR_FOLLOWER from node 2."""
    attempts = failure.attempts
    if not attempts:
        return "never tried"
    count = len(attempts) + failure.attempts_left_out
    from outlast.engine.outcomes import AttemptState

    last = attempts[-1]
    if last.error:
        ended = f"{last.error} from node {last.node_id}"
    elif last.state is AttemptState.ACCEPTED:
        ended = f"accepted by node {last.node_id}"
    else:
        ended = f"unanswered by node {last.node_id}"
    if count == 1:
        return f"tried once: {ended}"
    return f"tried {count} times over {last.at_unix_s - attempts[0].at_unix_s:.1f} s; last {ended}"
