"""What the benchmarks make of their runs: medians, ratios of the same round, met or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import clusters, report, summary
from benchmarks.clients import CLIENTS, Settings, lacking
from benchmarks.run import RunError, checked, filled
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
        ({"at_most": 1.0, "slack": 400.0}, True),  # 400, 50 and 500 more
        ({"at_most": 1.0, "slack": 399.0}, False),
    ],
)
def test_met_or_not(bounds: dict[str, Any], met: bool) -> None:
    verdict = summary.verdict(target(**bounds), RUNS)
    assert verdict.met is met
    assert verdict.word == ("met" if met else "NOT met")


def test_with_slack_both_figures_are_told_and_may_be_nothing() -> None:
    runs = [run("outlast", 0, 0.002), run("kafka-python", 0, 0.0)]
    verdict = summary.verdict(target(at_most=1.0, slack=0.001), runs)
    assert (verdict.found, verdict.wanted) == ("0.002 against 0", "no more than 0.001 above")
    assert verdict.word == "NOT met"


@pytest.mark.parametrize(("elsewhere", "met"), [(90.0, True), (110.0, False)])
def test_another_is_held_to_the_better_of_its_settings(elsewhere: float, met: bool) -> None:
    runs = [*RUNS, *(run("kafka-python", n, elsewhere, "mock, its own") for n in range(3))]
    verdict = summary.verdict(target(at_least=5.0, or_variant="mock, its own"), runs)
    assert verdict.met is met
    assert verdict.against == "kafka-python, here or at mock, its own"
    low = target(at_most=5.0, or_variant="mock, its own")  # now the lower figure is the better one
    assert summary.verdict(low, runs).met is not met


def test_a_table_tells_of_how_many_runs_and_records_it_is() -> None:
    scenario = SCENARIOS["latency"](FULL)
    few = {"variant": "Kafka", "client": "outlast", "p50_ms": 1.0, "p999_ms": 9.0}
    runs = [few | {"run": number, "records": 3_000} for number in range(5)]
    head, line = summary.table(scenario, runs)
    assert head == ["", "client", "p50, ms", "runs", "records each"]
    assert line == ["Kafka", "outlast", "1.00", "5", "3,000"]
    head, line = summary.table(scenario, [few | {"run": 0, "records": 100_000}])
    assert dict(zip(head, line, strict=True))["p99.9, ms"] == "9.00"


@pytest.mark.parametrize("said", ['{"run": 0, "short": true}', '{"run": 0}'])
def test_lines_of_short_runs_make_no_page(tmp_path: Path, said: str) -> None:
    scenario = SCENARIOS["idle"](FULL)
    assert report.read(tmp_path, scenario) == []
    (tmp_path / "idle.jsonl").write_text('{"run": 0, "short": false}\n', encoding="utf-8")
    assert len(report.read(tmp_path, scenario)) == 1
    (tmp_path / "idle.jsonl").write_text(f'{{"run": 0, "short": false}}\n{said}\n', "utf-8")
    with pytest.raises(SystemExit, match="lines of short runs"):
        report.read(tmp_path, scenario)


def test_batches_are_counted_in_the_log_segments(tmp_path: Path) -> None:
    def batch(size: int) -> bytes:
        return (7).to_bytes(8, "big") + size.to_bytes(4, "big") + b"\xff" * size

    for partition, sizes in enumerate(((100, 49), (), (61,))):
        folder = tmp_path / f"t-{partition}"
        folder.mkdir()
        (folder / "0.log").write_bytes(b"".join(map(batch, sizes)))
        (folder / "0.index").write_bytes(b"other")
    assert clusters.batches(tmp_path, "t") == 3
    assert filled(30, 3, 10) == {"records_per_batch": 10}
    with pytest.raises(RunError, match=r"30 records came in 4 batches, 7\.50 each, not 10"):
        filled(30, 4, 10)


@pytest.mark.parametrize(("scale", "batches"), [(FULL, 5), (SHORT, 2)])
def test_very_many_partitions_get_whole_batches(scale: Any, batches: int) -> None:
    for case in SCENARIOS["many-partitions"](scale).cases:
        assert case.job["records"] == batches * case.job["batch_records"] * scale.many_partitions


def test_what_was_not_measured_is_not_met() -> None:
    verdict = summary.verdict(target(at_least=0.0, against="aiokafka"), RUNS)
    assert not verdict.met
    assert verdict.found == "not measured"


def test_a_run_that_failed_is_told_and_counts_for_nothing() -> None:
    scenario = SCENARIOS["round-trip"](FULL)
    failed = {"variant": "20 ms", "client": "outlast", "run": 0, "failed": "it ended early"}
    told = summary.told(scenario, [failed])
    assert "FAILED 20 ms, outlast: it ended early" in told
    assert summary.table(scenario, [failed]) == []
    assert report.figures(scenario, [failed]) == "Not measured."


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


@pytest.mark.parametrize("client", ["outlast-send-many", "aiokafka", "confluent-kafka"])
def test_what_a_client_commits_is_counted(client: str) -> None:
    if why := lacking(client):
        pytest.fail(why)
    with clusters.mock() as mock:
        mock.create_topic("committed", 3)
        producer = CLIENTS[client](Settings(mock.bootstrap, linger_ms=1, transactional_id="one"))
        producer.transact("committed", [b"v"] * 7)
        producer.transact("committed", [b"v"] * 5, [0, 2, 0, 2, 1])
        producer.close()
        checked({"sent": 12}, mock.bootstrap, "committed", clusters.count_committed)
        assert clusters.count(mock.bootstrap, "committed") > 12  # markers
