"""Field cases of section 4: numbers that brokers forget, and answers that get lost (B44 to B56)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from kafka import TopicPartition

from outlast.engine.messages import Outcome
from outlast.errors import error_for
from outlast.testing.faults import (
    CutAfter,
    CutBefore,
    Error,
    ErrorAfter,
    Fault,
    ForgetProducer,
    LoseResponse,
)
from tests.field.oracles import c1, c3, logs_of, o4, o5, o11
from tests.field.wire import (
    FAR,
    INIT_PRODUCER_ID,
    PRODUCE,
    all_delivered,
    restarts,
    send_some,
    sent,
)
from tests.sim.stories import attempts_of

NOT_LEADER, TIMED_OUT, OUT_OF_ORDER, UNKNOWN_PRODUCER_ID = 6, 7, 45, 59


def forget(sim, answer: int | None) -> None:
    """The leader of t-0 knows nothing of the producer any more, and says so until it begins anew
    (None: it takes whatever comes).
    """
    if answer is not None:
        error = Error(answer, topic="t", partition=0)
        sim.fault(error)
        sim.run_until(lambda: bool(restarts(sim)), 5.0)
        sim.cluster.faults.remove(error)
    sim.fault(ForgetProducer(topic="t", partition=0, times=1))


@pytest.mark.parametrize("answer", [UNKNOWN_PRODUCER_ID, OUT_OF_ORDER, None])
def test_b44_a_broker_that_forgot_the_producer_costs_one_restart(answer: int | None) -> None:
    sim = c1(44, 2, network=FAR, batch_size=0)
    for partition in (0, 1):
        send_some(sim, 10, partition)
    sim.run_until(sim.all_settled)
    for partition in (0, 1):
        send_some(sim, 10, partition)
    forget(sim, answer)
    all_delivered(sim)
    assert [fact.partition for fact in restarts(sim)] == ([] if answer is None else [0])
    o11(sim)
    assert sim.cluster.faults[0].used, "it did forget"


def test_b45_only_the_partition_that_failed_takes_a_new_epoch() -> None:
    """Some of the others are idle, some have a batch in flight."""
    sim = c3(45, 6, network=FAR)
    for partition in range(6):
        send_some(sim, 3, partition)
    sim.run_until(sim.all_settled)
    for partition in (0, 1, 2):
        sim.send_every(partition, 0.002, 500)
    sim.run_for(0.3)
    forget(sim, OUT_OF_ORDER)
    all_delivered(sim)
    [restart] = restarts(sim)
    assert restart.partition == 0
    denied = [a for a in attempts_of(sim, 0) if a.code == OUT_OF_ORDER]
    assert 0 < len(denied) <= 5
    assert all(a.ended_at <= restart.at_s for a in denied)
    o11(sim)
    begun: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    for batch in sent(sim):
        begun[batch.partition].setdefault(batch.producer, batch.base_sequence)
        if batch.partition == 0 and batch.producer[1] == 0:
            assert batch.request.answered_at <= restart.at_s, "settled before the switch"
    assert list(begun[0].values()) == [0, 0], "the new epoch begins at 0"
    assert [len(begun[p]) for p in range(1, 6)] == [1] * 5


UNANSWERED = [
    lambda: LoseResponse(api=PRODUCE, times=1, blocks=False),
    lambda: LoseResponse(api=PRODUCE, times=1),
    lambda: ErrorAfter(TIMED_OUT, topic="t", partition=0, times=1),
]


@pytest.mark.parametrize(
    "fault",
    UNANSWERED,
    ids=["its answer is lost", "all answers are lost", "appended, and timed out"],
)
def test_b48_no_sixth_batch_goes_out_before_the_first_is_settled(
    fault: Callable[[], Fault],
) -> None:
    """The broker remembers five: a sixth would make it forget the first."""
    sim = c1(48, network=FAR, linger_ms=0, batch_size=0)
    send_some(sim, 1)
    sim.run_until(sim.all_settled)
    once = fault()
    sim.fault(once)
    send_some(sim, 15)
    all_delivered(sim, 10.0)
    assert once.used == 1
    settled_at = [entry.settled_at for entry in sim.ledger.entries]
    for batch in sent(sim):
        if batch.base_sequence >= 6:
            first = batch.base_sequence - 5
            assert settled_at[first] <= batch.request.sent_at, f"{first} was open"
    assert sum(1 for _ in sent(sim)) <= 16 + 5


def test_b49_a_batch_is_the_same_in_every_attempt() -> None:
    """The connection is cut behind an append twice a second, while new records arrive."""
    sim = c1(49, network=FAR)
    sim.send_every(0, 0.002, 3000)
    cuts = [CutAfter(api=PRODUCE, times=1, after_s=0.5 * turn) for turn in range(1, 13)]
    for cut in cuts:
        sim.fault(cut)
    all_delivered(sim)
    assert all(cut.used for cut in cuts[:-1])
    copies: dict[object, set[bytes]] = defaultdict(set)
    for batch in sent(sim):
        copies[batch.number].add(batch.batch)
    assert sum(1 for _ in sent(sim)) > len(copies) + 10, "some were sent again"
    assert {len(bodies) for bodies in copies.values()} == {1}
    assert not restarts(sim)


def test_b51_an_ack_behind_a_refused_batch_does_not_stand_for_it() -> None:
    """The first of five is refused; the broker forgets the producer and takes the second. (Order
    is lost with that, and nothing else.)
    """
    sim = c3(51, 1, network=FAR, linger_ms=0, batch_size=0)
    send_some(sim, 1)
    sim.run_until(sim.all_settled)
    refused = Error(NOT_LEADER, topic="t", partition=0, times=1)
    sim.fault(refused)
    sim.send_every(0, 0.002, 20)
    sim.run_until(lambda: refused.used > 0)
    forgets = ForgetProducer(topic="t", partition=0, times=1)
    sim.fault(forgets)
    sim.run_until(sim.all_settled)
    sim.run_for(12.0)
    assert forgets.used
    o4(sim.ledger.entries, logs_of(sim))
    o5(sim.ledger.entries, logs_of(sim))
    o11(sim)


def test_b51_a_fresh_producer_meets_a_move_at_its_first_batches() -> None:
    sim = c3(51, 1, linger_ms=0, batch_size=0)
    sim.fault(Error(NOT_LEADER, topic="t", partition=0, times=1))
    send_some(sim, 5)
    all_delivered(sim)


def test_b52_a_broker_that_comes_and_goes_costs_nothing() -> None:
    """Five times: refused, its leaders move, it is back, they move back with cuts and refusals."""
    sim = c3(52, 12, network=FAR)
    sim.send_every(None, 0.04, 925)
    led = [p for p in range(12) if sim.leader(p) == 2]

    def move(to: int) -> None:
        for partition in led:
            sim.move_leader(partition, to, deny_s=None)

    def back() -> None:
        move(2)
        for partition in led[:2]:
            sim.fault(CutAfter(api=PRODUCE, topic="t", partition=partition, times=1))
        for partition in led[2:]:
            sim.fault(Error(NOT_LEADER, topic="t", partition=partition, times=2))

    for turn in range(5):
        start_s = 1.0 + 7.0 * turn
        sim.at(start_s, lambda: sim.refuse(2))
        sim.at(start_s + 0.3, lambda: move(3))
        sim.at(start_s + 4.0, lambda: sim.accept(2))
        sim.at(start_s + 5.0, back)
    all_delivered(sim)
    denied = [a for p in range(12) for a in attempts_of(sim, p) if a.code == OUT_OF_ORDER]
    assert len(denied) <= 5 * 10 * len(led)
    o11(sim)


def test_b54_a_producer_without_the_right_to_a_number_is_told_so() -> None:
    sim = c1(54)
    denied = Error(31, api=INIT_PRODUCER_ID, until_s=2.0)
    sim.fault(denied)
    [first] = send_some(sim, 1)
    sim.run_until(lambda: first.done)
    assert first.entry.settled_at - first.entry.sent_at <= 0.5
    assert first.failure is not None
    error = error_for(first.failure, TopicPartition("t", 0))
    assert type(error).__name__ == "ClusterAuthorizationFailedError"
    assert "enable_idempotence" in str(error)
    sim.run_for(2.5 - sim.now)
    [second] = send_some(sim, 1)
    sim.run_until(sim.all_settled, 5.0)
    sim.check()
    assert second.acked
    assert all(batch.producer[0] >= 0 for batch in sent(sim)), "nothing was written unnumbered"


def test_b55_trouble_with_the_producer_id_passes() -> None:
    sim = c1(55)
    faults = [Error(code, api=INIT_PRODUCER_ID, times=1) for code in (7, 14, 15, 16)]
    faults.append(CutBefore(api=INIT_PRODUCER_ID, times=1))
    for fault in faults:
        sim.fault(fault)
    send_some(sim, 10)
    all_delivered(sim)
    assert [fault.used for fault in faults] == [1] * 5
    assert max(e.settled_at for e in sim.ledger.entries) <= 2.0


def test_b56_two_of_three_brokers_freeze_and_thaw_ten_times() -> None:
    """Every record that is missing belongs to a future that failed."""
    sim = c3(56, 6, network=FAR, delivery_timeout_ms=3000)
    for partition in range(6):
        sim.send_every(partition, 0.15, 430)
    for turn in range(10):
        pair = [1 + turn % 3, 1 + (turn + 1) % 3]
        for node in pair:
            sim.at(1.0 + 6.5 * turn, lambda node=node: sim.pause(node))
            sim.at(5.5 + 6.5 * turn, lambda node=node: sim.resume(node))
    sim.run_until(sim.all_settled, 120.0)
    verdict = sim.check()
    assert verdict.acked > 1000
    assert verdict.failed > 0, "the story was hard enough"
    assert {e.outcome for e in sim.ledger.entries} >= {Outcome.UNKNOWN.value}
    o11(sim)
