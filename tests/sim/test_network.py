"""The simulator's network, against a stand-in for the cluster that notes what reaches it."""

from __future__ import annotations

from io import BytesIO
from random import Random
from typing import Any

import pytest
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest

from outlast.engine.messages import Connection, Loss, Role
from outlast.testing.cluster import Answer, Close
from outlast.testing.network import Connected, Lost, NetworkSettings, Responded, SimNetwork

LATENCY_S = (0.001, 0.004)


class Brokers:
    """Answers ApiVersions; keeps everything else that arrives until the test answers it."""

    def __init__(self) -> None:
        self.addresses = {1: ("b1", 9092), 2: ("b2", 9092)}
        self.down: set[int] = set()
        self.mute = False
        self.newest_api_versions = 4
        self.got: list[tuple[int, bytes, float]] = []
        self.closed_conns: list[tuple[int, float]] = []
        self.out: list[Answer | Close] = []

    def opened(self, node_id, _conn, _now):
        return node_id not in self.down

    def received(self, conn, frame, now):
        header = RequestHeader.decode(BytesIO(frame), flexible=False)
        if header.request_api_key != ApiVersionsRequest.API_KEY:
            self.got.append((conn, frame, now))
        elif not self.mute:
            self.answer_versions(conn, header)

    def answer_versions(self, conn, header):
        asked = header.request_api_version
        known = asked <= self.newest_api_versions
        key = ApiVersionsResponse.ApiVersion
        keys = [
            key(
                version=asked if known else 0,
                api_key=18,
                min_version=0,
                max_version=self.newest_api_versions,
            )
        ]
        if known:
            keys.append(key(version=asked, api_key=3, min_version=0, max_version=9))
        response = ApiVersionsResponse(
            version=asked if known else 0, error_code=0 if known else 35, api_keys=keys
        )
        response.with_header(correlation_id=header.correlation_id)
        self.out.append(Answer(conn, bytes(response.encode(header=True))))

    def closed(self, conn, now):
        self.closed_conns.append((conn, now))

    def tick(self, _now):
        raise AssertionError("nothing is due here")

    def next_deadline(self, _now):
        return None

    def take(self):
        out, self.out = self.out, []
        return out


class Wire:
    """The network with its brokers, run to its end after each step of a test."""

    def __init__(self, seed: int = 1, **settings) -> None:
        self.brokers = Brokers()
        self.net = SimNetwork(
            self.brokers,
            NetworkSettings(**{"latency_s": LATENCY_S, **settings}),
            Random(seed),
            setup_timeout_s=2.0,
        )
        self.now = 0.0
        self.events: list[tuple[float, Any]] = []
        self.serial = 0

    def run(self, until: float | None = None) -> None:
        while (at := self.net.next_deadline(self.now)) is not None:
            if until is not None and at > until:
                break
            self.now = max(self.now, at)
            self.net.step(self.now)
            while self.net.events:
                self.events.append((self.now, self.net.events.popleft()))
        if until is not None:
            self.now = until

    def connect(self, host="b1", port=9092) -> Connection:
        self.serial += 1
        connection = Connection(1, Role.OPEN, self.serial)
        self.net.connect(connection, host, port, self.now)
        return connection

    def open(self) -> Connection:
        connection = self.connect()
        self.run(self.now + 0.5)
        assert isinstance(self.events.pop()[1], Connected)
        return connection

    def send(self, connection, token) -> None:
        self.net.send(connection, token, MetadataRequest(topics=[]), True, self.now)


def test_a_connection_is_given_once_api_versions_has_been_answered():
    wire = Wire()
    connection = wire.connect()
    wire.run()
    [(at, event)] = [e for e in wire.events if isinstance(e[1], Connected)]
    assert event == Connected(connection, {18: (0, 4), 3: (0, 9)}, {})
    assert 4 * LATENCY_S[0] <= at <= 4 * LATENCY_S[1], "two round trips"


def test_an_older_broker_is_asked_for_its_versions_again():
    wire = Wire()
    wire.brokers.newest_api_versions = 2
    wire.connect()
    wire.run()
    assert [type(e) for _, e in wire.events] == [Connected]
    assert [r.api_version for r in wire.net.requests] == [ApiVersionsRequest.max_version, 2]


def test_a_node_that_is_down_refuses_after_one_round_trip():
    wire = Wire()
    wire.brokers.down.add(1)
    connection = wire.connect()
    wire.run()
    [(at, event)] = wire.events
    assert event == Lost(connection, Loss.REFUSED, "connection refused", ())
    assert 2 * LATENCY_S[0] <= at <= 2 * LATENCY_S[1]


def test_an_address_that_nobody_has_is_refused():
    wire = Wire()
    wire.connect("nowhere", 1)
    wire.run()
    assert [e.loss for _, e in wire.events] == [Loss.REFUSED]


@pytest.mark.parametrize("trouble", ["mute", "cut"])
def test_a_node_that_accepts_but_never_answers_is_given_up_after_the_setup_time(trouble):
    wire = Wire()
    wire.brokers.mute = True
    if trouble == "cut":
        wire.net.cut(1, 0.0)
    wire.connect()
    wire.run()
    [(at, event)] = wire.events
    assert event.loss is Loss.SETUP_TIMEOUT
    assert at == 2.0
    assert bool(wire.brokers.closed_conns) == (trouble == "mute")


def test_requests_and_answers_keep_their_order_whatever_the_latency():
    wire = Wire(spike_probability=0.3)
    connection = wire.open()
    for token in range(50):
        wire.send(connection, token)
    wire.run(wire.now + 5)
    assert [f for _, f, _ in wire.brokers.got] == [r.frame for r in wire.net.requests[1:]]
    for conn, frame, _ in wire.brokers.got:
        wire.brokers.out.append(Answer(conn, answer_to(frame)))
    wire.net.collect(wire.now)
    wire.run()
    assert [e.token for _, e in wire.events] == list(range(50))
    assert all(isinstance(e, Responded) and e.response.API_VERSION == 9 for _, e in wire.events)


def answer_to(frame: bytes, offset: int = 0) -> bytes:
    """A Metadata answer with the request's correlation id plus `offset`."""
    from kafka.protocol.metadata import MetadataResponse

    header = RequestHeader.decode(BytesIO(frame), flexible=True)
    response = MetadataResponse(
        version=header.request_api_version,
        brokers=[],
        topics=[],
        throttle_time_ms=0,
        cluster_id="c",
        controller_id=1,
    )
    response.with_header(correlation_id=header.correlation_id + offset)
    return bytes(response.encode(header=True))


@pytest.mark.parametrize("damage", ["truncated", "empty", "another's"])
def test_an_answer_that_cannot_be_read_ends_the_connection(damage):
    wire = Wire()
    connection = wire.open()
    wire.send(connection, 7)
    wire.run()
    conn, frame, _ = wire.brokers.got[0]
    answer = answer_to(frame, offset=1 if damage == "another's" else 0)
    answer = {"truncated": answer[:9], "empty": b""}.get(damage, answer)
    wire.brokers.out.append(Answer(conn, answer))
    wire.net.collect(wire.now)
    wire.run()
    assert [e.loss for _, e in wire.events] == [Loss.BAD_BYTES]
    assert [c for c, _ in wire.brokers.closed_conns] == [conn], "the broker is told"


def test_what_was_on_the_wire_arrives_though_this_host_has_aborted():
    wire = Wire()
    connection = wire.open()
    wire.send(connection, 1)
    wire.net.disconnect(connection, True, wire.now)
    wire.run()
    assert len(wire.brokers.got) == 1
    [(_, closed_at)] = wire.brokers.closed_conns
    assert closed_at >= wire.brokers.got[0][2], "the end comes behind what was sent"
    assert wire.events == []
    assert wire.net.requests[-1].given_up


@pytest.mark.parametrize("abort", [True, False])
def test_what_a_cut_keeps_on_this_host_is_dropped_by_an_abort_only(abort):
    wire = Wire()
    connection = wire.open()
    wire.net.cut(1, wire.now)
    wire.send(connection, 1)
    wire.run(wire.now + 1)
    wire.net.disconnect(connection, abort, wire.now)
    wire.net.heal(1, wire.now)
    wire.run()
    assert len(wire.brokers.got) == (0 if abort else 1)
    assert len(wire.brokers.closed_conns) == 1


def test_a_cut_holds_both_directions_and_healing_lets_them_pass_in_order():
    wire = Wire()
    connection = wire.open()
    wire.send(connection, 1)
    wire.run()
    wire.net.cut(1, wire.now)
    wire.send(connection, 2)
    conn, frame, _ = wire.brokers.got[0]
    wire.brokers.out.append(Answer(conn, answer_to(frame)))
    wire.net.collect(wire.now)
    wire.run(wire.now + 3)
    assert (len(wire.brokers.got), wire.events) == (1, [])
    healed_at = wire.now
    wire.net.heal(1, healed_at)
    wire.send(connection, 3)
    wire.run()
    assert [f for _, f, _ in wire.brokers.got] == [r.frame for r in wire.net.requests[1:]]
    assert [e.token for _, e in wire.events] == [1]
    assert wire.events[0][0] > healed_at


def test_a_reset_loses_a_part_of_what_is_under_way_and_both_ends_learn_of_it():
    arrived = []
    for seed in range(30):
        wire = Wire(seed)
        connection = wire.open()
        for token in range(3):
            wire.send(connection, token)
        wire.net.reset_link(connection, wire.now)
        wire.run()
        arrived.append(len(wire.brokers.got))
        assert [e.loss for _, e in wire.events] == [Loss.CLOSED]
        assert len(wire.brokers.closed_conns) == 1
        assert wire.net.requests[1].failed_at is not None
    assert set(arrived) == {0, 1, 2, 3}, "each cut has happened"


def test_a_broker_that_closes_is_noticed_behind_its_last_answer():
    wire = Wire()
    connection = wire.open()
    wire.send(connection, 1)
    wire.run()
    conn, frame, _ = wire.brokers.got[0]
    wire.brokers.out += [Answer(conn, answer_to(frame)), Close(conn, True)]
    wire.net.collect(wire.now)
    wire.send(connection, 2)
    wire.run()
    assert [type(e) for _, e in wire.events] == [Responded, Lost]
    assert len(wire.brokers.got) == 1, "what comes too late is not taken"
    assert not wire.brokers.closed_conns, "the broker need not be told"


def test_what_is_handed_to_a_dead_connection_is_unsent_or_vanishes():
    unsent = set()
    for seed in range(20):
        wire = Wire(seed, notice_s=0.1)
        connection = wire.open()
        wire.brokers.out.append(Close(1, True))
        wire.net.collect(wire.now)
        wire.run(wire.now + LATENCY_S[1])
        if connection not in wire.net.standing():
            wire.send(connection, 5)
        wire.run()
        [(_, event)] = wire.events
        unsent.add(event.unsent)
        assert not wire.brokers.got
    assert unsent == {(), (5,)}


def test_no_event_follows_a_disconnect():
    wire = Wire()
    connection = wire.open()
    wire.send(connection, 1)
    wire.run()
    conn, frame, _ = wire.brokers.got[0]
    wire.brokers.out.append(Answer(conn, answer_to(frame)))
    wire.net.collect(wire.now)
    wire.net.disconnect(connection, False, wire.now)
    other = wire.connect()
    wire.net.disconnect(other, True, wire.now)
    wire.run()
    assert wire.events == []
