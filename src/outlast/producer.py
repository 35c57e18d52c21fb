"""KafkaProducer: arguments, serializers, blocking. Everything else is decided below it.

A subclass of kafka-python's class that shares its surface and nothing else: `__init__` of the
parent is not called, and each of its public members is overridden (a test holds this file to it).

Rules:
* The constructor never waits for a broker and never fails because of one; a bad argument raises
  before anything is started.
* `send` is the hot path: what is usual about a record goes by way of `sending`. The rest checks by
  `type() is`, takes exact sizes only when a record may be too large, and builds no string unless
  something is wrong.
* What kafka-python raises at once is raised at once, with its class and words; what it tells
  through the future, the future tells.
* No decision about errors is made here.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import kafka
from kafka.errors import BrokerResponseError, IllegalStateError
from kafka.util import ensure_valid_topic_name

from outlast import environment
from outlast.arguments import (
    NO_HEADERS,
    OVERHEAD_BYTES,
    Headers,
    as_bytes,
    bound_serializer,
    check_size,
    checked_headers,
    checked_partition,
    checked_timestamp,
    header_size,
)
from outlast.config import DEFAULTS, LONGEST_S, NEWEST_API_VERSION, Config
from outlast.errors import ClosedError, is_refusal
from outlast.future import DeliveryFuture, Hearing
from outlast.io.waiting import in_loop, plainly
from outlast.plain_settings import plain
from outlast.refusals import Refusals
from outlast.sending import Sending
from outlast.transactions import InTransactions, TransactionManager

if TYPE_CHECKING:
    from outlast.deliveries import Deliveries
    from outlast.engine.outcomes import Gap, Health, Stall

log = logging.getLogger(__name__)


class KafkaProducer(InTransactions, kafka.KafkaProducer):  # type: ignore[misc]
    """A Kafka producer whose sends outlast a failover; a drop-in for `kafka.KafkaProducer`.

    Keywords are those of kafka-python, and new ones: see the settings page, or
    `outlast.config.SETTINGS`. A variable `OUTLAST_<KEYWORD>` stands in for a keyword that is not
    given. Thread-safe; one producer for all threads is best.

    Raises:
        ConfigurationError: a keyword is unknown, a value not allowed, or two exclude each other;
            it is a KafkaConfigurationError and a ValueError.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = dict(DEFAULTS)
    DEPRECATED_CONFIGS: ClassVar[tuple[str, ...]] = ()

    _closed = True  # until all of it stands: __del__ also meets half-built objects

    def __init__(self, **configs: Any) -> None:
        from outlast import assembly  # brings all the rest: not before it is needed

        with environment.defaults(configs, self.DEFAULT_CONFIG) as defaults:
            config = Config(defaults, **configs)
        values = config.values
        self._asks_version = values["api_version"] is None
        self._config = {**values, "api_version": values["api_version"] or NEWEST_API_VERSION}
        self._serialize_key = bound_serializer(values["key_serializer"], "key_serializer")
        self._serialize_value = bound_serializer(values["value_serializer"], "value_serializer")
        self._serializes = self._serialize_key is not None or self._serialize_value is not None
        self._max_block_s = min(values["max_block_ms"] / 1000, LONGEST_S)
        self._max_request_bytes = values["max_request_size"]
        self._buffer_bytes = values["buffer_memory"]
        self._surely_fits_bytes = self._max_request_bytes - OVERHEAD_BYTES
        self._hearing = Hearing(values["on_undelivered"])
        self._topics: set[str] = set()  # names that were found valid
        bootstrap = None
        if configs.get("bootstrap_timeout_ms", math.inf) < values["max_block_ms"]:
            bootstrap = assembly.Bootstrap(self, self._max_block_s)
            self._max_block_s = values["bootstrap_timeout_ms"] / 1000
        parts = assembly.assembled(config, self._hearing, bootstrap)
        self._driver, self._append = parts.driver, parts.driver.append
        self._partitioner = parts.partitioner
        self._figures = parts.figures
        self._send_spans, self._wants_span = parts.send_spans, parts.send_spans.wanted
        self._traced_headers = assembly.TracedHeaders
        self._closing = parts.closing
        self._transactions = parts.transactions
        name = _name(self._config)  # not __str__, which a subclass may want more for
        self._refusals = Refusals(name, self._hearing, parts.transactions, parts.driver)
        self._send_usual = Sending(
            parts.driver.append,
            self._refusals.one,
            DeliveryFuture,
            parts.send_spans.wanted,
            self._topics,
            surely_fits_bytes=self._surely_fits_bytes,
            unusual=self._serializes or parts.partitioner is not None,
        ).send
        self._closed = False

    def __del__(self) -> None:
        if not self._closed:
            self._closed = True
            self._closing.collected()

    def __enter__(self) -> KafkaProducer:
        return self

    def __exit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        self.close()

    def __str__(self) -> str:
        return _name(self._config)

    # --- sending ---

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> DeliveryFuture:
        """Put a record into the buffer, to be sent on; returns the future of its outcome.

        Args:
            topic: the topic's name.
            value: bytes, or what `value_serializer` makes bytes of. None deletes, in a compacted
                topic; it needs a key then.
            key: bytes, or what `key_serializer` makes bytes of; decides the partition.
            headers: a list of (str, bytes) tuples.
            partition: None lets the partitioner choose.
            timestamp_ms: milliseconds since the epoch; None is now.

        Raises:
            BlockedError: no metadata or no room in the buffer within `max_block_ms`; a
                KafkaTimeoutError.
            ValueError: no key and no value; no such topic name or partition; a negative time.
            TypeError: a wrong type, also of what a serializer made.
            MessageSizeTooLargeError: larger than `max_request_size` or `buffer_memory`.
            ClosedError: the producer is closed; an IllegalStateError.
        """
        if self._closed:
            raise ClosedError("KafkaProducer already closed!")
        future: DeliveryFuture | None = self._send_usual(
            topic, value, key, headers, partition, timestamp_ms, self._max_block_s
        )
        if future is not None:
            return future
        return self._send_unusual(topic, value, key, headers, partition, timestamp_ms)

    _send_traced = send  # also where somebody wraps the public name, for spans of their own

    def _send_unusual(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> DeliveryFuture:
        """`send` in full."""
        if value is None and key is None:
            raise ValueError("Need at least one: key or value")
        headers = NO_HEADERS if headers is None else checked_headers(headers)
        if self._wants_span() and type(headers) is not self._traced_headers:
            arguments = topic, value, key, headers, partition, timestamp_ms
            return self._send_spans.around(self._send_traced, *arguments)
        key_bytes, value_bytes = key, value
        if self._serializes:
            headers, key_bytes, value_bytes = self._serialized(topic, headers, key, value)
        if type(key_bytes) is not bytes and key_bytes is not None:
            key_bytes = as_bytes("key", key_bytes)
        if type(value_bytes) is not bytes and value_bytes is not None:
            value_bytes = as_bytes("value", value_bytes)
        key_size = -1 if key_bytes is None else len(key_bytes)
        value_size = -1 if value_bytes is None else len(value_bytes)
        headers_size = header_size(headers) if headers else -1
        if headers or key_size + value_size > self._surely_fits_bytes:
            check_size(key_bytes, value_bytes, headers, self._max_request_bytes)
        if topic not in self._topics:
            self._check_topic(topic)
        if partition is not None and (type(partition) is not int or partition < 0):
            partition = checked_partition(partition)
        now_ms = time.time_ns() // 1_000_000
        timestamp_ms = now_ms if timestamp_ms is None else checked_timestamp(timestamp_ms)

        max_block_s = self._max_block_s
        try:
            if partition is None and self._partitioner is not None:
                asked = topic, key, key_bytes, value, value_bytes, headers
                partition, max_block_s = self._partitioner.place(self._driver, max_block_s, *asked)
            batch, index = self._append(
                topic, partition, key_bytes, value_bytes, headers, timestamp_ms, max_block_s
            )
            delivery = batch.delivery
        except BrokerResponseError as error:
            if not is_refusal(error):
                raise
            record = timestamp_ms, key_bytes, value_bytes, tuple(headers)
            delivery, index = self._refusals.one(error, topic, partition, record), 0
        return DeliveryFuture(delivery, index, timestamp_ms, key_size, value_size, headers_size)

    async def send_async(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> DeliveryFuture:
        """`send` in an event loop of asyncio: where that would block, this lets others go on.

        `future = await producer.send_async(...)` has put the record into the buffer, `await future`
        has its metadata. What is cancelled while it still waits has sent nothing. What a serializer
        or partitioner sends in its turn is a plain `send`, and may block.

        Raises: as `send`; and with a partitioner of your own, what `partitions_for` raises.
        """
        from asyncio import get_running_loop

        if self._partitioner is not None and not self._closed:
            self._check_topic(topic)
            await self._driver.partitions_in_loop(topic, self._max_block_s)
        with in_loop(get_running_loop(), self._driver) as parked:
            future = self.send(topic, value, key, headers, partition, timestamp_ms)
            its: object = future._delivery
            if any(call is not its for call in parked):
                raise IllegalStateError(
                    f"{type(self).__name__}.send() sends more than the record whose future it "
                    "returns, and send_async() can wait for that one only: use send() in a thread"
                )
        return await future._taken(self._refusals.one)

    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Deliveries:
        """Put many records into the buffer at once; returns one future for all of them.

        Lists of some hundreds cost about half of as many `send()`. Guarantees and errors are the
        same, but for this: what is wrong with a record is found before the first is taken, so that
        nothing is sent then; from the first that was taken on, what cannot be taken (no room, the
        producer is closed) raises no more but fails in what comes back; and all waiting of the
        call is within one `max_block_ms`.

        Args:
            topic: of all records.
            values: one for each record; see `send`.
            keys: one for each record, or None.
            headers: of all records.
            partition: of all records; None lets the partitioner choose for each.
            timestamp_ms: of all records; None is now.

        Raises:
            ValueError: also if there are not as many keys as values.
            Others as `send`.
        """
        if self._closed:
            raise ClosedError("KafkaProducer already closed!")
        headers = [] if headers is None else checked_headers(headers)
        if topic not in self._topics:
            self._check_topic(topic)
        if not self._wants_span():
            return self._sent_many(topic, keys, partition, timestamp_ms, headers, values)
        send = partial(self._sent_many, topic, keys, partition, timestamp_ms)
        return self._send_spans.around_many(send, topic, values, headers, partition)

    def _sent_many(
        self,
        topic: str,
        keys: Iterable[Any] | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
        values: Iterable[Any],
    ) -> Deliveries:
        from outlast.many import Records, take  # not before it is needed

        serialize = partial(self._serialized, topic) if self._serializes else None
        limits = self._max_request_bytes, self._buffer_bytes
        rest = keys, partition, timestamp_ms, serialize, limits
        records = Records(topic, values, headers, *rest, keep=self._partitioner is not None)
        return take(records, self._driver, self._partitioner, self._max_block_s, self._refusals)

    def flush(self, timeout: float | None = None) -> None:
        """Send what is buffered without lingering, and wait until all of it is settled.

        Args:
            timeout: seconds in total; None waits as long as it takes.

        Raises:
            BlockedError: records are still unsettled; a KafkaTimeoutError. A record that failed
                raises nothing here: its future tells.
        """
        self._driver.flush(timeout)

    def partitions_for(self, topic: str) -> set[int]:
        """The topic's partitions; waits up to `max_block_ms` for metadata.

        Raises:
            BlockedError: no metadata came; a KafkaTimeoutError.
            BrokerResponseError: the cluster's answer, such as TopicAuthorizationFailedError.
        """
        if self._closed:
            raise ClosedError("KafkaProducer already closed!")
        if topic not in self._topics:
            self._check_topic(topic)
        return set(self._driver.partitions_for(topic, self._max_block_s))

    # --- closing ---

    def close(self, timeout: float | None = None, null_logger: bool = False) -> None:  # noqa: ARG002
        """Send what is buffered, then stop. It is closed afterwards, whatever the brokers do:
        records not settled in time fail, and `on_undelivered` gets them back. A transaction that is
        open is aborted; where that is not possible in time, the log says so.

        Args:
            timeout: seconds; None waits until all is settled, 0 not at all.
            null_logger: as in kafka-python's signature; without effect.

        Raises:
            ValueError: the timeout is negative, and it is still open.
        """
        if timeout is not None and not 0 <= timeout <= threading.TIMEOUT_MAX:
            if self._closed:
                return
            raise ValueError(f"Invalid timeout: {timeout} (seconds ≥ 0, or None)")
        self._closed = True
        self._closing.close(timeout)

    # --- looking ---

    @property
    def config(self) -> dict[str, Any]:
        """The settings under kafka-python's names, normalised. `api_version` is what was given,
        else what the brokers have, else (none has answered yet) the newest.
        """
        if self._asks_version and self._driver.broker_version is not None:
            self._config["api_version"] = self._driver.broker_version
        return self._config

    @property
    def _transaction_manager(self) -> TransactionManager | None:
        """As kafka-python's tests look at it: None without idempotence."""
        config = self._config
        idempotent = config["enable_idempotence"]
        return TransactionManager(config["transactional_id"]) if idempotent else None

    def gaps(self) -> list[Gap]:
        """The last rejection gaps of all partitions (1 000 at most), oldest first; open ones have
        `ended_by=None`.
        """
        return self._driver.gaps()

    def stalls(self) -> list[Stall]:
        """The last 1 000 stalls, open ones included: acks that did not come though the leader
        lives and nothing was rejected. Never a part of a gap. Each names the lane, and whether a
        follower is late or the leader itself.
        """
        return self._driver.ask(lambda sender, now: sender.stalls(now))

    def health(self) -> Health:
        """Open gaps and stalls, which partitions are held up and why (each with its lane and what
        it takes of the buffer), how many seconds the buffer lasts at the present rate, and the
        settings, for `outlast check`.
        """
        health = self._driver.ask(lambda sender, now: sender.health(now))
        return replace(health, settings=plain(self.config))

    def metrics(self, raw: bool = False) -> dict[Any, Any] | None:
        """Figures as `{group: {name: value}}`, or kafka-python's objects if `raw`; None with
        `metrics_enabled=False`. What kafka-python has, and a group `outlast-metrics`.
        """
        return None if self._figures is None else self._figures.read(raw=raw)

    def bootstrap_connected(self) -> bool:
        """Whether any broker has answered yet."""
        return not self._closed and self._driver.broker_version is not None

    @classmethod
    def max_usable_produce_magic(cls, api_version: tuple[int, ...]) -> int:
        """The newest record format that brokers of this version take."""
        if api_version >= (0, 11):
            return 2
        return 1 if api_version >= (0, 10, 0) else 0

    # --- off the hot path ---

    def _serialized(
        self, topic: str, headers: Headers, key: Any, value: Any
    ) -> tuple[Headers, Any, Any]:
        """Serializers may add headers, as in kafka-python; not to our empty list."""
        if headers is NO_HEADERS:
            headers = []
        if self._serialize_key is not None:
            key = plainly(self._serialize_key, topic, headers, key)
        if self._serialize_value is not None:
            value = plainly(self._serialize_value, topic, headers, value)
        headers = checked_headers(headers)
        if isinstance(headers, self._traced_headers):
            headers = headers.once()
        return headers, key, value

    def _check_topic(self, topic: Any) -> None:
        ensure_valid_topic_name(topic)
        self._topics.add(topic)


def _name(config: dict[str, Any]) -> str:
    return (
        f"<KafkaProducer client_id={config['client_id']} "
        f"transactional_id={config['transactional_id']}>"
    )
