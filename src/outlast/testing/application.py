"""The application inside the simulator: threads that send, block, and see their futures settled.

It stands where `KafkaProducer` and its callers stand in the other driver. A *thread* sends one
record after another; a send that the engine makes wait blocks its thread until it is granted or
`max_block_s` has passed, as `send()` does. Everything said about a record goes into the ledger.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from kafka.errors import KafkaError, for_code

from outlast.engine.batch import Batch
from outlast.engine.messages import Failure
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


class _Send:
    """A send at the head of its thread, or behind it."""

    __slots__ = ("future", "key", "partition", "ticket", "topic")

    def __init__(
        self, future: SimFuture, topic: str, partition: int | None, key: bytes | None
    ) -> None:
        self.future = future
        self.topic = topic
        self.partition = partition
        self.key = key
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
        self._threads: dict[str, deque[_Send]] = {}
        self._tickets: dict[int, str] = {}  # ticket → the thread that waits with it
        self._open = 0
        self._shut = False
        self.failures: Counter[str] = Counter()  # by kind, as the engine told them

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
        entry = self.ledger.sending(topic, now, key=key, size_bytes=size_bytes)
        future = SimFuture(entry)
        self._open += 1
        name = thread or f"{topic}-{partition}"
        send = _Send(future, topic, partition, key)
        queue = self._threads.setdefault(name, deque())
        if self._shut:
            self._refuse(send, RuntimeError("closed"), now)
            return future
        queue.append(send)
        if len(queue) == 1:
            self._run(name, now)
        return future

    def shut(self, now: float) -> None:
        """The producer is closed: what has not been taken never will be, nor what comes later."""
        self._shut = True
        self._tickets.clear()
        for queue in self._threads.values():
            for send in queue:
                self._refuse(send, RuntimeError("closed"), now)
            queue.clear()

    def granted(self, ticket: int, now: float) -> None:
        """The engine has room, or knows more: the thread that waits tries again."""
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
        while queue and self._append(name, queue[0], now):
            queue.popleft()

    def _append(self, name: str, send: _Send, now: float) -> bool:
        """False: it blocks."""
        entry = send.future.entry
        timestamp_ms = int((entry.sent_at + self._unix_offset_s) * 1000)
        first = send.ticket == 0
        try:
            got = self._sender.append(
                send.topic,
                send.partition,
                send.key,
                entry.value,
                (),
                timestamp_ms,
                now,
                send.ticket,
            )
        except (KafkaError, ValueError) as error:
            self._refuse(send, error, now)
            self._obey()
            return True
        if isinstance(got, Batch):
            self._take(send, got, now)
        elif got.final:
            self._refuse(send, for_code(got.error)(), now)
        else:
            send.ticket = got.ticket
            self._tickets[got.ticket] = name
            if first:
                give_up_s = now + self.max_block_s
                self._at(give_up_s, lambda later: self._blocked_too_long(name, send, later))
        self._obey()
        return isinstance(got, Batch) or got.final

    def _take(self, send: _Send, batch: Batch, now: float) -> None:
        if batch.delivery is None:
            batch.delivery = []
        assert isinstance(batch.delivery, list)
        batch.delivery.append(send.future)
        assert batch.first_index + batch.count == len(batch.delivery), f"{batch} miscounts"
        self.ledger.taken(send.future.entry, batch.partition, now)

    def _blocked_too_long(self, name: str, send: _Send, now: float) -> None:
        queue = self._threads[name]
        if not queue or queue[0] is not send:
            return
        self._tickets.pop(send.ticket, None)
        self._sender.cancel_wait(send.ticket, now)
        self._refuse(send, TimeoutError(f"blocked for {self.max_block_s:g} s"), now)
        queue.popleft()
        self._obey()
        self._run(name, now)

    def _refuse(self, send: _Send, error: Exception, now: float) -> None:
        self._open -= 1
        send.future.error = error
        self.ledger.refused(send.future.entry, now)
