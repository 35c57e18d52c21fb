"""A node falls silent while both of its produce lanes owe answers."""

from __future__ import annotations

import pytest

from outlast.testing.faults import SlowFollower
from outlast.testing.simulation import Simulation


@pytest.mark.parametrize("seed", range(1, 4))
def test_one_lane_may_time_out_in_the_step_in_which_the_other_is_found_silent(seed):
    """Silence time-out and the probe's own are together the request time-out."""
    sim = Simulation(
        seed,
        topics={"t": 2},
        assignment={"t": [[1, 2], [1, 3]]},
        linger_ms=0,
        ack_wait_ms=300,
        silence_timeout_ms=1000,
        request_timeout_ms=2000,
    )
    for partition in (0, 1):
        sim.send_every(partition, interval_s=0.01, count=400)
    sim.run_for(1.0)
    sim.fault(SlowFollower(30.0, node=2, until_s=4.0))  # t-0 goes over the slow lane
    sim.run_for(1.0)
    sim.pause(1)
    sim.run_for(3.0)
    sim.resume(1)
    sim.run_until(sim.all_settled)
    assert sim.check().failed == 0
