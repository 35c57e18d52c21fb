"""What was wrong in a random run, where and when: the truth that hold-ups are held against.

It is written by whoever makes the trouble (`accidents`) and knows nothing of the producer. A
trouble is one node's (its process, its connections, or how late it follows), one partition's, or
everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

NOWHERE = 0  # a trouble of no node: topics that come and go beside the one that is watched

# What makes acks late beyond the partitions that it strikes: a request waits for its slowest one.
# The rest is told by refusals, or is the business of one node's connections alone.
HOLDS_OTHERS = frozenset(
    (
        *("kill", "crash", "blackout", "stop", "pause", "SlowFollower"),
        *("move", "sweep", "create", "recreate", "grow", "Error", "ErrorAfter"),
    )
)


@dataclass(slots=True, eq=False)
class Trouble:
    """One thing that was wrong. With neither node nor partition it was everybody's."""

    kind: str
    begin_s: float
    end_s: float = inf  # while it lasts
    node: int | None = None
    partition: int | None = None  # of the topic 't'
    hard: bool = False  # no ack comes at all, or none for seconds
    fault: object = None  # of the cluster, that makes it

    @property
    def is_move(self) -> bool:
        """Whether leaders were moved as planned."""
        return self.kind in ("move", "sweep")

    def strikes(self, partition: int, replicas: tuple[int, ...]) -> bool:
        """Whether this partition itself has it."""
        if self.partition is not None:
            return self.partition == partition
        return self.node is None or self.node in replicas

    def touches(self, begin_s: float, end_s: float, aftermath_s: float) -> bool:
        """Whether it, or what may still come of it, falls into this time."""
        return self.begin_s <= end_s and begin_s <= self.end_s + aftermath_s


@dataclass(slots=True)
class Troubles:
    """All of a run."""

    log: list[Trouble] = field(default_factory=list)

    def note(
        self,
        kind: str,
        begin_s: float,
        end_s: float = inf,
        *,
        node: int | None = None,
        partition: int | None = None,
    ) -> Trouble:
        """Something goes wrong."""
        trouble = Trouble(kind, begin_s, end_s, node, partition)
        self.log.append(trouble)
        return trouble

    def over(self, fault: object, at_s: float) -> None:
        """What this fault makes is over."""
        for trouble in self.log:
            if trouble.fault is fault:
                trouble.end_s = min(trouble.end_s, at_s)
