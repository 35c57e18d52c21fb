"""Each code that a Produce answer can carry, once, five times and for a while, at the head of a
pipeline and behind it: the ledger holds, and afterwards that and every other partition delivers.
"""

from __future__ import annotations

import pytest

from outlast.engine.messages import Outcome
from outlast.testing.faults import Error, ErrorAfter
from tests.sim.stories import load, simulation

CODES = (
    *(-1, 2, 3, 5, 6, 7, 8, 9, 10, 13, 14, 17, 18, 19, 20, 21, 29, 31, 32, 42, 43, 44),
    *(45, 47, 49, 51, 53, 56, 59, 72, 74, 75, 76, 87, 89, 90, 100, 103, 120, 999),
)
NEVER_AGAIN = {17, 21, 29, 31, 32, 42, 43, 44, 76, 87}  # these records will never be accepted


def story(code: int, fault_class: type, times: int | None, interval_s: float):
    """Errors on one partition from 0.5 s on, a second of records; then one more for each."""
    sim = simulation(
        abs(code) + 1, delivery_timeout_ms=2000, request_timeout_ms=1000, retry_backoff_ms=20
    )
    load(sim, interval_s=interval_s, count=int(1.0 / interval_s))
    until_s = 2.0 if times is None else float("inf")
    fault = fault_class(code=code, topic="t", partition=0, times=times, until_s=until_s)
    sim.at(0.5, lambda: sim.cluster.faults.append(fault))
    sim.run_until(sim.all_settled, 60.0)
    sim.check()
    assert fault.used > 0, "the story never met its fault"
    last = [sim.send("t", partition) for partition in (0, 1, 2)]
    sim.run_until(sim.all_settled, 10.0)
    sim.check()
    assert [future.entry.outcome for future in last] == ["acked"] * 3
    assert {e.outcome for e in sim.ledger.entries if e.partition != 0} == {"acked"}
    return sim


@pytest.mark.parametrize("times", [1, 5, None], ids=["once", "five times", "for a while"])
@pytest.mark.parametrize("code", CODES)
def test_a_refusal(code: int, times: int | None):
    """Nothing was appended; 2 ms between records, so that five batches are in flight."""
    sim = story(code, Error, times, interval_s=0.002)
    told = {e.outcome for e in sim.ledger.entries if e.partition == 0}
    if code in NEVER_AGAIN:
        assert Outcome.NOT_ACCEPTED.value in told
    elif times == 1 and code not in (10, 18, 999):
        assert told == {"acked"}, "one passing error is absorbed"


@pytest.mark.parametrize("times", [1, 5, None], ids=["once", "five times", "for a while"])
@pytest.mark.parametrize("code", [-1, 3, 6, 7, 19, 20, 45, 56, 87])
def test_a_refusal_of_what_was_appended(code: int, times: int | None):
    sim = story(code, ErrorAfter, times, interval_s=0.002)
    told = {e.outcome for e in sim.ledger.entries if e.partition == 0}
    assert Outcome.NEVER_SENT.value not in told or times is None
