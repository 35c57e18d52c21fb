"""The bound of the send buffer: counts bytes and the threads that wait for them.

Rules:
* It holds no records: a charge is taken before a record is queued and refunded when it is settled.
* Room is given in the order of asking: who comes without a ticket takes nothing while others wait.
* A grant is a reservation: the bytes are set aside until their thread takes or cancels them, so
  that nobody who comes in between can take them.
"""

from __future__ import annotations


class Accumulator:
    """Counts the bytes of all unsettled records of a producer."""

    __slots__ = ("_granted", "_waiting", "limit_bytes", "taken_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0  # charges and reservations
        self.taken_bytes = 0  # all charges ever: how fast records come
        self._waiting: dict[int, int] = {}  # ticket → bytes wanted, oldest first
        self._granted: dict[int, int] = {}  # ticket → bytes reserved

    def __repr__(self) -> str:
        return (
            f"<Accumulator {self.used_bytes}/{self.limit_bytes} bytes, "
            f"waiting={len(self._waiting)} granted={len(self._granted)}>"
        )

    def charge(self, size_bytes: int, ticket: int = 0) -> bool:
        """Take room for one record, with or without a ticket. False: nothing was taken."""
        reserved = self._granted.pop(ticket, 0)
        if not reserved and self._waiting:
            return False
        if self.used_bytes - reserved + size_bytes > self.limit_bytes:
            if reserved:
                self._granted[ticket] = reserved
            return False
        self.used_bytes += size_bytes - reserved
        self.taken_bytes += size_bytes
        return True

    def wait(self, ticket: int, size_bytes: int) -> None:
        """Queue for room. A ticket that waits or was granted already keeps its place."""
        self.used_bytes -= self._granted.pop(ticket, 0)
        self._waiting.setdefault(ticket, size_bytes)

    def cancel(self, ticket: int) -> list[int]:
        """The thread gave up; returns the tickets that get its room."""
        self._waiting.pop(ticket, None)
        return self.refund(self._granted.pop(ticket, 0))

    def refund(self, size_bytes: int) -> list[int]:
        """Give settled records' room back; returns the tickets that are granted room now."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
        granted = []
        for ticket, wanted in self._waiting.items():
            if self.used_bytes + wanted > self.limit_bytes:
                break
            self.used_bytes += wanted
            self._granted[ticket] = wanted
            granted.append(ticket)
        for ticket in granted:
            del self._waiting[ticket]
        return granted
