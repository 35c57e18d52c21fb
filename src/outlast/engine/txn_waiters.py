"""Calls that wait for a transaction: each is told of its own one's end, and of no later one.

Several threads may wait for one end. The first takes the result and may go on to the next
transaction before the others are awake: so a ticket is bound to the transaction that it waits for,
and the result stays there.
"""

from __future__ import annotations

from collections.abc import Collection

from kafka.errors import KafkaError

from outlast.engine.intake import Waiting
from outlast.engine.messages import Completion, Granted
from outlast.engine.transaction import Transaction
from outlast.engine.transaction_state import Event


class Waiters:
    """Tickets, and whose end they wait for."""

    __slots__ = ("_next_ticket", "_of")

    def __init__(self) -> None:
        self._of: dict[int, Transaction] = {}
        self._next_ticket = 0

    def __repr__(self) -> str:
        return f"<Waiters {list(self._of)}>"

    def wait(self, transaction: Transaction, ticket: int) -> Waiting:
        """The call goes on waiting; 0: it begins to."""
        if not ticket:
            self._next_ticket -= 1  # below all tickets of records
            ticket = self._next_ticket
        self._of[ticket] = transaction
        return Waiting(ticket, "transaction")

    def was_told(self, ticket: int, event: Event) -> bool:
        """Whether the end that it waits for was told to another call before; raises what that was
        told.
        """
        transaction = self._of.get(ticket)
        if transaction is None or transaction.outcome is None:
            return False
        del self._of[ticket]
        ended_by, error = transaction.outcome
        if error is not None:
            raise again(error)
        if ended_by is not event:
            raise KafkaError(f"The transaction was ended by {ended_by.value}")
        return True

    def forget(self, ticket: int) -> bool:
        """Nobody waits with this ticket any more; whether anybody did."""
        return self._of.pop(ticket, None) is not None

    def keep(self, tickets: Collection[int]) -> None:
        """Nobody waits with any other."""
        self._of = {ticket: of for ticket, of in self._of.items() if ticket in tickets}

    def granted(self) -> list[Completion]:
        """All look again."""
        return [Granted(ticket) for ticket in self._of]


def again(error: Exception) -> Exception:
    """The same to be raised once more: one object would keep the frames of all who saw it."""
    return type(error)(*error.args)
