"""`outlast dashboard`: the Grafana dashboard or the alert rules, for a file."""

from __future__ import annotations

import sys

from outlast import dashboards


def run(*, alerts: bool) -> int:
    """Print it; the process's exit code."""
    sys.stdout.write(dashboards.alerts() if alerts else dashboards.dashboard())
    return 0
