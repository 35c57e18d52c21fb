"""The codec's own time: what compressing costs without the client around it.

A client is listened to while it compresses some batches, and the same blocks are compressed again
afterwards, by the same function, with nothing else to do. outlast and kafka-python call the same
functions, under two names.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

MODULES = ("kafka.codec", "kafka.record.default_records")  # where clients find the functions
ROUNDS = 20


@contextlib.contextmanager
def listening(codec: str) -> Iterator[list[bytes]]:
    """The blocks that are compressed meanwhile."""
    blocks: list[bytes] = []
    encode = _encode(codec)

    def heard(block: Any, *arguments: Any) -> Any:
        blocks.append(bytes(block))
        return encode(block, *arguments)

    with contextlib.ExitStack() as undo:
        for module in map(importlib.import_module, MODULES):
            undo.enter_context(mock.patch.object(module, f"{codec}_encode", heard))
        yield blocks


def replay(codec: str, blocks: list[bytes]) -> float:
    """CPU seconds for compressing them once; the mean of some rounds."""
    if not blocks:
        raise RuntimeError(f"nothing was compressed with {codec}")
    encode = _encode(codec)
    before_s = time.process_time()
    for _ in range(ROUNDS):
        for block in blocks:
            encode(block)
    return (time.process_time() - before_s) / ROUNDS


def _encode(codec: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(
        importlib.import_module("kafka.codec"), f"{codec}_encode"
    )
    return function
