"""Field cases B01 to B37 about leaders: gone without a word, moved, stopped, not there at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast import config
from outlast.testing.faults import Error, Freeze, MetadataLeaderless
from outlast.testing.simulation import Simulation
from tests.field.oracles import (
    CALM as NO_BACKOFF,
    D_MINUS,
    MAX_BLOCK_S,
    D,
    Room,
    c1,
    c3,
    logs_of,
    metadata_times,
    o1,
    o2,
    o3,
    o4,
    o8,
    o9,
    o11,
    o12,
)
from tests.sim.lane_stories import longest_pause_s
from tests.sim.stories import CALM, STEADY, attempts_of

PRODUCE, METADATA = 0, 3
UNKNOWN_TOPIC, LEADER_UNAVAILABLE, NOT_LEADER, REPLICA_UNAVAILABLE = 3, 5, 6, 9
BURST = range(10)
T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)


def only_broker_1(seed: int) -> Simulation:
    """Every bootstrap name leads to broker 1, so the first metadata connection does too."""
    host, port = c1().cluster.addresses[1]
    settings = config.settings(bootstrap_servers=f"{host}:{port}", **D)
    return Simulation(
        seed,
        topics={"t": 3},
        min_isr=2,
        network=STEADY,
        cluster=CALM,
        settings=settings,
        max_block_s=MAX_BLOCK_S,
    )


def everywhere(sim: Simulation, interval_s: float, end_s: float) -> None:
    for topic, p in sim.partitions():
        sim.send_every(p, interval_s, int(end_s / interval_s), topic=topic, start_s=0.001 * p)


class TestB05:
    """The leader is gone and its sockets stand: no end of a connection tells."""

    @pytest.mark.parametrize("make", [c3, only_broker_1], ids=["all", "bootstrap is broker 1"])
    @pytest.mark.parametrize("how", ["cut", "frozen", "stopped process"])
    def test_b05_a_new_leader_is_followed_though_the_old_ones_sockets_stand(
        self, make: Callable[[int], Simulation], how: str
    ) -> None:
        sim = make(5)
        everywhere(sim, 0.05, 9.0)
        if how == "cut":
            sim.at(2.0, lambda: sim.cut(1))
        elif how == "frozen":
            sim.fault(Freeze(node=1, after_s=2.0, until_s=8.0))
        sim.at(3.0, lambda: sim.move_leader(0, 2, deny_s=0.0))
        sim.at(8.0, lambda: sim.heal(1))
        if how == "stopped process":  # the cluster notices this one and elects by itself
            sim.at(2.0, lambda: sim.pause(1))
            sim.at(8.0, lambda: sim.resume(1))
        sim.run_until(sim.all_settled, 60.0)
        at_2 = [a for a in attempts_of(sim, 0) if a.request.node_id == 2 and a.accepted]
        assert min(a.ended_at for a in at_2) < 5.5
        elsewhere = [
            r.sent_at
            for r in sim.network.requests
            if r.api_key == METADATA and r.node_id != 1 and 2.0 < r.sent_at < 4.0
        ]
        assert elsewhere, "no other broker was asked for the leader"
        sim.run_for(12.0)  # what was left in broker 1's sockets is taken, if ever
        o1(sim.ledger.entries, logs_of(sim))
        if how != "stopped process":  # there t-1 and t-2 wait for their follower: a stall
            o8(sim.ledger.entries, [T1, T2], (0.5, 2.0), (2.0, 5.5))
            assert not sim.gaps(1)
            assert not sim.gaps(2)
        o11(sim)


class TestB14:
    """Retries are spent before the election ends."""

    @pytest.mark.parametrize("in_flight", [1, 5])
    def test_b14_the_limit_is_time_and_not_a_count(self, in_flight: int) -> None:
        sim = c3(14, partitions=1, **D_MINUS | {"max_in_flight_requests_per_connection": in_flight})
        self.deny_for_2500_ms(sim)
        sim.run_until(sim.all_settled, 30.0)
        assert {e.outcome for e in sim.ledger.entries} == {"acked"}
        in_order = in_flight == 1  # else a retry may overtake, as in Kafka
        o2(sim.ledger.entries, logs_of(sim), lambda e: None if in_order else e.number)
        o9(sim, 1.0, 3.5)
        wire = [a for a in attempts_of(sim, 0) if 1.0 <= a.sent_at < 3.5]
        asked = metadata_times(sim)
        stale_s = 2 * 1.2 * sim.settings.retry_backoff_s  # both clocks vary by a fifth
        for later in wire[1:]:  # no retry goes by old news
            assert any(later.sent_at - stale_s <= s <= later.sent_at for s in asked)
        o12(sim, [T0])

    def test_b14_a_small_count_of_retries_is_not_used_up_by_an_election(self) -> None:
        sim = c3(14, partitions=1, **D | {"retries": 3})
        self.deny_for_2500_ms(sim)
        sim.run_until(sim.all_settled, 30.0)
        o1(sim.ledger.entries, logs_of(sim))

    @staticmethod
    def deny_for_2500_ms(sim: Simulation) -> None:
        sim.send_every(0, 0.02, 250)
        sim.fault(Error(NOT_LEADER, node=1, topic="t", partition=0, after_s=1.0))
        sim.at(3.5, lambda: sim.move_leader(0, 2, deny_s=0.0))


class TestB15:
    """Stuck for good after partitions were reassigned."""

    def test_b15_each_move_costs_less_than_a_second(self) -> None:
        sim = c3(15, partitions=6, nodes=4)
        for n in range(1200):
            sim.at(n / 100, lambda n=n: sim.send("t", key=b"k%d" % (n % 97)))
        for turn in range(5):
            moved = (2 * turn) % 6, (2 * turn + 1) % 6
            sim.at(1.0 + 2 * turn, lambda moved=moved: [self.reassign(sim, p) for p in moved])
        sim.run_until(sim.all_settled, 30.0)
        o1(sim.ledger.entries, logs_of(sim))
        assert sim.gaps(), "no move was met"
        assert max(g.duration_s for g in sim.gaps()) < 1.0
        assert max(e.settled_at - e.sent_at for e in sim.ledger.entries) < 1.0
        o11(sim)

    @staticmethod
    def reassign(sim: Simulation, partition: int) -> None:
        """The old leader loses its replica and knows nothing of the partition any more."""
        old = sim.leader(partition)
        kept = [n for n in (1, 2, 3, 4) if n != old][:3]
        sim.cluster.reassign("t", partition, kept, sim.now)
        sim.network.collect(sim.now)

    @pytest.mark.parametrize("code", [UNKNOWN_TOPIC, LEADER_UNAVAILABLE, REPLICA_UNAVAILABLE])
    def test_b15_whatever_the_old_leader_calls_it(self, code: int) -> None:
        sim = c3(15, cluster=NO_BACKOFF)  # followers that rest after a move hold neighbours up: S3
        everywhere(sim, 0.02, 4.0)
        sim.fault(Error(code, node=1, topic="t", partition=0, after_s=1.0))
        sim.at(1.5, lambda: sim.move_leader(0, 2, deny_s=0.0))
        sim.run_until(sim.all_settled, 20.0)
        o1(sim.ledger.entries, logs_of(sim))
        o12(sim, [T0])
        [gap] = sim.gaps(0)
        assert gap.duration_s < 0.5 + 1.0
        o8(sim.ledger.entries, [T1, T2], (0.3, 1.0), (1.0, 4.0))


def test_b19_once_a_broker_is_back_metadata_is_left_alone() -> None:
    """It refused connects for a second, and kept its leadership."""
    sim = c3(19)
    everywhere(sim, 0.2, 60.0)
    sim.at(2.0, lambda: sim.refuse(2))
    sim.at(3.0, lambda: sim.accept(2))
    sim.run_until(sim.all_settled, 90.0)
    o1(sim.ledger.entries, logs_of(sim))
    o9(sim, 2.0, 8.0)
    assert metadata_times(sim, 2.0, 8.0), "nobody asked during the trouble either"
    assert metadata_times(sim, 8.0) == []
    o12(sim, [T1])


def test_b20_a_partition_without_leader_is_no_reason_for_a_flood() -> None:
    """Nine others go on; one shared request asks for all that wait.

    (With 250 requests in 30 s the case cannot mean the back-off of 50 ms: for that O9 allows 315.)
    """
    sim = c3(20, partitions=10, **D | {"delivery_timeout_ms": 60_000, "retry_backoff_ms": 100})
    everywhere(sim, 0.25, 40.0)
    trouble = {"topic": "t", "partition": 0, "after_s": 2.0, "until_s": 32.0}
    sim.fault(MetadataLeaderless(**trouble))
    sim.fault(Error(NOT_LEADER, **trouble))
    sim.run_until(sim.all_settled, 90.0)
    o1(sim.ledger.entries, logs_of(sim))
    assert 15 < len(metadata_times(sim, 2.0, 32.0)) <= 250
    o9(sim, 2.0, 32.0)
    o8(sim.ledger.entries, [("t", p) for p in range(1, 10)], (0.5, 2.0), (2.0, 32.0))
    o12(sim, [T0])


def test_b30_three_brokers_stopped_in_order_under_load() -> None:
    """An eighth of the case's 5 000 records a second, in bursts that make batches."""
    sim = c3(30, partitions=12)
    for p in range(12):
        for n in range(155):
            sim.at(
                0.2 * n + 0.01 * p, lambda p=p: [sim.send("t", p, size_bytes=200) for _ in BURST]
            )
    room = Room(sim, until_s=31.0)
    for n, node in enumerate((1, 2, 3)):
        sim.at(1.0 + 10 * n, lambda node=node: sim.stop(node))
        sim.at(6.0 + 10 * n, lambda node=node: sim.start(node))
    sim.run_until(sim.all_settled, 60.0)
    o1(sim.ledger.entries, logs_of(sim))
    o3(sim.ledger.entries)
    room.check()
    pauses = [longest_pause_s(sim, p) for p in range(12)]
    assert max(pauses) < 1.5
    assert sim.gaps(), "no stop was met"
    o11(sim)


class TestB37:
    """A connect that hangs: others pay, or a core does. (CPU: test_b01_b37_tcp.py.)"""

    @pytest.mark.source  # steps are counted by a method put in the place of one of the engine's
    def test_b37_a_connect_that_hangs_is_nobody_elses_business(self) -> None:
        sim = c3(37, **D | {"delivery_timeout_ms": 30_000})
        everywhere(sim, 0.05, 25.0)
        sim.at(2.0, lambda: sim.cut(1))
        steps = Steps(sim)
        sim.at(22.0, lambda: sim.heal(1))
        sim.run_until(sim.all_settled, 60.0)
        o1(sim.ledger.entries, logs_of(sim))
        o4(sim.ledger.entries, logs_of(sim))
        o8(sim.ledger.entries, [T1, T2], (0.5, 2.0), (2.0, 22.0))
        o9(sim, 2.0, 22.0)
        assert steps.most_in_a_second(4, 21) <= 200, "40 records/s: five wake-ups for each"

    @pytest.mark.source  # steps are counted by a method put in the place of one of the engine's
    def test_b37_with_nothing_else_to_do_the_engine_sleeps(self) -> None:
        sim = c3(37, **D | {"delivery_timeout_ms": 30_000})
        everywhere(sim, 0.05, 1.9)
        sim.at(2.0, lambda: sim.cut(1))
        for _ in range(200):  # several full batches wait
            sim.at(2.1, lambda: sim.send("t", 0, size_bytes=1000, thread="burst"))
        steps = Steps(sim)
        sim.at(22.0, lambda: sim.heal(1))
        sim.run_until(sim.all_settled, 60.0)
        o1(sim.ledger.entries, logs_of(sim))
        assert steps.most_in_a_second(4, 21) <= 100


class Steps:
    """How often the engine was woken, by second: its commands' trace does not tell, ticks do."""

    def __init__(self, sim: Simulation) -> None:
        self._by_second: dict[int, int] = {}
        tick, responded = sim.sender.tick, sim.sender.responded

        def counted(call: Callable[..., None]) -> Callable[..., None]:
            def step(*arguments: object) -> None:
                second = int(sim.now)
                self._by_second[second] = self._by_second.get(second, 0) + 1
                call(*arguments)

            return step

        sim.sender.tick = counted(tick)  # type: ignore[method-assign]
        sim.sender.responded = counted(responded)  # type: ignore[method-assign]

    def most_in_a_second(self, first: int, last: int) -> int:
        return max(self._by_second.get(s, 0) for s in range(first, last))
