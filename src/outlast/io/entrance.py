"""What the application's threads call: the engine behind its lock, and waiting for it.

Rules:
* Nothing that can wait, and nothing of the user's, runs under the lock.
* The lock is never taken twice by one thread. Where a signal handler or a finalizer came in between
  while its thread was in here, what would wait for itself raises instead.
* An exception may come anywhere, from a signal handler: it costs one record at most, and leaves no
  lock, no waiter and no room taken. So every call ends in `cut_off`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kafka import errors as kafka_errors

from outlast.engine.batch import Batch
from outlast.engine.intake import Taken
from outlast.engine.messages import Gap
from outlast.engine.run import Run
from outlast.engine.sender import Sender, Waiting
from outlast.engine.transactions import Transactions
from outlast.errors import BlockedError, ClosedError
from outlast.io.door import Door, Record
from outlast.io.flag import Flag
from outlast.io.kafka_net import Network
from outlast.io.publishing import Delivery
from outlast.io.reasons import Reasons
from outlast.io.waiting import Parked, Wait, Waiter, new_waiter, the_loop

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

S = TypeVar("S")
T = TypeVar("T")


def _as_it_is(got: T) -> T:
    return got


_ADVICE = {
    kafka_errors.TopicAuthorizationFailedError: ": the cluster's access lists must allow this user "
    "DESCRIBE and WRITE on it",
    kafka_errors.InvalidTopicError: ": the brokers do not take that name",
}
_LOOK_S = 0.1  # as often as the engine judges who is held up


class _HeldUp:
    """Instead of what was asked for: the partition is held up."""


_TakenOrNot = Taken | _HeldUp


class Entrance:
    """The side of a driver that users' threads see. `Driver` has the other one."""

    _network: Network
    _reasons: Reasons
    _sender: Sender
    _thread: threading.Thread | None  # None: forked, and not used since

    def __init__(
        self, clock: Callable[[], float], new_delivery: Callable[[Batch], Delivery]
    ) -> None:
        self._clock = clock
        self._new_delivery = new_delivery
        self.door = Door(self, clock, new_delivery)
        self.append = self.door.append  # where every call layer would be paid for each record
        self._new_locks()
        self._closed = False  # takes no more records
        self._crash: BaseException | None = None
        self._waiters: dict[int, Waiter] = {}  # by ticket, of all who wait
        self._nudged = False  # look at the engine before you sleep

    def _new_locks(self) -> None:
        self._telling = threading.RLock()  # held while callbacks and observers run
        self._lock, self.is_inside = self.door.new_lock()

    def _start(self) -> None:
        """A new engine, network and thread."""
        raise NotImplementedError

    # --- calls ----------------------------------------------------------------------------------

    @property
    def in_callback(self) -> bool:
        """Whether this is the I/O thread, on which callbacks and observers run."""
        return threading.current_thread() is self._thread

    @property
    def goes_on(self) -> bool:
        """Whether anything may come of what it is asked: not in a child that was forked since, and
        not after a crash.
        """
        return self._thread is not None and self._crash is None

    def begin_wait(
        self, waiting: Waiting, record: Record, max_block_s: float, now: float
    ) -> Wait[Batch, Any]:
        """Under the lock: a record must wait, for metadata or for room."""
        loop = the_loop(self)
        waiter = self._enqueue(waiting, loop)
        again = partial(self._sender.append, *record)
        last_s = now + max_block_s
        return Wait(record[0], waiting, waiter, loop, again, self._accepted, max_block_s, last_s)

    def waited(self, wait: Wait[Batch, Any]) -> tuple[Batch, int]:
        """What comes of that, in time."""
        if wait.loop is None:
            return cast("tuple[Batch, int]", self._wait(wait))
        return cast("tuple[Batch, int]", (Parked(self, wait), 0))  # see `send_async`

    def _accepted(self, batch: Batch) -> tuple[Batch, int]:
        """Under the lock: what `append` returns for the batch's last record."""
        if batch.delivery is None:
            batch.delivery = self._new_delivery(batch)
        return batch, batch.count - 1

    def append_run(
        self, run: Run, begin: int, left_s: float, max_block_s: float, *, patient: bool = True
    ) -> Taken | None:
        """Take the record at `begin`, and with it those that follow into the same batch.

        Waits and raises as `append` does, but no longer than is left. Who is not `patient` does not
        wait for a partition that is held up (there is room, but not for it), and gets None.
        """
        self._not_inside("send_many()")
        now = self._clock()
        got: Taken | Waiting | None = None
        try:
            with self._lock:
                if not self.door.ready:
                    self.make_ready()
                got = self._sender.append_run(run, begin, now)
                if type(got) is Taken:
                    if got.batch.delivery is None:
                        self._accepted(got.batch)
                    if self.door.asleep and self._sender.attention:
                        self._nudge()
                    return got
                self._sender.forget(cast("Waiting", got).ticket)  # it will have another
        except BaseException:
            self.cut_off(got)
            raise
        return self._run_in_time(run, begin, left_s, max_block_s, patient=patient)

    def _run_in_time(
        self, run: Run, begin: int, left_s: float, max_block_s: float, *, patient: bool
    ) -> Taken | None:
        def again(now: float, ticket: int) -> _TakenOrNot | Waiting:
            got = self._sender.append_run(run, begin, now, ticket)
            if patient or not isinstance(got, Waiting) or got.reason != "share":
                return got
            self._waiters.pop(got.ticket, None)
            self._sender.forget(got.ticket)
            return _HeldUp()

        got: _TakenOrNot | Wait[_TakenOrNot, _TakenOrNot] = self._asked(
            "send_many()", run.topic, again, self._accepted_run, left_s
        )
        if not isinstance(got, Wait):
            return got if isinstance(got, Taken) else None
        got.max_block_s = max_block_s  # as errors tell it
        try:
            waited = self._wait(got, None if patient else _LOOK_S)
            return waited if isinstance(waited, Taken) else None
        except BaseException:
            self.cut_off(got.waiting)
            raise

    def _accepted_run(self, taken: _TakenOrNot) -> _TakenOrNot:
        if isinstance(taken, _HeldUp):
            return taken
        self._accepted(taken.batch)
        if self.door.asleep and self._sender.attention:
            self._nudge()
        return taken

    def partitions_for(self, topic: str, max_block_s: float) -> frozenset[int]:
        """The partitions of a topic. Waits and raises as `append` does."""
        if the_loop(self) is not None:
            max_block_s = 0.0
        again = self._partitions_of(topic)
        return self._waited("partitions_for()", topic, again, _as_it_is, max_block_s)

    def transact(
        self,
        what: str,
        call: Callable[[Transactions, float, int], Waiting | None],
        max_block_s: float,
    ) -> None:
        """Have something done to the transaction, and wait for it. Raises as `what` does."""

        def again(now: float, ticket: int) -> Waiting | None:
            transactions = self._sender.transactions
            assert transactions is not None
            got = call(transactions, now, ticket)
            self._nudge()
            return got

        self._waited(what, what, again, lambda _: True, max_block_s)

    async def partitions_in_loop(self, topic: str, max_block_s: float) -> frozenset[int]:
        """The same in a coroutine."""
        from asyncio import get_running_loop

        again, loop = self._partitions_of(topic), get_running_loop()
        known = self._asked("partitions_for()", topic, again, _as_it_is, max_block_s, loop)
        return await Parked(self, known).answer() if isinstance(known, Wait) else known

    def _partitions_of(self, topic: str) -> Callable[[float, int], frozenset[int] | Waiting]:
        return lambda now, ticket: self._sender.partitions_for(topic, now, ticket)

    def _waited(
        self,
        what: str,
        topic: str,
        again: Callable[[float, int], S | Waiting],
        accepted: Callable[[S], T],
        max_block_s: float,
    ) -> T:
        """What the engine gives, now or in time."""
        got = self._asked(what, topic, again, accepted, max_block_s)
        if not isinstance(got, Wait):
            return got
        try:
            return cast("T", self._wait(got))
        except BaseException:
            self.cut_off(got.waiting)
            raise

    def _asked(
        self,
        what: str,
        topic: str,
        again: Callable[[float, int], S | Waiting],
        accepted: Callable[[S], T],
        max_block_s: float,
        loop: AbstractEventLoop | None = None,
    ) -> T | Wait[S, T]:
        """What the engine gives now, or how to wait for it."""
        self._not_inside(what)
        now = self._clock()
        got: S | Waiting | None = None
        try:
            with self._lock:
                if not self.door.ready:
                    self.make_ready()
                got = again(now, 0)
                if not isinstance(got, Waiting):
                    return accepted(got)
                waiter = self._enqueue(got, loop)
        except BaseException:
            self.cut_off(got)
            raise
        return Wait(topic, got, waiter, loop, again, accepted, max_block_s, now + max_block_s)

    def ask(self, question: Callable[[Sender, float], T]) -> T:
        """Look at the engine, under the lock: be quick, and change nothing."""
        self._not_inside("a question to the producer")
        with self._lock:
            return question(self._sender, self._clock())

    def available_partitions(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic that have a leader, as far as is known."""
        return self.ask(lambda sender, _: sender.available_partitions(topic))

    def begins_batch(self, topic: str, partition: int, size_bytes: int) -> bool:
        """Whether a record of this size would be the first of a batch there."""
        return self.ask(lambda sender, now: sender.begins_batch(topic, partition, size_bytes, now))

    def gaps(self) -> list[Gap]:
        """The last thousand gaps, open ones included."""
        return self.ask(lambda sender, now: sender.gaps(now))

    # --- waiting --------------------------------------------------------------------------------

    def make_ready(self) -> None:
        """Under the lock, before use: why it cannot be used, or the new start after a fork."""
        if self._closed or self._crash is not None:
            raise ClosedError(self._reasons.closed(self._crash))
        self._start()

    def _not_inside(self, what: str) -> None:
        if self.is_inside():
            raise self.came_between(what)

    def came_between(self, what: str) -> Exception:
        """What is raised where a thread would wait for itself."""
        return kafka_errors.IllegalStateError(  # type: ignore[no-any-return]
            f"{what} in a signal handler or finalizer that came in between while its thread was in "
            "a call of the same producer, and would wait for that for ever"
        )

    def _enqueue(self, waiting: Waiting, loop: AbstractEventLoop | None) -> Waiter:
        """Under the lock: what is set when the ticket is granted."""
        waiter = new_waiter(loop)
        if not waiting.final:
            self._waiters[waiting.ticket] = waiter
            self._nudge()
        return waiter

    def _wait(self, wait: Wait[S, T], look_s: float | None = None) -> T:
        """Until the engine gives something, or time is up. Who waits for room may ask again before
        its turn, each `look_s`: what keeps it waiting may have become another thing.
        """
        if self.in_callback:
            wait.max_block_s, wait.last_s = 0.0, self._clock()  # it would wait for itself
        while (got := self.look(wait)) is None:
            flag, left_s = cast("Flag", wait.waiter), self.left_s(wait)
            if look_s is None or wait.waiting.reason != "memory":
                flag.wait(left_s)
            elif not flag.wait(min(left_s, look_s)):
                flag.set()
        return got

    def left_s(self, wait: Wait[S, T]) -> float:
        """How long the wait may go on."""
        return max(0.0, min(wait.last_s - self._clock(), threading.TIMEOUT_MAX))

    def look(self, wait: Wait[S, T]) -> T | None:
        """Ask again if the ticket was granted. None: wait on."""
        ticket = wait.waiting.ticket
        if wait.waiting.final:
            error = kafka_errors.for_code(wait.waiting.error)
            advice = _ADVICE.get(error, "")
            raise error(f"topic {wait.topic!r} cannot be written to{advice}")
        with self._lock:
            now = self._clock()
            if not self.door.ready:
                self.make_ready()
            if wait.waiter.is_set():
                got = wait.again(now, ticket)
                if not isinstance(got, Waiting):
                    self._waiters.pop(ticket, None)
                    self._nudge()
                    return wait.accepted(got)
                wait.waiting, wait.waiter = got, self._enqueue(got, wait.loop)
        if wait.waiting.final:
            return self.look(wait)
        if now >= wait.last_s:
            error_code = self._cancel(wait.topic, ticket)
            reason, limit_s = wait.waiting.reason, wait.max_block_s
            raise BlockedError(self._reasons.blocked(wait.topic, reason, error_code, limit_s))
        return None

    def _cancel(self, topic: str, ticket: int) -> int:
        """Nobody waits with this ticket any more; returns what the brokers say of the topic, or a
        coordinator of what it was asked.
        """
        with self._lock:
            self._waiters.pop(ticket, None)
            now = self._clock()
            if ticket < 0:  # a transaction's
                return self._sender.cancel_wait(ticket, now)
            known = self._sender.partitions_for(topic, now, ticket)
            self._sender.cancel_wait(ticket, now)
            self._nudge()
        return known.error if isinstance(known, Waiting) else 0

    def cut_off(self, got: object = None) -> None:
        """A call ends with an exception, after it `got` this: nothing stays of it."""
        if self.is_inside() or self._thread is None or self._crash is not None:
            return
        with self._lock:
            if isinstance(got, Waiting):  # thousands of tasks may end so at once
                self._waiters.pop(got.ticket, None)
                self._sender.forget(got.ticket)
            else:
                self._sender.keep_waiting(self._waiters)
        self._network.wake()  # it may have said so, and then not come to it

    def _nudge(self) -> None:
        """Under the lock: have the I/O thread look at the engine soon."""
        self._nudged = True
        if self.door.asleep:
            self.door.asleep = False
            self._network.wake()
