"""Records that one `send_many` brings, as the engine takes them: a batch's share at a time.

Their sizes are added up once; where a batch or the buffer is full is then looked up. However large
batches are, one pass takes so many at most: others wait for the engine meanwhile.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from outlast.engine.record_batch import Headers, record_bytes_max

PASS_RECORDS = 2048
PASS_BYTES = 1 << 20


class Run:
    """Records that one call brought, of one topic and time and with the same headers.

    Args:
        keys: None: no record has one.
    """

    __slots__ = ("_totals", "headers", "keys", "partition", "timestamp_ms", "topic", "values")

    def __init__(
        self,
        topic: str,
        partition: int | None,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        headers: Headers,
        timestamp_ms: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.keys = keys
        self.values = values
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self._totals: array[int] | None = None  # of the records before each

    def __repr__(self) -> str:
        return f"<Run {self.topic} partition={self.partition} records={len(self.values)}>"

    def key(self, index: int) -> bytes | None:
        """The key of one of them."""
        return None if self.keys is None else self.keys[index]

    def bytes_max(self, begin: int, end: int) -> int:
        """The most that these records add to a batch."""
        if begin == end:
            return 0
        totals = self._added_up()
        return totals[end] - totals[begin]

    def fitting(self, begin: int, batch_bytes: int, buffer_bytes: int, record_bytes: int) -> int:
        """The end of those from `begin` on that fit into so much of a batch, and of a buffer of
        which each takes `record_bytes` beside its own.
        """
        if begin == len(self.values):
            return begin
        totals = self._added_up()
        before = totals[begin]
        end = max(begin, bisect_right(totals, before + min(batch_bytes, PASS_BYTES)) - 1)
        end = min(end, begin + PASS_RECORDS)
        return begin + bisect_right(
            range(begin, end),
            buffer_bytes,
            key=lambda i: totals[i + 1] - before + (i + 1 - begin) * record_bytes,
        )

    def _added_up(self) -> array[int]:
        if self._totals is None:
            fixed = record_bytes_max(None, None, self.headers)
            sizes = [fixed + len(value or b"") for value in self.values]
            if self.keys is not None:
                sizes = [size + len(key or b"") for size, key in zip(sizes, self.keys, strict=True)]
            self._totals = array("q", accumulate(sizes, initial=0))
        return self._totals
