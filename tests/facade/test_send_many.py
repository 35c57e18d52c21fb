"""`send_many`: what `send` would have done with each record, in one call."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from outlast import KafkaProducer
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic, read_back

MakeProducer = Callable[..., KafkaProducer]

VALUES = [b"%d" % n for n in range(1000)]


def test_records_arrive_in_order_and_each_has_its_place(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    topic = new_topic(shared_cluster, 1)
    many = make_producer(shared_cluster).send_many(topic, VALUES)
    assert [metadata.offset for metadata in many.get(10)] == list(range(1000))
    [stored] = read_back(shared_cluster, topic)
    assert [record.value for record in stored] == VALUES


@pytest.mark.timed
def test_it_costs_a_fraction_of_as_many_sends(
    shared_cluster: ClusterServer, make_producer: MakeProducer
) -> None:
    topic, values = new_topic(shared_cluster, 3), [b"v" * 100] * 20_000
    producer = make_producer(shared_cluster)
    producer.send_many(topic, values[:100]).get(10)
    single_s = many_s = float("inf")
    for _ in range(3):
        begin_s = time.thread_time()
        for value in values:
            producer.send(topic, value)
        single_s = min(single_s, time.thread_time() - begin_s)
        producer.flush()
        begin_s = time.thread_time()
        producer.send_many(topic, values)
        many_s = min(many_s, time.thread_time() - begin_s)
        producer.flush()
    print(f"{single_s / many_s:.1f} times as much")
    assert many_s < single_s / 2
