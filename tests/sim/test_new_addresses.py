"""All brokers replaced at new addresses behind the bootstrap name: nothing known answers any more.

A name that is looked up anew for each connect leads to the new ones (KIP-899). Field case B22.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outlast.config import settings
from outlast.engine.messages import Complaint
from outlast.testing.network import SimNetwork
from outlast.testing.simulation import Simulation
from tests.sim.stories import CALM, STEADY, load

NAME = ("kafka.test", 9092)
SETUP_S, BACKOFF_S = 10.0, 1.0  # defaults of the connect time-out and of the longest back-off
FLOWING_S = 2 * (SETUP_S + BACKOFF_S)
NOWHERE = -1  # the network's name for addresses that no broker has
MakeSim = Callable[..., Simulation]


@pytest.fixture
def behind_a_name(monkeypatch: pytest.MonkeyPatch) -> MakeSim:
    """A cluster whose producer is told one name; it leads to a node that runs."""
    connect = SimNetwork.connect

    def make(seed: int, *, nodes: int = 3) -> Simulation:
        sim = Simulation(
            seed,
            nodes=nodes,
            topics={"t": 3},
            network=STEADY,
            cluster=replace(CALM, isr_join_s=0.01),
            settings=settings(bootstrap_servers=f"{NAME[0]}:{NAME[1]}"),
        )

        def resolve_and_connect(network, connection, host, port, now):
            if (host, port) == NAME:
                up = [n for n, node in sim.cluster.nodes.items() if node.running]
                host, port = sim.cluster.addresses[up[0] if up else 1]
            connect(network, connection, host, port, now)

        monkeypatch.setattr(SimNetwork, "connect", resolve_and_connect)
        return sim

    return make


def replace_node(sim: Simulation, node_id: int) -> None:
    """The node ends; another with its id and its log takes its place, at another address."""
    sim.kill(node_id)
    host, port = sim.cluster.addresses[node_id]
    sim.cluster.addresses[node_id] = (f"new-{host}", port)
    sim.start(node_id)


def told(sim: Simulation) -> list[str]:
    return [fact.text for fact in sim.facts if isinstance(fact, Complaint)]


def flowing_after_s(sim: Simulation, at_s: float) -> float:
    """From `at_s` until every partition has had an ack of a record sent since."""
    acked = [e for e in sim.ledger.entries if e.outcome == "acked" and e.sent_at >= at_s]
    return max(min(e.settled_at for e in acked if e.partition == p) - at_s for p in range(3))


@pytest.mark.parametrize("nodes", [3, 6])
@pytest.mark.parametrize("hang", [False, True], ids=["refuse", "hang"])
def test_all_at_once(behind_a_name: MakeSim, hang: bool, nodes: int) -> None:
    """The old addresses refuse connects, or swallow them."""
    times = []
    for seed in range(1, 4):
        sim = behind_a_name(seed, nodes=nodes)
        load(sim, interval_s=0.25, count=160)
        sim.run_for(2.0)
        assert told(sim) == []
        if hang:
            sim.cut(NOWHERE)
        for node_id in range(1, nodes + 1):
            replace_node(sim, node_id)
        sim.run_until(sim.all_settled, 120.0)
        assert sim.check().failed == 0
        times.append(flowing_after_s(sim, 2.0))
        [text] = told(sim)
        assert "kafka.test:9092" in text
    print(f"\nflowing after at most {max(times):.3f} s")
    # a connect that hangs at an old address is given up as soon as a new one is named
    assert max(times) <= 2 * BACKOFF_S


def test_one_by_one_under_load(behind_a_name: MakeSim) -> None:
    """The others name the new address: no name is needed."""
    for seed in range(1, 4):
        sim = behind_a_name(seed)
        load(sim, interval_s=0.05, count=400)
        for node_id in (1, 2, 3):
            sim.at(4.0 * node_id, lambda n=node_id, sim=sim: replace_node(sim, n))
        sim.run_until(sim.all_settled, 120.0)
        assert sim.check().failed == 0
        times = [flowing_after_s(sim, 4.0 * node_id) for node_id in (1, 2, 3)]
        assert max(times) <= 2 * BACKOFF_S, times
        assert told(sim) == []


@pytest.mark.parametrize("hang", [False, True], ids=["refuse", "hang"])
def test_one_by_one_while_nobody_looks(behind_a_name: MakeSim, hang: bool) -> None:
    """An idle producer learns nothing meanwhile, and then knows only addresses that are gone."""
    for seed in range(1, 4):
        sim = behind_a_name(seed)
        sim.send(partition=0)
        sim.run_until(sim.all_settled, 10.0)
        if hang:
            sim.cut(NOWHERE)
        for node_id in (1, 2, 3):
            replace_node(sim, node_id)
            sim.run_for(20.0)
        load(sim, interval_s=0.25, count=120)
        begun_s = sim.now
        sim.run_until(sim.all_settled, 120.0)
        assert sim.check().failed == 0
        assert flowing_after_s(sim, begun_s) <= FLOWING_S
