"""What a PromQL expression names: enough of a reader to hold it against the list of metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator

from outlast.observe.metrics import METRICS, Kind, Metric

SCRAPED = {"job", "instance"}  # labels that Prometheus adds
_SELECTOR = re.compile(r"\b(outlast_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_COUNTED = re.compile(r"\b(?:rate|increase|irate)\s*\(\s*(outlast_\w+)")


def metric_of(name: str) -> tuple[Metric, set[str]] | None:
    """The metric that a series of this name belongs to, and the labels it has."""
    if name in METRICS and METRICS[name].kind is not Kind.HISTOGRAM:
        return METRICS[name], {*METRICS[name].labels, *SCRAPED}
    base, _, suffix = name.rpartition("_")
    metric = METRICS.get(base)
    if metric is None or metric.kind is not Kind.HISTOGRAM:
        return None
    if suffix not in ("bucket", "count", "sum"):
        return None
    return metric, {*metric.labels, *SCRAPED, *(["le"] if suffix == "bucket" else [])}


def complaints(expr: str, shown_labels: str = "") -> Iterator[str]:
    """Metrics, labels and values of labels that do not exist; counters' functions on gauges.

    Args:
        shown_labels: text that names labels as `{{label}}` or `$labels.label`.
    """
    labels: set[str] = set()
    for name, matchers in _SELECTOR.findall(expr):
        found = metric_of(name)
        if found is None:
            yield f"there is no metric {name}"
            continue
        metric, own = found
        labels |= own
        for label, sign, value in _MATCHER.findall(matchers):
            if label not in own:
                yield f"{name} has no label {label}"
            elif not value.startswith("$"):
                known = metric.closed.get(label, ())
                for word in value.split("|") if "~" in sign else [value]:
                    if word not in known:
                        yield f"{name} never has {label}={word}"
    for _, named in _GROUPING.findall(expr):
        for label in filter(None, re.split(r"[,\s]+", named)):
            if label not in labels:
                yield f"no metric here has the label {label}"
    for name in _COUNTED.findall(expr):
        found = metric_of(name)
        if found and found[0].kind is Kind.GAUGE:
            yield f"{name} is a gauge"
    for label in re.findall(r"\{\{\s*(\w+)\s*\}\}|\$labels\.(\w+)", shown_labels):
        if "".join(label) not in labels:
            yield f"no metric here has the label {''.join(label)}"
