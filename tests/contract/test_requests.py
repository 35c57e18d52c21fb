"""Requests as such: names, versions, acks, order, throttling, ends of connections."""

from __future__ import annotations

import struct
import uuid

import pytest
from kafka.protocol.metadata import ApiVersionsResponse

from tests.contract import wire
from tests.contract.test_records import patched
from tests.contract.world import World
from tests.contract.writer import Writer

ALL = (1, 2, 3)
NOBODY = uuid.UUID(int=7)


@pytest.fixture(scope="module")
def topic(any_world: World) -> str:
    """Partition 0 is led by node 1, partition 1 by node 2."""
    return any_world.create_topic(ALL, (2, 3, 1))


def test_unknown_places(contract, world, topic) -> None:
    node, raw = world.connect(1), wire.batch()
    topic_id = world.topic(1, topic).topic_id

    def told(name, partition, version=12, topic_id=None) -> str:
        ids = {name: topic_id} if topic_id else None
        return node.send(wire.produce([(name, partition, raw)], topic_ids=ids), version).told()

    contract("Produce to an unknown topic", told("nowhere", 0))
    contract("Produce to a topic with a bad name", told("no/where", 0))
    contract("Produce to a topic with an empty name", told("", 0))
    contract("Produce to an unknown partition, v12", told(topic, 99))
    contract("Produce to partition -1", told(topic, -1))
    contract("Produce by id", told(topic, 0, 13, topic_id))
    contract("Produce to an unknown partition, v13", told(topic, 99, 13, topic_id))
    contract("Produce to an unknown id", told(topic, 0, 13, NOBODY))
    contract("Produce to the zero id", told(topic, 0, 13, uuid.UUID(int=0)))
    data = [("nowhere", 0, raw), (topic, 0, raw)]
    call = node.send(wire.produce(data), 12)
    codes = [call.part(name, 0).error_code for name in ("nowhere", topic)]
    contract("an unknown topic beside a good one", codes)
    bad = node.send(wire.produce([("nowhere", 0, patched(16, ">b", 9))]), 12)
    contract("magic 9 for an unknown topic", bad.told())
    nothing = node.send(wire.produce([]), 12).answer()
    contract("Produce for no partition: entries in the answer", len(nothing.responses))


def shown(p) -> str:
    """A partition in Metadata."""
    return (
        f"{p.error_code}, leader {p.leader_id}, epoch {p.leader_epoch}, "
        f"replicas {list(p.replica_nodes)}, in sync {sorted(p.isr_nodes)}, "
        f"offline {list(p.offline_replicas)}"
    )


def hint_of(world: World, node, topic: str, version: int, acks: int = -1) -> str:
    """What a refusal says of the leader."""
    response = node.send(wire.produce([(topic, 1, wire.batch())], acks=acks), version).answer()
    part = response.responses[0].partition_responses[0]
    leader, endpoints = part.current_leader, response.node_endpoints or []
    named = "no hint"
    if leader is not None and (leader.leader_id, leader.leader_epoch) != (-1, -1):
        named = f"leader {leader.leader_id}, epoch {leader.leader_epoch}"
    where = [e.node_id for e in endpoints if (e.host, e.port) == world.address(e.node_id)]
    return f"{part.error_code}, {named}, endpoints of {where}"


def test_not_leader(contract, world, topic) -> None:
    node, topic_id = world.connect(1), world.topic(1, topic).topic_id
    for version in (9, 10, 12):
        contract(f"Produce v{version} to a follower", hint_of(world, node, topic, version))
    contract("Produce v12 to a follower, acks=1", hint_of(world, node, topic, 12, acks=1))
    request = wire.produce([(topic, 1, wire.batch())], topic_ids={topic: topic_id})
    contract("Produce v13 to a follower", node.send(request, 13).told())


def test_acks(contract, world, topic) -> None:
    w = Writer(world, topic)
    contract("acks=2 and acks=-2", f"{w.told(acks=2)}, {w.told(acks=-2)}")
    contract("acks=1", w.told(0, acks=1).split()[0])
    contract("acks=all, timeout_ms=0: 0 or 7", w.told(1, timeout_ms=0).split()[0] in ("0", "7"))
    w.wire.expect_none(w.send(2, acks=0))
    node_answers = w.wire.send(wire.api_versions(), 3)
    contract("acks=0, then ApiVersions", f"{node_answers.answer().error_code}: the only answer")
    contract("acks=0 was appended: its repeat", w.told(2).split()[0])
    call = w.send(9, acks=0)
    w.wire.expect_none(call)
    contract("acks=0 with a hole: the connection", w.wire.ended_within(5.0))
    other = world.connect(1)
    other.expect_none(other.send(wire.produce([("nowhere", 0, wire.batch())], acks=0), 12))
    contract("acks=0 to an unknown topic: the connection", other.ended_within(5.0))


def test_transactional_id(contract, world, topic) -> None:
    node = world.connect(1)
    call = node.send(wire.produce([(topic, 0, wire.batch())], transactional_id="t"), 12)
    contract("a transactional id, and a batch that is in no transaction", call.told().split()[0])


def test_order_of_answers(contract, world, topic) -> None:
    w = Writer(world, topic)
    first = [w.send(s) for s in range(5)]
    meta, again = w.wire.send(wire.metadata(topic), 12), w.send(4)
    again.answer()
    codes = [c.told().split()[0] for c in first]
    same = again.told() == first[4].told()
    told = f"{codes}, {len(meta.answer().topics)} topic, repeat as the original: {same}"
    contract("five in flight, Metadata and a repeat behind them", told)
    hole = [w.send(s) for s in (5, 7, 8, 6, 7)]
    hole[-1].answer()
    contract("in flight 5, 7, 8, 6, 7", ", ".join(c.told().split()[0] for c in hole))


def test_refused_frames(contract, world) -> None:
    def frame(body: bytes, size: int | None = None) -> str:
        node = world.connect(1)
        node.send_bytes(struct.pack(">i", len(body) if size is None else size) + body)
        return node.ended_within(5.0)

    def header(api: int, version: int) -> bytes:
        return struct.pack(">hhih", api, version, 1, -1)

    contract("Produce v2", frame(header(0, 2) + bytes(20)))
    contract("Produce v14", frame(header(0, 14) + bytes(20)))
    contract("Metadata v99", frame(header(3, 99) + bytes(20)))
    contract("api key 999", frame(header(999, 0)))
    contract("api key -5", frame(header(-5, 0)))
    contract("a Produce of garbage", frame(header(0, 12) + b"\xff" * 30))
    contract("a Produce cut short", frame(header(0, 12) + b"\0\0"))
    contract("three bytes", frame(b"abc"))
    contract("an empty frame", frame(b""))
    contract("a frame of -1 bytes", frame(b"", -1))
    contract("a frame of more than 100 MB", frame(b"", 104_857_601))


def test_api_versions(contract, world) -> None:
    told = world.ask(1, wire.api_versions(), 3)
    ranges = {v.api_key: (v.min_version, v.max_version) for v in told.api_keys}
    for key, name in ((0, "Produce"), (3, "Metadata"), (18, "ApiVersions"), (22, "InitProducerId")):
        contract(f"ApiVersions: {name}", ranges[key])
    contract("ApiVersions: Fetch and ListOffsets", f"{ranges[1]}, {ranges[2]}")
    node = world.connect(1)
    node.send_bytes(struct.pack(">ihhihb", 11, 18, 99, 1, -1, 0))
    (size,) = struct.unpack(">i", node.read(4))
    told = ApiVersionsResponse.decode(node.read(size), version=0, header=True)
    contract("ApiVersions v99, answered as v0", f"{told.error_code}, {len(told.api_keys)} API")


def test_metadata(contract, world, topic) -> None:
    def told(request, version=12) -> str:
        topics = world.ask(1, request, version).topics
        return ", ".join(f"{t.error_code} {'named' if t.name == topic else t.name}" for t in topics)

    topic_id = world.topic(1, topic).topic_id
    contract("Metadata of a topic", told(wire.metadata(topic)))
    contract("Metadata of an unknown topic", told(wire.metadata("nowhere")))
    contract("Metadata of a bad name", told(wire.metadata("no/where")))
    contract("Metadata of an empty name", told(wire.metadata("")))
    contract("Metadata of a known and an unknown topic", told(wire.metadata(topic, "nowhere")))
    contract("Metadata of a topic named twice", told(wire.metadata(topic, topic)))
    contract("Metadata by id", told(wire.metadata(topic_id=topic_id)))
    contract("Metadata by an unknown id", told(wire.metadata(topic_id=NOBODY)))
    none = wire.metadata(topic)
    none.topics = []
    contract("Metadata of no topic", told(none) or "nothing")
    p = world.partition(2, topic, 1)
    contract("Metadata of a healthy partition", shown(p))


def test_closed_by_the_client(contract, world, topic) -> None:
    w = Writer(world, topic)
    other = world.connect(1)
    w.send(0, on=other)
    other.close()
    again = w.told(0)
    contract("sent, and closed at once: the repeat", again.split()[0])
    log = world.log(1, topic)
    contract(
        "sent, and closed at once: it is the last in the log", again.endswith(f"at {len(log) - 1}")
    )


def test_throttle(contract, world, topic) -> None:
    hog = world.throttled_client()
    node, beside = world.connect(1, hog), world.connect(1, hog)
    # Over the window of ten seconds by a second and a half.
    call = node.send(wire.produce([(topic, 0, wire.batch(value=b"x" * 115_000))]), 12)
    told = call.answer()
    behind = node.send(wire.metadata(topic), 12)
    contract("over the quota: the answer", f"{call.told().split()[0]}, at once: {call.took_s < 1}")
    contract("over the quota: throttle_time_ms > 0", 500 < told.throttle_time_ms < 10_000)
    free = beside.send(wire.metadata(topic), 12)
    free.answer()
    contract("Metadata on that client's other connection", f"at once: {free.took_s < 0.5}")
    behind.answer()
    waited_s = behind.answered_s - call.answered_s
    as_told = abs(waited_s - told.throttle_time_ms / 1000) < 0.5
    contract("Metadata behind it waits as long as was told", as_told)
