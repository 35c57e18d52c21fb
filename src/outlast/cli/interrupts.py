"""Ctrl-C and SIGTERM: to commands they are one, and what was begun is ended in order.

A shell that starts a command in the background has SIGINT ignored; whoever sends it means it all
the same.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], object]


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """What Python does at Ctrl-C."""
    raise KeyboardInterrupt


@contextmanager
def heard_by(handler: Handler = interrupt) -> Iterator[None]:
    """Either calls this, meanwhile."""
    before = [signal.signal(number, handler) for number in NUMBERS]
    try:
        yield
    finally:
        for number, old in zip(NUMBERS, before, strict=True):
            signal.signal(number, old)


def left_to_parent() -> None:
    """In a worker process: Ctrl-C, which a terminal sends to it, too, is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # with which the parent ends it
