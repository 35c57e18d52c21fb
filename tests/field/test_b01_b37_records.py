"""Field cases B01 to B37 about records: what was told of them, and where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from outlast.errors import error_for
from outlast.testing.application import SimFuture
from outlast.testing.faults import CutAfter, Error, ErrorAfter, Fault, LoseResponse
from outlast.testing.simulation import Simulation
from tests.field.oracles import CALM, c1, logs_of, o1, o2, o3, o4, o5, o11
from tests.sim.stories import attempts_of

PRODUCE = 0
NOT_LEADER, TIMED_OUT, TOO_LARGE = 6, 7, 10
T0 = {"topic": "t", "partition": 0}


def assert_truthful(sim: Simulation) -> None:
    entries, logs = sim.ledger.entries, logs_of(sim)
    for check in (o2, o4, o5):
        check(entries, logs)
    o3(entries)


class TestB01:
    """A success with an offset, and the record is not there: an unknown record's number was given
    to the next one, which the broker took for a repeat.
    """

    FAULTS: tuple[Callable[[], Fault], ...] = (
        lambda: ErrorAfter(TIMED_OUT, until_s=2.0, **T0),
        lambda: LoseResponse(api=PRODUCE, until_s=2.0, **T0),
        lambda: LoseResponse(api=PRODUCE, until_s=2.0, blocks=False, **T0),
        lambda: CutAfter(api=PRODUCE, until_s=2.0, **T0),
    )
    IDS = ("7 after the append", "no answer", "no answer, others pass", "cut")

    @pytest.mark.parametrize("fault", FAULTS, ids=IDS)
    @pytest.mark.parametrize("count", [1, 3])
    def test_b01_a_success_is_never_another_records(
        self, fault: Callable[[], Fault], count: int
    ) -> None:
        sim = c1(delivery_timeout_ms=1500, request_timeout_ms=500, linger_ms=0 if count == 1 else 1)
        sim.fault(fault())
        told: dict[str, list[SimFuture]] = {}
        for name, at_s in (("A", 0.0), ("B", 1.8), ("C", 2.2)):
            sim.at(at_s, lambda n=name: told.update({n: [sim.send("t", 0) for _ in range(count)]}))
        sim.run_until(sim.all_settled, 10.0)
        sim.run_for(12.0)  # what was left in closed connections is taken by now
        for future in told["A"]:
            assert future.entry.outcome == "unknown"
            error = error_for(future.failure, TopicPartition("t", 0))
            assert isinstance(error, KafkaTimeoutError)
            assert "may be in the log" in str(error)
            assert future.entry.settled_at <= 1.8
        assert all(future.acked for name in "BC" for future in told[name])
        assert_truthful(sim)
        o11(sim)


@pytest.mark.parametrize("first_seq_rule", ["any", "zero"])
def test_b03_the_first_batch_of_a_new_partition_is_not_overtaken(first_seq_rule: str) -> None:
    """The broker does not know yet that it leads; without state it would take the second batch."""
    sim = c1(topics={}, linger_ms=0, cluster=replace(CALM, first_seq_rule=first_seq_rule))
    sim.run_for(0.5)
    sim.create_topic("t", 1)
    sim.fault(Error(NOT_LEADER, times=1, **T0))
    begin_s = sim.now
    for _ in range(17 + 5):
        sim.send("t", 0, size_bytes=930)  # 17 fill a batch
    sim.run_until(sim.all_settled, 2.0)
    assert sim.now - begin_s < 2.0
    o1(sim.ledger.entries, logs_of(sim))
    wire = attempts_of(sim, 0)
    assert wire[0].rejected
    assert {a.records for a in wire} == {17, 22}, "one batch, which nothing could overtake"
    first_ack_s = min(a.ended_at for a in wire if a.accepted)
    before = [a for a in wire if a.sent_at < first_ack_s]
    for earlier, later in pairwise(before):
        assert earlier.ended_at <= later.sent_at, "two batches were under way before the first ack"
    o11(sim)


class TestB12:
    """A batch that is too large takes its neighbours down, or is done before its pieces are.

    (The usual course is tests/sim/test_too_large.py and, for flush(), test_b01_b37_tcp.py.)
    """

    def test_b12_pieces_are_waited_for_while_the_broker_is_away(self) -> None:
        sim = c1(
            cluster=replace(CALM, max_message_bytes=2000), batch_size=65536, linger_ms=50, seed=2
        )
        sim.run_for(0.3)
        futures = [sim.send("t", 0, size_bytes=150) for _ in range(40)]
        sim.flush()
        sim.run_until(lambda: any(a.code == TOO_LARGE for a in attempts_of(sim, 0)), 5.0)
        sim.refuse(1)
        sim.run_for(1.0)
        open_ = [f for f in futures if not f.done]
        assert open_, "all of it was out before the broker went away"
        assert sim.flush(), "flush() would return though pieces are not out"
        sim.accept(1)
        sim.run_until(sim.all_settled, 10.0)
        assert sim.flush() == []
        o1(sim.ledger.entries, logs_of(sim))
        assert sim.sender.health(sim.now).buffer_bytes == 0
        assert sum(a.code == TOO_LARGE for a in attempts_of(sim, 0)) <= 8
        o11(sim)


@pytest.mark.parametrize("max_idle_s", [540, 7200])
def test_b34_after_a_quiet_hour_nothing_is_thrown_away(max_idle_s: int) -> None:
    """The link was dropped silently meanwhile; we may or may not have closed it ourselves."""
    sim = c1(connections_max_idle_ms=max_idle_s * 1000, metadata_max_age_ms=7_200_000)
    assert sim.send("t", 0)
    sim.run_for(1.0)
    for connection in sim.network.standing():
        sim.deafen(connection)
    sim.run_for(1620.0)
    begin_s = sim.now
    futures = [sim.send("t", 0) for _ in range(81)]
    sim.run_until(sim.all_settled, 20.0)
    assert max(f.entry.settled_at for f in futures) - begin_s <= 2.0
    o1(sim.ledger.entries, logs_of(sim))
    for gap in sim.gaps():
        assert gap.begin_s >= begin_s, "nothing waited before"
        assert gap.duration_s <= 2.0


def test_b35_with_the_broker_down_nothing_counts_as_sent() -> None:
    """flush() waits for the outcome, and the outcome is told. (Its log line and its metric:
    test_b01_b37_tcp.py.)
    """
    sim = c1(delivery_timeout_ms=2000)
    sim.send("t", 0)
    sim.run_until(sim.all_settled, 5.0)
    sim.refuse(1)
    sim.run_for(0.1)
    for _ in range(3):
        future = sim.send("t", 0)
        waiting = sim.flush()
        assert [b.count for b in waiting] == [1]
        sim.run_until(lambda f=future: f.done, 5.0)
        assert future.entry.outcome in ("never sent", "not accepted")
        assert future.failure.kind == "delivery_timeout"
        assert sim.flush() == []
    [gap] = sim.gaps(0)
    assert gap.records_expired == 3
    sim.accept(1)
    o11(sim)
    assert_truthful(sim)
