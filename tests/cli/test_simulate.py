"""`outlast simulate`: what it tells of many seeds and of one, and its exit code."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from outlast.cli import simulate
from outlast.cli.app import app
from outlast.testing.swarm import Report


@pytest.fixture
def outlast(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *arguments: CliRunner().invoke(app, ["simulate", *arguments])


def rows(output: str) -> dict[str, str]:
    """The summary's rows, by their first word."""
    lines = [line.split(None, 1) for line in output.splitlines()]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def test_a_range_of_seeds_is_summed_up(outlast):
    run = outlast("--seeds", "1:12")
    assert run.exit_code == 0, run.output
    told = rows(run.output)
    assert told["seeds"].startswith("12 in ")
    failovers, per_minute = told["failovers"].split(" (")
    assert int(failovers.replace(",", "")) > 12
    assert per_minute.rstrip().endswith(" a minute)")
    assert "acked" in told["records"]
    assert "connection_lost" in told["gaps"]
    assert "stalls" in told
    assert "p50" in told["client's"]
    assert "Nothing lost, doubled, out of order or told wrongly." in run.output


def test_two_processes_find_what_one_does(outlast):
    def figures(*arguments: str) -> list[str]:
        told = rows(outlast("--seeds", "3:8", *arguments).output)
        return [told[row] for row in ("records", "accidents", "gaps", "stalls", "client's")]

    assert figures() == figures("--jobs", "2")


def test_one_seed_is_replayed_with_its_digest(outlast):
    brief, long = outlast("--seed", "5"), outlast("--seed", "5", "--trace")
    assert brief.exit_code == long.exit_code == 0
    ending = brief.output.splitlines()[-3:]
    assert ending[-1].strip() == "nothing wrong"
    assert ending[-2].split()[0] == "digest"
    assert long.output.splitlines()[-3:] == ending
    assert len(long.output.splitlines()) > 100


def test_transactions_are_summed_up_by_how_they_ended(outlast):
    run = outlast("--transactions", "--seeds", "1:8")
    assert run.exit_code == 0, run.output
    told = rows(run.output)
    total, endings = told["transactions"].split(": ")
    counts = dict(word.rsplit(None, 1) for word in endings.split(" · "))
    assert set(counts) <= {"committed", "aborted", "fenced", "timed out", "failed", "unknown"}
    assert int(counts["committed"].replace(",", "")) >= 8
    assert int(counts["aborted"]) > 0
    assert sum(int(count.replace(",", "")) for count in counts.values()) == int(
        total.replace(",", "")
    )
    assert "TimeoutError" in told["calls"]
    assert int(told["coordinators"].split()[0]) > 0
    assert "Nothing lost, doubled, out of order or in halves or told wrongly." in run.output


def test_transactions_of_one_seed_are_replayed_as_such(outlast):
    brief, long = (outlast("--transactions", "--seed", "5", *more) for more in ((), ("--trace",)))
    assert brief.exit_code == long.exit_code == 0
    assert "transactions: " in brief.output
    assert long.output.endswith(brief.output)
    assert "EndTxn" in long.output


def broken(seed: int, *, trace: bool = False) -> Report:
    tale = ["    1.000000 kill 1", "    1.500000 cluster: node 2 leads t-0"]
    findings = ["t-0: record 4 was acknowledged at 7 and is in no log"] if seed == 3 else []
    return Report(seed, "a world", findings, tale=tale if trace else [])


@pytest.mark.parametrize(
    ("run_of_seed", "kind"), [("run_seed", ()), ("run_transactions", ("--transactions",))]
)
def test_a_finding_is_told_with_its_seed_and_story_and_ends_in_1(
    outlast, monkeypatch, run_of_seed, kind
):
    monkeypatch.setattr(simulate, run_of_seed, broken)
    run = outlast(*kind, "--seeds", "1:5")
    assert run.exit_code == 1
    assert "seed 3: t-0: record 4 was acknowledged at 7 and is in no log" in run.output
    assert "1 seeds found something: 3" in run.output
    assert "The story of seed 3:" in run.output
    assert "1.000000 kill 1" in run.output
    assert outlast(*kind, "--seeds", "1:2").exit_code == 0
    assert outlast(*kind, "--seed", "3").exit_code == 1


@pytest.mark.parametrize("seeds", ["5:1", "x", "1:2:3", "-1:4", ""])
def test_what_is_no_range_is_refused_by_name(outlast, seeds):
    run = outlast(f"--seeds={seeds}")
    assert run.exit_code == 2
    assert "is no range of seeds" in run.output


def test_trace_wants_one_seed(outlast):
    assert outlast("--trace").exit_code == 2
