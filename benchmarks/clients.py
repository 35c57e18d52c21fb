"""One adapter per client: the same few verbs over what each client's users write.

What is measured of a client is measured through these verbs, by every scenario. Rules:

* A verb does what the client's own documentation shows, and nothing beside that costs anything:
  the loops over many records are in here, with no call of ours per record.
* acks=all and idempotence everywhere; all else is the client's default unless `Settings` names it.
* One producer is one adapter object, made in the process that is measured. `CLIENTS` has them by
  name; `lacking` says why one cannot be had here.
* `pace` is for loads of so many records a second, whose every record is accounted for in a
  `Ledger` (tests/real/load.py). A send that raises is a record that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, Protocol
from unittest.mock import patch

from tests.real.load import Ledger

ANY_PARTITION = -1  # to confluent-kafka
MANY_RECORDS = 1_000  # to a call of `send_many`, where the scenario does not say
LOOK_S = 0.1  # how often a load looks whether it is to stop, at least

Stopping = Callable[[], bool]
Partitions = int | Sequence[int] | None  # one for all records, one for each, or the client's choice


@dataclass(frozen=True, slots=True)
class Settings:
    """What a producer is told. None is the client's own default."""

    bootstrap: str  # host:port,host:port
    linger_ms: int | None = None
    batch_bytes: int | None = None
    compression: str | None = None
    buffer_bytes: int | None = None  # of records that wait, where the client has such a bound
    buffer_records: int | None = None  # the same (confluent-kafka alone bounds their number)
    delivery_timeout_ms: int | None = None
    transactional_id: str | None = None  # for `transact`; the id is taken over at once


@dataclass(frozen=True, slots=True)
class Load:
    """So many records a second, on all partitions in turn. A record's value is its counter within
    its partition, in digits, so that what is read back tells which record it was.
    """

    topic: str
    partitions: int
    records_per_s: float
    value_bytes: int = 0  # values are padded to that many with zeros in front
    tick_s: float = 0.0  # what is due is sent in bursts, that often; 0: each record in its moment
    records_max: int | None = None  # no more than that
    first_partition: int = 0  # the others follow it: several loads may share a topic

    @property
    def indexes(self) -> range:
        """The partitions."""
        return range(self.first_partition, self.first_partition + self.partitions)

    def due(self, begin_s: float) -> int:
        """How many records should have been sent by now."""
        due = int((time.monotonic() - begin_s) * self.records_per_s) + 1
        return due if self.records_max is None else min(due, self.records_max)

    def next_s(self, begin_s: float, sent: int) -> float:
        """For how many seconds nothing is to be sent."""
        due_s = begin_s + sent / self.records_per_s
        return max(0.0, due_s - time.monotonic(), self.tick_s)

    def value(self, counter: int) -> bytes:
        return b"%0*d" % (self.value_bytes, counter)


class Client(Protocol):
    """A producer of any client."""

    def __init__(self, settings: Settings) -> None: ...

    def send_all(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        partitions: Partitions = None,
    ) -> None:
        """Send one record after the other, as fast as the client takes them. Where it keeps what
        became of each for those who ask, nobody asks.
        """

    def transact(self, topic: str, values: Sequence[bytes], partitions: Partitions = None) -> None:
        """One transaction of these records, committed."""

    def hold(self, topic: str, values: Iterable[bytes]) -> list[Any]:
        """As `send_all`; returns what an application keeps to learn the outcome of every record."""

    def flush(self, timeout_s: float) -> None:
        """Return when all is settled, or raise after that time."""

    def pace(self, load: Load, ledger: Ledger, stopping: Stopping) -> None:
        """Send what is due until told to stop. What becomes of it the ledger is told when the
        client tells, also after this returned.
        """

    def rest(self, seconds: float) -> None:
        """Do nothing, with the client's own work going on."""

    def close(self) -> None: ...


def lacking(name: str) -> str | None:
    """Why this client cannot be had here; None if it can."""
    client = CLIENTS[name]
    try:
        importlib.import_module(client.module)
    except ImportError as error:
        return str(error)
    without = getattr(client, "without", None)
    return without() if without is not None else None


def version(name: str) -> str:
    """The installed version of the client's package."""
    return importlib.metadata.version(CLIENTS[name].package)


# --- kafka-python, and ours, which has its surface ------------------------------------------------


class KafkaPython:
    """kafka-python's KafkaProducer."""

    package = "kafka-python"
    module = "kafka"

    def __init__(self, settings: Settings) -> None:
        asked = {
            "linger_ms": settings.linger_ms,
            "batch_size": settings.batch_bytes,
            "compression_type": settings.compression,
            "delivery_timeout_ms": settings.delivery_timeout_ms,
            "transactional_id": settings.transactional_id,
            **self._bounds(settings),
        }
        self.producer = self._class()(
            bootstrap_servers=settings.bootstrap.split(","),
            acks="all",
            enable_idempotence=True,
            **{name: value for name, value in asked.items() if value is not None},
        )
        if settings.transactional_id is not None:
            self.producer.init_transactions()

    def _class(self) -> Any:
        from kafka import KafkaProducer

        return KafkaProducer

    def _bounds(self, settings: Settings) -> dict[str, int | None]:  # noqa: ARG002 - it has none
        return {}

    def send_all(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        partitions: Partitions = None,
    ) -> None:
        send = self.producer.send
        for value, key, partition in _records(values, keys, partitions):
            send(topic, value, key, None, partition)

    def transact(self, topic: str, values: Sequence[bytes], partitions: Partitions = None) -> None:
        self.producer.begin_transaction()
        self.send_all(topic, values, None, partitions)
        self.producer.commit_transaction()

    def hold(self, topic: str, values: Iterable[bytes]) -> list[Any]:
        send = self.producer.send
        return [send(topic, value) for value in values]

    def flush(self, timeout_s: float) -> None:
        self.producer.flush(timeout=timeout_s)

    def pace(self, load: Load, ledger: Ledger, stopping: Stopping) -> None:
        def send(partition: int, counter: int) -> None:
            future = self.producer.send(load.topic, load.value(counter), partition=partition)
            future.add_callback(lambda told: ledger.acked(partition, counter, told.offset))
            future.add_errback(lambda error: _failed(ledger, partition, counter, error))

        _pace(load, ledger, stopping, send)

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self.producer.close()


class Outlast(KafkaPython):
    """Ours, with `send()`."""

    package = "outlast"
    module = "outlast"

    def _class(self) -> Any:
        from outlast import KafkaProducer

        return KafkaProducer

    def _bounds(self, settings: Settings) -> dict[str, int | None]:
        return {"buffer_memory": settings.buffer_bytes}


class OutlastSendMany(Outlast):
    """Ours, with `send_many()`: all records of a call at once."""

    @staticmethod
    def without() -> str | None:
        from outlast import KafkaProducer

        return None if hasattr(KafkaProducer, "send_many") else "outlast has no send_many() yet"

    def send_all(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        partitions: Partitions = None,
    ) -> None:
        if partitions is not None and not isinstance(partitions, int):
            raise ValueError("send_many() takes one partition for all records")
        self.producer.send_many(topic, values, keys=keys, partition=partitions)

    def transact(self, topic: str, values: Sequence[bytes], partitions: Partitions = None) -> None:
        """Where partitions are named, a call for each of them."""
        self.producer.begin_transaction()
        if partitions is None or isinstance(partitions, int):
            self.send_all(topic, values, None, partitions)
        else:
            rows: dict[int, list[bytes]] = {}
            for value, partition in zip(values, partitions, strict=True):
                rows.setdefault(partition, []).append(value)
            for partition, its in rows.items():
                self.producer.send_many(topic, its, partition=partition)
        self.producer.commit_transaction()

    def hold(self, topic: str, values: Iterable[bytes]) -> list[Any]:
        many = iter(values)
        return [
            self.producer.send_many(topic, [first, *islice(many, MANY_RECORDS - 1)])
            for first in many
        ]


class OutlastOneLane(Outlast):
    """Ours without the second lane and what decides about it: what lanes cost where all is well."""

    def __init__(self, settings: Settings) -> None:
        hub: Any = importlib.import_module("outlast.engine.hub")

        class NoLanes(hub.Lanes):
            def __init__(self, *parts: Any) -> None:
                super().__init__(*parts)
                self.enabled = False

        with patch.object(hub, "Lanes", NoLanes):  # others in this process keep theirs
            super().__init__(settings)


# --- confluent-kafka ------------------------------------------------------------------------------


class ConfluentKafka:
    """confluent-kafka's Producer: librdkafka, in C."""

    package = "confluent-kafka"
    module = "confluent_kafka"

    def __init__(self, settings: Settings) -> None:
        from confluent_kafka import Producer

        buffer_kb = settings.buffer_bytes and settings.buffer_bytes // 1024
        asked = {
            "linger.ms": settings.linger_ms,
            "batch.size": settings.batch_bytes,
            "compression.type": settings.compression,
            "queue.buffering.max.kbytes": buffer_kb,
            "queue.buffering.max.messages": settings.buffer_records,
            "delivery.timeout.ms": settings.delivery_timeout_ms,
            "transactional.id": settings.transactional_id,
        }
        self.producer = Producer(
            {
                "bootstrap.servers": settings.bootstrap,
                "enable.idempotence": True,
                "log_level": 2,  # it says much about brokers that are down
                **{name: value for name, value in asked.items() if value is not None},
            }
        )
        if settings.transactional_id is not None:
            self.producer.init_transactions()

    def send_all(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        partitions: Partitions = None,
    ) -> None:
        produce = self.producer.produce
        for value, key, partition in _records(values, keys, partitions, ANY_PARTITION):
            try:
                produce(topic, value, key, partition)
            except BufferError:  # noqa: PERF203 - its queue is full: let it deliver
                self._retry(topic, value, key, partition)

    def transact(self, topic: str, values: Sequence[bytes], partitions: Partitions = None) -> None:
        self.producer.begin_transaction()
        self.send_all(topic, values, None, partitions)
        self.producer.commit_transaction()

    def _retry(self, *record: Any) -> None:
        while True:
            self.producer.poll(0.01)
            with contextlib.suppress(BufferError):
                self.producer.produce(*record)
                return

    def hold(self, topic: str, values: Iterable[bytes]) -> list[Any]:
        outcomes: list[Any] = []  # it has no futures: a callback tells, in the caller's thread

        def delivered(error: Any, message: Any) -> None:
            outcomes.append((error, message))

        for value in values:
            self.producer.produce(topic, value, on_delivery=delivered)
        return outcomes

    def flush(self, timeout_s: float) -> None:
        if left := self.producer.flush(timeout_s):
            raise TimeoutError(f"{left} records are unsettled after {timeout_s:g} s")

    def pace(self, load: Load, ledger: Ledger, stopping: Stopping) -> None:
        def send(partition: int, counter: int) -> None:
            def delivered(error: Any, message: Any) -> None:
                if error is None:
                    ledger.acked(partition, counter, message.offset())
                else:
                    _failed(ledger, partition, counter, error)

            record = load.topic, load.value(counter), None, partition, delivered
            try:
                self.producer.produce(*record)
            except BufferError:
                self._retry(*record)

        polling = threading.Event()
        poller = threading.Thread(target=self._poll, args=(polling,), daemon=True)
        poller.start()  # as it must for its callbacks to be called
        try:
            _pace(load, ledger, stopping, send)
        finally:
            polling.set()
            poller.join()

    def _poll(self, end: threading.Event) -> None:
        while not end.is_set():
            self.producer.poll(0.05)

    def rest(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (rest_s := end_s - time.monotonic()) > 0:
            self.producer.poll(rest_s)

    def close(self) -> None:
        self.flush(30.0)


class ConfluentKafkaBatch(ConfluentKafka):
    """The same, with `produce_batch()`: all records of a call at once, as dictionaries."""

    def send_all(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        partitions: Partitions = None,
    ) -> None:
        if partitions is not None and not isinstance(partitions, int):
            raise ValueError("produce_batch() is given one partition for all records here")
        if keys is None:
            messages: list[dict[str, Any]] = [{"value": value} for value in values]
        else:
            pairs = zip(values, keys, strict=True)
            messages = [{"value": value, "key": key} for value, key in pairs]
        partition = ANY_PARTITION if partitions is None else partitions
        while self.producer.produce_batch(topic, messages, partition) < len(messages):
            messages = [message for message in messages if message.pop("_error", None)]
            self.producer.poll(0.01)  # its queue is full: let it deliver


# --- aiokafka -------------------------------------------------------------------------------------


class AioKafka:
    """aiokafka's AIOKafkaProducer; all of a process share one event loop."""

    package = "aiokafka"
    module = "aiokafka"
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, settings: Settings) -> None:
        asked = {
            "linger_ms": settings.linger_ms,
            "max_batch_size": settings.batch_bytes,
            "compression_type": settings.compression,
            "transactional_id": settings.transactional_id,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        if AioKafka._loop is None:
            AioKafka._loop = asyncio.new_event_loop()
        self.producer = self._run(self._started(settings.bootstrap, given))

    @staticmethod
    def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        assert AioKafka._loop is not None
        return AioKafka._loop.run_until_complete(coroutine)

    @staticmethod
    async def _started(bootstrap: str, given: dict[str, Any]) -> Any:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, **given)
        await producer.start()
        return producer

    def send_all(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        partitions: Partitions = None,
    ) -> None:
        self._run(self._send_all(topic, values, keys, partitions))

    async def _send_all(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None,
        partitions: Partitions,
    ) -> None:
        send = self.producer.send
        for value, key, partition in _records(values, keys, partitions):
            await send(topic, value, key, partition)

    def transact(self, topic: str, values: Sequence[bytes], partitions: Partitions = None) -> None:
        self._run(self._transact(topic, values, partitions))

    async def _transact(self, topic: str, values: Sequence[bytes], partitions: Partitions) -> None:
        async with self.producer.transaction():
            await self._send_all(topic, values, None, partitions)

    def hold(self, topic: str, values: Iterable[bytes]) -> list[Any]:
        async def futures() -> list[Any]:
            return [await self.producer.send(topic, value) for value in values]

        held: list[Any] = self._run(futures())
        return held

    def flush(self, timeout_s: float) -> None:
        self._run(asyncio.wait_for(self.producer.flush(), timeout_s))

    def pace(self, load: Load, ledger: Ledger, stopping: Stopping) -> None:
        self._run(self._pace(load, ledger, stopping))

    async def _pace(self, load: Load, ledger: Ledger, stopping: Stopping) -> None:
        """Its `send` waits for room in its partition's batch: one task for each partition."""
        begin_s = time.monotonic()
        tasks = (
            self._pace_one(load, ledger, stopping, begin_s, partition) for partition in load.indexes
        )
        await asyncio.gather(*tasks)

    async def _pace_one(
        self, load: Load, ledger: Ledger, stopping: Stopping, begin_s: float, partition: int
    ) -> None:
        sent_s = ledger.sent.setdefault(partition, [])
        place = partition - load.first_partition

        def settled(counter: int, future: Any) -> None:
            if (error := future.exception()) is None:
                ledger.acked(partition, counter, future.result().offset)
            else:
                _failed(ledger, partition, counter, error)

        while not stopping():
            due = (load.due(begin_s) - place + load.partitions - 1) // load.partitions
            for counter in range(len(sent_s), due):
                sent_s.append(time.monotonic())
                try:
                    sending = self.producer.send(
                        load.topic, load.value(counter), partition=partition
                    )
                    future = await sending
                except Exception as error:
                    _failed(ledger, partition, counter, error)
                else:
                    future.add_done_callback(lambda told, c=counter: settled(c, told))
            number = len(sent_s) * load.partitions + place
            await asyncio.sleep(min(load.next_s(begin_s, number), LOOK_S))

    def rest(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))

    def close(self) -> None:
        self._run(self.producer.stop())


# --- shared ---------------------------------------------------------------------------------------


def _records(
    values: Sequence[bytes],
    keys: Sequence[bytes] | None,
    partitions: Partitions,
    any_partition: int | None = None,
) -> Iterator[tuple[bytes, bytes | None, Any]]:
    """Value, key and partition of each record; made without Python code for each."""
    if partitions is None or isinstance(partitions, int):
        partition = any_partition if partitions is None else partitions
        return zip(values, repeat(None) if keys is None else keys, repeat(partition), strict=False)
    return zip(values, repeat(None) if keys is None else keys, partitions, strict=False)


def _pace(load: Load, ledger: Ledger, stopping: Stopping, send: Callable[[int, int], None]) -> None:
    """Send all that is due from this one thread, again and again."""
    begin_s, number = time.monotonic(), 0
    for partition in load.indexes:
        ledger.sent.setdefault(partition, [])
    while not stopping():
        due = load.due(begin_s)
        while number < due and not stopping():
            counter, place = divmod(number, load.partitions)
            partition = load.first_partition + place
            ledger.sent[partition].append(time.monotonic())
            try:
                send(partition, counter)
            except Exception as error:
                _failed(ledger, partition, counter, error)
            number += 1
        time.sleep(min(load.next_s(begin_s, number), LOOK_S))


def _failed(ledger: Ledger, partition: int, counter: int, error: Any) -> None:
    ledger.failed(partition, counter, RuntimeError(repr(error)))  # plain: it changes processes


CLIENTS: dict[str, Any] = {
    "outlast": Outlast,
    "outlast-send-many": OutlastSendMany,
    "outlast-one-lane": OutlastOneLane,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "confluent-kafka": ConfluentKafka,
    "confluent-kafka-batch": ConfluentKafkaBatch,
}
