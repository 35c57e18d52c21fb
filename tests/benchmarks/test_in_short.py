"""The README's table: medians, and who never came back."""

from __future__ import annotations

from typing import Any

from benchmarks import in_short


def run(client: str, variant: str, **figures: Any) -> dict[str, Any]:
    return {"client": client, "variant": variant, **figures}


def cells(line: int, text: str) -> list[str]:
    return [cell.strip() for cell in text.splitlines()[2 + line].strip("|").split("|")][1:]


def test_a_cell_is_the_median_of_its_client_alone() -> None:
    lines = [run("outlast", "Kafka, SIGTERM", gap_ms=gap) for gap in (90, 80, 700)]
    lines += [run("java", "Kafka, SIGTERM", gap_ms=1234.0), run("java", "mock, SIGTERM", gap_ms=9)]
    assert cells(0, in_short.table(lines, [])) == ["0.09 s", "–", "–", "–", "1.2 s"]


def test_who_has_no_ack_in_most_runs_never_came_back() -> None:
    silent = "Kafka, SIGSTOP, SIGCONT"
    lines = [run("aiokafka", silent), run("aiokafka", silent, over_ms=3.0)]
    text = in_short.table(lines, [])
    assert cells(2, text)[2] == "never"


def test_neighbours_are_seconds() -> None:
    lines = [{"client": "kafka-python", "untouched_s": 9.24}]
    assert cells(3, in_short.table([], lines))[1] == "9.2 s"
