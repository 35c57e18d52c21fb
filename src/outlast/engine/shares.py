"""Who is held up, what they hold of the send buffer, and whether they may hold more.

Theory. A dead partition's records stay longest, so they end up filling a buffer that all share: the
dead starve the living (B06). A fixed share for each would waste the buffer of those who need it. So
the bound is one for all held-up partitions *together*, and it moves: they may hold at most as much
as is free (a dynamic threshold, as in switches with shared memory). They settle at half of what the
healthy leave, and the healthy always find room.

Rules:
* *Held up*: the partition has a gap, or its oldest record has waited for longer than linger + 1 s.
* The bound holds while there is somebody to keep room for: who is not held up and has delivered
  within the last 10 s. Where all are late (the application is faster than the cluster), it is those
  that have no gap and delivered within the last linger + 1 s, and only the rest is bounded.
  Otherwise there is nobody: a partition that is the only one may use everything.
* Judged anew when a gap opens or ends, and else every 100 ms while something happens or waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from outlast.engine.partition import Partition

HELD_UP_AFTER_S = 1.0  # beyond linger
DELIVERED_WITHIN_S = 10.0
LOOK_S = 0.1

TopicPartition = tuple[str, int]


class Shares:
    """The partitions of one producer that are held up, and their common share of the buffer."""

    __slots__ = (
        "_bounded",
        "_bounded_bytes",
        "_delivered",
        "_free",
        "_held",
        "_look_s",
        "_patience_s",
        "anybody",
    )

    def __init__(self, linger_s: float) -> None:
        self.anybody = False  # is held up
        self._patience_s = linger_s + HELD_UP_AFTER_S
        self._held: set[TopicPartition] = set()
        self._bounded: set[TopicPartition] = set()  # of these, who must leave room for others
        self._bounded_bytes = 0  # that they hold
        self._delivered: dict[TopicPartition, float] = {}  # last ack, oldest first
        # by topic: its partitions, and those of them that are not held up
        self._free: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
        self._look_s = 0.0

    def __repr__(self) -> str:
        return (
            f"<Shares held_up={len(self._held)} bounded={len(self._bounded)} "
            f"bytes={self._bounded_bytes}>"
        )

    # --- what is so ---

    def held_up(
        self,
        now: float,
        busy: Mapping[TopicPartition, Partition],
        gaps: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        """The partitions whose records do not leave, as of now."""
        return {tp for tp in gaps if tp[1] >= 0} | {
            tp for tp, place in busy.items() if self._late(place, now)
        }

    def bounded(self, tp: TopicPartition) -> bool:
        """Whether the partition may take only of the held-up ones' common share."""
        return tp in self._bounded

    def allows(self, tp: TopicPartition, size_bytes: int, free_bytes: int) -> bool:
        """Whether the partition may take so much, after which so much would be free."""
        return not self.bounded(tp) or self._bounded_bytes + size_bytes <= free_bytes

    def free(self, topic: str, partitions: Sequence[int]) -> Sequence[int]:
        """The partitions of the topic that are not held up, all if all are: a record that may go
        anywhere need not wait. The same sequence until that changes.
        """
        if not self.anybody:
            return partitions
        of, free = self._free.get(topic, ((), ()))
        if of is not partitions:
            free = tuple(p for p in partitions if (topic, p) not in self._held) or partitions
            self._free[topic] = partitions, free
        return free

    # --- what happens ---

    def took(self, tp: TopicPartition, size_bytes: int) -> None:
        """The partition's records take so much more of the buffer (less, if negative)."""
        if tp in self._bounded:
            self._bounded_bytes += size_bytes

    def delivered(self, tp: TopicPartition, now: float) -> None:
        """A batch of the partition was acknowledged."""
        self._delivered.pop(tp, None)
        self._delivered[tp] = now

    def changed(self) -> None:
        """A gap opened or ended: `judge` must not wait."""
        self._look_s = 0.0

    def due_at(self) -> float:
        """When `judge` has something to say again."""
        return self._look_s

    def judge(
        self,
        busy: Mapping[TopicPartition, Partition],
        gaps: Collection[TopicPartition],
        reserved: Mapping[TopicPartition, int],
        now: float,
    ) -> None:
        """Find out who is held up.

        Args:
            busy: the partitions with records that are not settled.
            gaps: those that have a gap.
            reserved: bytes set aside for records that are not taken yet.
            now: monotonic seconds.
        """
        self._look_s = now + LOOK_S
        before, self._held = self._held, self.held_up(now, busy, gaps)
        self.anybody = bool(self._held)
        if self._held != before:
            self._free.clear()
        self._forget_old(now)
        self._bounded = self._who_leaves_room(gaps, now)
        self._bounded_bytes = sum(reserved.get(tp, 0) for tp in self._bounded)
        for tp in self._bounded & busy.keys():
            self._bounded_bytes += sum(batch.charge_bytes for batch in busy[tp].unsettled())

    def _who_leaves_room(self, gaps: Collection[TopicPartition], now: float) -> set[TopicPartition]:
        if not self._held or any(tp not in self._held for tp in self._delivered):
            return self._held
        going = {
            tp
            for tp, at_s in self._delivered.items()
            if tp not in gaps and now - at_s <= self._patience_s
        }
        return self._held - going if going else set()

    def _forget_old(self, now: float) -> None:
        while self._delivered:
            oldest, at_s = next(iter(self._delivered.items()))
            if now - at_s <= DELIVERED_WITHIN_S:
                return
            del self._delivered[oldest]

    def _late(self, place: Partition, now: float) -> bool:
        oldest = next(place.unsettled(), None)
        return oldest is not None and now - oldest.created_s > self._patience_s
