"""How `outlast check` tells what it found: as text for people, as JSON for programs.

Rules: severities are words, so that nothing is lost without colour; what holds is one line each,
what does not has the value to set and the reason below it; the worst comes first in its section.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.cli.check_findings import Finding, Known, Section, Severity, seconds
from outlast.cli.check_model import Kind, Worst
from outlast.cli.check_time import lasts_s, margin_s
from outlast.config import DEFAULTS, LONGEST_S

STYLES = {
    Severity.OK: "green",
    Severity.NOTE: "cyan",
    Severity.UNREAD: "magenta",
    Severity.WARNING: "yellow",
    Severity.ERROR: "bold red",
}
WORST_FIRST = sorted(Severity, key=list(Severity).index, reverse=True)

Found = Mapping[Section, Sequence[Finding]]


def show(console: Console, known: Known, found: Found, code: int) -> None:
    """Print the report."""
    console.print(_head(known))
    console.print()
    console.print(Text("The longest time without an ack, by the cluster's clocks", "bold"))
    for line in (*_gaps(known, console.width - 2), *_below_gaps(known)):
        console.print(Padding(line, (0, 0, 0, 2), expand=False))
    for section, findings in found.items():
        if findings:
            console.print()
            console.print(Text(section.value, "bold"))
            console.print(_findings(findings))
    _show_unread(console, known)
    console.print()
    console.print(_summary(found, code))


def _head(known: Known) -> Text:
    cluster, producer = known.cluster, known.producer
    made = {True: "KRaft", False: "ZooKeeper", None: "settings not readable"}[cluster.kraft]
    brokers, topics = len(cluster.brokers), len(cluster.topics)
    text = Text()
    text.append("cluster   ", "dim")
    text.append(
        f"{cluster.cluster_id or 'without an id'} · {brokers} broker{'s' * (brokers != 1)}"
        f" ({made}) · {topics} topic{'s' * (topics != 1)}\n"
    )
    text.append("producer  ", "dim")
    given = {
        name: producer.values[name]
        for name in producer.sources
        if name != "bootstrap_servers"
        and not name.startswith(("sasl_", "ssl_"))
        and producer.values[name] != DEFAULTS[name]
    }
    text.append(
        ", ".join(f"{name}={value}" for name, value in given.items()) or "outlast's defaults"
    )
    if given:
        text.append("; else outlast's defaults")
    if producer.ignored:
        text.append(
            f"\nignored   no settings of this producer: {', '.join(producer.ignored)}", "dim"
        )
    return text


def _gaps(known: Known, width: int) -> Iterator[RenderableType]:
    """For each kind of failure what it comes to, and below it what that is made of."""
    yield Text(f"{'what fails':<{WIDTH}}{'at most':>9}{'to spare':>11}", "dim")
    for worst in known.worst:
        left_s = margin_s(known, worst)
        style = "green" if left_s >= worst.seconds else "yellow" if left_s >= 0 else "bold red"
        spare = Text(f"{_spare(left_s):>11}", style)
        if known.producer.settings.acks == 0:
            spare = Text(f"{'–':>11}", "dim")
        at_most = Text(f"{seconds(worst.seconds):>9}", "bold")
        yield Text.assemble(f"{worst.kind.said:<{WIDTH}}", at_most, spare)
        yield Padding(Text(_parts(worst, width - 4), "dim"), (0, 0, 0, 4), expand=False)


WIDTH = max(len(kind.said) for kind in Kind)
NO_BREAK = "\u00a0"


def _spare(left_s: float) -> str:
    return f"{left_s:,.0f} s" if left_s < LONGEST_S / 2 else "no end"


def _parts(worst: Worst, width: int) -> str:
    """A sum of seconds and where they come from; no line is broken inside a summand."""
    summands = []
    for part in worst.parts:
        mark = "?" if part.setting in worst.assumed else ""
        times = f"{part.times} × " if part.times > 1 else ""
        summands.append(f"{times}{part.each_s:.4g}{mark} s {part.setting or part.what}")
    text = " + ".join(summand.replace(" ", NO_BREAK) for summand in summands)
    if worst.note:
        text += f" ({worst.note})"
    return "\n".join(textwrap.wrap(text, max(width, 20))).replace(NO_BREAK, " ")


def _below_gaps(known: Known) -> Iterator[RenderableType]:
    values = known.producer.values
    assumed = sorted({name for worst in known.worst for name in worst.assumed})
    if assumed:
        said = f"? could not be read, Kafka's default is assumed: {', '.join(assumed)}"
        yield Text(said, "magenta")
    budget = f"delivery_timeout_ms={values['delivery_timeout_ms']}"
    if values["linger_ms"]:
        budget += f", less linger_ms={values['linger_ms']},"
    yield Text(f"To spare: what is left of {budget} when it is over.", "dim")


def _findings(findings: Sequence[Finding]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=2 + max(len(s.value) for s in Severity))
    table.add_column()
    for finding in sorted(findings, key=lambda finding: WORST_FIRST.index(finding.severity)):
        told = Text(finding.said)
        if finding.severity is not Severity.OK:
            if finding.advice:
                told.append("\n→ ", "dim")
                told.append(finding.advice, "bold")
            if finding.reason:
                told.append(f"\n{finding.reason}", "dim")
        word = Text(f"  {finding.severity.value}", STYLES[finding.severity])
        table.add_row(word, told)
    return table


def _show_unread(console: Console, known: Known) -> None:
    if not known.cluster.unread:
        return
    console.print()
    console.print(Text("Could not be read", "bold"))
    by_reason: dict[str, list[str]] = {}
    for unread in known.cluster.unread:
        by_reason.setdefault(unread.why, []).append(unread.what)
    for why, what in by_reason.items():
        shown = ", ".join(what[:5]) + (f" and {len(what) - 5} more" if len(what) > 5 else "")
        console.print(
            Padding(Text.assemble(f"{shown}: ", (why, "magenta")), (0, 0, 0, 2), expand=False)
        )


def _summary(found: Found, code: int) -> Text:
    counts = count(found)
    words = [
        Text(f"{number} {severity.value}{'s' * (number != 1 and severity in PLURALS)}", style)
        for severity in WORST_FIRST
        if (number := counts[severity])
        for style in [STYLES[severity]]
    ]
    return Text.assemble(Text(" · ").join(words), (f"   exit code {code}", "dim"))


PLURALS = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


def count(found: Found) -> dict[Severity, int]:
    """How many findings there are of each severity."""
    counts = dict.fromkeys(Severity, 0)
    for findings in found.values():
        for finding in findings:
            counts[finding.severity] += 1
    return counts


# --- for programs ---------------------------------------------------------------------------------


def as_json(known: Known, found: Found, code: int) -> str:
    """The report as one JSON object."""
    cluster, producer = known.cluster, known.producer
    said = {
        "exit_code": code,
        "counts": {severity.value: number for severity, number in count(found).items()},
        "cluster": {
            "cluster_id": cluster.cluster_id,
            "kraft": cluster.kraft,
            "brokers": [
                {
                    "node_id": broker.node_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                    "configs": dict(broker.configs),
                }
                for broker in cluster.brokers
            ],
            "topics": [topic.name for topic in cluster.topics],
            "controller": cluster.controller,
            "voters": None if cluster.voters is None else list(cluster.voters),
        },
        "producer": {
            "given": {name: _plain(producer.values[name]) for name in producer.sources},
            "sources": dict(producer.sources),
            "ignored": list(producer.ignored),
        },
        "gaps": [_gap(known, worst) for worst in known.worst],
        "buffer_lasts_s": None if known.rate is None else _finite(lasts_s(known)),
        "rate_bytes_per_s": None if known.rate is None else known.rate.bytes_per_s,
        "findings": [
            {"section": section.value, **finding.to_dict()}
            for section, findings in found.items()
            for finding in findings
        ],
        "unread": [{"what": unread.what, "why": unread.why} for unread in cluster.unread],
    }
    return json.dumps(said, indent=2, allow_nan=False)


def _gap(known: Known, worst: Worst) -> dict[str, Any]:
    left_s = round(margin_s(known, worst), 3)
    return {
        "kind": worst.kind.value,
        "worst_s": round(worst.seconds, 3),
        "client_s": round(worst.client_s, 3),
        "to_spare_s": None if known.producer.settings.acks == 0 else _finite(left_s),
        "parts": [
            {"what": part.what, "seconds": round(part.seconds, 3), "setting": part.setting or None}
            for part in worst.parts
        ],
        "assumed": list(worst.assumed),
        "note": worst.note,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """JSON has no infinity, and no passwords are told."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, list, type(None))) else str(value)
