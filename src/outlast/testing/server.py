"""A mock cluster on TCP ports of this host, in this process, for any Kafka client.

`ClusterServer` gives `MockCluster`, which is pure, its sockets and its clock:

    with ClusterServer(MockCluster(3, rng=random.Random(1))) as server:
        server.create_topic("orders", 6)
        producer = KafkaProducer(bootstrap_servers=server.bootstrap)
        server.kill(server.leader("orders", 0)[0])

Rules of this file:

* The cluster is touched by one thread only, the server's. Other threads go through `call`.
* One port per node for as long as the server is open, unless `readdress` gives it another. While
  a node is down the kernel refuses connects to it, as it does for a dead process (A24).
* A paused node accepts connections and takes bytes: the kernel does that without it (A25).
  Behind a `Blackhole` connects hang (Linux).
* Bytes are judged by the cluster, except for a length that no broker takes (C16).
* An exception of the cluster is a bug of the mock: it ends the server and is raised by `close`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import selectors
import socket
import sys
import threading
import time
from ast import literal_eval
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

# They register their handlers.
from outlast.testing import apis_admin, apis_configs, apis_consume, apis_reassign  # noqa: F401
from outlast.testing.cluster import FAST, KRAFT, Answer, Close, MockCluster
from outlast.testing.request_log import LogRecord
from outlast.testing.sockets import Peer, Port, deafen

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ClusterServer", "Peer", "deafen"]

T = TypeVar("T")

_READ_BYTES = 1 << 20
_DEAF_LOOK_S = 0.05


class ClusterServer:
    """Serves a `MockCluster` on one TCP port per node. Use it as a context manager.

    Args:
        cluster: the cluster; while the server is open only its thread may touch it (see `call`).
        host: the address to listen on.
        first_port: node n gets this port + n − 1; None: any free one.
        clock: monotonic seconds, given to the cluster as `now`.
    """

    def __init__(
        self,
        cluster: MockCluster,
        *,
        host: str = "127.0.0.1",
        first_port: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._host = host
        self._first_port = first_port
        self._clock = clock
        self._gate = threading.Lock()  # `_open` and `_calls` change together
        self._open = False
        self._calls: deque[tuple[Callable[[MockCluster, float], Any], Future[Any]]] = deque()
        self._failure: BaseException | None = None
        self._ports: list[Port] = []
        self._peers: set[Peer] = set()
        self._unsent: set[Peer] = set()  # have bytes to send, and need not wait for room
        self._read_buffer = memoryview(bytearray(_READ_BYTES))
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<ClusterServer {self.bootstrap if self._open else 'closed'} of {self._cluster!r}>"

    @property
    def bootstrap(self) -> str:
        """`host:port,host:port,…` of all nodes: what clients call `bootstrap_servers`."""
        return ",".join(f"{host}:{number}" for host, number in (p.address for p in self._ports))

    def open(self) -> ClusterServer:
        """Bind one port per node and serve, in a daemon thread.

        Raises:
            OSError: a port could not be bound; the text says which.
            RuntimeError: it is open already.
        """
        if self._thread is not None:
            raise RuntimeError(f"{self!r} is open already")
        with contextlib.ExitStack() as undo:
            self._ports = []
            for node_id in self._cluster.addresses:
                self._ports.append(self._port(node_id))
                undo.callback(self._ports[-1].close)
            self._wake_out, self._wake_in = socket.socketpair()
            undo.callback(self._wake_in.close)
            undo.callback(self._wake_out.close)
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake_in.setblocking(False)
            self._selector.register(self._wake_out, selectors.EVENT_READ)
            self._cluster.addresses.update({port.node_id: port.address for port in self._ports})
            self._tell_the_time()
            self._open_and_close_ports()
            self._resources = undo.pop_all()
        self._failure = None
        self._open = True
        self._thread = threading.Thread(target=self._run, name="mock-cluster", daemon=True)
        self._thread.start()
        return self

    def _port(self, node_id: int) -> Port:
        number = 0 if self._first_port is None else self._first_port + node_id - 1
        try:
            return Port(node_id, self._host, number)
        except OSError as error:
            reason = f"cannot listen on {self._host}:{number} for node {node_id}"
            raise OSError(error.errno, f"{reason}: {error.strerror}") from error

    def close(self) -> None:
        """Close every socket and end the thread. A closed server may be opened again.

        Raises:
            RuntimeError: the cluster raised while it was served; the cause tells what.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._gate:
            self._open = False
            self._wake()
        thread.join()
        self._resources.close()
        if self._failure is not None:
            raise RuntimeError("the mock cluster failed") from self._failure

    def __enter__(self) -> ClusterServer:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- control, from any thread ---------------------------------------------------------------

    def call(self, action: Callable[[MockCluster, float], T]) -> T:
        """Run `action(cluster, now)` on the server's thread; return, or raise, what it does.

        Raises:
            RuntimeError: the server is not open, or its cluster has failed.
        """
        if threading.current_thread() is self._thread:
            return action(self._cluster, self._clock())
        result: Future[T] = Future()
        with self._gate:
            if not self._open:
                raise RuntimeError(f"{self!r} is not open") from self._failure
            self._calls.append((action, result))
            self._wake()
        return result.result()

    def create_topic(self, name: str, partitions: int, **options: Any) -> None:
        """`MockCluster.create_topic`; those that follow are the cluster's, too."""
        self.call(lambda cluster, now: cluster.create_topic(name, partitions, now=now, **options))

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.call(lambda cluster, now: cluster.delete_topic(name, now))

    def move_leader(self, topic: str, partition: int, to: int, *, deny_s: float = 0.0) -> None:
        """Make node `to` the leader; it denies that for the first `deny_s`."""
        self.call(
            lambda cluster, now: cluster.move_leader(topic, partition, to, now, deny_s=deny_s)
        )

    def stop(self, node_id: int) -> None:
        """Shut a node down in order."""
        self.call(lambda cluster, now: cluster.stop(node_id, now))

    def kill(self, node_id: int) -> None:
        """Crash a node: its connections end and its port refuses."""
        self.call(lambda cluster, now: cluster.kill(node_id, now))

    def start(self, node_id: int) -> None:
        """Start a node that was stopped or killed, on the same port."""
        self.call(lambda cluster, now: cluster.start(node_id, now))

    def readdress(self, node_id: int) -> None:
        """Give a node that is down another port, as a machine that replaces it has another address.
        The old one refuses from now on.
        """
        self.call(lambda _cluster, _now: self._readdress(node_id))

    def pause(self, node_id: int) -> None:
        """Make a node silent: its port accepts, nothing comes back."""
        self.call(lambda cluster, now: cluster.pause(node_id, now))

    def resume(self, node_id: int) -> None:
        """Let a paused node go on."""
        self.call(lambda cluster, now: cluster.resume(node_id, now))

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        """Node id (-1: none) and leader epoch: the controller's truth."""
        return self.call(lambda cluster, _now: cluster.leader(topic, partition))

    def records(self, topic: str, partition: int) -> list[LogRecord]:
        """The leader's log up to the high watermark."""
        return self.call(lambda cluster, _now: cluster.records(topic, partition))

    def connections(self, node_id: int | None = None) -> list[Peer]:
        """The connections that are open now, of one node or of all."""
        return self.call(
            lambda _cluster, _now: [p for p in self._peers if node_id in (None, p.node_id)]
        )

    def stop_reading(self, peer: Peer, after_bytes: int = 0) -> None:
        """Read `after_bytes` more from a connection, then nothing: the client's sends fill up."""
        self.call(lambda _cluster, _now: self._limit_reading(peer, after_bytes))

    # --- the server's thread --------------------------------------------------------------------

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full of wake-ups: it will wake
            self._wake_in.send(b"\0")

    def _run(self) -> None:
        try:
            while self._open:
                self._step()
        except BaseException as error:
            self._failure = error
        with self._gate:
            self._open = False
        while self._calls:
            self._calls.popleft()[1].set_exception(RuntimeError(f"{self!r} was closed meanwhile"))
        for peer in list(self._peers):
            self._drop(peer)
        for port in self._ports:
            port.refuse()

    def _step(self) -> None:
        """Wait; read what is there; let the cluster do what was asked and what is due; send."""
        events = self._selector.select(self._timeout_s())
        now = self._clock()
        for key, mask in events:
            match key.data:
                case Peer() as peer:
                    if mask & selectors.EVENT_WRITE:
                        self._unsent.add(peer)
                    if mask & selectors.EVENT_READ:
                        self._read(peer, now)
                case Port() as port:
                    self._accept(port, now)
                case _:
                    self._wake_out.recv(4096)
        replies = self._run_calls()
        self._cluster.tick(self._clock())
        self._obey()
        for reply in replies:  # last, so that the caller finds the world as it asked for
            reply()

    def _timeout_s(self) -> float | None:
        now = self._clock()
        deadline = self._cluster.next_deadline(now)
        if any(port.deaf for port in self._ports):  # no deadline tells when that ends
            deadline = min(inf if deadline is None else deadline, now + _DEAF_LOOK_S)
        return None if deadline is None else max(0.0, deadline - now)

    def _run_calls(self) -> list[Callable[[], None]]:
        replies: list[Callable[[], None]] = []
        while self._calls:
            action, result = self._calls.popleft()
            try:
                value = action(self._cluster, self._clock())
            except Exception as error:
                replies.append(partial(result.set_exception, error))
            else:
                replies.append(partial(result.set_result, value))
        return replies

    def _obey(self) -> None:
        """Do what the cluster wants done; the answers on one connection leave in one send."""
        for output in self._cluster.take():
            peer = output.connection
            if peer not in self._peers or peer.finishing:
                continue
            match output:
                case Answer(frame=frame):
                    peer.post(frame)
                    self._unsent.add(peer)
                case Close(reset=True):
                    self._drop(peer, reset=True)
                case Close():
                    peer.finishing = True
                    self._unsent.add(peer)
        self._open_and_close_ports()
        while self._unsent:
            self._send(self._unsent.pop())

    def _open_and_close_ports(self) -> None:
        now = self._clock()
        for port in self._ports:
            listens = self._cluster.listens(port.node_id)
            if listens and port.listener is None:
                self._selector.register(port.listen(), selectors.EVENT_READ, port)
            elif port.listener is not None and not listens:
                self._selector.unregister(port.listener)
                port.refuse()
            port.set_deaf(listens and self._cluster.hangs(port.node_id, now))

    def _accept(self, port: Port, now: float) -> None:
        for peer in port.accept():
            self._peers.add(peer)
            if self._cluster.opened(port.node_id, peer, now):
                self._watch(peer)
            else:
                self._drop(peer, reset=True)

    def _read(self, peer: Peer, now: float) -> None:
        for frame in peer.receive(self._read_buffer):
            self._cluster.received(peer, frame, now)
        if peer.ended:
            self._drop(peer)
            self._cluster.closed(peer, now)
        else:
            self._watch(peer)

    def _send(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        try:
            peer.send()
        except OSError:  # the client is gone; reading tells, after what it has sent before
            peer.outbox.clear()
        if peer.finishing and not peer.outbox:
            self._drop(peer)
        else:
            self._watch(peer)

    def _tell_the_time(self) -> None:
        """A cluster that has no wall clock of its own is given this host's."""
        settings = self._cluster.settings
        if settings.unix_offset_s is None:
            offset_s = time.time() - self._clock()
            self._cluster.settings = replace(settings, unix_offset_s=offset_s)

    def _readdress(self, node_id: int) -> None:
        if self._cluster.nodes[node_id].running:
            raise ValueError(f"node {node_id} runs; kill or stop it first")
        (place,) = (i for i, port in enumerate(self._ports) if port.node_id == node_id)
        port = Port(node_id, self._host)
        self._resources.callback(port.close)
        self._ports[place].close()
        self._ports[place] = port
        self._cluster.addresses[node_id] = port.address

    def _limit_reading(self, peer: Peer, bytes_left: int) -> None:
        peer.read_bytes_left = bytes_left
        if peer in self._peers:
            self._watch(peer)

    def _watch(self, peer: Peer) -> None:
        """Wait for what can happen next on this connection: room to send, bytes to read."""
        mask = selectors.EVENT_WRITE if peer.outbox else 0
        if peer.read_bytes_left != 0 and not peer.finishing:
            mask |= selectors.EVENT_READ
        if mask == peer.watched:
            return
        if not mask:
            self._selector.unregister(peer.socket)
        elif peer.watched:
            self._selector.modify(peer.socket, mask, peer)
        else:
            self._selector.register(peer.socket, mask, peer)
        peer.watched = mask

    def _drop(self, peer: Peer, *, reset: bool = False) -> None:
        self._peers.discard(peer)
        self._unsent.discard(peer)
        if peer.watched:
            self._selector.unregister(peer.socket)
            peer.watched = 0
        peer.close(reset=reset)


def main(arguments: list[str] | None = None) -> None:
    """Serve a cluster until stdin ends; the first line of stdout is its bootstrap string."""
    parser = argparse.ArgumentParser(
        prog="python -m outlast.testing.server", description=main.__doc__
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME:PARTITIONS", help="may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the cluster's random choices")
    parser.add_argument("--kraft", action="store_true", help="the slow clocks of a real cluster")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="a field of ClusterSettings, such as replication_s=0.0005; may be repeated",
    )
    options = parser.parse_args(arguments)
    try:
        settings = replace(KRAFT if options.kraft else FAST, **dict(options.set))
        cluster = MockCluster(options.nodes, settings=settings, rng=random.Random(options.seed))
        for topic in options.topic:
            name, _, partitions = topic.partition(":")
            cluster.create_topic(name, int(partitions or 1))
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    with ClusterServer(cluster) as server:
        print(server.bootstrap, flush=True)
        sys.stdin.buffer.read()


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, literal_eval(value)
    except SyntaxError as error:
        raise ValueError(text) from error


if __name__ == "__main__":
    main()
