"""Every byte of every answer made another: whatever it then says, nothing hangs, nobody else feels
it, and nothing is told delivered that is not.

Theory. No checksum covers an answer, so a changed byte can be a believable lie: a refused batch is
said to be written, or the reverse. That is told apart by what kafka-python reads in the spoilt
answer: exactly one code for each partition, and a wrong one. Everything else must be seen through:
an answer that does not decode, that lacks a partition, names one twice or one that was not asked.
Of offsets nothing is demanded, and a throttle time is believed.
"""

from __future__ import annotations

from collections import Counter
from io import BytesIO

import pytest
from kafka.protocol.producer import ProduceResponse

from outlast.engine.messages import Loss
from outlast.testing.faults import Error
from outlast.testing.simulation import Simulation
from outlast.testing.wire import WireRequest
from tests.fuzz.masks import masks
from tests.fuzz.worlds import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    SOUND,
    answers,
    flipped,
    losses,
    send_each,
    world,
)

pytestmark = pytest.mark.virtual

REFUSED = 19  # not enough replicas: tried again
SETTLED_S = 30.0
BUSY_S = 0.5  # the sound node's acks go on meanwhile
HARMLESS = (" but is at ", "without its offset")  # findings about offsets


def settled_world(version: int) -> Simulation:
    """Connections stand, each partition has a record."""
    sim = world(1, PRODUCE, version)
    send_each(sim)
    sim.run_until(sim.all_settled, 10.0)
    return sim


def read(request: WireRequest) -> ProduceResponse:
    answer = BytesIO(request.answer)
    return ProduceResponse.decode(answer, version=request.api_version, header=True)


def codes(answer: ProduceResponse, request: WireRequest) -> list[list[int]]:
    """What it says of partitions 0 and 1: a code for each time that they are named."""
    asked = {topic.name for topic in answer.responses or ()} if request.api_version < 13 else set()
    named = [topic for topic in answer.responses or () if topic.name == "t" or not asked]
    told = [entry for topic in named for entry in topic.partition_responses or ()]
    return [[entry.error_code for entry in told if entry.index == index] for index in (0, 1)]


def serious(sim: Simulation) -> list[str]:
    return [f for f in sim.judge().findings if not any(words in f for words in HARMLESS)]


@pytest.mark.parametrize("version", [9, 12, 13])
@pytest.mark.parametrize("refused", [None, 0, 1])
def test_a_spoilt_produce_answer(version: int, refused: int | None):
    """Of a request with two partitions; `refused` one of them was."""
    length = len(answers(settled_world(version), PRODUCE)[-1].answer)
    met = Counter[str]()
    for byte in range(length):
        for mask in masks(byte, f"produce {version} {refused}"):
            met[_spoil_produce(version, refused, byte, mask)] += 1
    assert min(met["unread"], met["nonsense or harmless"], met["lie"]) > 0, met


def _spoil_produce(version: int, refused: int | None, byte: int, mask: int) -> str:
    """One spoilt byte; what it was taken for."""
    where = f"byte {byte} ^ {mask:#x}"
    sim = settled_world(version)
    if refused is not None:
        sim.cluster.faults.append(Error(REFUSED, topic="t", partition=refused, times=1))
    sim.cluster.faults.append(flipped(byte, mask, PRODUCE))
    before, since = len(answers(sim, PRODUCE)), len(sim.ledger.entries)
    send_each(sim)
    sim.run_until(sim.all_settled, SETTLED_S)
    assert SOUND not in {node for node, _ in losses(sim)}, where
    others = [entry for entry in sim.ledger.entries[since:] if entry.partition == 2]
    assert all(e.outcome == "acked" and e.settled_at - e.sent_at < BUSY_S for e in others), where
    if losses(sim):
        assert [loss for _, loss in losses(sim)] == [Loss.BAD_BYTES], where
        assert serious(sim) == [], where
        return "unread"
    request = answers(sim, PRODUCE)[before]
    answer = read(request)
    said = codes(answer, request)
    truth = [[REFUSED if index == refused else 0] for index in (0, 1)]
    lies = [s for s, true in zip(said, truth, strict=True) if s != true and len(s) == 1]
    if not lies:
        assert serious(sim) == [], (where, said)
    assert [0] in lies or sim.judge().lost == 0, (where, said)
    assert sim.judge().out_of_order == 0, (where, said)
    if answer.throttle_time_ms <= 0:
        send_each(sim)
        sim.run_until(sim.all_settled, SETTLED_S)
        assert {entry.outcome for entry in sim.ledger.entries[-3:]} == {"acked"}, (where, said)
    return "lie" if lies else "nonsense or harmless"


@pytest.mark.parametrize(
    ("api", "version"),
    [(METADATA, 9), (METADATA, 13), (INIT_PRODUCER_ID, 5), (API_VERSIONS, 4), (API_VERSIONS, 2)],
)
def test_any_other_spoilt_answer_delays_at_most(api: int, version: int):
    """The first one, when nothing else is known: whatever it says, records that are told delivered
    are, once and in order, and those sent later are delivered.
    """
    calm = world(1, api, version)
    send_each(calm)
    calm.run_until(calm.all_settled, 10.0)
    for byte in range(len(answers(calm, api)[0].answer)):
        for mask in masks(byte, f"{api} {version}"):
            where = f"byte {byte} ^ {mask:#x}"
            sim = world(1, api, version)
            sim.cluster.faults.append(flipped(byte, mask, api))
            send_each(sim)
            sim.run_until(sim.all_settled, SETTLED_S)
            assert serious(sim) == [], where
            send_each(sim)
            sim.run_until(sim.all_settled, SETTLED_S)
            assert {entry.outcome for entry in sim.ledger.entries[-3:]} == {"acked"}, where
