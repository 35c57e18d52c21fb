"""What `kafka_net` changes in kafka-python's transports.

A reader that stays registered; bytes that are written at once as far as the kernel takes them;
answers that came just before the end count.
"""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Any

from outlast.io.advice import unreadable
from outlast.io.sockets import received, reset_on_close

if TYPE_CHECKING:  # `kafka_net` says what it is: all that names kafka-python's transports is there
    KafkaTransport = Any
else:
    KafkaTransport = object


class SteadyTransport(KafkaTransport):  # type: ignore[misc]
    """A TCP socket whose reader stays registered, and that writes at once what it can."""

    _sock: Any
    _writing: bool
    _parked: Any  # to await: a wait that leaves the registration of the socket alone
    _short_read_is_last = True

    def resume_reading(self) -> None:
        """Called once, when the connection is made."""
        self._read = True
        self._read_task = self._net.call_soon(self._read_from_sock)
        self._net.add_reader(self._sock, self._read_task)

    async def _read_from_sock(self) -> None:
        while self._read and not self._closed:
            link, error = self._protocol, self._receive()
            if error is not None:
                if link.logging_in:  # the broker's reason came with the end: it is told first
                    self._net.remove_reader(self._sock)
                    await self._net.sleep(0)
                self.abort(error)
                break
            await self._parked

    def _receive(self) -> BaseException | None:
        """Read all there is and deliver it, also what came just before the end."""
        data, error = self._sock_recv()
        if data:
            try:
                self._protocol.data_received(data)
            except Exception as bad:
                return unreadable(data, bad)
        return error

    def _sock_recv(self) -> tuple[bytes, BaseException | None]:
        return received(self._sock, short_read_is_last=self._short_read_is_last)

    def write(self, data: bytes) -> None:
        """Write now what the kernel takes; the loop writes the rest."""
        assert not self._closed
        self._write_buffer.append(memoryview(data))
        if self._writing:
            return
        _, error = self._sock_send()
        if error is not None:
            self.abort(error)
        elif self._write_buffer:
            self._writing = True
            self._write_task = self._net.call_soon(self._write_to_sock)

    def _sock_send(self) -> tuple[int, BaseException | None]:
        sent_bytes, error = super()._sock_send()
        if error is not None and not self._closed:
            error = self._receive() or error  # answers that came before the end count
        return sent_bytes, error

    def close(self) -> None:
        """Write what is left, then close."""
        if not self._closed:
            self._net.remove_reader(self._sock)
        super().close()

    def abort(self, error: BaseException | None = None) -> None:
        """Close now. (kafka.net's does nothing while the last bytes are on the way out.)"""
        if self._sock is not None:
            self._closed = True
            self._read = self._write = False
            self._write_buffer.clear()
            self._close(error)

    def _close(self, error: BaseException | None = None) -> None:
        link, sock = self._protocol, self._sock
        if sock is not None and error is not None:
            self._sock = None
            self._net.unregister_event(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            if link is not None and link.in_flight_requests:
                reset_on_close(sock)
            sock.close()
        super()._close(error)
