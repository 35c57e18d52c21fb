"""What the failover benchmark makes of its lines, and one failover of it, on the mock cluster."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import failover


def line(client: str, number: int, event: str, **figures: Any) -> dict[str, Any]:
    counts = dict.fromkeys(failover.COUNTS, 0)
    return {"variant": f"Kafka, {event}", "client": client, "run": number, **counts, **figures}


def test_a_row_has_medians_sums_and_what_never_came() -> None:
    lines = [
        line("java", 0, "SIGKILL", gap_ms=8000.4, over_ms=60.0, lost=1),
        line("java", 1, "SIGKILL", gap_ms=9000.0, over_ms=40.0, lost=2),
        line("java", 2, "SIGKILL", gap_ms=99000.0),
    ]
    told = failover.tables(lines)
    assert (
        "| Kafka, SIGKILL | java | 9,000 (8,000–99,000) | 50 (40–60), 1 never | – | 3 | 0" in told
    )


@pytest.mark.parametrize(("ours_ms", "word"), [(80.0, "met"), (120.0, "NOT met")])
def test_an_ordered_stop_is_held_to_the_java_client(ours_ms: float, word: str) -> None:
    lines = [
        line("outlast", 0, "SIGTERM", gap_ms=ours_ms),
        line("java", 0, "SIGTERM", gap_ms=100.0),
    ]
    (row,) = [row for row in failover.tables(lines).splitlines() if row.startswith("| gap |")]
    assert row.endswith(f"| **{word}** |")


@pytest.mark.slow
@pytest.mark.timed
def test_a_leader_is_moved_on_the_mock() -> None:
    words = [
        "--clusters",
        "mock",
        "--events",
        "move",
        "--groups",
        "outlast,aiokafka",
        "--rate",
        "100",
    ]
    ours, theirs = failover.measure("mock", failover.parse([*words, "--rounds", "1"]))
    assert [ours["client"], theirs["client"]] == ["outlast", "aiokafka"]
    for told in (ours, theirs):
        assert told["sent"] > 0
        assert {what: told[what] for what in failover.COUNTS} == dict.fromkeys(failover.COUNTS, 0)
    assert ours["gap_ms"] < theirs["gap_ms"]  # ours takes the hint, the other backs off for 100 ms
