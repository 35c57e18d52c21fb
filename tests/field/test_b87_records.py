"""Field cases of sections 8 and 9: records, partitions, metrics, the surface (B87 to B97)."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import Any

import pytest
from kafka.partitioner import Partitioner
from prometheus_client import CollectorRegistry

from outlast.engine.messages import GapEnded, GapSettled
from outlast.observe.prometheus import PrometheusObserver
from outlast.testing.faults import Error
from tests.facade.test_producer import Made, make  # noqa: F401 - a fixture
from tests.field.oracles import D, c3, o3, o11
from tests.field.wire import nothing_kept
from tests.tcp.stories import TOPIC, calm_cluster, warm_producer
from tests.tcp.truth import metadata_requests

BYTES_LIKE = [b"v", bytearray(b"v"), memoryview(b"v")]
NOT_ENOUGH_REPLICAS = 19


class TestB87:
    """What may be a key or a value, without a serializer."""

    @pytest.mark.parametrize("key", [*BYTES_LIKE, None], ids=repr)
    @pytest.mark.parametrize("value", [*BYTES_LIKE, None], ids=repr)
    def test_b87_bytes_of_any_kind_are_copied(self, make: Made, key: Any, value: Any) -> None:  # noqa: F811
        producer, driver = make()
        if key is None and value is None:
            with pytest.raises(ValueError, match="key or value"):
                producer.send("t")
            assert driver.appended == []
            return
        producer.send("t", value, key)
        for given in (key, value):
            if isinstance(given, bytearray):
                given[:] = b"x"
        want = tuple(None if given is None else b"v" for given in (key, value))
        assert driver.appended[0][2:4] == want
        if isinstance(key, bytearray):
            key[:] = b"v"
        if isinstance(value, bytearray):
            value[:] = b"v"

    @pytest.mark.parametrize("bad", ["v", 7, 1.5, [b"v"]], ids=repr)
    @pytest.mark.parametrize("where", ["key", "value"])
    def test_b87_anything_else_is_refused_by_name(self, make: Made, where: str, bad: Any) -> None:  # noqa: F811
        producer, driver = make()
        with pytest.raises(TypeError, match=where):
            producer.send("t", **{"value": b"v", where: bad})
        assert driver.appended == []


BAD_PARTITIONS: list[tuple[Any, type[Exception]]] = [
    (-1, ValueError),
    (True, TypeError),
    ("0", TypeError),
    (0.0, TypeError),
]


class TestB90:
    """A partition that does not exist, of two."""

    def test_b90_one_fresh_look_and_an_error_that_names_what_there_is(self) -> None:
        with calm_cluster(2) as server, warm_producer(server, 2, max_block_ms=1000) as producer:
            asked, begin_s = metadata_requests(server), time.monotonic()
            with pytest.raises(ValueError, match=r"5.*0.*1"):
                producer.send(TOPIC, b"v", partition=5)
            assert time.monotonic() - begin_s <= 1.0
            assert metadata_requests(server) - asked <= 1
            assert producer.send(TOPIC, b"v", partition=1).get(timeout=5)

    @pytest.mark.parametrize(("partition", "error"), BAD_PARTITIONS, ids=str)
    def test_b90_what_is_no_partition_is_refused_at_once(
        self,
        make: Made,  # noqa: F811
        partition: Any,
        error: type[Exception],
    ) -> None:
        producer, driver = make()
        with pytest.raises(error, match="partition"):
            producer.send("t", b"v", partition=partition)
        assert driver.appended == []

    @pytest.mark.parametrize("chosen", [-1, 5, True, "0", 0.5], ids=str)
    def test_b90_a_partitioner_is_held_to_the_same(self, chosen: Any) -> None:
        class Bad(Partitioner):
            def partition(self, *_: Any) -> Any:
                return chosen

        with (
            calm_cluster(2) as server,
            warm_producer(server, 2, partitioner=Bad(), max_block_ms=1000) as producer,
            pytest.raises((ValueError, TypeError)),
        ):
            producer.send(TOPIC, b"v")

    def test_b90_it_holds_where_asserts_are_off(self) -> None:
        program = (
            "import sys; from outlast import KafkaProducer\n"
            "with KafkaProducer(bootstrap_servers=sys.argv[1]) as producer:\n"
            "    for partition in (5, -1, True, '0'):\n"
            "        try: producer.send('t', b'v', partition=partition)\n"
            "        except (ValueError, TypeError): print('refused')\n"
        )
        with calm_cluster(2) as server:
            run = subprocess.run(
                [sys.executable, "-O", "-c", program, server.bootstrap],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert (run.stdout, run.stderr) == ("refused\n" * 4, "")


ARGUMENTS: dict[str, Any] = {
    "value": b"v",
    "key": b"k",
    "headers": [("h", b"x")],
    "partition": 3,
    "timestamp_ms": 1_234,
}


PRESENT = [flags for flags in itertools.product([False, True], repeat=5) if any(flags[:2])]


@pytest.mark.parametrize("present", PRESENT, ids=str)
def test_b92_positions_and_names_of_send_are_kafka_pythons(
    make: Made,  # noqa: F811
    present: tuple[bool, ...],
) -> None:
    given = {name: ARGUMENTS[name] for name, on in zip(ARGUMENTS, present, strict=True) if on}
    producer, driver = make()
    names = list(ARGUMENTS)
    for positional in range(len(names) + 1):
        first = [given.get(name) for name in names[:positional]]
        rest = {name: given[name] for name in names[positional:] if name in given}
        producer.send("t", *first, **rest)
    producer.send(topic="t", **given)
    first_record = driver.appended[0]
    assert first_record[:5] == (
        "t",
        given.get("partition"),
        given.get("key"),
        given.get("value"),
        given.get("headers", []),
    )
    if "timestamp_ms" in given:
        assert first_record[5] == 1_234
    assert {record[:4] for record in driver.appended} == {first_record[:4]}
    assert all(record[4] == first_record[4] for record in driver.appended)
    assert len(driver.appended) == 7


def test_b96_expired_records_are_in_the_numbers_and_an_open_gap_is_seen() -> None:
    """t-0 is refused for 12 s, its records expire after 5 s; looked at four times a second."""
    sim = c3(96, delivery_timeout_ms=5000)
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    told = 0
    for partition in range(3):
        sim.send_every(partition, 0.05, 360)
    sim.run_for(1.0)
    sim.fault(Error(NOT_ENOUGH_REPLICAS, topic="t", partition=0, until_s=13.0))

    def count(name: str, **labels: str) -> float:
        return registry.get_sample_value(name, labels) or 0.0

    for _ in range(80):
        sim.run_for(0.25)
        observer(sim.facts[told:])
        told = len(sim.facts)
        taken = [e for e in sim.ledger.entries if e.taken_at is not None]
        waiting = sum(not e.settlements for e in taken)
        settled = sum(
            count("outlast_records_total", topic="t", result=result)
            for result in ("acked", "failed")
        )
        assert settled + waiting == len(taken)
        if 2.0 < sim.now < 13.0:
            [gap] = sim.gaps()
            assert (gap.partition, gap.trigger, gap.ended_by) == (0, "NOT_ENOUGH_REPLICAS", None)
            seen_s = count("outlast_partition_gap_seconds_total", topic="t", partition="0")
            assert seen_s == pytest.approx(sim.now - gap.begin_s, abs=1.1)
    nothing_kept(sim)
    sim.check()
    o3(sim.ledger.entries, {**D, "delivery_timeout_ms": 5000})
    [gap] = sim.gaps()
    failed = [e for e in sim.ledger.entries if e.outcome != "acked"]
    assert {e.partition for e in failed} == {0}
    assert gap.records_expired == len(failed) > 120
    assert [type(f) for f in sim.facts if isinstance(f, (GapEnded, GapSettled))] == [
        GapEnded,
        GapSettled,
    ]
    o11(sim)
