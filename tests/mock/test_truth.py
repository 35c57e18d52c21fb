"""The mock's own notes, its determinism, and that it reads no clock."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.faults import CutAfter

STORY = """
import random, zlib
from outlast.testing.cluster import ClusterSettings, MockCluster
from tests.mock.bench import Bench

def tell(seed):
    bench = Bench(MockCluster(4, settings=ClusterSettings(), rng=random.Random(seed)))
    for name in ("alpha", "beta", "gamma"):
        bench.cluster.create_topic(name, 4, min_isr=2, now=bench.now)
    dice, connections, sequences = random.Random(99), {}, {}
    for step in range(300):
        bench.run(dice.random() * 0.05)
        node = dice.randrange(1, 5)
        verb = dice.choice(["send"] * 20 + ["kill", "start", "pause", "resume", "stop", "close"])
        if verb == "send" and bench.cluster.listens(node):
            if connections.get(node) in (None, *bench.closed):
                connections[node] = bench.connect(node)
            key = (dice.choice(["alpha", "beta", "gamma"]), dice.randrange(4))
            sequences[key] = sequences.get(key, -1) + 1
            bench.produce(
                connections[node], sequences[key], topic=key[0], partition=key[1],
                timeout_ms=500, acks=dice.choice([-1, 1]),
            )
        elif verb == "close" and node in connections:
            bench.cluster.closed(connections.pop(node), bench.now)
        elif verb not in ("send", "close"):
            getattr(bench.cluster, verb)(node, bench.now)
    bench.run(60.0)
    digest = zlib.crc32(b"".join(bench.frames))
    digest = zlib.crc32(repr(list(bench.cluster.request_log)).encode(), digest)
    print(len(bench.frames), len(bench.cluster.request_log), digest)

tell(5)
tell(6)
tell(5)
"""


def story(hash_seed):
    done = subprocess.run(
        [sys.executable, "-c", STORY],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_the_same_seed_gives_the_same_bytes_whatever_the_hash_seed():
    first, other, again = story("1")
    assert first == again
    assert first != other
    assert story("77") == [first, other, first]
    frames, requests, _ = map(int, first.split())
    assert frames > 100
    assert requests > frames


def test_the_result_does_not_depend_on_how_often_tick_is_called():
    def run(step_s):
        cluster = MockCluster(3, rng=random.Random(3))
        cluster.create_topic("t", 6, now=0.0)
        for number in range(1, int(10 / step_s)):
            cluster.tick(number * step_s)
        cluster.kill(1, 10.0)
        cluster.tick(12.0)
        return [
            (name, sorted(cluster.visible_at_s("t", p, epoch).items()))
            for name in ("t",)
            for p in range(6)
            for epoch in (0, 1)
        ]

    assert run(0.001) == run(1.0)


def test_time_cannot_go_back(bench):
    latest = bench.now
    bench.cluster.tick(latest - 5.0)
    sent = bench.produced(bench.connect(1))
    assert sent.answered_s >= latest
    assert bench.cluster.next_deadline(latest - 5.0) is None


def test_next_deadline_is_none_when_nothing_is_to_come(bench):
    for acks in (-1, 1):
        bench.produced(bench.connect(1), acks=acks)
    bench.run(1.0)
    assert bench.cluster.next_deadline(bench.now) is None


def test_request_log_tells_when_and_what_became_of_each_partition(make_bench):
    bench = make_bench(partitions=2)
    leader = bench.connect(1)
    bench.run(0.5)
    sent = bench.produced(leader, 4, count=3)
    repeat = bench.produced(leader, 4, count=3)
    wrong = bench.produced(leader, partition=1, version=13)
    first, second, third = list(bench.cluster.request_log)[-3:]
    assert (first.received_at_s, first.answered_at_s) == (sent.sent_s, sent.answered_s)
    assert (first.node_id, first.connection, first.api_key, first.version) == (1, leader, 0, 12)
    (part,) = first.partitions
    assert (part.topic, part.partition) == ("t", 0)
    assert (part.producer_id, part.producer_epoch, part.base_sequence, part.count) == (7, 0, 4, 3)
    assert (part.error_code, part.base_offset, part.appended) == (0, 0, True)
    assert (second.partitions[0].base_offset, second.partitions[0].appended) == (0, False)
    assert second.answered_at_s == repeat.answered_s
    assert (third.partitions[0].topic, third.partitions[0].error_code) == ("t", 6)
    assert wrong.result == (6, -1)


def test_request_log_notes_what_is_never_served_or_answered(bench):
    bench.cluster.faults.append(CutAfter(times=1, api=0))
    cut = bench.connect(1)
    bench.produce(cut, 0)
    paused = bench.connect(1)
    bench.cluster.pause(1, bench.now)
    bench.produce(paused, 1)
    served, waiting = list(bench.cluster.request_log)[-2:]
    assert served.answered_at_s is None
    assert served.partitions[0].appended
    assert waiting.served_at_s is None
    assert waiting.partitions[0].base_sequence == 1
    assert waiting.partitions[0].error_code is None


def test_request_log_is_bounded(make_bench):
    bench = make_bench(request_log_limit=5)
    leader = bench.connect(1)
    for _ in range(9):
        bench.produced(leader)
    assert len(bench.cluster.request_log) == 5


def test_batches_tell_when_they_came_into_the_final_log(make_bench):
    """A batch cut off at the old leader and sent again counts from its second append."""
    bench = make_bench(replication_s=0.5)
    leader = bench.connect(1)
    first = bench.produced(leader, 0)
    bench.produce(leader, 1)
    bench.cluster.kill(1, bench.now)
    bench.run(2.0)
    again = bench.produced(bench.connect(2), 1)
    one, two = bench.cluster.batches("t", 0)
    assert (one.appended_at_s, one.node_id, one.leader_epoch) == (first.sent_s, 1, 0)
    assert (two.appended_at_s, two.node_id, two.leader_epoch) == (again.sent_s, 2, 1)


def test_records_end_at_the_high_watermark(make_bench):
    bench = make_bench(detect_s=60.0)
    leader = bench.connect(1)
    bench.produced(leader, value=b"safe")
    bench.cluster.kill(3, bench.now)
    bench.produced(leader, value=b"unsafe", acks=1)
    bench.run(1.0)
    assert bench.values() == [b"safe-0"]
    (record,) = bench.cluster.records("t", 0)
    assert (record.offset, record.key, record.headers, record.timestamp_ms) == (0, b"key", (), 1000)


def test_settings_and_topics_say_what_is_allowed():
    with pytest.raises(ValueError, match="first_seq_rule is 'one'; allowed are 'any'"):
        ClusterSettings(first_seq_rule="one")
    with pytest.raises(ValueError, match="nodes is 0"):
        MockCluster(0, rng=random.Random(1))
    cluster = MockCluster(3, rng=random.Random(1))
    cluster.create_topic("t", 1)
    for arguments, message in (
        (("t", 1), "topic 't' exists"),
        (("a b", 1), "topic name is 'a b'; allowed are"),
        (("u", 0), "0 partitions with 3 replicas cannot be placed"),
    ):
        with pytest.raises(ValueError, match=message):
            cluster.create_topic(*arguments)
    with pytest.raises(ValueError, match=r"assignment is \[\[1, 9\]\]; it needs 1 lists of nodes"):
        cluster.create_topic("u", 1, assignment=[[1, 9]])
    with pytest.raises(ValueError, match="with 4 replicas cannot be placed on 3 nodes"):
        cluster.create_topic("u", 1, replication=4)


def test_reprs_tell_the_state(bench):
    leader = bench.connect(1)
    bench.produced(leader, 0)
    bench.cluster.pause(2, bench.now)
    assert repr(bench.cluster) == (
        "<MockCluster [<Node 1 up>, <Node 2 paused>, <Node 3 up>] topics=['t']>"
    )
    assert repr(bench.cluster.replica("t", 0)) == (
        "<Replica t-0 on 1 leader epoch=0 end=1 hw=1 isr=[1, 2, 3]>"
    )
