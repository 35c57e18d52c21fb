"""What the stories of this folder share: usual settings, and what the mock itself took."""

from __future__ import annotations

from statistics import median

from outlast.testing.cluster import ClusterSettings
from outlast.testing.network import NetworkSettings
from outlast.testing.simulation import Simulation
from outlast.testing.wire import WireAttempt, attempts

ONE_WAY_S = 0.0005
RTT_S = 2 * ONE_WAY_S
STEADY = NetworkSettings(latency_s=(ONE_WAY_S, ONE_WAY_S))
CALM = ClusterSettings(deny_p=0.0)


def simulation(seed: int, **options) -> Simulation:
    """Three brokers, three partitions, an even network; options override."""
    return Simulation(seed, **{"topics": {"t": 3}, "network": STEADY, "cluster": CALM, **options})


def load(sim: Simulation, *, interval_s: float = 0.01, count: int = 100) -> None:
    """Records for every partition, a little apart from each other."""
    for topic, partition in sim.partitions():
        sim.send_every(
            partition, interval_s, count, topic=topic, start_s=sim.now + 0.001 * partition
        )


def attempts_of(sim: Simulation, partition: int, topic: str = "t") -> list[WireAttempt]:
    return [a for a in attempts(sim.network.requests) if a.tp == (topic, partition)]


def held_s(attempt: WireAttempt) -> float:
    """How long the broker kept the answer."""
    request = attempt.request
    assert request.answered_at is not None
    assert request.arrived_at is not None
    return request.answered_at - request.arrived_at - ONE_WAY_S


def clients_share_s(sim: Simulation, partition: int) -> float:
    """The one gap of a partition, without the time for which brokers held its attempts."""
    [gap] = sim.gaps(partition)
    end_s = gap.begin_s + gap.duration_s
    inside = [
        a
        for a in attempts_of(sim, partition)
        if a.sent_at >= gap.begin_s and a.ended_at is not None and a.ended_at <= end_s
    ]
    first_refused = next(a for a in inside if a.rejected)
    accepted = [a for a in inside if a.accepted]
    return gap.duration_s - held_s(first_refused) - held_s(accepted[0])


def middle_and_worst(values: list[float]) -> tuple[float, float]:
    return median(values), max(values)
