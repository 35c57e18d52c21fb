"""The buffer's room: whatever becomes of a batch, its bytes come back."""

from __future__ import annotations

from time import process_time

import pytest
from kafka.errors import MessageSizeTooLargeError

from outlast.testing.faults import Error
from tests.sim.lane_stories import placed
from tests.sim.stories import simulation


def test_the_room_of_a_batch_that_was_cut_comes_back():
    """Too large (10) four times: it is halved until single records are blamed."""
    sim = simulation(1, topics={"t": 1}, linger_ms=5)
    sim.send()
    sim.run_until(sim.all_settled)
    fault = Error(code=10, topic="t", times=4)
    sim.cluster.faults.append(fault)
    for _ in range(8):
        sim.send()
    sim.run_until(sim.all_settled, 30.0)
    sim.check()
    assert fault.used == 4
    assert sim.sender.health(sim.now).buffer_bytes == 0


def test_the_room_of_what_expired_comes_back():
    sim = simulation(2, topics={"t": 1}, request_timeout_ms=1000, delivery_timeout_ms=1500)
    sim.send()
    sim.run_until(sim.all_settled)
    for node in (1, 2, 3):
        sim.kill(node)
    late = [sim.send() for _ in range(5)]
    assert sim.sender.health(sim.now).buffer_bytes > 0
    sim.run_until(sim.all_settled, 30.0)
    assert "acked" not in {future.entry.outcome for future in late}
    assert sim.sender.health(sim.now).buffer_bytes == 0


def _refusals_s(partitions: int) -> float:
    """CPU time of fifty refused records beside so many partitions that have been written to."""
    sim = placed(1, [[1]] * partitions, buffer_memory=1_000_000)
    for partition in range(partitions):
        sim.send("t", partition)
    sim.run_until(sim.all_settled, 60.0)
    too_large = b"v" * 1_000_000
    begun_s = process_time()
    for _ in range(50):
        with pytest.raises(MessageSizeTooLargeError):
            sim.sender.append("t", 0, None, too_large, (), 0, sim.now)
    return process_time() - begun_s


def test_a_record_that_is_refused_costs_the_same_however_many_partitions_there_are():
    few_s = min(_refusals_s(2) for _ in range(3))
    assert _refusals_s(2000) < 10 * few_s
