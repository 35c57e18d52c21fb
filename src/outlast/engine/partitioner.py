"""Which partition a record goes to when `send()` was not told.

With a key: Kafka's murmur2 of the key, over *all* partitions, so that a key never moves. Without:
uniform sticky (KIP-480, KIP-794): one partition until `batch_bytes` went there or its batch left,
then another, drawn evenly from those that the caller calls usable, but for those that are a batch
ahead of their even share.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from outlast.engine.rng import Rng

if TYPE_CHECKING:
    from mypy_extensions import i64  # where it is compiled: 64 bits, without a check. Else an int.

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_WORDS: Final = tuple(struct.Struct(f"<{n}I") for n in range(65))  # keys up to 256 bytes


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, 0 ≤ hash < 2³²; equal to `kafka.partitioner.murmur2`."""
    length = len(key)
    count = length >> 2
    words = _WORDS[count] if count < len(_WORDS) else struct.Struct(f"<{count}I")
    h: i64 = _SEED ^ length
    k: i64
    for word in words.unpack_from(key):
        k = word
        k = k * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if tail := key[count << 2 :]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def keyed_partition(key: bytes, partitions: Sequence[int]) -> int:
    """The partition of this key among all partitions of a topic, given in ascending order."""
    return partitions[(murmur2(key) & 0x7FFFFFFF) % len(partitions)]


class _Sticky:
    """One topic's present partition, and how evenly its bytes went to those that are usable."""

    __slots__ = ("given_bytes", "over", "partition", "total_bytes", "turn_bytes", "usable")

    def __init__(self, usable: Sequence[int]) -> None:
        self.usable = usable
        self.partition = -1
        self.turn_bytes = 0  # since it was drawn
        self.over = True  # the next record begins elsewhere
        self.given_bytes: dict[int, int] = {}  # by partition, in the turns that are over
        self.total_bytes = 0  # of those

    def restart(self, usable: Sequence[int]) -> None:
        """Others are usable now. Count anew: one that was away has nothing to catch up on."""
        self.over = self.over or self.partition not in usable
        self.usable = usable
        self.given_bytes = {}
        self.total_bytes = self.turn_bytes = 0


class StickyPartitioner:
    """The present partition of each topic for records without a key."""

    __slots__ = ("_batch_bytes", "_rng", "_topics")

    def __init__(self, batch_bytes: int, rng: Rng) -> None:
        self._batch_bytes = batch_bytes
        self._rng = rng
        self._topics: dict[str, _Sticky] = {}

    def __repr__(self) -> str:
        present = {topic: sticky.partition for topic, sticky in self._topics.items()}
        return f"<StickyPartitioner {present}>"

    def choose(self, topic: str, usable: Sequence[int], record_bytes: int) -> int:
        """The partition for a record of this size.

        Args:
            topic: the record's topic.
            usable: partitions that may be drawn, at least one. Passing the very same sequence
                again, while nothing changed, spares a comparison.
            record_bytes: what the record adds to its batch.
        """
        sticky = self._topics.get(topic)
        if sticky is None:
            self._topics[topic] = sticky = _Sticky(usable)
        elif sticky.usable is not usable and sticky.usable != usable:
            sticky.restart(usable)
        if sticky.over or sticky.turn_bytes >= self._batch_bytes:
            self._draw(sticky)
        sticky.turn_bytes += record_bytes
        return sticky.partition

    def turn_left_bytes(self, topic: str) -> int:
        """What the topic's present partition may get before another is drawn."""
        sticky = self._topics[topic]
        return 0 if sticky.over else self._batch_bytes - sticky.turn_bytes

    def gave(self, topic: str, size_bytes: int) -> None:
        """So much more went to the topic's present partition."""
        self._topics[topic].turn_bytes += size_bytes

    def batch_left(self, topic: str, partition: int) -> None:
        """A batch of this partition was closed or sent: the next record begins elsewhere."""
        sticky = self._topics.get(topic)
        if sticky is not None and sticky.partition == partition:
            sticky.over = True

    def forget(self, topic: str) -> None:
        """The topic is not used any more."""
        self._topics.pop(topic, None)

    def _draw(self, sticky: _Sticky) -> None:
        """Any usable partition but the last one, evenly; none that is more than a batch ahead of
        the even share. (Batches of a slow one leave late, so each of its turns is long: without
        that bound it gets nearly everything, KAFKA-10888.)
        """
        usable, given, last = sticky.usable, sticky.given_bytes, sticky.partition
        given[last] = given.get(last, 0) + sticky.turn_bytes
        sticky.total_bytes += sticky.turn_bytes
        even_bytes = sticky.total_bytes / len(usable)
        if given[last] < even_bytes - self._batch_bytes or len(usable) == 1:
            last = -1  # all others may be too far ahead: it may have another turn
        while True:
            drawn = usable[self._rng.randrange(len(usable))]
            if drawn != last and given.get(drawn, 0) <= even_bytes + self._batch_bytes:
                break
        sticky.partition = drawn
        sticky.turn_bytes = 0
        sticky.over = False
