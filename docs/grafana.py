"""Grafana's shapes: how a panel, a query and a variable are written in a dashboard's JSON.

What is shown is in `dashboard.py`; this file knows no metric. Written for Grafana 10.4 (schema 39);
later ones read it, and earlier ones from 10.0 on leave out what they do not know. Panels flow from
left to right and wrap at 24 columns, so that none can overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COLUMNS = 24
SCHEMA_VERSION = 39
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """One PromQL expression of a panel.

    Args:
        legend: the series' name; labels in double braces.
        instant: its value at the end of the time range alone.
        format: `time_series`, `heatmap` or `table`.
        exemplar: ask for exemplars, too.
    """

    expr: str
    legend: str = ""
    instant: bool = False
    format: str = "time_series"
    exemplar: bool = False

    def json(self, number: int) -> Json:
        """As the panel's query A, B, …"""
        return {
            "datasource": DATA_SOURCE,
            "editorMode": "code",
            "exemplar": self.exemplar,
            "expr": self.expr,
            "format": self.format,
            "instant": self.instant,
            "legendFormat": self.legend or "__auto",
            "range": not self.instant,
            "refId": "ABCDEFGH"[number],
        }


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture.

    Args:
        colours: of series, by name.
        mappings: value → its text and colour.
        thresholds: colours of values from a number on, the first from None.
    """

    title: str
    description: str
    kind: str
    queries: Sequence[Query]
    unit: str
    width: int
    height: int = 8
    options: Json = field(default_factory=dict)
    custom: Json = field(default_factory=dict)
    defaults: Json = field(default_factory=dict)
    colours: Mapping[str, str] = field(default_factory=dict)
    mappings: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    thresholds: Sequence[tuple[float | None, str]] = ((None, "green"),)
    overrides: Sequence[Json] = ()
    transformations: Sequence[Json] = ()

    def json(self, number: int, x: int, y: int) -> Json:
        """The panel with this id at this place."""
        return {
            "datasource": DATA_SOURCE,
            "description": self.description,
            "fieldConfig": {
                "defaults": {
                    "color": {"mode": "thresholds" if self.kind == "stat" else "palette-classic"},
                    "custom": self.custom,
                    "mappings": self._mappings(),
                    "thresholds": {
                        "mode": "absolute",
                        "steps": [{"color": c, "value": value} for value, c in self.thresholds],
                    },
                    "unit": self.unit,
                    **self.defaults,
                },
                "overrides": [*self._painted(), *self.overrides],
            },
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "id": number,
            "options": self.options,
            "targets": [query.json(n) for n, query in enumerate(self.queries)],
            "title": self.title,
            "transformations": list(self.transformations),
            "type": self.kind,
        }

    def _mappings(self) -> list[Json]:
        named = {
            str(value): {"color": colour, "index": n, "text": text}
            for n, (value, (text, colour)) in enumerate(self.mappings.items())
        }
        return [{"options": named, "type": "value"}] if named else []

    def _painted(self) -> list[Json]:
        return [
            override(name, "color", {"fixedColor": colour, "mode": "fixed"})
            for name, colour in self.colours.items()
        ]


def override(name: str, key: str, value: object) -> Json:
    """One property of the field of this name."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value}],
    }


# --- kinds of panels ------------------------------------------------------------------------------


def stat(title: str, description: str, query: Query, **more: Any) -> Panel:
    """One number, now or over the time range."""
    options = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    }
    more = {"width": 4, "height": 4, **more}
    return Panel(
        title=title, description=description, kind="stat", queries=[query], options=options, **more
    )


def lines(title: str, description: str, *queries: Query, **more: Any) -> Panel:
    """Curves."""
    return _series(title, description, queries, {"drawStyle": "line", "fillOpacity": 10}, more)


def steps(title: str, description: str, *queries: Query, **more: Any) -> Panel:
    """Stacked areas of what is so many at a time."""
    custom = {"drawStyle": "line", "fillOpacity": 40, "lineInterpolation": "stepAfter"}
    return _series(title, description, queries, {**custom, **_STACKED}, more)


def bars(title: str, description: str, *queries: Query, **more: Any) -> Panel:
    """Stacked bars of what came in each step."""
    custom = {"drawStyle": "bars", "fillOpacity": 80, "lineWidth": 0}
    return _series(title, description, queries, {**custom, **_STACKED}, more)


def points(title: str, description: str, *queries: Query, **more: Any) -> Panel:
    """Points, and the exemplars among them."""
    custom = {"drawStyle": "points", "pointSize": 6, "showPoints": "always"}
    return _series(title, description, queries, custom, more)


_STACKED = {"stacking": {"group": "A", "mode": "normal"}}


def _series(
    title: str, description: str, queries: Sequence[Query], custom: Json, more: Json
) -> Panel:
    options = {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(
        title=title,
        description=description,
        kind="timeseries",
        queries=queries,
        options=options,
        custom={"showPoints": "auto", "spanNulls": False, **custom},
        defaults={"min": 0, **more.pop("defaults", {})},
        **more,
    )


def state_timeline(title: str, description: str, query: Query, **more: Any) -> Panel:
    """A row for each series, coloured by its value."""
    options = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "perPage": 20,
        "rowHeight": 0.8,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return Panel(
        title=title,
        description=description,
        kind="state-timeline",
        queries=[query],
        unit="none",
        options=options,
        custom={"fillOpacity": 85, "lineWidth": 0},
        **more,
    )


def heatmap(title: str, description: str, query: Query, *, unit: str, **more: Any) -> Panel:
    """A histogram over time: `query` gives its buckets."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "exponent": 0.5,
            "fill": "dark-orange",
            "mode": "scheme",
            "reverse": False,
            "scale": "exponential",
            "scheme": "Oranges",
            "steps": 64,
        },
        "exemplars": {"color": "rgba(31,120,193,0.9)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }
    return Panel(
        title=title,
        description=description,
        kind="heatmap",
        queries=[query],
        unit=unit,
        options=options,
        custom={"scaleDistribution": {"type": "linear"}},
        **more,
    )


def table(title: str, description: str, *queries: Query, **more: Any) -> Panel:
    """Rows of what the queries say at the end of the time range."""
    return Panel(
        title=title,
        description=description,
        kind="table",
        queries=queries,
        options={"cellHeight": "sm", "showHeader": True},
        custom={"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
        **more,
    )


# --- the whole ------------------------------------------------------------------------------------


def flowed(sections: Sequence[tuple[str, Sequence[Panel]]]) -> list[Json]:
    """All panels with ids and places; a section with a title has it above."""
    placed: list[Json] = []
    y = 0
    for title, panels in sections:
        if title:
            placed.append(_heading(title, len(placed) + 1, y))
            y += 1
        x = height = 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            placed.append(panel.json(len(placed) + 1, x, y))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return placed


def _heading(title: str, number: int, y: int) -> Json:
    return {
        "collapsed": False,
        "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
        "id": number,
        "panels": [],
        "title": title,
        "type": "row",
    }


def data_source_variable(label: str) -> Json:
    """Which Prometheus."""
    return {
        "hide": 0,
        "includeAll": False,
        "label": label,
        "multi": False,
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "type": "datasource",
    }


def label_variable(name: str, label: str, query: str) -> Json:
    """Some or all values of a label."""
    return {
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": DATA_SOURCE,
        "hide": 0,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "options": [],
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor"},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "type": "query",
    }
