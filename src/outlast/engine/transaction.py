"""What belongs to one transaction alone, and is forgotten with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.engine.partition import Partition
from outlast.engine.transaction_state import Event
from outlast.engine.txn_wire import Group, Offset

TopicPartition = tuple[str, int]


@dataclass(slots=True)
class PendingOffsets:
    """Offsets that are to be part of the transaction, and whether they are."""

    group: Group
    offsets: Mapping[TopicPartition, Offset]
    added: bool = False  # the coordinator knows of the group
    done: bool = False


@dataclass(slots=True)
class Transaction:
    """What belongs to the present one alone."""

    wanted: dict[TopicPartition, Partition] = field(default_factory=dict)  # to be added
    added: set[TopicPartition] = field(default_factory=set)
    offsets: list[PendingOffsets] = field(default_factory=list)
    begun_s: float = 0.0
    begun: bool = False  # the coordinator may know of it
    broken: bool = False  # the next epoch is needed
    end_asked: bool = False  # for its commit
    outcome: tuple[Event, Exception | None] | None = None  # of the call that ended it
    may_be_committed: bool = False  # its commit was asked for, and no answer told of it

    @property
    def doubt(self) -> str:
        """What its failure must say, too."""
        if not self.may_be_committed:
            return ""
        return " It may have been committed: the coordinator was asked to, and never told."
