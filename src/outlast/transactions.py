"""What is left of kafka-python's transaction manager: numbering belongs to each partition here."""

from __future__ import annotations


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
