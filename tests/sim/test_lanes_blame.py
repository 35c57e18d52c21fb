"""Which followers are blamed for a stuck partition, and who is suspect for their sake: partitions
with three replicas, where one follower is late and the other is well.
"""

from __future__ import annotations

from functools import partial

import pytest

from outlast.testing.faults import SlowFollower
from outlast.testing.simulation import Simulation
from tests.sim.lane_stories import ACK_WAIT_S, assert_sound, excursions, latencies_s, pauses, placed

FOREVER_S = float("inf")
BEGINS_S = 4.0


def test_a_follower_that_explains_one_stuck_partition_explains_the_next():
    """Follower 2 is late. Partition 2 shares the other follower of either stuck one. It clears that
    of the first; that of the second, which is stuck later, was never in doubt.
    """
    sim = placed(1, [[1, 2, 3], [1, 2, 4], [1, 3, 4]])
    sim.fault(SlowFollower(FOREVER_S, node=2, after_s=BEGINS_S, until_s=BEGINS_S + 15.0))
    sim.send_every(0, 0.05, 400)
    sim.at(BEGINS_S + 3.0, lambda: sim.send("t", 2))
    sim.at(BEGINS_S + 6.0, lambda: sim.send("t", 1))
    sim.at(BEGINS_S + 9.0, lambda: sim.send("t", 2))
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    assert excursions(sim) == {0: 1, 1: 1, 2: 1}
    assert latencies_s(sim, 2, BEGINS_S + 8.9, BEGINS_S + 9.1)[0] <= 0.1


@pytest.mark.parametrize("acked_s", [3.0, 7.5])
def test_a_follower_that_acks_explains_nothing_any_more(acked_s: float):
    """Follower 2 is late for partition 0 alone: partition 1 is acked, be it before or after
    partition 2, which has it, too, is stuck. So that is its other follower's doing, and partition
    3 is suspect.
    """
    sim = placed(1, [[1, 2], [1, 2], [1, 2, 4], [1, 4], [1, 3]])
    sim.fault(
        SlowFollower(
            FOREVER_S,
            node=2,
            topic="t",
            partition=0,
            after_s=BEGINS_S,
            until_s=BEGINS_S + 15.0,
        )
    )
    sim.fault(SlowFollower(FOREVER_S, node=4, after_s=BEGINS_S + 5.0, until_s=BEGINS_S + 15.0))
    sim.send_every(0, 0.05, 400)
    sim.send_every(4, 0.05, 400)
    sim.at(BEGINS_S + acked_s, lambda: sim.send("t", 1))
    sim.at(BEGINS_S + 6.0, lambda: sim.send("t", 2))
    sim.at(BEGINS_S + 9.0, lambda: sim.send("t", 3))
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    [(_, held_up_s)] = pauses(sim, 4, 0.1)
    assert held_up_s <= ACK_WAIT_S + 0.1, "by partition 0, and by nobody else"
    assert excursions(sim) == {0: 1, 1: 1, 2: 1, 3: 1}


def fallen(kill_s: float, innocent_s: float) -> Simulation:
    """Follower 2 is late, and then its node is killed, which the producer learns as that leads
    partition 3. 0 and 1 wait for it; 2 shares their other follower, and is sent to later.
    """
    sim = placed(1, [[1, 2, 4], [1, 2, 4], [1, 3, 4], [2, 3, 4], [1, 3]], linger_ms=0)
    for partition in range(5):
        sim.send_every(partition, 0.02, 20)
    sim.run_until(sim.all_settled, 5.0)
    begin_s = sim.now
    sim.fault(SlowFollower(FOREVER_S, node=2, after_s=begin_s, until_s=begin_s + 30.0))
    for partition, after_s in ((0, 0.0), (1, 0.005), (2, innocent_s), (3, kill_s), (4, 2.2)):
        sim.at(begin_s + after_s, partial(sim.send, "t", partition))
    sim.at(begin_s + kill_s, partial(sim.kill, 2))
    sim.run_until(sim.all_settled, 60.0)
    assert_sound(sim)
    return sim


def test_a_follower_that_is_known_to_be_down_explains_it():
    """It waits for the stuck one's request, behind which it is, and not for those who really wait
    for the same follower.
    """
    sim = fallen(kill_s=0.3, innocent_s=0.01)
    assert latencies_s(sim, 2, BEGINS_S - 2.0, sim.now)[-1] <= ACK_WAIT_S + 0.1
    assert 2 not in excursions(sim)


def test_a_follower_that_is_known_to_be_down_explains_it_later():
    """It goes down when they are stuck already."""
    assert 2 not in excursions(fallen(kill_s=2.5, innocent_s=2.6))
