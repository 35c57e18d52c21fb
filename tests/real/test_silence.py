"""A node of a real Apache Kafka falls silent under load (SIGSTOP) and wakes again (SIGCONT).

It leads some partitions and follows in all others, so one failover asks both questions: what it
leads is rejected until the cluster elects another leader, and has a gap; what others lead waits
with acks=all until the cluster gives the follower up, and has a stall.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import pytest

from outlast import Cause, Gap, GapEnd, GapOutcome, KafkaProducer, Stall, StallEnd
from tests.real.kafka_cluster import RealCluster, until
from tests.real.load import CLEAN, Ledger, Load, Log, Turn, account, read_back, turn
from tests.real.metadata import LeaderSeen

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

PARTITIONS = 6
RATE = 200  # records/s on each partition
OVER_S = 1.0  # first ack after an admin client sees the new leader, at most
APART_S = 0.5  # what a stall tells and what futures tell of it, at most


@dataclass(frozen=True, slots=True)
class Run:
    """A node silenced under load, woken again, and what came of it."""

    ledger: Ledger
    log: Log
    gaps: list[Gap]
    stalls: list[Stall]
    stopped_s: float
    turns: dict[int, Turn]  # of the partitions that the node led
    seen: dict[int, LeaderSeen]  # their new leaders, as an admin client first saw them
    leaders: dict[int, int]  # before


@pytest.fixture(scope="module")
def run(one_cluster: RealCluster) -> Run:
    """One failover for all questions about it."""
    one_cluster.heal()
    topic = "silenced"
    one_cluster.create_topic(topic, PARTITIONS)
    before = one_cluster.topic(topic).partitions
    victim = before[0].leader
    led = {p: view.leader_epoch for p, view in before.items() if view.leader == victim}
    with KafkaProducer(bootstrap_servers=one_cluster.bootstrap) as producer:
        with (
            Load(producer, topic, PARTITIONS, RATE) as load,
            one_cluster.watch(topic, without=[victim]) as watch,
        ):
            flows = time.monotonic() + 1.0
            until(lambda: load.flowing_since(flows), "records flow")
            stopped_s = time.monotonic()
            one_cluster.sigstop(victim)
            try:
                seen = {p: watch.wait_leader_change(p, newer_than=e) for p, e in led.items()}
                flows = max(new.at_s for new in seen.values()) + 2.0
                until(lambda: load.flowing_since(flows), "records flow again")
            finally:
                one_cluster.sigcont(victim)
            flows = time.monotonic() + 3.0  # it takes what was left in its connections meanwhile
            until(lambda: load.flowing_since(flows), "records flow on")
            ledger = load.stop()
        gaps = [gap for gap in producer.gaps() if gap.begin_s + gap.duration_s > stopped_s]
        stalls = [s for s in producer.stalls() if s.begin_s + s.duration_s > stopped_s]
    one_cluster.heal()
    log = read_back(one_cluster.bootstrap, topic)
    turns = {p: turn(ledger, log, p, new_epoch=epoch + 1) for p, epoch in led.items()}
    leaders = {p: view.leader for p, view in before.items()}
    return Run(ledger, log, gaps, stalls, stopped_s, turns, seen, leaders)


def test_nothing_is_lost_doubled_or_out_of_order_also_when_it_wakes(run: Run) -> None:
    assert str(account(run.ledger, run.log)) == CLEAN


def test_acks_come_as_soon_as_an_admin_sees_the_new_leader(run: Run) -> None:
    over = {p: run.turns[p].first_ack_s - new.at_s for p, new in run.seen.items()}
    print("first ack after the new leader was seen:", _ms(over))
    assert max(over.values()) <= OVER_S


def test_what_it_led_has_a_silent_gap(run: Run) -> None:
    for partition, passage in run.turns.items():
        [gap] = [gap for gap in run.gaps if gap.partition == partition]
        assert gap.cause is Cause.SILENT
        assert gap.outcome is GapOutcome.ABSORBED
        assert gap.ended_by is GapEnd.ACK
        assert gap.old_leader == run.leaders[partition]
        assert gap.new_leader == run.seen[partition].leader
        assert abs(gap.begin_s + gap.duration_s - passage.first_ack_s) <= APART_S
        assert abs(gap.begin_s - run.stopped_s) <= APART_S


def test_what_others_led_has_one_stall_of_true_length_and_no_gap(run: Run) -> None:
    others = set(range(PARTITIONS)) - set(run.turns)
    assert {gap.partition for gap in run.gaps}.isdisjoint(others)
    lengths = {}
    for partition in others:
        [stall] = [stall for stall in run.stalls if stall.partition == partition]
        sent_s = run.ledger.sent[partition]
        acked = sorted((ack.at_s, sent_s[c]) for c, ack in run.ledger.acks[partition].items())
        _, (first_ack_s, first_sent_s) = max(  # the longest time without an ack
            pairwise(acked), key=lambda pair: pair[1][0] - pair[0][0]
        )
        assert stall.ended_by is StallEnd.ACK
        assert stall.node_id == run.leaders[partition]
        assert abs(stall.begin_s - first_sent_s) <= APART_S
        assert abs(stall.begin_s + stall.duration_s - first_ack_s) <= APART_S
        assert 7.0 <= stall.duration_s <= 13.0
        lengths[partition] = stall.duration_s
    print("stalls:", _ms(lengths))


def _ms(times: dict[int, float]) -> str:
    return ", ".join(f"{partition}: {time_s * 1000:.0f} ms" for partition, time_s in times.items())
