"""Sockets: options (the user's, and ours where there is none of the kind), reading, ending."""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import sys
from collections.abc import Mapping
from typing import Any

from outlast.engine.messages import Loss
from outlast.io.events import Ended

# Python takes as much memory as is asked for before it knows how much came: most answers fit into
# the first, and what does not is read by the second.
_FIRST_BYTES = 1 << 12
_RECV_BYTES = 1 << 16
# A peer that vanished is noticed within 75 s on an idle connection. Not TCP_USER_TIMEOUT: it
# kills a live peer that is not reading.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_BUFFERS = {"receive_buffer_bytes": socket.SO_RCVBUF, "send_buffer_bytes": socket.SO_SNDBUF}


def socket_options(config: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Arguments of `setsockopt` for a new socket, to be set before it connects."""
    given = [tuple(option) for option in config.get("socket_options") or ()]
    kinds = {option[:2] for option in given}
    ours: list[tuple[Any, ...]] = [
        (socket.SOL_SOCKET, option, config[name])
        for name, option in _BUFFERS.items()
        if config.get(name)
    ]
    if (socket.IPPROTO_TCP, socket.TCP_NODELAY) not in kinds:
        ours.append((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
    if (socket.SOL_SOCKET, socket.SO_KEEPALIVE) not in kinds:
        ours.append((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))
        ours += [
            (socket.IPPROTO_TCP, getattr(socket, name), value)
            for name, value in _KEEPALIVE.items()
            if hasattr(socket, name)
        ]
    return ours + given


def received(
    sock: socket.socket, *, short_read_is_last: bool
) -> tuple[bytes, BaseException | None]:
    """All there is to read now; and what ended the connection, if that was read too.

    Under TLS a short read says nothing: it cuts its own records, and keeps what it has decrypted.
    """
    chunks: list[bytes] = []
    error: BaseException | None = None
    count = _FIRST_BYTES
    try:
        while chunk := sock.recv(count):
            chunks.append(chunk)
            if short_read_is_last and len(chunk) < count:
                break
            count = _RECV_BYTES
        else:
            error = Ended(Loss.CLOSED, "closed by the broker")
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass
    except OSError as caught:
        error = caught
    return b"".join(chunks), error


def reset_on_close(sock: socket.socket) -> None:
    """Closing will drop what has not left this host, and reset the connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def retransmits(sock: socket.socket | None) -> int | None:
    """How often in a row the kernel has sent the oldest unacknowledged segment again.

    None where it does not tell (`tcpi_retransmits` of Linux's TCP_INFO).
    """
    if sock is None or not sys.platform.startswith("linux"):
        return None
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 3)[2]
    except OSError:
        return None


def close_descriptor(sock: socket.socket) -> None:
    """Close our copy of a descriptor without a word to the peer, as a forked child must."""
    descriptor = sock.detach()
    if descriptor >= 0:
        socket.close(descriptor)


def abandon_loop(loop: Any) -> None:
    """In a forked child: leave kafka.net's event loop to the parent, its epoll set untouched."""
    close_descriptor(loop._wakeup_r)
    close_descriptor(loop._wakeup_w)
    loop._selector.close()
    loop._selector = selectors.SelectSelector()  # where tasks that end unregister themselves
