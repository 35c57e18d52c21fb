"""From a host name to a connected socket, through a proxy if there is one.

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
    """What all dials of one producer share. `maker` is kafka.net's class of sockets."""

    def __init__(
        self, config: Mapping[str, Any], resolver: Resolver, maker: Callable[[str | None], Any]
    ) -> None:
        self.resolver = resolver
        self.maker = maker
        self.proxy_url: str | None = config.get("proxy_url") or config.get("socks5_proxy")
        self.canonical = config.get("client_dns_lookup") == CANONICAL
        self.options = socket_options(config)
        self.book = AddressBook()

    def __repr__(self) -> str:
        return f"<Dialer proxy={self.proxy_url} {self.book}>"


class Dial:
    """One try to reach a host and port.

    `name` is the host as TLS and SASL are to know it: the one asked for, or, of a `bootstrap`
    address and if the user wants that, the canonical name of the address that is tried.
    """

    __slots__ = ("_canonical", "_dialer", "_names", "name", "place", "sock", "sockaddr")

    def __init__(self, dialer: Dialer, host: str, port: int, *, bootstrap: bool = False) -> None:
        self._dialer = dialer
        self._canonical = bootstrap and dialer.canonical and dialer.proxy_url is None
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
        maker, addresses = await self._look_up(loop)
        refused = OSError("no address")
        for info in self._dialer.book.candidates(self.place, addresses):
            family, kind, protocol, _, self.sockaddr = info
            self.name = self._names.get(info[4], self.place[0])
            try:
                sock: socket.socket = maker.socket(family, kind, protocol)
                self.sock = sock
                sock.setblocking(False)
                for option in self._dialer.options:
                    sock.setsockopt(*option)
                await self._connect(loop, maker, sock)
            except OSError as error:
                refused = error
                self.failed()
                if self.sock is not None:
                    self.sock.close()
            else:
                return sock
        raise Ended(Loss.REFUSED, str(refused))

    async def _look_up(self, loop: Any) -> tuple[Any, Sequence[AddressInfo]]:
        dialer, (host, port) = self._dialer, self.place

        def look_up() -> tuple[Any, Sequence[AddressInfo]]:
            maker = dialer.maker(dialer.proxy_url)  # looks the proxy itself up
            if dialer.proxy_url is not None:
                return maker, maker.dns_lookup(host, port)
            addresses = dialer.resolver(host, port)
            if self._canonical:
                self._names = {info[4]: canonical_name(info[4], host) for info in addresses}
            return maker, addresses

        at_once = dialer.proxy_url is None and not self._canonical
        try:
            if at_once and (addresses := known(host, port)):
                return dialer.maker(None), addresses
            maker, addresses = await beside(loop, look_up, f"look-up of {host}")
        except Exception as error:
            raise Ended(Loss.UNRESOLVED, f"{host}: {error}") from error
        if not addresses:
            raise Ended(Loss.UNRESOLVED, f"{host}: it has no address")
        return maker, addresses

    async def _connect(self, loop: Any, maker: Any, sock: socket.socket) -> None:
        while True:
            try:
                code = maker.connect_ex(sock, self.sockaddr)
            except (BlockingIOError, InterruptedError):
                code = errno.EWOULDBLOCK
            if code in (0, errno.EISCONN):
                return
            if code not in _UNDER_WAY:
                raise OSError(code, errno.errorcode.get(code, "connect failed"))
            if code == errno.EWOULDBLOCK and self._dialer.proxy_url is not None:
                await loop.wait_read(sock)  # the proxy was asked; kafka.net would spin here
            else:
                await loop.wait_write(sock)
