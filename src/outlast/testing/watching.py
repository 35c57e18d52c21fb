"""Producers whose sends are followed: stand-ins that pass everything on and tell a ledger.

One class for each way to send: `send` with a future (outlast, kafka-python), `produce` with a
callback (confluent-kafka), `await send` (aiokafka). Each adds the ledger's header to the record,
and whatever else is asked of it is the producer's own affair.

Rules: arguments, results and exceptions are the producer's. No client library is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


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

Sending = Callable[[str, object, object, "int | None"], Follower]


def watched(producer: Any, sending: Sending) -> Any:
    """The stand-in for this producer.

    Raises:
        TypeError: nothing is known that it could send with.
    """
    if isinstance(producer, _Watched):
        raise TypeError(f"{producer!r} is watched already")
    if inspect.iscoroutinefunction(getattr(producer, "send", None)):
        return _WatchedAio(producer, sending)
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

    def __exit__(self, *error: Any) -> Any:
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
        follower = self._sending(topic, key, value, partition)
        headers = [*(headers or ()), follower.header]
        try:
            future = self._producer.send(
                topic,
                value=value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        except BaseException as error:
            follower.refused(error)
            raise
        follower.taken()
        future.add_callback(lambda told: follower.told(Told(told.partition, told.offset)))
        future.add_errback(follower.told)
        return future


class _WatchedProduce(_Watched):
    def produce(self, *args: Any, **keywords: Any) -> None:
        given = self._by_name(args, keywords)
        partition = given.get("partition", -1)
        follower = self._sending(
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
        try:
            self._producer.produce(
                **given, on_delivery=delivered, headers=[*pairs, follower.header]
            )
        except BaseException as error:
            follower.refused(error)
            raise
        follower.taken()

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

    async def __aexit__(self, *error: Any) -> Any:
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
        follower = self._sending(topic, key, value, partition)
        try:
            future = await self._producer.send(
                topic,
                value=value,
                key=key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=[*(headers or ()), follower.header],
            )
        except BaseException as error:
            follower.refused(error)
            raise
        follower.taken()
        future.add_done_callback(lambda done: follower.told(_outcome(done)))
        return future

    async def send_and_wait(self, *args: Any, **keywords: Any) -> Any:
        return await (await self.send(*args, **keywords))


def _outcome(done: Any) -> Told | BaseException:
    if done.cancelled():
        return RuntimeError("cancelled")
    error: BaseException | None = done.exception()
    return error or Told(done.result().partition, done.result().offset)
