"""A follower that is late by less than the ack wait: nobody is stuck, no 7 comes, and yet a broker
serves one request after the other, so that neighbours stand in line behind late acks.
"""

from __future__ import annotations

import pytest

from outlast.testing.faults import SlowFollower
from outlast.testing.simulation import Simulation
from outlast.testing.wire import WireRequest
from tests.sim.lane_stories import (
    ACK_WAIT_S,
    assert_sound,
    latencies_s,
    placed,
    wire_by_partition,
)

LATE_S = 0.7
BEGINS_S, OVER_S = 5.0, 15.0
ROUND_TRIPS_S = 0.1
SEEDS = range(4)
LATE, NEIGHBOUR, OTHER = 0, 1, 2
ONE_LATE_ACK_S = LATE_S + 0.05 + ROUND_TRIPS_S  # and to see that the next one is late, too


def story(seed: int, interval_s: float, **options: object) -> Simulation:
    """Both partitions have one leader; the follower of the first is late."""
    sim = placed(seed, [[1, 2], [1, 3]], **options)
    sim.fault(SlowFollower(LATE_S, node=2, after_s=BEGINS_S, until_s=OVER_S))
    for partition, every_s in ((LATE, interval_s), (NEIGHBOUR, 0.05)):
        count = int((OVER_S - sim.now) / every_s)
        sim.send_every(partition, every_s, count, start_s=sim.now + 0.0013 * partition)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    return sim


@pytest.mark.parametrize("seed", SEEDS)
def test_a_neighbour_waits_for_one_late_ack_when_it_begins(seed: int) -> None:
    """Five requests are under way by then."""
    sim = story(seed, 0.011, linger_ms=0)
    waits = latencies_s(sim, NEIGHBOUR, BEGINS_S - 0.5, BEGINS_S + 5 * LATE_S)
    assert LATE_S / 2 < max(waits) <= ONE_LATE_ACK_S


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_acked_at_once_hides_no_line_of_late_ones_behind_it(seed: int) -> None:
    """Requests of the late partition and of one that is well are under way in turn."""
    sim = placed(seed, [[1, 2], [1, 3], [1, 3]], linger_ms=0)
    sim.fault(SlowFollower(LATE_S, node=2, after_s=BEGINS_S, until_s=OVER_S))
    for partition, every_s in ((LATE, 0.011), (OTHER, 0.022)):
        sim.send_every(partition, every_s, 500, start_s=sim.now + 0.001 * partition)
    sim.send_every(NEIGHBOUR, 9.0, 2, start_s=BEGINS_S + 0.3)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    for partition in (NEIGHBOUR, OTHER):
        waits = latencies_s(sim, partition, BEGINS_S, OVER_S)
        assert LATE_S / 2 < max(waits) <= ONE_LATE_ACK_S


@pytest.mark.parametrize("seed", SEEDS)
def test_who_comes_later_does_not_wait_for_a_line_of_others(seed: int) -> None:
    """Nothing of the neighbour is under way when the line forms: it has no place in it at all."""
    sim = placed(seed, [[1, 2], [1, 3]], linger_ms=0)
    sim.fault(SlowFollower(LATE_S, node=2, after_s=BEGINS_S, until_s=OVER_S))
    sim.send_every(LATE, 0.011, 700, start_s=sim.now)
    sim.send_every(NEIGHBOUR, 9.0, 2, start_s=BEGINS_S + 0.3)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    waits = latencies_s(sim, NEIGHBOUR, BEGINS_S, OVER_S)
    assert LATE_S / 2 < max(waits) <= ONE_LATE_ACK_S


@pytest.mark.parametrize("seed", SEEDS)
def test_while_it_lasts_neighbours_wait_for_one_late_ack_at_a_time(seed: int) -> None:
    """They share no request with the late partition, and no line forms again."""
    sim = story(seed, 0.011, linger_ms=0)
    waits = latencies_s(sim, NEIGHBOUR, BEGINS_S + 3.0, OVER_S - 1.0)
    assert LATE_S / 2 < max(waits) <= LATE_S + ROUND_TRIPS_S


@pytest.mark.parametrize("in_flight_max", [1, 5])
def test_the_late_have_their_turn_however_much_the_others_send(in_flight_max: int) -> None:
    """They go behind the others, but not for ever."""
    sim = placed(
        1,
        [[1, 2], *([1, 3] for _ in range(6))],
        linger_ms=0,
        max_in_flight_requests_per_connection=in_flight_max,
        batch_size=0,
    )
    sim.fault(SlowFollower(LATE_S, node=2, after_s=sim.now, until_s=OVER_S))
    sim.send_every(LATE, 2.0, 4)
    for partition in range(1, 7):
        sim.send_every(partition, 0.004, 2000)
    sim.run_until(sim.all_settled, 120.0)
    assert_sound(sim)
    assert LATE_S < max(latencies_s(sim, LATE, 0.0, OVER_S)) <= 2 * LATE_S + ROUND_TRIPS_S


def test_of_suspects_those_that_were_late_do_not_hold_up_the_others() -> None:
    """They share a follower that is well. The one that keeps some stuck has been late for one."""
    stuck, was_late, well = 0, 1, 2
    sim = placed(1, [[1, 2, 4], [1, 2, 4], [1, 3, 4]], linger_ms=0)
    for partition in (stuck, was_late, well):
        sim.send_every(partition, 0.01, 10)
    sim.run_until(sim.all_settled, 5.0)
    follower = SlowFollower(LATE_S, node=2, after_s=sim.now, until_s=OVER_S)
    sim.fault(follower)
    sim.send("t", was_late)
    sim.run_until(sim.all_settled, 5.0)
    follower.delay_s = OVER_S
    begin_s = sim.now
    for partition in (stuck, was_late, well):
        sim.send("t", partition)
        sim.run_for(0.002)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    (wait_s,) = latencies_s(sim, well, begin_s, sim.now)
    assert ACK_WAIT_S < wait_s <= ACK_WAIT_S + ROUND_TRIPS_S


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_that_have_yet_to_be_compressed_do_not_miss_a_request_that_takes_long(
    seed: int,
) -> None:
    """The neighbour has a record now and then: it goes with the next request, not the one after."""
    sim = placed(
        seed,
        [[1, 2], [1, 3], [1, 2], [1, 2]],
        compress_s=(0.004, 0.03),
        compression_type="gzip",
        max_in_flight_requests_per_connection=1,
    )
    sim.fault(SlowFollower(LATE_S, node=2, after_s=BEGINS_S, until_s=OVER_S))
    for partition in (LATE, 2, 3):
        sim.send_every(partition, 0.011, 1100, start_s=sim.now)
    sim.send_every(NEIGHBOUR, 1.9, 5, start_s=BEGINS_S + 0.3)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    waits = latencies_s(sim, NEIGHBOUR, BEGINS_S, OVER_S - 1.0)
    assert LATE_S < max(waits) <= 2 * LATE_S + ROUND_TRIPS_S


def test_once_it_is_over_requests_are_pipelined_again() -> None:
    """Records of ten seconds wait by then, each in a request of its own."""
    sim = story(1, 0.011, linger_ms=0, batch_size=0)
    burst = [a.request for a in wire_by_partition(sim)[LATE] if a.request.sent_at >= OVER_S + 1.0]
    under_way = [sum(r.sent_at <= at_s < r.answered_at for r in burst) for at_s in times(burst)]
    assert max(under_way) == 5


def test_who_was_late_ten_seconds_ago_is_not_held_to_be() -> None:
    sim = placed(1, [[1, 2], [1, 3]], linger_ms=0, batch_size=0)
    for partition in (LATE, NEIGHBOUR):
        sim.send_every(partition, 0.01, 10)
    sim.run_until(sim.all_settled, 5.0)
    sim.fault(SlowFollower(LATE_S, node=2, after_s=sim.now, until_s=sim.now + 1.0))
    sim.send("t", LATE)
    sim.run_until(sim.all_settled, 5.0)
    sim.send_every(NEIGHBOUR, 0.5, 21)
    sim.run_for(11.0)
    begin_s = sim.now
    for _ in range(20):
        sim.send("t", LATE)
    sim.run_until(sim.all_settled, 5.0)
    burst = [a.request for a in wire_by_partition(sim)[LATE] if a.request.sent_at >= begin_s]
    first_ack_s = min(request.answered_at for request in burst)
    assert sum(request.sent_at < first_ack_s for request in burst) == 5


def times(requests: list[WireRequest]) -> list[float]:
    return [request.sent_at for request in requests]
