"""A client that cannot be wrong, through a storm: the mock itself must keep Kafka's promises.

The client has one batch per partition on its way, repeats it byte for byte until it is
acknowledged, and only then goes on. With acks=all, idempotence and clean elections each of its
batches must be in the log exactly once, in order, at the offset that was told.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.faults import CutAfter, CutBefore, ErrorAfter, Slow
from tests.mock.bench import Bench, Sent, make_batch


class StopAndWait:
    """One partition's client: asks metadata of anybody, sends, repeats."""

    def __init__(self, bench: Bench, partition: int, dice: random.Random) -> None:
        self.bench = bench
        self.partition = partition
        self.dice = dice
        self.sequence = 0
        self.acked: list[int] = []  # offset of each batch
        self.sent: Sent | None = None
        self.connection: Hashable | None = None
        self.node = 0
        self.resend_s = 0.0

    def step(self) -> None:
        bench, sent = self.bench, self.sent
        if sent is not None and sent.response is not None:
            self._answered(sent)
        elif sent is not None and bench.now > sent.sent_s + 2.0 and self.connection is not None:
            bench.cluster.closed(self.connection, bench.now)  # silent: give it up
            self.connection = self.sent = None
        if self.connection in bench.closed:
            self.connection = self.sent = None
        if self.sent is None and bench.now >= self.resend_s:
            self._send()

    def _answered(self, sent: Sent) -> None:
        code, offset = sent.result
        allowed: tuple[int, ...] = (0, 3, 6, 7, 19)
        if self.node != self.bench.cluster.leader("t", self.partition)[0]:
            allowed += (45,)  # a stale leader lacks what its successor took
        assert code in allowed, f"{code} for the only batch on its way"
        if code == 0:
            self.acked.append(offset)
            self.sequence += 1
        else:
            self.resend_s = self.bench.now + 0.05
        self.sent = None

    def _send(self) -> None:
        bench = self.bench
        leader, _ = bench.cluster.leader("t", self.partition)
        if self.dice.random() < 0.1:
            leader = self.dice.choice(list(bench.cluster.nodes))  # a client with stale metadata
        if leader != self.node and self.connection is not None:
            if self.dice.random() < 0.5:
                bench.cluster.closed(self.connection, bench.now)
            self.connection = None
        if leader == -1 or not bench.cluster.listens(leader):
            self.resend_s = bench.now + 0.05
            return
        if self.connection is None:
            self.connection, self.node = bench.connect(leader), leader
        raw = make_batch(7, 0, self.sequence, 1, value=b"%d" % self.sequence)
        copies = 1 + (self.dice.random() < 0.2)  # sometimes pipelined with its own repeat
        for _ in range(copies):
            self.sent = bench.produce_raw(
                self.connection, {("t", self.partition): raw}, timeout_ms=1500
            )


def storm(bench: Bench, dice: random.Random) -> None:
    """One thing that happens to the cluster."""
    cluster = bench.cluster
    node = dice.choice(list(cluster.nodes))
    up = [n for n in cluster.nodes.values() if n.running and not n.paused]
    verb = dice.choice(("kill", "stop", "pause", "start", "resume", "move", "move", "fault"))
    if verb in ("kill", "stop", "pause") and len(up) > 1:
        getattr(cluster, verb)(node, bench.now)
    elif verb in ("start", "resume"):
        for any_node in cluster.nodes:
            getattr(cluster, verb)(any_node, bench.now)
    elif verb == "move":
        partition = dice.randrange(3)
        state = cluster.topics["t"].partitions[partition]
        able = [n for n in state.isr if n in {u.node_id for u in up if not u.stopping}]
        if able and state.leader in {u.node_id for u in up}:
            cluster.move_leader("t", partition, dice.choice(able), bench.now, deny_s=None)
    elif verb == "fault":
        cluster.faults.append(
            dice.choice((CutAfter, CutBefore))(api=0, times=2)
            if dice.random() < 0.6
            else dice.choice((ErrorAfter(7, times=2), Slow(0.5, times=3)))
        )


@pytest.mark.parametrize("seed", range(8))
def test_nothing_acknowledged_is_lost_doubled_or_out_of_order(seed):
    dice = random.Random(seed)
    settings = ClusterSettings(
        eligible_leader_replicas=dice.random() < 0.5,
        first_seq_rule=dice.choice(("any", "zero")),
        fetch_backoff_s=dice.choice((0.05, 1.0)),
        detect_s=(0.1, 1.0),
        producer_id_load_s=0.0,
        replication_s=(0.001, dice.choice((0.004, 0.1))),
    )
    bench = Bench(MockCluster(4, settings=settings, rng=random.Random(seed + 1)))
    bench.cluster.create_topic("t", 3, min_isr=dice.choice((1, 2)))
    clients = [StopAndWait(bench, partition, dice) for partition in range(3)]
    while bench.now < 20.0:
        bench.run(dice.random() * 0.02)
        if dice.random() < 0.02:
            storm(bench, dice)
        for client in clients:
            client.step()
    bench.cluster.faults.clear()
    done = [client.sequence for client in clients]
    healed_s = bench.now
    while bench.now < healed_s + 10.0:
        bench.run(0.02)
        for node in bench.cluster.nodes:
            bench.cluster.resume(node, bench.now)
            bench.cluster.start(node, bench.now)  # also those that were about to stop
        for client in clients:
            client.step()
    for client, before in zip(clients, done, strict=True):
        assert client.sequence > before, "no progress after everything was healed"
    bench.run(15.0)
    for client in clients:
        check(bench, client)


def check(bench: Bench, client: StopAndWait) -> None:
    records = bench.cluster.records("t", client.partition)
    sequences = [record.sequence for record in records]
    assert sequences == list(range(len(sequences))), "each once, in order"
    assert len(records) >= client.sequence
    for sequence, offset in enumerate(client.acked):
        assert records[offset].value == b"%d-0" % sequence, "at the offset that was told"
    state = bench.cluster.topics["t"].partitions[client.partition]
    assert sorted(state.isr) == sorted(state.replicas), "all are back in sync"
    logs = [bench.cluster.nodes[n].replicas["t", client.partition].batches for n in state.replicas]
    assert all(log == logs[0] for log in logs), "all logs are the same"
