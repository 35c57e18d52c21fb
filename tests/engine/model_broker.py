"""A small model of a broker: one partition's log, and what its leader knows of producers.

Producer state is as Kafka keeps it: per producer id the epoch, the next sequence and the last five
batches, or one after a restart (S1), or nothing after a day without a batch (S12). A producer
without state may begin with any sequence (S11), or with 0 only. Nothing here is the engine's, so
that a mistake in its arithmetic is not made twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CACHE = 5
SEQUENCES = 2**31


@dataclass(frozen=True)
class Copy:
    """A batch on its way: what the broker reads."""

    batch: int
    producer_id: int
    epoch: int
    sequence: int
    count: int


@dataclass
class Producer:
    """What the broker keeps of one producer id."""

    epoch: int
    next_sequence: int
    cache: list[tuple[int, int]] = field(default_factory=list)  # sequence, offset


@dataclass
class Broker:
    """One partition's log and what its leader knows of producers."""

    first_any: bool = True  # the rule for a producer without state
    log: list[Copy] = field(default_factory=list)
    committed: int = 0  # so many batches survive whatever happens
    producers: dict[int, Producer] = field(default_factory=dict)

    def take(self, copy: Copy) -> tuple[int, int]:
        """Error code and offset."""
        known = self.producers.get(copy.producer_id)
        if known is None:
            if copy.sequence != 0 and not self.first_any:
                return 45, -1
            known = self.producers[copy.producer_id] = Producer(copy.epoch, copy.sequence)
        if copy.epoch < known.epoch:
            return 47, -1
        if copy.epoch > known.epoch:
            if copy.sequence != 0:
                return 45, -1
            known.epoch, known.next_sequence, known.cache = copy.epoch, 0, []
        for sequence, offset in known.cache:
            if sequence == copy.sequence:
                return 0, offset
        if copy.sequence != known.next_sequence:
            return 45, -1
        self.log.append(copy)
        self._remember(copy, len(self.log) - 1)
        return 0, len(self.log) - 1

    def _remember(self, copy: Copy, offset: int) -> None:
        known = self.producers.setdefault(copy.producer_id, Producer(copy.epoch, 0))
        if copy.epoch > known.epoch:
            known.epoch, known.cache = copy.epoch, []
        known.next_sequence = (copy.sequence + copy.count) % SEQUENCES
        known.cache = [*known.cache, (copy.sequence, offset)][-CACHE:]

    def restart(self) -> None:
        """Only the last batch of each producer is remembered (S1)."""
        for known in self.producers.values():
            known.cache = known.cache[-1:]

    def truncate(self, length: int) -> None:
        """Another replica leads: it has so many batches, and its state is what they tell."""
        del self.log[length:]
        self.producers.clear()
        for offset, copy in enumerate(self.log):
            self._remember(copy, offset)

    def batches(self) -> list[int]:
        """The log, by numbers of batches."""
        return [copy.batch for copy in self.log]
