"""What the benchmarks make of their runs: medians, ratios of the same round, met or not."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import clusters, summary
from benchmarks.clients import CLIENTS, Settings, lacking
from benchmarks.run import RunError, checked
from benchmarks.scenarios import FULL, SCENARIOS, SHORT, Target


def run(client: str, number: int, figure: float, variant: str = "mock") -> dict[str, Any]:
    return {"variant": variant, "client": client, "run": number, "records_per_s": figure}


RUNS = [
    *(run("outlast", number, figure) for number, figure in enumerate((500.0, 100.0, 600.0))),
    *(run("kafka-python", number, figure) for number, figure in enumerate((100.0, 50.0, 100.0))),
]


def target(**bounds: Any) -> Target:
    return Target("records/s", "mock", "records_per_s", **{"against": "kafka-python", **bounds})


def test_a_ratio_is_that_of_two_runs_of_the_same_round() -> None:
    verdict = summary.verdict(target(at_least=5.0), RUNS)
    assert verdict.figure == summary.Spread(5.0, 2.0, 6.0)
    assert (verdict.found, verdict.wanted, verdict.word) == ("5 (2–6) ×", "≥ 5 ×", "met")


@pytest.mark.parametrize(
    ("bounds", "met"),
    [
        ({"at_least": 5.1}, False),
        ({"at_most": 5.0}, True),
        ({"at_most": 4.9}, False),
        ({"at_least": 500.0, "against": None}, True),
        ({"at_most": 499.0, "against": None}, False),
        ({"at_most": 1.0, "slack": 500.0}, True),  # too close to tell them apart
    ],
)
def test_met_or_not(bounds: dict[str, Any], met: bool) -> None:
    verdict = summary.verdict(target(**bounds), RUNS)
    assert verdict.met is met
    assert verdict.word == ("met" if met else "NOT met")


def test_what_was_not_measured_is_not_met() -> None:
    verdict = summary.verdict(target(at_least=0.0, against="aiokafka"), RUNS)
    assert not verdict.met
    assert verdict.found == "not measured"


def test_a_run_that_failed_is_told_and_counts_for_nothing() -> None:
    scenario = SCENARIOS["round-trip"](FULL)
    failed = {"variant": "20 ms", "client": "outlast", "run": 0, "failed": "it ended early"}
    told = summary.told(scenario, [failed])
    assert "FAILED 20 ms, outlast: it ended early" in told
    assert summary.rows(scenario, [failed]) == []


@pytest.mark.parametrize("scale", [FULL, SHORT])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_target_is_about_cases_that_are_measured(name: str, scale: Any) -> None:
    scenario = SCENARIOS[name](scale)
    measured = {(case.variant, case.client) for case in scenario.cases}
    for one in scenario.targets:
        assert (one.variant, one.client) in measured
        other = one.against_variant or one.variant, one.against
        assert one.against is None or other in measured


@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_client_sends_is_counted(client: str) -> None:
    if why := lacking(client):
        pytest.fail(why)
    with clusters.mock() as mock:
        mock.create_topic("counted", 3)
        producer = CLIENTS[client](Settings(mock.bootstrap, linger_ms=1))
        producer.send_all("counted", [b"v"] * 7, [b"k"] * 7)
        producer.send_all("counted", [b"v"] * 5, partitions=2)
        producer.flush(20.0)
        producer.close()
        checked({"sent": 12}, mock.bootstrap, "counted")
        with pytest.raises(RunError, match="13 records sent, 12 in the topic"):
            checked({"sent": 13}, mock.bootstrap, "counted")
