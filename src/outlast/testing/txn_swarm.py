"""Random runs of transactions: the seed picks the world, the accidents, and how transactions end.

As `swarm`, with one thread of transactions for a load (`transacting`) and its judge beside the
ledger. Worlds and accidents are the swarm's, so that leaders and coordinators, which live on the
same nodes, move, die and fall silent in every step of a transaction; coordinators' answers are
struck by faults of their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from outlast.testing.accidents import LONGEST_PAUSE_S, SETTLING_S, Accidents
from outlast.testing.application import SimFuture
from outlast.testing.faults import CutAfter, Error, Fault, LoseRequest, Slow
from outlast.testing.invariants import violations
from outlast.testing.simulation import Simulation, SimulationError
from outlast.testing.swarm import Report, as_findings, fill, simulation
from outlast.testing.transacting import COMMITTED, Transacting
from outlast.testing.world import World, draw_world

INIT_PRODUCER_ID = 22
APIS = (10, INIT_PRODUCER_ID, 24, 25, 26, 28)  # of coordinators
# That a coordinator may give. (47 and 90 it gives only to who is fenced: that must be believed.)
CODES = (-1, 3, 7, 14, 15, 16, 48, 49, 51, 52, 59, 120)
IDENTITY_S = 40.0  # until a partition that was made anew must take records


@dataclass(slots=True)
class TxnReport(Report):
    """What one seed gave. It is good if `findings` is empty."""

    fates: Counter[str] = field(default_factory=Counter)  # of transactions, as they were told
    endings: Counter[str] = field(default_factory=Counter)  # the same, and why one was aborted
    raised: Counter[str] = field(default_factory=Counter)  # by kind
    coordinator_gaps: int = 0  # in which no coordinator could be asked

    def __str__(self) -> str:
        ends = ", ".join(f"{n} {ending}" for ending, n in sorted(self.endings.items())) or "none"
        head, _, rest = Report.__str__(self).partition("\n")
        return f"{head}\n  transactions: {ends}\n{rest}"


def run_transactions(seed: int, *, trace: bool = False) -> TxnReport:
    """One random run. It does not raise for what the engine or cluster did: that is a finding."""
    report = TxnReport(seed)
    world, rng = draw_world(Random(f"{seed}/world")), Random(f"{seed}/transactions")
    sim = _simulation(seed, world, rng, trace=trace)
    load = Transacting(
        sim, partial(_records, sim, world, rng), rng, max_block_s=rng.choice([0.3, 5.0])
    )
    accidents = Accidents(sim, _no_load, nodes=world.bad_nodes, partitions=world.bad_partitions)
    report.world = str(world)
    with as_findings(report.findings, sim):
        _strike(sim, world, load, accidents, rng)
        _settle(sim, load, accidents)
        report.findings += sim.judge().findings
        report.findings += [f"{found}. {sim.ledger.replay}" for found in load.findings()]
        report.findings += violations(sim, late_s=LONGEST_PAUSE_S, settled=True)
    report.fates.update(transaction.fate for transaction in load.transactions)
    report.endings.update(transaction.ending for transaction in load.transactions)
    report.raised.update(load.raised)
    report.coordinator_gaps = sum(gap.partition < 0 for gap in sim.gaps())
    fill(report, sim, accidents)
    return report


def _simulation(seed: int, world: World, rng: Random, *, trace: bool) -> Simulation:
    keywords: dict[str, Any] = {
        **world.keywords,
        "acks": "all",
        "enable_idempotence": True,
        "max_in_flight_requests_per_connection": rng.choice([1, 5]),
        "transactional_id": "shop",
        "transaction_timeout_ms": rng.choice([2000, 10_000, 60_000]),
    }
    if keywords.get("retries") == 0:
        del keywords["retries"]
    cluster = replace(
        world.cluster,
        unclean_election=False,
        transaction_version=Random(f"{seed}/protocol").choice([1, 2]),
    )
    sim = simulation(seed, replace(world, cluster=cluster, keywords=keywords), trace=trace)
    sim.ledger.replay = f"Replay: outlast simulate --transactions --seed {seed} --trace"
    sim.cluster.create_internal_topics(0.0)
    sim.network.collect(0.0)
    return sim


def _no_load(*_: object, **__: object) -> None:
    """Accidents send nothing here: a record belongs into a transaction."""


def _records(sim: Simulation, world: World, rng: Random) -> list[SimFuture]:
    """One piece of a transaction."""
    count = rng.choice([1, 2, 5, 20])
    if rng.random() < world.in_runs:
        return sim.send_many([30] * count, "t", _anywhere(world, rng), thread="transactions")
    return [
        sim.send("t", _anywhere(world, rng), size_bytes=30, thread="transactions")
        for _ in range(count)
    ]


def _anywhere(world: World, rng: Random) -> int | None:
    return rng.choice([None, rng.randrange(world.partitions)])


def _strike(
    sim: Simulation, world: World, load: Transacting, accidents: Accidents, rng: Random
) -> None:
    """Transactions, and whatever may happen to them."""
    sim.at(0.0, load.begin)
    accidents.spread(world.accidents, world.load_s)
    for _ in range(rng.choice([0, 0, 2, 10])):
        sim.at(rng.uniform(0.0, world.load_s), partial(sim.fault, _coordinators_fault(rng)))
    sim.run_for(world.load_s)


def _coordinators_fault(rng: Random) -> Fault:
    api, times = rng.choice(APIS), rng.choice([1, 1, 3])
    match rng.randrange(4):
        case 0:
            return CutAfter(api=api, times=times)
        case 1:
            return LoseRequest(api=api, times=1)
        case 2:
            return Slow(api=api, times=times, delay_s=rng.choice([0.1, 1.5]))
    return Error(api=api, code=rng.choice(CODES), times=times)


def _settle(sim: Simulation, load: Transacting, accidents: Accidents) -> None:
    """All is healed: what is open comes to its end, and then one record for every partition is
    committed.
    """
    accidents.heal_all()
    sim.cluster.faults.clear()
    sim.network.settings = replace(sim.network.settings, spike_probability=0.0)
    load.end()
    settings = sim.settings
    bound_s = 20.0 + 2 * settings.request_timeout_s + 2 * settings.connection_setup_timeout_s
    bound_s += settings.delivery_timeout_s

    def over() -> bool:
        return load.idle and sim.all_settled()

    sim.run_until(over, bound_s)
    sim.run_for(SETTLING_S)
    give_up_s = sim.now + IDENTITY_S
    while True:
        if load.fenced:
            if _may_fence_itself(sim):
                return
            raise SimulationError(
                f"seed {sim.seed}: it is fenced, and there is no other. {sim.ledger.replay}"
            )
        last = [partial(sim.send, *tp, thread="transactions") for tp in sim.partitions()]
        load.once(last)
        sim.run_until(over, bound_s)
        if load.transactions[-1].fate == COMMITTED:
            return
        if sim.now > give_up_s:
            raise SimulationError(
                f"seed {sim.seed}: {load.transactions[-1]} was begun after all was healed, and "
                f"failed: {load.raised}. {sim.ledger.replay}"
            )


def _may_fence_itself(sim: Simulation) -> bool:
    """Whether a copy of its own first question was left behind: a coordinator that takes it late
    takes it for a newer producer, and nobody can tell the two.
    """
    asked = [request for request in sim.network.requests if request.api_key == INIT_PRODUCER_ID]
    return any(request.answered_at is None for request in asked)
