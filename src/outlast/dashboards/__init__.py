"""A Grafana dashboard and Prometheus alert rules for the metrics of outlast, as text.

`outlast.json` and `alerts.yml` are made by `make docs` from docs/dashboard.py and docs/alerts.py: a
change belongs there.
"""

from __future__ import annotations

from importlib.resources import files


def dashboard() -> str:
    """The dashboard's JSON, for Grafana's import and for provisioning."""
    return _read("outlast.json")


def alerts() -> str:
    """The alert rules, for Prometheus' `rule_files`."""
    return _read("alerts.yml")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
