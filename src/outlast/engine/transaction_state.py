"""The states of a transactional producer, as a table: what may be called when, and what follows.

Names are kafka-python's. `docs/transactions.md` shows the diagram, which is made from the table.

Rules:
* What is not in the table is the application's mistake: `IllegalStateError`, with the state named,
  and nothing changes.
* Only FATAL_ERROR is final: a newer producer has taken the transactional id over. All else leads
  back to READY by `abort_transaction()`, or to UNINITIALIZED, where `init_transactions()` may be
  called again.
* A call that ran into its time-out changes no state: the same call may be made again, and goes on
  waiting for the same end. While a commit is under way nobody can abort: it may have been done.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType

from kafka.errors import IllegalStateError


class State(Enum):
    """What the transaction is doing."""

    UNINITIALIZED = "UNINITIALIZED"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    COMMITTING = "COMMITTING_TRANSACTION"
    ABORTING = "ABORTING_TRANSACTION"
    ABORTABLE = "ABORTABLE_ERROR"
    FATAL = "FATAL_ERROR"


class Event(Enum):
    """What happens to it: the application's calls, then what the cluster says."""

    INIT = "init_transactions()"
    BEGIN = "begin_transaction()"
    SEND = "send()"
    OFFSETS = "send_offsets_to_transaction()"
    COMMIT = "commit_transaction()"
    ABORT = "abort_transaction()"
    STARTED = "the coordinator gave a producer id and epoch"
    ENDED = "the coordinator has ended it"
    FAILED = "a record, a partition or offsets failed for good"
    LOST = "the coordinator refuses it: it is left to its time-out"
    FENCED = "a newer producer took the transactional id over"


_S, _E = State, Event

TABLE: MappingProxyType[tuple[State, Event], State] = MappingProxyType(
    {
        (_S.UNINITIALIZED, _E.INIT): _S.INITIALIZING,
        (_S.INITIALIZING, _E.INIT): _S.INITIALIZING,
        (_S.INITIALIZING, _E.STARTED): _S.READY,
        (_S.INITIALIZING, _E.LOST): _S.UNINITIALIZED,
        (_S.READY, _E.INIT): _S.READY,  # as kafka-python: the second call has nothing to do
        (_S.READY, _E.BEGIN): _S.IN_TRANSACTION,
        (_S.IN_TRANSACTION, _E.SEND): _S.IN_TRANSACTION,
        (_S.IN_TRANSACTION, _E.OFFSETS): _S.IN_TRANSACTION,
        (_S.IN_TRANSACTION, _E.COMMIT): _S.COMMITTING,
        (_S.IN_TRANSACTION, _E.ABORT): _S.ABORTING,
        (_S.IN_TRANSACTION, _E.FAILED): _S.ABORTABLE,
        (_S.COMMITTING, _E.COMMIT): _S.COMMITTING,
        (_S.COMMITTING, _E.FAILED): _S.ABORTABLE,
        (_S.COMMITTING, _E.ENDED): _S.READY,
        (_S.COMMITTING, _E.LOST): _S.UNINITIALIZED,
        (_S.ABORTABLE, _E.ABORT): _S.ABORTING,
        (_S.ABORTABLE, _E.FAILED): _S.ABORTABLE,
        (_S.ABORTING, _E.ABORT): _S.ABORTING,
        (_S.ABORTING, _E.FAILED): _S.ABORTING,
        (_S.ABORTING, _E.ENDED): _S.READY,
        (_S.ABORTING, _E.LOST): _S.UNINITIALIZED,
        **{(state, _E.FENCED): _S.FATAL for state in State},
    }
)

CALLS = (_E.INIT, _E.BEGIN, _E.SEND, _E.OFFSETS, _E.COMMIT, _E.ABORT)
_ADVICE = {
    (_S.UNINITIALIZED, None): "call init_transactions() first",
    (_S.INITIALIZING, None): "init_transactions() has not come to its end: call it again",
    (_S.READY, None): "call begin_transaction() first",
    (_S.IN_TRANSACTION, _E.BEGIN): "commit or abort the present one first",
    (_S.IN_TRANSACTION, _E.INIT): "it was called already",
    (_S.COMMITTING, None): "commit_transaction() has not come to its end, and may have been done: "
    "call it again until it has",
    (_S.ABORTING, None): "abort_transaction() has not come to its end: call it again until it has",
}


def after(state: State, event: Event) -> State:
    """The state that follows.

    Raises:
        IllegalStateError: the application may not call that now.
    """
    following = TABLE.get((state, event))
    if following is not None:
        return following
    assert event in CALLS, (state, event)
    advice = _ADVICE.get((state, event)) or _ADVICE.get((state, None), "")
    raise IllegalStateError(f"Cannot call {event.value} in state {state.value}: {advice}")


def diagram() -> str:
    """The table as a Mermaid state diagram; what changes nothing is left out."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.UNINITIALIZED.value}"]
    fenced: list[str] = []
    for (state, event), following in TABLE.items():
        if state is following:
            continue
        if event is Event.FENCED:
            fenced.append(state.value)
            continue
        lines.append(f"    {state.value} --> {following.value}: {event.value}")
    lines.append(f"    note left of {State.FATAL.value}: from any state, {Event.FENCED.value}")
    return "\n".join(lines)
