"""Tunnels through a SOCKS5 proxy (RFC 1928, 1929) or an HTTP proxy (CONNECT, RFC 9110).

kafka-python's cannot say why a proxy refused, reads no percent-encoded password and wraps lengths
over 127. Rules: nothing blocks the loop; who opens a tunnel sets the deadline; the user's name and
password are in no text.

`socks5` has names looked up here and gives the proxy an address, `socks5h` and `http` leave names
to the proxy, as in kafka-python and curl.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
import struct
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from outlast.engine.messages import Loss
from outlast.errors import ConfigurationError
from outlast.io.events import Ended

_PORTS = {"socks5": 1080, "socks5h": 1080, "http": 80}
_HEADER_BYTES_MAX = 65_536
_REPLIES = {  # RFC 1928, section 6
    1: "general failure",
    2: "not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "the broker refused the connection",
    6: "time to live expired",
    7: "command not supported",
    8: "address type not supported",
}
_ADDRESS_BYTES = {1: 4, 4: 16}  # by type of address; 3 is a name, its length before it


def proxy_of(config: Mapping[str, Any]) -> Proxy | None:
    """The proxy of `proxy_url` or `socks5_proxy`. Raises ConfigurationError."""
    for name in ("proxy_url", "socks5_proxy"):
        if config.get(name):
            return Proxy(name, config[name])
    return None


class Proxy:
    """One proxy, from its URL."""

    __slots__ = ("_credentials", "_scheme", "host", "port")

    def __init__(self, setting: str, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme not in _PORTS:
            raise ConfigurationError(
                f"{setting}=… is not allowed: it must be a URL such as socks5://host:1080, "
                "socks5h://user:password@host:1080 or http://host:3128"
            )
        self._scheme = parts.scheme
        self.host = host
        self.port = port or _PORTS[parts.scheme]
        self._credentials: tuple[str, str] | None = None
        if parts.username:
            self._credentials = unquote(parts.username), unquote(parts.password or "")

    def __repr__(self) -> str:
        return f"{self._scheme}://{self.host}:{self.port}"

    @property
    def looks_names_up(self) -> bool:
        """Whether it is given names and not addresses."""
        return self._scheme != "socks5"

    async def tunnel(self, loop: Any, sock: socket.socket, host: str, port: int) -> None:
        """Have a connection to the proxy become one to this host. Raises Ended or OSError."""
        stream = _Stream(loop, sock, self)
        if self._scheme == "http":
            await self._http(stream, host, port)
        else:
            await self._socks5(stream, host, port)

    async def _http(self, stream: _Stream, host: str, port: int) -> None:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        if self._credentials is not None:
            secret = base64.b64encode(":".join(self._credentials).encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {secret}")
        await stream.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
        status = (await stream.read_header()).partition(b"\r\n")[0].decode("latin-1")
        words = status.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdecimal():
            raise self.refused("what it answers is no HTTP")
        if words[1] == "407":
            raise self.no_login(f"it answered {' '.join(words[1:])[:80]}")
        if not words[1].startswith("2"):
            raise self.refused(f"for {place} it answered {' '.join(words[1:])[:80]}")

    async def _socks5(self, stream: _Stream, host: str, port: int) -> None:
        method = 0 if self._credentials is None else 2
        await stream.write(bytes([5, 1, method]))
        version, chosen = await stream.read(2)
        if version != 5:
            raise self.refused("what it answers is no SOCKS5")
        if chosen != method:
            raise self.no_login("it wants another way to log in" if method else "it wants a login")
        if self._credentials is not None:
            await self._log_in(stream, *(word.encode() for word in self._credentials))
        await stream.write(b"\x05\x01\x00" + _socks_address(host) + struct.pack("!H", port))
        version, reply, _, kind = await stream.read(4)
        if version != 5 or reply != 0:
            why = _REPLIES.get(reply, f"reply {reply}")
            raise self.refused(f"for {host}:{port} it answered: {why}")
        size = (await stream.read(1))[0] if kind == 3 else _ADDRESS_BYTES.get(kind, 0)
        await stream.read(size + 2)  # where the proxy's own end is: of no interest

    async def _log_in(self, stream: _Stream, user: bytes, password: bytes) -> None:
        if max(len(user), len(password)) > 255:
            raise self.no_login("user name and password may have 255 bytes each")
        await stream.write(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        _, status = await stream.read(2)
        if status != 0:
            raise self.no_login("it does not take this user name and password")

    def refused(self, why: str) -> Ended:
        """It opens no tunnel."""
        return Ended(Loss.REFUSED, f"proxy {self!r}: {why}")

    def no_login(self, why: str) -> Ended:
        """It wants to know who we are."""
        return Ended(
            Loss.AUTHENTICATION, f"proxy {self!r}: {why}; check user and password in proxy_url"
        )


def _socks_address(host: str) -> bytes:
    try:
        packed = ipaddress.ip_address(host).packed
    except ValueError:
        name = host.encode("idna")
        return bytes([3, len(name)]) + name
    return bytes([1 if len(packed) == 4 else 4]) + packed


class _Stream:
    """Bytes from and to a proxy, as many as are wanted."""

    __slots__ = ("_loop", "_proxy", "_sock")

    def __init__(self, loop: Any, sock: socket.socket, proxy: Proxy) -> None:
        self._loop = loop
        self._sock = sock
        self._proxy = proxy

    async def write(self, data: bytes) -> None:
        while data:
            await self._loop.wait_write(self._sock)
            data = data[self._sock.send(data) :]

    async def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += await self._receive(count - len(data), 0)
        return data

    async def read_header(self) -> bytes:
        """Up to the empty line, and not a byte of what comes after it."""
        header = b""
        while b"\r\n\r\n" not in header:
            seen = await self._receive(4096, socket.MSG_PEEK)
            end = (header + seen).find(b"\r\n\r\n")
            wanted = len(seen) if end < 0 else end + 4 - len(header)
            header += await self.read(wanted)
            if len(header) > _HEADER_BYTES_MAX:
                raise self._proxy.refused("its answer has no end")
        return header

    async def _receive(self, count: int, flags: int) -> bytes:
        await self._loop.wait_read(self._sock)
        data = self._sock.recv(count, flags)
        if not data:
            raise self._proxy.refused("it closed the connection without an answer")
        return data
