"""Field cases of section 7: what error codes mean (B78 to B85)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from outlast.engine.messages import Complaint, Outcome
from outlast.testing.faults import Error, ErrorAfter
from outlast.testing.simulation import Simulation
from tests.field.oracles import (
    D_MINUS,
    c1,
    c3,
    logs_of,
    metadata_times,
    o1,
    o2,
    o4,
    o5,
    o11,
    o12,
)
from tests.field.wire import FAR, all_delivered, nothing_kept, send_some, sent
from tests.sim.stories import CALM, attempts_of

CORRUPT, NOT_ENOUGH, NOT_ENOUGH_AFTER_APPEND, INVALID_TIMESTAMP = 2, 19, 20, 32
STORAGE_ERROR, UNSUPPORTED_COMPRESSION, INVALID_RECORD = 56, 76, 87
MIB = 1 << 20
AT_T0 = {"topic": "t", "partition": 0}
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


class TestB78:
    """Too few replicas: before the append ten times, after it three times."""

    @staticmethod
    def story(fault: Error | ErrorAfter, **options) -> Simulation:
        sim = c3(78, network=FAR, **options)
        for partition in range(3):
            sim.send_every(partition, 0.005, 600)
        sim.at(1.0, lambda: sim.fault(fault))
        sim.run_until(sim.all_settled)
        sim.check()
        assert fault.used == fault.times
        o4(sim.ledger.entries, logs_of(sim))
        o12(sim, [("t", 0)])
        o11(sim)
        return sim

    @pytest.mark.parametrize(
        "fault",
        [
            lambda: Error(NOT_ENOUGH, **AT_T0, times=10),
            lambda: ErrorAfter(NOT_ENOUGH_AFTER_APPEND, **AT_T0, times=3),
        ],
        ids=["before", "after"],
    )
    def test_b78_it_is_waited_for_and_each_record_is_there_once(
        self, fault: Callable[[], Error]
    ) -> None:
        sim = self.story(fault())
        o1(sim.ledger.entries, logs_of(sim))

    def test_b78_without_idempotence_what_was_appended_may_be_there_twice(self) -> None:
        fault = ErrorAfter(NOT_ENOUGH_AFTER_APPEND, **AT_T0, times=3)
        one_by_one = {**D_MINUS, "max_in_flight_requests_per_connection": 1}
        sim = self.story(fault, **one_by_one)
        o2(sim.ledger.entries, logs_of(sim))
        assert {e.outcome for e in sim.ledger.entries} == {"acked"}
        copies = Counter(value for _, value in logs_of(sim)["t", 0])
        assert max(copies.values()) == 4, "one for each sending"


def test_b79_a_storage_error_leads_to_the_new_leader() -> None:
    sim = c3(79)
    for partition in range(3):
        sim.send_every(partition, 0.005, 600)
    sim.at(1.0, lambda: sim.fault(Error(STORAGE_ERROR, node=1, **AT_T0)))
    sim.at(2.0, lambda: sim.move_leader(0, 2, deny_s=0.0))
    all_delivered(sim)
    told_s = min(a.ended_at for a in attempts_of(sim, 0) if a.code == STORAGE_ERROR)
    asked_s = min(metadata_times(sim, begin_s=told_s))
    assert asked_s - told_s <= 0.01
    o12(sim, [("t", 0)])
    [gap] = sim.gaps(0)
    assert gap.begin_s + gap.duration_s <= 2.3


class TestB80:
    """A record that a broker will never take, among nine good ones."""

    def test_b80_a_record_without_key_for_a_compacted_topic_fails_alone(self) -> None:
        sim = c1(80, topics={})
        sim.cluster.create_topic("c", 1, compacted=True, now=sim.now)
        sim.topics["c"] = 1
        sim.network.collect(sim.now)
        sim.run_for(0.5)
        futures = [
            sim.send("c", 0, key=None if n == 4 else b"k%d" % n, thread="one") for n in range(10)
        ]
        began_s = sim.now
        sim.run_until(lambda: futures[4].done)
        assert sim.now - began_s <= 0.5
        assert futures[4].failure.error_code == INVALID_RECORD
        assert futures[4].failure.outcome is Outcome.NOT_ACCEPTED
        assert "key" in futures[4].failure.message, "the broker's own words"
        later = sim.send("c", 0, key=b"later")
        sim.run_until(sim.all_settled, 2.0)
        nothing_kept(sim)
        sim.check()
        good = [f.entry.value for f in [*futures[:4], *futures[5:], later]]
        assert [value for _, value in logs_of(sim)["c", 0]] == good
        assert [f.acked for f in futures] == [n != 4 for n in range(10)]

    def test_b80_an_invalid_timestamp_fails_at_once(self) -> None:
        sim = c1(80)
        send_some(sim, 1)
        sim.run_until(sim.all_settled)
        sim.fault(Error(INVALID_TIMESTAMP, **AT_T0, times=1))
        bad = send_some(sim, 10)
        sim.run_until(sim.all_settled, 0.5)
        assert {f.failure.error_code for f in bad} == {INVALID_TIMESTAMP}
        o11(sim)
        sim.check()

    def test_b80_a_corrupt_message_is_sent_again_until_its_time_is_over(self) -> None:
        sim = c1(80, delivery_timeout_ms=3000)
        send_some(sim, 1)
        sim.run_until(sim.all_settled)
        began_s = sim.now
        fault = Error(CORRUPT, **AT_T0, until_s=sim.now + 1.0)
        sim.fault(fault)
        passing = send_some(sim, 5)
        sim.run_until(sim.all_settled, 3.0)
        assert all(f.acked for f in passing)
        assert fault.used > 3
        sim.fault(Error(CORRUPT, **AT_T0, until_s=sim.now + 4.0))
        lasting = send_some(sim, 5)
        began_s = sim.now
        sim.run_until(sim.all_settled, 5.0)
        assert {f.failure.kind for f in lasting} == {"delivery_timeout"}
        assert 3.0 <= sim.now - began_s <= 3.2
        sim.run_for(2.0)
        o11(sim)
        sim.check()
        o5(sim.ledger.entries, logs_of(sim))


class TestB82:
    """A hundred partitions with 62 KB each, and a broker that takes no request of any size."""

    @staticmethod
    def story(limit_bytes: int | None) -> Simulation:
        strict = replace(CALM, socket_request_max_bytes=limit_bytes)
        sim = c1(82, 100, cluster=strict, batch_size=65536, max_request_size=MIB, linger_ms=50)
        for _ in range(20):
            for partition in range(100):
                sim.send("t", partition, size_bytes=3000)
        all_delivered(sim)
        return sim

    @staticmethod
    def halvings(sim: Simulation) -> list[str]:
        said = [fact.text for fact in sim.facts if isinstance(fact, Complaint)]
        return [text for text in said if "socket.request.max.bytes" in text]

    def test_b82_a_request_is_no_larger_than_max_request_size(self) -> None:
        sim = self.story(limit_bytes=MIB)
        assert max(len(batch.request.frame) for batch in sent(sim)) <= MIB
        assert not sim.gaps()

    def test_b82_requests_are_halved_where_the_broker_takes_less(self) -> None:
        sim = self.story(limit_bytes=MIB // 4)
        too_large = [b.request for b in sent(sim) if len(b.request.frame) > MIB // 4]
        assert len({request.conn for request in too_large}) == 4, (
            "two for a half, two for a quarter"
        )
        assert len(self.halvings(sim)) == 2
        sim.run_for(1.0)
        o11(sim)

    def test_b82_a_link_that_breaks_now_and_then_makes_nothing_smaller(self) -> None:
        sim = c1(82, 40, linger_ms=50)
        for partition in range(40):
            sim.send_every(partition, 0.05, 60, size_bytes=5000)
        for turn in range(10):
            sim.at(0.5 + 0.2 * turn, lambda: sim.reset(1))
        all_delivered(sim)
        assert not self.halvings(sim)


class TestB85:
    """Brokers of Kafka 4 take Produce from version 3 on."""

    @pytest.mark.parametrize(
        ("codec", "bits"),
        [("gzip", GZIP), ("snappy", SNAPPY), ("lz4", LZ4), ("zstd", ZSTD), (None, 0)],
    )
    def test_b85_batches_leave_with_the_codec_that_was_asked_for(
        self, codec: str | None, bits: int
    ) -> None:
        kafka_4 = replace(CALM, api_versions={0: (3, 12)})
        sim = c1(85, cluster=kafka_4, compression_type=codec)
        for _ in range(20):
            sim.send("t", 0, size_bytes=500)
        all_delivered(sim)
        assert {batch.batch[22] & 7 for batch in sent(sim)} == {bits}
        if codec:
            assert max(len(batch.batch) for batch in sent(sim)) < 3000, "it was compressed"

    def test_b85_a_codec_that_the_broker_refuses_fails_at_once(self) -> None:
        sim = c1(85, compression_type="zstd")
        fault = Error(UNSUPPORTED_COMPRESSION, **AT_T0)
        sim.fault(fault)
        futures = send_some(sim, 3)
        sim.run_until(sim.all_settled, 1.0)
        assert {f.failure.error_code for f in futures} == {UNSUPPORTED_COMPRESSION}
        assert fault.used == 1
