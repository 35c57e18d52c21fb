"""What may be called when: the table of a transaction's states."""

from __future__ import annotations

import pytest
from kafka.errors import IllegalStateError

from outlast.engine.transaction_state import CALLS, TABLE, Event, State, after, diagram

STATES_OF_CALLS = [(state, event) for state in State for event in CALLS]


@pytest.mark.parametrize(("state", "event"), STATES_OF_CALLS)
def test_a_call_is_in_the_table_or_refused_by_name(state: State, event: Event) -> None:
    if (state, event) in TABLE:
        assert after(state, event) is TABLE[state, event]
        return
    with pytest.raises(IllegalStateError) as caught:
        after(state, event)
    assert f"Cannot call {event.value} in state {state.value}" in str(caught.value)


def test_only_fencing_is_final() -> None:
    """From every other state, calls and what the cluster says lead back to READY."""
    for state in State:
        reached, new = {state}, {state}
        while new:
            new = {to for (begin, _), to in TABLE.items() if begin in new} - reached
            reached |= new
        assert (State.READY in reached) is (state is not State.FATAL)


def test_a_commit_under_way_is_not_aborted() -> None:
    with pytest.raises(IllegalStateError, match="may have been done"):
        after(State.COMMITTING, Event.ABORT)


@pytest.mark.parametrize("event", [Event.INIT, Event.COMMIT, Event.ABORT])
def test_a_call_may_be_made_again(event: Event) -> None:
    doing = {
        Event.INIT: State.INITIALIZING,
        Event.COMMIT: State.COMMITTING,
        Event.ABORT: State.ABORTING,
    }[event]
    assert after(doing, event) is doing


def test_the_diagram_has_each_change_of_state() -> None:
    lines = diagram().splitlines()
    for (state, event), following in TABLE.items():
        if state is not following and event is not Event.FENCED:
            assert f"    {state.value} --> {following.value}: {event.value}" in lines
