"""Transactions in the simulator: an application that begins, sends, commits and aborts; and their
judge.

The application makes one call after another, as a thread would: a call that the engine makes wait
blocks until it is granted or `max_block_s` is over, and is then made again. Whatever raises is
answered by `abort_transaction()`, as the documentation says.

What the judge holds against a producer: a reader of committed data sees

* every record of a transaction whose commit returned, once, at the partition that took it;
* nothing of one that was aborted, or that never ended;
* of one whose end nobody was told, all or nothing;
* each partition's records in the order in which they were taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from kafka.errors import IllegalStateError, ProducerFencedError

from outlast.engine.intake import Waiting
from outlast.engine.transaction_state import State
from outlast.engine.transactions import Transactions
from outlast.testing.application import SimFuture
from outlast.testing.ledger import ACKED
from outlast.testing.simulation import Simulation

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
AGAIN_S = 0.05  # after a call that ran into its time-out
LOOK_S = 0.005

Call = Callable[[float, int], Waiting | None]
Then = Callable[[Exception | None], None]


@dataclass(slots=True, eq=False)
class SimTransaction:
    """One transaction of the application, and what it was told of it."""

    number: int
    futures: list[SimFuture] = field(default_factory=list)
    fate: str = UNKNOWN
    in_doubt: bool = False  # its commit was asked for, and nobody can tell whether it was done
    error: Exception | None = None  # why it was not committed, or may not have been

    def __str__(self) -> str:
        return f"transaction {self.number} ({self.fate}, {len(self.futures)} records)"

    @property
    def ending(self) -> str:
        """Its fate, and where it was not the application that aborted it, why."""
        if self.fate != ABORTED or self.error is None:
            return self.fate
        if isinstance(self.error, ProducerFencedError):
            return "fenced"
        return "timed out" if "transaction_timeout_ms" in str(self.error) else "failed"


class _Waiting:
    """A call that blocks its thread."""

    __slots__ = ("call", "then", "ticket")

    def __init__(self, call: Call, then: Then, ticket: int) -> None:
        self.call = call
        self.then = then
        self.ticket = ticket


class Transacting:
    """One thread of transactions.

    Args:
        sim: where it runs; its producer has a transactional id.
        send: sends some records into the present transaction, and gives their futures.
        rng: decides how many pieces a transaction has, and how it ends.
        max_block_s: how long a call waits.
    """

    def __init__(
        self,
        sim: Simulation,
        send: Callable[[], list[SimFuture]],
        rng: Random,
        *,
        max_block_s: float,
        pause_s: float = 0.02,
    ) -> None:
        assert sim.sender.transactions is not None, "it needs a transactional id"
        self._sim = sim
        self._engine: Transactions = sim.sender.transactions
        self._send = send
        self._rng = rng
        self._max_block_s = max_block_s
        self._pause_s = pause_s
        self._waiting: _Waiting | None = None
        self._ends = False  # no more transactions are begun
        self.idle = True
        self.fenced = False
        self.transactions: list[SimTransaction] = []
        self.raised: Counter[str] = Counter()
        sim.application.on_transaction = self._granted

    def __repr__(self) -> str:
        return f"<Transacting {len(self.transactions)} transactions, idle={self.idle}>"

    # --- the thread -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the id over, and then one transaction after another."""
        self.idle = False
        self._until_done(self._engine.init, self._initialized)

    def once(self, sends: Sequence[Callable[[], SimFuture]]) -> None:
        """One transaction of these records, which is committed."""
        assert self.idle
        self.idle, self._ends = False, True
        if self._engine.state is State.UNINITIALIZED:  # the last one was left to its time-out
            self._until_done(self._engine.init, partial(self._once, sends))
        else:
            self._once(sends)

    def _once(
        self, sends: Sequence[Callable[[], SimFuture]], error: Exception | None = None
    ) -> None:
        if error is not None:
            self._stop(error)
            return
        self._engine.begin(self._sim.now)
        self._obey()
        self.transactions.append(SimTransaction(len(self.transactions)))
        futures = [send() for send in sends]
        self.transactions[-1].futures += futures
        commit = partial(self._until_done, self._engine.commit, self._committed)
        self._when_taken(futures, commit)

    def end(self) -> None:
        """The present transaction is the last one."""
        self._ends = True

    def _initialized(self, error: Exception | None) -> None:
        if error is None:
            self._next()
        else:
            self._stop(error)

    def _stop(self, error: Exception | None = None) -> None:
        if error is not None:
            self.raised[type(error).__name__] += 1
            self.fenced = isinstance(error, ProducerFencedError)
        self.idle = True

    def _next(self) -> None:
        if self._ends:
            self._stop()
            return
        self._engine.begin(self._sim.now)
        self._obey()
        self.transactions.append(SimTransaction(len(self.transactions)))
        self._piece(self._rng.choice([0, 1, 1, 2, 4]))

    def _piece(self, left: int) -> None:
        """Some more records; then its end."""
        present = self.transactions[-1]
        if left:
            futures = self._send()
            present.futures += futures
            self._when_taken(futures, partial(self._later, partial(self._piece, left - 1)))
        elif self._rng.random() < 0.2:
            self._abort()
        else:
            self._until_done(self._engine.commit, self._committed)

    def _committed(self, error: Exception | None) -> None:
        if error is None:
            self.transactions[-1].fate = COMMITTED
            self._later(self._next)
        elif isinstance(error, ProducerFencedError):
            self._failed(error)
            self._stop(error)
        else:
            self._failed(error)
            self.raised[type(error).__name__] += 1
            self._abort()

    def _failed(self, error: Exception) -> None:
        """It was not committed, or nobody knows."""
        present = self.transactions[-1]
        present.error = error
        present.in_doubt = "may have been committed" in str(error)
        present.fate = UNKNOWN if present.in_doubt else ABORTED

    def _abort(self) -> None:
        self._until_done(self._engine.abort, self._aborted)

    def _aborted(self, error: Exception | None) -> None:
        present = self.transactions[-1]
        present.error = present.error or error
        if not present.in_doubt:
            present.fate = ABORTED
        if error is None:
            self._later(self._next)
        elif isinstance(error, ProducerFencedError):
            self._stop(error)
        else:  # left to its time-out: the id is taken over anew
            self.raised[type(error).__name__] += 1
            self._until_done(self._engine.init, self._initialized)

    def _when_taken(self, futures: list[SimFuture], step: Callable[[], None]) -> None:
        """A `send()` that waits for room or metadata blocks its thread."""
        if all(future.done or future.entry.taken_at is not None for future in futures):
            step()
        else:
            again = partial(self._when_taken, futures, step)
            self._sim.at(self._sim.now + LOOK_S, again)

    def _later(self, step: Callable[[], None]) -> None:
        sim = self._sim
        sim.at(sim.now + self._rng.uniform(0.0, 2 * self._pause_s), step)

    # --- calls ----------------------------------------------------------------------------------

    def _until_done(self, call: Call, then: Then) -> None:
        """Make the call, and make it again for as long as it runs into its time-out."""

        def ended(error: Exception | None) -> None:
            if isinstance(error, TimeoutError):
                self.raised["TimeoutError"] += 1
                self._sim.at(self._sim.now + AGAIN_S, partial(self._make, call, ended))
            else:
                assert not isinstance(error, IllegalStateError), error
                then(error)

        self._make(call, ended)

    def _make(self, call: Call, then: Then, ticket: int = 0) -> None:
        first = ticket == 0
        error: Exception | None = None
        got: Waiting | None = None
        try:
            got = call(self._sim.now, ticket)
        except Exception as raised:  # whatever an application would see
            error = raised
        if got is None:
            self._waiting = None
            self._obey()
            then(error)
            return
        self._waiting = _Waiting(call, then, got.ticket)
        if first:
            deadline_s = self._sim.now + self._max_block_s
            self._sim.at(deadline_s, partial(self._too_long, self._waiting))
        self._obey()

    def _granted(self, ticket: int) -> None:
        waiting = self._waiting
        if waiting is not None and waiting.ticket == ticket:
            self._sim.soon(partial(self._try_again, waiting))

    def _try_again(self, waiting: _Waiting) -> None:
        if self._waiting is waiting:
            got: Waiting | None = None
            error: Exception | None = None
            try:
                got = waiting.call(self._sim.now, waiting.ticket)
            except Exception as raised:
                error = raised
            if got is None:
                self._waiting = None
                self._obey()
                waiting.then(error)
            else:
                self._obey()

    def _too_long(self, waiting: _Waiting) -> None:
        if self._waiting is waiting:
            self._waiting = None
            self._sim.sender.cancel_wait(waiting.ticket, self._sim.now)
            self._obey()
            waiting.then(TimeoutError())

    def _obey(self) -> None:
        self._sim.obey()

    # --- the judge ------------------------------------------------------------------------------

    def findings(self) -> Iterator[str]:
        """What a reader of committed data sees that it should not, or does not see."""
        of = {f.entry.value: (t, f.entry) for t in self.transactions for f in t.futures}
        seen: Counter[bytes] = Counter()
        for topic, index in self._sim.partitions():
            last = -1
            for record in self._sim.cluster.committed(topic, index):
                where, value = f"{topic}-{index}", record.value or b""
                seen[value] += 1
                if value not in of:
                    yield f"{where}: {value!r} is seen and was in no transaction"
                    continue
                transaction, entry = of[value]
                if transaction.fate == ABORTED:
                    yield f"{where}: {entry} of {transaction} is seen"
                if entry.place < last:
                    yield f"{where}: {entry} of {transaction} is seen behind a later one"
                last = max(last, entry.place)
        for transaction in self.transactions:
            yield from self._whole(transaction, seen)

    def _whole(self, transaction: SimTransaction, seen: Counter[bytes]) -> Iterator[str]:
        taken = [f.entry for f in transaction.futures if f.entry.taken_at is not None]
        missing = [entry for entry in taken if not seen[entry.value]]
        if any(seen[entry.value] > 1 for entry in taken):
            yield f"{transaction}: a record is seen twice"
        if transaction.fate == COMMITTED:
            if missing:
                yield f"{transaction}: {len(missing)} are not seen, such as {missing[0]}"
            if any(entry.outcome != ACKED for entry in taken):
                yield f"{transaction}: not all its records were acknowledged"
        elif transaction.fate == UNKNOWN and 0 < len(missing) < len(taken):
            yield f"{transaction}: a part of it is seen"
