"""What cannot be written into a request is refused by the call that gives it, and harms nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from outlast import KafkaProducer
from outlast.errors import ConfigurationError
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer

PLACE = TopicPartition("orders", 0)
LONE_SURROGATE = "\ud800"
LONG = "é" * 2**14  # 32768 bytes

BAD_OFFSETS = [
    (PLACE, OffsetAndMetadata(None), TypeError, "offset of orders-0 must be a whole number"),
    (PLACE, OffsetAndMetadata(True), TypeError, "offset of orders-0"),
    (PLACE, OffsetAndMetadata(1.5), TypeError, "offset of orders-0"),
    (PLACE, OffsetAndMetadata(-1), ValueError, "offset of orders-0 must be from 0 to"),
    (PLACE, OffsetAndMetadata(2**63), ValueError, "offset of orders-0"),
    (PLACE, OffsetAndMetadata(1, b"x"), TypeError, "metadata of orders-0 must be a string"),
    (PLACE, OffsetAndMetadata(1, LONE_SURROGATE), ValueError, "metadata of orders-0"),
    (PLACE, OffsetAndMetadata(1, LONG), ValueError, "at most 32767 bytes"),
    (PLACE, OffsetAndMetadata(1, "", "2"), TypeError, "leader_epoch of orders-0"),
    (PLACE, OffsetAndMetadata(1, "", 2**31), ValueError, "leader_epoch of orders-0"),
    (TopicPartition(b"orders", 0), OffsetAndMetadata(1), TypeError, "topic must be a string"),
    (TopicPartition(LONE_SURROGATE, 0), OffsetAndMetadata(1), ValueError, "topic must be"),
    (TopicPartition("orders", "0"), OffsetAndMetadata(1), TypeError, "partition of 'orders'"),
    (TopicPartition("orders", -1), OffsetAndMetadata(1), ValueError, "partition of 'orders'"),
]
BAD_GROUPS = [
    (ConsumerGroupMetadata(), TypeError, "group_id must be a string, got None"),
    (ConsumerGroupMetadata(LONE_SURROGATE), ValueError, "group_id must be a string of at most"),
    (LONG, ValueError, "group_id"),
    (ConsumerGroupMetadata("readers", "1", "me"), TypeError, "generation_id"),
    (ConsumerGroupMetadata("readers", 2**31, "me"), ValueError, "generation_id"),
    (ConsumerGroupMetadata("readers", 1, None), TypeError, "member_id"),
    (ConsumerGroupMetadata("readers", 1, ""), ValueError, "member_id must not be empty"),
    (ConsumerGroupMetadata("readers", 1, "me", 7), TypeError, "group_instance_id"),
]


@pytest.fixture
def producer(make_producer: Callable[..., KafkaProducer]) -> Any:
    """One with an open transaction."""
    with ClusterServer(MockCluster(1, rng=random.Random(1))) as server:
        server.create_topic("orders", 1)
        producer = make_producer(server, transactional_id="shop")
        producer.init_transactions()
        producer.begin_transaction()
        yield producer


def test_offsets_that_cannot_be_written_are_refused(producer: KafkaProducer) -> None:
    good = {TopicPartition("orders", 7): OffsetAndMetadata(1)}
    for place, offset, error, text in BAD_OFFSETS:
        with pytest.raises(error, match=text):
            producer.send_offsets_to_transaction({**good, place: offset}, "readers")
    producer.send_offsets_to_transaction({PLACE: OffsetAndMetadata(1, None, None)}, "readers")
    producer.commit_transaction()


def test_a_group_that_cannot_be_written_is_refused(producer: KafkaProducer) -> None:
    for group, error, text in BAD_GROUPS:
        with pytest.raises(error, match=text):
            producer.send_offsets_to_transaction({PLACE: OffsetAndMetadata(1)}, group)
    producer.send_offsets_to_transaction({PLACE: OffsetAndMetadata(1)}, "readers")
    producer.commit_transaction()


@pytest.mark.parametrize(
    "setting",
    [
        {"transactional_id": LONE_SURROGATE},
        {"transactional_id": LONG},
        {"transactional_id": ""},
        {"transaction_timeout_ms": 2**31},
        {"transaction_timeout_ms": 0},
        {"client_id": LONE_SURROGATE},
        {"client_id": LONG},
    ],
    ids=lambda setting: "=".join((next(iter(setting)), repr(next(iter(setting.values())))[:12])),
)
def test_a_setting_that_cannot_be_written_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(setting))}=.* must be"):
        KafkaProducer(**setting)
