"""The one random source, as the engine sees it: injected, so that a seed replays a run."""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """What the engine asks of its random source; `random.Random` has it."""

    def random(self) -> float:
        """A float, 0.0 ≤ x < 1.0."""

    def randrange(self, stop: int, /) -> int:
        """An integer, 0 ≤ i < stop."""


def jittered(delay_s: float, rng: Rng) -> float:
    """`delay_s` ± 20 %, so that many clients do not come back in step."""
    return delay_s * (0.8 + 0.4 * rng.random())
