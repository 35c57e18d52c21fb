"""Three minutes of chaos on a real Apache Kafka, by the same plan in each run; `make chaos` is for
others. And what judges it.

`TESTS_CHAOS_SEED` takes another plan, `TESTS_CHAOS_MINUTES` changes how long it goes.
"""

from __future__ import annotations

import os
import threading

import pytest

from tests.real.chaos import soak
from tests.real.chaos_plan import KINDS, plan
from tests.real.chaos_transactions import (
    ABORTED,
    COMMITTED,
    UNKNOWN,
    Made,
    Source,
    came_out_once,
)
from tests.real.committed import Values
from tests.real.kafka_cluster import RealCluster

pytestmark = pytest.mark.real

SEED = int(os.environ.get("TESTS_CHAOS_SEED") or 1)
MINUTES = float(os.environ.get("TESTS_CHAOS_MINUTES") or 3)


@pytest.mark.timeout(int(MINUTES * 60) + 600)
def test_every_promise_is_kept_whatever_happens_to_the_cluster(cluster: RealCluster) -> None:
    report = soak(cluster, MINUTES, SEED, say=print)
    assert not report.faults(), f"\n{report}"
    acked = {name: verdict.acked for name, verdict in report.safe.items()}
    assert min(acked.values()) > MINUTES * 60, "each producer was to deliver something"
    assert report.gaps, "nothing was suffered"
    for application in report.applications:
        told = f"\n{application}"
        assert application.counts["committed"] > MINUTES * 20, told
        assert application.counts["aborted"], told
        assert application.counts["fenced"], told


def test_a_plan_follows_from_its_seed_and_has_every_kind_in_turn() -> None:
    one, same, other = ([next(p) for _ in range(16)] for p in (plan(1), plan(1), plan(2)))
    assert one == same != other
    assert {step.kind for step in one[:8]} == {step.kind for step in one[8:]} == set(KINDS)
    assert all(step.node != step.other for step in one)


WHOLE: Values = [[b"0:0:a", b"0:2:c"], [b"0:1:b"], []]


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (WHOLE, ""),
        ([*WHOLE[:2], [b"2:0:x", b"2:1:y"]], ""),  # nobody was told: it may be there
        ([[], *WHOLE[1:]], "transaction 0 (committed, 3 records): 1 are seen"),
        ([*WHOLE[:2], [b"1:0:x"]], "of transaction 1 (aborted, 2 records) is seen"),
        ([*WHOLE[:2], [b"2:1:y"]], "1 are seen, a part of it"),
        ([WHOLE[0], [b"0:0:a"], WHOLE[2]], "b'0:0:a' is seen 2 times"),
        ([WHOLE[0][::-1], *WHOLE[1:]], "b'0:0:a' is seen behind (0, 2)"),
    ],
)
def test_the_judge_of_transactions_sees_what_is_wrong(seen: Values, found: str) -> None:
    application = Source([], "judged", "t", threading.Event(), "1")
    application.made = [Made(0, 3, COMMITTED), Made(1, 2, ABORTED), Made(2, 2, UNKNOWN)]
    findings = "; ".join(application.findings(seen))
    assert found in findings
    assert bool(findings) == bool(found)


@pytest.mark.parametrize(
    ("out", "same"),
    [
        ([b"0:0:0:0:a", b"3:0:0:2:c"], True),
        ([b"3:0:0:2:c", b"3:1:0:0:a"], False),
        ([b"0:0:0:0:a"], False),
        ([b"0:0:0:0:a", b"3:0:0:2:c", b"4:0:0:2:c"], False),
    ],
)
def test_what_went_in_came_out_once_and_in_order(out: list[bytes], same: bool) -> None:
    assert (list(came_out_once([WHOLE[0]], [out])) == []) is same
