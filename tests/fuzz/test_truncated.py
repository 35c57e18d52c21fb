"""Every answer cut at every byte: its connection ends, its batches are unsure, others go on."""

from __future__ import annotations

import pytest

from outlast.engine.messages import Loss
from tests.fuzz.worlds import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    PRODUCE_VERSIONS,
    SPOILT,
    answers,
    cut,
    losses,
    send_each,
    world,
)
from tests.sim.stories import attempts_of

pytestmark = pytest.mark.virtual


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_cut_produce_answer_drops_its_connection_and_leaves_its_batches_unsure(version: int):
    sim = world(1, PRODUCE, version)
    send_each(sim)
    sim.run_until(sim.all_settled, 10.0)
    whole = len(answers(sim, PRODUCE)[-1].answer)
    assert answers(sim, PRODUCE)[-1].api_version == version
    for keep in range(whole):
        sim.cluster.faults.append(cut(keep, PRODUCE))
        send_each(sim)
        sim.run_until(sim.all_settled, 10.0)
        assert losses(sim)[keep:] == [(SPOILT, Loss.BAD_BYTES)], keep
    verdict = sim.check()  # what was unsure went again under its old number
    assert (verdict.acked, verdict.failed) == (3 * (whole + 1), 0)
    assert len(attempts_of(sim, 0)) == len(attempts_of(sim, 1)) == 2 * whole + 1
    assert len(attempts_of(sim, 2)) == whole + 1


@pytest.mark.parametrize(
    ("api", "version"),
    [
        *((METADATA, version) for version in (4, 8, 9, 10, 12, 13)),
        *((INIT_PRODUCER_ID, version) for version in (1, 2, 5)),
        *((API_VERSIONS, version) for version in (2, 3, 4)),
    ],
)
def test_any_other_cut_answer_drops_its_connection_and_nothing_else(api: int, version: int):
    sim = world(1, api, version)
    send_each(sim)
    sim.run_until(sim.all_settled, 10.0)
    read = answers(sim, api)
    assert read[-1].api_version == version
    for keep in range(len(read[0].answer)):
        sim = world(1, api, version)
        sim.cluster.faults.append(cut(keep, api))
        send_each(sim)
        sim.run_until(sim.all_settled, 10.0)
        assert [loss for _, loss in losses(sim)] == [Loss.BAD_BYTES], keep
        verdict = sim.check()
        assert (verdict.acked, verdict.failed) == (3, 0), keep
