"""The engine's second driver: a virtual clock, a seeded network, a mock cluster, and a ledger.

Theory. The engine decides, the driver obeys; here the driver owns time as well. `Simulation` keeps
what is due next (a parcel of the network, a clock of the cluster, the engine's own deadline, a
step of the story) and jumps there at once, so a run of minutes takes milliseconds and the same
seed gives the same run, to the last bit, on any machine.

Rules:
* One random source per concern, each seeded by the run's seed and its name. A change in how one
  concern draws leaves the others as they were.
* One input at a time: after each the engine's commands are obeyed before anything else happens.
* Nothing iterates over a set or depends on a hash.
* An engine that wants to be woken at the present moment for ever is an error, told at once.

A story is written as one would tell it:

    sim = Simulation(7, topics={"t": 3})
    sim.send_every(0, interval_s=0.01, count=200)
    sim.at(0.5, lambda: sim.move_leader(0))
    sim.run_until(sim.all_settled)
    assert len(sim.gaps(0)) == 1
    sim.check()
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from outlast import config
from outlast.engine.batch import Batch
from outlast.engine.messages import (
    Compress,
    Connect,
    Connection,
    Disconnect,
    Fact,
    Gap,
    Granted,
    Inspect,
    Send,
    Settled,
)
from outlast.engine.sender import Sender
from outlast.engine.settings import Settings
from outlast.testing.application import Application
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.ledger import Ledger, Verdict
from outlast.testing.network import Connected, Lost, NetworkSettings, Responded, SimNetwork
from outlast.testing.story import Story
from outlast.testing.wire import ExpectedGap, attempts, expected_gaps

UNIX_OFFSET_S = 1_700_000_000.0  # the virtual clock's zero, as a date
SPIN_LIMIT = 1000  # inputs at one instant
OUT_OF_ORDER = 45
LATE_S = 12.0  # requests left in closed connections are taken within ten seconds


class SimulationError(AssertionError):
    """The run cannot go on or did not reach what it was to reach; the text tells how to see it."""


class Simulation(Story):
    """One producer and one cluster in one virtual world. All times are virtual seconds from 0.

    Args:
        seed: decides everything that is random.
        topics: name → number of partitions.
        assignment: topic → the replicas of each of its partitions, leader first (by default three
            each, round and round).
        nodes: brokers, with ids from 1.
        cluster, network: their settings.
        settings: the engine's settings, whole; or else
        keywords: as users write them, on top of the defaults (`linger_ms=5`).
        max_block_s: how long a blocked send waits before it is refused.
        compress_s: how long compressing a batch takes.
        trace: keep every line of what happened in `trace`; the digest needs it.
    """

    def __init__(
        self,
        seed: int,
        *,
        topics: Mapping[str, int] | None = None,
        min_isr: int = 1,
        assignment: Mapping[str, Sequence[Sequence[int]]] | None = None,
        nodes: int = 3,
        cluster: ClusterSettings | None = None,
        network: NetworkSettings | None = None,
        settings: Settings | None = None,
        max_block_s: float = 60.0,
        compress_s: tuple[float, float] = (0.0, 0.0),
        trace: bool = False,
        **keywords: Any,
    ) -> None:
        self.seed = seed
        self.now = 0.0
        self.rng = self.stream("story")  # for the story's own choices
        self.topics = dict({"t": 1} if topics is None else topics)
        self.deleted: dict[str, None] = {}  # topics that were deleted, also those made anew
        self.cluster = MockCluster(
            nodes, settings=cluster or ClusterSettings(), rng=self.stream("cluster")
        )
        self.min_isr = min_isr
        for name, partitions in self.topics.items():
            self.cluster.create_topic(
                name, partitions, assignment=(assignment or {}).get(name), min_isr=min_isr
            )
        if settings is None:
            servers = [f"{host}:{port}" for host, port in self.cluster.addresses.values()]
            settings = config.settings(bootstrap_servers=servers, **keywords)
        self.settings = settings
        self.compress_s = compress_s
        self._compress_rng = self.stream("compress")
        self.network = SimNetwork(
            self.cluster,
            network or NetworkSettings(),
            self.stream("network"),
            setup_timeout_s=settings.connection_setup_timeout_s,
            client_id=settings.client_id,
        )
        self.sender = Sender(settings, self.stream("engine"), 0.0, UNIX_OFFSET_S)
        self.ledger = Ledger(f"Replay: outlast simulate --seed {seed} --trace")
        self.application = Application(
            self.sender,
            self.ledger,
            unix_offset_s=UNIX_OFFSET_S,
            max_block_s=max_block_s,
            at=lambda at_s, step: self._schedule(at_s, lambda: step(self.now)),
            obey=self._obey_and_wake,
        )
        self.facts: list[Fact] = []
        self.trace: list[str] | None = [] if trace else None
        self._digest = hashlib.blake2b(digest_size=16)
        self._actions: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0
        self._plans = 0  # steps of the story that are still to come
        self._tick_at: float | None = 0.0
        self._away = False  # the driver does not run: nothing is told to the engine
        self._spins = 0
        self._seen_at = -1.0
        self._obey()

    def __repr__(self) -> str:
        open_ = len(self.ledger.unsettled())
        return f"<Simulation seed={self.seed} now={self.now:.6f} open={open_}>"

    def stream(self, concern: str) -> Random:
        """The random source of one concern of this run."""
        return Random(f"{self.seed}/{concern}")

    # --- the application ------------------------------------------------------------------------

    def flush(self) -> list[Batch]:
        """Lingering is over for all that was sent; returns what is not settled."""
        batches = self.sender.flush(self.now)
        self._obey_and_wake()
        return batches

    def close(self, *, fail_rest: bool) -> None:
        """Close the producer; `fail_rest` fails what is not settled, at once and for good."""
        if fail_rest:
            self.application.shut(self.now)
        self.sender.close(self.now, fail_rest=fail_rest)
        self._obey_and_wake()

    # --- the story ------------------------------------------------------------------------------

    def at(self, at_s: float, action: Callable[[], object]) -> None:
        """Do something at this time (now, if that has passed)."""
        self._plans += 1
        self._schedule(at_s, lambda: self._carry_out(action))

    def _carry_out(self, action: Callable[[], object]) -> None:
        self._plans -= 1
        action()

    def _schedule(self, at_s: float, step: Callable[[], object]) -> None:
        self._order += 1
        heappush(self._actions, (max(at_s, self.now), self._order, step))

    # --- time -----------------------------------------------------------------------------------

    def run_for(self, seconds: float) -> None:
        """Let this much virtual time pass."""
        end_s = self.now + seconds
        while self._step(end_s):
            pass
        self.now = end_s

    def run_until(self, predicate: Callable[[], bool], timeout_s: float = 300.0) -> None:
        """Run until it holds.

        Raises:
            SimulationError: it did not hold within `timeout_s`.
        """
        end_s = self.now + timeout_s
        while not predicate():
            if not self._step(end_s):
                name = getattr(predicate, "__name__", repr(predicate))
                raise SimulationError(
                    f"seed {self.seed}: {name} did not come true within {timeout_s:g} s "
                    f"({self!r}, {self.sender!r}, {self.network!r}). {self.ledger.replay}"
                )

    def all_settled(self) -> bool:
        """The story has nothing more to do, and nothing that was sent is open."""
        return not self._plans and not self.application.open_sends

    def _step(self, end_s: float) -> bool:
        """Jump to what is due next and do it. False: nothing is due until `end_s`."""
        action_at = self._actions[0][0] if self._actions else inf
        network_at = self.network.next_deadline(self.now)
        if network_at is None:
            network_at = inf
        tick_at = inf if self._tick_at is None or self._away else self._tick_at
        at = min(action_at, network_at, tick_at)
        if at > end_s or at == inf:
            return False
        if at > self.now:
            self.now = at
        if at == action_at:
            heappop(self._actions)[2]()
            return True
        self._watch_spinning()
        if at == network_at:
            self.network.step(self.now)
            if self._away or not self.network.events:
                return True
            while self.network.events:
                self._deliver()
        else:
            self.sender.tick(self.now)
            self._obey()
        self._sleep()
        return True

    def pause_driver(self, duration_s: float) -> None:
        """This process stands still for so long (a slow callback, a busy machine): brokers and
        network go on, and then everything that has come is read before the engine is told more.
        """
        if not self._away:
            self.say("STORY the driver stands still for", duration_s)
            self._away = True
            self._schedule(self.now + duration_s, self._return)

    def _return(self) -> None:
        self._away = False
        while self.network.events:
            self._deliver()
        self.sender.tick(self.now)
        self._obey()
        self._sleep()

    def _sleep(self) -> None:
        """The engine's loop has nothing to do until its next deadline, or until it is woken."""
        self._tick_at = self.sender.next_deadline(self.now)
        if self._tick_at is not None and self._tick_at <= self.now:
            raise SimulationError(
                f"seed {self.seed}: the engine wants to be woken at {self._tick_at!r}, and it is "
                f"{self.now!r}: its loop would spin. {self.ledger.replay}"
            )

    def _watch_spinning(self) -> None:
        if self.now - self._seen_at > 1e-6:
            self._seen_at, self._spins = self.now, 0
        self._spins += 1
        if self._spins > SPIN_LIMIT:
            raise SimulationError(
                f"seed {self.seed}: {self._spins} steps at {self.now!r} s, time stands still "
                f"({self.sender!r}, {self.network!r}). {self.ledger.replay}"
            )

    # --- the driver -----------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Tell the engine what the network saw."""
        event = self.network.events.popleft()
        match event:
            case Connected(connection, api_versions, features):
                self.say("connected", connection)
                self.sender.connected(connection, api_versions, self.now, features)
            case Lost(connection, loss, detail, unsent):
                self.say("lost", connection, loss.value, detail, unsent)
                self.sender.disconnected(connection, loss, detail, self.now, unsent)
            case Responded(connection, token, response):
                self.say("answer", connection, token, response)
                self.sender.responded(connection, token, response, self.now)
        self._obey()

    def soon(self, step: Callable[[], object]) -> None:
        """Do something at this very moment, after what is being done; no step of the story."""
        self._schedule(self.now, step)

    def obey(self) -> None:
        """After a call that wakes the I/O thread in any case."""
        self._obey()
        self._tick_at = self.now

    def _obey_and_wake(self) -> None:
        """After an input of the application: the I/O thread is woken if the engine asks for it."""
        self._obey()
        if self.sender.attention:
            self._tick_at = self.now

    def _obey(self) -> None:
        """Take what the last input gave: commands, then completions, then facts."""
        out = self.sender.take()
        for command in out.commands:
            match command:
                case Connect(connection, host, port):
                    self.say("connect", connection, host, port)
                    self.network.connect(connection, host, port, self.now)
                case Send(connection, token, request, expects_answer):
                    self.say("send", connection, token, request)
                    self.network.send(connection, token, request, expects_answer, self.now)
                case Disconnect(connection, abort):
                    self.say("abort" if abort else "close", connection)
                    self.network.disconnect(connection, abort, self.now)
                case Inspect(connection):
                    self._schedule(self.now, partial(self._inspect, connection))
        for completion in out.completions:
            match completion:
                case Settled(batch):
                    for future in self.application.settled(batch, self.now):
                        self.say("settled", future, future.entry.offset)
                case Compress(batch):  # takes its time, as with the lock released
                    at_s = self.now + self._compress_rng.uniform(*self.compress_s)
                    self._schedule(at_s, partial(self._compress, batch))
                case Granted(ticket):
                    self.say("granted", ticket)
                    self.application.granted(ticket, self.now)
        for fact in out.facts:
            self.say("fact", fact)
            self.facts.append(fact)

    def _inspect(self, connection: Connection) -> None:
        retransmits = self.network.retransmits(connection, self.now)
        if retransmits is not None:
            self.say("retransmits", connection, retransmits)
            self.sender.inspected(connection, retransmits, self.now)
            self._obey()
            self._sleep()

    def _compress(self, batch: Batch) -> None:
        self.sender.compressed(batch, batch.compressed(self.settings.compression), self.now)
        self._obey()
        self._sleep()

    def say(self, *words: object) -> None:
        """A line for the trace."""
        if self.trace is not None:
            line = f"{self.now:12.6f} " + " ".join(map(str, words))
            self.trace.append(line)
            self._digest.update(line.encode())

    # --- the end --------------------------------------------------------------------------------

    def digest(self) -> str:
        """A fingerprint of all that happened; needs `trace=True`."""
        assert self.trace is not None, "the digest is of the trace"
        return self._digest.hexdigest()

    def gaps(self, partition: int | None = None, topic: str = "t") -> list[Gap]:
        """The engine's gap records: all, or one partition's."""
        gaps = self.sender.gaps(self.now)
        if partition is None:
            return list(gaps)
        return [gap for gap in gaps if (gap.topic, gap.partition) == (topic, partition)]

    def true_gaps(self) -> dict[tuple[str, int], list[ExpectedGap]]:
        """The gaps as the wire tells them (see `wire`)."""
        ready_s: dict[tuple[str, int], list[float]] = {tp: [] for tp in self.partitions()}
        for entry in self.ledger.entries:
            if entry.taken_at is not None:
                times = ready_s[entry.topic, entry.partition]
                times.append(entry.taken_at + self.settings.linger_s)
        return expected_gaps(self.network.requests, self.network.connects, ready_s)

    def partitions(self) -> list[tuple[str, int]]:
        """All partitions of this world."""
        return [(name, index) for name, count in self.topics.items() for index in range(count)]

    def judge(self) -> Verdict:
        """Let what is left under way arrive, then compare the ledger with the logs."""
        self.run_for(LATE_S)
        idempotent, acks = self.settings.idempotent, self.settings.acks
        return self.ledger.judge(
            self.cluster.records,
            self.partitions(),
            exactly_once=idempotent,
            in_order=idempotent or (acks == -1 and self.settings.max_in_flight == 1),
            acks_survive=acks == -1 and not self.cluster.settings.unclean_election,
            offsets_told=acks != 0 and not self._broker_forgot(),
            mortal=self.deleted,
        )

    def _broker_forgot(self) -> bool:
        """Whether a broker said 45: what is proved written after that has no offset (S1)."""
        if all(e.offset != -1 for e in self.ledger.entries):
            return False
        return any(a.code == OUT_OF_ORDER for a in attempts(self.network.requests))

    def check(self) -> Verdict:
        """Judge, and raise with every finding.

        Raises:
            SimulationError: the logs do not bear out what was told.
        """
        verdict = self.judge()
        if verdict.findings:
            raise SimulationError(f"seed {self.seed}:\n" + "\n".join(verdict.findings[:20]))
        return verdict


if __name__ == "__main__":
    from outlast.testing.swarm import main  # it is built upon this file

    raise SystemExit(main())
