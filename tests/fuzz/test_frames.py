"""Frames on a real socket, cut or changed at every byte: one connection ends, and no other."""

from __future__ import annotations

import pytest

from outlast.engine.messages import Loss
from outlast.io.events import Connected, Disconnected, Responded
from tests.fuzz.masks import masks
from tests.net.broker import (
    RANGES,
    Stream,
    answer_all,
    api_versions,
    broker,
    frame,
    metadata,
)
from tests.net.client import client


class Spoiler:
    """A broker that answers one request with the bytes it is given, and closes."""

    def __init__(self) -> None:
        self.spoil = lambda whole: whole

    def __call__(self, stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        if request is not None:
            _, version, correlation_id, _ = request
            stream.sock.sendall(self.spoil(frame(correlation_id, metadata(version, topics=1))))


class VersionsSpoiler(Spoiler):
    """A broker whose first answer is spoilt, and all that comes after it, too."""

    def __call__(self, stream: Stream) -> None:
        while (request := stream.request()) is not None:
            _, version, correlation_id, _ = request
            versions = api_versions(min(max(version, 0), 4), RANGES)
            stream.sock.sendall(self.spoil(frame(correlation_id, versions)))


LENGTH = len(frame(0, metadata(12, topics=1)))


def test_an_answer_that_ends_early_ends_its_connection_and_leaves_the_request_unanswered() -> None:
    spoiler = Spoiler()
    with broker(spoiler) as server, broker(answer_all) as other, client() as c:
        beside = c.connected(other)
        for keep in range(LENGTH):
            spoiler.spoil = lambda whole, keep=keep: whole[:keep]
            connection = c.connected(server)
            c.send(connection, keep)
            assert c.lost(connection).loss is Loss.CLOSED
            c.send(beside, keep)
            assert c.answered(beside).token == keep
        assert c.events == []


@pytest.mark.parametrize("part", ["length and correlation id", "body"])
def test_a_changed_byte_ends_the_connection_or_makes_another_answer(part: str) -> None:
    spoiler = Spoiler()
    ended = answered = 0
    with broker(spoiler) as server, broker(answer_all) as other, client() as c:
        beside = c.connected(other)
        for byte in range(8) if part != "body" else range(8, LENGTH):
            for mask in masks(byte, part):

                def spoil(whole: bytes, byte: int = byte, mask: int = mask) -> bytes:
                    return whole[:byte] + bytes([whole[byte] ^ mask]) + whole[byte + 1 :]

                spoiler.spoil = spoil
                connection = c.connected(server)
                c.send(connection, 1)
                event = c.next(connection)
                if isinstance(event, Responded):
                    answered += 1
                    event = c.next(connection)
                else:
                    ended += 1
                assert isinstance(event, Disconnected), (byte, mask)
                c.send(beside, 2)
                assert c.answered(beside).token == 2
        assert c.events == []
    assert ended > 0
    assert (answered == 0) is (part != "body")


def test_a_changed_byte_in_what_a_broker_says_of_itself_ends_at_most_its_connection() -> None:
    spoiler = VersionsSpoiler()
    came = {Connected: 0, Disconnected: 0}
    with broker(spoiler) as server, broker(answer_all) as other, client(setup_timeout_s=0.2) as c:
        beside = c.connected(other)
        for byte in range(len(frame(0, api_versions(4, RANGES)))):
            for mask in masks(byte, "versions"):

                def spoil(whole: bytes, byte: int = byte, mask: int = mask) -> bytes:
                    return whole[:byte] + bytes([whole[byte] ^ mask]) + whole[byte + 1 :]

                spoiler.spoil = spoil
                connection = c.connect(server.host, server.port)
                event = c.next(connection)
                came[type(event)] += 1
                if isinstance(event, Connected):
                    c.give_up(connection, abort=True)
                c.send(beside, 2)
                assert c.answered(beside).token == 2
        assert c.events == []
    assert min(came.values()) > 0, came
