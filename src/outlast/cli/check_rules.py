"""All rules of `outlast check`, and what they find together."""

from __future__ import annotations

from outlast.cli import check_loss, check_single, check_time  # noqa: F401  (they add their rules)
from outlast.cli.check_findings import RULES, Finding, Known, Section, Severity

__all__ = ["RULES", "examine", "exit_code"]

ERRORS, WARNINGS = 2, 1


def examine(known: Known) -> dict[Section, list[Finding]]:
    """What every rule finds, by section, in the order of the report."""
    found: dict[Section, list[Finding]] = {section: [] for section in Section}
    for rule in RULES:
        found[rule.section] += rule.findings(known)
    return found


def exit_code(findings: list[Finding], *, unread: bool, strict: bool) -> int:
    """Of the process: 2 if there is an error; with `strict` 1 if there is a warning, or something
    could not be read; else 0.
    """
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return ERRORS
    doubtful = unread or severities & {Severity.WARNING, Severity.UNREAD}
    return WARNINGS if strict and doubtful else 0
