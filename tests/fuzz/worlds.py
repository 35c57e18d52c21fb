"""A small world whose brokers' answers are spoilt, one byte at a time, and what was then said.

Two partitions are led by node 1, whose answers are spoilt, a third by node 2, whose are not: what
happens to node 1's connection must not be felt there. Time is virtual.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outlast.engine.messages import ConnectionLost, Loss
from outlast.testing.faults import Garble
from outlast.testing.simulation import Simulation
from outlast.testing.wire import WireRequest
from tests.sim.stories import CALM, simulation

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22
SPOILT, SOUND = 1, 2  # nodes
LED = {0: SPOILT, 1: SPOILT, 2: SOUND}
PRODUCE_VERSIONS = (3, 7, 8, 9, 10, 12, 13)  # each layout of the answer, but for the newest fields


def world(seed: int, api: int = PRODUCE, version: int | None = None, **options: Any) -> Simulation:
    """Nothing is sent yet. `version`: the newest that brokers know of this API."""
    ranges = {} if version is None else {api: (0, version)}
    if api == METADATA and version is not None and version < 10:  # no topic ids yet
        ranges[PRODUCE] = (0, 12)
    return simulation(
        seed,
        assignment={"t": [[1, 2, 3], [1, 2, 3], [2, 3, 1]]},
        cluster=replace(CALM, api_versions=ranges, creation_deny_p=0.0),
        request_timeout_ms=1000,
        delivery_timeout_ms=5000,
        linger_ms=2,
        **options,
    )


def send_each(sim: Simulation) -> None:
    """A record to each partition, in one request to each leader."""
    for partition in LED:
        sim.send("t", partition)


def answers(sim: Simulation, api: int) -> list[WireRequest]:
    """Answers that this host could read, oldest first; of Produce, those of the spoilt node."""
    asked = (r for r in sim.network.requests if r.api_key == api)
    mine = (r for r in asked if api != PRODUCE or r.node_id == SPOILT)
    return [request for request in mine if request.answered_at is not None]


def losses(sim: Simulation) -> list[tuple[int, Loss]]:
    """The connections that were lost, by node (negative: not known yet)."""
    lost = (fact for fact in sim.facts if isinstance(fact, ConnectionLost))
    return [(fact.connection.node_id, fact.loss) for fact in lost]


def cut(keep: int, api: int) -> Garble:
    """The next answer of this API is cut: of Produce the spoilt node's, else whoever's."""
    return Garble(api=api, node=SPOILT if api == PRODUCE else None, keep=keep, times=1)


def flipped(byte: int, mask: int, api: int) -> Garble:
    """In that answer one byte is another."""
    return Garble(api=api, node=SPOILT if api == PRODUCE else None, flip=byte, mask=mask, times=1)
