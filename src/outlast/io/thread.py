"""The driver that users get: the engine behind one lock, one I/O thread, the monotonic clock.

    application threads                       the I/O thread
    append ──▶ lock ─▶ sender.append          poll ─▶ lock ─▶ events, tick, take
    flush, close, partitions_for                      └─▶ unlocked: commands, completions, facts

Rules:
* `_lock` guards the engine and every field here that two threads use (see `entrance`). Sockets,
  futures, callbacks and observers run with it released.
* Only the I/O thread takes the engine's outbox, and only it touches the network, save `wake`. The
  one exception: a `close` whose time is up while a callback holds the I/O thread settles the rest.
* Own pauses are not silence. The clock is read first and then everything readable is read, before
  the engine may conclude from that time that nothing came.
* A callback runs on the I/O thread. It must not wait for that thread: `flush` raises there, and
  `close` goes on in a thread of its own.
* A fork waits until no callback runs and the engine is between two steps, so that a child finds
  each record either settled and told, or neither.
* A forked child has no I/O thread and must leave the parent's connections alone. It fails what it
  inherited, and gets an engine of its own when it is used.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import errors as kafka_errors

from outlast.engine.batch import Batch
from outlast.engine.messages import Completion, Compress, Connect, Fact, Settled
from outlast.engine.sender import Sender
from outlast.engine.settings import Settings
from outlast.errors import BlockedError
from outlast.io import process
from outlast.io.addresses import Resolver, resolve
from outlast.io.encoding import begin_small
from outlast.io.entrance import Entrance
from outlast.io.events import Connected, Disconnected, Event, Inspected
from outlast.io.kafka_net import Network
from outlast.io.publishing import (
    Delivery,
    Observer,
    Observers,
    fail_all,
    leave_behind,
    records_of,
    settle,
    settled_of,
)
from outlast.io.reasons import Reasons

log = logging.getLogger(__name__)

_LONGEST_SLEEP_S = 60.0
_TICK_S = 0.005  # that deadlines may be late by while there is an event in each step
_LAST_BYTES_S = 5.0  # for requests without answer that are still on their way out at close
_HANDOVER_S = 0.25  # for the I/O thread to settle the rest before a close does it itself
_TURN_WAIT_S = 1.0  # for a callback that runs while the producer is closed
_FORK_WAIT_S = 1.0  # for a callback that runs, and for the lock


@dataclass(slots=True)
class Refused:
    """Records that were not taken are to be given back, where all callbacks run."""

    delivery: Delivery
    count: int
    give_back: Callable[[], None]


class Driver(Entrance):
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
        super().__init__(clock, new_delivery)
        self._settings = settings
        self._keywords = keywords
        self._observers = Observers(observers)
        self._resolver = resolver
        self._new_sender = new_sender or self._usual_sender
        self._reasons = Reasons(settings.buffer_bytes, clock)
        self.broker_version: tuple[int, ...] | None = None  # of the broker that answered last
        self._thread: threading.Thread | None = None  # None: forked, and not used since
        self._start()

    def __repr__(self) -> str:
        state = "crashed" if self._crash else "closed" if self._closed else "open"
        return f"<Driver {self._settings.client_id} {state} {self._sender} {self._network}>"

    def _usual_sender(self, now: float) -> Sender:
        return Sender(self._settings, process.RNG, now, time.time() - now)

    def _start(self) -> None:
        """A new engine, network and thread: at construction, and in a forked child at first use."""
        self._network = Network(
            self._keywords,
            setup_timeout_s=self._settings.connection_setup_timeout_s,
            resolver=self._resolver,
        )
        self._sender = self._new_sender(self._clock())
        self.door.lead_to(self._sender, self._network.wake)
        self._waiters.clear()
        self._untold: deque[Completion | Refused] = deque()
        self._in_hand: list[Completion | Refused] = []  # being told
        self._ticked_s = -math.inf
        self.door.asleep = self._nudged = False
        self._stopping, self._stop_by_s = False, 0.0
        self._ended = False  # the engine has failed what was left
        self.door.ready = True  # takes records: started, not closed, not crashed
        name = f"{self._settings.client_id}-network-thread"
        thread = threading.Thread(
            target=self._run, args=(self._network, self._sender), name=name, daemon=True
        )
        self._thread = thread
        try:
            thread.start()
        except BaseException:  # no room for a thread: nothing would send what is taken
            self._thread, self.door.ready = None, False
            self._network.close()
            raise
        process.register(self)

    # --- the application's threads --------------------------------------------------------------

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
        self._not_inside("flush()")
        if not self.drained(timeout_s, told=True):
            raise BlockedError(
                f"flush(timeout={timeout_s}): not all records were acknowledged or failed in time; "
                "they are still being tried"
            )

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver what was taken, for `timeout_s` at most, fail the rest and end the thread.

        It keeps its time whatever the brokers or callbacks do. In a callback it returns at once
        and goes on in a thread of its own. A second close waits for the first, or cuts it short.
        """
        self._closed, self.door.ready = True, False
        if not (self.in_callback or self.is_inside()):
            self._finish(timeout_s)
            return
        try:
            threading.Thread(target=self._finish, args=(timeout_s,), daemon=True).start()
        except RuntimeError:  # the interpreter is ending
            self._stop(self._clock())

    # --- ending ---------------------------------------------------------------------------------

    def drained(self, timeout_s: float | None, *, told: bool = False) -> bool:
        """Whether all that is unsettled gets settled, and told, within this time; with `told`, what
        is settled already and not told yet, too. (A close leaves that to the I/O thread.)
        """
        last_s = None if timeout_s is None else self._clock() + timeout_s
        with self._lock:
            if self._thread is None or self._crash is not None:
                return True
            batches = self._sender.flush(self._clock())
            untold = (*self._in_hand, *self._untold) if told else ()
            refused = [done for done in untold if isinstance(done, Refused)]
            if told:
                batches += self._sender.untaken()
                batches += settled_of(done for done in untold if not isinstance(done, Refused))
            counts = records_of(batches)
            counts.update({r.delivery: r.count for r in refused})
            self._nudge()
        for delivery, count in counts.items():
            left_s = None if last_s is None else max(0.0, last_s - self._clock())
            if not delivery.wait_told(count, left_s):
                return False
        return True

    def give_back(self, refused: Refused) -> None:
        """Have this told on the I/O thread; if that has ended, or is about to, here."""
        with self._lock:
            self._untold.append(refused)
            here = self._ended or self._crash is not None or self._thread is None
            self._nudge()
        if not here:
            return
        in_turn = self._telling.acquire(timeout=_TURN_WAIT_S)
        try:
            self._publish(())
        finally:
            if in_turn:
                self._telling.release()

    def unsettled(self) -> int:
        """How many records have no outcome yet. They linger no longer."""
        if self._thread is None or self._crash is not None or self.is_inside():
            return 0
        return self.ask(lambda sender, now: sum(batch.count for batch in sender.flush(now)))

    def _finish(self, timeout_s: float | None) -> None:
        with self._lock:
            self.door.ready = False
            thread = self._thread
            for waiter in self._waiters.values():
                waiter.set()
        if thread is None:
            return
        last_s = self._clock() + (threading.TIMEOUT_MAX / 2 if timeout_s is None else timeout_s)
        self.drained(timeout_s)
        self._stop(last_s)
        thread.join(max(_HANDOVER_S, min(last_s - self._clock(), _LAST_BYTES_S + _HANDOVER_S)))
        if thread.is_alive():  # a callback holds it
            with self._lock:
                self._end(self._sender, self._clock())
                outbox = self._sender.take()
                self._untold.extend(outbox.completions)
            self._publish(outbox.facts)

    def _stop(self, last_s: float) -> None:
        """The I/O thread goes round once more, fails what is not settled, and ends."""
        with self._lock:
            if not self._stopping:
                self._stopping, self._stop_by_s = True, last_s
            self._nudge()

    def _end(self, sender: Sender, now: float) -> None:
        """Under the lock, once: fail what is not settled."""
        if not self._ended and self._crash is None:
            self._ended = True
            sender.close(now, fail_rest=True)

    # --- the I/O thread -------------------------------------------------------------------------

    def _run(self, network: Network, sender: Sender) -> None:
        begin_small()
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
            asleep = self.door.asleep = not (self._nudged or sender.attention)
        events = network.poll(sleep_s if asleep else 0.0)
        now = self._clock()
        if due_s is not None and now >= due_s:
            events += network.poll(0.0)  # what came before `now` counts before its deadlines do
        with self._lock:
            self.door.asleep = self._nudged = False
            last = self._stopping
            for event in events:
                self._deliver(sender, event, now)
            due = due_s is not None and now >= due_s
            if due or last or now - self._ticked_s >= _TICK_S:
                self._ticked_s = now
                sender.tick(now)
            elif not events:  # woken for records; an event has had all done that could be
                sender.step(now)
            if last:
                self._end(sender, now)
            outbox = sender.take()
            self._untold.extend(outbox.completions)
        for command in outbox.commands:
            if isinstance(command, Connect):
                self._reasons.connecting(command)
            network.execute(command)
        with self._telling:
            self._publish(outbox.facts)
        return not last and network is self._network

    def _deliver(self, sender: Sender, event: Event, now: float) -> None:
        if isinstance(event, Connected):
            self.broker_version = event.broker_version
            self._reasons.connected(event)
            sender.connected(event.connection, event.api_versions, now, event.features)
        elif isinstance(event, Disconnected):
            self._reasons.disconnected(event)
            sender.disconnected(event.connection, event.loss, event.detail, now, event.unsent)
        elif isinstance(event, Inspected):
            sender.inspected(event.connection, event.retransmits, now)
        else:
            sender.responded(event.connection, event.token, event.response, now)

    def _publish(self, facts: Iterable[Fact]) -> None:
        """Tell the application and the observers. (Also for a close that finds this stuck.)"""
        while True:
            with self._lock:
                if not self._untold:
                    break
                completion = self._untold.popleft()
                self._in_hand.append(completion)
            try:
                self._tell(completion)
            finally:
                with self._lock:  # a close may tell others meanwhile
                    self._in_hand.remove(completion)
        self._observers.tell(facts)

    def _tell(self, completion: Completion | Refused) -> None:
        if isinstance(completion, Settled):
            settle(completion.batch, self._reasons.trouble)
        elif isinstance(completion, Refused):
            completion.give_back()
        elif isinstance(completion, Compress):
            self._compress(completion.batch)
        elif (waiter := self._waiters.get(completion.ticket)) is not None and not waiter.set():
            self._deserted(completion.ticket)

    def _deserted(self, ticket: int) -> None:
        """An event loop was closed or left on a coroutine that waits: others come behind it."""
        with self._lock:
            self._waiters.pop(ticket, None)
            self._sender.cancel_wait(ticket, self._clock())
            self._nudged = True

    def _compress(self, batch: Batch) -> None:
        data = batch.compressed(self._settings.compression)
        with self._lock:
            more = bool(self._untold) and isinstance(self._untold[0], Compress)
            self._sender.compressed(batch, data, self._clock(), more=more)
            self._nudged = True

    def _crashed(self, sender: Sender, error: BaseException) -> None:
        """A mistake of ours: say so, and leave nobody waiting."""
        log.critical("The I/O thread ended on an internal error", exc_info=error)
        with self._lock:
            self._crash, self.door.ready = error, False
            waiters = list(self._waiters.values())
        fail_all(
            sender, "closed", f"the producer ended on an internal error: {error!r}", self._clock()
        )
        for waiter in waiters:
            waiter.set()

    # --- fork -----------------------------------------------------------------------------------

    def hold_for_fork(self, held: list[process.Held]) -> None:
        """Before a fork: let callbacks and the engine finish, so that the child finds all whole."""
        if self.is_inside():
            return
        for lock in (self._lock,) if self.in_callback else (self._telling, self._lock):
            held.append(lock)  # first: an exception of a signal handler may come in between
            lock.acquire(timeout=_FORK_WAIT_S)

    def become_child(self) -> None:
        """In the child: forget the parent's engine and connections without touching them."""
        self._new_locks()
        if self._thread is None:
            return
        self._thread, self.door.ready = None, False
        self._network.abandon()
        if self._crash is None:
            untold = [done for done in self._untold if not isinstance(done, Refused)]
            leave_behind(self._sender, untold, self._clock())
