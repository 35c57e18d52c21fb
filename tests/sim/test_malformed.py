"""Answers that decode and are nonsense: any field may hold any value, lists may lack or repeat.

An exception out of the engine would end the I/O thread, and with it every partition. So nothing may
raise; and once the brokers talk sense again, what was taken settles and the next record arrives.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, cast

import pytest
from kafka.protocol.data_container import DataContainer

from outlast.engine.messages import Connection
from outlast.engine.sender import Sender
from tests.sim.stories import simulation

NUMBERS = (-1, 0, 1, 2, 3, 6, 7, 19, 45, 47, 999, 2**31 - 1, -(2**31))
NONSENSE_UNTIL_S = 3.0


def fields_of(part: DataContainer) -> list[str]:
    """Names of a container's fields, as `repr` and `to_dict` know them."""
    return list(part.to_dict(json=False))


def parts(answer: DataContainer) -> Iterator[DataContainer]:
    """The answer and all containers in it."""
    yield answer
    for name in fields_of(answer):
        value = getattr(answer, name, None)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, DataContainer):
                yield from parts(item)


def spoil(answer: DataContainer, rng: random.Random) -> None:
    """Put another value of the same type into one field."""
    part = rng.choice(list(parts(answer)))
    name = rng.choice(fields_of(part))
    value = getattr(part, name, None)
    spoilt: Any
    match value:
        case bool():
            spoilt = not value
        case int():
            spoilt = rng.choice((*NUMBERS, value + 1))
        case str():
            spoilt = rng.choice(("", "t", value + "x", None))
        case list():
            spoilt = rng.choice(([], value + value, value[:-1], None))  # a length of -1 is None
        case _:
            return
    if name == "throttle_time_ms":
        spoilt = rng.choice((-5, 0, 200))  # it would be honoured
    setattr(part, name, spoilt)


class ToldNonsense:
    """An engine whose answers are spoilt on their way to it."""

    def __init__(self, sender: Sender, rng: random.Random) -> None:
        self._sender, self._rng = sender, rng
        self.spoilt = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)

    def responded(self, connection: Connection, token: int, response: Any, now: float) -> None:
        while now < NONSENSE_UNTIL_S and self._rng.random() < 0.4:
            spoil(response, self._rng)
            self.spoilt += 1
        self._sender.responded(connection, token, response, now)


@pytest.mark.parametrize("seed", range(30))
def test_nonsense_raises_nothing_and_is_survived(seed: int) -> None:
    rng = random.Random(seed)
    sim = simulation(
        seed, topics={"t": 2, "u": 1}, request_timeout_ms=1000, delivery_timeout_ms=3000
    )
    told = ToldNonsense(sim.sender, rng)
    sim.sender = cast("Sender", told)
    for topic, partition in sim.partitions():
        sim.send_every(partition, 0.02, 150, topic=topic)
    sim.at(0.7, lambda: sim.move_leader(0))
    sim.at(1.2, lambda: sim.kill(2))
    sim.at(1.9, lambda: sim.start(2))
    sim.run_until(sim.all_settled, 60.0)
    assert told.spoilt > 20
    # a topic id that was made up ranks the true one among the replaced ones, until brokers have
    # insisted on it for ten seconds (merge rule 5)
    for topic, partition in sim.partitions():
        sim.send_every(partition, 0.25, 80, topic=topic)
    sim.run_until(sim.all_settled, 60.0)
    last = [sim.send(topic, partition) for topic, partition in sim.partitions()]
    sim.run_until(sim.all_settled, 30.0)
    assert [future.entry.outcome for future in last] == ["acked"] * 3
