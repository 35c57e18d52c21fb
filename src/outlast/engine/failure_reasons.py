"""Why batches fail, where it is not a broker's word: a kind and a sentence for each.

Rule: a sentence goes on from the record that failed ("t-0: the record ..."), and names what the
reader may do or look at.
"""

from __future__ import annotations

from dataclasses import dataclass

EXPIRED = "delivery_timeout"
RECREATED = "recreated"


@dataclass(frozen=True, slots=True)
class FailureReason:
    """Why batches fail; the outcome and the attempts are each batch's own."""

    kind: str
    error_code: int | None
    message: str


TOPIC_RECREATED = FailureReason(
    RECREATED, None, "its topic was deleted and created again, or its log cut off: the old is gone"
)
PASSED_OVER = FailureReason(
    RECREATED,
    None,
    "was refused, and a later record is in the log, whose leader knew nothing of this producer "
    "(was the topic deleted and created again?): behind that one it would lie out of order",
)


def expired(after_s: float) -> FailureReason:
    """Not acknowledged in time."""
    return FailureReason(EXPIRED, None, f"not acknowledged within {after_s:g} s")


def restarted(reason: str) -> FailureReason:
    """Unsure when its partition began to number anew (rules 6 and 7b)."""
    return FailureReason(
        "restart",
        None,
        "may have been written: its partition had to restart its numbering "
        f"({reason}), after which a copy could no longer be told from a new record",
    )
