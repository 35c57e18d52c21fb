"""Which followers are blamed for a stuck partition, and who is suspect for their sake: partitions
with three replicas, where one follower is late and the other is well.
"""

from __future__ import annotations

import pytest

from outlast.testing.faults import SlowFollower
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
