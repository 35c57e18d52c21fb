"""The gap table: everything that is asked of it, in 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from outlast.cli.tables import LEGEND, gap_table
from outlast.engine.messages import Cause, Gap, GapEnd, GapOutcome, Phase, Stall, StallEnd


def gap(partition: int, **changes: object) -> Gap:
    values: dict[str, object] = {
        "topic": "orders",
        "partition": partition,
        "number": 1,
        "cause": Cause.NOT_ENOUGH_REPLICAS,
        "trigger": "NOT_ENOUGH_REPLICAS",
        "begin_s": 103.012,
        "begin_unix_s": 0.0,
        "duration_s": 12.346,
        "phase": None,
        "detecting_s": 0.5,
        "unavailable_s": 11.046,
        "reconnecting_s": 0.3,
        "resuming_s": 0.5,
        "attempts": 14,
        "old_leader": 1,
        "old_leader_epoch": 10,
        "new_leader": 3,
        "new_leader_epoch": 11,
        "ended_by": GapEnd.ACK,
        "outcome": GapOutcome.ABSORBED,
    }
    return Gap(**{**values, **changes})


def stall(partition: int, **changes: object) -> Stall:
    values: dict[str, object] = {
        "topic": "orders",
        "partition": partition,
        "number": 1,
        "node_id": 2,
        "lane": "slow",
        "reason": "follower",
        "begin_s": 105.5,
        "begin_unix_s": 0.0,
        "duration_s": 3.002,
        "ended_by": StallEnd.ACK,
    }
    return Stall(**{**values, **changes})


def shown(gaps: list[Gap], width: int = 80, stalls: list[Stall] | None = None) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(gap_table(gaps, stalls or [], "orders", range(3), start_s=100.0))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_gap_in_two_lines(width: int) -> None:
    page = shown([gap(1)], width)
    lines = [line.split() for line in page.splitlines()]
    assert ["orders-0", "no", "gap"] in lines
    row = lines.index(
        "orders-1 3,012 12,346 500 11,046 300 500 1 → 3 absorbed".split()  # noqa: SIM905
    )
    assert lines[row + 1] == ["not_enough_replicas", "10", "→", "11", "14"]
    assert "…" not in page


def test_gaps_of_a_partition_come_in_order_of_their_begin() -> None:
    page = shown([gap(1, begin_s=110.0), gap(1, begin_s=101.0), gap(7)])
    assert page.index("1,000") < page.index("10,000")
    assert "orders-7" not in page


@pytest.mark.parametrize("width", [80, 200])
def test_a_stall_stands_among_the_gaps_of_its_partition_and_has_no_phases(width: int) -> None:
    page = shown(
        [gap(1), gap(1, begin_s=109.0)], width, [stall(1), stall(2, ended_by=None, lane="open")]
    )
    lines = [line.split() for line in page.splitlines()]
    row = lines.index(["orders-1", "5,500", "3,002", "2", "waited"])
    assert lines[row + 1] == ["stall:", "follower", "slow", "lane"]
    assert lines[row - 2][:2] == ["orders-1", "3,012"]
    assert lines[row + 2][:2] == ["orders-1", "9,000"]
    assert ["orders-2", "5,500", "3,002", "2", "open"] in lines
    assert ["stall:", "follower", "open", "lane"] in lines
    assert ["orders-0", "no", "gap"] in lines
    assert ["orders-2", "no", "gap"] not in lines
    assert "…" not in page


def test_a_gap_that_is_open_or_unsettled_says_so() -> None:
    page = shown(
        [
            gap(0, phase=Phase.UNAVAILABLE, ended_by=None, outcome=None, new_leader=-1),
            gap(1, outcome=None),
            gap(2, outcome=GapOutcome.REPORTED),
        ]
    )
    words = page.split()
    assert {"open", "unsettled", "reported"} <= set(words)
    assert "1 → –" in page


def test_the_legend_names_every_phase() -> None:
    assert all(phase.value in LEGEND for phase in Phase)
