"""Random runs: the seed picks the world, the load and the accidents; the ledger judges.

A run has two phases, after TigerBeetle's simulator. *Safety*: records are sent while leaders move,
brokers die and connections break; whatever happens, nothing wrong may be told. *Liveness*: all is
healed, and everything that is open must settle within a bound; then one more record for every
partition must be delivered. Settings are drawn too, so that rare mixes occur.

Rule: the whole run follows from its seed. A draw added in the middle changes what every seed means,
so a bug found by a seed is kept as a story in the tests, not as a seed.
"""

from __future__ import annotations

import argparse
import traceback
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from random import Random

from outlast.engine.messages import GapEnd, LeaderChanged
from outlast.testing.accidents import LONGEST_PAUSE_S, SETTLING_S, Accidents
from outlast.testing.application import SimFuture
from outlast.testing.holdups import HoldUp, hold_ups, too_long
from outlast.testing.invariants import violations
from outlast.testing.simulation import Simulation, SimulationError
from outlast.testing.tale import tell
from outlast.testing.world import World, draw_world

# A topic that was made anew may refuse some more: brokers that lag may have talked the producer
# out of the right id, and it takes ten seconds of answers to be convinced again.
IDENTITY_S = 20.0
RARELY = 6  # times as long between two records
RUN_SIZES_BYTES = (0, 30, 30, 30, 90)  # of values in one `send_many`


@dataclass(slots=True)
class Report:
    """What one seed gave. It is good if `findings` is empty."""

    seed: int
    world: str = ""
    findings: list[str] = field(default_factory=list)
    records: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)  # by kind
    elections: int = 0  # partitions' leader changes
    failovers: int = 0  # those of them that a record met
    accidents: Counter[str] = field(default_factory=Counter)  # by kind
    gaps: Counter[str] = field(default_factory=Counter)  # by cause
    stalls: int = 0
    hold_ups: list[HoldUp] = field(default_factory=list)  # of partitions without fault
    client_s: list[float] = field(default_factory=list)  # of gaps over a leader change
    virtual_s: float = 0.0
    digest: str = ""
    trace: list[str] = field(default_factory=list)
    tale: list[str] = field(default_factory=list)  # the same in plain lines; see `tale`

    def __str__(self) -> str:
        told = ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.outcomes.items()))
        gaps = ", ".join(f"{n} {cause}" for cause, n in sorted(self.gaps.items())) or "none"
        lines = [
            f"seed {self.seed}: {self.world}",
            f"  {self.virtual_s:.1f} virtual s, {self.failovers} failovers, "
            f"{self.records} records: {told}; gaps: {gaps}",
        ]
        if self.digest:
            lines.append(f"  digest {self.digest}")
        lines += [f"  FOUND {finding}" for finding in self.findings] or ["  nothing wrong"]
        return "\n".join(lines)


# --- a run --------------------------------------------------------------------------------------


def run_seed(seed: int, *, trace: bool = False) -> Report:
    """One random run. It does not raise for what the engine or cluster did: that is a finding."""
    report = Report(seed)
    world = draw_world(Random(f"{seed}/world"))
    report.world = str(world)
    sim = simulation(seed, world, trace=trace)
    load = _Load(sim, world)
    accidents = Accidents(sim, load.burst, nodes=world.bad_nodes, partitions=world.bad_partitions)
    with as_findings(report.findings, sim):
        _safety(sim, world, load, accidents)
        if world.closed_suddenly:
            _sudden_end(sim)
            accidents.heal_all()
        else:
            _liveness(sim, accidents)
        report.findings += sim.judge().findings
        report.findings += violations(
            sim, late_s=LONGEST_PAUSE_S, settled=not world.closed_suddenly
        )
        report.hold_ups = hold_ups(sim, accidents.troubles) if sim.settings.idempotent else []
        report.findings += too_long(sim, world.network, report.hold_ups)
    fill(report, sim, accidents)
    return report


def simulation(seed: int, world: World, *, trace: bool = False) -> Simulation:
    """That world, with one topic `t` in it."""
    return Simulation(
        seed,
        topics={"t": world.partitions},
        min_isr=world.min_isr,
        assignment={"t": world.assignment},
        nodes=world.nodes,
        cluster=world.cluster,
        network=world.network,
        max_block_s=world.max_block_s,
        compress_s=world.compress_s,
        trace=trace,
        **world.keywords,
    )


@contextmanager
def as_findings(findings: list[str], sim: Simulation) -> Iterator[None]:
    """What the engine or the cluster raises in a run is a finding."""
    try:
        yield
    except SimulationError as error:
        findings.append(str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        findings.append(
            f"{type(error).__name__}: {error} ({where.filename}:{where.lineno} {where.name}) "
            f"at {sim.now:.6f} s. {sim.ledger.replay}"
        )


class _Load:
    """The records of a run."""

    __slots__ = ("_open", "_rng", "_sim", "_world")

    def __init__(self, sim: Simulation, world: World) -> None:
        self._sim = sim
        self._world = world
        self._rng = sim.stream("runs")
        self._open: dict[tuple[str, int | None], deque[SimFuture]] = {}

    def burst(self, partition: int | None, records: int, topic: str = "t") -> None:
        """Some records, unless so many wait already that more of them would prove no more."""
        sim = self._sim
        if self._rng.random() < self._world.in_runs:
            self._run(topic, partition, min(records, self._room(topic, partition)))
        else:
            for _ in range(records):
                if self._room(topic, partition) <= 0:
                    return
                key = b"%d" % sim.rng.randrange(9) if partition is None and records > 1 else None
                self._sent(sim.send(topic, partition, key=key, size_bytes=30), partition)
        if sim.rng.random() < 0.05:
            sim.flush()

    def _run(self, topic: str, partition: int | None, records: int) -> None:
        """The same in one call; some of each kind: with keys, with some, with none."""
        if records <= 0:
            return
        rng, keys = self._rng, None
        if rng.random() < 0.5:
            without = rng.choice([0.0, 0.3])
            drawn = [b"%d" % rng.randrange(9) for _ in range(records)]
            keys = [None if rng.random() < without else key for key in drawn]
        sizes_bytes = [rng.choice(RUN_SIZES_BYTES) for _ in range(records)]
        for future in self._sim.send_many(sizes_bytes, topic, partition, keys=keys):
            self._sent(future, partition)

    def _sent(self, future: SimFuture, partition: int | None) -> None:
        self._open.setdefault((future.entry.topic, partition), deque()).append(future)

    def _room(self, topic: str, partition: int | None) -> int:
        """For how many more. Where some have all the trouble, each partition is for itself: the
        others go on.
        """
        if self._world.bad_nodes is None:
            most = self._world.backlog * self._world.partitions
            return most + 1 - self._sim.application.open_sends
        mine = self._open.setdefault((topic, partition), deque())
        while mine and mine[0].done:
            mine.popleft()
        return self._world.backlog + 1 - len(mine)


def _safety(sim: Simulation, world: World, load: _Load, accidents: Accidents) -> None:
    for partition in range(world.partitions):
        each_s = world.interval_s * world.partitions
        if sim.rng.random() < world.rare:
            each_s *= RARELY
        at_s = sim.rng.uniform(0.0, min(2.0 * each_s, world.load_s))
        while at_s < world.load_s:
            records = sim.rng.choice(world.bursts)
            chosen = None if sim.rng.random() < 0.1 else partition  # None: the engine chooses
            sim.at(at_s, partial(load.burst, chosen, records))
            at_s += each_s * records * sim.rng.uniform(0.0, 2.0)
    accidents.spread(world.accidents, world.load_s)
    sim.run_for(world.load_s)


def _sudden_end(sim: Simulation) -> None:
    """The producer is closed in the middle of it all, and what it says of the rest must be true."""
    sim.close(fail_rest=True)
    if sim.application.open_sends:
        raise SimulationError(f"seed {sim.seed}: records are open after close. {sim.ledger.replay}")


def _liveness(sim: Simulation, accidents: Accidents) -> None:
    """All is healed now. What is open settles, and then every partition takes one more record."""
    accidents.heal_all()
    sim.network.settings = replace(sim.network.settings, spike_probability=0.0)
    settings = sim.settings
    bound_s = 10.0 + 2 * settings.request_timeout_s + 2 * settings.connection_setup_timeout_s
    one_by_one_s = sim.application.open_sends * (4 * sim.network.settings.latency_s[1] + 0.05)
    sim.run_until(sim.all_settled, bound_s + one_by_one_s)
    sim.run_for(SETTLING_S)
    sim.application.max_block_s = bound_s  # room for all these records may have to be waited for
    waiting, give_up_s = sim.partitions(), sim.now + IDENTITY_S
    while waiting:
        last = [sim.send(*tp) for tp in waiting]
        sim.run_until(partial(_all_done, last), bound_s)
        failed = [future for future in last if not future.acked]
        for future in failed:
            if future.entry.topic not in sim.deleted or sim.now > give_up_s:
                raise SimulationError(
                    f"seed {sim.seed}: {future.entry} was sent after all was healed, and failed: "
                    f"{future.failure or future.error}. {sim.ledger.replay}"
                )
        waiting = [tp for tp, future in zip(waiting, last, strict=True) if not future.acked]


def _all_done(futures: list[SimFuture]) -> bool:
    return all(future.done for future in futures)


def fill(report: Report, sim: Simulation, accidents: Accidents) -> None:
    """What can be told of any run."""
    report.records = len(sim.ledger.entries)
    report.outcomes.update(entry.outcome or "open" for entry in sim.ledger.entries)
    report.failures.update(sim.application.failures)
    report.elections = len(sim.cluster.elections)
    report.failovers = failovers(sim)
    report.accidents.update(accidents.struck)
    report.gaps.update(gap.cause.value for gap in sim.gaps())
    report.stalls = len(sim.sender.stalls(sim.now))
    report.client_s = client_shares_s(sim)
    report.virtual_s = sim.now
    if sim.trace is not None:
        report.trace, report.digest, report.tale = sim.trace, sim.digest(), tell(sim)


def failovers(sim: Simulation) -> int:
    """Leader changes that a record met: it was open at some moment from the controller's decision
    until the producer knew of that leader, or until the next decision if it never did.
    """
    knew: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for fact in sim.facts:
        if isinstance(fact, LeaderChanged):
            known = knew.setdefault((fact.topic, fact.partition), [])
            known.append((fact.new_leader_epoch, fact.at_s))
    open_s: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for entry in sim.ledger.entries:
        if entry.taken_at is not None:
            until_s = inf if entry.settled_at is None else entry.settled_at
            open_s.setdefault((entry.topic, entry.partition), []).append((entry.taken_at, until_s))
    decided: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for election in sim.cluster.elections:
        tp = (election.topic, election.partition)
        decided.setdefault(tp, []).append((election.at_s, election.epoch))
    met = 0
    for tp, steps in decided.items():
        spans = open_s.get(tp, [])
        for (at_s, epoch), (next_s, _) in zip(steps, [*steps[1:], (inf, 0)], strict=True):
            told = (s for e, s in knew.get(tp, ()) if e >= epoch and s >= at_s)
            end_s = min(next(told, inf), next_s)
            last = bisect_left(spans, (end_s, -1.0))  # those taken before
            met += any(until_s > at_s for _, until_s in spans[:last])
    return met


def client_shares_s(sim: Simulation) -> list[float]:
    """Of every gap that an ack from a new leader ended: the time from that leader's first showing
    in any broker's metadata (or the gap's begin, if later) to the ack. All after that moment could
    have been shorter with a cleverer client, or a kinder network.
    """
    shares = []
    for gap in sim.gaps():
        if gap.ended_by is not GapEnd.ACK or gap.topic in sim.deleted:
            continue
        visible = sim.cluster.visible_at_s(gap.topic, gap.partition, gap.new_leader_epoch)
        if gap.new_leader_epoch > gap.old_leader_epoch and visible:
            end_s = gap.begin_s + gap.duration_s
            shares.append(end_s - max(gap.begin_s, min(visible.values())))
    return shares


def main(arguments: list[str] | None = None) -> int:
    """`python -m outlast.testing.simulation`: replay one seed. 1 if it found anything."""
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.simulation")
    parser.add_argument("--seed", type=int, required=True, help="the run to replay")
    parser.add_argument("--trace", action="store_true", help="print every step")
    options = parser.parse_args(arguments)
    report = run_seed(options.seed, trace=options.trace)
    for line in report.trace:
        print(line)
    print(report)
    return 1 if report.findings else 0
