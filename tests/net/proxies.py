"""Small proxies on real sockets: SOCKS5 and HTTP CONNECT, and a relay that can be turned."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Mapping
from typing import TypeVar

Place = tuple[str, int]
AnyRelay = TypeVar("AnyRelay", bound="Relay")


class Relay:
    """Passes connections on to `target`, which may be changed for those that come later."""

    def __init__(self, target: Place | None = None) -> None:
        self.target = target
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self: AnyRelay) -> AnyRelay:
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._listener)
        self.cut()

    def cut(self) -> None:
        """End all connections; others may come."""
        while self._sockets:
            _close(self._sockets.pop())

    def open(self, _client: socket.socket) -> Place | None:
        """Where the client wants to go; None: it is sent away."""
        return self.target

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            place = self.open(client)
            if place is None:
                return
            with socket.create_connection(place, 10) as broker:
                broker.settimeout(None)
                self._sockets.append(broker)
                threading.Thread(target=_pump, args=(broker, client), daemon=True).start()
                _pump(client, broker)


def _close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


class Proxy(Relay):
    """What is common to both: who may come, which names it knows, and what it was asked for."""

    def __init__(
        self, names: Mapping[str, Place] | None = None, login: tuple[str, str] | None = None
    ) -> None:
        self.names = dict(names or {})  # a name → the place that is meant; others as they are
        self.login = login
        self.asked: list[Place] = []
        self.hanging = self.refusing = False
        super().__init__()

    def found(self, host: str, port: int) -> Place | None:
        self.asked.append((host, port))
        return None if self.refusing else self.names.get(host, (host, port))


class Socks5(Proxy):
    """RFC 1928 and 1929."""

    def open(self, client: socket.socket) -> Place | None:
        version, count = _exactly(client, 2)
        methods = _exactly(client, count)
        assert version == 5
        if self.hanging:
            client.recv(1)  # until the client goes
            return None
        method = 2 if self.login else 0
        if method not in methods:
            client.sendall(b"\x05\xff")
            return None
        client.sendall(bytes([5, method]))
        if self.login:
            _exactly(client, 1)
            given = tuple(_exactly(client, _exactly(client, 1)[0]).decode() for _ in range(2))
            client.sendall(bytes([1, given != self.login]))
            if given != self.login:
                return None
        _, command, _, kind = _exactly(client, 4)
        assert command == 1
        if kind == 3:
            host = _exactly(client, _exactly(client, 1)[0]).decode()
        else:
            host = str(ipaddress.ip_address(_exactly(client, {1: 4, 4: 16}[kind])))
        place = self.found(host, int.from_bytes(_exactly(client, 2), "big"))
        # It answers with a name, as some do.
        client.sendall(bytes([5, 0 if place else 2, 0, 3, 2]) + b"me" + b"\0\0")
        return place


class HttpConnect(Proxy):
    """RFC 9110, section 9.3.6."""

    def open(self, client: socket.socket) -> Place | None:
        header = b""
        while b"\r\n\r\n" not in header:
            header += _exactly(client, 1)
        if self.hanging:
            client.recv(1)
            return None
        lines = header.decode().split("\r\n")
        method, target, _ = lines[0].split(" ")
        assert method == "CONNECT"
        if self.login:
            word = base64.b64encode(":".join(self.login).encode()).decode()
            if f"Proxy-Authorization: Basic {word}" not in lines:
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return None
        host, _, port = target.rpartition(":")
        assert (":" in host) == host.startswith("[")
        place = self.found(host.strip("[]"), int(port))
        if place is None:
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nX: y\r\n\r\n")
        else:
            client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: me\r\n\r\n")
        return place


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise ConnectionResetError("the client left")
        data += chunk
    return data
