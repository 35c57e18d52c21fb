"""In event loops of asyncio: futures can be awaited, and `send_async` never blocks the loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import kafka
import pytest
from kafka.errors import IllegalStateError, TopicAuthorizationFailedError
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outlast import BlockedError, ClosedError, DeliveryError, KafkaProducer
from outlast.testing.faults import Error, LoseRequest
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic
from tests.real.kafka_cluster import until
from tests.tcp.stories import TOPIC, calm_cluster, warm_producer

METADATA = 3
NOBODY = "127.0.0.1:9"
VALUE = bytes(2_000)


@pytest.fixture(scope="module")
def server() -> Iterator[ClusterServer]:
    with calm_cluster(3) as server:
        yield server


class Lag:
    """How late the loop was at most."""

    worst_s = 0.0


@asynccontextmanager
async def watched() -> AsyncIterator[Lag]:
    """Wakes every 2 ms, and looks how late it is."""
    lag = Lag()

    async def watch() -> None:
        while True:
            due_s = time.monotonic() + 0.002
            await asyncio.sleep(0.002)
            lag.worst_s = max(lag.worst_s, time.monotonic() - due_s)

    task = asyncio.ensure_future(watch())
    await asyncio.sleep(0.01)
    try:
        yield lag
    finally:
        await asyncio.sleep(0.01)  # it looks once more
        task.cancel()


class TestAwait:
    def test_its_metadata_or_its_error(self, server: ClusterServer) -> None:
        async def app(producer: KafkaProducer) -> None:
            future = producer.send(TOPIC, b"v", partition=0)
            metadata = await future
            assert metadata == future.get(timeout=0)
            assert await future == metadata  # again, when it is settled
            futures = [producer.send(TOPIC, b"v", partition=0) for _ in range(100)]
            told = await asyncio.gather(*futures)
            assert [m.offset for m in told] == [metadata.offset + n for n in range(1, 101)]
            server.call(
                lambda cluster, _: cluster.faults.append(
                    Error(87, topic=TOPIC, partition=0, times=1)
                )
            )
            with pytest.raises(DeliveryError):
                await producer.send(TOPIC, b"bad", partition=0)

        with warm_producer(server) as producer:
            asyncio.run(app(producer))

    def test_a_cancelled_task_takes_nothing_back(self, server: ClusterServer) -> None:
        async def app(producer: KafkaProducer) -> None:
            future = producer.send(TOPIC, b"lingers", partition=0)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(future, 0.02)
            waits = asyncio.ensure_future(_of(future))
            await asyncio.sleep(0.01)
            waits.cancel()
            assert (await future).offset >= 0
            assert waits.cancelled()

        with warm_producer(server, linger_ms=200) as producer:
            asyncio.run(app(producer))

    def test_a_loop_of_time_outs_leaves_nothing_behind(self, server: ClusterServer) -> None:
        """Somebody who looks again and again, while the record waits for its leader."""

        def waits() -> int:
            gc.collect()
            return sum(isinstance(thing, asyncio.Future) for thing in gc.get_objects())

        async def app(producer: KafkaProducer) -> None:
            future = producer.send(TOPIC, b"lingers", partition=0)
            before = waits()
            for _ in range(200):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(future, 0.0005)
            assert waits() <= before + 5
            producer.flush()
            assert (await future).offset >= 0

        with warm_producer(server, linger_ms=60_000) as producer:
            asyncio.run(app(producer))

    def test_in_several_loops_at_once(self, server: ClusterServer) -> None:
        offsets: list[int] = []

        def loop(future: Any) -> None:
            offsets.append(asyncio.run(_of(future)).offset)

        with warm_producer(server, linger_ms=100) as producer:
            future = producer.send(TOPIC, b"v", partition=0)
            threads = [threading.Thread(target=loop, args=(future,)) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert offsets == [future.get(timeout=0).offset] * 5

    def test_a_loop_that_is_gone_harms_nobody(
        self, server: ClusterServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def leave(future: Any) -> None:
            task = asyncio.ensure_future(_of(future))
            await asyncio.sleep(0.01)
            assert not task.done()

        with warm_producer(server, linger_ms=200) as producer:
            future = producer.send(TOPIC, b"v", partition=0)
            asyncio.run(leave(future))
            assert future.get(timeout=5).offset >= 0
            assert producer.send(TOPIC, b"v", partition=0).get(timeout=5)
        assert caplog.text == ""


async def _of(future: Any) -> Any:
    return await future


@pytest.mark.timed
class TestSendAsync:
    def test_b76_while_no_broker_answers_the_loop_goes_on(self) -> None:
        async def app(producer: KafkaProducer) -> float:
            async with watched() as lag:
                begun_s = time.monotonic()
                with pytest.raises(BlockedError, match=r"No metadata .* max_block_ms=300"):
                    await producer.send_async("t", b"v")
                assert 0.3 <= time.monotonic() - begun_s < 0.6
            return lag.worst_s

        with KafkaProducer(
            bootstrap_servers=NOBODY, max_block_ms=300, metrics_registry=None
        ) as producer:
            assert asyncio.run(app(producer)) < 0.05

    def test_it_waits_for_metadata_and_for_room(self, server: ClusterServer) -> None:
        topic = new_topic(server)

        async def app(producer: KafkaProducer) -> float:
            values = [b"%d" % n + bytes(500) for n in range(300)]
            async with watched() as lag:
                futures = [await producer.send_async(topic, value) for value in values]
                assert sum(future.is_done for future in futures) >= 250, "the rest fills the buffer"
                offsets = [(await future).offset for future in futures]
            assert offsets == list(range(300))
            assert [r.value for r in server.records(topic, 0)] == values
            return lag.worst_s

        with KafkaProducer(
            bootstrap_servers=server.bootstrap, buffer_memory=20_000, metrics_registry=None
        ) as producer:
            assert asyncio.run(app(producer)) < 0.1

    def test_tasks_are_served_in_their_order(self, server: ClusterServer) -> None:
        topic = new_topic(server)

        async def app(producer: KafkaProducer) -> None:
            async def send(number: int) -> int:
                return (await (await producer.send_async(topic, b"%d" % number))).offset

            offsets = await asyncio.gather(*map(send, range(200)))
            assert offsets == list(range(200))

        with KafkaProducer(
            bootstrap_servers=server.bootstrap,
            buffer_memory=10_000,
            batch_size=0,
            metrics_registry=None,
        ) as producer:
            producer.partitions_for(topic)
            asyncio.run(app(producer))

    def test_what_is_cancelled_while_it_waits_was_not_sent_and_takes_no_room(
        self, server: ClusterServer
    ) -> None:
        topic = new_topic(server)

        async def in_time(producer: KafkaProducer) -> Any:
            try:
                return await asyncio.wait_for(producer.send_async(topic, bytes(500)), 0.1)
            except asyncio.TimeoutError:
                return None

        async def app(producer: KafkaProducer) -> None:
            sent: list[Any] = []
            while len(sent) < 100 and (future := await in_time(producer)) is not None:
                sent.append(future)
            assert len(sent) < 100
            late = [
                asyncio.ensure_future(producer.send_async(topic, bytes(500))) for _ in range(20)
            ]
            await asyncio.sleep(0.01)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            assert all(task.cancelled() for task in late)
            server.call(lambda cluster, _: cluster.faults.clear())
            await asyncio.gather(*sent)
            assert (await (await producer.send_async(topic, b"last"))).offset == len(sent)
            assert producer.health().buffer_bytes == 0

        with KafkaProducer(
            bootstrap_servers=server.bootstrap,
            buffer_memory=20_000,
            batch_size=0,
            request_timeout_ms=1000,
            metrics_registry=None,
        ) as producer:
            producer.partitions_for(topic)
            server.call(lambda cluster, _: cluster.faults.append(LoseRequest(topic=topic, api=0)))
            asyncio.run(app(producer))

    def test_close_tells_those_who_wait(self) -> None:
        async def app(producer: KafkaProducer) -> None:
            tasks = [asyncio.ensure_future(producer.send_async("t", b"v")) for _ in range(3)]
            await asyncio.sleep(0.05)
            await asyncio.get_running_loop().run_in_executor(None, producer.close, 0)
            for task in tasks:
                with pytest.raises(ClosedError):
                    await task
            with pytest.raises(ClosedError):
                await producer.send_async("t", b"v")

        asyncio.run(app(KafkaProducer(bootstrap_servers=NOBODY, metrics_registry=None)))

    def test_with_a_partitioner_and_serializers_of_the_users(self, server: ClusterServer) -> None:
        topic = new_topic(server, 3)
        calls: list[Any] = []

        class Text(kafka.Serializer):
            def serialize(self, _topic: str, _headers: Any, data: str | None) -> bytes | None:
                calls.append(data)
                return None if data is None else data.encode()

        class Last(kafka.partitioner.Partitioner):
            def partition(self, topic: str, *record: Any) -> int:
                return max(record[-1].available_partitions_for_topic(topic))

        async def app(producer: KafkaProducer) -> None:
            metadata = await (await producer.send_async(topic, "text", b"key"))
            assert metadata.partition == 2
            assert calls == ["text"]
            with pytest.raises(TypeError):
                await producer.send_async(topic, key=3)

        with KafkaProducer(
            bootstrap_servers=server.bootstrap,
            metrics_registry=None,
            partitioner=Last(),
            value_serializer=Text(),
        ) as producer:
            asyncio.run(app(producer))

    @pytest.mark.parametrize("who", ["serializer", "partitioner"])
    def test_what_the_users_code_sends_meanwhile_is_a_plain_send(
        self, server: ClusterServer, who: str
    ) -> None:
        topic, audit = new_topic(server), new_topic(server)
        inner: list[Any] = []

        def audited(made: Any) -> Any:
            if not inner:
                inner.append(None)
                inner[:] = [producer.send(audit, b"audit")]  # its topic is not known yet
            return made

        settings: dict[str, Any] = (
            {"value_serializer": audited}
            if who == "serializer"
            else {"partitioner": lambda _key, every, _available: audited(every[0])}
        )
        with pytest.warns(DeprecationWarning, match=who):
            producer = KafkaProducer(
                bootstrap_servers=server.bootstrap, metrics_registry=None, **settings
            )
        with producer:

            async def app() -> None:
                assert (await (await producer.send_async(topic, b"v"))).topic == topic
                assert (await asyncio.wait_for(inner[0], 5)).topic == audit

            asyncio.run(app())

    @pytest.mark.parametrize("how", ["twice", "get"])
    def test_a_send_of_ones_own_that_cannot_be_awaited_says_so_and_leaves_nothing(
        self, server: ClusterServer, how: str
    ) -> None:
        topic, audit = new_topic(server), new_topic(server)

        class Own(KafkaProducer):
            def send(self, *record: Any, **more: Any) -> Any:
                if threading.current_thread() is threading.main_thread():
                    first = super().send(audit, b"audit")
                    if how == "get":
                        first.get(5)
                return super().send(*record, **more)

        async def app(producer: KafkaProducer) -> None:
            with pytest.raises(IllegalStateError, match=r"send_async"):
                await producer.send_async(topic, b"v")
            later = asyncio.get_running_loop().run_in_executor
            assert (await later(None, producer.send, topic, b"v")).get(5)
            assert (await later(None, producer.partitions_for, audit)) == {0}

        with Own(bootstrap_servers=server.bootstrap, metrics_registry=None) as producer:
            asyncio.run(app(producer))

    def test_a_loop_that_is_closed_on_those_who_wait_holds_up_nobody(
        self, server: ClusterServer
    ) -> None:
        tasks: list[Any] = []

        async def leave(producer: KafkaProducer) -> None:
            tasks.extend(asyncio.ensure_future(producer.send_async(TOPIC, VALUE)) for _ in range(9))
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks[2:])

        with warm_producer(server, buffer_memory=5_000, linger_ms=300) as producer:
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)  # it would tell of the tasks
            loop.run_until_complete(leave(producer))
            loop.close()
            assert producer.send(TOPIC, VALUE).get(5)
            assert producer.send(TOPIC, VALUE).get(5)

    def test_a_loop_that_is_left_loses_its_turn_and_no_record(self, server: ClusterServer) -> None:
        """As `run_until_complete` leaves it: nothing says whether it will ever go on."""
        tasks: list[Any] = []

        async def leave(producer: KafkaProducer) -> None:
            tasks.extend(asyncio.ensure_future(producer.send_async(TOPIC, VALUE)) for _ in range(9))
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks[2:])

        async def go_on() -> list[Any]:
            return [await (await task) for task in tasks]

        with warm_producer(server, buffer_memory=5_000, linger_ms=300) as producer:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(leave(producer))
            assert producer.send(TOPIC, VALUE).get(5)
            assert producer.send(TOPIC, VALUE).get(5)
            places = {(m.partition, m.offset) for m in loop.run_until_complete(go_on())}
            loop.close()
            assert len(places) == 9

    def test_a_topic_that_is_refused_is_told_by_the_future(self, server: ClusterServer) -> None:
        topic = new_topic(server)
        deny = Error(29, api=METADATA, topic=topic)

        async def app(producer: KafkaProducer) -> None:
            future = await producer.send_async(topic, b"v")
            with pytest.raises(TopicAuthorizationFailedError):
                await future

        server.call(lambda cluster, _: cluster.faults.append(deny))
        try:
            with KafkaProducer(
                bootstrap_servers=server.bootstrap, metrics_registry=None
            ) as producer:
                asyncio.run(app(producer))
        finally:
            server.call(lambda cluster, _: cluster.faults.clear())

    def test_one_span_for_each_also_where_it_waits(self, server: ClusterServer) -> None:
        topic = new_topic(server)
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))

        async def app(producer: KafkaProducer) -> None:
            with provider.get_tracer("app").start_as_current_span("request"):
                for _ in range(20):
                    await producer.send_async(topic, bytes(500))
            await asyncio.get_running_loop().run_in_executor(None, producer.flush, 5)

        with KafkaProducer(
            bootstrap_servers=server.bootstrap,
            buffer_memory=3_000,
            metrics_registry=None,
            tracer_provider=provider,
        ) as producer:
            asyncio.run(app(producer))
        sends = [span for span in exporter.get_finished_spans() if span.name.startswith("send")]
        assert len(sends) == 20
        offsets = sorted((span.attributes or {})["messaging.kafka.offset"] for span in sends)
        assert offsets == list(range(20))
        exporter.clear()

        async def in_vain(producer: KafkaProducer) -> None:
            request = provider.get_tracer("app").start_as_current_span("request")
            with request, pytest.raises(BlockedError):
                await producer.send_async("t", b"v")

        with KafkaProducer(
            bootstrap_servers=NOBODY,
            max_block_ms=50,
            metrics_registry=None,
            tracer_provider=provider,
        ) as producer:
            asyncio.run(in_vain(producer))
        until(lambda: len(exporter.get_finished_spans()) == 2, "the span is ended")
        (failed,) = [span for span in exporter.get_finished_spans() if span.name == "send t"]
        assert failed.attributes is not None
        assert failed.attributes["error.type"] == "BlockedError"
