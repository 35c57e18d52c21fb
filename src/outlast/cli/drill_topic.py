"""The topic a drill writes to: made for it, or given and found to hold nothing but drills' records.

A drill's records carry the header `outlast-drill` with the drill's id as its value. A topic that
was given is looked through before anything is written: every record must carry that header. What
cannot be looked through (too much, too slow) is refused like what is foreign.

Rule: whatever is wrong is a `DrillError`, a sentence for the user that says what to do, and until
`open_canary` returns nothing has been written anywhere.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
    for_code,
)

from outlast.cli.administrator import LastWords, opened
from outlast.cli.producer_config import for_client

MARK = "outlast-drill"  # header of a drill's records, and how topics made for drills begin
CONNECT_S = 10.0
ANSWER_S = 10.0
DELETE_ANSWER_S = 2.0
READY_S, READY_PAUSE_S = 20.0, 0.02
NEWS_S = 0.5  # by then every broker has heard of a topic
DELETE_TRIES = 8  # each may meet a dead broker that is still listed
LOOK_RECORDS = 100_000
LOOK_S = 30.0
USUAL_REPLICATION = 3  # where brokers are too old (before 2.4) to know what is usual
NO_SUCH_TOPIC, NOT_ALLOWED, TOO_FEW_BROKERS = 3, (29, 31), 38  # error codes
_CODE = re.compile(r"^\[Error -?\d+\] ")
NEEDED = ("READ", "WRITE")  # operations on a topic


class DrillError(Exception):
    """The drill cannot be run, or not to its end; the text tells the user why."""


@dataclass(frozen=True, slots=True)
class Canary:
    """The topic, and what must be known of it."""

    topic: str
    partitions: tuple[int, ...]
    brokers: tuple[int, ...]
    made: bool  # by this drill, which deletes it at the end


@contextmanager
def administrator(
    keywords: Mapping[str, Any], answer_s: float = ANSWER_S, connect_s: float | None = None
) -> Iterator[KafkaAdminClient]:
    """An admin client for the cluster that a producer with these keywords writes to.

    Raises:
        DrillError: no broker answers within `connect_s` (else `CONNECT_S`), or it refuses us.
    """
    connect_s = CONNECT_S if connect_s is None else connect_s
    addresses = keywords.get("bootstrap_servers", "localhost")
    heard = LastWords()
    configs = {
        **for_client(keywords, KafkaAdminClient),
        "client_id": MARK,
        "bootstrap_timeout_ms": int(connect_s * 1000),
        "request_timeout_ms": int(answer_s * 1000),
        "reconnect_backoff_max_ms": 1000,
    }
    with contextlib.ExitStack() as stack:
        try:
            admin = stack.enter_context(opened(heard, configs))
        except KafkaTimeoutError:
            why = f" ({heard.reason})" if heard.reason else ""
            raise DrillError(
                f"no broker answers at {addresses} within {connect_s:g} s{why}; check the address, "
                "and the security settings if the brokers use TLS or SASL"
            ) from None
        except (KafkaError, OSError, ValueError) as error:
            raise DrillError(f"cannot connect to {addresses}: {told(error)}") from None
        yield admin


def open_canary(
    admin: KafkaAdminClient,
    keywords: Mapping[str, Any],
    topic: str | None,
    partitions: int | None,
    drill_id: str,
) -> Canary:
    """Find the topic that was named and look it through, or make one.

    Raises:
        DrillError: there is no such topic, it holds foreign records, or something is not allowed.
        KafkaError: a broker does not answer as it should.
    """
    brokers = tuple(sorted(b["broker_id"] for b in admin.describe_cluster()["brokers"]))
    if topic is not None:
        return Canary(topic, _given(admin, keywords, topic), brokers, made=False)
    name = f"{MARK}-{drill_id}"
    count = partitions or 2 * len(brokers)
    _make(admin, name, count, len(brokers))
    try:
        return Canary(name, _made(admin, name, count), brokers, made=True)
    except BaseException:
        admin.delete_topics([name], raise_errors=False)
        raise


def delete(keywords: Mapping[str, Any], canary: Canary) -> str | None:
    """Delete the topic that was made; None, or a sentence that tells why it is still there."""
    why = ""
    for _ in range(DELETE_TRIES):
        try:
            with administrator(keywords, DELETE_ANSWER_S) as admin:
                (result,) = admin.delete_topics([canary.topic], raise_errors=False)["topics"]
            code = result["error_code"]
            why = "" if code in (0, NO_SUCH_TOPIC) else for_code(code).__name__
            break
        except KafkaError as error:
            why = told(error)
        except DrillError as error:  # nobody answers
            why = str(error)
            break
    return f"topic {canary.topic} could not be deleted ({why}); please delete it" if why else None


def told(error: BaseException) -> str:
    """An error in one line, without what kafka-python's texts repeat of requests."""
    text = _CODE.sub("", str(error)).split("Request '")[0].strip(" :")
    name = type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}" if text else name


# --- a topic that was given -----------------------------------------------------------------------


def _given(admin: KafkaAdminClient, keywords: Mapping[str, Any], topic: str) -> tuple[int, ...]:
    found = _described(admin, topic)
    code = found["error_code"]
    if code == NO_SUCH_TOPIC:
        raise DrillError(
            f"there is no topic {topic!r}; without --topic the drill makes one of its own"
        )
    if code in NOT_ALLOWED:
        raise DrillError(f"not allowed to describe topic {topic!r}: the user needs Describe on it")
    if code:
        raise DrillError(f"topic {topic!r} cannot be used: {for_code(code).__name__}")
    if found["is_internal"]:
        raise DrillError(f"{topic!r} is Kafka's own topic: a drill does not write to it")
    _check_rights(topic, found["authorized_operations"])
    led = {part["partition_index"]: part["leader_id"] for part in found["partitions"]}
    if without := [f"{topic}-{index}" for index, leader in sorted(led.items()) if leader < 0]:
        raise DrillError(f"no leader for {', '.join(without)}: the drill needs all to begin with")
    partitions = tuple(sorted(led))
    _look_through(keywords, topic, partitions)
    return partitions


def _described(admin: KafkaAdminClient, topic: str) -> dict[str, Any]:
    """As a broker describes it; asked again for a moment, as one may not know what others do."""
    deadline_s = time.monotonic() + NEWS_S
    while True:
        found: dict[str, Any] = admin.describe_topics([topic])[0]
        led = all(part["leader_id"] >= 0 for part in found["partitions"])
        settled = found["error_code"] != NO_SUCH_TOPIC and led
        if settled or time.monotonic() > deadline_s:
            return found
        time.sleep(READY_PAUSE_S)


def _check_rights(topic: str, operations: list[str] | None) -> None:
    """Brokers from 2.3 on tell what the user may do."""
    if operations is not None and (missing := [o for o in NEEDED if o not in operations]):
        wanted = " and ".join(operation.capitalize() for operation in missing)
        raise DrillError(f"not allowed to use topic {topic!r}: the user needs {wanted} on it")


def _look_through(keywords: Mapping[str, Any], topic: str, partitions: tuple[int, ...]) -> None:
    """Every record there must be a drill's."""
    assigned = [TopicPartition(topic, partition) for partition in partitions]
    deadline_s = time.monotonic() + LOOK_S
    with consumer(keywords) as reader:
        try:
            begins, ends = reader.beginning_offsets(assigned), reader.end_offsets(assigned)
            filled = [tp for tp in assigned if ends[tp] > begins[tp]]
            if not filled:
                return
            reader.assign(filled)
            for tp in filled:
                reader.seek(tp, begins[tp])
            count = sum(ends[tp] - begins[tp] for tp in filled)
            while behind := [tp for tp in filled if reader.position(tp) < ends[tp]]:
                for tp, records in reader.poll(timeout_ms=500).items():
                    if foreign := next((r for r in records if not is_drills(r)), None):
                        raise DrillError(
                            f"topic {topic!r} holds records that are no drill's, such as "
                            f"{topic}-{tp.partition} at offset {foreign.offset}: nothing was "
                            "written; name a topic of the drill's own, or leave --topic out"
                        )
                if count > LOOK_RECORDS:
                    raise DrillError(
                        f"topic {topic!r} holds {count:,} records, more than the drill looks "
                        f"through ({LOOK_RECORDS:,}): empty it, or leave --topic out"
                    )
                if time.monotonic() > deadline_s:
                    raise DrillError(
                        f"topic {topic!r} could not be looked through within {LOOK_S:g} s: "
                        f"{', '.join(str(tp.partition) for tp in behind)} not read to the end"
                    )
        except TopicAuthorizationFailedError:
            raise DrillError(unreadable(topic)) from None


def unreadable(topic: str) -> str:
    """What a user without the right is told."""
    return f"not allowed to read topic {topic!r}: the user needs Read on it"


def is_drills(record: Any) -> bool:
    """Whether a consumer's record was written by a drill, this one or another."""
    return any(name == MARK for name, _ in record.headers)


@contextmanager
def consumer(
    keywords: Mapping[str, Any], answer_s: float = ANSWER_S, metadata_s: float = ANSWER_S
) -> Iterator[KafkaConsumer]:
    """A consumer without a group.

    Args:
        answer_s: how long a broker is waited for.
        metadata_s: how often it asks who leads: by that it finds a new leader.
    """
    reader = KafkaConsumer(
        **for_client(keywords, KafkaConsumer),
        client_id=MARK,
        group_id=None,
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        auto_offset_reset="latest",  # after an unclean election the log may be shorter
        bootstrap_timeout_ms=int(CONNECT_S * 1000),
        fetch_max_wait_ms=100,
        request_timeout_ms=int(answer_s * 1000),
        metadata_max_age_ms=int(metadata_s * 1000),
        reconnect_backoff_max_ms=500,
    )
    try:
        yield reader
    finally:
        reader.close(autocommit=False)


# --- a topic of its own ---------------------------------------------------------------------------


def _make(admin: KafkaAdminClient, name: str, partitions: int, brokers: int) -> None:
    """With the cluster's usual replication."""
    options = {"num_partitions": partitions, "replication_factor": -1}
    try:
        answer = admin.create_topics({name: options}, raise_errors=False)
    except IncompatibleBrokerVersion:
        options["replication_factor"] = min(USUAL_REPLICATION, brokers)
        answer = admin.create_topics({name: options}, raise_errors=False)
    (result,) = answer["topics"]
    code = result["error_code"]
    if code in NOT_ALLOWED:
        raise DrillError(
            f"not allowed to make topic {name!r}: the user needs Create on topics that begin with "
            f"{MARK}-, or name a topic that is there with --topic"
        )
    if code:
        why = (result.get("error_message") or for_code(code).__name__).rstrip(".")
        first = "wait until all brokers are up, or " if code == TOO_FEW_BROKERS else ""
        raise DrillError(
            f"topic {name!r} could not be made: {why}; {first}name one that is there with --topic"
        )


def _made(admin: KafkaAdminClient, name: str, partitions: int) -> tuple[int, ...]:
    """Its partitions, once whichever broker is asked knows all of them and their leaders."""
    admin.wait_for_topics([name], timeout_ms=int(READY_S * 1000))
    deadline_s = time.monotonic() + READY_S
    while True:
        (found,) = admin.describe_topics([name])  # perhaps of another broker than before
        led = [part["partition_index"] for part in found["partitions"] if part["leader_id"] >= 0]
        if len(led) == partitions:
            _check_rights(name, found["authorized_operations"])
            return tuple(sorted(led))
        if time.monotonic() > deadline_s:
            raise DrillError(f"topic {name!r} was made, and has no leaders within {READY_S:g} s")
        time.sleep(READY_PAUSE_S)
