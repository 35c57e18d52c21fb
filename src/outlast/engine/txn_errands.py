"""What coordinators are asked for a transaction, one errand for each kind of question.

Which of them is due, and what follows from its answer, is `transactions`; how it is run until it is
answered is `errands`. The producer is asked for when the request is built: a question that is put
again may have to name the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outlast.engine import txn_wire
from outlast.engine.errands import Errand
from outlast.engine.partition import Partition
from outlast.engine.transaction import PendingOffsets
from outlast.engine.txn_wire import GROUP, Key, Producer

INIT, END = "InitProducerId", "EndTxn"

Present = Callable[[], Producer]
Done = Callable[[Any, float], None]


def take_over(key: Key, timeout_ms: int, producer: Present, done: Done) -> Errand:
    """The producer's next epoch: whoever had the last one is fenced, its transaction aborted."""
    return Errand(
        INIT,
        key,
        lambda: txn_wire.init_producer_id(key[1], timeout_ms, producer()),
        txn_wire.told_of_producer,
        done,
    )


def add_partitions(
    key: Key, producer: Present, wanted: Mapping[tuple[str, int], Partition], done: Done
) -> Errand:
    """These partitions are to be part of it."""
    return Errand(
        "AddPartitionsToTxn",
        key,
        lambda: txn_wire.add_partitions(key[1], producer(), wanted),
        lambda response: txn_wire.told_of_partitions(response, wanted),
        done,
    )


def add_group(key: Key, producer: Present, entry: PendingOffsets, done: Done) -> Errand:
    """The offsets of this group are to be."""
    return Errand(
        "AddOffsetsToTxn",
        key,
        lambda: txn_wire.add_offsets(key[1], producer(), entry.group),
        txn_wire.told,
        done,
    )


def commit_offsets(
    key: Key, producer: Present, entry: PendingOffsets, done: Done, *, second: bool
) -> Errand:
    """The group's coordinator takes them; by KIP-890 it tells the transaction's itself."""
    return Errand(
        "TxnOffsetCommit",
        (GROUP, entry.group.group_id),
        lambda: txn_wire.commit_offsets(
            key[1], producer(), entry.group, entry.offsets, second=second
        ),
        lambda response: txn_wire.told_of_partitions(response, entry.offsets),
        done,
        joins=second,
    )


def end(key: Key, ask: Callable[[], Any], done: Done) -> Errand:
    """A commit, or an abort."""
    return Errand(END, key, ask, txn_wire.told, done)
