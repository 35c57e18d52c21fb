"""Followers that are late for minutes, always late, or stuck for a while, one after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median, quantiles

import pytest

from outlast.engine.messages import Role
from outlast.testing.faults import SlowFollower
from tests.sim.lane_stories import (
    ACK_WAIT_S,
    REAL,
    assert_sound,
    excursions,
    latencies_s,
    longest_pause_s,
    pauses,
    placed,
    repeats,
    role_of,
    wire_by_partition,
)
from tests.sim.stories import load

pytestmark = pytest.mark.timeout(300)

FOREVER_S = float("inf")


SLOW_S = 3.0
BEGINS_S, OVER_S = 10.0, 310.0
TRIANGLE = ((1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2))
SLOW = (1, 3)  # of those: node 3 is the follower


@cache
def five_minutes():
    """Told once; every test looks at something else in it."""
    sim = placed(1, [list(pair) for pair in TRIANGLE], delivery_timeout_ms=1_200_000)
    slow = SlowFollower(SLOW_S, node=3, after_s=BEGINS_S, until_s=OVER_S)
    sim.fault(slow)
    for partition in range(6):
        interval_s = 0.4 if partition in SLOW else 0.1
        sim.send_every(
            partition,
            interval_s,
            int((OVER_S + 4.0 - sim.now) / interval_s),
            start_s=sim.now + 0.005 * partition,
        )
    sim.run_for(OVER_S + 300.0 - sim.now)
    return sim


class TestOneSlowFollower:
    """Every ack that needs it takes 3 s, five minutes long."""

    @pytest.fixture
    def sim(self):
        return five_minutes()

    def test_all_is_there_once_and_all_that_was_said_is_true(self, sim):
        assert sim.all_settled()
        assert_sound(sim)

    def test_neighbours_are_as_quick_as_ever_after_one_ack_wait(self, sim):
        for partition in set(range(6)) - set(SLOW):
            usual_s = latencies_s(sim, partition, 3.0, BEGINS_S)
            meanwhile_s = latencies_s(sim, partition, BEGINS_S + ACK_WAIT_S + 0.3, OVER_S)
            assert median(meanwhile_s) <= 1.2 * median(usual_s), partition
            usual_p99_s, p99_s = (quantiles(s, n=100)[-1] for s in (usual_s, meanwhile_s))
            assert p99_s <= 1.2 * usual_p99_s, partition
            assert max(meanwhile_s) <= 0.05, partition
            assert longest_pause_s(sim, partition) <= ACK_WAIT_S + 0.3

    def test_the_slow_ones_keep_the_rate_of_one_batch_for_every_ack(self, sim):
        wire = wire_by_partition(sim)
        allowed = (OVER_S - BEGINS_S) / SLOW_S
        for partition in SLOW:
            acked = [
                a.ended_at
                for a in wire[partition]
                if a.accepted and BEGINS_S + SLOW_S <= a.ended_at < OVER_S
            ]
            assert len(acked) >= 0.9 * allowed, partition

    def test_they_stay_in_the_slow_lane_until_acks_come_in_usual_time(self, sim):
        assert excursions(sim) == dict.fromkeys(SLOW, 1)
        for partition, wire in wire_by_partition(sim).items():
            late = [a for a in wire if BEGINS_S + 1.5 < a.sent_at < OVER_S - 1.0]
            roles = {role_of(sim, a.request) for a in late}
            assert roles == ({"slow"} if partition in SLOW else {"open"}), partition
            after = [a for a in wire if a.sent_at > OVER_S + 2.0]
            assert {role_of(sim, a.request) for a in after} == {"open"}, partition

    def test_neighbours_were_sent_twice_once_at_most(self, sim):
        for partition, wire in wire_by_partition(sim).items():
            if partition not in SLOW:
                assert repeats(wire) <= 5, partition


def test_a_slow_partition_that_is_rarely_used_holds_its_neighbour_up_once():
    """A record every seven seconds, five minutes long: between them nothing of it is under way."""
    sim = placed(1, [[1, 2], [1, 3], [2, 1]])
    sim.fault(SlowFollower(SLOW_S, node=2, after_s=BEGINS_S, until_s=OVER_S))
    sim.send_every(0, 7.0, 46, start_s=3.1)
    sim.send_every(1, 0.1, 3150)
    sim.run_for(OVER_S + 30.0 - sim.now)
    assert sim.all_settled()
    assert_sound(sim)
    assert len(pauses(sim, 1, 0.2)) == 1, pauses(sim, 1, 0.2)
    assert excursions(sim) == {0: 1}


@pytest.mark.parametrize("interval_s", [0.05, 0.9], ids=["busy", "rare"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_replication_that_usually_takes_700_ms_changes_no_lane(seed: int, interval_s: float):
    sim = placed(seed, [[1, 2], [1, 3], [2, 3], [3, 1]], cluster=replace(REAL, replication_s=0.7))
    load(sim, interval_s=interval_s, count=int(40 / interval_s))
    sim.run_until(sim.all_settled, 120.0)
    assert_sound(sim)
    assert excursions(sim) == {}
    for wire in wire_by_partition(sim).values():
        assert repeats(wire) == 0


@pytest.mark.parametrize("interval_s", [0.05, 0.9, 3.0], ids=["busy", "rare", "very rare"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_replication_that_always_takes_1200_ms_is_learnt(seed: int, interval_s: float):
    sim = placed(
        seed,
        [[1, 2], [1, 3], [2, 3], [3, 1]],
        cluster=replace(REAL, replication_s=1.2),
        delivery_timeout_ms=600_000,
    )
    load(sim, interval_s=interval_s, count=int(40 / interval_s))
    sim.run_until(sim.all_settled, 300.0)
    assert_sound(sim)
    for partition, wire in wire_by_partition(sim).items():
        assert excursions(sim)[partition] <= 1, partition
        late = [a for a in wire if a.sent_at > 20.0]
        assert {role_of(sim, a.request) for a in late} == {"open"}
        assert repeats(late) == 0


# Partitions of leader 1 by their follower: 2 gets stuck first, 3 second, 4 never.
BUSY = {2: (0, 1, 2), 3: (3, 4, 5), 4: (6, 7)}
RARE = {2: (8, 9), 3: (10, 11), 4: (12, 13)}
BOTH = 14  # rarely used, has the followers 2 and 4
FIRST_S, SECOND_S, ENDS_S = 5.0, 11.0, 17.0


@cache
def two_causes(seed: int, linger_ms: int):
    by_follower = [(n, p) for kind in (BUSY, RARE) for n, ps in kind.items() for p in ps]
    replicas = [[1, n] for n, _ in by_follower] + [[1, 2, 4]]
    sim = placed(seed, replicas, linger_ms=linger_ms)
    for node, begins_s in ((2, FIRST_S), (3, SECOND_S)):
        sim.fault(SlowFollower(FOREVER_S, node=node, after_s=begins_s, until_s=ENDS_S))
    for _, partition in by_follower[:8]:
        sim.send_every(partition, 0.019, 900, start_s=sim.now + 0.0023 * partition)
    for _, partition in [*by_follower[8:], (2, BOTH)]:
        sim.send_every(partition, 1.7, 10, start_s=sim.now + 0.13 * partition)
    sim.run_until(sim.all_settled, 120.0)
    assert_sound(sim)
    assert sim.gaps() == []
    return sim


class TestTwoCauses:
    """Two followers of one leader get stuck, at different times."""

    @pytest.mark.parametrize("linger_ms", [0, 5])
    def test_no_healthy_partition_is_held_up_twice_for_one_cause(self, linger_ms: int):
        for seed in (1, 2):
            sim = two_causes(seed, linger_ms)
            for partition in BUSY[4]:
                held = pauses(sim, partition, 0.1)
                assert len(held) <= 2, (seed, partition, held)
                for begin_s, length_s in held:
                    assert length_s <= ACK_WAIT_S + 0.3, (seed, partition, held)
                    assert min(abs(begin_s - s) for s in (FIRST_S, SECOND_S)) < 0.1
            for partition in BUSY[3]:
                held = [h for h in pauses(sim, partition, 0.1) if h[0] < SECOND_S - 0.1]
                assert len(held) <= 1, (seed, partition, held)
            for partition in RARE[4]:
                late = [s for s in latencies_s(sim, partition, 0.0, ENDS_S) if s > 0.1]
                assert len(late) <= 2, (seed, partition, late)
                assert max(late, default=0.0) <= ACK_WAIT_S + 0.3

    def test_the_open_lane_is_given_up_once_a_cause(self):
        for seed in (1, 2):
            sim = two_causes(seed, 0)
            given_up = {
                a.request.failed_at
                for wire in wire_by_partition(sim).values()
                for a in wire
                if a.request.given_up and role_of(sim, a.request) == "open"
            }
            sevens = {
                a.ended_at
                for wire in wire_by_partition(sim).values()
                for a in wire
                if a.appended and role_of(sim, a.request) == "open"
            }
            assert given_up == sevens
            assert len(sevens) == 2, (seed, sevens)


def test_a_suspect_goes_first_although_its_bytes_have_yet_to_be_compressed():
    """The stuck one's bytes are made, as it was sent before: they would take the lane at once."""
    for seed in range(5):
        sim = placed(
            seed,
            [[1, 2]] * 2,
            compress_s=(0.004, 0.03),
            compression_type="gzip",
            max_in_flight_requests_per_connection=1,
        )
        sim.fault(
            SlowFollower(FOREVER_S, node=2, topic="t", partition=0, after_s=5.0, until_s=15.0)
        )
        sim.send_every(0, 0.023, 650, start_s=sim.now)
        sim.send_every(1, 60.0, 1, start_s=5.5)
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)
        assert max(latencies_s(sim, 1, 0.0, 20.0)) <= ACK_WAIT_S + 0.3, seed


def test_suspects_that_are_well_are_back_after_one_ack():
    """One partition of a follower is stuck; the others that have this follower are not."""
    for seed in (1, 2):
        sim = placed(seed, [[1, 2]] * 5 + [[1, 3]] * 3)
        sim.fault(
            SlowFollower(FOREVER_S, node=2, topic="t", partition=0, after_s=5.0, until_s=15.0)
        )
        for partition in (0, 1, 2, 5, 6):
            sim.send_every(partition, 0.023, 650, start_s=sim.now + 0.0037 * partition)
        for partition in (3, 4, 7):  # rarely used
            sim.send_every(partition, 1.7, 9, start_s=sim.now + 0.13 * partition)
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)
        for partition in (1, 2, 5, 6):
            held = pauses(sim, partition, 0.1)
            assert len(held) <= 1, (seed, partition, held)
            assert longest_pause_s(sim, partition) <= ACK_WAIT_S + 0.3, (seed, partition)
        for partition in (3, 4, 7):
            late = [s for s in latencies_s(sim, partition, 0.0, 20.0) if s > 0.1]
            assert len(late) <= 1, (seed, partition, late)
            assert max(late, default=0.0) <= ACK_WAIT_S + 0.3, (seed, partition, late)
        told = excursions(sim)
        assert told[0] == 1
        assert all(told[p] <= 1 for p in range(8)), (seed, told)
        assert [told[p] for p in (5, 6, 7)] == [0, 0, 0]
        back = [f for f in sim.facts if type(f).__name__ == "LaneChanged" and f.lane is Role.OPEN]
        assert {f.partition for f in back} >= {p for p in range(5) if told[p]}
