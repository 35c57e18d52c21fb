"""A small model of a broker, and every way in which a partition and it can go on from a start.

The client is the real `Partition`, the broker is `model_broker`. Connections that ended with
requests unread are taken late, in order, at any later moment (B16). A leader that moves between two
nodes takes along what was acknowledged, and any part of the rest (S2); what is unread on the node
that does not lead is refused when it is read.

`explore` visits each reachable state once. A state is the partition, the broker, the connection
and the closed connections; the steps from it are all that can happen next. Nothing here draws
lots: what it does not find does not exist, within the bounds of the start.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from outlast.engine.batch import Attempt, Batch
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.messages import Connection, Outcome, Role
from outlast.engine.partition import Partition
from outlast.engine.queue import Limits
from outlast.engine.verdict import Verdict, judge
from tests.engine.model_broker import Broker, Copy

LIMITS = Limits(
    idempotent=True,
    window_batches=5,
    batch_bytes=200,
    compression=0,
    linger_s=0.0,
    batch_age_s=1e9,
    delivery_timeout_s=1000.0,
    unix_offset_s=0.0,
)
DAY_S = 86_400.0
FIRST_ID = 7000


@dataclass
class Allowed:
    """How often each accident may still happen."""

    losses: int = 0
    restarts: int = 0  # only the cache shrinks: harsher than a broker, so once at most
    crashes: int = 0  # the connection ends and what nobody read is gone; leads again afterwards
    refusals: int = 0  # 6 without an offset
    moments: int = 0  # 19: says nothing about the batch
    stalls: int = 0  # 7 with an offset: in the log, not safe
    finals: int = 0  # 87: never
    expiries: int = 0
    moves: int = 0  # the leader, with a part of what is not acknowledged
    fences: int = 0  # 59: the broker knows no such producer
    days: int = 0  # nothing was under way, and the broker has forgotten us
    recreations: int = 0  # another topic of the name, same leader and epoch, no word about it
    forgets: int = 0  # the broker forgets us at once, and takes no first sequence but 0

    @property
    def failures(self) -> bool:
        """Whether a batch may fail for good."""
        return bool(self.finals or self.expiries or self.fences or self.recreations)

    def __repr__(self) -> str:
        return " ".join(f"{name}={n}" for name, n in vars(self).items() if n) or "nothing"


@dataclass
class World:
    """A state. `told` holds what the application was told, by batch number."""

    partition: Partition
    batches: list[Batch]
    broker: Broker
    allowed: Allowed
    line: int = 1
    node: int = 1
    epoch: int = 0  # of the leader
    now: float = 100.0
    forgot: bool = False  # the broker: so an offset may be unknown
    pipe: list[Copy] = field(default_factory=list)
    closed: list[tuple[int, list[Copy]]] = field(default_factory=list)  # on which node
    next_producer_id: int = FIRST_ID + 1000
    gone: list[int] = field(default_factory=list)  # batches that lay in the topic that was deleted

    # --- what can happen ---

    def steps(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        """All that can happen next, with a word for the story."""
        may = self.allowed
        if self._next() is not None:
            yield "send", World.send
        if self.pipe:
            yield "serve", World.serve
            if may.refusals:
                yield "refuse", lambda w: w.refused("refusals", 6)
            if may.moments:
                yield "19", lambda w: w.refused("moments", 19)
            if may.stalls:
                yield "stall", World.stall
            if may.finals:
                yield "87", lambda w: w.refused("finals", 87)
            if may.fences:
                yield "59", lambda w: w.refused("fences", 59)
        if may.losses:
            for served in range(len(self.pipe) + 1):
                yield f"lose after {served}", lambda w, n=served: w.lose(n)
        for index in range(len(self.closed)):
            yield f"late {index}", lambda w, n=index: w.take_late(n)
        if may.crashes:
            for served in range(len(self.pipe) + 1):
                yield f"crash after {served}", lambda w, n=served: w.crash(n)
        if may.moves:
            for served in range(len(self.pipe) + 1):
                for kept in range(len(self.broker.log) - self.broker.committed + served + 1):
                    words = f"move after {served}, {kept} kept"
                    yield words, lambda w, n=served, k=kept: w.move(n, k)
        if may.days and not self.pipe and not self.closed and not self._unsure():
            yield "a day", World.day
        if may.forgets and not self.broker.first_any and not self.closed and not self._unsure():
            yield "forget", World.forget
        if may.restarts:
            yield "restart", World.restart
        if may.recreations:
            yield "recreate", World.recreate
        if may.expiries and any(b.result is None for b in self.batches):
            yield "expire", World.expire

    def _connection(self) -> Connection:
        return Connection(self.node, Role.OPEN, self.line)

    def _unsure(self) -> bool:
        return any(b.unsure for b in self.batches if b.result is None)

    def _next(self) -> Batch | None:
        if self.partition.needs_producer_id():
            self.partition.use_producer_id(self.next_producer_id, 0)
            self.next_producer_id += 1000
        return self.partition.next_batch(self._connection(), self.epoch, self.now)

    def send(self) -> None:
        batch = self._next()
        assert batch is not None
        if batch.data is None:
            batch.closed = True
            batch.seal(batch.compressed(0))
        self.partition.send(batch, Attempt(self._connection(), self.epoch, None, 0.0))
        window = self.partition.window
        copy = Copy(
            self.batches.index(batch),
            window.producer_id,
            window.producer_epoch,
            batch.base_sequence,
            batch.count,
        )
        self.pipe.append(copy)

    def serve(self) -> None:
        copy = self.pipe.pop(0)
        self._answer(copy, *self.broker.take(copy))

    def stall(self) -> None:
        """Taken, or known; answered 7. Where it is neither, the answer is what it is."""
        self.allowed.stalls -= 1
        copy = self.pipe.pop(0)
        code, offset = self.broker.take(copy)
        self._answer(copy, 7 if code == 0 else code, offset)

    def refused(self, kind: str, code: int) -> None:
        setattr(self.allowed, kind, getattr(self.allowed, kind) - 1)
        self._answer(self.pipe.pop(0), code, -1)

    def lose(self, served: int) -> None:
        """The connection ends; so many requests were served, the others wait to be read."""
        self.allowed.losses -= 1
        for copy in self.pipe[:served]:
            self.broker.take(copy)
        if self.pipe[served:]:
            self.closed.append((self.node, self.pipe[served:]))
        self.pipe = []
        self.partition.lose_connection(self._connection(), "CONNECTION_CLOSED")
        self.line += 1

    def take_late(self, index: int) -> None:
        node, copies = self.closed[index]
        copy = copies.pop(0)
        if node == self.node:
            self.broker.take(copy)
        if not copies:
            del self.closed[index]

    def crash(self, served: int) -> None:
        """The node comes back with a cache of one, and leads at another epoch."""
        self.allowed.crashes -= 1
        self.allowed.losses += 1
        self.lose(served)
        self.closed = [(node, copies) for node, copies in self.closed if node != self.node]
        self.forgot = True
        self.broker.restart()
        self.epoch += 1

    def restart(self) -> None:
        self.allowed.restarts -= 1
        self.forgot = True
        self.broker.restart()

    def day(self) -> None:
        """So long without a batch that the broker has dropped its state (S12)."""
        self.allowed.days -= 1
        self.forgot = True
        self.broker.producers.clear()
        self.now += DAY_S

    def forget(self) -> None:
        """Deleted records take a producer's state with them."""
        self.allowed.forgets -= 1
        self.forgot = True
        self.broker.producers.clear()

    def recreate(self) -> None:
        """The log is gone with all that it held, and so is what the broker knew of producers."""
        self.allowed.recreations -= 1
        self.forgot = True
        self.gone += self.broker.batches()
        self.broker.truncate(0)
        self.broker.committed = 0

    def move(self, served: int, kept: int) -> None:
        """The other node leads. What the old leader had appended by then is told with its offset
        (S2), what it had not is refused; so much of what nobody acknowledged is kept.
        """
        self.allowed.moves -= 1
        pipe, self.pipe = self.pipe, []
        answers = []
        for copy in pipe[:served]:
            code, offset = self.broker.take(copy)
            answers.append((copy, 6 if code == 0 else code, offset))
        answers += [(copy, 6, -1) for copy in pipe[served:]]
        self.broker.truncate(min(self.broker.committed + kept, len(self.broker.log)))
        for copy, code, offset in answers:
            self._answer(copy, code, offset)
        self.node = 3 - self.node
        self.epoch += 1
        self.line += 1

    def expire(self) -> None:
        """The oldest batch without outcome has waited too long."""
        self.allowed.expiries -= 1
        oldest = next(b for b in self.batches if b.result is None)
        self.partition.expire(oldest.created_s + LIMITS.delivery_timeout_s)

    def _answer(self, copy: Copy, code: int, offset: int) -> None:
        """As `answers.py` has it."""
        partition, batch = self.partition, self.batches[copy.batch]
        told = judge(code, offset, records=copy.count)
        asked = partition.is_asked(batch)
        if told.verdict is Verdict.DELIVERED:
            self.broker.committed = max(self.broker.committed, offset + 1)
            partition.accept(batch, offset, -1, self.now)
            return
        numbers = told.verdict is Verdict.RESEQUENCE and not told.fresh_producer_id
        own = (Verdict.RETRY, Verdict.FAIL_BATCH)
        if asked and not (numbers or told.stall or told.verdict in own):
            partition.void()
        if not asked and not partition.is_head(batch):
            partition.refuse(batch, told.state, told.name, offset)
            return
        match told.verdict:
            case Verdict.REFRESH | Verdict.RETRY | Verdict.UNSURE:
                partition.refuse(batch, told.state, told.name, offset)
            case Verdict.RESEQUENCE if numbers:
                partition.deny(batch, told.name)
            case Verdict.FAIL_BATCH if asked:
                partition.decline(batch, told.state, told.name, FailureReason("broker", code, "no"))
            case _ if asked:
                partition.refuse(batch, told.state, told.name, offset)
            case Verdict.RESEQUENCE:
                partition.lose_producer(batch, told.name)
            case _:
                partition.fail(batch, told.state, told.name, FailureReason("broker", code, "no"))

    # --- what must hold ---

    def lies(self) -> Iterator[str]:
        """What is wrong already, whatever comes."""
        log = self.broker.batches()
        if len(set(log)) != len(log):
            yield f"doubled: {log}"
        # another producer id does not fence what was left under the one before
        fenced = self.partition.window.producer_id in (-1, FIRST_ID)
        order = [n for n in log if fenced or not self._told_unknown(n)]
        if sorted(order) != order and len(set(log)) == len(log):
            yield f"out of order: {log}"
        for number, batch in enumerate(self.batches):
            result = batch.result
            if result is None:
                continue
            if result.failure is None:
                if number in self.gone:
                    pass  # its offset there was told
                elif number not in log:
                    yield f"acknowledged and lost: {number} of {log}"
                elif result.base_offset >= 0 and log[
                    result.base_offset : result.base_offset + 1
                ] != [number]:
                    yield f"{number} is not at {result.base_offset} of {log}"
                elif result.base_offset < 0 and not self.forgot:
                    yield f"{number} is told without its offset, which the broker knows"
            elif result.failure.outcome is not Outcome.UNKNOWN and number in log:
                yield f"told {result.failure.outcome.value}, yet in the log: {number}"

    def unknown(self) -> bool:
        """Whether a batch was told *unknown*."""
        return any(self._told_unknown(number) for number in range(len(self.batches)))

    def _told_unknown(self, number: int) -> bool:
        result = self.batches[number].result
        failure = None if result is None else result.failure
        return failure is not None and failure.outcome is Outcome.UNKNOWN

    def settled(self) -> bool:
        return all(b.result is not None for b in self.batches)

    def key(self) -> tuple[Any, ...]:
        """What tells this state from others."""
        p = self.partition
        numbers = {id(b): n for n, b in enumerate(self.batches)}
        return (
            (tuple(self.broker.log), tuple(self.gone)),
            tuple(
                (pid, s.epoch, s.next_sequence, tuple(s.cache))
                for pid, s in self.broker.producers.items()
            ),
            tuple(self.pipe),
            tuple((node, tuple(copies)) for node, copies in self.closed),
            (self.line, self.node, self.epoch, self.now, self.forgot, self.broker.committed),
            tuple(vars(self.allowed).values()),
            tuple(
                (
                    b.base_sequence,
                    b.doubt,
                    b.proved,
                    b.open_attempt is not None,
                    b.sent,
                    None if b.result is None else (b.result.base_offset, b.result.failure is None),
                    b.attempts[-1].state if b.attempts else None,
                    b.attempts[-1].connection if b.attempts else None,
                )
                for b in self.batches
            ),
            tuple(numbers[id(b)] for b in p.window),
            tuple(numbers[id(b)] for b in p.queue.batches),
            (p.window.producer_id, p.window.producer_epoch, p.window.next_sequence),
            p.window.last_offset,
            (p.in_flight, p.draining, p.proven, p.restart_reason, p.fresh_producer_id),
            repr(p.inquest),
        )


def start(
    batches: int,
    allowed: Allowed,
    *,
    acknowledged: bool = True,
    first_any: bool = True,
    sequence: int = 0,
    producer_epoch: int = 0,
) -> World:
    """A partition with so many batches to send, after one that was acknowledged, or none.

    `sequence` and `producer_epoch` are those of its first batch.
    """
    partition = Partition("t", 0, LIMITS)
    partition.use_producer_id(FIRST_ID, producer_epoch)
    partition.window.next_sequence = sequence
    world = World(partition, [], Broker(first_any), allowed)
    for number in range(batches + acknowledged):
        batch = partition.queue.begin(float(number))
        batch.append(0, None, b"v", ())
        partition.queue.end_linger()
        world.batches.append(batch)
        if number == 0 and acknowledged:
            world.send()
            world.serve()
    return world


@dataclass
class Found:
    """What an exploration came to."""

    states: int = 0
    lies: list[str] = field(default_factory=list)  # each with its story
    unknown: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)


def explore(world: World, *, states_max: int = 10**6, first: bool = False) -> Found:
    """Every state that can be reached, depth first; with `first`, until something is found."""
    found = Found()
    seen: set[int] = {hash(world.key())}
    stack: list[tuple[bytes, tuple[str, ...]]] = [(pickle.dumps(world, -1), ())]
    while stack:
        frozen, story = stack.pop()
        state: World = pickle.loads(frozen)
        found.states += 1
        assert found.states <= states_max, "more states than allowed"
        went_on = False
        for word, step in state.steps():
            went_on = went_on or word in ("send", "serve")
            then: World = pickle.loads(frozen)
            step(then)
            key = hash(then.key())
            if key in seen:
                continue
            seen.add(key)
            told = (*story, word)
            wrong = list(then.lies())
            if wrong:
                found.lies += [f"{lie}: {', '.join(told)}" for lie in wrong]
                if first:
                    return found
                continue
            if then.unknown() and not state.unknown():
                found.unknown.append(", ".join(told))
                if first and not world.allowed.failures:
                    return found
            stack.append((pickle.dumps(then, -1), told))
        if not went_on and not state.settled():
            found.stuck.append(", ".join(story))
            if first:
                return found
    return found
