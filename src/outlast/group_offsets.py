"""A consumer group and its offsets, as the application gives them to a transaction.

Rule: all of it is looked at before the engine sees any, so that no request is asked for that cannot
be written to a connection. What can be written, but is not so, is for the coordinator to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from outlast import checks

if TYPE_CHECKING:  # the engine is not brought in before a producer is built
    from outlast.engine.txn_wire import Group, Offset

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def group_of(group_metadata: Any) -> Group:
    """A consumer group from `KafkaConsumer.group_metadata()`, or from its id.

    Raises:
        TypeError: it is neither, or a part of it has the wrong type.
        ValueError: it is of a member without a name, or a part of it is out of its range.
    """
    if isinstance(group_metadata, str):
        group_metadata = ConsumerGroupMetadata(group_id=group_metadata)
    from outlast.engine.txn_wire import Group

    if not isinstance(group_metadata, ConsumerGroupMetadata):
        raise TypeError(
            "send_offsets_to_transaction() takes a ConsumerGroupMetadata or a group's id, got "
            f"{group_metadata!r}"
        )
    instance = group_metadata.group_instance_id
    group = Group(
        _text("group_id", group_metadata.group_id),
        _whole("generation_id", group_metadata.generation_id, -1, INT32_MAX),
        _text("member_id", group_metadata.member_id),
        None if instance is None else _text("group_instance_id", instance),
    )
    if group.generation_id > 0 and not group.member_id:
        raise ValueError(
            f"Invalid ConsumerGroupMetadata: generation_id={group.generation_id} is of a "
            "joined group, so that member_id must not be empty"
        )
    return group


def offsets_of(offsets: Mapping[Any, Any]) -> dict[tuple[str, int], Offset]:
    """What is to be committed, by partition.

    Raises:
        TypeError: not a dict of TopicPartition and OffsetAndMetadata, or a part has the wrong type.
        ValueError: a number or a text is out of its range.
    """
    if not isinstance(offsets, Mapping):
        raise TypeError(
            f"offsets must be a dict of TopicPartition: OffsetAndMetadata, got {offsets!r}"
        )
    from outlast.engine.txn_wire import Offset

    converted: dict[tuple[str, int], Offset] = {}
    for place, given in offsets.items():
        if not isinstance(place, TopicPartition) or not isinstance(given, OffsetAndMetadata):
            raise TypeError(
                "offsets must be a dict of TopicPartition: OffsetAndMetadata, has "
                f"{place!r}: {given!r}"
            )
        topic = _text("topic", place.topic)
        partition = _whole(f"partition of {topic!r}", place.partition, 0, INT32_MAX)
        of = f"of {topic}-{partition}"
        epoch = -1 if given.leader_epoch is None else given.leader_epoch
        metadata = "" if given.metadata is None else given.metadata
        converted[topic, partition] = Offset(
            _whole(f"offset {of}", given.offset, 0, INT64_MAX),
            _whole(f"leader_epoch {of}", epoch, -1, INT32_MAX),
            _text(f"metadata {of}", metadata),
        )
    return converted


def _whole(what: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number from {low} to {high}, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{what} must be from {low} to {high}, got {value}")
    return value


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, got {value!r}")
    if not checks.fits_wire(value):
        raise ValueError(f"{what} must be {checks.but_none(checks.WIRE_TEXT)}, got {value[:80]!r}")
    return value
