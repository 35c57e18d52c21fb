"""A small model of a broker, and every way in which a partition and it can go on from a start.

The client is the real `Partition`. The broker is one log with producer state as Kafka keeps it: per
producer id the epoch, the next sequence and the last five batches, or one after a restart (S1).
Connections that ended with requests unread are taken late, in order, at any later moment (B16).

`explore` visits each reachable state once. A state is the partition, the broker, the connection
and the closed connections; the steps from it are all that can happen next. Nothing here draws
lots: what it does not find does not exist, within the bounds of the start.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from outlast.engine.batch import Attempt, Batch
from outlast.engine.messages import AttemptState, Connection, Outcome, Role
from outlast.engine.partition import Partition
from outlast.engine.queue import FailureReason, Limits
from outlast.engine.window import sequence_after

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
CACHE = 5
NOW = 100.0


@dataclass(frozen=True)
class Copy:
    """A batch on its way: what the broker reads."""

    batch: int
    producer_id: int
    epoch: int
    sequence: int
    count: int


@dataclass
class Producer:
    """What the broker keeps of one producer id."""

    epoch: int
    next_sequence: int
    cache: list[tuple[int, int]] = field(default_factory=list)  # sequence, offset


@dataclass
class Broker:
    """One partition's log."""

    log: list[int] = field(default_factory=list)  # batches, by number
    producers: dict[int, Producer] = field(default_factory=dict)

    def take(self, copy: Copy) -> tuple[int, int]:
        """Error code and offset."""
        known = self.producers.get(copy.producer_id)
        if known is None:
            known = self.producers[copy.producer_id] = Producer(copy.epoch, copy.sequence)
        if copy.epoch < known.epoch:
            return 47, -1
        if copy.epoch > known.epoch:
            if copy.sequence != 0:
                return 45, -1
            known.epoch, known.next_sequence, known.cache = copy.epoch, 0, []
        for sequence, offset in known.cache:
            if sequence == copy.sequence:
                return 0, offset
        if copy.sequence != known.next_sequence:
            return 45, -1
        self.log.append(copy.batch)
        known.next_sequence = sequence_after(copy.sequence, copy.count)
        known.cache = [*known.cache, (copy.sequence, len(self.log) - 1)][-CACHE:]
        return 0, len(self.log) - 1

    def restart(self) -> None:
        """Only the last batch of each producer is remembered (S1)."""
        for known in self.producers.values():
            known.cache = known.cache[-1:]


@dataclass
class Allowed:
    """How often each accident may still happen."""

    losses: int = 0
    restarts: int = 0
    refusals: int = 0  # 6 without an offset
    moments: int = 0  # 19: says nothing about the batch
    stalls: int = 0  # 7 with an offset: in the log, not safe
    finals: int = 0  # 87: never
    expiries: int = 0


@dataclass
class World:
    """A state. `told` holds what the application was told, by batch number."""

    partition: Partition
    batches: list[Batch]
    broker: Broker
    allowed: Allowed
    line: int = 1
    pipe: list[Copy] = field(default_factory=list)
    closed: list[list[Copy]] = field(default_factory=list)
    next_producer_id: int = 8000

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
        if may.losses:
            for served in range(len(self.pipe) + 1):
                yield f"lose after {served}", lambda w, n=served: w.lose(n)
        for index in range(len(self.closed)):
            yield f"late {index}", lambda w, n=index: w.take_late(n)
        if may.restarts:
            yield "restart", World.restart
        if may.expiries and any(b.result is None for b in self.batches):
            yield "expire", World.expire

    def _connection(self) -> Connection:
        return Connection(1, Role.OPEN, self.line)

    def _next(self) -> Batch | None:
        if self.partition.needs_producer_id():
            self.partition.use_producer_id(self.next_producer_id, 0)
            self.next_producer_id += 1000
        return self.partition.next_batch(self._connection(), self.line, NOW)

    def send(self) -> None:
        batch = self._next()
        assert batch is not None
        if batch.data is None:
            batch.closed = True
            batch.seal(batch.compressed(0))
        self.partition.send(batch, Attempt(self._connection(), self.line, None, 0.0))
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
            self.closed.append(self.pipe[served:])
        self.pipe = []
        self.partition.lose_connection(self._connection(), "CONNECTION_CLOSED")
        self.line += 1

    def take_late(self, index: int) -> None:
        self.broker.take(self.closed[index].pop(0))
        if not self.closed[index]:
            del self.closed[index]

    def restart(self) -> None:
        self.allowed.restarts -= 1
        self.broker.restart()

    def expire(self) -> None:
        """The oldest batch without outcome has waited too long."""
        self.allowed.expiries -= 1
        oldest = next(b for b in self.batches if b.result is None)
        self.partition.expire(oldest.created_s + LIMITS.delivery_timeout_s)

    def _answer(self, copy: Copy, code: int, offset: int) -> None:
        """As `answers.py` has it."""
        partition, batch = self.partition, self.batches[copy.batch]
        asked = partition.is_asked(batch)
        if code == 0:
            partition.accept(batch, offset, -1, NOW)
        elif code == 7:
            partition.refuse(batch, AttemptState.DOUBTFUL, "7", offset)
        elif not asked and not partition.is_head(batch):
            partition.refuse(batch, AttemptState.REFUSED, str(code), -1)
        elif code == 45:
            partition.deny(batch, "45")
        elif code == 19:
            partition.refuse(batch, AttemptState.REFUSED, "19", -1)
        elif asked or code == 6:
            partition.void()
            partition.refuse(batch, AttemptState.REFUSED, str(code), -1)
        elif code == 47:
            partition.lose_producer(batch, "47")
        else:
            no = FailureReason("broker", code, "no")
            partition.fail(batch, AttemptState.REFUSED, str(code), no)

    # --- what must hold ---

    def lies(self) -> Iterator[str]:
        """What is wrong already, whatever comes."""
        log = self.broker.log
        if len(set(log)) != len(log):
            yield f"doubled: {log}"
        if sorted(log) != log and len(set(log)) == len(log):
            yield f"out of order: {log}"
        for number, batch in enumerate(self.batches):
            result = batch.result
            if result is None:
                continue
            if result.failure is None:
                if number not in log:
                    yield f"acknowledged and lost: {number} of {log}"
                elif result.base_offset >= 0 and log[
                    result.base_offset : result.base_offset + 1
                ] != [number]:
                    yield f"{number} is not at {result.base_offset} of {log}"
            elif result.failure.outcome is not Outcome.UNKNOWN and number in log:
                yield f"told {result.failure.outcome.value}, yet in the log: {number}"

    def unknown(self) -> bool:
        """Whether a batch was told *unknown*."""
        failures = [b.result.failure for b in self.batches if b.result is not None]
        return any(f is not None and f.outcome is Outcome.UNKNOWN for f in failures)

    def settled(self) -> bool:
        return all(b.result is not None for b in self.batches)

    def key(self) -> tuple:
        """What tells this state from others."""
        p = self.partition
        numbers = {id(b): n for n, b in enumerate(self.batches)}
        return (
            tuple(self.broker.log),
            tuple(
                (pid, s.epoch, s.next_sequence, tuple(s.cache))
                for pid, s in self.broker.producers.items()
            ),
            tuple(self.pipe),
            tuple(map(tuple, self.closed)),
            self.line,
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
            (p.in_flight, p.draining, p.proven, p.restart_reason, p.fresh_producer_id),
            repr(p.inquest),
        )


def start(batches: int, allowed: Allowed) -> World:
    """A partition whose first batch was acknowledged, with more to send."""
    partition = Partition("t", 0, LIMITS)
    partition.use_producer_id(7000, 0)
    world = World(partition, [], Broker(), allowed)
    for number in range(batches + 1):
        batch = partition.queue.append(0, None, b"v", (), joins=False, now=float(number))
        partition.queue.end_linger()
        world.batches.append(batch)
        if number == 0:
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


def explore(world: World, *, states_max: int = 10**6, first_lie: bool = False) -> Found:
    """Every state that can be reached, depth first."""
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
                if first_lie:
                    return found
                continue
            if then.unknown() and not state.unknown():
                found.unknown.append(", ".join(told))
            stack.append((pickle.dumps(then, -1), told))
        if not went_on and not state.settled():
            found.stuck.append(", ".join(story))
    return found
