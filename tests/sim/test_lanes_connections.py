"""Which connections lanes need, what goes over them, and when there is only one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from kafka.protocol.producer import ProduceRequest

from outlast.engine.messages import LaneChanged, LaneReason, Role, Throttled
from outlast.testing.faults import ConnectionLimit, SlowFollower, Throttle
from outlast.testing.network import NetworkSettings
from outlast.testing.simulation import Simulation
from tests.sim.lane_stories import (
    ACK_WAIT_S,
    METADATA,
    PRODUCE,
    assert_lanes_kept,
    assert_sound,
    excursions,
    longest_pause_s,
    pauses,
    placed,
    role_of,
    wire_by_partition,
)
from tests.sim.stories import load

pytestmark = pytest.mark.timeout(300)

FOREVER_S = float("inf")
LINES = [[1, 2], [1, 2], [1, 3], [1, 3], [2, 3], [3, 1]]
STUCK, WELL = (0, 1), (2, 3)  # of leader 1, once node 2 is stuck


def stuck(seed: int, *, until_s: float = 15.0, load_s: float = 17.0, **options) -> Simulation:
    """Node 2 is stuck as a follower from 5 s to `until_s`; all is under load. Not run yet."""
    sim = placed(seed, LINES, **options)
    sim.fault(SlowFollower(FOREVER_S, node=2, after_s=5.0, until_s=until_s))
    load(sim, interval_s=0.04, count=int(load_s / 0.04))
    return sim


def produce_timeouts_ms(sim: Simulation) -> Counter[int]:
    """What every Produce request asked for."""
    found: Counter[int] = Counter()
    for request in sim.network.requests:
        if request.api_key == PRODUCE:
            produce = ProduceRequest.decode(request.frame, version=request.api_version, header=True)
            found[produce.timeout_ms] += 1
    return found


def newest(sim: Simulation, node_id: int, role: str) -> int:
    """The connection of this kind that was made last, as the wire counts them."""
    return max(c.conn for c in sim.network.connects if (c.node_id, c.role) == (node_id, role))


class TestControl:
    @pytest.mark.parametrize("seed", [1, 2])
    def test_metadata_waits_for_nobody(self, seed: int):
        """Every follower is stuck at once, and leaders are asked for again and again."""
        sim = placed(seed, LINES, metadata_max_age_ms=300)
        for node in (1, 2, 3):
            sim.fault(SlowFollower(FOREVER_S, node=node, after_s=5.0, until_s=10.0))
        load(sim, interval_s=0.04, count=300)
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)
        asked = [r for r in sim.network.requests if r.api_key == METADATA]
        took_s = [(r.answered_at or sim.now) - r.sent_at for r in asked]
        assert len(asked) > 30
        assert max(took_s) < 0.01

    def test_in_sync_sets_are_asked_for_once_a_second_while_a_partition_is_stuck(self):
        """They shrink without raising an epoch (A8)."""
        sim = stuck(1)
        sim.run_until(sim.all_settled, 60.0)
        asked = [r.sent_at for r in sim.network.requests if r.api_key == METADATA]
        meanwhile = [at_s for at_s in asked if 6.1 < at_s < 15.0]
        assert max(b - a for a, b in pairwise(meanwhile)) <= 1.3
        assert len(meanwhile) <= 12
        assert not [at_s for at_s in asked if at_s > 17.0]


class TestIdle:
    def test_the_slow_lane_closes_when_it_is_not_used_for_10_s(self):
        sim = stuck(1, load_s=27.0)

        def slow() -> list[int]:
            return [c.node_id for c in sim.network.standing() if c.role is Role.SLOW]

        sim.run_for(10.0 - sim.now)
        assert slow() == [1]
        sim.run_for(24.0 - sim.now)
        assert slow() == [1]
        sim.run_for(28.0 - sim.now)
        assert slow() == []
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)

    def test_it_is_opened_again_when_it_is_needed_again(self):
        sim = stuck(1, load_s=42.0)
        sim.fault(SlowFollower(FOREVER_S, node=2, after_s=32.0, until_s=36.0))
        sim.run_until(sim.all_settled, 90.0)
        assert_sound(sim)
        made = [c for c in sim.network.connects if (c.node_id, c.role) == (1, "slow")]
        assert len(made) == 2
        assert [excursions(sim)[p] for p in STUCK] == [2, 2]

    def test_without_trouble_there_is_no_slow_lane(self):
        sim = placed(1, LINES)
        load(sim, count=300)
        sim.run_until(sim.all_settled, 60.0)
        assert "slow" not in {c.role for c in sim.network.connects}
        assert excursions(sim) == {}


class TestOneLane:
    """A repeat would be a second copy, or nobody waits for followers: one lane, as ever."""

    @pytest.mark.parametrize("acks", ["all", 1, 0])
    def test_without_idempotence_there_is_one_produce_connection_a_broker(self, acks):
        sim = stuck(2, acks=acks, enable_idempotence=False, request_timeout_ms=17_000)
        sim.run_until(sim.all_settled, 60.0)
        assert sim.check().failed == 0
        made = Counter(
            (c.node_id, c.role) for c in sim.network.connects if c.role in ("open", "slow")
        )
        assert made == {(1, "open"): 1, (2, "open"): 1, (3, "open"): 1}
        assert set(produce_timeouts_ms(sim)) == {15_300}, "nine tenths of the request time-out"
        assert excursions(sim) == {}
        if acks == "all":
            assert longest_pause_s(sim, WELL[0]) > 9.0, "as with every other client"
        else:
            assert longest_pause_s(sim, WELL[0]) < 0.1
        assert_lanes_kept(sim)


class TestAckWait:
    """With lanes the broker itself says who is stuck: its time-out is the ack wait."""

    def timeouts_ms(self, **options) -> Counter[int]:
        sim = placed(3, LINES, **options)
        load(sim, interval_s=0.05, count=60)
        sim.run_until(sim.all_settled, 60.0)
        assert sim.check().failed == 0
        return produce_timeouts_ms(sim)

    def test_it_is_ack_wait_ms(self):
        assert set(self.timeouts_ms()) == {1000}
        assert set(self.timeouts_ms(ack_wait_ms=400)) == {400}

    def test_it_is_at_most_half_of_the_request_time_out(self):
        assert set(self.timeouts_ms(ack_wait_ms=1000, request_timeout_ms=1200)) == {600}

    def test_it_is_four_times_what_acks_usually_take(self):
        sim = placed(3, [[1, 2]])
        sim.fault(SlowFollower(0.7, node=2))
        sim.send_every(0, 2.0, 20)
        sim.run_until(sim.all_settled, 60.0)
        *_, last = (r for r in sim.network.requests if r.api_key == PRODUCE)
        produce = ProduceRequest.decode(last.frame, version=last.api_version, header=True)
        assert 2800 <= produce.timeout_ms <= 2820


class TestNoSecondConnection:
    """The broker takes no more connections from this host: both lanes share the one there is."""

    def limited(self, seed: int, *, stuck_until_s: float, limit_until_s: float) -> Simulation:
        """The limit is what there is shortly before node 2 gets stuck."""
        sim = stuck(seed, until_s=stuck_until_s, load_s=18.0)

        def limit() -> None:
            standing = len(sim.cluster.nodes[1].connections)
            sim.fault(ConnectionLimit(standing, node=1, until_s=limit_until_s))

        sim.at(4.5, limit)
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)
        assert sim.gaps() == []
        [fault] = [f for f in sim.cluster.faults if isinstance(f, ConnectionLimit)]
        assert fault.used >= 1
        return sim

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_both_lanes_share_one_and_records_flow(self, seed: int):
        sim = self.limited(seed, stuck_until_s=13.0, limit_until_s=30.0)
        wire = wire_by_partition(sim)
        for partition in WELL:
            longest_s = longest_pause_s(sim, partition)
            assert longest_s <= 3 * ACK_WAIT_S + 0.3, (seed, partition, longest_s)
            acked = {a.ended_at for a in wire[partition] if a.accepted and 8 < a.ended_at < 13}
            assert len(acked) >= 4, "every ack wait at least"
        for partition in STUCK:
            assert longest_pause_s(sim, partition) <= 13.0 - 5.0 + 1.0
        carried = {a.request.conn for p in (*STUCK, *WELL) for a in wire[p] if 8 < a.sent_at < 20}
        assert len(carried) == 1, carried

    def test_the_second_lane_is_opened_as_soon_as_it_can_be(self):
        sim = self.limited(1, stuck_until_s=18.0, limit_until_s=13.0)
        for partition, wire in wire_by_partition(sim).items():
            late = [a for a in wire if 14.5 < a.sent_at < 18.0]
            lane = "slow" if partition in STUCK else "open"
            assert {role_of(sim, a.request) for a in late} == {lane}, partition
        for partition in WELL:
            assert [h for h in pauses(sim, partition, 0.1) if h[0] > 14.5] == []


class TestThrottle:
    THROTTLE_S = 4.0

    def throttled(self, seed: int, role: str, at_s: float, one_way_s: float = 0.0005):
        """The broker throttles one connection of node 1 while node 2 is stuck."""
        network = NetworkSettings(latency_s=(one_way_s, one_way_s))
        sim = stuck(seed, network=network, request_timeout_ms=3000)
        conns: list[int] = []

        def strike() -> None:
            conns.append(newest(sim, 1, role))
            sim.fault(Throttle(self.THROTTLE_S, connection=conns[0], times=1))

        sim.at(at_s, strike)
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)
        assert sim.gaps() == []
        [told] = [f for f in sim.facts if isinstance(f, Throttled)]
        assert told.throttle_s == self.THROTTLE_S
        assert (told.connection.node_id, told.connection.role.value) == (1, role)
        over = [r.sent_at for r in sim.network.requests if r.conn == conns[0]]
        quiet = [at for at in over if told.at_s < at < told.at_s + self.THROTTLE_S]
        assert quiet == []
        return sim, told

    @pytest.mark.parametrize("one_way_s", [0.0005, 0.03], ids=["idle pipe", "full pipe"])
    @pytest.mark.parametrize("at_s", [3.0, 9.0], ids=["before", "meanwhile"])
    def test_the_open_lane_waits_and_nothing_else_does(self, at_s: float, one_way_s: float):
        sim, told = self.throttled(1, "open", at_s, one_way_s)
        end_s = told.at_s + self.THROTTLE_S
        for partition in WELL:
            assert longest_pause_s(sim, partition) <= self.THROTTLE_S + 1.5
            for stall in sim.sender.stalls(sim.now):
                if stall.partition == partition:
                    begin_s = max(stall.begin_s, told.at_s)
                    assert min(stall.begin_s + stall.duration_s, end_s) <= begin_s, stall
        for partition in (4, 5):  # of other brokers
            assert longest_pause_s(sim, partition) < 0.2

    def test_the_slow_lane_waits_and_nothing_else_does(self):
        sim, told = self.throttled(2, "slow", 9.0)
        for partition in WELL:
            held = [h for h in pauses(sim, partition, 0.1) if h[0] > 6.5]
            assert held == [], partition
        assert told.at_s < 11.0

    def test_control_waits_and_nothing_else_does(self):
        sim = placed(3, LINES, metadata_max_age_ms=500)
        load(sim, interval_s=0.04, count=250)
        sim.at(4.0, lambda: sim.fault(Throttle(3.0, api=METADATA, times=1)))
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)
        assert sim.gaps() == []
        for partition, _ in enumerate(LINES):
            assert longest_pause_s(sim, partition) < 0.1


class TestReasons:
    def test_a_partition_whose_follower_is_known_to_be_down_starts_in_the_slow_lane(self):
        """So its first record holds nobody up."""
        sim = placed(1, [*LINES, [1, 3]])
        rare = len(LINES)
        for partition in (0, 1, 5):  # followers 2 and 1; 5 is led by node 3
            sim.send_every(partition, 0.02, 700, start_s=sim.now + 0.003 * partition)
        sim.at(4.0, lambda: sim.kill(3))
        sim.at(7.0, lambda: sim.send("t", rare))
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)
        for partition in (0, 1):
            assert longest_pause_s(sim, partition) < 0.1
        changes = [f for f in sim.facts if isinstance(f, LaneChanged) and f.partition == rare]
        assert changes[0].reason is LaneReason.FOLLOWER_DOWN
        assert {role_of(sim, a.request) for a in wire_by_partition(sim)[rare]} == {"slow"}

    def test_an_ack_in_usual_time_proves_a_node_well_that_we_cannot_reach(self):
        """Only this host cannot connect to it: as a follower it does what it should."""
        sim = placed(2, LINES)
        load(sim, interval_s=0.04, count=250)
        sim.at(4.0, lambda: sim.refuse(3))
        sim.at(10.0, lambda: sim.accept(3))
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)
        wire = wire_by_partition(sim)
        for partition in WELL:  # node 3 is their follower
            assert longest_pause_s(sim, partition) < 0.1
            late = [a for a in wire[partition] if a.sent_at > 4.2]
            assert {role_of(sim, a.request) for a in late} == {"open"}
            assert excursions(sim)[partition] == 1

    def test_a_new_leader_is_a_new_start(self):
        """The stuck follower itself takes over, and the others follow it as quickly as ever."""
        sim = placed(1, [[1, 2, 3], [1, 3], [2, 1]])
        sim.fault(
            SlowFollower(FOREVER_S, node=2, topic="t", partition=0, after_s=4.0, until_s=60.0)
        )
        load(sim, interval_s=0.04, count=250)
        sim.at(8.0, lambda: sim.move_leader(0, 2))
        sim.run_until(sim.all_settled, 60.0)
        assert_sound(sim)
        told = [
            (f.lane, f.reason, f.node_id)
            for f in sim.facts
            if isinstance(f, LaneChanged) and f.partition == 0
        ]
        assert told[0] == (Role.SLOW, LaneReason.STUCK, 1)
        assert told[1][:2] == (Role.OPEN, LaneReason.MOVED)
        after = [a for a in wire_by_partition(sim)[0] if a.sent_at > 9.0]
        assert {(role_of(sim, a.request), a.request.node_id) for a in after} == {("open", 2)}

    def test_health_names_who_is_held_up_and_why(self):
        sim = stuck(1)
        sim.run_for(9.0 - sim.now)
        held = {h.partition: h for h in sim.sender.health(sim.now).held_up}
        assert set(held) == set(STUCK)
        for partition in STUCK:
            told = held[partition]
            assert (told.reason, told.lane, told.lane_reason) == (
                "stall: follower",
                "slow",
                "stuck",
            )
            assert 3.5 < told.oldest_age_s < 4.5
            assert told.buffer_bytes > 0
        [*stalls] = sim.sender.health(sim.now).open_stalls
        assert {(s.partition, s.lane, s.reason) for s in stalls} == {
            (p, "slow", "follower") for p in STUCK
        }
        sim.run_until(sim.all_settled, 60.0)
        assert sim.sender.health(sim.now).held_up == ()
