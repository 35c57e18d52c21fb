"""Field cases B01 to B37 about topics and about starting: made anew, grown, missing, forbidden."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.partitioner.default import murmur2
from kafka.protocol.metadata import MetadataRequest

from outlast.testing.application import SimFuture
from outlast.testing.faults import Error, Fault
from tests.field.oracles import CALM, c3, logs_of, metadata_times, o1, o2, o3, o4, o5, o8, o9, o11

METADATA = 3
FORBIDDEN = 29


@pytest.mark.parametrize("first_seq_rule", ["any", "zero"])
def test_b17_a_topic_made_anew_is_another_topic(first_seq_rule: str) -> None:
    """Its epochs begin at 0 again, far below those that were known. (Unloaded, and with fewer
    partitions than before: tests/sim/test_topics.py.)
    """
    sim = c3(17, partitions=2, cluster=replace(CALM, first_seq_rule=first_seq_rule))
    for p in (0, 1):
        sim.send("t", p)
        for _ in range(7):
            sim.run_for(0.1)
            sim.move_leader(p, deny_s=0.0)
    assert sim.cluster.leader("t", 0)[1] >= 7
    begin_s = sim.now
    for p in (0, 1):
        sim.send_every(p, 0.02, 400)
    sim.at(begin_s + 2.0, lambda: sim.delete_topic("t"))

    def make_anew() -> None:
        sim.cluster.create_topic("t", 2, assignment=[[2, 3, 1], [1, 2, 3]], min_isr=2, now=sim.now)
        sim.topics["t"] = 2

    sim.at(begin_s + 3.5, make_anew)
    sim.run_until(sim.all_settled, 60.0)
    o3(sim.ledger.entries)
    logs = logs_of(sim)
    new = [e for e in sim.ledger.entries if (e.settled_at or 0.0) > begin_s + 3.5]
    o2(new, logs)
    o4(new, logs)
    o5(new, logs)
    for p in (0, 1):
        flowing = [
            e.settled_at
            for e in new
            if (e.topic, e.partition, e.outcome) == ("t", p, "acked")
            and e.sent_at >= begin_s + 3.5  # what waited before may have been given up
        ]
        assert min(flowing) - (begin_s + 3.5) <= 1.0
        assert len(flowing) >= 220  # of 225: no more than a few are lost to the change
    o11(sim)


class TestB27:
    """Partitions that were added are never used."""

    def test_b27_keys_and_keyless_records_use_new_partitions_once_metadata_is_old(self) -> None:
        sim = c3(27, partitions=2, metadata_max_age_ms=3000)
        keyed: list[SimFuture] = []
        for n in range(500):
            at_s = 0.016 * n
            sim.at(at_s, lambda n=n: keyed.append(sim.send("t", key=b"k%d" % n, thread="keyed")))
            sim.at(at_s, lambda: sim.send("t", thread="keyless"))
        sim.at(2.0, lambda: sim.grow_topic("t"))
        sim.at(2.0, lambda: sim.grow_topic("t"))
        sim.run_until(sim.all_settled, 30.0)
        o1(sim.ledger.entries, logs_of(sim), lambda e: e.key is None)
        late = [e for e in sim.ledger.entries if e.sent_at >= 5.5]
        for kind in (None, bytes):
            used = {e.partition for e in late if isinstance(e.key, kind or type(None))}
            assert used == {0, 1, 2, 3}, f"keys of {kind}"
        for entry in (f.entry for f in keyed):
            count = 2 if entry.sent_at < 2.0 else 4 if entry.sent_at >= 5.5 else None
            if count:
                assert entry.partition == (murmur2(entry.key) & 0x7FFFFFFF) % count

    def test_b27_a_record_for_a_new_partition_asks_once_and_is_delivered(self) -> None:
        sim = c3(27, partitions=2)
        sim.send("t", 0)
        sim.at(2.0, lambda: sim.grow_topic("t"))
        sim.at(2.0, lambda: sim.grow_topic("t"))
        sim.run_for(2.5)
        future = sim.send("t", 3)
        sim.run_until(sim.all_settled, 2.0)
        assert future.acked
        assert len(metadata_times(sim, 2.5)) == 1


class TestB28:
    """Every send to a topic that is not there costs a minute. (What the error says:
    test_b01_b37_tcp.py.)
    """

    def test_b28_each_raises_in_time_and_nobody_else_waits(self) -> None:
        sim = c3(28, max_block_s=1.0, cluster=CALM)
        for p in range(3):
            sim.send_every(p, 0.05, 200)
        bad: list[SimFuture] = []

        def again() -> None:
            bad.append(sim.send("missing", 0))
            if len(bad) < 5:
                sim.at(sim.now + 1.3, again)

        sim.at(2.0, again)
        sim.run_until(sim.all_settled, 30.0)
        for future in bad:
            assert future.entry.outcome == "refused"
            assert 1.0 <= future.entry.settled_at - future.entry.sent_at <= 1.2
        good = [e for e in sim.ledger.entries if e.topic == "t"]
        o1(good, logs_of(sim))
        o8(good, [("t", p) for p in range(3)], (0.5, 2.0), (2.0, 8.0))
        # no more than twice a second and never without somebody who waits
        assert len(metadata_times(sim, 2.0)) <= 6 * 20
        sim.create_topic("missing", 1)
        sim.run_for(0.1)
        late = sim.send("missing", 0)
        sim.run_until(sim.all_settled, 2.0)
        assert late.acked

    def test_b28_it_is_dropped_from_later_requests(self) -> None:
        sim = c3(28, max_block_s=1.0)
        sim.send_every(0, 10.0, 70)
        sim.at(2.0, lambda: sim.send("missing", 0))
        sim.run_until(sim.all_settled, 900.0)
        named = {r.sent_at: topics_of(r) for r in sim.network.requests if r.api_key == METADATA}
        assert any("missing" in names for names in named.values())
        later = [names for at_s, names in named.items() if at_s > 320.0]
        assert later, "metadata was not refreshed any more"
        assert not any("missing" in names for names in later)


def topics_of(request) -> list[str]:
    decoded = MetadataRequest.decode(request.frame, version=request.api_version, header=True)
    return [topic.name for topic in decoded.topics or ()]


def test_b29_a_forbidden_topic_harms_no_other_and_may_be_allowed_later() -> None:
    """(Over TCP the future tells, tests/facade/test_producer.py; here the send itself.)"""
    sim = c3(29, topics={"ok": 1, "no": 1})
    forbidden = Error(FORBIDDEN, api=METADATA, topic="no")
    denied = Error(FORBIDDEN, topic="no")
    faults: list[Fault] = [forbidden, denied]
    sim.cluster.faults += faults
    sent: list[SimFuture] = []
    for n in range(300):
        topic = "no" if n % 3 == 1 else "ok"
        sim.at(0.02 * n, lambda topic=topic: sent.append(sim.send(topic, 0)))
    sim.run_until(sim.all_settled, 30.0)
    for future in sent:
        if future.entry.topic == "ok":
            assert future.acked
        else:
            assert isinstance(future.error, TopicAuthorizationFailedError)
            assert future.entry.settled_at - future.entry.sent_at <= 0.3
    o1([f.entry for f in sent if f.entry.topic == "ok"], {("ok", 0): logs_of(sim)["ok", 0]})
    for fault in faults:
        sim.cluster.faults.remove(fault)
    allowed = sim.send("no", 0)
    sim.run_until(sim.all_settled, 2.0)
    assert allowed.acked
    assert not sim.gaps()


def test_b26_a_producer_may_be_made_before_the_cluster_is_up() -> None:
    """(What the error says: test_b01_b37_tcp.py.)"""
    sim = c3(26)
    for node in (1, 2, 3):
        sim.refuse(node)
        sim.at(5.0, partial(sim.accept, node))
    early: list[SimFuture] = []
    for n in range(10):
        sim.at(1.0, lambda n=n: early.append(sim.send("t", n % 3, thread=f"thread {n}")))
    later: list[SimFuture] = []
    sim.at(5.5, lambda: later.append(sim.send("t", 0)))
    sim.run_until(sim.all_settled, 30.0)
    for future in early:
        assert isinstance(future.error, TimeoutError)
        assert 2.0 <= future.entry.settled_at - future.entry.sent_at <= 2.2
    assert later[0].acked
    assert later[0].entry.settled_at - 5.5 <= 0.5 + 0.5
    o9(sim, 0.0, 5.0)
    o11(sim)
