"""The dashboard without a Grafana: its form, and that all it names exists."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import combinations
from typing import Any

import pytest

from docs import dashboard as source
from docs.alerts import ALERTS, Alert
from outlast import dashboards
from outlast.observe.metrics import METRICS
from tests.observe import promql

Json = dict[str, Any]

# Grafana knows an unknown unit as a word to write behind the number
UNITS = {"none", "short", "s", "bytes", "cps", "dateTimeAsIso"}
BUILT_IN = {"__interval", "__rate_interval", "__range"}


def panels(dashboard: Json) -> list[Json]:
    """Those that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def complaints(dashboard: Json) -> Iterator[str]:
    """What is wrong with the form of a dashboard."""
    yield from _places(dashboard)
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(set(ids)) != len(ids) or not all(isinstance(i, int) and i > 0 for i in ids):
        yield f"ids {ids}"
    variables = {v["name"]: v["type"] for v in dashboard["templating"]["list"]}
    if variables != {"datasource": "datasource", "job": "query", "topic": "query"}:
        yield f"variables {variables}"
    for panel in panels(dashboard):
        title = panel["title"]
        if not title or not panel["description"]:
            yield f"{title!r} has no words"
        units = [panel["fieldConfig"]["defaults"]["unit"]]
        for override in panel["fieldConfig"]["overrides"]:
            units += [p["value"] for p in override["properties"] if p["id"] == "unit"]
        yield from (f"{title}: unit {unit!r}" for unit in units if unit not in UNITS)
        refs = [target["refId"] for target in panel["targets"]]
        if not refs or len(set(refs)) != len(refs):
            yield f"{title}: queries {refs}"
        for holder in (panel, *panel["targets"]):
            if holder["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
                yield f"{title}: data source {holder['datasource']}"
        for target in panel["targets"]:
            used = set(re.findall(r"\$\{?(\w+)", target["expr"]))
            if not used <= BUILT_IN | variables.keys():
                yield f"{title}: variables {used}"
            if "job" not in used:
                yield f"{title}: shows other jobs, too"
            if target["instant"] == target["range"]:
                yield f"{title}: both instant and over a range, or neither"


def _places(dashboard: Json) -> Iterator[str]:
    areas = [(panel["title"], panel["gridPos"]) for panel in dashboard["panels"]]
    for title, at in areas:
        if at["x"] < 0 or at["w"] < 1 or at["h"] < 1 or at["x"] + at["w"] > 24:
            yield f"{title}: outside of the grid"
    for (one, a), (other, b) in combinations(areas, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        if not beside and not above:
            yield f"{one} and {other} overlap"


@pytest.fixture
def dashboard() -> Json:
    loaded: Json = json.loads(dashboards.dashboard())
    return loaded


def test_the_form_is_right(dashboard: Json) -> None:
    assert list(complaints(dashboard)) == []


def test_what_was_asked_for_is_there(dashboard: Json) -> None:
    titles = {panel["title"]: panel["type"] for panel in panels(dashboard)}
    assert titles["Gaps and stalls per partition"] == "state-timeline"
    assert titles["How long gaps lasted"] == "heatmap"
    for title in (
        "Gap seconds by phase",
        "Open gaps",
        "Absorbed and reported records",
        "Leader changes",
        "Buffer headroom",
        "Delivery latency",
        "Verdicts",
    ):
        assert title in titles
    asked = [t for panel in panels(dashboard) for t in panel["targets"] if t["exemplar"]]
    assert len(asked) >= 2
    assert all("outlast_gap_duration_seconds_bucket" in target["expr"] for target in asked)


def test_every_metric_label_and_value_exists(dashboard: Json) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            found = list(promql.complaints(target["expr"], target["legendFormat"]))
            assert found == [], panel["title"]
    for variable in dashboard["templating"]["list"][1:]:
        asked, label = re.fullmatch(
            r"label_values\((.*), (\w+)\)", variable["query"]["query"]
        ).groups()
        assert list(promql.complaints(asked, f"{{{{{label}}}}}")) == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_metric_label_and_value_of_an_alert_exists(alert: Alert) -> None:
    assert list(promql.complaints(alert.expr, alert.summary + alert.description)) == []


def test_the_examples_in_the_list_of_metrics_are_right_too() -> None:
    for metric in METRICS.values():
        assert list(promql.complaints(metric.example)) == []
        assert metric.name in metric.example


@pytest.mark.parametrize(
    ("expr", "complaint"),
    [
        ("sum(outlast_gap_total)", "there is no metric outlast_gap_total"),
        ("outlast_gap_duration_seconds", "there is no metric outlast_gap_duration_seconds"),
        ("outlast_open_gaps_bucket", "there is no metric outlast_open_gaps_bucket"),
        ('outlast_open_gaps{partition="1"}', "outlast_open_gaps has no label partition"),
        (
            'outlast_gap_records_total{fate=~"expired|lost"}',
            "outlast_gap_records_total never has fate=lost",
        ),
        ("sum by (cause) (outlast_open_gaps)", "no metric here has the label cause"),
        ("rate(outlast_open_gaps[1m])", "outlast_open_gaps is a gauge"),
    ],
)
def test_what_does_not_exist_is_found(expr: str, complaint: str) -> None:
    assert list(promql.complaints(expr)) == [complaint]


def test_a_label_that_is_only_shown_must_exist_too() -> None:
    assert list(promql.complaints("outlast_open_gaps", "{{topic}}, {{phase}}")) == [
        "no metric here has the label phase"
    ]
    assert list(promql.complaints("outlast_open_gaps", "{{ $labels.phase }}")) == [
        "no metric here has the label phase"
    ]


def _wider(dashboard: Json) -> None:
    dashboard["panels"][0]["gridPos"]["w"] = 25


def _lower(dashboard: Json) -> None:
    dashboard["panels"][0]["gridPos"]["h"] += 1


def _same_id(dashboard: Json) -> None:
    dashboard["panels"][1]["id"] = dashboard["panels"][0]["id"]


def _no_unit(dashboard: Json) -> None:
    dashboard["panels"][0]["fieldConfig"]["defaults"]["unit"] = "seconds"


def _own_source(dashboard: Json) -> None:
    dashboard["panels"][0]["targets"][0]["datasource"] = {"type": "prometheus", "uid": "mine"}


def _unknown_variable(dashboard: Json) -> None:
    dashboard["panels"][0]["targets"][0]["expr"] += ' + x{node="$node"}'


def _any_job(dashboard: Json) -> None:
    dashboard["panels"][0]["targets"][0]["expr"] = "sum(outlast_open_gaps)"


def _no_topic(dashboard: Json) -> None:
    del dashboard["templating"]["list"][2]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_wider, "outside of the grid"),
        (_lower, "overlap"),
        (_same_id, "ids"),
        (_no_unit, "unit 'seconds'"),
        (_own_source, "data source"),
        (_unknown_variable, "variables"),
        (_any_job, "other jobs"),
        (_no_topic, "variables"),
    ],
)
def test_a_breach_is_found(spoil: Callable[[Json], None], complaint: str, dashboard: Json) -> None:
    spoilt = deepcopy(dashboard)
    spoil(spoilt)
    assert any(complaint in found for found in complaints(spoilt))


def test_every_panel_is_in_the_document() -> None:
    shown = source.overview()
    for panel in source.panels():
        assert panel.title in shown
