"""Why a call had to wait in vain, in words: what was tried, and what came of it last."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from kafka import errors as kafka_errors

from outlast.engine.messages import Connect
from outlast.io.events import Connected, Disconnected

_ANSWERED = "answered"
_TOLD_MAX = 3
_KEPT_MAX = 100  # addresses of brokers come and go


class _Tried(NamedTuple):
    address: str  # as given, and as found
    told: str
    at_s: float
    broke: str  # what ended the last connection there …
    broke_s: float  # … and when


class Reasons:
    """Remembers for each address what came of it last, and when."""

    __slots__ = ("_buffer_bytes", "_clock", "_tried")

    def __init__(self, buffer_bytes: int, clock: Callable[[], float]) -> None:
        self._buffer_bytes = buffer_bytes
        self._clock = clock
        self._tried: dict[str, _Tried] = {}  # by name and port, the latest last

    def __repr__(self) -> str:
        return self._all(self._clock())

    def _all(self, since_s: float) -> str:
        """What came of each. A broker that closes at the first request answers each time before it
        does: that it broke since then is told, too.
        """
        told = []
        for tried in list(self._tried.values()):
            text = f"{tried.address}: {tried.told}"
            if tried.told == _ANSWERED and tried.broke_s >= since_s:
                text += f", and before that {tried.broke}"
            told.append(text)
        return ", ".join(told) or "none yet"

    def connecting(self, command: Connect) -> None:
        """An address is tried."""
        place = f"{command.host}:{command.port}"
        self._tried.setdefault(place, _Tried(place, "no answer yet", self._clock(), "", -inf))

    def connected(self, event: Connected) -> None:
        """A broker answered there."""
        self._tell(event.address, _ANSWERED)

    def disconnected(self, event: Disconnected) -> None:
        """Nothing came of it, or not for long."""
        self._tell(event.address, f"{event.loss.value}: {event.detail}")

    def _tell(self, address: str, told: str) -> None:
        place = address.partition(" ")[0]
        last, now = self._tried.pop(place, None), self._clock()  # the latest comes last
        broke, broke_s = (told, now) if told != _ANSWERED else ("", -inf)
        if last is not None and told == _ANSWERED:
            broke, broke_s = last.broke, last.broke_s
        self._tried[place] = _Tried(address, told, now, broke, broke_s)
        if len(self._tried) > _KEPT_MAX:
            del self._tried[next(iter(self._tried))]

    def trouble(self, since_s: float) -> str:
        """The addresses that could not be connected to since then, and why; '': none."""
        bad = [
            f"{tried.address}: {tried.told}"
            for tried in list(self._tried.values())
            if tried.told != _ANSWERED and tried.at_s >= since_s
        ]
        return f"no connection to {', '.join(bad[-_TOLD_MAX:])}" if bad else ""

    def closed(self, crash: BaseException | None) -> str:
        """Nothing is taken any more."""
        if crash is not None:
            return f"The producer ended on an internal error: {crash!r}"
        return "The producer is closed: it takes no more records"

    def blocked(self, topic: str, missing: str, error_code: int, max_block_s: float) -> str:
        """What was missing ('memory', 'share', 'metadata', 'transaction'), and what to do then."""
        limit = f"within max_block_ms={max_block_s * 1000:g}"
        if missing == "transaction":
            answer = "has not answered"
            if error_code:
                answer = f"has only answered {kafka_errors.for_code(error_code).__name__}"
            return (
                f"{topic}: the coordinator {answer} {limit}; what was asked of it goes on: make "
                "the same call again, or look at producer.gaps()"
            )
        if missing == "memory":
            return (
                f"No room for the record {limit}: buffer_memory={self._buffer_bytes} bytes are "
                "taken by records that are not yet acknowledged; make it larger, send less, or "
                "look at producer.gaps()"
            )
        if missing == "share":
            return (
                f"No room {limit} for a record of a partition of {topic!r} that is held up: while "
                "others deliver, all held-up partitions together may hold no more than is free of "
                f"buffer_memory={self._buffer_bytes} bytes; producer.health().held_up says which "
                "and why, max_block_ms=0 and on_undelivered keep a thread from waiting for them"
            )
        text = f"No metadata for topic {topic!r} {limit}"
        if error_code:
            text += f": the brokers say {kafka_errors.for_code(error_code).__name__}"
        return f"{text}; addresses tried: {self._all(self._clock() - max_block_s)}"
