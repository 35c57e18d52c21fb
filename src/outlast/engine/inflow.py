"""How fast records come, as bytes of the send buffer per second, over the last ten seconds.

Sampled once a second from a running total, and not per record: the way of a record stays short.
"""

from __future__ import annotations

SAMPLE_S = 1.0
SAMPLES = 10


class Inflow:
    """The present rate of a running total."""

    __slots__ = ("_samples",)

    def __init__(self, now: float) -> None:
        self._samples = [(now, 0)]

    def __repr__(self) -> str:
        return f"<Inflow samples={len(self._samples)}>"

    def sample(self, total_bytes: int, now: float) -> None:
        """Note the total, at most once a second."""
        if now - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((now, total_bytes))
            del self._samples[: -(SAMPLES + 1)]

    def bytes_per_s(self, total_bytes: int, now: float) -> float:
        """The rate since the oldest sample that is not older than some ten seconds."""
        for at_s, then_bytes in self._samples:
            if now - at_s <= SAMPLES * SAMPLE_S:
                return (total_bytes - then_bytes) / max(now - at_s, 0.001)
        at_s, then_bytes = self._samples[-1]
        return (total_bytes - then_bytes) / max(now - at_s, 0.001)
