"""The pictures of docs/performance.md, as SVG.

One palette for light and dark pages: nothing is drawn behind the figures, text and grid are of a
grey that is read on both, and so are the clients' colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.scenarios import Scenario
from benchmarks.summary import Run, Spread, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#768390", "#76839055"
COLOURS = {
    "outlast": "#2f81f7",
    "outlast-send-many": "#79b8ff",
    "kafka-python": "#d4a017",
    "aiokafka": "#a371f7",
    "confluent-kafka": "#2da44e",
    "confluent-kafka-batch": "#7ee2a0",
}
STYLE: Any = {  # any: matplotlib would have each name spelled out in the type
    "svg.hashsalt": "outlast",  # the same figures make the same file
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def _short(figure: float, _position: object = None) -> str:
    if figure >= 1_024 and figure % 1_024 == 0:
        return f"{figure / 1_024:g} Ki"
    if figure >= 1_000:
        return f"{figure / 1_000:g}k"
    return f"{figure:g}"


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)


def bars(scenario: Scenario, runs: Sequence[Run], metric: str, label: str, path: Path) -> None:
    """A bar for each client, a panel for each variant: median, smallest and largest."""
    with pyplot.rc_context(STYLE):
        variants = [v for v in _variants(scenario) if any(r["variant"] == v for r in runs)]
        columns = min(2, len(variants))
        lines = -(-len(variants) // columns)
        figure, panels = pyplot.subplots(
            lines, columns, figsize=(9, 2.2 * lines), sharex=True, squeeze=False
        )
        for panel, variant in zip(panels.flat, variants, strict=False):
            _bars(panel, scenario, runs, variant, metric)
        for panel in panels[-1]:
            panel.set_xlabel(label)
        figure.tight_layout()
        _save(figure, path)


def _bars(panel: Axes, scenario: Scenario, runs: Sequence[Run], variant: str, metric: str) -> None:
    clients = [case.client for case in scenario.cases if case.variant == variant]
    found = {c: s for c in clients if (s := spread(runs, variant, c, metric)) is not None}
    names, spreads = list(found), list(found.values())
    panel.barh(
        names,
        [s.median for s in spreads],
        xerr=_errors(spreads),
        color=[COLOURS.get(name, INK) for name in names],
        height=0.65,
        error_kw={"ecolor": INK, "elinewidth": 1},
    )
    for place, one in enumerate(spreads):
        panel.annotate(
            f"{one.median:,.2f}" if one.median < 100 else f"{one.median:,.0f}",
            (one.high, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    panel.invert_yaxis()
    panel.set_title(variant, loc="left")
    panel.margins(x=0.18)
    panel.grid(axis="x")
    panel.set_axisbelow(True)
    panel.tick_params(length=0)


def _errors(spreads: Sequence[Spread]) -> list[list[float]]:
    return [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]


def curves(measured: Mapping[str, tuple[Scenario, Sequence[Run]]], path: Path) -> None:
    """A panel for each thing that cost per record is held against."""
    with pyplot.rc_context(STYLE):
        lines = -(-(len(measured) + 1) // 3)
        figure, panels = pyplot.subplots(lines, 3, figsize=(9.5, 2.9 * lines), squeeze=False)
        panes = list(panels.flat)
        for panel, (scenario, runs) in zip(panes, measured.values(), strict=False):
            _curve(panel, scenario, runs)
        for panel in panes[len(measured) :]:
            panel.axis("off")
        handles, names = panes[0].get_legend_handles_labels()
        panes[len(measured)].legend(handles, names, loc="center left", fontsize=11)
        for panel in panels[:, 0]:
            panel.set_ylabel("µs of CPU per record")
        figure.tight_layout()
        _save(figure, path)


def _curve(panel: Axes, scenario: Scenario, runs: Sequence[Run]) -> None:
    curve = scenario.curve
    assert curve is not None
    for client in dict.fromkeys(case.client for case in scenario.cases):
        points = {
            int(variant): one
            for variant in _variants(scenario)
            if (one := spread(runs, variant, client, curve.metric)) is not None
        }
        spreads = list(points.values())
        colour = COLOURS.get(client, INK)
        panel.plot(list(points), [s.median for s in spreads], "o-", color=colour, label=client)
        lows, highs = [s.low for s in spreads], [s.high for s in spreads]
        panel.fill_between(list(points), lows, highs, color=colour, alpha=0.2, linewidth=0)
    ticks = [int(variant) for variant in _variants(scenario)]
    if curve.log:
        panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(ticks)
    panel.xaxis.set_major_formatter(FuncFormatter(_short))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_major_formatter(FuncFormatter(_short))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_ylim(1, max(100, panel.get_ylim()[1]))
    panel.minorticks_off()
    panel.set_xlabel(curve.axis)
    panel.set_title(scenario.title, loc="left")
    panel.grid()
    panel.tick_params(length=0)


def _variants(scenario: Scenario) -> list[str]:
    return list(dict.fromkeys(case.variant for case in scenario.cases))
