"""The verifier must find every kind of broken promise, and nothing where none was broken."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from kafka import KafkaProducer

from outlast.cli.verify import Delivery, ReadBackError, compare, decode, encode, read_back
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer

LOG = [(offset, offset) for offset in range(10)]
ACKED = {number: number for number in range(10)}


def test_a_clean_log_is_clean() -> None:
    delivery = compare({0: ACKED}, {0: LOG})
    assert delivery == Delivery(10, 0, 0, 0, 0)
    assert delivery
    assert str(delivery) == "lost 0 · duplicated 0 · out of order 0"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (LOG[:4] + LOG[5:], "lost 1 · duplicated 0 · out of order 0"),
        (LOG[:-1], "lost 1 · duplicated 0 · out of order 0"),
        ([], "lost 10 · duplicated 0 · out of order 0"),
        ([*LOG, (10, 9), (11, 8)], "lost 0 · duplicated 2 · out of order 0"),
        (
            [*LOG[:4], (4, 5), (5, 4), *LOG[6:]],
            "lost 0 · duplicated 0 · out of order 1 · at another offset 2",
        ),
        (
            [(0, 0), (1, 0), *((offset + 1, number) for offset, number in LOG[1:])],
            "lost 0 · duplicated 1 · out of order 0 · at another offset 9",
        ),
    ],
)
def test_every_broken_promise_is_counted(log: list[tuple[int, int]], line: str) -> None:
    delivery = compare({0: ACKED, 1: ACKED}, {0: LOG, 1: log})
    assert str(delivery) == line
    assert not delivery


def test_a_partition_that_was_not_read_is_lost() -> None:
    assert compare({0: ACKED, 1: ACKED}, {0: LOG}).lost == 10


def test_records_that_were_not_acknowledged_may_be_missing_or_there() -> None:
    acked = {number: number for number in range(5)}
    assert compare({0: acked}, {0: LOG})
    assert compare({0: {}}, {0: []})


def test_a_record_that_failed_and_came_late_is_out_of_order() -> None:
    late = [*LOG[:3], *((offset - 1, number) for offset, number in LOG[4:]), (9, 3)]
    acked = {number: offset for offset, number in late if number != 3}
    assert compare({0: acked}, {0: late}).out_of_order == 1


def test_values_carry_their_number() -> None:
    assert [decode(encode(number)) for number in (0, 7, 10**9)] == [0, 7, 10**9]
    assert len(encode(7)) == 100


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(3, rng=random.Random(1))) as server:
        server.create_topic("orders", 2)
        yield server


def test_reading_back_what_a_foreign_producer_wrote(server: ClusterServer) -> None:
    producer = KafkaProducer(bootstrap_servers=server.bootstrap)
    try:
        futures = {
            (partition, number): producer.send("orders", encode(number), partition=partition)
            for partition in (0, 1)
            for number in range(200)
        }
        acked: dict[int, dict[int, int]] = {0: {}, 1: {}}
        for (partition, number), future in futures.items():
            acked[partition][number] = future.get(10).offset
    finally:
        producer.close(5)
    read = read_back(server.bootstrap, "orders", [0, 1])
    assert compare(acked, read) == Delivery(400, 0, 0, 0, 0)
    del read[1][77]
    assert str(compare(acked, read)) == "lost 1 · duplicated 0 · out of order 0"


def test_an_unreadable_partition_is_told_and_not_taken_for_empty(server: ClusterServer) -> None:
    producer = KafkaProducer(bootstrap_servers=server.bootstrap)
    try:
        producer.send("orders", encode(0), partition=0).get(10)
    finally:
        producer.close(5)
    for node_id in (1, 2, 3):
        server.pause(node_id)
    with pytest.raises(ReadBackError, match="no broker answers"):
        read_back(server.bootstrap, "orders", [0], timeout_s=1.0)
