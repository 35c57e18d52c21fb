"""What a coordinator's error code means for a transaction, as one table.

The verdict table of records (`verdict`) asks what became of bytes; this one asks what is to be done
about a question that may be put again: all of a coordinator's requests are safe to repeat, as it
keeps what it has decided. So an answer that was lost, a coordinator that moved or loads its log, or
one that does not know yet, costs time only. What cannot be answered otherwise next time fails the
transaction, which may be aborted. Nobody but a newer producer of the same id ends the producer.

47, 48, 49, 59 and 90 do not tell a newer producer from a coordinator that gave the transaction up
when its time was over (KIP-588) or forgot the id. Asking for the next epoch of one's own id does
(KIP-360): PROVE.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outlast.engine.messages import Cause
from outlast.engine.verdict import (
    CONCURRENT_TRANSACTIONS,
    UNKNOWN_SERVER_ERROR_TRIES_MAX,
    code_name,
)


class TxnVerdict(Enum):
    """What is done about it."""

    DONE = "it is done"
    FIND = "the coordinator is another one, or not ready: look for it, then ask again"
    RETRY = "ask the same again, after a pause"
    PROVE = "ask for the next epoch: that fails if a newer producer has the id, and only then"
    ABORT = "the transaction has failed, and can be aborted"
    REFUSE = "the call raises; it may be made again when somebody has mended the cause"

    @property
    def meaning(self) -> str:
        """For people."""
        return self.value


@dataclass(frozen=True, slots=True)
class TxnJudgement:
    """What one answer means.

    Attributes:
        verdict: what is done.
        name: the code's protocol name.
        cause: of the gap that this opens; None opens none.
        soon: the coordinator is only finishing something: it is asked again after a short pause.
        tries_max: after so many such answers in a row the transaction fails; None: no such limit.
        in_doubt: what was asked for may have been done nevertheless.
    """

    verdict: TxnVerdict
    name: str
    error_code: int
    cause: Cause | None = None
    soon: bool = False
    tries_max: int | None = None
    in_doubt: bool = False


_V = TxnVerdict
_RULES: dict[int, tuple[TxnVerdict, Cause | None]] = {
    -1: (_V.RETRY, Cause.OTHER),
    0: (_V.DONE, None),
    3: (_V.RETRY, None),  # a broker that has yet to learn of the topic
    7: (_V.FIND, Cause.REQUEST_TIMEOUT),
    12: (_V.ABORT, None),
    14: (_V.RETRY, Cause.LEADER_UNAVAILABLE),
    15: (_V.FIND, Cause.LEADER_UNAVAILABLE),
    16: (_V.FIND, Cause.NOT_LEADER),
    22: (_V.ABORT, None),
    25: (_V.ABORT, None),
    27: (_V.ABORT, None),
    28: (_V.ABORT, None),
    29: (_V.ABORT, None),
    30: (_V.ABORT, None),
    31: (_V.REFUSE, None),
    35: (_V.REFUSE, None),
    43: (_V.ABORT, None),
    47: (_V.PROVE, None),
    48: (_V.PROVE, None),
    49: (_V.PROVE, None),
    50: (_V.REFUSE, None),
    51: (_V.RETRY, None),
    52: (_V.FIND, Cause.NOT_LEADER),
    53: (_V.REFUSE, None),
    55: (_V.RETRY, None),
    56: (_V.FIND, Cause.STORAGE_ERROR),
    59: (_V.PROVE, None),
    82: (_V.ABORT, None),
    89: (_V.RETRY, None),
    90: (_V.PROVE, None),
    113: (_V.ABORT, None),
    120: (_V.ABORT, None),
}
IN_DOUBT = frozenset({-1, 7})


def judge_coordinator(error_code: int) -> TxnJudgement:
    """What a coordinator's code means. One that we have never heard of fails the transaction."""
    verdict, cause = _RULES.get(error_code, (TxnVerdict.ABORT, None))
    return TxnJudgement(
        verdict,
        code_name(error_code),
        error_code,
        cause,
        soon=error_code == CONCURRENT_TRANSACTIONS,
        tries_max=UNKNOWN_SERVER_ERROR_TRIES_MAX if error_code == -1 else None,
        in_doubt=error_code in IN_DOUBT,
    )


_GRAVITY = (_V.DONE, _V.RETRY, _V.FIND, _V.PROVE, _V.REFUSE, _V.ABORT)  # rising
NOT_ATTEMPTED = 55  # for another partition's sake


def gravity(error_code: int) -> float:
    """Of several codes in one answer the gravest decides."""
    if error_code == NOT_ATTEMPTED:
        return 0.5
    return _GRAVITY.index(judge_coordinator(error_code).verdict)


def table() -> list[TxnJudgement]:
    """Every code that has a line of its own, for the documentation."""
    return [judge_coordinator(code) for code in sorted(_RULES)]
