"""Which bits of a byte are inverted. `TESTS_FUZZ` is how many are tried beside the lowest (1)."""

from __future__ import annotations

import os
import random

MORE = int(os.environ.get("TESTS_FUZZ") or 1)


def masks(byte: int, of: str) -> list[int]:
    """The lowest bit, which makes one number its neighbour, and others by chance."""
    rng = random.Random(f"{of}/{byte}")
    return [0x01, *(rng.choice((0x80, 0xFF, rng.randrange(2, 256))) for _ in range(MORE))]
