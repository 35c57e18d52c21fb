"""Lane changes as episodes of brokers: one begins, one ends, however many partitions took part.

A follower that is late sends every partition that it follows into the slow lane, two hundred in one
moment or one after another. So nothing is told of a single change. An episode of a node *begins*
with the first partition in its slow lane and is told `SETTLE_S` later, when most of those that it
hits are there. It *ends* when the lane has been empty, or its connection closed as unused, for
`QUIET_S`: a follower that is slow now and then makes one long episode, not hundreds.

Time is the facts' own: what is due is found out when the next fact comes, of whatever kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from outlast.engine.messages import (
    ConnectionClosed,
    ConnectionOpened,
    Fact,
    LaneChanged,
    LaneReason,
    Role,
)

SETTLE_S = 0.25
QUIET_S = 5.0  # less than an unused slow connection stays open
NAMES_SHOWN = 3

TopicPartition = tuple[str, int]


class Told(NamedTuple):
    """One line about a broker's slow lane: it came into use, or is not in use any more."""

    begins: bool
    text: str


class SlowLanes:
    """The episodes of one producer's brokers."""

    __slots__ = ("_episodes", "_node_of")

    def __init__(self) -> None:
        self._episodes: dict[int, _Episode] = {}
        self._node_of: dict[TopicPartition, int] = {}  # of each partition in a slow lane

    def __repr__(self) -> str:
        return f"<SlowLanes episodes={len(self._episodes)} partitions={len(self._node_of)}>"

    @property
    def waits(self) -> bool:
        """Whether there is a line that falls due as time passes."""
        return bool(self._episodes)

    def hear(self, fact: Fact) -> Iterator[Told]:
        """What is due by the time of this fact; then the fact is taken in."""
        if self._episodes:
            yield from self._due(fact.at_s)
        match fact:
            case LaneChanged(lane=Role.SLOW):
                self._enter(fact)
            case LaneChanged():
                self._leave((fact.topic, fact.partition), fact.at_s)
            case ConnectionOpened() | ConnectionClosed() if fact.connection.role is Role.SLOW:
                episode = self._episodes.get(fact.connection.node_id)
                if episode is not None:
                    used = isinstance(fact, ConnectionOpened) and bool(episode.reasons)
                    episode.quiet_since_s = None if used else fact.at_s

    def rest(self) -> Iterator[Told]:
        """No more facts come: what has not been told yet."""
        yield from self._due(float("inf"), ends=False)

    def _due(self, now: float, *, ends: bool = True) -> Iterator[Told]:
        for node_id, episode in list(self._episodes.items()):
            if not episode.told and now - episode.begin_s > SETTLE_S:
                episode.told = True
                yield Told(begins=True, text=_beginning(node_id, episode))
            since_s = episode.quiet_since_s
            if ends and since_s is not None and now - since_s > QUIET_S:
                self._forget(node_id)
                yield Told(begins=False, text=_ending(node_id, episode, since_s))

    def _enter(self, fact: LaneChanged) -> None:
        tp = fact.topic, fact.partition
        if self._node_of.get(tp, fact.node_id) != fact.node_id:
            self._leave(tp, fact.at_s)
        self._node_of[tp] = fact.node_id
        episode = self._episodes.setdefault(fact.node_id, _Episode(fact.at_s))
        episode.quiet_since_s = None
        episode.enter(tp, fact.reason)

    def _leave(self, tp: TopicPartition, at_s: float) -> None:
        node_id = self._node_of.pop(tp, None)
        if node_id is None:
            return
        episode = self._episodes[node_id]
        del episode.reasons[tp]
        if not episode.reasons and episode.quiet_since_s is None:
            episode.quiet_since_s = at_s

    def _forget(self, node_id: int) -> None:
        for tp in self._episodes.pop(node_id).reasons:
            del self._node_of[tp]


class _Episode:
    """A broker's slow lane while it is in use."""

    __slots__ = ("begin_s", "most", "quiet_since_s", "reasons", "seen", "told")

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.quiet_since_s: float | None = None  # since when nothing seems to go over it
        self.told = False
        self.reasons: dict[TopicPartition, LaneReason] = {}  # of those in it now
        self.seen: dict[TopicPartition, LaneReason] = {}  # also of those that have left it
        self.most = 0

    def enter(self, tp: TopicPartition, reason: LaneReason) -> None:
        """One partition more, or another reason for one that is in it."""
        self.reasons[tp] = reason
        self.seen[tp] = reason
        self.most = max(self.most, len(self.reasons))


def _beginning(node_id: int, episode: _Episode) -> str:
    names = [f"{topic}-{partition}" for topic, partition in sorted(episode.seen)]
    shown = ", ".join(names[:NAMES_SHOWN])
    if len(names) > NAMES_SHOWN:
        shown += f" and {len(names) - NAMES_SHOWN} more"
    down = set(episode.seen.values()) == {LaneReason.FOLLOWER_DOWN}
    state = "out of reach" if down else "late"
    return (
        f"node {node_id}: a follower is {state}; {_partitions(len(names))} in the slow lane "
        f"({shown}), the others go on over a connection of their own"
    )


def _ending(node_id: int, episode: _Episode, since_s: float) -> str:
    return (
        f"node {node_id}: nothing is in the slow lane any more, after "
        f"{since_s - episode.begin_s:.3f} s; {_partitions(episode.most)} at most"
    )


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
