"""The adapter over kafka.net against tiny brokers on real sockets."""

from __future__ import annotations

import gc
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from outlast.engine.messages import Loss
from outlast.io.events import Connected
from outlast.io.sockets import socket_options
from tests.net.broker import (
    PRODUCE,
    RANGES,
    Stream,
    answer_all,
    broker,
    hold,
    metadata,
    until,
)
from tests.net.client import ask, client, produce


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def info(host: str, port: int) -> Any:
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))


# --- connecting -----------------------------------------------------------------------------------


def test_a_broker_is_connected_and_answers_in_order() -> None:
    with broker(answer_all) as server, client() as c:
        connection = c.connect(server.host, server.port)
        event = c.next(connection)
        assert isinstance(event, Connected)
        assert event.api_versions[0] == (0, 11)
        assert event.address == f"127.0.0.1:{server.port}"
        for token in range(100):  # far more than kafka.net's limit of five
            c.send(connection, token)
        answers = [c.answered(connection) for _ in range(100)]
        assert [a.token for a in answers] == list(range(100))
        assert answers[0].response.API_VERSION == 12
        assert [t.name for t in answers[0].response.topics] == ["t0", "t1", "t2"]


def test_refused_connects_are_told_and_leak_no_socket() -> None:
    port = unused_port()
    refusing = [info("127.0.0.1", port), info("127.0.0.2", port)]
    gc.disable()  # it would close them too, some time
    try:
        with client(resolver=lambda *_: refusing) as c:
            before = len(os.listdir("/proc/self/fd"))
            for host in ["127.0.0.1", "two.test"] * 15:
                event = c.lost(c.connect(host, port))
                assert event.loss is Loss.REFUSED
                assert "ECONNREFUSED" in event.detail
            assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def test_one_deadline_covers_a_peer_that_accepts_and_is_silent() -> None:
    with broker(hold) as server, client(setup_timeout_s=0.3) as c:
        begun_s = time.monotonic()
        event = c.lost(c.connect(server.host, server.port))
        assert event.loss is Loss.SETUP_TIMEOUT
        assert 0.25 < time.monotonic() - begun_s < 3.0
        assert "0.3 s" in event.detail


def test_the_deadline_covers_the_look_up_and_the_socket_of_a_late_one_is_never_made() -> None:
    release = threading.Event()

    def resolver(host: str, port: int) -> Sequence[Any]:
        release.wait(5)
        return [info("127.0.0.1", 1)]

    with client(setup_timeout_s=0.2, resolver=resolver) as c:
        assert c.lost(c.connect("slow.test", 1)).loss is Loss.SETUP_TIMEOUT
        release.set()
        until(lambda: not [t for t in threading.enumerate() if "slow.test" in t.name])
        c.poll_for(0.05)
        assert c.events == []


def test_a_slow_look_up_holds_up_no_other_connection() -> None:
    release = threading.Event()
    with broker(answer_all) as server:

        def resolver(host: str, port: int) -> Sequence[Any]:
            release.wait(5)
            return [info(server.host, server.port)]

        with client(resolver=resolver) as c:
            slow = c.connect("slow.test", server.port)
            other = c.connected(server)
            c.send(other, 7)
            assert c.answered(other).token == 7
            assert c.events == []
            release.set()
            event = c.next(slow)
            assert isinstance(event, Connected)
            assert event.address == f"slow.test:{server.port} (127.0.0.1)"


def test_a_name_without_address() -> None:
    def resolver(host: str, port: int) -> Sequence[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    with client(resolver=resolver) as c:
        event = c.lost(c.connect("gone.test", 9092))
        assert event.loss is Loss.UNRESOLVED
        assert "gone.test" in event.detail


def test_numeric_addresses_and_localhost_are_not_looked_up() -> None:
    def resolver(host: str, port: int) -> Sequence[Any]:
        raise AssertionError("not needed")

    with broker(answer_all) as server, client(resolver=resolver) as c:
        for host in ("127.0.0.1", "localhost"):
            assert isinstance(c.next(c.connect(host, server.port)), Connected)


def test_a_refused_address_leads_to_the_next_at_once() -> None:
    with broker(answer_all) as server:
        refusing = info("127.0.0.1", unused_port())
        with client(resolver=lambda *_: [refusing, info(server.host, server.port)]) as c:
            assert isinstance(c.next(c.connect("two.test", 1)), Connected)


def test_a_silent_address_costs_one_attempt_and_is_passed_over_then() -> None:
    with broker(hold) as dead, broker(answer_all) as alive:
        addresses = [info(dead.host, dead.port), info(alive.host, alive.port)]
        with client(setup_timeout_s=0.2, resolver=lambda *_: addresses) as c:
            assert c.lost(c.connect("two.test", 1)).loss is Loss.SETUP_TIMEOUT
            for _ in range(3):
                assert isinstance(c.next(c.connect("two.test", 1)), Connected)
            assert len(dead.accepted) == 1


def test_when_all_addresses_have_failed_all_are_tried_again() -> None:
    with broker(hold) as one, broker(hold) as two:
        addresses = [info(one.host, one.port), info(two.host, two.port)]
        with client(setup_timeout_s=0.1, resolver=lambda *_: addresses) as c:
            for _ in range(4):
                assert c.lost(c.connect("two.test", 1)).loss is Loss.SETUP_TIMEOUT
        assert [len(one.accepted), len(two.accepted)] == [2, 2]


def test_a_broker_without_the_record_format_is_unsupported() -> None:
    def old(stream: Stream) -> None:
        stream.set_up(RANGES | {0: (0, 2)})
        hold(stream)

    with broker(old) as server, client() as c:
        event = c.lost(c.connect(server.host, server.port))
        assert event.loss is Loss.UNSUPPORTED
        assert "Produce" in event.detail


def test_a_broker_that_knows_only_api_versions_0_is_asked_again() -> None:
    asked: list[int] = []

    def serve(stream: Stream) -> None:
        request = stream.request()
        assert request is not None
        asked.append(request[1])
        # KIP-511: an old broker answers a version that it does not know in version 0.
        body = struct.pack(">hi", 35, 1) + struct.pack(">hhh", 18, 0, 0)
        stream.answer(request[2], body)
        answer_all(stream)

    with broker(serve) as server, client() as c:
        assert isinstance(c.next(c.connect(server.host, server.port)), Connected)
    assert asked == [4]


def test_the_users_api_version_limits_what_is_used() -> None:
    with broker(answer_all) as server, client(api_version=(2, 3)) as c:
        connection = c.connect(server.host, server.port)
        event = c.next(connection)
        assert isinstance(event, Connected)
        assert event.api_versions[0] == (0, 7)
        c.send(connection, 1)
        assert c.answered(connection).response.API_VERSION == 8


# --- the end of a connection ----------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(len(metadata(12, topics=1))))
def test_a_truncated_answer_ends_its_connection_and_no_other(cut: int, lines: Any) -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        if request is not None:
            stream.answer(request[2], metadata(12, topics=1)[:cut])
            hold(stream)

    with broker(serve) as bad, broker(answer_all) as good, client() as c:
        victim, other = c.connected(bad), c.connected(good)
        c.send(victim, 1)
        event = c.lost(victim)
        assert event.loss is Loss.BAD_BYTES
        assert event.unsent == []
        c.send(other, 2)
        assert c.answered(other).token == 2


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">ii", 4, 9999),
        struct.pack(">i", 0),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["negative", "huge", "unasked", "empty", "http"],
)
def test_bytes_that_are_no_answer(garbage: bytes) -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        stream.request()
        stream.sock.sendall(garbage)
        hold(stream)

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        c.send(connection, 1)
        assert c.lost(connection).loss is Loss.BAD_BYTES


def test_a_reset_inside_a_request() -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        stream.sock.recv(10)
        stream.reset()

    with broker(serve) as server, broker(answer_all) as good, client() as c:
        connection, other = c.connected(server), c.connected(good)
        c.send(connection, 1, produce(4_000_000))
        event = c.lost(connection)
        assert event.loss is Loss.CLOSED
        assert event.unsent == []  # it was handed over
        c.send(other, 2)
        assert c.answered(other).token == 2


def test_an_answer_before_the_end_counts() -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        assert request is not None
        stream.answer(request[2], metadata(12))
        stream.reset()

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        c.send(connection, 1)
        c.send(connection, 2)
        assert c.answered(connection).token == 1
        assert c.lost(connection).loss is Loss.CLOSED


def test_an_answer_that_came_before_a_failed_write_counts() -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        assert request is not None
        stream.answer(request[2], metadata(12))
        stream.reset()

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        c.send(connection, 1)
        until(lambda: not server.threads[1].is_alive())  # answered, and reset
        c.send(connection, 2)
        assert c.answered(connection).token == 1
        assert c.lost(connection).loss is Loss.CLOSED


def test_a_request_for_a_connection_whose_end_was_told_goes_nowhere() -> None:
    """The engine takes an answer, sends, and hears of the end, all in one round of the loop."""
    go = threading.Event()

    def serve(stream: Stream) -> None:
        stream.set_up()
        go.wait(5)
        stream.reset()

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        go.set()
        assert c.lost(connection).loss is Loss.CLOSED
        c.send(connection, 1)
        c.give_up(connection, abort=True)


def test_what_comes_after_a_failed_write_was_never_sent() -> None:
    go = threading.Event()

    def serve(stream: Stream) -> None:
        stream.set_up()
        go.wait(5)
        stream.reset()

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        go.set()
        until(lambda: not server.threads[1].is_alive())  # the reset has arrived
        for token in (1, 2, 3):
            c.send(connection, token)
        event = c.lost(connection)
        assert event.loss is Loss.CLOSED
        assert event.unsent == [2, 3]


@pytest.mark.parametrize("acks", [-1, 0])
def test_aborting_resets_and_drops_what_has_not_left(acks: int) -> None:
    received: list[int] = []
    go = threading.Event()

    def serve(stream: Stream) -> None:
        stream.set_up()
        go.wait(5)
        try:
            while chunk := stream.sock.recv(1 << 16):
                received.append(len(chunk))
        except ConnectionResetError:
            received.append(-1)

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        c.send(connection, 1, produce(30_000_000, acks), expects_answer=acks != 0)
        c.poll_for(0.05)
        c.give_up(connection, abort=True)
        go.set()
        until(lambda: not server.threads[1].is_alive())
        assert received[-1] == -1
        assert sum(received) < 30_000_000
        c.poll_for(0.05)
        assert c.events == []  # the engine has given it up


def test_a_connection_with_unanswered_requests_is_never_closed_softly() -> None:
    ends: list[str] = []

    def serve(stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        if request is not None and request[0] == PRODUCE:
            stream.answer(request[2], b"nonsense")
        try:
            ends.append("closed" if stream.sock.recv(1) == b"" else "more")
        except ConnectionResetError:
            ends.append("reset")

    with broker(serve) as server, client() as c:
        idle, asking, misled = c.connected(server), c.connected(server), c.connected(server)
        c.give_up(idle, abort=False)
        c.poll_until(lambda: ends == ["closed"])
        c.send(asking, 1)
        c.poll_for(0.05)
        c.give_up(asking, abort=False)
        c.poll_until(lambda: ends == ["closed", "reset"])
        c.send(misled, 1, produce(10))
        assert c.lost(misled).loss is Loss.BAD_BYTES
        c.poll_until(lambda: ends == ["closed", "reset", "reset"])


def test_last_requests_without_answer_are_written_before_a_soft_close() -> None:
    sizes: list[int] = []
    go = threading.Event()

    def serve(stream: Stream) -> None:
        stream.set_up()
        go.wait(5)
        while (request := stream.request()) is not None:
            sizes.append(len(request[3]))

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        for token in range(4):
            c.send(connection, token, produce(3_000_000, acks=0), expects_answer=False)
        c.give_up(connection, abort=False)
        c.poll_for(0.05)
        go.set()
        c.network.close(grace_s=5.0)
        until(lambda: len(sizes) == 4)
        assert c.events == []


def test_a_peer_that_talks_while_it_is_being_left_costs_nothing() -> None:
    left, done = threading.Event(), threading.Event()

    def serve(stream: Stream) -> None:
        stream.set_up()
        left.wait(5)
        stream.sock.sendall(b"nobody reads this any more")
        done.wait(5)

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        c.send(connection, 1, produce(30_000_000, acks=0), expects_answer=False)
        c.give_up(connection, abort=False)
        left.set()
        cpu_s = time.thread_time()
        c.poll_for(0.5)
        assert time.thread_time() - cpu_s < 0.1
        assert c.events == []
        done.set()


def test_a_request_that_cannot_be_encoded_ends_its_connection_unsent() -> None:
    with broker(answer_all) as server, client() as c:
        connection = c.connected(server)
        request = ask()
        request.topics = [object()]
        c.send(connection, 5, request)
        event = c.lost(connection)
        assert event.loss is Loss.UNSUPPORTED
        assert event.unsent == [5]


# --- time and flow are the engine's ---------------------------------------------------------------


def test_throttling_is_left_to_the_engine() -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        while (request := stream.request()) is not None:
            body = metadata(request[1])
            stream.answer(request[2], body[:1] + struct.pack(">i", 60_000) + body[5:])

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        for token in (1, 2):
            c.send(connection, token)
            answer = c.answered(connection, timeout_s=1)
            assert answer.response.throttle_time_ms == 60_000


def test_a_request_may_take_longer_than_the_set_up() -> None:
    go = threading.Event()

    def serve(stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        go.wait(5)
        if request is not None:
            stream.answer(request[2], metadata(12))

    with broker(serve) as server, client(setup_timeout_s=0.1) as c:
        connection = c.connected(server)
        c.send(connection, 1)
        c.poll_for(0.3)
        assert c.events == []
        go.set()
        assert c.answered(connection).token == 1


def test_an_idle_connection_does_not_spin() -> None:
    with broker(answer_all) as server, client() as c:
        connection = c.connected(server)
        c.send(connection, 1)
        c.answered(connection)
        begun_s, cpu_s = time.monotonic(), time.thread_time()
        assert c.network.poll(0.2) == []
        assert time.monotonic() - begun_s >= 0.19
        assert time.thread_time() - cpu_s < 0.05


def test_wake_ends_the_wait_from_another_thread() -> None:
    with client() as c:
        threading.Timer(0.05, c.network.wake).start()
        begun_s = time.monotonic()
        c.network.poll(5.0)
        assert time.monotonic() - begun_s < 4.0


# --- proxies --------------------------------------------------------------------------------------


def http_proxy(stream: Stream) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head += stream.sock.recv(1000)
    target = head.split()[1].decode()
    host, port = target.rsplit(":", 1)
    assert host == "broker.test"  # the proxy looks names up
    time.sleep(0.05)
    stream.sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    answer_all(stream)
    del port


def test_through_a_proxy_that_looks_the_name_up() -> None:
    with broker(http_proxy) as proxy, client(proxy_url=f"http://127.0.0.1:{proxy.port}") as c:
        connection = c.connect("broker.test", 9092)
        assert isinstance(c.next(connection), Connected)
        c.send(connection, 1)
        assert c.answered(connection).token == 1


def test_a_silent_proxy_costs_the_deadline_and_no_cpu() -> None:
    with (
        broker(hold) as proxy,
        client(proxy_url=f"http://127.0.0.1:{proxy.port}", setup_timeout_s=1.0) as c,
    ):
        cpu_s = time.thread_time()
        assert c.lost(c.connect("broker.test", 9092)).loss is Loss.SETUP_TIMEOUT
        assert time.thread_time() - cpu_s < 0.1


# --- socket options and log lines -----------------------------------------------------------------


def test_keepalive_no_delay_and_buffers_are_set_unless_the_user_did() -> None:
    with socket.socket() as sock:
        for option in socket_options({"receive_buffer_bytes": 20_000, "send_buffer_bytes": 30_000}):
            sock.setsockopt(*option)

        def get(level: int, option: int) -> int:
            return sock.getsockopt(level, option)

        assert get(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert get(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert get(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert get(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5
        assert get(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert get(socket.SOL_SOCKET, socket.SO_RCVBUF) in (20_000, 40_000)
        assert get(socket.SOL_SOCKET, socket.SO_SNDBUF) in (30_000, 60_000)
    off = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
    delay = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    assert socket_options({"socket_options": [off, delay]}) == [off, delay]


def test_the_options_are_set_on_the_sockets_that_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    class Spy(socket.socket):
        def setsockopt(self, *option: Any) -> None:
            seen.append(option)
            super().setsockopt(*option)

    monkeypatch.setattr("kafka.net.inet.socket.socket", Spy)
    with broker(answer_all) as server, client(send_buffer_bytes=30_000) as c:
        c.connected(server)
    assert (socket.SOL_SOCKET, socket.SO_SNDBUF, 30_000) in seen
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in seen


@pytest.fixture
def lines() -> Any:
    """What kafka-python logs, while a test runs."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler, logger = Keep(), logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_kafka_pythons_lines_about_our_connections_are_dropped(lines: Any) -> None:
    def serve(stream: Stream) -> None:
        stream.set_up()
        request = stream.request()
        assert request is not None
        stream.answer(request[2], b"\0\0")

    with broker(serve) as server, client() as c:
        connection = c.connected(server)
        c.send(connection, 1)
        assert c.lost(connection).loss is Loss.BAD_BYTES
        c.lost(c.connect("127.0.0.1", unused_port()))
        assert lines == []
        elsewhere = logging.getLogger("kafka.net.transport")
        thread = threading.Thread(target=elsewhere.error, args=("of another client",))
        thread.start()
        thread.join()
    assert [line.getMessage() for line in lines] == ["of another client"]
    logging.getLogger("kafka.net.connection").error("ours no more")
    assert len(lines) == 2
