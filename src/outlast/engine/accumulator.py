"""The bound of the send buffer: counts bytes and the threads that wait for them.

Rules:
* It holds no records: a charge is taken before a record is queued and refunded when it is settled.
* Room is given in the order of asking among those whose partition may take bytes now (`shares`): a
  waiter that may not is passed over, and keeps its place. Who comes without a ticket takes nothing
  while somebody waits whose turn would come first.
* A grant is a reservation: the bytes are set aside until their thread takes or cancels them, so
  that nobody who comes in between can take them.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.engine.shares import Shares

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Wish:
    tp: TopicPartition
    size_bytes: int


class Accumulator:
    """Counts the bytes of all unsettled records of a producer."""

    __slots__ = ("_granted", "_refunded_bytes", "_shares", "_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, shares: Shares) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0  # charges and reservations
        self._refunded_bytes = 0  # all refunds ever
        self._shares = shares
        self._waiting: dict[int, _Wish] = {}  # by ticket, oldest first
        self._granted: dict[int, _Wish] = {}  # by ticket: reserved

    def __repr__(self) -> str:
        return (
            f"<Accumulator {self.used_bytes}/{self.limit_bytes} bytes, "
            f"waiting={len(self._waiting)} granted={len(self._granted)}>"
        )

    def charge(self, tp: TopicPartition, size_bytes: int, ticket: int = 0) -> bool:
        """Take room for one record, with or without a ticket. False: nothing was taken."""
        if not (ticket or self._waiting):
            used_bytes = self.used_bytes + size_bytes
            if not self._shares.anybody:
                if used_bytes <= self.limit_bytes:
                    self.used_bytes = used_bytes
                    return True
            elif 2 * used_bytes <= self.limit_bytes:
                # no more than is free, whoever holds it: nothing else to ask
                self._take(tp, size_bytes)
                return True
        free_bytes = self.limit_bytes - self.used_bytes
        if ticket and ticket in self._granted:
            return self._charge_reserved(tp, size_bytes, ticket)
        if size_bytes > free_bytes or (self._waiting and self._comes_later(tp)):
            return False
        if not self._shares.allows(tp, size_bytes, free_bytes - size_bytes):
            return False
        self._take(tp, size_bytes)
        return True

    def ample_bytes(self) -> int:
        """What anybody may take without a question (see `charge`); 0 or less: nothing."""
        if self._waiting:
            return 0
        limit_bytes = self.limit_bytes // 2 if self._shares.anybody else self.limit_bytes
        return limit_bytes - self.used_bytes

    def _charge_reserved(self, tp: TopicPartition, size_bytes: int, ticket: int) -> bool:
        """Take what was set aside. A keyless record may have another partition by now, and the
        batch that the record was to join may be full.
        """
        wish = self._granted[ticket]
        free_bytes = self.limit_bytes - self.used_bytes + wish.size_bytes - size_bytes
        more = size_bytes > wish.size_bytes or tp != wish.tp
        if free_bytes < 0 or (more and not self._shares.allows(tp, size_bytes, free_bytes)):
            return False
        self._give_back(ticket)
        self._take(tp, size_bytes)
        return True

    def _take(self, tp: TopicPartition, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self._shares.took(tp, size_bytes)

    def _give_back(self, ticket: int) -> None:
        wish = self._granted.pop(ticket, None)
        if wish is not None:
            self.used_bytes -= wish.size_bytes
            self._shares.took(wish.tp, -wish.size_bytes)

    def _comes_later(self, tp: TopicPartition) -> bool:
        """Whether somebody waits who comes before a newcomer of this partition."""
        bounded = self._shares.bounded
        return bounded(tp) or any(not bounded(wish.tp) for wish in self._waiting.values())

    def wait(self, tp: TopicPartition, ticket: int, size_bytes: int) -> None:
        """Queue for room. A ticket that waits keeps its place; one that was granted too little
        goes to the end, and its room to others at the next `grant`.
        """
        self._give_back(ticket)
        self._waiting[ticket] = _Wish(tp, size_bytes)

    def wanted(self, ticket: int) -> TopicPartition | None:
        """The partition that somebody with this ticket waits for, or has room set aside for."""
        wish = self._waiting.get(ticket) or self._granted.get(ticket)
        return None if wish is None else wish.tp

    def tickets(self) -> set[int]:
        """All who wait, or have room set aside."""
        return {*self._waiting, *self._granted}

    def move(self, ticket: int, tp: TopicPartition) -> None:
        """What waits with this ticket may as well go to another partition; its turn stays."""
        wish = self._waiting.get(ticket)
        if wish is not None:
            self._waiting[ticket] = _Wish(tp, wish.size_bytes)

    def cancel(self, ticket: int) -> list[int]:
        """The thread gave up; returns the tickets that get its room."""
        self._waiting.pop(ticket, None)
        self._give_back(ticket)
        return self.grant()

    def refund(self, tp: TopicPartition, size_bytes: int) -> list[int]:
        """Give settled records' room back; returns the tickets that are granted room now."""
        self.used_bytes -= size_bytes
        self._refunded_bytes += size_bytes
        self._shares.took(tp, -size_bytes)
        assert self.used_bytes >= 0
        return self.grant()

    def recount(self, used_bytes: int) -> list[int]:
        """A change was cut off: this is what records hold. Returns the tickets that have room."""
        for ticket in self._granted:
            self._waiting.pop(ticket, None)
        self.used_bytes = used_bytes + sum(wish.size_bytes for wish in self._granted.values())
        return [*self._granted, *self.grant()]

    def grant(self) -> list[int]:
        """Set room aside for those whose turn it is; returns their tickets."""
        granted = []
        passed_over = False  # a held-up one: those behind it that are held up wait, too
        for ticket, wish in self._waiting.items():
            free_bytes = self.limit_bytes - self.used_bytes - wish.size_bytes
            if self._shares.bounded(wish.tp):
                passed_over |= not self._shares.allows(wish.tp, wish.size_bytes, free_bytes)
                if passed_over:
                    continue
            elif free_bytes < 0:
                break
            self.used_bytes += wish.size_bytes
            self._shares.took(wish.tp, wish.size_bytes)
            self._granted[ticket] = wish
            granted.append(ticket)
        for ticket in granted:
            del self._waiting[ticket]
        return granted

    @property
    def taken_bytes(self) -> int:
        """All charges ever: how fast records come."""
        reserved_bytes = sum(wish.size_bytes for wish in self._granted.values())
        return self._refunded_bytes + self.used_bytes - reserved_bytes

    @property
    def anybody_waits(self) -> bool:
        """Whether a thread waits for room."""
        return bool(self._waiting)

    def waiters(self) -> dict[str, int]:
        """How many threads wait for room, by what keeps them: 'memory', or their 'share' of it."""
        held = sum(self._shares.bounded(wish.tp) for wish in self._waiting.values())
        return {"memory": len(self._waiting) - held, "share": held}

    def reserved(self) -> dict[TopicPartition, int]:
        """What is set aside for each partition."""
        total: dict[TopicPartition, int] = {}
        for wish in self._granted.values():
            total[wish.tp] = total.get(wish.tp, 0) + wish.size_bytes
        return total
