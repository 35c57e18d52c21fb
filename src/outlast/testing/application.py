"""The application inside the simulator: threads that send, block, and see their futures settled.

It stands where `KafkaProducer` and its callers stand in the other driver. A *thread* makes one call
after another, a `send` or a `send_many`; one that the engine makes wait blocks its thread until it
is granted or `max_block_s` has passed, and then what it has not sent of its records is refused.
Everything said about a record goes into the ledger.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat

from kafka.errors import KafkaError, MessageSizeTooLargeError, for_code

from outlast.engine.batch import Batch
from outlast.engine.intake import Taken, Waiting
from outlast.engine.messages import Failure
from outlast.engine.run import Run
from outlast.engine.sender import Sender
from outlast.testing.ledger import Entry, Ledger


class SimFuture:
    """One send: its entry in the ledger, and how it failed, if it did."""

    __slots__ = ("entry", "error", "failure", "on_settled")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.failure: Failure | None = None  # told by the engine
        self.error: Exception | None = None  # raised by the send

    def __repr__(self) -> str:
        return f"<SimFuture {self.entry} {self.entry.outcome or 'open'}>"

    @property
    def done(self) -> bool:
        """Whether anything has been said about it."""
        return self.entry.settlements > 0

    @property
    def acked(self) -> bool:
        """Whether it was told to be delivered."""
        return self.entry.outcome == "acked"


class _Call:
    """A `send` or `send_many` at the head of its thread, or behind it. `run`: the records of a
    `send_many`; None: it is a `send`.
    """

    __slots__ = ("begin", "futures", "key", "partition", "run", "ticket", "topic")

    def __init__(
        self,
        futures: list[SimFuture],
        topic: str,
        partition: int | None,
        key: bytes | None = None,
        run: Run | None = None,
    ) -> None:
        self.futures = futures
        self.topic = topic
        self.partition = partition
        self.key = key
        self.run = run
        self.begin = 0  # the first record of which nothing is decided
        self.ticket = 0  # of the wait, while it is blocked


class Application:
    """Sends through one engine. `obey` is the driver's: it is called after every input; `at`
    schedules a later step.
    """

    __slots__ = (
        "_at",
        "_obey",
        "_open",
        "_sender",
        "_shut",
        "_threads",
        "_tickets",
        "_unix_offset_s",
        "failures",
        "ledger",
        "max_block_s",
        "on_transaction",
    )

    def __init__(
        self,
        sender: Sender,
        ledger: Ledger,
        *,
        unix_offset_s: float,
        max_block_s: float,
        at: Callable[[float, Callable[[float], None]], None],
        obey: Callable[[], None],
    ) -> None:
        self.ledger = ledger
        self.max_block_s = max_block_s
        self._sender = sender
        self._unix_offset_s = unix_offset_s
        self._at = at
        self._obey = obey
        self._threads: dict[str, deque[_Call]] = {}
        self._tickets: dict[int, str] = {}  # ticket → the thread that waits with it
        self._open = 0
        self._shut = False
        self.failures: Counter[str] = Counter()  # by kind, as the engine told them
        self.on_transaction: Callable[[int], None] | None = None  # a call of one may go on

    def __repr__(self) -> str:
        return f"<Application open={self._open} blocked={len(self._tickets)}>"

    @property
    def open_sends(self) -> int:
        """Sends of which nothing has been said yet."""
        return self._open

    def send(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        size_bytes: int,
        thread: str | None,
        now: float,
    ) -> SimFuture:
        """Send one record; its value is the ledger's."""
        future = SimFuture(self.ledger.sending(topic, now, key=key, size_bytes=size_bytes))
        self._call(_Call([future], topic, partition, key), thread, now)
        return future

    def send_many(
        self,
        topic: str,
        partition: int | None,
        keys: Sequence[bytes | None] | None,
        sizes_bytes: Sequence[int],
        thread: str | None,
        now: float,
    ) -> list[SimFuture]:
        """Send a record of each size in one call."""
        futures = [
            SimFuture(self.ledger.sending(topic, now, key=key, size_bytes=size))
            for key, size in zip(keys or repeat(None), sizes_bytes, strict=False)
        ]
        values = [future.entry.value for future in futures]
        run = Run(topic, partition, keys, values, (), self._timestamp_ms(now))
        self._call(_Call(futures, topic, partition, run=run), thread, now)
        return futures

    def _call(self, call: _Call, thread: str | None, now: float) -> None:
        self._open += len(call.futures)
        name = thread or f"{call.topic}-{call.partition}"
        queue = self._threads.setdefault(name, deque())
        if self._shut:
            self._refuse_rest(call, RuntimeError("closed"), now)
            return
        queue.append(call)
        if len(queue) == 1:
            self._run(name, now)

    def _timestamp_ms(self, now: float) -> int:
        return int((now + self._unix_offset_s) * 1000)

    def shut(self, now: float) -> None:
        """The producer is closed: what has not been taken never will be, nor what comes later."""
        self._shut = True
        self._tickets.clear()
        for queue in self._threads.values():
            for call in queue:
                self._refuse_rest(call, RuntimeError("closed"), now)
            queue.clear()

    def granted(self, ticket: int, now: float) -> None:
        """The engine has room, or knows more: the thread that waits tries again."""
        if ticket < 0:
            assert self.on_transaction is not None
            self.on_transaction(ticket)
            return
        name = self._tickets.pop(ticket, None)
        if name is not None:  # else it gave up at this very moment
            self._at(now, lambda later: self._run(name, later))

    def settled(self, batch: Batch, now: float) -> list[SimFuture]:
        """The records of a batch have their outcome. Returns their futures."""
        result, delivery = batch.result, batch.delivery
        assert result is not None, f"{batch} is settled without a result"
        assert isinstance(delivery, list), f"{batch} holds records that nobody sent"
        futures: list[SimFuture] = delivery[batch.first_index : batch.first_index + batch.count]
        assert len(futures) == batch.count, f"{batch} has more records than were sent"
        for index, future in enumerate(futures):
            self._open -= not future.done
            failure = result.record_failures.get(index, result.failure)
            if failure is None:
                offset = -1 if result.base_offset < 0 else result.base_offset + index
                self.ledger.acked(future.entry, offset, now)
            else:
                future.failure = failure
                self.failures[failure.kind] += 1
                self.ledger.failed(future.entry, failure.outcome.value, now)
        return futures

    # --- threads --------------------------------------------------------------------------------

    def _run(self, name: str, now: float) -> None:
        """Let the thread send until it blocks or has nothing more."""
        queue = self._threads[name]
        while queue and self._go_on(name, queue[0], now):
            if queue[0].begin >= len(queue[0].futures):
                queue.popleft()

    def _go_on(self, name: str, call: _Call, now: float) -> bool:
        """The call's next record, or records. False: it blocks."""
        first = call.ticket == 0
        try:
            got = self._append(call, now)
        except (KafkaError, ValueError) as error:
            if isinstance(error, MessageSizeTooLargeError):  # what is wrong with one costs no other
                self._refuse(call, 1, error, now)
            else:
                self._refuse_rest(call, error, now)
            self._obey()
            return True
        if isinstance(got, Taken):
            self._take(call, got, now)
        elif got.final:
            self._refuse_rest(call, for_code(got.error)(), now)
        else:
            call.ticket = got.ticket
            self._tickets[got.ticket] = name
            if first:
                give_up = partial(self._blocked_too_long, name, call, got.ticket)
                self._at(now + self.max_block_s, give_up)
        self._obey()
        return isinstance(got, Taken) or got.final

    def _append(self, call: _Call, now: float) -> Taken | Waiting:
        sender, ticket = self._sender, call.ticket
        if call.run is not None:
            return sender.append_run(call.run, call.begin, now, ticket)
        entry = call.futures[0].entry
        timestamp_ms = self._timestamp_ms(entry.sent_at)
        place = call.topic, call.partition, call.key
        got = sender.append(*place, entry.value, (), timestamp_ms, now, ticket)
        return Taken(got, got.count - 1, 1) if isinstance(got, Batch) else got

    def _take(self, call: _Call, taken: Taken, now: float) -> None:
        batch = taken.batch
        if batch.delivery is None:
            batch.delivery = []
        assert isinstance(batch.delivery, list)
        assert taken.first == len(batch.delivery), f"{batch} miscounts"
        futures = call.futures[call.begin : call.begin + taken.count]
        batch.delivery += futures
        assert batch.first_index + batch.count == len(batch.delivery), f"{batch} miscounts"
        for future in futures:
            self.ledger.taken(future.entry, batch.partition, now)
        call.begin += taken.count
        call.ticket = 0

    def _blocked_too_long(self, name: str, call: _Call, ticket: int, now: float) -> None:
        queue = self._threads[name]
        if not queue or queue[0] is not call or call.ticket != ticket:
            return
        self._tickets.pop(ticket, None)
        self._sender.cancel_wait(ticket, now)
        self._refuse_rest(call, TimeoutError(f"blocked for {self.max_block_s:g} s"), now)
        queue.popleft()
        self._obey()
        self._run(name, now)

    def _refuse_rest(self, call: _Call, error: Exception, now: float) -> None:
        self._refuse(call, len(call.futures) - call.begin, error, now)

    def _refuse(self, call: _Call, count: int, error: Exception, now: float) -> None:
        """The next so many of its records."""
        self._open -= count
        for future in call.futures[call.begin : call.begin + count]:
            future.error = error
            self.ledger.refused(future.entry, now)
        call.begin += count
        call.ticket = 0
