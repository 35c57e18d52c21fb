"""Transactions as the application calls them: its words made the engine's.

The engine decides (`engine/transactions.py`); here are kafka-python's names, types and exceptions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kafka.errors import IllegalStateError

from outlast.group_offsets import group_of, offsets_of

if TYPE_CHECKING:  # the engine is not brought in before a producer is built
    from outlast.engine.intake import Waiting
    from outlast.engine.sender import Sender
    from outlast.engine.transactions import Transactions
    from outlast.io.thread import Driver

log = logging.getLogger(__name__)

_NOT_ENABLED = {
    "init_transactions()": "Cannot call init_transactions without setting a transactional_id.",
    "begin_transaction()": "Cannot use transactional methods without enabling transactions",
    "send_offsets_to_transaction()": "Cannot use transactional methods without enabling "
    "transactions",
    "commit_transaction()": "Cannot commit transaction since transactions are not enabled",
    "abort_transaction()": "Cannot abort transaction since transactions are not enabled.",
}


class TransactionManager:
    """`producer._transaction_manager`, as far as kafka-python's own tests look at it."""

    __slots__ = ("transactional_id",)

    def __init__(self, transactional_id: str | None) -> None:
        self.transactional_id = transactional_id

    def __repr__(self) -> str:
        return f"<TransactionManager transactional_id={self.transactional_id}>"

    def is_transactional(self) -> bool:
        """Whether records go out in transactions."""
        return self.transactional_id is not None


class TransactionCalls:
    """The five calls of one producer."""

    __slots__ = ("_driver", "_enabled", "_max_block_s")

    def __init__(self, driver: Driver, transactional_id: str | None, max_block_s: float) -> None:
        self._driver = driver
        self._max_block_s = max_block_s
        self._enabled = transactional_id is not None

    def __repr__(self) -> str:
        return f"<TransactionCalls enabled={self._enabled}>"

    def init(self, max_block_s: float) -> None:
        """`init_transactions()`"""
        self._call("init_transactions()", lambda it, now, t: it.init(now, t), max_block_s)

    def begin(self) -> None:
        """`begin_transaction()`"""
        self._call("begin_transaction()", lambda it, now, _: it.begin(now), 0.0)

    def commit(self, max_block_s: float) -> None:
        """`commit_transaction()`"""
        self._call("commit_transaction()", lambda it, now, t: it.commit(now, t), max_block_s)

    def abort(self, max_block_s: float) -> None:
        """`abort_transaction()`"""
        self._call("abort_transaction()", lambda it, now, t: it.abort(now, t), max_block_s)

    def send_offsets(
        self, offsets: Mapping[Any, Any], group_metadata: Any, max_block_s: float
    ) -> None:
        """`send_offsets_to_transaction()`"""
        what = "send_offsets_to_transaction()"
        self._ensure_enabled(what)
        group, converted = group_of(group_metadata), offsets_of(offsets)
        asked: list[Callable[[float, int], Waiting | None]] = []

        def send(transactions: Transactions, now: float, ticket: int) -> Waiting | None:
            if not asked:
                asked.append(transactions.send_offsets(converted, group, now))
            return asked[0](now, ticket)

        self._call(what, send, max_block_s)

    def refused(self, text: str) -> None:
        """A record was not taken, as its future tells: its transaction fails."""
        if self._enabled:

            def note(sender: Sender, _now: float) -> None:
                assert sender.transactions is not None
                sender.transactions.record_refused(text)

            self._driver.ask(note)

    def end_open(self, timeout: float | None) -> None:
        """At close: an open transaction is aborted, one that is being ended is waited for; for so
        long, or `max_block_ms`.
        """
        if not self._driver.goes_on:
            return
        timeout_s = self._max_block_s if timeout is None else timeout
        try:
            self._driver.transact("close()", lambda it, now, t: it.end_open(now, t), timeout_s)
        except Exception as error:
            log.warning(
                "A transaction is left open by close(): %s. The coordinator aborts it after "
                "transaction_timeout_ms",
                error,
            )

    def _call(
        self,
        what: str,
        call: Callable[[Transactions, float, int], Waiting | None],
        max_block_s: float,
    ) -> None:
        self._ensure_enabled(what)
        self._driver.transact(what, call, max_block_s)

    def _ensure_enabled(self, what: str) -> None:
        if not self._enabled:
            raise IllegalStateError(_NOT_ENABLED[what])


class InTransactions:
    """The transactional methods of `KafkaProducer`."""

    _transactions: TransactionCalls
    _max_block_s: float

    def init_transactions(self) -> None:
        """Take the transactional id over: an older producer of the same id is fenced, and the
        transaction that it had open is aborted. Call it once, before all other transactional calls.

        Raises:
            BlockedError: no answer within `max_block_ms`; a KafkaTimeoutError. Call it again.
            IllegalStateError: no `transactional_id` is set.
            KafkaError: the cluster refuses (no right to the id, `transaction_timeout_ms` too long).
        """
        self._transactions.init(self._max_block_s)

    def begin_transaction(self) -> None:
        """What is sent from now on belongs to one transaction.

        Raises:
            IllegalStateError: one is open already, or `init_transactions()` was not called.
            ProducerFencedError: a newer producer has the transactional id.
        """
        self._transactions.begin()

    def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], group_metadata: Any) -> None:
        """Commit a consumer group's offsets with the transaction, or not at all.

        Args:
            offsets: `{TopicPartition: OffsetAndMetadata}`, the next offsets to be read.
            group_metadata: `consumer.group_metadata()` (KIP-447), or the group's id.

        Raises:
            BlockedError: no answer within `max_block_ms`; a KafkaTimeoutError. Call it again.
            IllegalStateError: no transaction is open.
            TypeError, ValueError: what is given cannot be an offset or a group; nothing is sent.
            KafkaError: the group refuses, and the transaction has failed: abort it.
        """
        self._transactions.send_offsets(offsets, group_metadata, self._max_block_s)

    def commit_transaction(self) -> None:
        """Wait for all its records, then have all of the transaction become visible.

        Raises:
            BlockedError: not known within `max_block_ms`; a KafkaTimeoutError. It may have been
                committed: call it again until it returns or raises something else.
            IllegalStateError: no transaction is open.
            ProducerFencedError: a newer producer has the transactional id; nothing is visible.
            KafkaError: something in it failed, and nothing is visible: abort it.
        """
        self._transactions.commit(self._max_block_s)

    def abort_transaction(self) -> None:
        """Have nothing of the transaction become visible. What was not sent yet never is.

        Raises:
            BlockedError: not known within `max_block_ms`; a KafkaTimeoutError. Call it again.
            IllegalStateError: no transaction is open.
            ProducerFencedError: a newer producer has the transactional id; nothing is visible.
        """
        self._transactions.abort(self._max_block_s)
