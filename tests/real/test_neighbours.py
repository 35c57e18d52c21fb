"""One of four nodes dies or falls silent: partitions without a replica there must hardly notice.

Replication 2, and a partition for every ordered pair (leader, follower). So every accident has
partitions that the node led, which are rejected and have a gap; partitions that it followed in,
which wait for it with acks=all and have a stall; and neighbours, which share a leader and thus a
connection with those that stall.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from outlast import Cause, Gap, GapEnd, GapOutcome, KafkaProducer, Stall, StallEnd
from tests.real.kafka_cluster import RealCluster, until
from tests.real.load import CLEAN, AckGap, Ledger, Load, Log, account, read_back
from tests.real.metadata import Watch

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

RATE = 500  # records/s on each partition
TICK_S = 0.01  # four JVMs share two cores with the test: records leave in small bursts
NEIGHBOUR_S = 2.5  # without an ack, and from send to ack, at most, without a replica on the node
OVER_S = 1.0  # from what an admin client sees to the first ack, at most
APART_S = 0.5  # what a gap or a stall tells and what futures tell of it, at most


@dataclass(frozen=True, slots=True)
class Accident:
    """What happens to a node."""

    name: str
    controller: bool = False  # it is the active controller
    wakes_after_s: float | None = None  # None: it is killed; else it only pauses
    noticed: bool = True  # by the cluster, which elects and shrinks


ACCIDENTS = (
    Accident("killed"),
    Accident("controller-killed", controller=True),
    Accident("paused-5-s", wakes_after_s=5.0, noticed=False),
    Accident("paused-30-s", wakes_after_s=30.0),
)


@dataclass(frozen=True, slots=True)
class Run:
    """An accident under load, and what came of it."""

    accident: Accident
    ledger: Ledger
    log: Log
    gaps: list[Gap]
    stalls: list[Stall]
    pairs: list[tuple[int, int]]  # leader and follower before, by partition
    node_id: int  # whom it happened to
    hurt_s: float
    end_s: float
    usable_s: dict[int, float]  # when led and followed partitions could go on, as an admin saw it

    @property
    def led(self) -> list[int]:
        return [p for p, (leader, _) in enumerate(self.pairs) if leader == self.node_id]

    @property
    def followed(self) -> list[int]:
        return [p for p, (_, follower) in enumerate(self.pairs) if follower == self.node_id]

    @property
    def neighbours(self) -> list[int]:
        return [p for p, pair in enumerate(self.pairs) if self.node_id not in pair]

    def longest(self, partitions: Iterable[int]) -> dict[int, AckGap]:
        """Each partition's longest time without an ack."""
        return {p: self.ledger.longest_ack_gap(p, self.hurt_s, self.end_s) for p in partitions}


@pytest.fixture(scope="module", params=ACCIDENTS, ids=lambda accident: accident.name)
def run(request: pytest.FixtureRequest, four_nodes: RealCluster) -> Run:
    """One accident for all questions about it."""
    accident: Accident = request.param
    four_nodes.heal()
    pairs = list(itertools.permutations(four_nodes.nodes, 2))
    topic = f"neighbours-{accident.name}"
    four_nodes.create_topic(topic, assignment=dict(enumerate(pairs)), min_isr=1)
    controller = four_nodes.controller()
    node_id = controller if accident.controller else next(n for n in (4, 3) if n != controller)
    with KafkaProducer(bootstrap_servers=four_nodes.bootstrap) as producer:
        with (
            Load(producer, topic, len(pairs), RATE, tick_s=TICK_S) as load,
            four_nodes.watch(topic, without=[node_id], pause_s=0.05) as watch,
        ):
            until(lambda: load.steady_for(2.0), "records flow steadily")
            hurt_s = time.monotonic()
            usable_s = hurt(four_nodes, node_id, accident, load, watch, pairs)
            flows = time.monotonic() + 3.0
            until(lambda: load.flowing_since(flows), "records flow on")
            ledger, end_s = load.stop(), time.monotonic()
        gaps = [gap for gap in producer.gaps() if gap.begin_s + gap.duration_s > hurt_s]
        stalls = [stall for stall in producer.stalls() if stall.begin_s + stall.duration_s > hurt_s]
    four_nodes.heal()
    log = read_back(four_nodes.bootstrap, topic)
    return Run(accident, ledger, log, gaps, stalls, pairs, node_id, hurt_s, end_s, usable_s)


def hurt(
    cluster: RealCluster,
    node_id: int,
    accident: Accident,
    load: Load,
    watch: Watch,
    pairs: list[tuple[int, int]],
) -> dict[int, float]:
    """Have the accident; when each partition with a replica on the node could go on."""
    usable_s = {}
    affected = {p: pair[0] == node_id for p, pair in enumerate(pairs) if node_id in pair}
    if accident.wakes_after_s is None:
        cluster.sigkill(node_id)
    else:
        wakes_s = time.monotonic() + accident.wakes_after_s
        cluster.sigstop(node_id)
    if accident.noticed:
        for partition, led in affected.items():
            if led:
                usable_s[partition] = watch.wait_leader_change(partition, newer_than=0).at_s
            else:
                usable_s[partition] = watch.wait_out_of_sync(partition, node_id)
    if accident.wakes_after_s is not None:
        others = set(range(len(pairs))) - set(() if accident.noticed else affected)
        until(lambda: load.flowing_since(wakes_s, others), "records flow until the node wakes")
        cluster.sigcont(node_id)
        if not accident.noticed:
            usable_s = dict.fromkeys(affected, time.monotonic())
    return usable_s


def test_nothing_is_lost_doubled_or_out_of_order(run: Run) -> None:
    assert str(account(run.ledger, run.log)) == CLEAN


def test_neighbours_hardly_notice(run: Run) -> None:
    longest = {p: gap.duration_s for p, gap in run.longest(run.neighbours).items()}
    print("longest time without an ack, neighbours:", _ms(longest))
    assert max(longest.values()) <= NEIGHBOUR_S
    # Acks that come once per ack wait, each for what is long over, would leave no gap between them.
    longest = {p: run.ledger.longest_wait(p, run.hurt_s).duration_s for p in run.neighbours}
    print("longest time from send to ack:", _ms(longest))
    assert max(longest.values()) <= NEIGHBOUR_S


def test_the_others_go_on_as_soon_as_an_admin_sees_that_they_can(run: Run) -> None:
    longest = run.longest(run.usable_s)
    print("without an ack:", _ms({p: gap.duration_s for p, gap in longest.items()}))
    over = {p: gap.end_s - run.usable_s[p] for p, gap in longest.items()}
    print("over:", _ms(over))
    assert max(over.values()) <= OVER_S


def test_what_it_led_has_a_gap_and_only_that(run: Run) -> None:
    assert sorted(gap.partition for gap in run.gaps) == run.led
    died = run.accident.wakes_after_s is None
    for gap in run.gaps:
        truth = run.longest([gap.partition])[gap.partition]
        assert gap.cause is (Cause.CONNECTION_LOST if died else Cause.SILENT)
        assert gap.outcome is GapOutcome.ABSORBED
        assert gap.ended_by is GapEnd.ACK
        leader, follower = run.pairs[gap.partition]
        assert gap.old_leader == leader
        assert gap.new_leader == (follower if run.accident.noticed else leader)
        assert abs(gap.begin_s - truth.begin_s) <= APART_S
        assert abs(gap.begin_s + gap.duration_s - truth.end_s) <= APART_S


def test_what_it_followed_in_has_a_stall_of_true_length(run: Run) -> None:
    long = {stall.partition: stall for stall in run.stalls if stall.duration_s > NEIGHBOUR_S}
    assert sorted(long) == run.followed
    for partition, stall in long.items():
        assert stall.ended_by is StallEnd.ACK
        assert stall.reason == "follower"
        assert stall.node_id == run.pairs[partition][0]
        # its first ack ends it; what had piled up behind that leaves after it, and may wait longer
        first_ack_s = run.longest([partition])[partition].end_s
        oldest_sent_s = run.ledger.oldest_acked_since(partition, first_ack_s)
        assert abs(stall.begin_s - oldest_sent_s) <= APART_S
        assert abs(stall.begin_s + stall.duration_s - first_ack_s) <= OVER_S


def test_no_second_belongs_to_a_gap_and_a_stall(run: Run) -> None:
    for gap, stall in itertools.product(run.gaps, run.stalls):
        if gap.partition == stall.partition:
            begin_s = max(gap.begin_s, stall.begin_s)
            end_s = min(gap.begin_s + gap.duration_s, stall.begin_s + stall.duration_s)
            assert end_s - begin_s <= 1e-6, f"{gap}\n{stall}"


def _ms(times: dict[int, float]) -> str:
    return ", ".join(f"{partition}: {time_s * 1000:.0f} ms" for partition, time_s in times.items())
