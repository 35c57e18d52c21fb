"""Futures: kafka-python's whole surface over what a batch came to."""

from __future__ import annotations

import asyncio
import pickle
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import kafka.errors
import pytest
from kafka.future import Future
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata, RecordMetadata
from kafka.structs import TopicPartition

from outlast.engine.batch import Batch, Result
from outlast.engine.messages import Failure, Outcome
from outlast.engine.record_batch import Record
from outlast.errors import BlockedError, DeliveryError, OutlastError
from outlast.future import Delivery, DeliveryFuture, Hearing, Undelivered

TP = TopicPartition("t", 3)
CLOSED = Failure("closed", None, "closed", Outcome.NEVER_SENT)
TOO_LARGE = Failure("refused", 10, "too large", Outcome.NOT_ACCEPTED)
RECORD = Record(0, 1, None, b"value", ())
DEADLINE_S = 10.0


def batch_of(count: int, *, first_index: int = 0, start_ms: int = 1_000) -> Batch:
    batch = Batch(TP, now=0.0)
    batch.first_index = first_index
    for index in range(first_index, first_index + count):
        assert batch.builder is not None
        batch.builder.append(start_ms + index, b"k%d" % index, b"v%d" % index, [("h", b"x")])
        batch.count += 1
    return batch


def settled(count: int, result: Result, *, first_index: int = 0) -> Batch:
    batch = batch_of(count, first_index=first_index)
    batch.result = result
    return batch


def futures_of(delivery: Delivery, count: int) -> list[DeliveryFuture]:
    return [DeliveryFuture(delivery, i, 1_000 + i, 2, 5, -1) for i in range(count)]


class TestResults:
    def test_pending(self) -> None:
        (future,) = futures_of(Delivery(Hearing()), 1)
        assert isinstance(future, FutureRecordMetadata)
        assert not future.is_done
        assert not future.succeeded()
        assert not future.failed()
        assert not future.retriable()
        assert future.value is None
        assert future.exception is None
        assert repr(future) == "<DeliveryFuture pending>"
        with pytest.raises(kafka.errors.KafkaTimeoutError, match="Timeout after waiting for 0"):
            future.get(timeout=0)
        with pytest.raises(BlockedError):
            future.get(timeout=-1)

    def test_delivered(self) -> None:
        delivery = Delivery(Hearing())
        futures = futures_of(delivery, 3)
        delivery.settle(settled(3, Result(base_offset=100)))
        for index, future in enumerate(futures):
            expected = RecordMetadata("t", 3, TP, 100 + index, 1_000 + index, None, 2, 5, -1)
            assert future.get() == expected
            assert future.get(timeout=0) == expected
            assert future.value == expected
            assert future.is_done
            assert future.succeeded()
            assert not future.failed()
            assert future.exception is None
            assert type(future.value.topic_partition) is TopicPartition
            assert "offset=10" in repr(future)

    def test_same_metadata_as_kafka_pythons_own_future(self) -> None:
        produced = FutureProduceResult(TP)
        theirs = FutureRecordMetadata(produced, 1, 1_001, None, 2, 5, -1)
        delivery = Delivery(Hearing())
        ours = futures_of(delivery, 2)[1]
        assert ours.args == theirs.args
        produced.success((70, 9_999, None))
        delivery.settle(settled(2, Result(base_offset=70, log_append_time_ms=9_999)))
        assert ours.value == theirs.value
        assert type(ours.value) is type(theirs.value)

    def test_no_offset_where_the_broker_tells_none(self) -> None:
        delivery = Delivery(Hearing())
        futures = futures_of(delivery, 2)
        delivery.settle(settled(2, Result(base_offset=-1)))
        assert [f.get().offset for f in futures] == [-1, -1]

    def test_log_append_time_replaces_the_records_own(self) -> None:
        delivery = Delivery(Hearing())
        (future,) = futures_of(delivery, 1)
        delivery.settle(settled(1, Result(base_offset=0, log_append_time_ms=77)))
        assert future.get().timestamp == 77

    def test_failed(self) -> None:
        delivery = Delivery(Hearing())
        first, second = futures_of(delivery, 2)
        delivery.settle(settled(2, Result(failure=CLOSED)))
        for future in (first, second):
            with pytest.raises(kafka.errors.IllegalStateError) as caught:
                future.get()
            assert isinstance(caught.value, DeliveryError)
            assert caught.value.outcome is Outcome.NEVER_SENT
            assert caught.value is future.exception
            assert future.failed()
            assert not future.succeeded()
            assert future.value is None
        assert first.exception is second.exception
        assert "IllegalStateError" in repr(first)

    def test_retriable_as_kafka_python_has_it(self) -> None:
        delivery = Delivery(Hearing())
        (future,) = futures_of(delivery, 1)
        delivery.settle(settled(1, Result(failure=Failure("r", 6, "", Outcome.NOT_ACCEPTED))))
        assert future.retriable()

    def test_tracebacks_do_not_pile_up_in_a_shared_exception(self) -> None:
        delivery = Delivery(Hearing())
        (future,) = futures_of(delivery, 1)
        delivery.settle(settled(1, Result(failure=CLOSED)))

        def depth() -> int:
            with pytest.raises(DeliveryError) as caught:
                future.get()
            traceback, frames = caught.value.__traceback__, 0
            while traceback is not None:
                traceback, frames = traceback.tb_next, frames + 1
            return frames

        assert depth() == depth() == depth()

    def test_single_records_can_fail(self) -> None:
        delivery = Delivery(Hearing())
        futures = futures_of(delivery, 3)
        delivery.settle(settled(3, Result(base_offset=5, record_failures={1: TOO_LARGE})))
        assert [f.succeeded() for f in futures] == [True, False, True]
        assert futures[2].get().offset == 7
        with pytest.raises(kafka.errors.MessageSizeTooLargeError):
            futures[1].get()

    def test_errors_can_be_pickled(self) -> None:
        delivery = Delivery(Hearing())
        (future,) = futures_of(delivery, 1)
        delivery.settle(settled(1, Result(failure=TOO_LARGE)))
        again = pickle.loads(pickle.dumps(future.exception))
        assert isinstance(again, kafka.errors.MessageSizeTooLargeError)
        assert again.outcome is Outcome.NOT_ACCEPTED

    def test_the_batch_is_let_go(self) -> None:
        delivery = Delivery(Hearing())
        futures = futures_of(delivery, 1)
        seen: list[RecordMetadata] = []
        futures[0].add_callback(seen.append)
        batch: Any = SimpleNamespace(
            topic="t",
            partition=3,
            count=1,
            first_index=0,
            result=Result(base_offset=1),
            gaps=(),
            attempts=[],
        )
        marker = batch.marker = type("Marker", (), {})()
        alive = weakref.ref(marker)
        delivery.settle(batch)
        del batch, marker
        assert seen
        assert alive() is None

    def test_only_the_producer_settles_it(self) -> None:
        (future,) = futures_of(Delivery(Hearing()), 1)
        for misuse in (
            lambda: future.success(1),
            lambda: future.failure(ValueError()),
            lambda: future.rebind(None, 0),
        ):
            with pytest.raises(OutlastError):
                misuse()

    def test_refused_before_it_joined_a_batch(self) -> None:
        future = DeliveryFuture(Delivery.refused(TP, TOO_LARGE, 1, Hearing()), 0, 1, -1, 5, -1)
        assert future.is_done
        with pytest.raises(kafka.errors.MessageSizeTooLargeError):
            future.get(0)


class TestSplitBatches:
    def test_settle_in_pieces(self) -> None:
        delivery = Delivery(Hearing())
        futures = futures_of(delivery, 5)
        heard: list[int] = []
        for future in futures:
            future.add_callback(lambda m: heard.append(m.offset))
        delivery.settle(settled(2, Result(base_offset=50), first_index=3))
        assert [f.is_done for f in futures] == [False, False, False, True, True]
        assert heard == [50, 51]
        delivery.settle(settled(1, Result(failure=TOO_LARGE), first_index=0))
        delivery.settle(settled(2, Result(base_offset=60), first_index=1))
        assert futures[0].failed()
        assert [f.get().offset for f in futures[1:]] == [60, 61, 50, 51]
        assert heard == [50, 51, 60, 61]

    def test_waiting_for_all_records(self) -> None:
        delivery = Delivery(Hearing())
        delivery.settle(settled(2, Result(base_offset=50), first_index=3))
        assert not delivery.wait_told(1, timeout_s=0)
        assert not delivery.wait_told(5, timeout_s=0)
        delivery.settle(settled(3, Result(base_offset=40)))
        assert delivery.wait_told(3, timeout_s=0)
        assert delivery.wait_told(5, timeout_s=0)


class TestCallbacks:
    def test_before_and_after(self) -> None:
        delivery = Delivery(Hearing())
        (future,) = futures_of(delivery, 1)
        heard: list[tuple[Any, ...]] = []

        def note(*args: Any, **kwargs: Any) -> None:
            heard.append((*args, kwargs))

        assert future.add_callback(note) is future
        assert future.add_callback(note, 1, 2, key=3) is future
        assert future.add_errback(note, "not called") is future
        assert future.add_both(note, "both") is future
        delivery.settle(settled(1, Result(base_offset=9)))
        value = future.value
        assert heard == [(value, {}), (1, 2, value, {"key": 3}), ("both", value, {})]
        heard.clear()
        future.add_callback(note).add_errback(note).add_both(note)
        assert heard == [(value, {}), (value, {})]

    def test_errbacks(self) -> None:
        delivery = Delivery(Hearing())
        (future,) = futures_of(delivery, 1)
        heard: list[Any] = []
        future.add_callback(heard.append).add_errback(heard.append).add_both(heard.append)
        delivery.settle(settled(1, Result(failure=CLOSED)))
        assert heard == [future.exception] * 2
        future.add_errback(heard.append)
        assert heard == [future.exception] * 3

    def test_run_in_the_records_order(self) -> None:
        delivery = Delivery(Hearing())
        futures = futures_of(delivery, 4)
        heard: list[int] = []
        for future in reversed(futures):
            future.add_callback(lambda m: heard.append(m.offset))
        delivery.settle(settled(4, Result(base_offset=0)))
        assert heard == [0, 1, 2, 3]

    def test_run_with_no_lock_held(self) -> None:
        delivery = Delivery(Hearing())
        first, second = futures_of(delivery, 2)
        heard: list[Any] = []
        first.add_callback(lambda _: second.add_callback(heard.append))
        first.add_callback(lambda _: heard.append(second.get(timeout=0).offset))
        delivery.settle(settled(2, Result(base_offset=0)))
        assert heard == [second.value, 1]

    def test_get_does_not_wait_for_its_own_thread(self) -> None:
        hearing, other = Hearing(), Hearing()
        delivery, later, elsewhere = Delivery(hearing), Delivery(hearing), Delivery(other)
        first, second, third = (futures_of(d, 1)[0] for d in (delivery, later, elsewhere))
        heard: list[Any] = []

        def wait_for_others(_: RecordMetadata) -> None:
            for future, timeout in ((second, None), (second, 5), (second, 0), (third, 0.001)):
                with pytest.raises(kafka.errors.KafkaError) as caught:
                    future.get(timeout)
                heard.append(caught.type)

        first.add_callback(wait_for_others)
        delivery.settle(settled(1, Result(base_offset=0)))
        illegal = kafka.errors.IllegalStateError
        # Without waiting it may look, and another producer's future it may wait for.
        assert heard == [illegal, illegal, BlockedError, BlockedError]
        with pytest.raises(BlockedError):
            second.get(timeout=0.001)  # outside of callbacks all is as ever

    def test_what_they_raise_is_logged_and_swallowed(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        delivery = Delivery(Hearing())
        first, second = futures_of(delivery, 2)
        heard: list[Any] = []
        first.add_callback(lambda _: 1 / 0)
        second.add_callback(heard.append)
        delivery.settle(settled(2, Result(base_offset=0)))
        assert heard == [second.value]
        assert "Error processing callback" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        first.add_callback(lambda _: 1 / 0)

    @pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
    def test_others_are_run_though_one_would_end_the_process(
        self, ending: type[BaseException]
    ) -> None:
        delivery = Delivery(Hearing())
        futures = futures_of(delivery, 3)
        seen: list[Any] = []

        def end(_: object) -> None:
            raise ending

        futures[0].add_callback(end).add_callback(seen.append)
        futures[2].add_callback(seen.append)
        with pytest.raises(ending):
            delivery.settle(settled(3, Result(base_offset=7)))
        assert [metadata.offset for metadata in seen] == [7, 9]
        assert delivery.wait_told(3, 0)

    @pytest.fixture
    def _raising(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Future, "error_on_callbacks", True)

    @pytest.mark.usefixtures("_raising")
    def test_error_on_callbacks_is_honoured(self) -> None:
        delivery = Delivery(Hearing())
        first, second = futures_of(delivery, 2)
        heard: list[Any] = []
        first.add_callback(lambda _: 1 / 0)
        second.add_callback(heard.append)
        with pytest.raises(ZeroDivisionError):
            delivery.settle(settled(2, Result(base_offset=0)))
        assert heard == [second.value]  # the others are still told
        assert delivery.wait_told(2, timeout_s=0)
        with pytest.raises(ZeroDivisionError):
            first.add_callback(lambda _: 1 / 0)

    def test_chain(self) -> None:
        delivery = Delivery(Hearing())
        good = futures_of(delivery, 1)[0]
        follower = Future()
        good.chain(follower)
        delivery.settle(settled(1, Result(base_offset=1)))
        assert follower.value == good.value
        bad = DeliveryFuture(Delivery.refused(TP, CLOSED, 1, Hearing()), 0, 1, -1, 5, -1)
        follower = Future()
        bad.chain(follower)
        assert follower.exception is bad.exception

    def test_await_in_kafka_pythons_loop(self) -> None:
        delivery = Delivery(Hearing())
        (future,) = futures_of(delivery, 1)

        async def wait_for_it() -> RecordMetadata:
            return await future

        task = wait_for_it()
        assert task.send(None) is future  # the loop is handed the future to wait for
        delivery.settle(settled(1, Result(base_offset=4)))
        with pytest.raises(StopIteration) as stopped:
            task.send(None)
        assert stopped.value.value.offset == 4


class TestThreads:
    def test_many_wait_for_one_batch(self) -> None:
        delivery = Delivery(Hearing())
        futures = futures_of(delivery, 20)
        started = threading.Barrier(21)
        offsets: list[int] = []

        def wait(future: DeliveryFuture) -> None:
            started.wait(DEADLINE_S)
            offsets.append(future.get(timeout=DEADLINE_S).offset)

        threads = [threading.Thread(target=wait, args=(future,)) for future in futures]
        for thread in threads:
            thread.start()
        started.wait(DEADLINE_S)
        delivery.settle(settled(10, Result(base_offset=0)))
        delivery.settle(settled(10, Result(base_offset=10), first_index=10))
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert sorted(offsets) == list(range(20))

    def test_told_only_after_callbacks_but_done_before(self) -> None:
        delivery = Delivery(Hearing())
        (future,) = futures_of(delivery, 1)
        called, release = threading.Event(), threading.Event()

        def slow_callback(_: RecordMetadata) -> None:
            called.set()
            release.wait(DEADLINE_S)

        future.add_callback(slow_callback)
        batch = settled(1, Result(base_offset=0))
        settler = threading.Thread(target=delivery.settle, args=(batch,))
        settler.start()
        assert called.wait(DEADLINE_S)
        assert future.get(timeout=0).offset == 0
        assert not delivery.wait_told(1, timeout_s=0)
        release.set()
        assert delivery.wait_told(1, timeout_s=DEADLINE_S)
        settler.join(DEADLINE_S)

    def test_callbacks_added_while_it_is_settled_run_exactly_once(self) -> None:
        def add(gate: threading.Barrier, future: DeliveryFuture, heard: list[Any]) -> None:
            gate.wait(DEADLINE_S)
            for _ in range(20):
                future.add_callback(heard.append)

        for _ in range(50):
            delivery = Delivery(Hearing())
            (future,) = futures_of(delivery, 1)
            heard: list[Any] = []
            gate = threading.Barrier(3)
            threads = [threading.Thread(target=add, args=(gate, future, heard)) for _ in range(2)]
            for thread in threads:
                thread.start()
            gate.wait(DEADLINE_S)
            delivery.settle(settled(1, Result(base_offset=0)))
            for thread in threads:
                thread.join(DEADLINE_S)
            assert len(heard) == 40

    def test_timeouts_beyond_what_locks_take(self) -> None:
        delivery = Delivery(Hearing())
        (future,) = futures_of(delivery, 1)
        delivery.settle(settled(1, Result(base_offset=0)))
        assert future.get(timeout=1e12).offset == 0
        waiting = Delivery(Hearing())
        late = futures_of(waiting, 1)[0]
        thread = threading.Thread(target=late.get, args=(1e12,))
        thread.start()
        waiting.settle(settled(1, Result(base_offset=0)))
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


class TestUndelivered:
    def test_failed_records_come_back(self) -> None:
        back: list[Undelivered] = []
        delivery = Delivery(Hearing(back.append))
        futures = futures_of(delivery, 3)
        delivery.settle(settled(3, Result(base_offset=0, record_failures={1: TOO_LARGE})))
        delivery.settle(settled(1, Result(failure=CLOSED), first_index=3))
        assert [(r.key, r.value, r.timestamp_ms) for r in back] == [
            (b"k1", b"v1", 1_001),
            (b"k3", b"v3", 1_003),
        ]
        first = back[0]
        assert (first.topic, first.partition, first.headers) == ("t", 3, (("h", b"x"),))
        assert first.outcome is Outcome.NOT_ACCEPTED
        assert first.error is futures[1].exception
        assert first.attempts == ()
        assert back[1].outcome is Outcome.NEVER_SENT

    def test_a_refused_record_is_settled_at_once_and_told_when_it_was_given_back(self) -> None:
        back: list[Undelivered] = []
        delivery = Delivery.refused(TopicPartition("t", None), TOO_LARGE, 1, Hearing(back.append))
        future = DeliveryFuture(delivery, 0, 1, -1, 5, -1)
        assert future.is_done
        assert not delivery.wait_told(1, timeout_s=0)
        delivery.give_back([RECORD])
        assert delivery.wait_told(1, timeout_s=0)
        (record,) = back
        assert (record.partition, record.value, record.timestamp_ms) == (None, b"value", 1)
        assert record.error is future.exception
        assert record.outcome is Outcome.NOT_ACCEPTED

    def test_nothing_comes_back_of_what_was_delivered(self) -> None:
        back: list[Undelivered] = []
        Delivery(Hearing(back.append)).settle(settled(2, Result(base_offset=0)))
        assert back == []

    def test_what_it_raises_is_logged_and_the_rest_still_comes(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        back: list[Undelivered] = []

        def raise_once(record: Undelivered) -> None:
            back.append(record)
            if len(back) == 1:
                raise RuntimeError("full disk")

        delivery = Delivery(Hearing(raise_once))
        (future, _) = futures_of(delivery, 2)
        delivery.settle(settled(2, Result(failure=CLOSED)))
        assert len(back) == 2
        assert "full disk" in caplog.text
        assert future.failed()

    def test_the_rest_comes_too_if_it_would_end_the_process(self) -> None:
        back: list[Undelivered] = []
        seen: list[Any] = []

        def end_once(record: Undelivered) -> None:
            back.append(record)
            if len(back) == 1:
                raise SystemExit

        delivery = Delivery(Hearing(end_once))
        futures_of(delivery, 2)[1].add_errback(seen.append)
        with pytest.raises(SystemExit):
            delivery.settle(settled(2, Result(failure=CLOSED)))
        assert len(back) == 2
        assert len(seen) == 1
