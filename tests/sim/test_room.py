"""The buffer's room: whatever becomes of a batch, its bytes come back."""

from __future__ import annotations

from outlast.testing.faults import Error
from tests.sim.stories import simulation


def test_the_room_of_a_batch_that_was_cut_comes_back():
    """Too large (10), until it is cut into single records; two of these never pass."""
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
    for node in (1, 2, 3):
        sim.kill(node)
    sim.run_for(0.1)
    sent = [sim.send() for _ in range(5)]
    sim.run_for(0.1)
    assert sim.sender.health(sim.now).buffer_bytes > 0 or not sent[0].entry.taken_at
    for node in (1, 2, 3):
        sim.start(node)
    sim.run_until(sim.all_settled, 30.0)
    first = sim.send()
    sim.run_until(sim.all_settled, 30.0)
    assert first.entry.outcome == "acked"
    for node in (1, 2, 3):
        sim.kill(node)
    late = [sim.send() for _ in range(5)]
    sim.run_until(sim.all_settled, 30.0)
    assert {future.entry.outcome for future in late} != {"acked"}
    assert sim.sender.health(sim.now).buffer_bytes == 0
