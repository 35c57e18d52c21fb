"""From host names to addresses, without holding up anybody.

Rules:
* A look-up may take seconds, so it runs in a short-lived daemon thread of its own: a pool's exit
  hook would join a hung one. Numeric addresses and `localhost` need no thread.
* An address that failed, or whose connection was lost, is passed over until all addresses of its
  name have failed (KAFKA-15817): one dead address costs one attempt and not every second one.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]  # as `socket.getaddrinfo` gives them
Resolver = Callable[[str, int], Sequence[AddressInfo]]


def resolve(host: str, port: int) -> Sequence[AddressInfo]:
    """All addresses of a host name, best first. Blocks; raises OSError or UnicodeError."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def known(host: str, port: int) -> Sequence[AddressInfo]:
    """The addresses of a numeric host or of `localhost`, at once; nothing for all others."""
    if host == "localhost":
        return resolve(host, port)
    with contextlib.suppress(OSError, UnicodeError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return ()


def canonical_name(sockaddr: tuple[Any, ...], host: str) -> str:
    """The name that the address has by itself, as Kerberos wants it; `host` if it has none."""
    try:
        return socket.getnameinfo(sockaddr, socket.NI_NAMEREQD | socket.NI_NUMERICSERV)[0]
    except OSError:
        return host


def in_thread(work: Callable[[], None], name: str) -> None:
    """Run blocking work beside the caller; in place where no thread can start (at exit)."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:
        work()


class AddressBook:
    """Remembers which addresses of a name failed lately."""

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: dict[tuple[str, int], set[tuple[Any, ...]]] = {}

    def __repr__(self) -> str:
        return f"<AddressBook failed={self._failed}>"

    def candidates(
        self, name: tuple[str, int], addresses: Sequence[AddressInfo]
    ) -> Sequence[AddressInfo]:
        """The addresses to try now, best first."""
        failed = self._failed.get(name, ())
        untried = [address for address in addresses if address[4] not in failed]
        if untried:
            return untried
        self._failed.pop(name, None)
        return addresses

    def failed(self, name: tuple[str, int], sockaddr: tuple[Any, ...]) -> None:
        """No connection came of this address, or the one that came was lost."""
        self._failed.setdefault(name, set()).add(sockaddr)

    def worked(self, name: tuple[str, int], sockaddr: tuple[Any, ...]) -> None:
        """A broker answered at this address."""
        self._failed.get(name, set()).discard(sockaddr)
