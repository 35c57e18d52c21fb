"""The sockets of `testing.server`: a node's port, an accepted connection, a link gone dead.

Rules of this file: mechanism only. Who may connect, what is answered and when a connection ends
is decided by the cluster.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Iterator

_FRAME_BYTES_MAX = 100 * 1024 * 1024  # a broker's socket.request.max.bytes
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # Linux
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: close() sends RST


class Peer:
    """One accepted connection: the name by which the cluster knows it."""

    __slots__ = (
        "address",
        "ended",
        "finishing",
        "inbox",
        "node_id",
        "outbox",
        "read_bytes_left",
        "socket",
        "watched",
    )

    def __init__(self, node_id: int, sock: socket.socket, address: tuple[str, int]) -> None:
        self.node_id = node_id
        self.socket = sock
        self.address = address  # the client's
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.ended = False  # nothing more will come from the client
        self.finishing = False  # to be closed as soon as the outbox is empty
        self.read_bytes_left: int | None = None  # None: no limit
        self.watched = 0  # the selector's events that are waited for

    def __repr__(self) -> str:
        return f"<Peer {self.address[0]}:{self.address[1]} of node {self.node_id}>"

    def receive(self, buffer: memoryview) -> Iterator[bytes]:
        """Read once, through `buffer`; give every frame that is whole now, without its length.

        Sets `ended` when nothing more will come: the client closed or reset the connection, or
        sent a length that no broker takes (C16), behind which nothing can be read.
        """
        limit = self.read_bytes_left
        try:
            size = self.socket.recv_into(buffer, 0 if limit is None else min(limit, len(buffer)))
        except BlockingIOError:
            return
        except OSError:
            size = 0
        self.ended = size == 0
        if limit is not None:
            self.read_bytes_left = limit - size
        self.inbox += buffer[:size]
        yield from self._whole_frames()

    def _whole_frames(self) -> Iterator[bytes]:
        start, end = 0, len(self.inbox)
        with memoryview(self.inbox) as view:
            while end - start >= 4:
                (length,) = struct.unpack_from(">i", view, start)
                if not 0 <= length <= _FRAME_BYTES_MAX:
                    self.ended = True
                    break
                if end - start - 4 < length:
                    break
                start += 4 + length
                yield bytes(view[start - length : start])
        del self.inbox[:start]

    def post(self, frame: bytes) -> None:
        """Put one whole frame into the outbox, behind its length."""
        self.outbox += struct.pack(">i", len(frame))
        self.outbox += frame

    def send(self) -> None:
        """Hand the kernel as much of the outbox as it takes.

        Raises:
            OSError: the client is gone.
        """
        with contextlib.suppress(BlockingIOError):
            del self.outbox[: self.socket.send(self.outbox)]

    def close(self, *, reset: bool = False) -> None:
        """Close the socket: with FIN, or, where bytes are unread or `reset` is set, with RST."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.socket.close()


class Port:
    """A node's port. It is ours until `close`, and refuses connects except between `listen` and
    `refuse`: a second socket, bound and never listening, holds it.
    """

    __slots__ = ("_holder", "address", "deaf", "listener", "node_id")

    def __init__(self, node_id: int, host: str, number: int = 0) -> None:
        self.node_id = node_id
        self.listener: socket.socket | None = None
        self.deaf = False  # connects hang
        if number:  # else a holder may share the port that another process listens on
            self._bound(host, number, shared=False).close()
        self._holder = self._bound(host, number)
        self.address: tuple[str, int] = self._holder.getsockname()

    def __repr__(self) -> str:
        state = "refuses" if self.listener is None else "is deaf" if self.deaf else "listens"
        return f"<Port {self.address[1]} of node {self.node_id} {state}>"

    @staticmethod
    def _bound(host: str, port: int, *, shared: bool = True) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
            sock.bind((host, port))
        except BaseException:
            sock.close()
            raise
        return sock

    def listen(self) -> socket.socket:
        """Take connections from now on. Returns the socket to accept from."""
        self.listener = self._bound(*self.address)
        self.listener.setblocking(False)
        self.listener.listen(1024)
        return self.listener

    def accept(self) -> Iterator[Peer]:
        """Take the connections that have come in since the last time."""
        while self.listener is not None:
            try:
                sock, address = self.listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield Peer(self.node_id, sock, address)

    def refuse(self) -> None:
        """Refuse connects from now on; those not accepted yet are reset."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        self.deaf = False

    def set_deaf(self, deaf: bool) -> None:
        """While deaf, connects get no answer at all: neither yes nor no."""
        if self.listener is not None and deaf != self.deaf:
            _drop_packets(self.listener, deaf)
            self.deaf = deaf

    def close(self) -> None:
        """Give the port back."""
        self.refuse()
        self._holder.close()


def deafen(peer: Peer) -> None:
    """Drop every packet that arrives for this connection, acknowledgements too: its link is dead
    while both ends believe it open. Linux only; lasts as long as the connection.

    Raises:
        OSError: the kernel has no socket filters.
    """
    _drop_packets(peer.socket, True)


def _drop_packets(sock: socket.socket, drop: bool) -> None:
    if not drop:
        sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    return_nothing = struct.pack("HBBI", 0x06, 0, 0, 0)  # one BPF instruction: ret 0
    program = ctypes.create_string_buffer(return_nothing, len(return_nothing))
    sock.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program))
    )
