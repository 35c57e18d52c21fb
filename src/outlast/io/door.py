"""Records in: each goes through the lock to the engine here, and what must wait goes on elsewhere.

A file of its own, so that it can be compiled: what every record costs is here and in the engine
(docs/compiled.md). The rules are those of `entrance`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, final

from outlast.engine.batch import Batch
from outlast.engine.intake import Waiting

Headers: TypeAlias = Sequence[tuple[str, bytes]]
Record: TypeAlias = tuple[str, int | None, bytes | None, bytes | None, Headers, int]


class Engine(Protocol):
    """The engine, as seen from here (`outlast.engine.sender.Sender`)."""

    @property
    def append(self) -> Callable[..., Batch | Waiting]:
        """Takes a record."""

    @property
    def attention(self) -> bool:
        """The I/O thread should look at it soon."""


class Keeper(Protocol):
    """Whose door it is (`outlast.io.entrance.Entrance`)."""

    def came_between(self, what: str) -> Exception:
        """What is raised where a thread would wait for itself."""

    def make_ready(self) -> None:
        """Under the lock: start anew after a fork, or raise why no records are taken."""

    def begin_wait(self, waiting: Waiting, record: Record, max_block_s: float, now: float) -> Any:
        """Under the lock: this record must wait."""

    def waited(self, wait: Any) -> tuple[Any, int]:
        """What comes of that."""

    def cut_off(self, got: object = None) -> None:
        """A call ends with an exception."""


def _nobody() -> None:
    """There is no I/O thread to wake."""


@final
class Door:
    """Takes records for an engine.

    Attributes:
        ready: it takes records: started, not closed, not crashed.
        asleep: the I/O thread is, or will be without another look at the engine.
    """

    __slots__ = (
        "_clock",
        "_engine",
        "_is_inside",
        "_keeper",
        "_lock",
        "_new_delivery",
        "_wake",
        "asleep",
        "ready",
    )

    def __init__(
        self, keeper: Keeper, clock: Callable[[], float], new_delivery: Callable[[Batch], object]
    ) -> None:
        self._keeper = keeper
        self._clock = clock
        self._new_delivery = new_delivery
        self._engine: Engine | None = None
        self._wake: Callable[[], None] = _nobody
        self.ready = False
        self.asleep = False
        self.new_lock()

    def __repr__(self) -> str:
        return f"<Door to {self._engine!r}, {'ready' if self.ready else 'not ready'}>"

    def new_lock(self) -> tuple[Any, Callable[[], bool]]:
        """The lock from now on, and whether this thread holds it. (After a fork the holder of the
        old one may be gone.)
        """
        lock: Any = threading.RLock()  # never taken twice: it knows who holds it
        self._lock = lock
        self._is_inside: Callable[[], bool] = lock._is_owned
        return self._lock, self._is_inside

    def lead_to(self, engine: Engine, wake: Callable[[], None]) -> None:
        """Records are for this engine from now on; `wake` wakes its I/O thread."""
        self._engine, self._wake = engine, wake

    def append(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        max_block_s: float,
    ) -> tuple[Any, int]:
        """Take one record: its batch, and its index among the records of `batch.delivery`. For
        `send_async` something `Parked` may stand where the batch will.

        Waits up to `max_block_s` for metadata or for room.

        Raises:
            BlockedError: neither came in time (a KafkaTimeoutError).
            ClosedError: the producer is closed.
            ValueError: the topic has no such partition.
            MessageSizeTooLargeError: the buffer could never hold the record.
            BrokerResponseError: the cluster will not have this topic: not authorized, invalid name.
        """
        if self._is_inside():
            raise self._keeper.came_between("send()")
        now = self._clock()
        batch: Batch | Waiting | None = None
        lock = self._lock
        try:
            lock.acquire()  # as `with`, which takes twice as long; see below for the other way out
            if not self.ready:
                self._keeper.make_ready()
            engine = self._engine
            assert engine is not None
            batch = engine.append(topic, partition, key, value, headers, timestamp_ms, now)
            if type(batch) is not Waiting:
                if batch.delivery is None:
                    batch.delivery = self._new_delivery(batch)
                index = batch.count - 1
                if not (self.asleep and engine.attention):
                    lock.release()
                    return batch, index
                self.asleep = False
                lock.release()
                self._wake()
                return batch, index
            record = topic, partition, key, value, headers, timestamp_ms
            wait = self._keeper.begin_wait(batch, record, max_block_s, now)
            lock.release()
            return self._keeper.waited(wait)
        except BaseException:
            if self._is_inside():
                lock.release()
            self._keeper.cut_off(batch)
            raise
