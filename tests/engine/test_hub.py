"""What the hub's files do in common, where nothing else shows it alone."""

from __future__ import annotations

import random

from outlast.engine.batch import Result
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.hub import Hub
from outlast.engine.messages import Cause, GapEnd, RecordsSettled, place_name
from outlast.engine.record_batch import RecordBatchBuilder
from outlast.engine.settings import Settings
from outlast.engine.txn_verdict import TxnVerdict, judge_coordinator, table
from tests.engine.usual import USUAL

T0 = ("t", 0)


def test_a_gap_counts_each_record_of_a_batch_of_which_some_failed() -> None:
    hub = Hub(Settings(**USUAL), random.Random(1), 0.0)
    place = hub.new_partition(T0, 0.0)
    batch = place.queue.begin(0.0)
    for _ in range(3):
        batch.append(0, None, b"v", ())
    hub.batch_begun(place, batch, 0.0)
    hub.gap_unreachable(place, Cause.OTHER, "NOBODY", 1.0)
    failure = batch.failure(FailureReason("broker", 87, "INVALID_RECORD"), 0.0)
    batch.result = Result(base_offset=4, record_failures={1: failure})
    hub.settle(place, [batch], 2.0)
    [settled] = [fact for fact in hub.out.facts if isinstance(fact, RecordsSettled)]
    assert (settled.acked, settled.failed) == (2, 1)
    hub.tell(hub.recorder.abandon(T0, GapEnd.CLOSED, 3.0))
    [gap] = hub.recorder.gaps(3.0)
    assert (gap.records_delivered, gap.records_failed) == (2, 1)


def test_a_gap_whose_outcome_was_told_is_joined_by_nobody() -> None:
    hub = Hub(Settings(**USUAL), random.Random(1), 0.0)
    recorder = hub.recorder
    recorder.unreachable(
        T0,
        cause=Cause.OTHER,
        trigger="NOBODY",
        ready_s=0.0,
        leader=-1,
        leader_epoch=-1,
        last_ack_s=None,
        now=1.0,
    )
    number = recorder.met(T0)
    assert number is not None
    recorder.abandon(T0, GapEnd.CLOSED, 2.0)
    recorder.joined(number)
    assert recorder.settled(number, "delivered", 1, 3.0) == []


def test_places_are_named_as_kafka_does() -> None:
    assert place_name("t", 3) == "t-3"
    assert place_name("txn:shop", -1) == "txn:shop"


def test_the_table_of_coordinators_answers_has_each_code_once_and_says_what_it_means() -> None:
    codes = [judgement.error_code for judgement in table()]
    assert codes == sorted(set(codes))
    assert judge_coordinator(max(codes) + 1).verdict is TxnVerdict.ABORT
    assert TxnVerdict.DONE.meaning == "it is done"
    assert len({verdict.meaning for verdict in TxnVerdict}) == len(TxnVerdict)


def test_a_batch_that_is_sealed_is_whole_and_needs_no_mending() -> None:
    builder = RecordBatchBuilder()
    builder.append(0, None, b"v", ())
    data = builder.seal(0)
    before = bytes(data)
    builder.mend()
    assert (bytes(data), builder.count) == (before, 1)
