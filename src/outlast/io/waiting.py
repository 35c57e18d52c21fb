"""Waiting for room in the buffer or for a topic's metadata: in a thread, or in an event loop.

Whoever must wait has a ticket of the engine's and a waiter, which the I/O thread sets once the
ticket is granted; then the engine is asked again. A thread blocks until then. A coroutine must not:
with `in_loop`, what would block comes back at once as something `Parked`, to be awaited.

Rules:
* A ticket that nobody waits with any more is taken back, whatever ended the wait: time, a signal
  handler that raises, a task that is cancelled.
* What the user's own code asks while a coroutine sends (a serializer, a partitioner) is a plain
  call, and blocks: nobody would await it.
* asyncio is imported where a loop of it is running, and so has been already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kafka.errors import IllegalStateError

from outlast.io.flag import Flag

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from outlast.engine.intake import Waiting

S = TypeVar("S")
T = TypeVar("T")


class Waiter(Protocol):
    """What is set when it is worth to ask again; a `Flag` is one."""

    def set(self) -> bool:
        """From any thread. Whether anybody can still hear it."""

    def is_set(self) -> bool:
        """Whether it is."""


class LoopEvent:
    """A waiter for a coroutine."""

    __slots__ = ("_future", "_loop", "_set")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._future = loop.create_future()
        self._set = False

    def __repr__(self) -> str:
        return f"<LoopEvent {'set' if self._set else 'not set'}>"

    def set(self) -> bool:
        """From any thread. In a loop that is closed nobody waits; one that stands still loses its
        turn to others, and asks again if it ever goes on.
        """
        self._set = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)
            return self._loop.is_running()
        return False

    def is_set(self) -> bool:
        """Whether it is."""
        return self._set

    async def wait(self, timeout_s: float) -> None:
        """Until it is set, or so long."""
        from asyncio import wait

        await wait([self._future], timeout=timeout_s)

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


@dataclass(slots=True)
class Wait(Generic[S, T]):
    """One call that cannot be answered yet.

    Attributes:
        waiting: what the engine said last.
        waiter: set when it is worth to ask again.
        loop: whose coroutine waits; None: it is a thread.
        again: asks the engine, with the time and the ticket.
        accepted: what the call returns, of what the engine gave.
        last_s: until when it may wait.
    """

    topic: str
    waiting: Waiting
    waiter: Waiter
    loop: AbstractEventLoop | None
    again: Callable[[float, int], S | Waiting]
    accepted: Callable[[S], T]
    max_block_s: float
    last_s: float


class Desk(Protocol):
    """Where one asks (`outlast.io.entrance.Entrance`)."""

    def look(self, wait: Wait[S, T]) -> T | None:
        """Ask again if the waiter is set; None: wait on.

        Raises:
            BlockedError: time is up.
        """

    def cut_off(self, got: object = None) -> None:
        """The wait ended otherwise: nothing stays of it."""

    def left_s(self, wait: Wait[S, T]) -> float:
        """How long it may go on."""


class Parked(Generic[S, T]):
    """A call from an event loop that cannot be answered yet.

    For `send` it stands where the record's `Delivery` will: it keeps the callbacks until then.

    Attributes:
        listeners: who will want to hear of the delivery.
    """

    __slots__ = ("_desk", "_wait", "delivery", "listeners")

    def __init__(self, desk: Desk, wait: Wait[S, T]) -> None:
        self._desk = desk
        self._wait = wait
        self.delivery = self  # as if it were a batch
        self.listeners: list[Any] = []
        made_here = getattr(_here, "asking", None)
        if made_here is not None:
            made_here[2].append(self)

    def __repr__(self) -> str:
        return f"<Parked {self._wait.topic} {self._wait.waiting}>"

    def listen(self, listener: Any) -> None:
        """For the delivery, once there is one."""
        self.listeners.append(listener)

    def unlisten(self, listener: Any) -> None:
        """It need not hear of it any more."""
        with suppress(ValueError):
            self.listeners.remove(listener)

    def piece(self, index: int) -> None:
        """There is no outcome yet."""

    def wait(self, *_: object) -> None:
        """There is nobody to wait: the loop must go on.

        Raises:
            IllegalStateError: always.
        """
        raise IllegalStateError(
            "get() on a record of send_async() that is not in the buffer yet would block its event "
            "loop for ever: await the future"
        )

    def give_up(self) -> None:
        """Nobody will await it."""
        self._desk.cut_off(self._wait.waiting)

    def record(self) -> tuple[Any, ...]:
        """Of `append`: topic, partition, and timestamp, key, value and headers together."""
        topic, partition, key, value, headers, timestamp_ms = self._wait.again.args  # type: ignore[attr-defined]
        return topic, partition, (timestamp_ms, key, value, tuple(headers))

    async def answer(self) -> T:
        """What the call would have returned, or raised."""
        wait = self._wait
        try:
            while (got := self._desk.look(wait)) is None:
                assert isinstance(wait.waiter, LoopEvent)
                await wait.waiter.wait(self._desk.left_s(wait))
        except BaseException:  # also that the task is cancelled
            self._desk.cut_off(wait.waiting)
            raise
        return got


_here = threading.local()


@contextmanager
def in_loop(loop: AbstractEventLoop, desk: Desk) -> Iterator[list[Parked[Any, Any]]]:
    """What is asked there comes from this loop now, and must not block it. Gives what got parked,
    which ends if an exception does.
    """
    before = getattr(_here, "asking", None)
    parked: list[Parked[Any, Any]] = []
    _here.asking = loop, desk, parked
    try:
        yield parked
    except BaseException:
        for call in parked:
            call.give_up()
        raise
    finally:
        _here.asking = before


def plainly(call: Callable[..., T], *arguments: Any) -> T:
    """What a call of the user's code returns; what that asks in its turn, nobody awaits."""
    asking = getattr(_here, "asking", None)
    if asking is None:
        return call(*arguments)
    _here.asking = None
    try:
        return call(*arguments)
    finally:
        _here.asking = asking


def the_loop(desk: Desk) -> AbstractEventLoop | None:
    """The loop that must not be blocked, if there is one."""
    loop, asked, _ = getattr(_here, "asking", None) or (None, None, None)
    return loop if asked is desk else None


def new_waiter(loop: AbstractEventLoop | None) -> Waiter:
    """For this thread, or for its loop."""
    return Flag() if loop is None else LoopEvent(loop)
