"""Field cases of section 5: order under retries (B58, B59)."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.engine.messages import Cause
from outlast.testing.faults import CutAfter, Error, Slow
from tests.field.oracles import D_MINUS, c1, c3, logs_of, o2, o4, o8
from tests.field.wire import FAR, PRODUCE, all_delivered, sent
from tests.sim.stories import attempts_of

NOT_LEADER, REQUEST_TIMED_OUT = 6, 7


@pytest.mark.parametrize(
    "options",
    [{}, {**D_MINUS, "max_in_flight_requests_per_connection": 1}],
    ids=["idempotent, 5 in flight", "not idempotent, 1 in flight"],
)
def test_b58_order_is_kept_through_any_mix_of_retries(options: dict[str, Any]) -> None:
    sim = c3(58, network=FAR, **options)
    for partition in range(3):
        sim.send_every(partition, 0.01, 600)

    def strike() -> None:
        kind = sim.rng.choice(["not leader", "timed out", "cut", "move"])
        partition = sim.rng.choice([0, 1])
        where = {"topic": "t", "partition": partition, "times": 1}
        if kind == "not leader":
            sim.fault(Error(NOT_LEADER, **where))
        elif kind == "timed out":
            sim.fault(Error(REQUEST_TIMED_OUT, **where))
        elif kind == "cut":
            sim.fault(CutAfter(api=PRODUCE, **where))
        else:
            sim.move_leader(partition)

    for turn in range(40):
        sim.at(0.5 + 0.14 * turn, strike)
    sim.run_until(sim.all_settled, 60.0)
    sim.check()
    o2(sim.ledger.entries, logs_of(sim))
    o4(sim.ledger.entries, logs_of(sim))
    assert {e.outcome for e in sim.ledger.entries} == {"acked"}
    assert sum(a.code not in (0, None) for a in attempts_of(sim, 0)) > 5
    assert {gap.cause for gap in sim.gaps(2)} <= {Cause.CONNECTION_LOST}


def test_b58_a_batch_that_waits_holds_back_its_own_partition_only() -> None:
    sim = c1(58, 2)
    for partition in (0, 1):
        sim.send_every(partition, 0.005, 600)
    sim.fault(Error(NOT_LEADER, topic="t", partition=0, after_s=1.0, until_s=2.0))
    all_delivered(sim)
    o8(sim.ledger.entries, [("t", 1)], calm=(0.2, 1.0), trouble=(1.0, 2.0))
    assert not sim.gaps(1)


@pytest.mark.parametrize("slow_s", [0.0, 0.05])
def test_b59_one_request_in_flight_carries_all_partitions(slow_s: float) -> None:
    sim = c1(59, 6, **{**D_MINUS, "max_in_flight_requests_per_connection": 1})
    if slow_s:
        sim.fault(Slow(node=1, api=PRODUCE, delay_s=slow_s))
    for _ in range(200):
        for partition in range(6):
            sim.send("t", partition, size_bytes=1000)
    all_delivered(sim)
    requests = {id(batch.request) for batch in sent(sim)}
    assert sum(1 for _ in sent(sim)) / len(requests) >= 5
