"""The starts from which the model is explored: each a number of batches and what may go wrong.

Where `allowed.failures` is false every batch must be delivered, and none be told *unknown*.
"""

from __future__ import annotations

from typing import Any

from tests.engine.model import Allowed, World, start

NEW = {"acknowledged": False}  # the broker has heard nothing of us: any first sequence will do
NEW_ZERO = {"acknowledged": False, "first_any": False}
LAST = {"sequence": 2**31 - 2, "producer_epoch": 32_767}  # numbers and epochs are used up

STARTS: dict[str, tuple[int, Allowed, dict[str, Any]]] = {
    "losses": (4, Allowed(losses=2, restarts=1), {}),
    "refusal": (3, Allowed(losses=2, restarts=1, refusals=1), {}),
    "stall": (3, Allowed(losses=2, restarts=1, stalls=1), {}),
    "moment": (3, Allowed(losses=2, restarts=1, moments=1), {}),
    "refusal and stall": (2, Allowed(losses=2, restarts=1, refusals=1, stalls=1), {}),
    "many": (6, Allowed(losses=1, refusals=1), {}),
    "move": (3, Allowed(losses=1, restarts=1, moves=1), {}),
    "moves": (2, Allowed(losses=2, moves=2), {}),
    "moves in a stall": (3, Allowed(moves=2, stalls=1), {}),
    "new": (3, Allowed(losses=1, refusals=2), NEW),
    "new, zero first": (3, Allowed(losses=1, refusals=2), NEW_ZERO),
    "new moves": (2, Allowed(losses=1, moves=2), NEW),
    "new moves, zero first": (2, Allowed(losses=1, moves=2), NEW_ZERO),
    "a day": (3, Allowed(refusals=2, days=1, losses=1), {}),
    "forgotten": (3, Allowed(forgets=1, losses=1), {"first_any": False}),
    "two restarts": (3, Allowed(losses=2, restarts=2), {}),
    "crashes": (4, Allowed(losses=1, crashes=2), {}),
    "crashes and moves": (3, Allowed(crashes=1, moves=1, stalls=1), {}),
    "move after losses": (2, Allowed(losses=2, restarts=1, moves=1), {}),
    "last numbers": (3, Allowed(losses=2, expiries=1), LAST),
    "final": (3, Allowed(losses=1, restarts=1, finals=1), {}),
    "final after losses": (2, Allowed(losses=2, restarts=1, finals=1), {}),
    "finals": (3, Allowed(finals=2, losses=1), {}),
    "expiry": (3, Allowed(losses=2, restarts=1, expiries=1), {}),
    "expiries": (2, Allowed(losses=2, restarts=1, expiries=2, refusals=1), {}),
    "expiry in a move": (2, Allowed(losses=1, moves=1, expiries=1), {}),
    "final in a move": (2, Allowed(losses=1, moves=1, finals=1), {}),
    "recreated": (3, Allowed(recreations=1, refusals=1, moves=1), {}),
    "recreated twice": (2, Allowed(recreations=2, refusals=2, losses=1), {}),
    "fenced": (2, Allowed(losses=2, fences=1), {}),
}


def begin(name: str) -> World:
    """The start of this name."""
    batches, allowed, how = STARTS[name]
    return start(batches, allowed, **how)
