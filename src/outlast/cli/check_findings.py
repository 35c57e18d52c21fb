"""What `outlast check` says: findings, their severity, and the rules that make them.

A rule is a function from what is known to findings, with the question it asks and the reason why
that matters; the table in docs/check.md is made of these. Severities have one meaning each:

* error: one ordinary failure (a broker stops, dies or goes silent) loses records or outlasts the
  producer's patience;
* warning: it takes two failures at once, or a moment of bad luck;
* unread: it could not be judged, since a setting could not be read;
* note: nothing is wrong; worth knowing;
* ok: it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from outlast.cli.check_model import Kind, Worst
from outlast.cli.check_view import Cluster, Producer, Rate, Topic, named


class Severity(Enum):
    """How bad it is, from good to bad."""

    OK = "ok"
    NOTE = "note"
    UNREAD = "unread"
    WARNING = "warning"
    ERROR = "error"


class Section(Enum):
    """What rules are about, in the order of the report."""

    LOSS = "Loss"
    TIME = "Outlasting a failure"
    SINGLE = "Single points"
    BESIDE = "And else"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that holds or does not. `advice` is the value to set, `reason` why."""

    severity: Severity
    said: str
    advice: str = ""
    reason: str = ""
    topics: tuple[str, ...] = ()
    rule: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "rule": self.rule,
            "severity": self.severity.value,
            "said": self.said,
            "recommended": self.advice or None,
            "reason": self.reason,
            "topics": list(self.topics),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that rules may look at."""

    cluster: Cluster
    producer: Producer
    worst: tuple[Worst, ...]
    rate: Rate | None = None

    @property
    def worst_s(self) -> float:
        """The longest time without an ack, of all kinds of failure."""
        return max(worst.seconds for worst in self.worst)

    @property
    def worst_gap_s(self) -> float:
        """The longest gap: the same without stalls."""
        return max(worst.seconds for worst in self.worst if worst.kind is not Kind.FOLLOWER)


Judge = Callable[[Known], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A question, and who answers it."""

    name: str
    section: Section
    asks: str
    why: str
    severities: tuple[Severity, ...]  # that it can come to, beside ok and unread
    facts: str  # rows of docs/kafka-facts.md behind it
    judge: Judge = field(repr=False)

    def findings(self, known: Known) -> Iterator[Finding]:
        """What it finds; the reason is the rule's where a finding has none of its own."""
        for finding in self.judge(known):
            assert finding.severity in (Severity.OK, Severity.UNREAD, *self.severities)
            told = finding.reason or ("" if finding.severity is Severity.UNREAD else self.why)
            yield replace(finding, rule=self.name, reason=told)


RULES: list[Rule] = []


def rule(
    section: Section, asks: str, *severities: Severity, why: str, facts: str = ""
) -> Callable[[Judge], Judge]:
    """Make a rule of a function; its name is the function's."""

    def add(judge: Judge) -> Judge:
        RULES.append(Rule(judge.__name__, section, asks, why, severities, facts, judge))
        return judge

    return add


def ok(said: str, *, topics: tuple[str, ...] = ()) -> Finding:
    """It holds."""
    return Finding(Severity.OK, said, topics=topics)


def unread(said: str, *, topics: tuple[str, ...] = ()) -> Finding:
    """Nobody can tell."""
    return Finding(Severity.UNREAD, said, topics=topics)


def by_topic(known: Known, judge: Callable[[Topic], Finding | None]) -> Iterator[Finding]:
    """One finding for all topics of which the same is true; what they are called comes behind."""
    groups: dict[Finding, list[Topic]] = {}
    for topic in known.cluster.topics:
        finding = judge(topic)
        if finding is not None:
            groups.setdefault(finding, []).append(topic)
    for finding, topics in groups.items():
        names = named(topics)
        said = f"{finding.said} · {some(names)}"
        yield Finding(finding.severity, said, finding.advice, finding.reason, names)


def some(names: tuple[str, ...], limit: int = 3) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def seconds(value: float) -> str:
    """A time as a reader wants it."""
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:,.0f} s"
