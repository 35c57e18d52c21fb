"""The alert rules, judged by promtool: each fires, stays silent, and recovers.

Prometheus' own unit tests of rules take series as they would be scraped, four times a minute, and
tell which alerts fire when. A wrong rule is found: see the mutants at the end.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from docs import alerts
from docs.alerts import ALERTS, Alert
from outlast import dashboards
from tests.demands import need

APP = 'job="shop", instance="shop-1:8000"'
ORDERS = f'{APP}, topic="orders"'
WHO = {"job": "shop", "instance": "shop-1:8000"}
TOPIC = {"topic": "orders"}
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Fires:
    """An alert that is expected: its labels beside `severity`, and its texts."""

    labels: dict[str, str]
    summary: str
    description: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """What an alert does with these series, looked at in these moments: '30s' → what fires."""

    alert: str
    name: str
    series: dict[str, str]
    looks: dict[str, Fires | None]


GAP = f"outlast_open_gap_seconds{{{ORDERS}}}"
BUDGET = f"outlast_delivery_timeout_seconds{{{APP}}}"
BYTES = f"outlast_buffer_bytes{{{APP}}}"
LIMIT = f"outlast_buffer_limit_bytes{{{APP}}}"
HEADROOM = f"outlast_buffer_headroom_seconds{{{APP}}}"
BLOCKED = f'outlast_send_blocked_seconds_total{{{APP}, reason="memory"}}'
LEADERS = f"outlast_leader_changes_total{{{ORDERS}}}"
RESTARTS = f'outlast_partition_restarts_total{{{ORDERS}, reason="expired"}}'
PARTITIONS = {
    f'outlast_partition_gap_seconds_total{{{ORDERS}, partition="{p}"}}': "0x400" for p in range(3)
}


def records(result: str) -> str:
    return f'outlast_records_total{{{ORDERS}, result="{result}"}}'


def fate(name: str) -> str:
    return f'outlast_gap_records_total{{{ORDERS}, fate="{name}"}}'


def refreshes(result: str) -> str:
    return f'outlast_metadata_refresh_duration_seconds_count{{{APP}, result="{result}"}}'


LOST = Fires(
    labels={"job": "shop", **TOPIC},
    summary="Records for orders were reported as failed",
    description="About 20 records of shop for orders failed in the last 5 minutes: "
    "their senders were told so.",
)

CASES = [
    Case(
        alert="OutlastGapOpenTooLong",
        name="a gap of 45 s",
        series={GAP: "0 0 15 30 45 0 0 0"},
        looks={
            "45s": None,
            "1m": Fires(
                labels={**WHO, **TOPIC},
                summary="orders has a partition that takes no records",
                description="A partition of orders has rejected the records of shop-1:8000 for "
                "45s. A failover with Kafka's usual settings is over in 12 s.",
            ),
            "1m15s": None,
        },
    ),
    Case(
        alert="OutlastGapOpenTooLong",
        name="three gaps of ten seconds, one after the other",
        series={GAP: "0 10 0 10 0 10 0"},
        looks={"15s": None, "45s": None, "1m15s": None, "1m30s": None},
    ),
    Case(
        alert="OutlastGapNearRetryBudget",
        name="a gap of 105 of 120 s, and an ack at last",
        series={GAP: "0 15 30 45 60 75 90 105 0", BUDGET: "120x8", BYTES: "5000x7 0"},
        looks={
            "1m30s": None,
            "1m45s": Fires(
                labels={**WHO, **TOPIC},
                summary="Records for orders are about to fail",
                description="A gap of orders has used 87.5% of delivery_timeout_ms at "
                "shop-1:8000. When it is used up, records that wait are reported as failed.",
            ),
            "2m": None,
        },
    ),
    Case(
        alert="OutlastGapNearRetryBudget",
        name="a producer that is more patient",
        series={GAP: "0 15 30 45 60 75 90 105 0", BUDGET: "600x8", BYTES: "5000x7 0"},
        looks={"1m45s": None},
    ),
    Case(
        alert="OutlastGapNearRetryBudget",
        name="nothing waits for the partition",
        series={GAP: "0 15 30 45 60 75 90 105 0", BUDGET: "120x8", BYTES: "0x8"},
        looks={"1m45s": None},
    ),
    Case(
        alert="OutlastRecordsLost",
        name="twenty records expire",
        series={
            records("acked"): "0+50x60",
            records("failed"): "0x8 20x60",
            fate("refused"): "0x60",
        },
        looks={"2m": None, "2m30s": LOST, "7m15s": None},
    ),
    Case(
        alert="OutlastRecordsLost",
        name="send() raises twenty times in a gap",
        series={records("failed"): "0x60", fate("refused"): "0x8 20x60"},
        looks={"2m": None, "2m30s": LOST, "7m15s": None},
    ),
    Case(
        alert="OutlastRecordsLost",
        name="all of them are absorbed",
        series={
            records("acked"): "0+50x60",
            records("failed"): "0x60",
            fate("delivered"): "0x8 20x60",
            fate("refused"): "0x60",
        },
        looks={"2m30s": None, "5m": None},
    ),
    Case(
        alert="OutlastLeadersChangeOften",
        name="six changes for each of three partitions",
        series={LEADERS: "0x10 18x400", **PARTITIONS},
        looks={
            "2m": None,
            "1h": Fires(
                labels={"job": "shop", **TOPIC},
                summary="Leaders of orders do not come to rest",
                description="Each partition of orders changed its leader 6.0 times in the last "
                "hour, on average. A rolling restart of the cluster makes three.",
            ),
            "1h5m": None,
        },
    ),
    Case(
        alert="OutlastLeadersChangeOften",
        name="a rolling restart",
        series={LEADERS: "0x10 9x400", **PARTITIONS},
        looks={"10m": None, "1h": None},
    ),
    Case(
        alert="OutlastBufferAboutToFill",
        name="a buffer that fills in a gap, and empties",
        series={HEADROOM: "+Inf 60 20 8 60", BYTES: "0 10 60 85 10", LIMIT: "100x4"},
        looks={
            "30s": None,
            "45s": Fires(
                labels=WHO,
                summary="The send buffer of shop-1:8000 is about to fill",
                description="The send buffer of shop-1:8000 (shop) is more than half full and, at "
                "the present rate, lasts for another 8s if nothing leaves it. Then send() blocks.",
            ),
            "1m": None,
        },
    ),
    Case(
        alert="OutlastBufferAboutToFill",
        name="a fast application whose buffer is small, and nearly empty",
        series={HEADROOM: "2x8", BYTES: "5x8", LIMIT: "100x8"},
        looks={"15s": None, "2m": None},
    ),
    Case(
        alert="OutlastSendersBlocked",
        name="two threads wait for a minute",
        series={BLOCKED: "0x2 30 60 90 120 120x20"},
        looks={
            "30s": None,
            "1m30s": Fires(
                labels={**WHO, "reason": "memory"},
                summary="Threads of shop-1:8000 wait in send()",
                description="On average 1.0 threads of shop-1:8000 (shop) waited in send() during "
                "the last 2 minutes, for memory.",
            ),
            "5m15s": None,
        },
    ),
    Case(
        alert="OutlastSendersBlocked",
        name="five seconds at the start, for metadata",
        series={BLOCKED.replace("memory", "metadata"): "0 5x20"},
        looks={"30s": None, "2m": None},
    ),
    Case(
        alert="OutlastPartitionRestarts",
        name="records expire",
        series={RESTARTS: "0x8 1x100"},
        looks={
            "2m": None,
            "5m": Fires(
                labels={"job": "shop", **TOPIC, "reason": "expired"},
                summary="Partitions of orders number their records anew",
                description="About 1 times in the last 15 minutes a partition of orders began a "
                "new numbering at shop: expired.",
            ),
            "18m": None,
        },
    ),
    Case(
        alert="OutlastPartitionRestarts",
        name="restarts of long ago",
        series={RESTARTS: "7x100"},
        looks={"10m": None, "20m": None},
    ),
    Case(
        alert="OutlastMetadataRefreshFailing",
        name="no broker answers for four minutes",
        series={
            refreshes("ok"): "0 1 2 3 4 5 6 7 8 8x16 9+1x60",
            refreshes("failed"): "0x8 0+15x16 240x60",
        },
        looks={
            "2m15s": None,
            "3m15s": None,
            "4m": Fires(
                labels=WHO,
                summary="shop-1:8000 cannot learn where leaders are",
                description="92.92% of the metadata requests of shop-1:8000 (shop) failed in the "
                "last 5 minutes: the next failover would not be noticed in time.",
            ),
            "12m": None,
        },
    ),
    Case(
        alert="OutlastMetadataRefreshFailing",
        name="one broker of three is down",
        series={refreshes("ok"): "0+2x40", refreshes("failed"): "0+1x40"},
        looks={"5m": None, "10m": None},
    ),
    Case(
        alert="OutlastMetadataRefreshFailing",
        name="nothing is asked",
        series={refreshes("ok"): "3x40", refreshes("failed"): "0x40"},
        looks={"5m": None, "10m": None},
    ),
]

# a leader dies, another is elected after ten seconds, everything is delivered
USUAL_FAILOVER = {
    GAP: "0x8 5 0x60",
    BUDGET: "120x70",
    BYTES: "1000x8 300000 1000x60",
    LIMIT: "33554432x70",
    HEADROOM: "300x70",
    records("acked"): "0+500x70",
    records("failed"): "0x70",
    fate("delivered"): "0x9 5000x60",
    fate("refused"): "0x70",
    LEADERS: "0x9 1x60",
    RESTARTS: "0x70",
    BLOCKED: "0x70",
    refreshes("ok"): "0x8 60 61x60",
    refreshes("failed"): "0x8 20 20x60",
    **PARTITIONS,
}


def written(case: Case) -> dict[str, object]:
    """The case in promtool's words."""
    rule = next(alert for alert in ALERTS if alert.name == case.alert)
    return {
        "name": f"{case.alert}: {case.name}",
        "interval": "15s",
        "input_series": [{"series": s, "values": values} for s, values in case.series.items()],
        "alert_rule_test": [
            {
                "eval_time": moment,
                "alertname": case.alert,
                "exp_alerts": [_expected(rule, fires)] if fires else [],
            }
            for moment, fires in case.looks.items()
        ],
    }


def _expected(rule: Alert, fires: Fires) -> dict[str, object]:
    return {
        "exp_labels": {"severity": rule.severity, **fires.labels},
        "exp_annotations": {
            "summary": fires.summary,
            "description": fires.description,
            "runbook": rule.anchor,
        },
    }


def judged(folder: Path, *trials: tuple[str, list[dict[str, object]]]) -> list[str]:
    """promtool's word on each trial, which are rules and their tests: '' if it found no fault."""
    need("prometheus", "promtool")
    command = ["promtool", "test", "rules"]
    for number, (rules, tests) in enumerate(trials):
        (folder / f"rules-{number}.yml").write_text(rules, encoding="utf-8")
        unit = {"rule_files": [f"rules-{number}.yml"], "evaluation_interval": "15s", "tests": tests}
        command.append(str(folder / f"tests-{number}.yml"))
        Path(command[-1]).write_text(json.dumps(unit), encoding="utf-8")  # JSON is YAML
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    said = done.stdout + done.stderr
    files = re.split(r"^Unit Testing: .*\n", said, flags=re.MULTILINE)[1:]
    assert len(files) == len(trials), said
    faults = ["" if re.fullmatch(r"\s*SUCCESS\s*", text) else text for text in files]
    assert (done.returncode == 0) == (not any(faults)), said
    return faults


def test_each_alert_fires_stays_silent_and_recovers(tmp_path: Path) -> None:
    [fault] = judged(tmp_path, (dashboards.alerts(), [written(case) for case in CASES]))
    assert not fault, fault


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_alert_has_a_case_of_each_kind(alert: Alert) -> None:
    looks = [list(case.looks.values()) for case in CASES if case.alert == alert.name]
    first = looks[0]
    assert first[0] is None
    assert isinstance(first[-2], Fires)
    assert first[-1] is None
    assert any(all(fires is None for fires in more) for more in looks[1:])


def test_a_usual_failover_raises_no_alert(tmp_path: Path) -> None:
    looks = [
        {"eval_time": f"{15 * n}s", "alertname": alert.name, "exp_alerts": []}
        for alert in ALERTS
        for n in range(4, 40)
    ]
    series = [{"series": s, "values": values} for s, values in USUAL_FAILOVER.items()]
    test: dict[str, object] = {"interval": "15s", "input_series": series, "alert_rule_test": looks}
    [fault] = judged(tmp_path, (dashboards.alerts(), [test]))
    assert not fault, fault


def test_each_alert_has_all_that_one_needs_at_night() -> None:
    page = (ROOT / alerts.PAGE).read_text(encoding="utf-8")
    headings = {line[4:].lower() for line in page.splitlines() if line.startswith("### ")}
    for alert in ALERTS:
        assert alert.severity in ("warning", "critical")
        assert alert.summary
        assert alert.description
        name, anchor = alert.anchor.split("#")
        assert name == alerts.PAGE
        assert anchor in headings
        assert alert.query in page
        assert f'runbook: "{alert.anchor}"' in dashboards.alerts()
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_every_text_is_filled_in() -> None:
    for fires in (fires for case in CASES for fires in case.looks.values() if fires):
        assert not re.search(r"[{}]|<no value>", fires.summary + fires.description)


# --- promtool finds a wrong rule ------------------------------------------------------------------


def mutants() -> Iterator[tuple[str, Alert]]:
    """Each rule that never fires, that always does, and that lacks its second condition."""
    for alert in ALERTS:
        yield f"{alert.name} never fires", replace(alert, condition="> +Inf")
        yield f"{alert.name} always fires", replace(alert, condition=">= bool 0", only_if="")
        yield f"{alert.name} says something else", replace(alert, summary="All is well")
        if alert.only_if:
            yield f"{alert.name} has no second condition", replace(alert, only_if="")
        if alert.for_ != "0s":
            yield f"{alert.name} fires at once", replace(alert, for_="0s")


def test_a_wrong_rule_is_found(tmp_path: Path) -> None:
    trials = {
        name: (
            alerts.text([mutant]),
            [written(case) for case in CASES if case.alert == mutant.name],
        )
        for name, mutant in mutants()
    }
    faults = judged(tmp_path, *trials.values())
    assert [name for name, fault in zip(trials, faults, strict=True) if not fault] == []
