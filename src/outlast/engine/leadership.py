"""Who leads one partition: what an answer may overrule, and what it may not.

Rules 2 to 6 of `metadata`, for one partition of one topic id.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

INSISTENT_ANSWERS = 5
INSISTENT_BROKERS = 2
INSISTENT_EPOCH_S = 1.0

_NO_LEADER_ERRORS = frozenset((5, 72))  # LEADER_NOT_AVAILABLE, LISTENER_NOT_FOUND
_LEADER_NAMED_ERRORS = frozenset((0, 9))  # none, REPLICA_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class Leader:
    """A partition's leader. Not usable: it led last, and nobody is known to lead now."""

    node_id: int
    epoch: int  # −1: the cluster tells none
    usable: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What all entries of one metadata answer share."""

    node_id: int  # whom it comes from; negative for a bootstrap address
    listed: Collection[int]  # node ids of the brokers that it names
    reliable_epochs: bool
    now: float


class Insistence:
    """Answers in a row that agree with each other and contradict what we know."""

    __slots__ = ("_answers", "_brokers", "_claim", "_since_s")

    def __init__(self) -> None:
        self._claim: object = None
        self._answers = 0
        self._since_s = 0.0
        self._brokers: set[int] = set()

    def __repr__(self) -> str:
        return f"<Insistence {self._claim} x{self._answers} from {sorted(self._brokers)}>"

    def convinces(self, claim: object, at_least_s: float, answer: Answer) -> bool:
        """Count one more answer with this claim; whether that is enough to believe it."""
        if claim != self._claim:
            self._claim, self._answers, self._since_s = claim, 0, answer.now
            self._brokers.clear()
        self._answers += 1
        # a bootstrap address may be any of the brokers: all of them count as one that we know
        self._brokers.add(max(answer.node_id, -1))
        brokers = len(self._brokers - {-1}) or 1
        return (
            self._answers >= INSISTENT_ANSWERS
            and brokers >= min(INSISTENT_BROKERS, len(answer.listed))
            and answer.now - self._since_s >= at_least_s
        )


class Leadership:
    """One partition's leader, epoch and in-sync replicas, as far as we know.

    Attributes:
        leader: the one to use, the last one known (not usable), or None.
        epoch_seen: may be newer than the leader's: nobody led at that epoch.
        isr: node ids of the in-sync replicas; empty where nobody told.
        stale_since_s: since when the leader in use is in doubt; None: it is not.
    """

    __slots__ = ("_insistence", "_stale_epoch", "epoch_seen", "isr", "leader", "stale_since_s")

    def __init__(self) -> None:
        self.leader: Leader | None = None
        self.epoch_seen = -1
        self.isr: tuple[int, ...] = ()
        self.stale_since_s: float | None = None
        self._stale_epoch = -1
        self._insistence: Insistence | None = None

    def __repr__(self) -> str:
        return f"<Leadership {self.leader} seen={self.epoch_seen} stale={self.stale_since_s}>"

    def learn(self, entry: Any, answer: Answer) -> None:
        """Learn a partition's entry of an answer, or keep what was known."""
        leader_id, error_code = entry.leader_id, entry.error_code
        if error_code not in _LEADER_NAMED_ERRORS and error_code not in _NO_LEADER_ERRORS:
            return
        epoch = entry.leader_epoch if answer.reliable_epochs else -1
        if epoch < self.epoch_seen and not self._overruled((leader_id, epoch), answer):
            return
        self._insistence = None
        if leader_id not in answer.listed:
            self._lose(epoch, tuple(entry.isr_nodes or ()))
        elif error_code in _LEADER_NAMED_ERRORS:
            self._take(Leader(leader_id, epoch), tuple(entry.isr_nodes or ()))

    def take_hint(self, leader_id: int, epoch: int) -> bool:
        """Take the leader that a refusal names, if its epoch is news. Its address is known."""
        if leader_id < 0 or epoch < self.epoch_seen:
            return False
        if self.leader is not None and epoch <= self.leader.epoch:
            return False
        self._insistence = None
        self._take(Leader(leader_id, epoch), ())
        return True

    def doubt(self, now: float) -> bool:
        """The leader in use refused or did not answer. True if that is new."""
        if self.stale_since_s is not None:
            return False
        self.stale_since_s = now
        self._stale_epoch = self.epoch_seen
        return True

    def _overruled(self, claim: tuple[int, int], answer: Answer) -> bool:
        if self._insistence is None:
            self._insistence = Insistence()
        if not self._insistence.convinces(claim, INSISTENT_EPOCH_S, answer):
            return False
        self._stale_epoch = -1
        self.stale_since_s = None
        return True

    def _take(self, leader: Leader, isr: tuple[int, ...]) -> None:
        moved = self.leader is not None and self.leader.node_id != leader.node_id
        if moved or leader.epoch > self._stale_epoch:
            self.stale_since_s = None
        self.leader = leader
        self.epoch_seen = leader.epoch
        self.isr = isr

    def _lose(self, epoch: int, isr: tuple[int, ...]) -> None:
        """Nobody leads at this epoch."""
        last = self.leader
        if last is not None:  # insistence may have taken us to an epoch below its own
            self.leader = Leader(last.node_id, min(last.epoch, epoch), usable=False)
        self.epoch_seen = epoch
        self.isr = isr
