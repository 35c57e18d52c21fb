"""The buffer's room and the records without key, while some partitions are held up: who gets what.

(The unit rules are in tests/engine/test_shares.py, the stories with threads in tests/tcp.)
"""

from __future__ import annotations

from collections import Counter

import pytest

from outlast.engine.messages import Throttled
from outlast.testing.application import SimFuture
from outlast.testing.faults import Error, MetadataLeaderless, Slow, Throttle
from outlast.testing.simulation import Simulation
from tests.sim.stories import load, simulation

NOT_LEADER, PRODUCE = 6, 0


def warm(sim: Simulation) -> float:
    """Every leader is known and connected. Returns the time."""
    for topic, partition in sim.partitions():
        sim.send(topic, partition)
    sim.run_until(sim.all_settled)
    return sim.now


def send_keyless(sim: Simulation, rate: int, duration_s: float, size_bytes: int) -> list[SimFuture]:
    """Plan records that may go anywhere; the list fills as they are sent."""
    sent: list[SimFuture] = []
    for i in range(int(rate * duration_s)):
        sim.at(sim.now + i / rate, lambda: sent.append(sim.send(size_bytes=size_bytes)))
    return sent


def shares(sent: list[SimFuture], begin_s: float, end_s: float) -> Counter[int]:
    """How many records each partition got, of those sent in this time."""
    return Counter(f.entry.partition for f in sent if begin_s <= f.entry.sent_at < end_s)


class TestKeyless:
    @pytest.mark.parametrize(("size_bytes", "linger_ms"), [(100, 0), (400, 0), (400, 5), (1000, 0)])
    def test_b89_a_slow_broker_gets_no_more_than_its_even_share(
        self, size_bytes: int, linger_ms: int
    ) -> None:
        """It answers 200 ms late, so that its batches leave late; 1 kB is more than it can take."""
        sim = simulation(1, linger_ms=linger_ms)
        warm(sim)
        sim.cluster.faults.append(Slow(node=sim.leader(2), api=PRODUCE, delay_s=0.2))
        buffered: list[int] = []
        sent = send_keyless(sim, rate=2000, duration_s=4.0, size_bytes=size_bytes)
        for n in range(40):
            sim.at(
                sim.now + n / 10,
                lambda: buffered.append(sim.sender.health(sim.now).buffer_bytes),
            )
        sim.run_until(sim.all_settled, 60.0)
        sim.check()
        got = Counter(f.entry.partition for f in sent)
        print(got, max(buffered))
        assert got[2] <= 0.4 * len(sent)
        assert max(got[0], got[1]) <= 1.1 * min(got[0], got[1])
        assert max(buffered) <= 2_000_000  # some two seconds of what the slow one gets

    def test_a_partition_whose_oldest_record_waits_for_a_second_is_avoided(self) -> None:
        """No error, no gap: its leader takes 5 s for every answer."""
        sim = simulation(2, linger_ms=0)
        warm(sim)
        slow_s, over_s = sim.now + 1.0, sim.now + 9.0
        sim.cluster.faults.append(
            Slow(node=sim.leader(0), api=PRODUCE, delay_s=5.0, after_s=slow_s, until_s=over_s)
        )
        sent = send_keyless(sim, rate=200, duration_s=15.0, size_bytes=500)
        sim.run_until(sim.all_settled, 60.0)
        sim.check()
        assert sim.gaps() == []
        avoided = shares(sent, slow_s + 1.5, over_s)
        assert avoided[0] == 0
        assert sum(avoided.values()) > 1200

    @pytest.mark.parametrize("seed", [3, 4])
    def test_its_share_comes_back_without_a_stampede(self, seed: int) -> None:
        """Nobody makes up for what a partition missed, and nobody goes on avoiding it."""
        sim = simulation(seed, topics={"t": 6}, linger_ms=0)
        warm(sim)
        begin_s = sim.now + 1.0
        window = {"topic": "t", "partition": 0, "after_s": begin_s, "until_s": begin_s + 4.0}
        sim.cluster.faults += [Error(NOT_LEADER, **window), MetadataLeaderless(**window)]
        sent = send_keyless(sim, rate=300, duration_s=8.0, size_bytes=500)
        sim.run_until(sim.all_settled, 60.0)
        sim.check()
        [gap] = sim.gaps(0)
        back_s = gap.begin_s + gap.duration_s
        assert shares(sent, gap.begin_s + 0.2, back_s - 0.01)[0] == 0
        for after_s, length_s in ((0.1, 1.0), (1.1, 1.0)):
            got = shares(sent, back_s + after_s, back_s + after_s + length_s)
            even = 300 * length_s / 6
            assert sorted(got) == list(range(6))
            assert max(got.values()) <= 1.6 * even, got
            assert min(got.values()) >= 0.5 * even, got

    def test_one_that_waits_for_room_does_not_wait_for_a_dead_partition(self) -> None:
        """The buffer is full when one of two dies. Twenty threads wait, some of them for it."""
        sim = simulation(16, topics={"t": 2}, linger_ms=0, buffer_memory=300_000)
        warm_s = warm(sim)
        window = {"topic": "t", "partition": 0, "after_s": warm_s, "until_s": warm_s + 20.0}
        sim.cluster.faults += [
            Slow(node=sim.leader(1), api=PRODUCE, delay_s=0.3, until_s=warm_s + 1.0),
            Error(NOT_LEADER, **window),
            MetadataLeaderless(**window),
        ]
        for partition in (0, 1):
            for _ in range(30):
                sim.send("t", partition, size_bytes=4000)
        anywhere = [sim.send(size_bytes=4000, thread=f"thread-{n}") for n in range(40)]
        blocked = [f for f in anywhere if f.entry.taken_at is None]
        assert len(blocked) >= 20
        sim.run_for(5.0)
        assert [f.entry.partition for f in blocked] == [1] * len(blocked)
        assert all(f.entry.outcome == "acked" for f in blocked)
        sim.run_until(sim.all_settled, 60.0)
        sim.check()


class TestRoom:
    def test_a_full_buffer_does_not_make_batches_small(self) -> None:
        """Else each record that finds room is a batch of its own, ever less leaves with a request,
        and the buffer stays full.
        """
        sim = simulation(6, topics={"t": 16}, linger_ms=0, buffer_memory=1_000_000)
        warm(sim)
        sim.cluster.faults.append(Slow(api=PRODUCE, delay_s=0.2))
        for partition in range(16):
            sim.send_every(partition, 0.001, 2000, size_bytes=100)
        begin_s, sizes = sim.now, []
        for second in range(2, 8):
            sim.run_until(lambda end_s=begin_s + second: sim.now >= end_s, 5.0)
            recent = [r for r in sim.cluster.request_log if r.received_at_s > sim.now - 1.0]
            counts = [part.count for request in recent for part in request.partitions]
            sizes.append(sum(counts) / len(counts))
        print([round(size, 1) for size in sizes])
        assert min(sizes) >= 15

    @pytest.mark.parametrize("seed", [7, 8])
    def test_no_record_of_a_healthy_partition_waits_while_others_are_dead(self, seed: int) -> None:
        """Two of six partitions have no leader for 10 s, and would fill the buffer four times."""
        sim = simulation(
            seed, topics={"t": 6}, buffer_memory=1_000_000, linger_ms=5, delivery_timeout_ms=60_000
        )
        warm_s = warm(sim)
        dead = sim.stream("dead").sample(range(6), 2)
        for partition in dead:
            window = {
                "topic": "t",
                "partition": partition,
                "after_s": sim.now + 1.0,
                "until_s": sim.now + 11.0,
            }
            sim.cluster.faults += [Error(NOT_LEADER, **window), MetadataLeaderless(**window)]
        most = {"held": 0, "all": 0}

        def look() -> None:
            health = sim.sender.health(sim.now)
            held = sum(h.buffer_bytes for h in health.held_up if h.partition in dead)
            most["held"] = max(most["held"], held)
            most["all"] = max(most["all"], health.buffer_bytes)

        for n in range(100):
            sim.at(sim.now + n / 10, look)
        for partition in range(6):
            sim.send_every(partition, 0.02, 550, size_bytes=4000)
        sim.run_until(sim.all_settled, 90.0)
        sim.check()
        waits_s: dict[int, float] = dict.fromkeys(range(6), 0.0)
        for entry in sim.ledger.entries:
            if entry.taken_at is not None and entry.sent_at > warm_s:
                waited_s = entry.taken_at - entry.sent_at
                waits_s[entry.partition] = max(waits_s[entry.partition], waited_s)
        print(dead, waits_s, most)
        assert all(waits_s[p] == 0.0 for p in range(6) if p not in dead)
        assert all(waits_s[p] > 5.0 for p in dead)
        assert 400_000 < most["held"] <= 500_000
        assert sim.sender.health(sim.now).buffer_bytes == 0

    def test_the_only_one_may_use_all_of_it(self) -> None:
        sim = simulation(12, topics={"t": 1}, buffer_memory=1_000_000)
        warm(sim)
        window = {"topic": "t", "after_s": sim.now, "until_s": sim.now + 10.0}
        sim.cluster.faults += [Error(NOT_LEADER, **window), MetadataLeaderless(**window)]
        sim.send_every(0, 0.002, 2000, size_bytes=1000)
        sim.run_for(8.0)
        assert sim.sender.health(sim.now).buffer_bytes > 950_000
        sim.run_until(sim.all_settled, 60.0)
        sim.check()

    def test_when_nobody_delivers_any_more_a_dead_one_may_go_on(self) -> None:
        """Nothing is settled meanwhile, and metadata is asked once a second by then: time alone
        gives the waiter its room.
        """
        sim = simulation(14, topics={"t": 2}, buffer_memory=1_000_000)
        warm_s = warm(sim)
        window = {"topic": "t", "partition": 0, "after_s": warm_s, "until_s": warm_s + 50.0}
        sim.cluster.faults += [Error(NOT_LEADER, **window), MetadataLeaderless(**window)]
        sent: list[SimFuture] = []
        for n in range(200):
            sim.at(warm_s + 0.01 * n, lambda: sent.append(sim.send("t", 0, size_bytes=4000)))
        sim.send_every(1, 1.0, 24)
        sim.run_until(lambda: sim.now > warm_s + 30.0, 40.0)
        [last] = [e for e in sim.ledger.entries if e.partition == 1][-1:]
        assert sim.sender.health(sim.now).buffer_bytes < 500_000
        blocked = next(f for f in sent if f.entry.taken_at is None)
        sim.run_for(5.0)
        assert last.settled_at is not None
        assert blocked.entry.taken_at == pytest.approx(last.settled_at + 10.0, abs=0.15)
        assert sim.sender.health(sim.now).buffer_bytes > 800_000
        sim.run_until(sim.all_settled, 60.0)
        sim.check()


class TestThrottle:
    def test_each_throttle_is_told_and_is_nobodys_fault(self) -> None:
        sim = simulation(13, request_timeout_ms=1000, silence_timeout_ms=300)
        warm(sim)
        node = sim.leader(0)
        sim.cluster.faults.append(Throttle(node=node, api=PRODUCE, throttle_s=0.8, times=5))
        load(sim, count=500)
        sim.run_until(sim.all_settled, 30.0)
        sim.check()
        told = [fact for fact in sim.facts if isinstance(fact, Throttled)]
        assert [fact.throttle_s for fact in told] == [0.8] * 5
        assert {fact.connection.node_id for fact in told} == {node}
        assert sim.gaps() == []
        assert sim.sender.stalls(sim.now) == []
        late = [r for r in sim.cluster.request_log if r.late]
        assert late == [], "its connection was never given up"

    def test_nobody_is_late_for_it(self) -> None:
        """What waited behind it goes several requests at a time again at once."""
        sim = simulation(15, request_timeout_ms=1000, silence_timeout_ms=300)
        warm(sim)
        fault = Throttle(node=sim.leader(0), api=PRODUCE, throttle_s=4.0, times=1)
        sim.cluster.faults.append(fault)
        for count in (2, 4):
            begin_s = sim.now
            for _ in range(count):
                sim.send("t", 0, size_bytes=20_000)
            sim.run_until(sim.all_settled, 30.0)
        wire = [r for r in sim.network.requests if r.api_key == PRODUCE and r.sent_at >= begin_s]
        first_ack_s = min(request.answered_at for request in wire)
        assert sum(request.sent_at < first_ack_s for request in wire) == 4

    def test_what_was_under_way_when_it_was_told_waits_without_being_missed(self) -> None:
        """Three requests behind the throttled answer are not read for four seconds."""
        sim = simulation(15, request_timeout_ms=1000, silence_timeout_ms=300)
        warm_s = warm(sim)
        fault = Throttle(node=sim.leader(0), api=PRODUCE, throttle_s=4.0, times=1)
        sim.cluster.faults.append(fault)
        behind = [sim.send("t", 0, size_bytes=20_000) for _ in range(4)]
        sim.at(warm_s + 1.0, lambda: behind.append(sim.send("t", 0)))
        sim.run_until(sim.all_settled, 30.0)
        sim.check()
        first, *rest = (f.entry.settled_at - warm_s for f in behind)
        assert first < 0.1
        assert all(4.0 < after_s < 4.2 for after_s in rest), rest
        requests = [r for r in sim.cluster.request_log if r.received_at_s > warm_s]
        assert [r.api_key for r in requests] == [PRODUCE] * 5, "nobody was asked how it does"
        assert sum(r.received_at_s < warm_s + 0.1 for r in requests) == 4
        assert sim.gaps() == []
        assert sim.sender.stalls(sim.now) == []
