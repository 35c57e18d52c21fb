"""Bytes and seconds that must add up, connections that are few, neighbours that are left alone:
what random runs find to be amiss, if it is.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from outlast.engine.gap import GapRecorder
from outlast.engine.intake import Intake
from outlast.engine.lanes import Lanes
from outlast.testing.faults import SlowFollower
from outlast.testing.holdups import hold_ups, too_long
from outlast.testing.invariants import connections, lanes
from outlast.testing.network import NetworkSettings
from outlast.testing.simulation import Simulation
from outlast.testing.swarm import run_seed
from outlast.testing.troubles import Troubles
from outlast.testing.wire import WireConnect, WireRequest
from outlast.testing.world import World, draw_world

PRODUCE, METADATA, API_VERSIONS = 0, 3, 18


def found(seeds, text, wanted=lambda _world: True) -> bool:
    """Whether one of these random runs finds it. `wanted`: the worlds to look at."""
    worlds: list[tuple[int, World]] = [(s, draw_world(Random(f"{s}/world"))) for s in seeds]
    return any(
        text in finding
        for seed, world in worlds
        if wanted(world)
        for finding in run_seed(seed).findings
    )


@pytest.mark.source
def test_room_that_a_waiter_never_gives_back_is_found(monkeypatch):
    monkeypatch.setattr(Intake, "forget", lambda *_: None)

    def small(world):
        return world.keywords["buffer_memory"] == 4000

    assert found(range(101, 251), "bytes of the buffer are taken", small)


@pytest.mark.source
def test_a_stall_that_begins_inside_a_gap_is_found(monkeypatch):
    monkeypatch.setattr(GapRecorder, "ended_s", lambda *_: 0.0)
    assert found(range(1, 61), "share")


# --- connections --------------------------------------------------------------------------------


def wire(*connects, requests=(), idempotent=True):
    """What the network would have seen of a producer: (node, role, began, closed) and
    (connection from 1, API, sent, answered).
    """
    seen = [WireConnect(i, *c[:3], closed_at=c[3]) for i, c in enumerate(connects, 1)]
    asked = [
        WireRequest(conn, seen[conn - 1].node_id, i, api, 9, b"", sent_s, answered_at=answered_s)
        for i, (conn, api, sent_s, answered_s) in enumerate(requests)
    ]
    network = SimpleNamespace(connects=seen, requests=asked)
    return SimpleNamespace(network=network, settings=SimpleNamespace(idempotent=idempotent))


@pytest.mark.parametrize(
    ("connects", "complaint"),
    [
        ([(1, "open", 0.0, 1.0), (1, "open", 1.0, None), (2, "open", 0.0, None)], ""),
        ([(1, "open", 0.0, 1.0), (1, "open", 0.9, None)], "2 open connections"),
        ([(1, "slow", 0.0, None), (1, "slow", 0.9, None)], "2 slow connections"),
        ([(1, "probe", 0.0, None), (1, "probe", 0.9, None)], "2 probe connections"),
        ([(1, "control", 0.0, None)] * 2, ""),
        ([(1, "control", 0.0, None)] * 3, "3 control connections"),
        ([(n, "control", 0.0, None) for n in (1, 2, 3, 4)], "there are 4 control connections"),
    ],
)
def test_connections_are_counted(connects, complaint):
    complaints = list(connections(wire(*connects)))
    assert bool(complaints) == bool(complaint)
    assert all(complaint in text for text in complaints)


def test_without_idempotence_a_slow_lane_is_amiss():
    assert list(connections(wire((1, "slow", 0.0, None), idempotent=False)))


@pytest.mark.parametrize(
    ("requests", "complaint"),
    [
        ([(1, PRODUCE, 0.0, 0.1), (2, PRODUCE, 0.0, 0.1), (3, METADATA, 0.0, 0.1)], ""),
        ([(n, API_VERSIONS, 0.0, 0.1) for n in (1, 2, 3)], ""),
        ([(1, PRODUCE, 0.0, 0.3), (1, PRODUCE, 0.1, 0.4)], ""),  # pipelined in the open lane
        ([(2, PRODUCE, 0.0, 0.3), (2, PRODUCE, 0.3, 0.4)], ""),
        ([(1, METADATA, 0.0, 0.1)], "API 3 goes over a open connection"),
        ([(3, PRODUCE, 0.0, 0.1)], "API 0 goes over a control connection"),
    ],
)
def test_requests_go_where_they_belong(requests, complaint):
    roles = [(1, "open", 0.0, None), (1, "slow", 0.0, None), (1, "control", 0.0, None)]
    complaints = list(lanes(wire(*roles, requests=requests)))
    assert bool(complaints) == bool(complaint)
    assert all(complaint in text for text in complaints)


@pytest.mark.source
def test_a_request_behind_a_stuck_one_is_amiss(monkeypatch):
    def story():
        replicas = [[1, 2], [1, 3], [1, 2]]
        sim = Simulation(1, topics={"t": 3}, assignment={"t": replicas}, linger_ms=0)
        for partition in (0, 1):
            sim.send_every(partition, interval_s=0.05, count=100)
        sim.send_every(2, interval_s=0.3, count=10, start_s=3.1)  # a suspect
        sim.run_for(1.0)
        sim.fault(SlowFollower(30.0, node=2, until_s=5.0))
        sim.run_until(sim.all_settled)
        return list(lanes(sim))

    assert story() == []
    monkeypatch.setattr(Lanes, "all_well", lambda *_: True)
    assert any("a second request is under way in a slow lane" in text for text in story())


# --- neighbours ---------------------------------------------------------------------------------


@pytest.fixture
def one_lane(monkeypatch):
    """The engine as it was before it had lanes."""
    begin = Lanes.__init__

    def without(self, *args):
        begin(self, *args)
        self.enabled = False

    monkeypatch.setattr(Lanes, "__init__", without)


def beside_a_stuck_one(seed=1, until_s=9.0):
    """t-0 has a follower that stops for some seconds; t-1 has the same leader and another one."""
    sim = Simulation(seed, topics={"t": 2}, assignment={"t": [[1, 2], [1, 3]]}, linger_ms=0)
    troubles = Troubles()
    for partition in (0, 1):
        sim.send_every(partition, interval_s=0.05, count=240)
    sim.run_for(1.0)
    sim.fault(SlowFollower(30.0, node=2, until_s=until_s))
    troubles.note("SlowFollower", sim.now, until_s, node=2).hard = True
    sim.run_until(sim.all_settled)
    sim.check()
    return sim, hold_ups(sim, troubles)


def test_a_partition_without_fault_is_held_up_for_its_bound_at_most():
    sim, beside = beside_a_stuck_one()
    assert {hold_up.partition for hold_up in beside if hold_up.causes} == {1}
    assert 0.9 < max(hold_up.duration_s for hold_up in beside) < 1.3, "one ack wait"
    assert list(too_long(sim, NetworkSettings(), beside)) == []


@pytest.mark.source
@pytest.mark.usefixtures("one_lane")
def test_one_that_is_held_up_for_longer_is_found():
    sim, beside = beside_a_stuck_one()
    complaint, *_ = too_long(sim, NetworkSettings(), beside)
    assert "t-1 is without fault" in complaint
    assert "troubles of 1 others" in complaint


def test_what_the_partition_suffers_itself_is_no_hold_up():
    sim, _ = beside_a_stuck_one()
    troubles = Troubles()
    troubles.note("SlowFollower", 1.0, 9.0, node=1)  # the leader of both
    assert not [h for h in hold_ups(sim, troubles) if h.begin_s > 1.0]


def test_without_a_cause_ten_round_trips_are_the_most():
    sim, _ = beside_a_stuck_one()
    complaints = list(too_long(sim, NetworkSettings(), hold_ups(sim, Troubles())))
    assert any("t-0 is without fault" in text for text in complaints), "nobody told of its trouble"
    assert all("troubles of 0 others" in text for text in complaints)


def test_many_short_waits_for_one_cause_are_found_as_well():
    sim, beside = beside_a_stuck_one()
    [long] = [hold_up for hold_up in beside if hold_up.duration_s > 0.5]
    assert list(too_long(sim, NetworkSettings(), [long] * 2)) == []
    [complaint] = set(too_long(sim, NetworkSettings(), [long] * 4))
    assert "held up 4 times" in complaint


@pytest.mark.source
@pytest.mark.usefixtures("one_lane")
def test_random_runs_find_neighbours_that_pay():
    assert found(range(1, 61), "without fault", lambda world: world.bad_nodes is not None)
