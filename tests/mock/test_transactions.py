"""Transactions when something breaks: coordinators that die, move and fall silent, faults, time.

What a healthy coordinator answers is in the contract suite, which asks a real Kafka, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import AddOffsetsToTxnRequest, TxnOffsetCommitRequest

from outlast.testing.coordinator_log import OFFSETS, TRANSACTIONS, partition_of
from outlast.testing.faults import CutAfter, Error, LoseRequest, LoseResponse, Slow, SlowFollower
from outlast.testing.transactions import (
    Producer,
    State,
    Transaction,
    completed,
    end_and_bump,
    take_over,
)
from tests.mock.bench import Bench, Sent
from tests.mock.shop import ID, Shop, code_of


@pytest.fixture
def shop(make_bench: Callable[..., Bench]) -> Shop:
    """Topic `t` of three partitions, led by nodes 1 to 3."""
    return Shop(make_bench(partitions=3, min_isr=2))


# --- coordinators -------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_was_answered_is_carried_through_by_the_next_coordinator(
    shop: Shop, commit: bool
) -> None:
    shop.begin(0, 1, 2)
    for partition in range(3):
        assert shop.sent(0, partition) == (0, 0)
    dead = shop.coordinator
    ended = shop.end(commit=commit)
    shop.bench.until_answered(ended)
    assert code_of(ended) == 0
    shop.bench.cluster.kill(dead, shop.bench.now)
    shop.bench.run(1.0)
    assert shop.coordinator != dead
    word = "commit" if commit else "abort"
    assert [set(shop.markers(partition)) for partition in range(3)] == [{f"{word} 0"}] * 3
    assert shop.until(lambda: shop.end(commit=commit)) == 0


def test_a_decision_that_was_not_replicated_is_lost_with_its_coordinator(shop: Shop) -> None:
    shop.begin(0)
    assert shop.sent(0) == (0, 0)
    dead = shop.coordinator
    ended = shop.end(commit=True)
    shop.bench.cluster.kill(dead, shop.bench.now)  # before the followers have it
    shop.bench.run(1.0)
    assert ended.response is None
    assert shop.markers() == []
    assert shop.until(lambda: shop.end(commit=False)) == 0
    shop.bench.run(0.5)
    assert shop.markers() == ["abort 0"]


def test_a_coordinator_that_moves_in_mid_transaction_takes_it_along(shop: Shop) -> None:
    shop.begin(0)
    assert shop.sent(0) == (0, 0)
    old = shop.coordinator
    shop.bench.cluster.move_leader(TRANSACTIONS, shop.index, old % 3 + 1, shop.bench.now)
    shop.bench.run(0.1)
    moved = shop.end(commit=True, node_id=old)
    shop.bench.until_answered(moved)
    assert code_of(moved) == 16
    assert shop.until(lambda: shop.add(1)) == 0
    assert shop.until(lambda: shop.end(commit=True)) == 0
    shop.bench.run(0.5)
    assert [shop.markers(0), shop.markers(1)] == [["commit 0"], ["commit 0"]]


def test_a_coordinator_that_wakes_up_writes_no_marker_into_the_next_transaction(
    make_bench: Callable[..., Bench],
) -> None:
    shop = Shop(make_bench(nodes=4))
    bench, silent = shop.bench, shop.coordinator
    keepers = bench.cluster.topics[TRANSACTIONS].partitions[shop.index].replicas
    (leader,) = {1, 2, 3, 4} - set(keepers)
    bench.cluster.create_topic("alone", 1, assignment=[[leader]], now=bench.now)
    bench.run(0.2)
    shop.begin()
    assert shop.until(lambda: shop.add(0, "alone")) == 0
    bench.cluster.kill(leader, bench.now)
    ended = shop.end(commit=False)
    bench.until_answered(ended)
    bench.run(0.1)  # it tries again and again
    bench.cluster.pause(silent, bench.now)
    bench.cluster.start(leader, bench.now)
    bench.run(1.0)
    assert shop.coordinator != silent
    assert shop.until(lambda: shop.end(commit=False)) == 0
    assert shop.until(lambda: shop.add(0, "alone")) == 0
    sent = shop.produce(0, topic="alone")
    bench.until_answered(sent)
    assert sent.result == (0, 1)
    bench.cluster.resume(silent, bench.now)
    bench.run(1.0)
    assert [b.control for b in bench.cluster.batches("alone", 0)] == [True, False]
    assert shop.until(lambda: shop.end(commit=True)) == 0


def test_a_coordinator_that_cannot_write_says_15(shop: Shop) -> None:
    shop.begin(0)
    alone = shop.coordinator
    for node in (1, 2, 3):
        if node != alone:
            shop.bench.cluster.kill(node, shop.bench.now)
    shop.bench.run(1.0)
    ended = shop.end(commit=True)
    shop.bench.until_answered(ended)
    assert code_of(ended) == 15
    for node in (1, 2, 3):
        shop.bench.cluster.start(node, shop.bench.now)
    assert shop.until(lambda: shop.end(commit=True)) == 0


def test_a_leader_that_cannot_ask_the_coordinator_says_19(shop: Shop) -> None:
    shop.begin(0, 1, 2)
    silent = shop.coordinator
    asking = silent % 3  # led by the next node
    shop.bench.cluster.kill(silent, shop.bench.now)
    sent = shop.produce(0, asking)
    shop.bench.until_answered(sent, within_s=0.25)
    assert sent.result == (19, -1)
    shop.bench.run(1.0)
    assert shop.sent(0, asking) == (0, 0)


def test_a_leader_notices_that_the_coordinator_dies_while_it_asks(
    make_bench: Callable[..., Bench],
) -> None:
    shop = Shop(make_bench(partitions=3, min_isr=2, between_brokers_s=0.02))
    shop.begin(0, 1, 2)
    asked = shop.coordinator
    sent = shop.produce(0, asked % 3)
    shop.bench.run(0.005)
    shop.bench.cluster.kill(asked, shop.bench.now)
    shop.bench.until_answered(sent, within_s=0.1)
    assert sent.result == (19, -1)


def test_a_leader_that_waits_for_a_silent_coordinator_answers_nobody_else(shop: Shop) -> None:
    shop.begin(0, 1, 2)
    silent = shop.coordinator
    asking = silent % 3
    shop.bench.cluster.pause(silent, shop.bench.now)
    sent = shop.produce(0, asking)
    behind = shop.bench.produce(sent.connection, partition=asking)
    shop.bench.run(1.0)
    assert (sent.response, behind.response) == (None, None)
    shop.bench.until_answered(sent, behind)
    assert sent.result == (19, -1)
    assert sent.took_s == pytest.approx(2.0, abs=0.1)  # between_brokers_timeout_s


# --- partitions ---------------------------------------------------------------------------------


def test_a_marker_waits_for_a_leader(shop: Shop) -> None:
    bench, victim = shop.bench, shop.coordinator % 3 + 1
    bench.cluster.create_topic("alone", 1, assignment=[[victim]], now=bench.now)
    bench.run(0.2)
    shop.begin()
    assert shop.until(lambda: shop.add(0, "alone")) == 0
    bench.cluster.kill(victim, bench.now)
    bench.run(1.0)
    ended = shop.end(commit=True)
    bench.until_answered(ended)
    assert code_of(ended) == 0
    bench.run(1.0)
    waiting = [shop.end(commit=True), shop.end(commit=False), shop.add(0), shop.init()]
    bench.until_answered(*waiting)
    assert [code_of(sent) for sent in waiting] == [51] * 4
    bench.cluster.start(victim, bench.now)
    assert shop.until(lambda: shop.end(commit=True)) == 0
    assert [b.control for b in bench.cluster.batches("alone", 0)] == [True]


def test_what_a_log_knows_of_transactions_survives_a_restart(shop: Shop) -> None:
    shop.begin(0)
    assert shop.sent(0) == (0, 0)
    assert shop.until(lambda: shop.end(commit=False)) == 0
    shop.bench.run(0.2)
    assert shop.until(lambda: shop.add(0)) == 0
    assert shop.sent(1) == (0, 2)
    for node in (1, 2, 3):
        shop.bench.cluster.kill(node, shop.bench.now)
        shop.bench.run(1.0)
        shop.bench.cluster.start(node, shop.bench.now)
        shop.bench.run(1.0)
    assert shop.stable() == 2
    replica = shop.bench.cluster.replica("t", 0)
    assert replica.transactions.aborted(0, 9) == [(shop.producer_id, 0)]
    assert shop.sent(2) == (0, 3)
    assert shop.until(lambda: shop.end(commit=True)) == 0
    shop.bench.run(0.2)
    assert shop.stable() == 5


def test_what_is_committed(shop: Shop) -> None:
    shop.begin(0)
    assert shop.sent(0) == (0, 0)
    assert shop.until(lambda: shop.end(commit=False)) == 0
    shop.bench.produced(shop.bench.connect(1), value=b"plain")
    assert shop.until(lambda: shop.add(0)) == 0
    assert shop.sent(1) == (0, 3)
    assert values(shop) == [b"plain-0"]
    assert shop.until(lambda: shop.end(commit=True)) == 0
    shop.bench.run(0.1)
    assert values(shop) == [b"plain-0", b"value-1"]


def values(shop: Shop) -> list[bytes | None]:
    return [record.value for record in shop.bench.cluster.committed("t", 0)]


def test_data_are_stable_when_their_marker_is_safe(shop: Shop) -> None:
    shop.begin(0)
    assert shop.sent(0) == (0, 0)
    slow = SlowFollower(1.0, topic="t", partition=0)
    shop.bench.cluster.faults.append(slow)
    ended = shop.end(commit=True)
    shop.bench.until_answered(ended)
    shop.bench.run(0.3)
    replica = shop.bench.cluster.replica("t", 0)
    assert (replica.log_end_offset, replica.high_watermark, shop.stable()) == (2, 1, 0)
    shop.bench.run(1.5)
    assert shop.stable() == 2


def test_a_marker_that_overtakes_the_coordinators_answer_keeps_the_batch_out(
    make_bench: Callable[..., Bench],
) -> None:
    """Else it would open a transaction that nobody ever ends."""
    seen = set()
    for seed in range(20):
        shop = Shop(make_bench(seed=seed, partitions=3, between_brokers_s=(0.001, 0.016)))
        asking = shop.coordinator % 3
        shop.begin(asking)
        late = shop.produce(0, asking)
        shop.bench.run(0.005)
        ended = shop.end(commit=False)
        shop.bench.until_answered(late, ended)
        shop.bench.run(0.5)
        end = shop.bench.cluster.batches("t", asking)[-1].next_offset
        assert shop.stable(asking) == end, seed
        seen.add(late.result[0])
    assert {0, 48} <= seen, "in time, and too late"


# --- time and epochs ----------------------------------------------------------------------------


def test_a_transaction_times_out(shop: Shop) -> None:
    shop.begin(0, timeout_ms=500)
    assert shop.sent(0) == (0, 0)
    shop.bench.run(0.45)
    assert shop.markers() == []
    shop.bench.run(0.3)
    assert shop.markers() == ["abort 1"]
    assert shop.sent(1) == (47, -1)
    assert shop.until(lambda: shop.end(commit=True)) == 90


def test_a_time_out_counts_from_the_first_partition_and_under_the_next_coordinator(
    shop: Shop,
) -> None:
    shop.begin(0, timeout_ms=1_500)
    assert shop.sent(0) == (0, 0)
    begun_s = shop.bench.now
    shop.bench.run(0.5)
    assert shop.until(lambda: shop.add(1)) == 0
    shop.bench.cluster.kill(shop.coordinator, shop.bench.now)
    shop.bench.run_until(lambda: shop.markers(0) != [], 5.0)
    assert shop.bench.now - begun_s == pytest.approx(1.5, abs=0.2)


def test_when_the_epochs_are_used_up_the_end_gives_a_new_producer_id() -> None:
    last = Producer(7, 32_766)
    ongoing = Transaction(ID, *last, timeout_s=60.0, state=State.ONGOING)
    ends = end_and_bump(ongoing, last, commit=True, spare_id=9)
    assert isinstance(ends, Transaction)
    assert (ends.producer_id, ends.epoch) == (7, 32_767)  # the marker's
    assert ends.producer == (9, 0)  # what is answered
    assert end_and_bump(ends, last, commit=True, spare_id=10) == 51
    ended = completed(ends)
    assert (ended.state, ended.producer) == (State.COMPLETE_COMMIT, (9, 0))
    assert end_and_bump(ended, last, commit=True, spare_id=10) == 0  # a repeat
    assert end_and_bump(ended, last, commit=False, spare_id=10) == 48
    assert take_over(ended, last, 60.0, -1) == replace(ended, state=State.EMPTY)  # likewise


def test_when_the_epochs_are_used_up_init_gives_a_new_producer_id() -> None:
    last = Producer(7, 32_766)
    known = Transaction(ID, *last, timeout_s=60.0)
    for given in (None, last):
        taken = take_over(known, given, 60.0, 9)
        assert isinstance(taken, Transaction)
        assert (taken.producer, taken.previous_id) == ((9, 0), 7)
    assert take_over(known, Producer(7, 32_765), 60.0, 9) == 90


# --- faults -------------------------------------------------------------------------------------


def commit_offset(shop: Shop) -> Sent:
    entry = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = entry.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
    )
    group = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}
    topics = [entry(name="t", partitions=[partition])]
    count = len(shop.bench.cluster.topics[OFFSETS].partitions)
    node_id = shop.bench.cluster.leader(OFFSETS, partition_of("g", count))[0]
    return shop.ask(TxnOffsetCommitRequest(**shop.who(), **group, topics=topics), 5, node_id)


def find(shop: Shop) -> Sent:
    return shop.ask(FindCoordinatorRequest(key=ID, key_type=1, coordinator_keys=[]), 3)


REQUESTS = {
    10: find,
    22: lambda shop: shop.init(known=True),
    24: lambda shop: shop.add(),
    25: lambda shop: shop.ask(AddOffsetsToTxnRequest(**shop.who(), group_id="g"), 3),
    26: lambda shop: shop.end(commit=True),
    28: commit_offset,
}


@pytest.mark.parametrize("api", REQUESTS)
def test_an_error_strikes_in_the_coordinators_place(shop: Shop, api: int) -> None:
    shop.begin(0)
    shop.bench.cluster.faults.append(Error(15, api=api, times=1))
    sent = REQUESTS[api](shop)
    shop.bench.until_answered(sent)
    assert code_of(sent) == 15
    assert shop.markers() == []


@pytest.mark.parametrize("fault", [LoseRequest, LoseResponse, CutAfter])
def test_an_end_whose_answer_is_lost(shop: Shop, fault: type[Any]) -> None:
    shop.begin(0)
    assert shop.sent(0) == (0, 0)
    shop.bench.cluster.faults.append(fault(api=26, times=1))
    sent = shop.end(commit=True)
    shop.bench.run(0.5)
    assert sent.response is None
    done = fault is not LoseRequest
    assert shop.markers() == (["commit 0"] if done else [])
    assert shop.until(lambda: shop.end(commit=True)) == 0
    shop.bench.run(0.5)
    assert shop.markers() == ["commit 0"]


def test_a_slow_answer(shop: Shop) -> None:
    shop.begin(0)
    shop.bench.cluster.faults.append(Slow(1.0, api=24, times=1))
    sent = shop.add(1)
    shop.bench.until_answered(sent)
    assert sent.took_s >= 1.0
