"""The mock cluster on real sockets: ports, connections, silence, and nothing left behind.

What a broker answers is tested in virtual time; here only what sockets and threads add.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from outlast.testing.cluster import MockCluster
from outlast.testing.faults import Blackhole
from outlast.testing.server import ClusterServer, Peer, deafen, main

SILENCE_S = 0.2  # how long nothing must come for us to call it silence


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer(MockCluster(3, rng=random.Random(7))) as it:
        yield it


@pytest.fixture
def connect(server: ClusterServer) -> Iterator[type[Client]]:
    made: list[Client] = []

    class Connected(Client):
        def __init__(self, node_id: int) -> None:
            super().__init__(server, node_id)
            made.append(self)

    yield Connected
    for client in made:
        client.close()


class Client:
    """A blocking socket that speaks frames."""

    def __init__(self, server: ClusterServer, node_id: int) -> None:
        address = server.call(lambda cluster, _now: cluster.addresses[node_id])
        self.socket = socket.create_connection(address, timeout=5)

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def receive(self) -> bytes:
        """One whole frame. Raises EOFError where the server closed instead."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise EOFError
            parts += part
        return parts

    def is_silent(self) -> bool:
        self.socket.settimeout(SILENCE_S)
        try:
            self.socket.recv(1)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(5)
        return False

    def peer(self, server: ClusterServer) -> Peer:
        """The server's end."""
        mine = self.socket.getsockname()
        (peer,) = [peer for peer in server.connections() if peer.address == mine]
        return peer

    def close(self) -> None:
        self.socket.close()


def api_versions(correlation_id: int = 1) -> bytes:
    request = ApiVersionsRequest(version=0)
    request.with_header(correlation_id=correlation_id, client_id="test")
    return bytes(request.encode(header=True))


def correlation_id(frame: bytes) -> int:
    """The correlation id of an answer to ApiVersions, which must be a good one."""
    answer = ApiVersionsResponse.decode(frame, version=0, header=True)
    assert answer.error_code == 0
    return int(answer.header.correlation_id)


# --- bytes --------------------------------------------------------------------------------------


def test_answers_pipelined_requests_in_order(connect):
    client = connect(1)
    client.send(*(api_versions(number) for number in range(1, 21)))
    assert [correlation_id(client.receive()) for _ in range(20)] == list(range(1, 21))


def test_a_request_that_comes_byte_by_byte_is_answered_once_whole(connect):
    client = connect(1)
    frame = struct.pack(">i", len(api_versions())) + api_versions()
    for position in range(len(frame) - 1):
        client.socket.sendall(frame[position : position + 1])
    assert client.is_silent()
    client.socket.sendall(frame[-1:])
    assert correlation_id(client.receive()) == 1


@pytest.mark.parametrize("length", [-1, -(2**31), 100 * 1024 * 1024 + 1])
def test_a_length_no_broker_takes_ends_the_connection_and_only_that(server, connect, length):
    good, bad = connect(1), connect(1)
    good.send(api_versions(1))
    good.receive()
    bad.socket.sendall(struct.pack(">i", length))
    assert bad.socket.recv(1) == b""
    good.send(api_versions(2))
    assert correlation_id(good.receive()) == 2


def test_garbage_ends_the_connection_without_an_answer(connect):
    client = connect(1)
    client.send(b"\x7f" * 40)
    with pytest.raises(EOFError):
        client.receive()


def test_a_client_that_leaves_in_the_middle_of_a_frame_harms_nobody(server, connect):
    leaver, stayer = connect(1), connect(1)
    leaver.socket.sendall(b"\0\0\1\0half")
    leaver.close()
    stayer.send(api_versions())
    assert correlation_id(stayer.receive()) == 1
    wait_until(lambda: len(server.connections()) == 1)


def test_answers_to_a_client_that_does_not_read_wait_for_it(server, connect):
    reader, lazy = connect(1), connect(1)
    lazy.peer(server).socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    rounds, at_once = 40, 250
    for _ in range(rounds):
        lazy.send(*(api_versions(1) for _ in range(at_once)))
    reader.send(api_versions(9))
    assert correlation_id(reader.receive()) == 9
    for _ in range(rounds * at_once):
        assert correlation_id(lazy.receive()) == 1


def test_serves_many_connections_at_once(server, connect):
    clients = [connect(1 + number % 3) for number in range(300)]
    for number, client in enumerate(clients):
        client.send(api_versions(number))
    assert [correlation_id(client.receive()) for client in clients] == list(range(300))
    assert len(server.connections()) == 300
    assert len(server.connections(node_id=2)) == 100


# --- nodes that die, restart and fall silent ----------------------------------------------------


def test_kill_ends_connections_and_refuses_new_ones_until_the_node_starts_again(server, connect):
    client, other = connect(1), connect(2)
    for one in (client, other):
        one.send(api_versions())
        one.receive()
    address = client.socket.getpeername()
    server.kill(1)
    with pytest.raises((EOFError, ConnectionResetError)):
        client.receive()
    with pytest.raises(ConnectionRefusedError):
        connect(1)
    other.send(api_versions(2))
    assert correlation_id(other.receive()) == 2

    server.start(1)
    wait_until(lambda: not refuses(address))
    again = connect(1)
    assert again.socket.getpeername() == address
    again.send(api_versions(3))
    assert correlation_id(again.receive()) == 3


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 5
    while not condition():
        assert monotonic() < deadline
        sleep(0.005)


def refuses(address: tuple[str, int]) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(address) != 0


def test_kill_resets_a_connection_with_a_request_unanswered(server, connect):
    client = connect(1)
    client.send(api_versions())
    client.receive()
    server.pause(1)
    client.send(api_versions(2))
    assert client.is_silent()
    server.kill(1)
    with pytest.raises(ConnectionResetError):
        client.receive()


def test_nobody_else_can_take_the_port_of_a_dead_node(server):
    address = server.call(lambda cluster, _now: cluster.addresses[1])
    server.kill(1)
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(address)


def test_a_node_that_is_down_can_come_back_at_another_address(server, connect):
    def address() -> tuple[str, int]:
        return server.call(lambda cluster, _now: cluster.addresses[2])

    old = address()
    with pytest.raises(ValueError, match="node 2 runs"):
        server.readdress(2)
    server.kill(2)
    server.readdress(2)
    server.start(2)
    assert address() != old
    wait_until(lambda: not refuses(address()))
    assert refuses(old)
    client = connect(2)
    client.send(api_versions(1))
    assert client.receive()


def test_a_paused_node_accepts_and_says_nothing_until_it_resumes(server, connect):
    before = connect(1)
    server.pause(1)
    after = connect(1)
    for number, client in enumerate((before, after)):
        client.send(api_versions(number))
        assert client.is_silent()
    server.resume(1)
    assert correlation_id(before.receive()) == 0
    assert correlation_id(after.receive()) == 1


def test_behind_a_blackhole_connects_hang_until_it_ends(server, connect):
    before = connect(1)
    address = before.socket.getpeername()
    hole = Blackhole(node=1)
    server.call(lambda cluster, _now: cluster.faults.append(hole))
    with pytest.raises(TimeoutError):
        socket.create_connection(address, timeout=SILENCE_S)
    before.send(api_versions(1))
    assert before.is_silent()
    other = connect(2)
    other.send(api_versions(2))
    assert correlation_id(other.receive()) == 2
    server.call(lambda cluster, _now: cluster.faults.remove(hole))
    after = connect(1)
    after.send(api_versions(3))
    assert correlation_id(after.receive()) == 3


def test_a_blackhole_that_ends_by_itself_lets_a_waiting_connect_through(server, connect):
    address = connect(1).socket.getpeername()
    server.call(
        lambda cluster, now: cluster.faults.append(Blackhole(node=1, until_s=now + SILENCE_S))
    )
    with pytest.raises(TimeoutError):
        socket.create_connection(address, timeout=SILENCE_S / 2)
    with socket.create_connection(address, timeout=5):  # the second SYN, after 1 s
        pass


# --- one connection -----------------------------------------------------------------------------


def test_deafen_kills_one_link_while_both_ends_believe_it_open(server, connect):
    client, other = connect(1), connect(1)
    client.send(api_versions(1))
    client.receive()
    deafen(client.peer(server))
    client.send(api_versions(2))
    assert client.is_silent()
    assert unacknowledged_segments(client.socket) > 0
    other.send(api_versions(3))
    assert correlation_id(other.receive()) == 3


def unacknowledged_segments(sock: socket.socket) -> int:
    """`tcpi_unacked` of Linux's struct tcp_info."""
    return int(struct.unpack_from("8B5I", sock.getsockopt(socket.IPPROTO_TCP, 11, 104))[12])


def test_stop_reading_leaves_what_follows_in_the_kernel(server, connect):
    client = connect(1)
    size = len(api_versions()) + 4
    server.stop_reading(client.peer(server), after_bytes=size + 1)
    client.send(api_versions(1), api_versions(2))
    assert correlation_id(client.receive()) == 1
    assert client.is_silent()
    client.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        fill(client.socket)


def fill(sock: socket.socket) -> None:
    while True:
        sock.send(b"\0" * 65536)


# --- calls, and the end -------------------------------------------------------------------------


def test_call_returns_and_raises_what_the_action_does(server):
    thread = server.call(lambda _cluster, _now: threading.current_thread())
    assert thread is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        server.call(lambda _cluster, _now: 1 / 0)
    assert server.call(lambda _cluster, _now: 6) == 6


def test_call_from_the_servers_thread_does_not_wait_for_itself(server):
    assert server.call(lambda _cluster, _now: server.call(lambda _cluster, _now: 7)) == 7


def test_after_close_calls_are_refused_and_say_so(server):
    server.close()
    with pytest.raises(RuntimeError, match="not open"):
        server.kill(1)


def test_an_exception_of_the_cluster_is_raised_by_close():
    class Broken(MockCluster):
        def received(self, *_):
            raise LookupError("a bug of the mock")

    server = ClusterServer(Broken(1, rng=random.Random(1))).open()
    client = Client(server, 1)
    client.send(api_versions())
    with pytest.raises(EOFError):
        client.receive()
    client.close()
    with pytest.raises(RuntimeError) as caught:
        server.close()
    assert isinstance(caught.value.__cause__, LookupError)


def test_close_leaves_no_thread_and_no_descriptor():
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with ClusterServer(MockCluster(3, rng=random.Random(7))) as server:
        clients = [Client(server, 1 + number % 3) for number in range(9)]
        for client in clients[:5]:
            client.send(api_versions())
            client.receive()
        server.kill(2)
        clients[0].close()
    for client in clients[1:]:
        client.close()
    gc.collect()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    server.close()  # twice is fine


def test_a_closed_server_can_be_opened_again(server):
    server.close()
    with server:
        client = Client(server, 1)
        client.send(api_versions(4))
        assert correlation_id(client.receive()) == 4
        client.close()


def test_from_the_command_line_it_serves_until_stdin_ends():
    # Not "error" alone: kafka-python itself warns while it is imported.
    command = [sys.executable, "-W", "error::RuntimeWarning", "-W", "error::ResourceWarning"]
    command += ["-m", "outlast.testing.server"]
    command += ["--nodes", "2", "--topic", "a:3", "--topic", "b:1", "--set", "detect_s=(1, 2)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        bootstrap = process.stdout.readline().decode().strip()
        assert len(bootstrap.split(",")) == 2
        host, port = bootstrap.split(",")[1].split(":")
        with socket.create_connection((host, int(port)), timeout=5) as sock:
            sock.sendall(struct.pack(">i", len(api_versions())) + api_versions())
            assert sock.recv(4)
        process.stdin.close()
        assert process.wait(timeout=10) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--set", "no_such=1"], "no_such"),
        (["--set", "detect_s=soon"], "detect_s=soon"),
        (["--set", "detect_s"], "detect_s"),
        (["--topic", "a b:3"], "a b"),
        (["--nodes", "0"], "nodes is 0"),
    ],
)
def test_the_command_line_says_what_it_does_not_understand(arguments, complaint, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert complaint in capsys.readouterr().err
