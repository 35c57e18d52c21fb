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
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from outlast.testing.cluster import ClusterSettings
from outlast.testing.network import NetworkSettings
from outlast.testing.simulation import Simulation, SimulationError

STOPPING_S = 2.3  # a controlled shutdown takes so long (A6)
AMBUSH_LOOKS = 100
SETTLING_S = 4.0  # healed → every replica is in sync again, also where the death went unnoticed


@dataclass(slots=True)
class Report:
    """What one seed gave. It is good if `findings` is empty."""

    seed: int
    world: str = ""
    findings: list[str] = field(default_factory=list)
    records: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)  # by kind
    failovers: int = 0  # partitions' leader epochs gone through
    gaps: Counter[str] = field(default_factory=Counter)  # by cause
    virtual_s: float = 0.0
    digest: str = ""
    trace: list[str] = field(default_factory=list)

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


@dataclass(slots=True)
class _World:
    """What the seed has drawn."""

    nodes: int
    partitions: int
    min_isr: int
    cluster: ClusterSettings
    network: NetworkSettings
    keywords: dict[str, Any]
    max_block_s: float
    compress_s: tuple[float, float]
    load_s: float
    interval_s: float  # between two records, over all partitions
    bursts: list[int]  # how many records at once
    accidents: int
    closed_suddenly: bool

    def __str__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in self.keywords.items())
        return (
            f"nodes={self.nodes} partitions={self.partitions} min_isr={self.min_isr} "
            f"latency={self.network.latency_s} spikes={self.network.spike_probability} "
            f"first_seq={self.cluster.first_seq_rule} detect={self.cluster.detect_s} "
            f"interval={self.interval_s} bursts={self.bursts} accidents={self.accidents} {words}"
        )


def draw_world(rng: Random) -> _World:
    """Settings of a run. Every draw happens, whatever was drawn before."""
    idempotent = rng.random() < 0.9
    acks = "all" if idempotent else rng.choice(["all", "all", 1, 0])
    latency_s = rng.choice([(0.0002, 0.0008), (0.001, 0.004), (0.005, 0.02), (0.03, 0.05)])
    request_timeout_ms = rng.choice([1000, 2000, 5000])
    linger_ms = rng.choice([0, 0, 5, 50])
    produce, metadata = rng.choice([(9, 9), (11, 12), (12, 12), (13, 12), (13, 13)])
    keywords: dict[str, Any] = {
        "acks": acks,
        "enable_idempotence": idempotent,
        "linger_ms": linger_ms,
        "batch_size": rng.choice([100, 100, 150, 500, 16384]),
        "max_in_flight_requests_per_connection": rng.choice([1, 2, 5, 5, 5]),
        "request_timeout_ms": request_timeout_ms,
        "delivery_timeout_ms": request_timeout_ms + linger_ms + rng.choice([500, 5000, 60_000]),
        "socket_connection_setup_timeout_ms": rng.choice([500, 2000]),
        "retry_backoff_ms": rng.choice([20, 100]),
        "buffer_memory": rng.choice([4_000, 33_554_432, 33_554_432]),
        "metadata_max_age_ms": rng.choice([500, 300_000]),
        "compression_type": rng.choice([None, None, None, "gzip"]),
    }
    return _World(
        nodes=rng.choice([1, 2, 3, 3, 3, 4]),
        partitions=rng.randint(1, 4),
        min_isr=rng.choice([1, 1, 2]),
        cluster=ClusterSettings(
            detect_s=rng.choice([0.1, 0.3, 1.0, 3.0]),
            promote_s=rng.choice([0.0, 0.0, 0.5]),
            metadata_lag_s=rng.choice([(0.0, 0.0), (0.001, 0.031), (0.01, 0.3)]),
            deny_p=rng.choice([0.0, 0.13, 1.0]),
            fetch_backoff_s=rng.choice([0.05, 1.0]),
            creation_deny_p=rng.choice([0.25, 1.0]),
            creation_deny_s=rng.choice([(0.020, 0.030), (0.1, 0.4)]),
            first_seq_rule=rng.choice(["any", "zero"]),
            api_versions={0: (3, produce), 3: (0, metadata)},
        ),
        network=NetworkSettings(
            latency_s=latency_s,
            spike_probability=rng.choice([0.0, 0.0, 0.01, 0.05]),
            spike_s=(0.02, rng.choice([0.1, 1.5])),
            notice_s=rng.choice([0.0, 0.002]),
        ),
        keywords=keywords,
        max_block_s=rng.choice([0.5, 60.0]),
        compress_s=rng.choice([(0.0, 0.0), (0.0, 0.08)]),
        load_s=rng.uniform(0.5, 2.0),
        interval_s=rng.choice([0.005, 0.01, 0.02]),
        bursts=rng.choice([[1], [1, 1, 2, 5, 12], [10, 20], [10, 20]]),
        accidents=rng.randint(2, 20),
        closed_suddenly=rng.random() < 0.1,
    )


# --- a run --------------------------------------------------------------------------------------


def run_seed(seed: int, *, trace: bool = False) -> Report:
    """One random run. It does not raise for what the engine or cluster did: that is a finding."""
    report = Report(seed)
    world = draw_world(Random(f"{seed}/world"))
    report.world = str(world)
    sim = Simulation(
        seed,
        topics={"t": world.partitions},
        min_isr=min(world.min_isr, world.nodes),
        nodes=world.nodes,
        cluster=world.cluster,
        network=world.network,
        max_block_s=world.max_block_s,
        compress_s=world.compress_s,
        trace=trace,
        **world.keywords,
    )
    accidents = _Accidents(sim)
    try:
        _safety(sim, world, accidents)
        if world.closed_suddenly:
            _sudden_end(sim)
            accidents.heal_all()
        else:
            _liveness(sim, accidents)
        report.findings += sim.judge().findings
    except SimulationError as error:
        report.findings.append(str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        report.findings.append(
            f"{type(error).__name__}: {error} ({where.filename}:{where.lineno} {where.name}) "
            f"at {sim.now:.6f} s. {sim.ledger.replay}"
        )
    _fill(report, sim)
    return report


def _safety(sim: Simulation, world: _World, accidents: _Accidents) -> None:
    for partition in range(world.partitions):
        at_s, each_s = 0.0, world.interval_s * world.partitions
        while at_s < world.load_s:
            records = sim.rng.choice(world.bursts)
            at_s += each_s * records * sim.rng.uniform(0.0, 2.0)
            chosen = None if sim.rng.random() < 0.1 else partition  # None: the engine chooses
            sim.at(at_s, partial(_burst, sim, chosen, records))
    at_s = 0.0
    for _ in range(world.accidents):  # half of them soon after another
        near = accidents.rng.random() < 0.5
        at_s = (
            at_s + accidents.rng.uniform(0.0, 0.1)
            if near
            else accidents.rng.uniform(0.0, world.load_s)
        )
        sim.at(at_s, accidents.happen if accidents.rng.random() < 0.25 else accidents.lie_in_wait)
    sim.run_for(world.load_s)


def _burst(sim: Simulation, partition: int | None, records: int, topic: str = "t") -> None:
    for _ in range(records):
        key = b"%d" % sim.rng.randrange(9) if partition is None and records > 1 else None
        sim.send(topic, partition, key=key, size_bytes=30)
    if sim.rng.random() < 0.05:
        sim.flush()


def _sudden_end(sim: Simulation) -> None:
    """The producer is closed in the middle of it all, and what it says of the rest must be true."""
    sim.close(fail_rest=True)
    if sim.application.open_sends:
        raise SimulationError(f"seed {sim.seed}: records are open after close. {sim.ledger.replay}")


def _liveness(sim: Simulation, accidents: _Accidents) -> None:
    """All is healed now. What is open settles, and then every partition takes one more record."""
    accidents.heal_all()
    sim.network.settings = replace(sim.network.settings, spike_probability=0.0)
    settings = sim.settings
    bound_s = 10.0 + 2 * settings.request_timeout_s + 2 * settings.connection_setup_timeout_s
    one_by_one_s = sim.application.open_sends * (4 * sim.network.settings.latency_s[1] + 0.05)
    sim.run_until(sim.all_settled, bound_s + one_by_one_s)
    sim.run_for(SETTLING_S)
    last = [sim.send(*tp) for tp in sim.partitions()]
    sim.run_until(lambda: all(future.done for future in last), bound_s)
    for future in last:
        if not future.acked:
            raise SimulationError(
                f"seed {sim.seed}: {future.entry} was sent after all was healed, and failed: "
                f"{future.failure or future.error}. {sim.ledger.replay}"
            )


class _Accidents:
    """What goes wrong in a run, one node at a time, and what puts it right again."""

    __slots__ = ("_all_up_s", "_cures", "_ended", "_node_id", "_sim", "rng")

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._cures: dict[int, Callable[[int], None]] = {}  # by node, while it is in trouble
        self._node_id = 1
        self._all_up_s = 0.0
        self._ended = False
        self.rng = sim.stream("accidents")

    def __repr__(self) -> str:
        return f"<accidents open={sorted(self._cures)}>"

    def lie_in_wait(self, patience: int = AMBUSH_LOOKS) -> None:
        """Strike when something is under way: most of the time nothing is, and then most
        accidents are harmless.
        """
        sim, rng = self._sim, self.rng
        node_id, owed = max(sim.network.unanswered().items(), key=lambda n: n[1], default=(1, 0))
        if patience and owed < rng.choice([1, 3, 5, 5]):
            again_s = sim.now + rng.uniform(0.5, 3.0) * sim.network.settings.latency_s[0]
            sim.at(again_s, partial(self.lie_in_wait, patience - 1))
        else:
            self._node_id = node_id
            self.happen()

    def happen(self) -> None:
        """One more accident, drawn by weight."""
        sim, rng = self._sim, self.rng
        if self._ended:
            return
        kinds = ["move", "kill", "reset", "crash", "blackout", "stop", "pause", "cut", "create"]
        kind = rng.choices(kinds, [8, 6, 7, 5, 2, 1, 2, 2, 3])[0]
        if rng.random() < 0.3:  # else misfortunes come together
            self._node_id = rng.choice(list(sim.cluster.addresses))
        node_id = self._node_id
        match kind:
            case "move":
                with suppress(ValueError):  # this node cannot lead it now
                    sim.move_leader(rng.randrange(sim.topics["t"]), node_id)
            case "reset":
                sim.reset(node_id)
            case "kill":
                self._trouble(node_id, sim.kill, sim.start, rng.choice([0.02, 0.4, 2.0]))
            case "crash":  # answers are lost, then its memory of all batches but one (S1)
                sim.reset(node_id)
                delay_s = rng.uniform(0.0, 3 * sim.network.settings.latency_s[1])
                crash = partial(self._trouble, node_id, sim.kill, sim.start, 0.02)
                sim.at(sim.now + delay_s, crash)
            case "blackout":
                for each in sim.cluster.addresses:
                    self._trouble(each, sim.kill, sim.start, rng.uniform(0.02, 0.5))
            case "stop":
                over_s = sim.now + STOPPING_S  # until then it cannot be started
                start = partial(self._start_at, over_s)
                self._trouble(node_id, sim.stop, start, rng.uniform(STOPPING_S, 4.0))
            case "pause":
                self._trouble(node_id, sim.pause, sim.resume, rng.uniform(0.05, 3.0))
            case "cut":
                self._trouble(node_id, sim.cut, sim.heal, rng.uniform(0.05, 2.0))
            case "create" if not self._cures and sim.now >= self._all_up_s:
                self._create()  # a controller places replicas on live nodes only

    def _create(self) -> None:
        """A new topic, written to from the first moment: its leaders have no state (S11)."""
        sim, name = self._sim, f"new{len(self._sim.topics)}"
        sim.create_topic(name, 2)
        for _ in range(10):
            burst = partial(_burst, sim, self.rng.randrange(2), self.rng.randint(1, 5), name)
            sim.at(sim.now + self.rng.uniform(0.0, 0.4), burst)

    def heal_all(self) -> None:
        """Nothing is in trouble any more, and nothing will be."""
        self._ended = True
        for node_id in list(self._cures):
            self._cure(node_id)

    def _start_at(self, at_s: float, node_id: int) -> None:
        self._sim.at(at_s, partial(self._sim.start, node_id))

    def _trouble(
        self,
        node_id: int,
        cause: Callable[[int], None],
        cure: Callable[[int], None],
        duration_s: float,
    ) -> None:
        if node_id not in self._cures and not self._ended:
            self._cures[node_id] = cure
            cause(node_id)
            self._sim.at(self._sim.now + duration_s, lambda: self._cure(node_id))

    def _cure(self, node_id: int) -> None:
        cure = self._cures.pop(node_id, None)
        if cure is not None:
            self._all_up_s = self._sim.now + SETTLING_S
            cure(node_id)


def _fill(report: Report, sim: Simulation) -> None:
    report.records = len(sim.ledger.entries)
    report.outcomes.update(entry.outcome or "open" for entry in sim.ledger.entries)
    report.failures.update(sim.application.failures)
    report.failovers = sum(max(0, sim.cluster.leader(*tp)[1]) for tp in sim.partitions())
    report.gaps.update(gap.cause.value for gap in sim.gaps())
    report.virtual_s = sim.now
    if sim.trace is not None:
        report.trace, report.digest = sim.trace, sim.digest()


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
