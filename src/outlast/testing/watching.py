"""Producers whose sends are followed: stand-ins that pass everything on and tell a ledger.

One class for each way to send: `send` with a future (outlast, kafka-python; outlast's own
`send_many` and `send_async` beside it), `produce` with a callback (confluent-kafka), `await send`
(aiokafka). Each adds the ledger's header to the record, and whatever else is asked of it is the
producer's own affair.

Rules: arguments, results and exceptions are the producer's. No client library is imported. No
record gets by unseen: a way to send that takes no header raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, Protocol


class Told(NamedTuple):
    """Where a record was told to be; None: it was not told."""

    partition: int | None
    offset: int | None


class Follower(Protocol):
    """One record's entry in the ledger."""

    header: tuple[str, bytes]

    def taken(self) -> None: ...  # noqa: D102

    def refused(self, error: BaseException) -> None: ...  # noqa: D102

    def told(self, outcome: Told | BaseException) -> None: ...  # noqa: D102


# of confluent_kafka.Producer.produce
PRODUCE_ORDER = (
    "topic",
    "value",
    "key",
    "partition",
    "callback",
    "on_delivery",
    "timestamp",
    "headers",
)


class Sending(Protocol):
    """The ledger, as one producer tells it what is sent."""

    def one(  # noqa: D102
        self, topic: str, key: object, value: object, partition: int | None
    ) -> Follower: ...

    def many(
        self,
        topic: str,
        keys: Sequence[object],
        values: Sequence[object],
        partition: int | None,
        *,
        as_given: bool,
    ) -> Sequence[Follower]:
        """Of one call, in order: they all have the same header. `as_given`: nothing makes other
        bytes of keys and values.
        """


def watched(producer: Any, sending: Sending) -> Any:
    """The stand-in for this producer.

    Raises:
        TypeError: nothing is known that it could send with.
    """
    if isinstance(producer, _Watched):
        raise TypeError(f"{producer!r} is watched already")
    if inspect.iscoroutinefunction(getattr(producer, "send", None)):
        return _WatchedAio(producer, sending)
    if callable(getattr(producer, "send_many", None)):
        return _WatchedOutlast(producer, sending)
    if callable(getattr(producer, "send", None)):
        return _WatchedSend(producer, sending)
    produce = getattr(producer, "produce", None)
    if callable(produce) and not inspect.iscoroutinefunction(produce):
        return _WatchedProduce(producer, sending)
    raise TypeError(
        f"{producer!r} has neither send() nor produce() without await; it may be a producer of "
        "outlast, kafka-python, confluent-kafka or aiokafka. Others can use the ledger's sending()"
    )


class _Watched:
    def __init__(self, producer: Any, sending: Sending) -> None:
        self._producer = producer
        self._sending = sending

    def __repr__(self) -> str:
        return f"<watched {self._producer!r}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Any:
        self._producer.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._producer.__exit__(*error)


class _WatchedSend(_Watched):
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        follower = self._sending.one(topic, key, value, partition)
        headers = [*(headers or ()), follower.header]
        with _taking(follower):
            future = self._producer.send(
                topic,
                value=value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        return _followed(follower, future)


class _WatchedOutlast(_WatchedSend):
    async def send_async(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        follower = self._sending.one(topic, key, value, partition)
        headers = [*(headers or ()), follower.header]
        with _taking(follower):
            future = await self._producer.send_async(
                topic,
                value=value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        return _followed(follower, future)

    def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        values, keys = _listed(values), _listed(keys)
        followers: Sequence[Follower] = ()
        if isinstance(values, list):
            fitting = isinstance(keys, list) and len(keys) == len(values)
            followers = self._sending.many(
                topic,
                keys if fitting else [None] * len(values),
                values,
                partition,
                as_given=self._as_given(),
            )
        if followers:
            headers = [*(headers or ()), followers[0].header]
        try:
            many = self._producer.send_many(
                topic,
                values,
                keys=keys,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        except Exception as error:
            for follower in followers:
                follower.refused(error)
            raise
        except BaseException as error:  # a signal: some may have been taken
            for follower in followers:
                follower.told(error)
            raise
        for follower, future in zip(followers, many, strict=True):
            _followed(follower, future)
        return many

    def _as_given(self) -> bool:
        config = getattr(self._producer, "config", {})
        return config.get("key_serializer") is None and config.get("value_serializer") is None


def _listed(items: Any) -> Any:
    """An iterable can be gone through once; what `send_many` will refuse remains what it is."""
    single = (str, bytes, bytearray, memoryview)
    return items if items is None or isinstance(items, single) else list(items)


@contextmanager
def _taking(follower: Follower) -> Iterator[None]:
    """A call that takes the record, or raises."""
    try:
        yield
    except BaseException as error:
        follower.refused(error)
        raise


def _followed(follower: Follower, future: Any) -> Any:
    follower.taken()
    future.add_callback(lambda told: follower.told(Told(told.partition, told.offset)))
    future.add_errback(follower.told)
    return future


class _WatchedProduce(_Watched):
    def produce(self, *args: Any, **keywords: Any) -> None:
        given = self._by_name(args, keywords)
        partition = given.get("partition", -1)
        follower = self._sending.one(
            given["topic"],
            given.get("key"),
            given.get("value"),
            None if partition < 0 else partition,
        )
        told_too = given.pop("on_delivery", None) or given.pop("callback", None)

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                follower.told(Told(message.partition(), message.offset()))
            else:
                follower.told(RuntimeError(str(error)))
            if told_too is not None:
                told_too(error, message)

        headers = given.pop("headers", None) or ()
        pairs = headers.items() if isinstance(headers, dict) else headers
        with _taking(follower):
            self._producer.produce(
                **given, on_delivery=delivered, headers=[*pairs, follower.header]
            )
        follower.taken()

    def produce_batch(self, *_args: Any, **_keywords: Any) -> NoReturn:
        raise TypeError(
            "produce_batch() takes no headers, so its records could not be told apart from others: "
            "use produce() where a ledger watches"
        )

    def _by_name(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name; a SerializingProducer has them in another order."""
        try:
            signature = inspect.signature(self._producer.produce)
        except ValueError:  # it is written in C
            return {**dict(zip(PRODUCE_ORDER, args, strict=False)), **keywords}
        return dict(signature.bind(*args, **keywords).arguments)


class _WatchedAio(_Watched):
    async def __aenter__(self) -> Any:
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._producer.__aexit__(*error)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = None,
    ) -> Any:
        follower = self._sending.one(topic, key, value, partition)
        with _taking(follower):
            future = await self._producer.send(
                topic,
                value=value,
                key=key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=[*(headers or ()), follower.header],
            )
        follower.taken()
        future.add_done_callback(lambda done: follower.told(_outcome(done)))
        return future

    async def send_batch(self, *_args: Any, **_keywords: Any) -> NoReturn:
        raise TypeError(
            "the records of a batch are made before send_batch() is called, and cannot get the "
            "ledger's header: use send() where a ledger watches"
        )

    async def send_and_wait(self, *args: Any, **keywords: Any) -> Any:
        return await (await self.send(*args, **keywords))


def _outcome(done: Any) -> Told | BaseException:
    if done.cancelled():
        return RuntimeError("cancelled")
    error: BaseException | None = done.exception()
    return error or Told(done.result().partition, done.result().offset)
