"""Makes the tables and pictures of docs/performance.md from the lines that runs have left.

    python -m benchmarks.report                      # what is in .bench
    python -m benchmarks.report --results FOLDER

A table stands between two marks; what was not measured stays as it is. Lines of short runs are
refused: their figures are no figures. benchmarks/failover.py makes its own from `failover.jsonl`,
and benchmarks/in_short.py that of the README from this and `neighbours.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import failover, in_short, summary
from benchmarks.run import RESULTS, ROOT
from benchmarks.scenarios import FULL, SCENARIOS, Scenario
from benchmarks.summary import Run

PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
PICTURES = ROOT / "docs" / "performance"


def put(name: str, text: str, path: Path = PAGE) -> None:
    """Put a table, or whatever text, between the marks of that name."""
    page = path.read_text(encoding="utf-8")
    begin, end = f"<!-- table: {name} (make bench) -->", "<!-- end -->"
    marks = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    made, count = marks.subn(lambda _: f"{begin}\n{text}\n{end}", page)
    if count != 1:
        raise ValueError(f"{path.name} needs one pair of marks {begin} … {end}")
    path.write_text(made, encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def read(results: Path, scenario: Scenario) -> list[Run]:
    """The scenario's runs; none if it was not measured.

    Raises:
        SystemExit: one was short, or does not say that it was not.
    """
    path = results / f"{scenario.name}.jsonl"
    if not path.exists():
        return []
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if any(run.get("short", True) for run in runs):
        raise SystemExit(f"{path} has lines of short runs: take it away, or measure it again")
    return runs


def _lines(path: Path) -> list[Run]:
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def figures(scenario: Scenario, runs: Sequence[Run]) -> str:
    """The scenario's table."""
    lines = summary.table(scenario, runs)
    return table(lines[0], lines[1:]) if lines else "Not measured."


def targets(measured: Sequence[tuple[Scenario, list[Run]]]) -> str:
    """Every target: what is wanted, what was found."""
    verdicts = [v for scenario, runs in measured for v in summary.verdicts(scenario, runs)]
    rows = [
        (
            v.target.words,
            v.target.variant,
            v.target.client,
            v.against,
            v.wanted,
            v.found,
            f"**{v.word}**",
        )
        for v in verdicts
    ]
    return table(("figure", "where", "client", "against", "wanted", "found", ""), rows)


def versions(measured: Sequence[tuple[Scenario, list[Run]]]) -> str:
    """The clients that ran."""
    found = {r["client"]: r["version"] for _, runs in measured for r in runs}
    ours = ("outlast", "confluent-kafka-batch")  # that one is a way to call another
    others = [f"{name} {said}" for name, said in found.items() if not name.startswith(ours)]
    return ", ".join(sorted(others)) + "."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    results = parser.parse_args().results
    measured = [(scenario := make(FULL), read(results, scenario)) for make in SCENARIOS.values()]
    if any(runs for _, runs in measured):
        put("targets", targets(measured))
        put("versions", versions(measured))
    for scenario, runs in measured:
        if runs and scenario.curve is None:
            put(scenario.name, figures(scenario, runs))
    failovers, neighbours = (_lines(results / f"{n}.jsonl") for n in ("failover", "neighbours"))
    if failovers:
        put("failover", failover.tables(failovers))
        put("in short", in_short.table(failovers, neighbours), README)
    from benchmarks import plots  # what draws is installed with the extra `bench` alone

    found = {scenario.name: (scenario, runs) for scenario, runs in measured if runs}
    if "throughput" in found:
        label, path = "µs of CPU per record", PICTURES / "throughput.svg"
        plots.bars(*found["throughput"], "us_per_record", label, path)
    if "latency" in found:
        plots.bars(*found["latency"], "p99_ms", "p99, ms", PICTURES / "latency.svg")
    drawn = {name: one for name, one in found.items() if one[0].curve is not None}
    if drawn:
        plots.curves(drawn, PICTURES / "cost.svg")


if __name__ == "__main__":
    main()
