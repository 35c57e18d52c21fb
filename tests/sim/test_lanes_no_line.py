"""What looks like a line behind late acks and is none: nothing is torn down, nothing sent twice."""

from __future__ import annotations

import pytest

from outlast.testing.faults import Freeze, SlowFollower
from outlast.testing.network import NetworkSettings
from outlast.testing.simulation import Simulation
from tests.sim.lane_stories import assert_sound, latencies_s, placed, repeats, wire_by_partition

FOUR = [[1, 2]] * 4
AWAY_S = 0.6


def assert_left_alone(sim: Simulation) -> None:
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    assert sum(map(repeats, wire_by_partition(sim).values())) == 0
    assert [c.role for c in sim.network.connects].count("open") == 1


def load_of_four(sim: Simulation) -> None:
    for partition in range(4):
        sim.send_every(partition, 0.02, 150, start_s=sim.now + 0.005 * partition)


def test_a_leader_that_stood_still_for_a_moment_is_left_alone() -> None:
    """Garbage collection: what is in flight is answered in one go when it is over."""
    sim = placed(1, FOUR, linger_ms=0)
    load_of_four(sim)
    for begin_s in (sim.now + 0.5, sim.now + 1.7):
        sim.fault(Freeze(node=1, after_s=begin_s, until_s=begin_s + AWAY_S))
    assert_left_alone(sim)


def test_that_this_process_stood_still_is_not_the_leaders_lateness() -> None:
    """The answers have come meanwhile: all are read before anybody is given up."""
    sim = placed(1, FOUR, linger_ms=0, network=NetworkSettings(latency_s=(0.012, 0.012)))
    load_of_four(sim)
    for at_s in (sim.now + 0.5007, sim.now + 1.7007):
        sim.at(at_s, lambda: sim.pause_driver(AWAY_S))
    assert_left_alone(sim)


def test_behind_one_late_ack_others_that_are_well_form_no_line() -> None:
    sim = placed(1, [[1, 2], [1, 3], [1, 3]], linger_ms=0)
    sim.fault(SlowFollower(0.7, node=2, after_s=sim.now))
    sim.send_every(0, 2.0, 3, start_s=sim.now + 0.3)
    for partition in (1, 2):
        sim.send_every(partition, 0.01, 500, start_s=sim.now + 0.003 * partition)
    assert_left_alone(sim)


def test_a_long_way_is_no_lateness() -> None:
    """Answers that came in one go are no measure of what one alone takes."""
    sim = placed(
        1,
        [[1, 2]],
        linger_ms=0,
        batch_size=4000,
        request_timeout_ms=30_000,
        silence_timeout_ms=4000,
        network=NetworkSettings(latency_s=(0.3, 0.3)),
    )
    sim.run_for(5.0)
    for count in (1, 30, 1):
        for _ in range(count):
            sim.send(size_bytes=1000)
        sim.run_until(sim.all_settled, 60.0)
    begin_s = sim.now
    sim.send_every(0, 0.05, 200, size_bytes=1000)
    sim.run_until(sim.all_settled, 120.0)
    assert_sound(sim)
    assert max(latencies_s(sim, 0, begin_s + 2.0, sim.now)) <= 2 * 0.6 + 0.2


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_a_batch_takes_records_until_it_can_go(codec: str | None) -> None:
    """An ack takes 0.2 s, and one request is under way: a record waits for one ack and its own."""
    sim = placed(1, [[1, 2]], max_in_flight_requests_per_connection=1, compression_type=codec)
    sim.fault(SlowFollower(0.2, node=2, after_s=sim.now))
    sim.send_every(0, 0.01, 300)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    assert max(latencies_s(sim, 0, 0.0, sim.now)) <= 2 * 0.2 + 0.05


def test_bytes_that_take_long_to_be_compressed_are_waited_for_for_50_ms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = placed(
        1,
        [[1, 2]] * 3,
        linger_ms=0,
        compression_type="gzip",
        network=NetworkSettings(latency_s=(0.03, 0.03)),
    )
    for partition in (0, 1, 2):
        sim.send("t", partition)
    sim.run_until(sim.all_settled, 60.0)
    sim.send("t", 1)
    sim.run_until(sim.all_settled, 60.0)
    monkeypatch.setattr(sim, "compress_s", (2.0, 2.0))
    begin_s = sim.now
    sim.send("t", 0)
    sim.run_for(0.002)
    monkeypatch.setattr(sim, "compress_s", (0.0, 0.0))
    sim.send("t", 2)
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    assert max(latencies_s(sim, 2, begin_s, sim.now)) <= 0.06 + 0.05 + 0.01
