"""Six hundred partitions, and one in five of them slow, other ones every ten seconds: what the
healthy keep of their rate, and how many connections and requests that takes.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

import pytest

from outlast.testing.faults import SlowFollower
from outlast.testing.simulation import Simulation
from tests.sim.lane_stories import assert_sound, placed, wire_by_partition

pytestmark = pytest.mark.timeout(300)

BROKERS, EACH, SLOW_EACH = 3, 200, 40
PERIOD_S, PERIODS = 10.0, 2
BEGINS_S = 6.0
ENDS_S = BEGINS_S + PERIODS * PERIOD_S
INTERVAL_S = 2.0
CALM_S = 5.5  # after a change: each has been used twice, lanes have been changed, backlogs are gone


def replicas() -> list[list[int]]:
    """Two of three brokers each, every pair as often."""
    return [
        [1 + leader, 1 + (leader + 1 + index % 2) % BROKERS]
        for leader in range(BROKERS)
        for index in range(EACH)
    ]


def slow_ones(period: int) -> set[int]:
    """Forty of each broker's partitions, whoever their follower is; others in each period."""
    rng = Random(period)
    return {
        leader * EACH + index
        for leader in range(BROKERS)
        for index in rng.sample(range(EACH), SLOW_EACH)
    }


def slow_down(sim: Simulation, placement: list[list[int]], period: int) -> None:
    """These followers are slow from now on, and no others."""
    sim.cluster.faults[:] = [
        SlowFollower(3.0, node=placement[p][1], topic="t", partition=p, until_s=sim.now + PERIOD_S)
        for p in sorted(slow_ones(period))
    ]


def told(slow: bool) -> tuple[Simulation, list[tuple[float, Counter[tuple[int, str]]]]]:
    """The story with or without slow ones: the simulation, and which connections stood when."""
    placement = replicas()
    sim = placed(1, placement, delivery_timeout_ms=600_000)
    standing: list[tuple[float, Counter[tuple[int, str]]]] = []
    for period in range(PERIODS if slow else 0):
        sim.at(BEGINS_S + period * PERIOD_S, partial(slow_down, sim, placement, period))
    rng = Random("phases")
    for partition in range(len(placement)):
        start_s = sim.now + INTERVAL_S * rng.random()
        sim.send_every(partition, INTERVAL_S, int(ENDS_S / INTERVAL_S), start_s=start_s)

    def look() -> None:
        kinds = Counter((c.node_id, c.role.value) for c in sim.network.standing())
        standing.append((sim.now, kinds))

    for step in range(int((ENDS_S - 3.0) / 0.25)):
        sim.at(3.0 + step * 0.25, look)
    sim.run_for(ENDS_S + 40.0 - sim.now)
    return sim, standing


@pytest.fixture(scope="module")
def with_slow_ones():
    return told(slow=True)


@pytest.fixture(scope="module")
def without():
    return told(slow=False)


def healthy(period: int) -> set[int]:
    """Partitions that are slow neither in this period nor in the one before it."""
    return set(range(BROKERS * EACH)) - slow_ones(period) - slow_ones(period - 1)


def test_all_is_there_once_and_all_that_was_said_is_true(with_slow_ones):
    sim, _ = with_slow_ones
    assert sim.all_settled()
    assert_sound(sim)
    assert sim.gaps() == []


def test_the_healthy_keep_95_percent_of_their_rate(with_slow_ones):
    sim, _ = with_slow_ones
    for period in range(PERIODS):
        begin_s, well = BEGINS_S + period * PERIOD_S, healthy(period)
        sent = acked = 0
        for entry in sim.ledger.entries:
            if entry.partition in well and begin_s <= entry.sent_at < begin_s + PERIOD_S:
                sent += 1
                acked += entry.settled_at < begin_s + PERIOD_S
        assert acked >= 0.95 * sent, (period, acked, sent)


def test_in_steady_state_no_healthy_one_waits_for_a_slow_one(with_slow_ones, without):
    """Before that, whenever a rarely used one is found to be slow, neighbours that have had no ack
    since are suspects for an ack wait.
    """
    usual_s = max(e.settled_at - e.sent_at for e in without[0].ledger.entries if e.sent_at > 4.0)
    sim, _ = with_slow_ones
    late_s, steady = [], 0
    for period in range(PERIODS):
        begin_s, well = BEGINS_S + period * PERIOD_S, healthy(period)
        for entry in sim.ledger.entries:
            in_time = begin_s + CALM_S <= entry.sent_at < begin_s + PERIOD_S - 0.1
            if entry.partition in well and in_time:
                steady += 1
                took_s = entry.settled_at - entry.sent_at
                late_s += [took_s] if took_s > 2 * usual_s else []
    assert steady > 1000
    assert late_s == []


def test_three_connections_a_broker_are_enough(with_slow_ones, without):
    for _, standing in (with_slow_ones, without):
        for at_s, kinds in standing:
            steady = at_s < BEGINS_S or (at_s - BEGINS_S) % PERIOD_S >= CALM_S
            if steady:
                by_node: Counter[int] = Counter()
                for (node_id, _), count in kinds.items():
                    by_node[node_id] += count
                assert max(by_node.values()) <= 3, (at_s, kinds)
                assert max(kinds.values()) <= 1, (at_s, kinds)
    assert any(role == "slow" for _, kinds in with_slow_ones[1] for _, role in kinds)
    assert not any(role == "slow" for _, kinds in without[1] for _, role in kinds)


def test_the_healthy_need_no_more_requests(with_slow_ones, without):
    """Produce requests with a healthy partition in them, for each of its records."""

    def requests_per_record(sim: Simulation) -> float:
        requests = records = 0
        wire = wire_by_partition(sim)
        for period in range(PERIODS):
            begin_s, well = BEGINS_S + period * PERIOD_S, healthy(period)
            seen = {
                (a.request.conn, a.request.token)
                for p in well
                for a in wire[p]
                if begin_s <= a.sent_at < begin_s + PERIOD_S
            }
            requests += len(seen)
            records += sum(
                e.partition in well and begin_s <= e.sent_at < begin_s + PERIOD_S
                for e in sim.ledger.entries
            )
        return requests / records

    assert requests_per_record(with_slow_ones[0]) <= 1.2 * requests_per_record(without[0])
