"""A TCP relay between clients and a broker: makes the way long, or cuts it off.

It runs in a process of its own and is told what to do over a pipe. Bytes are passed on in order,
each chunk so many seconds after it came. `down` closes all connections and refuses new ones, as a
host does whose broker is gone; `up` listens again and tells when that was, on the host's monotonic
clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import selectors
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import cast

HOST = "127.0.0.1"


class Relay:
    """The measuring process's view of the relay."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def down(self) -> float:
        """Close every connection and refuse new ones; when that was done."""
        return self._ask("down")

    def up(self) -> float:
        """Listen again; since when."""
        return self._ask("up")

    def delay(self, one_way_s: float) -> None:
        """Pass bytes on that much later from now on, either way."""
        self._ask(one_way_s)

    def _ask(self, command: str | float) -> float:
        self._pipe.send(command)
        answer: float = self._pipe.recv()
        return answer


@contextlib.contextmanager
def relay(port: int, to_port: int) -> Iterator[Relay]:
    """A relay from one port of this host to another."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, port, to_port), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()  # it listens
        yield Relay(ours)
    finally:
        ours.close()  # it ends when its pipe does
        process.join(10)


def _serve(pipe: Connection, port: int, to_port: int) -> None:
    # Not epoll, whose time-outs are whole milliseconds.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(_Relaying(port, to_port).serve(pipe))


class _Relaying:
    """The relay in its own process."""

    def __init__(self, port: int, to_port: int) -> None:
        self._port = port
        self._to_port = to_port
        self.one_way_s = 0.0
        self.ends: set[_End] = set()
        self._server: asyncio.Server | None = None

    async def serve(self, pipe: Connection) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(pipe.fileno(), readable.set)
        pipe.send(await self._up())
        while True:
            await readable.wait()
            readable.clear()
            try:
                while pipe.poll():
                    pipe.send(await self._obey(pipe.recv()))
            except (EOFError, BrokenPipeError):
                await self._down()
                return

    async def _obey(self, command: str | float) -> float:
        if command == "down":
            return await self._down()
        if command == "up":
            return await self._up()
        assert not isinstance(command, str)
        self.one_way_s = command
        return time.monotonic()

    async def _up(self) -> float:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _End(self), HOST, self._port)
        return time.monotonic()

    async def _down(self) -> float:
        if self._server is not None:
            self._server.close()
            self._server = None
        for end in list(self.ends):
            end.transport.abort()
        while self.ends:  # noqa: ASYNC110 - the ports are free when all have heard of it
            await asyncio.sleep(0)
        return time.monotonic()

    async def dial(self, end: _End) -> None:
        """The other half of a connection."""
        loop = asyncio.get_running_loop()
        try:
            _, other = await loop.create_connection(lambda: _End(self, end), HOST, self._to_port)
        except OSError:
            end.transport.abort()
        else:
            end.join(other)


class _End(asyncio.Protocol):
    """One end of a relayed connection: what it reads its other end writes, later."""

    transport: asyncio.Transport

    def __init__(self, relaying: _Relaying, other: _End | None = None) -> None:
        self._relaying = relaying
        self._other = other
        self._waiting: deque[bytes] = deque()  # in order, whatever order timers go off in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._relaying.ends.add(self)
        if self._other is None:
            self._dialling = asyncio.ensure_future(self._relaying.dial(self))

    def join(self, other: _End) -> None:
        """This is where it goes; what was read before goes first."""
        self._other = other
        for _ in range(len(self._waiting)):
            self._pass_on()

    def data_received(self, data: bytes) -> None:
        self._waiting.append(data)
        if self._other is None:
            return
        if self._relaying.one_way_s:
            asyncio.get_running_loop().call_later(self._relaying.one_way_s, self._pass_on)
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        assert self._other is not None
        data = self._waiting.popleft()
        if not self._other.transport.is_closing():
            self._other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._relaying.ends.discard(self)
        if self._other is not None:
            self._other.transport.close()
