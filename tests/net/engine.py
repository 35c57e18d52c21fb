# ruff: noqa: ARG002  (it takes what the driver gives, and needs little of it)
"""A tiny engine for tests of the driver: it keeps what it is told, and settles when told to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from outlast.engine.batch import Batch, Result
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.messages import Command, Connection, Gap, Granted, Loss, Outbox, Settled
from outlast.engine.sender import Waiting
from outlast.future import Delivery, Hearing


def new_delivery(_batch: Batch) -> Delivery:
    return Delivery(Hearing())


class Engine:
    """One batch per record. `log` has every input that the I/O thread gave."""

    def __init__(self) -> None:
        self.attention = False
        self.deadline_s: float | None = None
        self.tick_s: float | None = 0.005  # the loop comes by that often; None: when it must
        self.settles_at_once = False
        self.room = True
        self.cancel_grants = False  # a wait that is given up makes room for the next
        self.commands: list[Command] = []
        self.log: list[tuple[str, Any]] = []
        self.on_append: Callable[[], None] | None = None
        self.on_tick: Callable[[float], None] | None = None
        self.waiting: list[int] = []
        self._granted: list[int] = []
        self._unsettled: list[Batch] = []
        self._settled: list[Batch] = []
        self._tickets = 0

    def append(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        timestamp_ms: int,
        now: float,
        ticket: int = 0,
    ) -> Batch | Waiting:
        if self.on_append is not None:
            self.on_append()
        if not self.room:
            self._tickets += 1
            self.waiting.append(ticket or self._tickets)
            return Waiting(self.waiting[-1], "memory")
        batch = Batch((topic, partition or 0), now)
        assert batch.builder is not None
        batch.builder.append(timestamp_ms, key, value, headers)
        batch.count = 1
        self._unsettled.append(batch)
        self.attention = True
        return batch

    def partitions_for(self, topic: str, now: float, ticket: int = 0) -> frozenset[int]:
        return frozenset({0})

    def cancel_wait(self, ticket: int, now: float) -> None:
        self.log.append(("cancel_wait", ticket))
        if self.cancel_grants:
            self.room = True
            self._granted = [t for t in self.waiting if t != ticket]

    def forget(self, ticket: int) -> None:
        self.waiting = [waiting for waiting in self.waiting if waiting != ticket]

    def keep_waiting(self, tickets: Collection[int]) -> None:
        self.log.append(("keep_waiting", len(tickets)))
        self.waiting = [ticket for ticket in self.waiting if ticket in tickets]

    def flush(self, now: float) -> list[Batch]:
        self.attention = True
        return list(self._unsettled)

    def untaken(self) -> list[Batch]:
        return list(self._settled)

    def close(self, now: float, *, fail_rest: bool) -> None:
        self.settle(fail=True)

    def settle(self, *, fail: bool = False) -> None:
        for batch in self._unsettled:
            failure = batch.failure(FailureReason("closed", None, ""), 0.0) if fail else None
            batch.result = Result(base_offset=7, failure=failure)
        self._settled += self._unsettled
        self._unsettled = []
        self.attention = True

    def grant(self) -> None:
        self.room = True
        self._granted, self.waiting = self.waiting, []
        self.attention = True

    def connected(
        self,
        connection: Connection,
        api_versions: Mapping[int, Any],
        now: float,
        features: Mapping[str, int],
    ) -> None:
        self.log.append(("connected", connection))

    def disconnected(
        self,
        connection: Connection,
        loss: Loss,
        detail: str,
        now: float,
        unsent: Collection[int] = (),
    ) -> None:
        self.log.append(("disconnected", loss))

    def responded(self, connection: Connection, token: int, response: Any, now: float) -> None:
        self.log.append(("responded", token))

    def tick(self, now: float) -> None:
        self.attention = False
        self.log.append(("tick", self.deadline_s is not None and now >= self.deadline_s))
        if self.on_tick is not None:
            self.on_tick(now)
        if self.deadline_s is not None and now >= self.deadline_s:
            self.deadline_s = None
        if self.settles_at_once:
            self.settle()
            self.attention = False

    def step(self, now: float) -> None:
        """All that it does, it does in `tick`."""
        self.tick(now)

    def take(self) -> Outbox:
        out = Outbox(
            self.commands,
            [*map(Settled, self._settled), *map(Granted, self._granted)],
        )
        self.commands, self._settled, self._granted = [], [], []
        return out

    def next_deadline(self, now: float) -> float | None:
        times = [self.deadline_s, None if self.tick_s is None else now + self.tick_s]
        return min((t for t in times if t is not None), default=None)

    def gaps(self, now: float) -> list[Gap]:
        return []
