"""From a host name to a connected socket, through a proxy if there is one (`proxies.py`).

Rules:
* Nothing blocks the loop: what may take long is done by `beside`, in a thread of its own.
* A dial tries one address; only one that is refused at once leads to the next, for that costs no
  more than a round trip. Who dials sets the deadline, and closes `sock` when it is over.
* A name is looked up anew for each dial; behind a proxy by the proxy, or as its scheme says.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.future import Future

from outlast.engine.messages import Loss
from outlast.io.addresses import (
    AddressBook,
    AddressInfo,
    Resolver,
    canonical_name,
    in_thread,
    known,
)
from outlast.io.events import Ended
from outlast.io.proxies import Proxy, proxy_of
from outlast.io.sockets import socket_options

CANONICAL = "resolve_canonical_bootstrap_servers_only"  # of client_dns_lookup
_UNDER_WAY = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK, 10022)  # the last: Windows


async def beside(loop: Any, work: Callable[[], Any], name: str) -> Any:
    """The result of blocking work, which is done in a short-lived thread."""
    future = Future()
    awaited = True

    def settle(value: Any, error: BaseException | None) -> None:
        if awaited:
            future.success((value, error))

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(lambda: settle(value, error))

    in_thread(run, name)
    try:
        value, error = await future
    finally:
        awaited = False
    if error is not None:
        raise error
    return value


class Dialer:
    """What all dials of one producer share."""

    def __init__(self, config: Mapping[str, Any], resolver: Resolver) -> None:
        self.resolver = resolver
        self.proxy = proxy_of(config)
        self.canonical = config.get("client_dns_lookup") == CANONICAL
        self.options = socket_options(config)
        self.book = AddressBook()

    def __repr__(self) -> str:
        return f"<Dialer proxy={self.proxy} {self.book}>"


class Dial:
    """One try to reach a host and port.

    `name` is the host as TLS and SASL are to know it: the one asked for, or, of a `bootstrap`
    address and if the user wants that, the canonical name of the address that is tried.
    """

    __slots__ = ("_canonical", "_dialer", "_names", "name", "place", "sock", "sockaddr")

    def __init__(self, dialer: Dialer, host: str, port: int, *, bootstrap: bool = False) -> None:
        self._dialer = dialer
        self._canonical = bootstrap and dialer.canonical and dialer.proxy is None
        self._names: dict[tuple[Any, ...], str] = {}
        self.place = (host, port)
        self.name = host
        self.sockaddr: tuple[Any, ...] | None = None  # the address being tried
        self.sock: socket.socket | None = None

    def __repr__(self) -> str:
        host, port = self.place
        found = self.sockaddr[0] if self.sockaddr else host
        return f"{host}:{port}" if found == host else f"{host}:{port} ({found})"

    def failed(self) -> None:
        """No Kafka connection came of the address, or it was lost."""
        if self.sockaddr is not None:
            self._dialer.book.failed(self.place, self.sockaddr)

    def worked(self) -> None:
        """A broker answered there."""
        if self.sockaddr is not None:
            self._dialer.book.worked(self.place, self.sockaddr)

    async def connect(self, loop: Any) -> socket.socket:
        """A connected socket. Raises Ended: the name has no address, or none accepted."""
        proxy = self._dialer.proxy
        if proxy is not None:
            return await self._through(proxy, loop)
        addresses = await self._look_up(loop, *self.place)
        refused = OSError("no address")
        for info in self._dialer.book.candidates(self.place, addresses):
            self.sockaddr = info[4]
            self.name = self._names.get(info[4], self.place[0])
            try:
                return await self._connect(loop, info)
            except OSError as error:
                refused = error
                self.failed()
        raise Ended(Loss.REFUSED, str(refused))

    async def _through(self, proxy: Proxy, loop: Any) -> socket.socket:
        """As `connect`; whether the broker's name is looked up here is the proxy's matter."""
        target, port = self.place
        if not proxy.looks_names_up:
            addresses = await self._look_up(loop, target, port)
            self.sockaddr = self._dialer.book.candidates(self.place, addresses)[0][4]
            target = self.sockaddr[0]
        book, place = self._dialer.book, (proxy.host, proxy.port)
        info = book.candidates(place, await self._look_up(loop, *place))[0]
        try:
            sock = await self._connect(loop, info)
            await proxy.tunnel(loop, sock, target, port)
        except OSError as error:
            book.failed(place, info[4])
            raise proxy.refused(str(error)) from error
        return sock

    async def _look_up(self, loop: Any, host: str, port: int) -> Sequence[AddressInfo]:
        def look_up() -> Sequence[AddressInfo]:
            addresses = self._dialer.resolver(host, port)
            if self._canonical:
                self._names = {info[4]: canonical_name(info[4], host) for info in addresses}
            return addresses

        addresses: Sequence[AddressInfo]
        try:
            if not self._canonical and (addresses := known(host, port)):
                return addresses
            addresses = await beside(loop, look_up, f"look-up of {host}")
        except Exception as error:
            raise Ended(Loss.UNRESOLVED, f"{host}: {error}") from error
        if not addresses:
            raise Ended(Loss.UNRESOLVED, f"{host}: it has no address")
        return addresses

    async def _connect(self, loop: Any, info: AddressInfo) -> socket.socket:
        if self.sock is not None:
            self.sock.close()
        family, kind, protocol, _, sockaddr = info
        self.sock = sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        for option in self._dialer.options:
            sock.setsockopt(*option)
        while True:
            try:
                code = sock.connect_ex(sockaddr)
            except (BlockingIOError, InterruptedError):
                code = errno.EWOULDBLOCK
            if code in (0, errno.EISCONN):
                return sock
            if code not in _UNDER_WAY:
                raise OSError(code, errno.errorcode.get(code, "connect failed"))
            await loop.wait_write(sock)
