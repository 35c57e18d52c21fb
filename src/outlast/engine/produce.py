"""Produce requests built, Produce answers read: the only engine file that knows their layout.

Requests carry the topic's name and its id; which one goes on the wire is the version's affair
(ids from v13). Answers are read into one small value per partition, hints of KIP-951 included.
An answer is another's bytes: whatever it lacks or names twice is no reason to assert.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka.protocol.producer import ProduceRequest

from outlast.engine.batch import Batch

_TOPIC = ProduceRequest.TopicProduceData
_PARTITION = _TOPIC.PartitionProduceData
NO_TOPIC_ID = UUID(int=0)
TRANSACTIONAL_VERSION_MAX = 11


@dataclass(slots=True)
class Answer:
    """What a broker answered for one partition."""

    error_code: int
    base_offset: int
    log_append_time_ms: int
    message: str
    record_errors: tuple[tuple[int, str], ...]  # index in the batch, text (KIP-467)
    leader_id: int  # the hint: −1 is none
    leader_epoch: int
    leader_endpoint: tuple[str, int] | None


def build_request(
    batches: Sequence[Batch],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
    adds_partitions: bool = True,
) -> Any:
    """One request with these batches, at most one of each partition (S14), none empty (S13).

    `adds_partitions`: the broker adds them to the transaction (KIP-890), as it does from version
    12 on; without, its coordinator was told of them before.
    """
    topics: dict[str, Any] = {}
    for batch in batches:
        assert batch.data
        topic_id = batch.attempts[-1].topic_id
        topic = topics.get(batch.topic)
        if topic is None:
            topic = _TOPIC(name=batch.topic, topic_id=topic_id or NO_TOPIC_ID, partition_data=[])
            topics[batch.topic] = topic
        topic.partition_data.append(_PARTITION(index=batch.partition, records=batch.data))
    newest = {} if adds_partitions else {"max_version": TRANSACTIONAL_VERSION_MAX}
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=list(topics.values()),
        **newest,
    )


def read_answers(response: Any, batches: Iterable[Batch]) -> dict[tuple[str, int], Answer]:
    """The answer of each partition by topic name; ids are resolved by what was asked for. One that
    is named twice has none: who takes the last word may take a 0 that was another's.
    """
    names = {batch.attempts[-1].topic_id: batch.topic for batch in batches if batch.attempts}
    by_id = response.API_VERSION >= 13
    endpoints = {n.node_id: (n.host, n.port) for n in response.node_endpoints or ()}
    answers: dict[tuple[str, int], Answer] = {}
    twice: set[tuple[str, int]] = set()
    for topic in response.responses or ():
        name = names.get(topic.topic_id) if by_id else topic.name
        if name is None:
            continue
        for p in topic.partition_responses or ():
            if (name, p.index) in answers:
                twice.add((name, p.index))
            leader = p.current_leader
            leader_id = leader.leader_id if leader is not None else -1
            answers[name, p.index] = Answer(
                error_code=p.error_code,
                base_offset=p.base_offset,
                log_append_time_ms=p.log_append_time_ms,
                message=p.error_message or "",
                record_errors=tuple(
                    (e.batch_index, e.batch_index_error_message or "")
                    for e in p.record_errors or ()
                ),
                leader_id=leader_id,
                leader_epoch=leader.leader_epoch if leader is not None else -1,
                leader_endpoint=endpoints.get(leader_id),
            )
    for tp in twice:
        del answers[tp]
    return answers
