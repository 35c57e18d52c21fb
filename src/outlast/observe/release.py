"""Which outlast this is. Read once: the file that tells it holds the README, and all is parsed."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version


@cache
def release() -> str:
    """The version of the installed package."""
    return version("outlast")
