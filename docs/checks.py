"""The tables of docs/check.md: the rules of `outlast check`, and the gaps that it computes."""

from __future__ import annotations

from outlast.cli.check_findings import Section
from outlast.cli.check_model import worst_gaps
from outlast.cli.check_rules import RULES
from outlast.cli.check_view import Cluster
from outlast.config import settings

Rows = list[tuple[str, ...]]
RULES_HEAD = ("about", "rule", "it asks", "if not", "why")
GAPS_HEAD = ("what fails", "at most", "which is the sum of")


def rules() -> Rows:
    """Every rule, by section."""
    order = list(Section)
    return [
        (
            rule.section.value,
            f"`{rule.name}`",
            rule.asks,
            " or ".join(severity.value for severity in rule.severities),
            f"{rule.why} ({rule.facts})" if rule.facts else rule.why,
        )
        for rule in sorted(RULES, key=lambda rule: order.index(rule.section))
    ]


def gaps() -> Rows:
    """Each kind of failure, by Kafka's defaults and ours."""
    nothing_read = Cluster(cluster_id=None, brokers=(), topics=())
    return [
        (
            worst.kind.said,
            f"{worst.seconds:.1f} s",
            ", ".join(
                (f"{part.times} × " if part.times > 1 else "")
                + f"{part.each_s:.4g} s {part.what}"
                + (f" (`{part.setting}`)" if part.setting else "")
                for part in worst.parts
            ),
        )
        for worst in worst_gaps(nothing_read, settings())
    ]
