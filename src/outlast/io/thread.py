"""The driver that users get: the engine behind one lock, one I/O thread, the monotonic clock.

    application threads                       the I/O thread
    append ──▶ lock ─▶ sender.append          poll ─▶ lock ─▶ events, tick, take
    flush, close, partitions_for                      └─▶ unlocked: commands, completions, facts

Rules:
* `_lock` guards the engine and every field here that two threads use. Nothing that can wait, and
  nothing of the user's, runs under it: sockets, futures, callbacks and observers run with it
  released.
* Only the I/O thread takes the engine's outbox, and only it touches the network, save `wake`. The
  one exception: a `close` whose time is up while a callback holds the I/O thread settles the rest.
* Own pauses are not silence. The clock is read first and then everything readable is read, before
  the engine may conclude from that time that nothing came.
* A callback runs on the I/O thread. It must not wait for that thread: `flush` raises there, and
  `close` goes on in a thread of its own.
* A forked child has no I/O thread and must leave the parent's connections alone. It fails what it
  inherited, and gets an engine of its own when it is used.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kafka import errors as kafka_errors

from outlast.engine.batch import Batch
from outlast.engine.messages import Completion, Compress, Connect, Gap, Outbox, Outcome, Settled
from outlast.engine.sender import Sender, Waiting
from outlast.engine.settings import Settings
from outlast.errors import BlockedError, ClosedError
from outlast.io import process
from outlast.io.addresses import Resolver, resolve
from outlast.io.events import Connected, Disconnected, Event, Inspected
from outlast.io.kafka_net import Network
from outlast.io.publishing import Delivery, Observer, Observers, fail_all, records_of, settle
from outlast.io.reasons import Reasons

log = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")
_LONGEST_SLEEP_S = 60.0
_LAST_BYTES_S = 5.0  # for requests without answer that are still on their way out at close
_HANDOVER_S = 0.25  # for the I/O thread to settle the rest before a close does it itself
_FORK_WAIT_S = 1.0  # for the lock; a fork out of the lock itself waits in vain


class Driver:
    """Runs one engine over sockets. Its thread is a daemon and starts at once.

    Args:
        settings: the engine's share of the configuration.
        keywords: kafka-python's keywords, for the network.
        new_delivery: makes what a new batch's futures share.
        observers: called with each fact, on the I/O thread. One that raises is dropped.
        resolver: names to addresses, in place of `socket.getaddrinfo`.
        clock: monotonic seconds.
        new_sender: makes the engine from the time of its beginning.

    Raises:
        KafkaConfigurationError: TLS cannot be set up from the keywords.
    """

    def __init__(
        self,
        settings: Settings,
        keywords: Mapping[str, Any],
        *,
        new_delivery: Callable[[Batch], Delivery],
        observers: Iterable[Observer] = (),
        resolver: Resolver = resolve,
        clock: Callable[[], float] = time.monotonic,
        new_sender: Callable[[float], Sender] | None = None,
    ) -> None:
        self._settings = settings
        self._keywords = keywords
        self._new_delivery = new_delivery
        self._observers = Observers(observers)
        self._resolver = resolver
        self._clock = clock
        self._new_sender = new_sender or self._usual_sender
        self._reasons = Reasons(settings.buffer_bytes)
        self.broker_version: tuple[int, ...] | None = None  # of the broker that answered last
        self._lock = threading.Lock()
        self._closed = False  # takes no more records
        self._crash: BaseException | None = None
        self._thread: threading.Thread | None = None  # None: forked, and not used since
        self._start()
        process.register(self)

    def __repr__(self) -> str:
        state = "crashed" if self._crash else "closed" if self._closed else "open"
        return f"<Driver {self._settings.client_id} {state} {self._sender} {self._network}>"

    def _usual_sender(self, now: float) -> Sender:
        return Sender(self._settings, random.Random(), now, time.time() - now)

    def _start(self) -> None:
        """A new engine, network and thread: at construction, and in a forked child at first use."""
        self._network = Network(
            self._keywords,
            setup_timeout_s=self._settings.connection_setup_timeout_s,
            resolver=self._resolver,
        )
        self._sender = self._new_sender(self._clock())
        self._waiters: dict[int, threading.Event] = {}
        self._untold: deque[Completion] = deque()
        self._asleep = False
        self._nudged = False  # look at the engine before you sleep
        self._stopping, self._stop_by_s = False, 0.0
        self._ready = True  # takes records: started, not closed, not crashed
        name = f"{self._settings.client_id}-network-thread"
        thread = threading.Thread(
            target=self._run, args=(self._network, self._sender), name=name, daemon=True
        )
        self._thread = thread
        thread.start()

    # --- the application's threads --------------------------------------------------------------

    @property
    def in_callback(self) -> bool:
        """Whether this is the I/O thread, on which callbacks and observers run."""
        return threading.current_thread() is self._thread

    def append(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        timestamp_ms: int,
        max_block_s: float,
    ) -> tuple[Batch, int]:
        """Take one record: its batch, and its index among the records of `batch.delivery`.

        Waits up to `max_block_s` for metadata or for room.

        Raises:
            BlockedError: neither came in time (a KafkaTimeoutError).
            ClosedError: the producer is closed.
            ValueError: the topic has no such partition.
            MessageSizeTooLargeError: the buffer could never hold the record.
            BrokerResponseError: the cluster will not have this topic: not authorized, invalid name.
        """
        now = self._clock()
        with self._lock:
            if not self._ready:
                self._make_ready()
            sender = self._sender
            batch = sender.append(topic, partition, key, value, headers, timestamp_ms, now)
            if not isinstance(batch, Waiting):
                if batch.delivery is None:
                    batch.delivery = self._new_delivery(batch)
                index = batch.count - 1
                if not (self._asleep and sender.attention):
                    return batch, index
                self._asleep = False
            else:
                waiter = self._enqueue(batch)
        if not isinstance(batch, Waiting):
            self._network.wake()
            return batch, index
        again = partial(sender.append, topic, partition, key, value, headers, timestamp_ms)
        return self._wait(topic, batch, waiter, now, max_block_s, again, self._accepted)

    def _accepted(self, batch: Batch) -> tuple[Batch, int]:
        """Under the lock: what `append` returns for the batch's last record."""
        if batch.delivery is None:
            batch.delivery = self._new_delivery(batch)
        return batch, batch.count - 1

    def partitions_for(self, topic: str, max_block_s: float) -> frozenset[int]:
        """The partitions of a topic. Waits and raises as `append` does."""
        now = self._clock()
        with self._lock:
            if not self._ready:
                self._make_ready()
            known = self._sender.partitions_for(topic, now)
            if not isinstance(known, Waiting):
                return known
            waiter = self._enqueue(known)
        again = partial(self._sender.partitions_for, topic)
        return self._wait(topic, known, waiter, now, max_block_s, again, lambda known: known)

    def ask(self, question: Callable[[Sender, float], T]) -> T:
        """Look at the engine, under the lock: be quick, and change nothing."""
        with self._lock:
            return question(self._sender, self._clock())

    def available_partitions(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic that have a leader, as far as is known."""
        return self.ask(lambda sender, _: sender.available_partitions(topic))

    def gaps(self) -> list[Gap]:
        """The last thousand gaps, open ones included."""
        return self.ask(lambda sender, now: sender.gaps(now))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all records taken so far are settled and their callbacks have run.

        Raises:
            BlockedError: that took longer than `timeout_s` (a KafkaTimeoutError).
            IllegalStateError: called from a callback, where it would wait for itself.
        """
        if self.in_callback:
            raise kafka_errors.IllegalStateError(
                "flush() in a callback would wait for the thread that it runs on"
            )
        last_s = None if timeout_s is None else self._clock() + timeout_s
        if not self._drained(last_s):
            raise BlockedError(
                f"flush(timeout={timeout_s}): not all records were acknowledged or failed in time; "
                "they are still being tried"
            )

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver what was taken, for `timeout_s` at most, fail the rest and end the thread.

        It keeps its time whatever the brokers or callbacks do. In a callback it returns at once
        and goes on in a thread of its own. A second close waits for the first, or cuts it short.
        """
        with self._lock:
            self._closed, self._ready = True, False
            for waiter in self._waiters.values():
                waiter.set()
        if not self.in_callback:
            self._finish(timeout_s)
            return
        try:
            threading.Thread(target=self._finish, args=(timeout_s,), daemon=True).start()
        except RuntimeError:  # the interpreter is ending
            self._stop(self._clock())

    # --- waiting --------------------------------------------------------------------------------

    def _make_ready(self) -> None:
        """Under the lock, before use: why it cannot be used, or the new start after a fork."""
        if self._closed or self._crash is not None:
            raise ClosedError(self._reasons.closed(self._crash))
        self._start()

    def _enqueue(self, waiting: Waiting) -> threading.Event:
        """Under the lock: what is set when the ticket is granted."""
        waiter = threading.Event()
        if not waiting.final:
            self._waiters[waiting.ticket] = waiter
            self._nudge()
        return waiter

    def _wait(
        self,
        topic: str,
        waiting: Waiting,
        waiter: threading.Event,
        since_s: float,
        max_block_s: float,
        again: Callable[[float, int], S | Waiting],
        accepted: Callable[[S], T],
    ) -> T:
        """Ask again each time the ticket is granted, until something is got or time is up."""
        ticket = waiting.ticket
        if self.in_callback:
            max_block_s = 0.0  # it would wait for itself
        last_s = since_s + max_block_s
        while not waiting.final:
            try:
                waiter.wait(max(0.0, min(last_s - self._clock(), threading.TIMEOUT_MAX)))
            except BaseException:  # Ctrl-C: nobody waits any more
                self._cancel(topic, ticket)
                raise
            with self._lock:
                now = self._clock()
                if not self._ready:
                    self._make_ready()
                if waiter.is_set():
                    got = again(now, ticket)
                    if not isinstance(got, Waiting):
                        self._nudge()
                        return accepted(got)
                    waiting = got
                    waiter = self._enqueue(got)
            if now >= last_s and not waiting.final:
                error_code = self._cancel(topic, ticket)
                raise BlockedError(
                    self._reasons.blocked(topic, waiting.reason, error_code, max_block_s)
                )
        error = kafka_errors.for_code(waiting.error)
        raise error(f"topic {topic!r} cannot be written to")

    def _cancel(self, topic: str, ticket: int) -> int:
        """Nobody waits with this ticket any more; returns what the brokers say of the topic."""
        with self._lock:
            self._waiters.pop(ticket, None)
            now = self._clock()
            known = self._sender.partitions_for(topic, now, ticket)
            self._sender.cancel_wait(ticket, now)
            self._nudge()
        return known.error if isinstance(known, Waiting) else 0

    def _nudge(self) -> None:
        """Under the lock: have the I/O thread look at the engine soon."""
        self._nudged = True
        if self._asleep:
            self._asleep = False
            self._network.wake()

    # --- ending ---------------------------------------------------------------------------------

    def _drained(self, last_s: float | None) -> bool:
        with self._lock:
            if self._thread is None or self._crash is not None:
                return True
            counts = records_of(self._sender.flush(self._clock()))
            self._nudge()
        for delivery, count in counts.items():
            left_s = None if last_s is None else max(0.0, last_s - self._clock())
            if not delivery.wait_told(count, left_s):
                return False
        return True

    def _finish(self, timeout_s: float | None) -> None:
        thread = self._thread
        if thread is None:
            return
        last_s = self._clock() + (threading.TIMEOUT_MAX / 2 if timeout_s is None else timeout_s)
        self._drained(last_s)
        self._stop(last_s)
        thread.join(max(_HANDOVER_S, min(last_s - self._clock(), _LAST_BYTES_S + _HANDOVER_S)))
        if thread.is_alive():  # a callback holds it
            self._publish(self.ask(lambda sender, _: sender.take()))

    def _stop(self, last_s: float) -> None:
        """Fail what is not settled; the I/O thread goes round once more, and ends."""
        with self._lock:
            if not self._stopping:
                self._stopping, self._stop_by_s = True, last_s
                if self._crash is None:
                    self._sender.close(self._clock(), fail_rest=True)
            self._nudge()

    # --- the I/O thread -------------------------------------------------------------------------

    def _run(self, network: Network, sender: Sender) -> None:
        try:
            while self._step(network, sender):
                pass
        except BaseException as error:
            self._crashed(sender, error)
        if network is self._network:  # else this is a child that was forked in a callback
            network.close(min(_LAST_BYTES_S, max(0.0, self._stop_by_s - self._clock())))

    def _step(self, network: Network, sender: Sender) -> bool:
        """Wait for something to do, and do it. False: it was the last time."""
        with self._lock:
            now = self._clock()
            due_s = sender.next_deadline(now)
            sleep_s = _LONGEST_SLEEP_S if due_s is None else min(due_s - now, _LONGEST_SLEEP_S)
            asleep = self._asleep = not (self._nudged or sender.attention)
        events = network.poll(sleep_s if asleep else 0.0)
        now = self._clock()
        if due_s is not None and now >= due_s:
            events += network.poll(0.0)  # what came before `now` counts before its deadlines do
        with self._lock:
            self._asleep = self._nudged = False
            last = self._stopping
            for event in events:
                self._deliver(sender, event, now)
            sender.tick(now)
            outbox = sender.take()
        for command in outbox.commands:
            if isinstance(command, Connect):
                self._reasons.connecting(command)
            network.execute(command)
        self._publish(outbox)
        return not last and network is self._network

    def _deliver(self, sender: Sender, event: Event, now: float) -> None:
        if isinstance(event, Connected):
            self.broker_version = event.broker_version
            self._reasons.connected(event)
            sender.connected(event.connection, event.api_versions, now)
        elif isinstance(event, Disconnected):
            self._reasons.disconnected(event)
            sender.disconnected(event.connection, event.loss, event.detail, now, event.unsent)
        elif isinstance(event, Inspected):
            sender.inspected(event.connection, event.retransmits, now)
        else:
            sender.responded(event.connection, event.token, event.response, now)

    def _publish(self, outbox: Outbox) -> None:
        """Tell the application and the observers. (Also for a close that finds this stuck.)"""
        self._untold.extend(outbox.completions)
        while self._untold:
            completion = self._untold.popleft()
            if isinstance(completion, Settled):
                settle(completion.batch)
            elif isinstance(completion, Compress):
                self._compress(completion.batch)
            elif (waiter := self._waiters.pop(completion.ticket, None)) is not None:
                waiter.set()
        self._observers.tell(outbox.facts)

    def _compress(self, batch: Batch) -> None:
        data = batch.compressed(self._settings.compression)
        with self._lock:
            self._sender.compressed(batch, data, self._clock())
            self._nudged = True

    def _crashed(self, sender: Sender, error: BaseException) -> None:
        """A mistake of ours: say so, and leave nobody waiting."""
        log.critical("The I/O thread ended on an internal error", exc_info=error)
        with self._lock:
            self._crash, self._ready = error, False
            waiters = list(self._waiters.values())
        fail_all(
            sender, "closed", f"the producer ended on an internal error: {error!r}", self._clock()
        )
        for waiter in waiters:
            waiter.set()

    # --- fork -----------------------------------------------------------------------------------

    def hold_for_fork(self) -> bool:
        """Before a fork: let the engine finish its step, so that the child finds it whole."""
        return self._lock.acquire(timeout=_FORK_WAIT_S)

    def go_on_after_fork(self) -> None:
        """In the parent, if `hold_for_fork` said True."""
        self._lock.release()

    def become_child(self) -> None:
        """In the child: forget the parent's engine and connections without touching them."""
        self._lock = threading.Lock()
        if self._thread is None:
            return
        self._thread, self._ready = None, False
        self._network.abandon()
        if self._crash is None:
            message = "the process that forked this one goes on with it"
            fail_all(self._sender, "forked", message, self._clock(), Outcome.UNKNOWN)
