"""Field cases B23 and B24: what names lead to, over sockets and a resolver that lies as asked.

(B22, all brokers at new addresses: test_new_addresses.py in tests/sim and tests/tcp.)
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from outlast import KafkaProducer
from outlast.io import thread
from outlast.io.addresses import AddressInfo
from outlast.testing.faults import Blackhole
from outlast.testing.server import ClusterServer
from tests.field.oracles import Account, D, logs_of, o1
from tests.field.test_b01_b37_tcp import fault, served
from tests.real.kafka_cluster import until
from tests.tcp.stories import connections_made

Address = tuple[str, int]
NAME = "kafka.test"


class Listener:
    """A port that takes connections and says nothing, and counts them."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._socket.getsockname()
        self.taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                self.taken.append(self._socket.accept()[0])

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for taken in self.taken:
            taken.close()


@pytest.fixture
def silent() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def refusing() -> Iterator[Address]:
    """A port that nobody listens on, and nobody else can take."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()


@contextmanager
def resolving(
    monkeypatch: pytest.MonkeyPatch, resolve: Callable[[str], Sequence[Address]]
) -> Iterator[Account]:
    """A producer that is told one name. `resolve` says where names lead."""

    def look_up(host: str, _port: int) -> list[AddressInfo]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", a) for a in resolve(host)]

    class NamedDriver(thread.Driver):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, resolver=look_up, **keywords)

    monkeypatch.setattr("outlast.assembly.Driver", NamedDriver)
    begin_s = time.monotonic()
    with KafkaProducer(
        bootstrap_servers=f"{NAME}:9092", metrics_registry=None, max_block_ms=2500, **D
    ) as producer:
        assert time.monotonic() - begin_s < 1.0
        yield Account(producer)


def address(server: ClusterServer) -> Address:
    """Where the only node is."""
    [found] = server.call(lambda cluster, _: list(cluster.addresses.values()))
    return found


@pytest.mark.parametrize("order", list(itertools.permutations(("refused", "swallowed", "good"))))
def test_b24_one_good_address_of_three_is_enough(
    order: tuple[str, ...], refusing: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served() as server, served() as hole:
        fault(hole, Blackhole(node=1))  # connects get no answer at all
        where = {"refused": refusing, "swallowed": address(hole), "good": address(server)}
        begin_s = time.monotonic()
        with resolving(monkeypatch, lambda _: [where[kind] for kind in order]) as sent:
            sent.send().get(timeout=2.5)
            assert time.monotonic() - begin_s < 2.5
            o1(sent.entries, logs_of(server))


def test_b24_after_a_loss_the_next_try_goes_to_another_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metadata names the broker by the name too, and both addresses lead to it."""
    with served() as server:
        one = address(server)
        relay = Relay(one)
        server.call(lambda cluster, _: cluster.addresses.update({1: (NAME, 9092)}))
        try:
            with resolving(monkeypatch, lambda _: [relay.address, one]) as sent:
                sent.send().get(timeout=2.5)
                assert relay.taken >= 1
                relay.cut()  # all that stands; it listens on
                before = relay.taken
                direct = connections_made(server)
                sent.send().get(timeout=2.5)
                until(lambda: connections_made(server) > direct or relay.taken > before, "again")
                assert relay.taken == before, "the address that had just failed was tried first"
                o1(sent.entries, logs_of(server))
        finally:
            relay.close()


class Relay:
    """A second address for a port: bytes go through it both ways until it is cut."""

    def __init__(self, to: Address) -> None:
        self._to = to
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._server.getsockname()
        self.taken = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                near = self._server.accept()[0]
                far = socket.create_connection(self._to)
                self.taken += 1
                self._sockets += [near, far]
                for ends in ((near, far), (far, near)):
                    pump = threading.Thread(target=self._pump, args=ends, daemon=True)
                    self._threads.append(pump)
                    pump.start()

    @staticmethod
    def _pump(a: socket.socket, b: socket.socket) -> None:
        with suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)

    def cut(self) -> None:
        for end in self._sockets:
            with suppress(OSError):  # its other end was first
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread_ in self._threads:
            thread_.join()
        for end in self._sockets:
            end.close()


def test_b23_every_connect_looks_the_name_up_again(
    silent: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker dies and its name leads elsewhere; the old address would swallow whatever comes."""
    ports: dict[str, Address] = {}
    looked_up: Counter[str] = Counter()

    def resolve(host: str) -> list[Address]:
        looked_up[host] += 1
        return [ports[host]]

    with served(3, {"t": 3}) as server:

        def name_all(cluster, _now) -> None:
            for node, address in list(cluster.addresses.items()):
                if address[0] == "127.0.0.1":  # else it has its name already
                    ports[f"broker-{node}.test"] = address
                cluster.addresses[node] = (f"broker-{node}.test", 9092)
            ports[NAME] = ports["broker-2.test"]

        server.call(name_all)
        with resolving(monkeypatch, resolve) as sent:
            for p in range(3):
                sent.send(partition=p).get(timeout=5)
            before = looked_up["broker-1.test"]
            assert before >= 1
            ports["broker-1.test"] = silent.address  # for a moment the name still leads there
            server.kill(1)
            sent.send(partition=0)
            until(lambda: silent.taken, "the old address is tried", 5.0)
            server.readdress(1)
            server.call(name_all)
            taken = len(silent.taken)
            server.start(1)
            for _ in range(20):
                sent.send(partition=0)
            sent.producer.flush(timeout=9)
            until(lambda: server.leader("t", 0)[0] > 0, "there is a leader")
            server.call(lambda cluster, now: cluster.move_leader("t", 0, 2, now))
            sent.send(partition=0).get(timeout=5)
            until(lambda: can_lead(server, 1), "broker 1 is in sync again", 10.0)

            def led_by_1() -> bool:
                sent.send(partition=0).get(timeout=5)  # the old leader takes it until it knows
                return any(peer.node_id == 1 for peer in server.connections())

            until(led_by_1, "records go to broker 1 again", 5.0)
            assert looked_up["broker-1.test"] > before
            assert len(silent.taken) - taken <= 1
            o1(sent.entries, logs_of(server, {"t": 3}))


def can_lead(server, node: int) -> bool:
    try:
        server.call(lambda cluster, now: cluster.move_leader("t", 0, node, now))
    except ValueError:
        return False
    return True
