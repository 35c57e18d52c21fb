"""What nodes say while one of them crashes, falls silent, stops, or hands a leadership over.

One story each, as a real cluster takes ten seconds to give a node up. X is the node that suffers
(never the active controller, which takes longer), A and B are the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.contract import wire
from tests.contract.wire import PATIENCE_S, Wire
from tests.contract.world import NODES, World, until
from tests.contract.writer import Writer

pytestmark = pytest.mark.timeout(120)

METADATA = 12
SAFE = {"min_insync_replicas": 2}


@dataclass(slots=True)
class Cast:
    """The three nodes by their parts, and how the table shows what they say."""

    world: World
    x: int
    a: int
    b: int

    def name(self, node_id: int) -> str:
        return {self.x: "X", self.a: "A", self.b: "B"}.get(node_id, str(node_id))

    def names(self, nodes: Sequence[int], *, ordered: bool = False) -> str:
        named = [self.name(node_id) for node_id in nodes]
        return f"[{', '.join(named if ordered else sorted(named))}]"

    def told(self, p: Any) -> str:
        """A partition in Metadata."""
        return (
            f"{p.error_code}, leader {self.name(p.leader_id)}, epoch {p.leader_epoch}, "
            f"in sync {self.names(p.isr_nodes)}, offline {self.names(p.offline_replicas)}"
        )

    def seen(self, node_id: int, topic: str) -> str:
        """The topic's partition in the metadata of a node."""
        return self.told(self.world.partition(node_id, topic))

    def brokers(self, node_id: int) -> str:
        """The broker list of a node."""
        return self.names(self.world.brokers(node_id))

    def refusal(self, node: Wire, writer: Writer) -> str:
        """Code, hint and endpoints that a batch gets. One with a hole, so that nothing is appended:
        where the node leads it is 45.
        """
        answer = writer.send(99, on=node, acks=1).answer()
        part = answer.responses[0].partition_responses[0]
        if part.error_code == 45:
            return "45"
        leader = part.current_leader
        hint = f"leader {self.name(leader.leader_id)}, epoch {leader.leader_epoch}"
        endpoints = self.names([e.node_id for e in answer.node_endpoints or ()])
        return f"{part.error_code}, {hint}, endpoints {endpoints}"

    def stepped_down(self, node: Wire, writer: Writer) -> str | None:
        """The refusal, once the node leads no longer."""
        told = self.refusal(node, writer)
        return None if told == "45" else told

    def led_elsewhere(self, topic: str) -> bool:
        """Do A and B both see another leader than X?"""
        seen = [self.world.partition(n, topic).leader_id for n in (self.a, self.b)]
        return self.x not in seen and -1 not in seen

    def connects(self, node_id: int) -> str:
        try:
            self.world.connect(node_id)
        except ConnectionRefusedError:
            return "refused"
        return "accepted"

    def start(self, *topics: str) -> None:
        """Start X again, and wait until it is in sync everywhere."""
        self.world.start(self.x)
        until(lambda: self.connects(self.x) == "accepted", "X listens")
        until(lambda: len(self.world.brokers(self.x)) == len(NODES), "X knows all nodes")
        for topic in topics:
            until(lambda t=topic: self.world.in_sync(t), f"{topic} is in sync")


@pytest.fixture
def cast(world: World):
    x = world.victim()
    a, b = (node_id for node_id in NODES if node_id != x)
    yield Cast(world, x, a, b)
    world.heal()


def accepted(writer: Writer, sequence: int, **options: Any) -> str:
    """The first answer that is not 6: a new leader may not know of it yet."""
    return until(
        lambda: None if (told := writer.told(sequence, **options)).startswith("6") else told,
        "the new leader leads",
    )


def moved_to(world: World, writer: Writer, node_id: int) -> Writer:
    """The same producer at another node."""
    other = Writer(world, writer.topic, writer.partition, node_id)
    other.producer_id = writer.producer_id
    return other


def test_a_crash(contract, world, cast) -> None:
    x, a, b = cast.x, cast.a, cast.b
    led = world.create_topic((x, a, b), **SAFE)
    beside = world.create_topic((a, b, x), **SAFE)
    pair, doomed = world.create_topic((a, x), **SAFE), world.create_topic((a, x))
    apart, alone = world.create_topic((a, b)), world.create_topic((x,))
    on_led, on_alone = Writer(world, led, 0, x), Writer(world, alone, 0, x)
    on_beside, on_pair = Writer(world, beside, 0, a), Writer(world, pair, 0, a)
    on_apart, on_doomed = Writer(world, apart, 0, a), Writer(world, doomed, 0, a)
    assert [on_led.told(s)[0] for s in range(7)] == ["0"] * 7
    assert [on_alone.told(s)[0] for s in range(4)] == ["0"] * 4
    assert on_beside.told(0) == on_pair.told(0) == on_doomed.told(0) == "0 at 0"
    survivor, idle = world.connect(a), world.connect(x)
    idle.send(wire.api_versions(), 3).answer()  # so that X has taken it

    world.kill(x)
    contract("crash: an idle connection to X", idle.ended_within(5.0))
    contract("crash: a new connection to X", cast.connects(x))
    contract("crash: Metadata of A and B at once", f"{cast.seen(a, led)}; {cast.seen(b, led)}")
    contract("crash: brokers at once", cast.brokers(a))
    contract("crash: a batch for X's partition at A", cast.refusal(survivor, on_led))

    hasty = on_beside.send(1, timeout_ms=1000)
    contract("crash: a batch for A, which X follows, timeout_ms=1000", hasty.told())
    contract("crash: ... is answered at its time-out", 1.0 <= hasty.took_s < 3.0)
    contract("crash: its repeat, timeout_ms=200", on_beside.told(1, timeout_ms=200))
    contract("crash: the next batch, acks=1", on_beside.told(2, acks=1))
    contract("crash: a hole, acks=all", on_beside.told(9))
    contract("crash: what consumers see of these", len(world.log(a, beside)))
    contract("crash: a batch for A, which B alone follows", on_apart.told(0))

    blocked, second, third, fourth = (world.connect(a) for _ in range(4))
    patient = on_beside.send(3, on=blocked, timeout_ms=25_000)
    behind = blocked.send(wire.metadata(led), METADATA)
    healthy = on_apart.send(1, on=blocked)
    repeat = on_beside.send(1, on=second, timeout_ms=25_000)
    returning = on_pair.send(1, on=third, timeout_ms=60_000)
    assert on_pair.told(1, timeout_ms=200) == "7 at 1"  # it is appended: the next one may follow
    shrinking = on_pair.send(2, on=fourth, timeout_ms=int(world.given_up_s * 1000))
    deleted = on_doomed.send(1, timeout_ms=25_000)
    contract("a waiting batch, and Metadata and a healthy batch behind it", _silence(blocked))
    beside_it = survivor.send(wire.metadata(led), METADATA)
    beside_it.answer()
    contract("Metadata on another connection", f"at once: {beside_it.took_s < 2.0}")
    world.delete_topic(doomed, nodes=(a, b))
    contract("a waiting batch when its topic is deleted", deleted.told())

    until(lambda: cast.led_elsewhere(led), "X is given up")
    contract("given up: Metadata of A", cast.seen(a, led))
    contract("given up: Metadata of B", cast.seen(b, led))
    contract("given up: brokers", f"{cast.brokers(a)}; {cast.brokers(b)}")
    contract("given up: a partition that X followed", cast.seen(a, beside))
    contract("given up: a partition that has X alone", cast.seen(a, alone))
    contract("given up: a batch for that one at A", cast.refusal(survivor, on_alone))
    contract("given up: a partition with two replicas", cast.seen(a, pair))
    contract("the batch that waited for X", patient.told())
    contract("the repeat that waited for X", repeat.told())
    healthy.answer()
    in_order = patient.answered_s <= behind.answered_s <= healthy.answered_s
    contract("what was behind it", f"{healthy.told()}, in order: {in_order}")

    one = world.connect(a)
    until(lambda: on_pair.told(99, on=one) != "45", "A counts without X")  # with a hole: not taken
    contract("below min.insync.replicas: a new batch", on_pair.told(3, on=one))
    contract("below min.insync.replicas: a repeat", on_pair.told(0, on=one))
    contract("below min.insync.replicas: a hole", on_pair.told(9, on=one))
    large = on_pair.send_raw(b"", on=one).told()
    contract("below min.insync.replicas: an empty batch", large)
    crc = on_pair.send_raw(wire.batch()[:-1] + b"\x7f", on=one).told()
    contract("below min.insync.replicas: a bad CRC", crc)
    contract("below min.insync.replicas: acks=1", on_pair.told(3, on=one, acks=1))
    contract("below min.insync.replicas: what consumers see of them", len(world.log(a, pair)))
    contract("a batch appended before, at its timeout_ms", shrinking.told())

    leader = world.partition(a, led).leader_id
    on_new = moved_to(world, on_led, leader)
    contract("the new leader: a repeat of the last batch", accepted(on_new, 6))
    told = ", ".join(on_new.told(s) for s in range(1, 6))
    contract("the new leader: repeats of the five before", told)
    contract("the new leader: a hole", on_new.told(8))
    contract("the new leader: the next batch", on_new.told(7))

    cast.start(led, beside, pair)
    contract("back: the batch that waited all the time", returning.told())
    contract("back: Metadata of what X led", cast.seen(a, led))
    contract("back: Metadata of what X has alone", cast.seen(a, alone))
    contract("back: the first InitProducerId at X, v4", _init(world, x))
    until(lambda: _init(world, x) == "0", "X gives ids")
    on_alone = moved_to(world, on_alone, x)
    contract("restarted leader: a repeat of the last batch", on_alone.told(3))
    contract("restarted leader: repeats of those before", f"{on_alone.told(2)}, {on_alone.told(1)}")
    contract("restarted leader: the next batch", on_alone.told(4))
    told = ", ".join(on_alone.told(s) for s in (2, 3, 4))
    contract("restarted leader: repeats after it", told)


def _silence(node: Wire) -> str:
    return "no answer" if node.is_silent(0.3) else "an answer"


def _init(world: World, node_id: int) -> str:
    return str(world.ask(node_id, wire.init_producer_id(), 4).error_code)


def test_a_silence(contract, world, cast) -> None:
    x, a, b = cast.x, cast.a, cast.b
    led = world.create_topic((x, a, b), **SAFE)
    writer = Writer(world, led, 0, x)
    assert writer.told(0) == "0 at 0"
    safe, unsafe, asking, survivor = (world.connect(n) for n in (x, x, x, a))
    safe.send(wire.api_versions(), 3).answer()

    world.pause(x)
    waiting = [writer.send(s, on=safe) for s in (1, 2)]
    lost = writer.send(on=unsafe, acks=1, value=b"lost")
    asked = asking.send(wire.metadata(led), METADATA)
    contract("silence: a new connection to X", cast.connects(x))
    contract("silence: requests to X", _silence(safe))
    contract("silence: Metadata of A", cast.seen(a, led))
    contract("silence: a batch for X's partition at A", cast.refusal(survivor, writer))
    until(lambda: cast.led_elsewhere(led), "X is given up")
    contract("silence, given up: Metadata of A", cast.seen(a, led))
    other = moved_to(world, writer, world.partition(a, led).leader_id)
    told = f"{accepted(other, 1)}, {other.told(2)}"
    contract("silence, given up: the same batches at the new leader", told)

    world.resume(x)
    contract("awake: the first of the batches that waited, acks=all", waiting[0].told()[0])
    contract("awake: the second", waiting[1].told()[0])
    contract("awake: a batch that waited, acks=1", lost.told()[0])
    stale = asked.answer().topics[0].partitions[0]
    contract("awake: Metadata that waited", cast.told(stale))
    fresh = world.connect(x)
    last = until(lambda: cast.stepped_down(fresh, writer), "X knows")
    contract("awake: a batch on a new connection, soon", last)
    until(lambda: world.in_sync(led), "X is in sync")
    contract("awake: Metadata at the end", cast.seen(x, led))
    contract("awake: the acks=1 batch in the log", b"lost-0" in world.log(other.node_id, led))
    contract("awake: the acks=all batches in the log", len(world.log(other.node_id, led)))


def test_a_stop(contract, world, cast) -> None:
    x, a, b = cast.x, cast.a, cast.b
    led, pair = world.create_topic((x, a, b), **SAFE), world.create_topic((a, x), **SAFE)
    alone = world.create_topic((x,))
    writer, on_pair = Writer(world, led, 0, x), Writer(world, pair, 0, a)
    on_alone = Writer(world, alone, 0, x)
    assert [writer.told(s)[0] for s in range(6)] == ["0"] * 6
    assert [on_alone.told(s)[0] for s in range(2)] == ["0"] * 2
    node, idle = world.connect(x), world.connect(x)
    idle.send(wire.api_versions(), 3).answer()

    world.stop(x)
    refused = until(lambda: cast.stepped_down(node, writer), "X steps down")
    contract("stop: the first refusal at X", refused)
    contract("stop: a new connection to X", cast.connects(x))
    contract("stop: a repeat at X", writer.told(5))
    until(lambda: cast.led_elsewhere(led), "X's partition is led elsewhere")
    contract("stop: Metadata of X", cast.seen(x, led))
    contract("stop: Metadata of A", cast.seen(a, led))
    contract("stop: brokers", f"{cast.brokers(x)}; {cast.brokers(a)}")
    other = moved_to(world, writer, world.partition(a, led).leader_id)
    contract("stop: a repeat at the new leader", accepted(other, 5))
    told = until(lambda: _short(on_pair), "X is out of the ISR")
    contract("stop: a batch for the other replica of X's pair", told)
    contract("stop: how X's connections end", idle.ended_within(PATIENCE_S))
    until(lambda: cast.connects(x) == "refused", "X refuses")
    until(lambda: len(world.brokers(a)) == 2, "X is gone from the list")
    contract("stopped: Metadata of A", cast.seen(a, led))
    contract("stopped: a partition that has X alone", cast.seen(a, alone))

    cast.start(led, pair)
    contract("started: Metadata of X", cast.seen(x, led))
    on_alone = moved_to(world, on_alone, x)
    told = ", ".join(on_alone.told(s) for s in (1, 0))
    contract("started: repeats of the last batch and the one before", told)
    world.move_leader(led, 0, x)
    on_x = moved_to(world, writer, x)
    contract("started, moved back: a repeat of the last batch at X", accepted(on_x, 5))
    contract("started, moved back: of the one before", on_x.told(4))
    contract("started, moved back: Metadata of X", cast.seen(x, led))


def _short(writer: Writer) -> str | None:
    """The answer of acks=all once it is none of 0, and then that of acks=1."""
    told = writer.send().told()
    if told.startswith("0"):
        return None
    return f"{told}, acks=1: {writer.send(acks=1).told()[0]}"


def test_moves(contract, world, cast) -> None:
    x, a, b = cast.x, cast.a, cast.b
    topic, gone = world.create_topic((a, b, x), **SAFE), world.create_topic((a, b, x), **SAFE)
    writer, on_gone, old = Writer(world, topic, 0, a), Writer(world, gone, 0, a), world.connect(a)
    assert [writer.told(s)[0] for s in range(7)] == ["0"] * 7

    world.move_leader(topic, 0, b)
    refused = until(lambda: cast.stepped_down(old, writer), "A steps down")
    contract("move: a batch at the old leader", refused)
    other = moved_to(world, writer, b)
    told = ", ".join([accepted(other, 6), *(other.told(s) for s in range(1, 6))])
    contract("move: repeats of the last and the five before at the new leader", told)
    contract("move: a hole at the new leader", other.told(8))
    contract("move: the next batch", other.told(7))
    contract("move: Metadata", cast.seen(b, topic))
    contract("move: a batch at a follower", cast.refusal(world.connect(x), writer))

    world.reassign(gone, 0, (b, x))
    until(lambda: world.partition(a, gone).leader_id == b, "B leads")
    until(lambda: len(world.partition(a, gone).replica_nodes) == 2, "A is no replica")
    contract("leader taken out of the replicas: a batch there", cast.refusal(old, on_gone))
    contract("leader taken out of the replicas: Metadata there", cast.seen(a, gone))
