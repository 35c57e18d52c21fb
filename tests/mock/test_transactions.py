"""Transactions when something breaks: coordinators that die, move and fall silent, faults, time.

What a healthy coordinator answers is in the contract suite, which asks a real Kafka, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kafka.protocol.metadata import FindCoordinatorResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    TxnOffsetCommitResponse,
)
from kafka.record.memory_records import MemoryRecordsBuilder

from outlast.testing.coordinator_log import TRANSACTIONS, partition_of
from outlast.testing.faults import CutAfter, Error, LoseRequest, LoseResponse, Slow
from outlast.testing.transactions import (
    Producer,
    State,
    Transaction,
    completed,
    end_and_bump,
    take_over,
)
from tests.mock.bench import RESPONSES, Bench, Sent

RESPONSES.update(
    {
        10: FindCoordinatorResponse,
        24: AddPartitionsToTxnResponse,
        25: AddOffsetsToTxnResponse,
        26: EndTxnResponse,
        28: TxnOffsetCommitResponse,
    }
)

ID = "shop"
BUSY = (14, 15, 16, 51)


class Shop:
    """A transactional producer on a bench, that asks again while it is told to."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.producer_id = self.epoch = -1
        bench.cluster.create_internal_topics(bench.now)
        bench.run(0.2)

    # --- where ---

    @property
    def index(self) -> int:
        return partition_of(ID, len(self.bench.cluster.topics[TRANSACTIONS].partitions))

    @property
    def coordinator(self) -> int:
        return self.bench.cluster.leader(TRANSACTIONS, self.index)[0]

    # --- one request ---

    def ask(self, request: Any, version: int, node_id: int | None = None) -> Sent:
        node_id = self.coordinator if node_id is None else node_id
        return self.bench.send(self.bench.connect(node_id), request, version)

    def who(self) -> dict[str, Any]:
        return {
            "transactional_id": ID,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def init(self, *, known: bool = False, timeout_ms: int = 60_000) -> Sent:
        fields = self.who() if known else {"producer_id": -1, "producer_epoch": -1}
        fields |= {"transactional_id": ID, "transaction_timeout_ms": timeout_ms}
        return self.ask(InitProducerIdRequest(**fields), 4)

    def add(self, partition: int = 0, topic: str = "t") -> Sent:
        entry = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        known = {f"v3_and_below_{name}": value for name, value in self.who().items()}
        topics = [entry(name=topic, partitions=[partition])]
        return self.ask(AddPartitionsToTxnRequest(v3_and_below_topics=topics, **known), 3)

    def end(self, *, commit: bool, version: int = 3, node_id: int | None = None) -> Sent:
        return self.ask(EndTxnRequest(**self.who(), committed=commit), version, node_id)

    def produce(self, sequence: int, partition: int = 0, version: int = 11) -> Sent:
        builder = MemoryRecordsBuilder(2, 0, 1 << 16)
        builder.set_producer_state(self.producer_id, self.epoch, sequence, True)
        builder.append(1000, b"key", b"value-%d" % sequence)
        builder.close()
        leader = self.bench.cluster.leader("t", partition)[0]
        return self.bench.produce_raw(
            self.bench.connect(leader),
            {("t", partition): bytes(builder.buffer())},
            version=version,
            transactional_id=ID,
        )

    # --- until it is done ---

    def until(self, ask: Callable[[], Sent]) -> int:
        """Ask until the answer is none of those that ask to come again; its code."""
        for _ in range(200):
            sent = ask()
            self.bench.run_until(lambda sent=sent: sent.response is not None, 1.0)
            if sent.response is not None and (code := code_of(sent)) not in BUSY:
                return code
            self.bench.run(0.05)
        raise AssertionError("it is busy for ever")

    def begin(self, *partitions: int, **options: Any) -> None:
        def ask() -> Sent:
            sent = self.init(**options)
            self.bench.run(0.05)
            if sent.response is not None and sent.response.error_code == 0:
                self.producer_id = sent.response.producer_id
                self.epoch = sent.response.producer_epoch
            return sent

        assert self.until(ask) == 0
        for partition in partitions:
            assert self.until(lambda p=partition: self.add(p)) == 0

    def sent(self, sequence: int, partition: int = 0, version: int = 11) -> tuple[int, int]:
        sent = self.produce(sequence, partition, version)
        self.bench.until_answered(sent)
        return sent.result

    # --- what is in the log ---

    def markers(self, partition: int = 0) -> list[str]:
        """Markers of a partition with their epochs, less the producer's."""
        batches = self.bench.cluster.batches("t", partition)
        return [
            f"{'commit' if b.decoded()[0].key[3] else 'abort'} {b.producer_epoch - self.epoch}"
            for b in batches
            if b.control
        ]

    def stable(self, partition: int = 0) -> int:
        replica = self.bench.cluster.replica("t", partition)
        assert replica is not None
        return replica.last_stable_offset


def code_of(sent: Sent) -> int:
    response = sent.response
    if isinstance(response, AddPartitionsToTxnResponse):
        topic = response.results_by_topic_v3_and_below[0]
        return int(topic.results_by_partition[0].partition_error_code)
    return int(response.error_code)


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


def test_a_coordinator_that_wakes_up_writes_no_marker_into_the_next_transaction(shop: Shop) -> None:
    shop.begin(0)
    assert shop.sent(0) == (0, 0)
    silent = shop.coordinator
    others = [n for n in (1, 2, 3) if n != silent]
    if shop.bench.cluster.leader("t", 0)[0] == silent:
        shop.bench.cluster.move_leader("t", 0, others[0], shop.bench.now)
        shop.bench.run(0.1)
    ended = shop.end(commit=True)
    shop.bench.until_answered(ended)
    shop.bench.cluster.pause(silent, shop.bench.now)  # the marker is on its way or not
    shop.bench.run(1.5)
    assert shop.until(lambda: shop.end(commit=True)) == 0
    assert shop.until(lambda: shop.add(0)) == 0
    assert shop.sent(1)[0] == 0
    before = shop.markers()
    shop.bench.cluster.resume(silent, shop.bench.now)
    shop.bench.run(2.0)
    assert shop.markers() == before
    assert shop.stable() < shop.bench.cluster.replica("t", 0).high_watermark
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


def test_a_marker_that_overtakes_the_answer_keeps_the_batch_out(
    make_bench: Callable[..., Bench],
) -> None:
    """Else the batch would open a transaction that nobody ever ends."""
    shop = Shop(make_bench(partitions=3, min_isr=2, between_brokers_s=0.02))
    asking = shop.coordinator % 3
    shop.begin(asking)
    late = shop.produce(0, asking)
    shop.bench.run(0.011)  # the coordinator has said yes, and its answer is on the way
    ended = shop.end(commit=False)
    shop.bench.until_answered(late, ended)
    shop.bench.run(0.5)
    batches = shop.bench.cluster.batches("t", asking)
    assert shop.stable(asking) == batches[-1].next_offset


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

REQUESTS = {
    22: lambda shop: shop.init(known=True),
    24: lambda shop: shop.add(),
    25: lambda shop: shop.ask(AddOffsetsToTxnRequest(**shop.who(), group_id="g"), 3),
    26: lambda shop: shop.end(commit=True),
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
