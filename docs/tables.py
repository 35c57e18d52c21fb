"""Keeps the tables in the documents true: made from the code, between two marks in the page.

`make docs` rewrites them, and the dashboard and the alert rules beside them; `tests/test_docs.py`
fails when a page or file says something else.
"""

from __future__ import annotations

import ast
import re
import selectors
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path

import outlast
from docs import alerts, checks, commands, dashboard, designs, exceptions
from outlast import config, texts
from outlast.cli import drill_result
from outlast.engine import transaction_state, txn_verdict, verdict
from outlast.engine.messages import AttemptState
from outlast.environment import variable
from outlast.observe import attributes
from outlast.observe.metrics import ATTRIBUTES, METRICS
from outlast.testing import faults as kinds

FOLDER = Path(__file__).parent
WITH_OFFSET = "base_offset ≥ 0"


def verdicts() -> str:
    """What each answer to a Produce request means.

    Left to sentences of the page: codes that mean nothing special, and an error's base_offset ≥ 0
    where it does nothing but what it does to every error.
    """
    rows = verdict.table()
    usual = {row.code: row.judgement for row in rows if row.code is not None and not row.when}
    rest = usual[1]  # a code that no broker answers to Produce
    rest_codes = [code for code, j in usual.items() if _bare(j) == _bare(rest)]
    shown = [
        ("" if row.code is None else str(row.code), _signal(row), *_meaning(row.judgement))
        for row in rows
        if row.code not in rest_codes
        and not (
            row.when == WITH_OFFSET
            and row.code is not None
            and row.judgement == _appended(usual[row.code])
        )
    ]
    shown.append(("", f"the other {len(rest_codes)} codes, and unknown ones", *_meaning(rest)))
    return _table(("code", "signal", "verdict", "this attempt is", "cause of the gap"), shown)


def _signal(row: verdict.Row) -> str:
    return f"{row.judgement.name}, {row.when}" if row.when else row.judgement.name


def _bare(judgement: verdict.Judgement) -> verdict.Judgement:
    return replace(judgement, name="", error_code=None)


def _appended(usual: verdict.Judgement) -> verdict.Judgement:
    """An error with an offset: the attempt is doubtful, and REFRESH becomes UNSURE."""
    refresh = usual.verdict is verdict.Verdict.REFRESH
    unsure = verdict.Verdict.UNSURE if refresh else usual.verdict
    return replace(usual, verdict=unsure, state=AttemptState.DOUBTFUL)


def _meaning(judgement: verdict.Judgement) -> tuple[str, str, str]:
    if judgement.stall:
        cause = "none: a stall"
    else:
        cause = judgement.cause.value if judgement.cause else "none"
    return judgement.verdict.name, judgement.state.value, cause


def settings() -> str:
    """Every keyword of the producer."""
    return _table(
        ("keyword", "default", "meaning"),
        ((f"`{s.name}`", _default(s), s.doc) for s in config.SETTINGS.values()),
    )


def differences() -> str:
    """Keywords that kafka-python does not have, or whose meaning or default is another one."""
    return _table(
        ("keyword", "default", "what differs"),
        (
            (f"`{s.name}`", _default(s), s.differs if s.differs != "new" else f"new: {s.doc}")
            for s in config.SETTINGS.values()
            if s.differs
        ),
    )


def variables() -> str:
    """Every setting's variable; those that kafka-python does not have first."""
    ordered = sorted(config.SETTINGS.values(), key=lambda setting: setting.differs != "new")
    return _table(
        ("variable", "its text", "default"),
        ((f"`{variable(s.name)}`", texts.written(s.check), _default(s)) for s in ordered),
    )


def files() -> str:
    """Every file of the package, by the first sentence of its docstring."""
    package = Path(outlast.__file__).parent
    order = sorted(package.rglob("*.py"), key=lambda p: (p.parent != package, str(p)))
    return _table(
        ("file", "what it is for"),
        ((f"`{path.relative_to(package)}`", _first_line(path)) for path in order),
    )


def _first_line(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return said.splitlines()[0] if said else ""


def faults() -> str:
    """Every kind of fault, by its docstring."""
    common = {field.name for field in fields(kinds.Fault)}
    return _table(
        ("fault", "what happens"),
        (
            (f"`{name}({', '.join(f.name for f in fields(kind) if f.name not in common)})`", said)
            for name, kind in vars(kinds).items()
            if isinstance(kind, type) and issubclass(kind, kinds.Fault) and kind is not kinds.Fault
            for said in [" ".join((kind.__doc__ or "").split())]
        ),
    )


def metrics() -> str:
    """Every metric, and a query to begin with."""
    return _table(
        ("metric", "type", "labels", "what it tells", "for example"),
        (
            (
                f"`{metric.name}`",
                metric.kind.value,
                ", ".join(metric.labels),
                metric.help,
                f"`{metric.example}`",
            )
            for metric in METRICS.values()
        ),
    )


def otel_metrics() -> str:
    """The metrics by their names in OpenTelemetry."""
    return _table(
        ("OpenTelemetry", "unit", "attributes", "Prometheus"),
        (
            (
                f"`{metric.otel}`",
                f"`{metric.unit}`",
                ", ".join(f"`{ATTRIBUTES[label]}`" for label in metric.labels),
                f"`{metric.name}`",
            )
            for metric in METRICS.values()
        ),
    )


def gap_span() -> str:
    """Every attribute of a gap's span."""
    start = {n: a.meaning for n, a in attributes.GAP_AT_START.items()} | attributes.GAP_SERVER
    end = {n: a.meaning for n, a in attributes.GAP_AT_END.items() if n not in start}
    end |= attributes.GAP_COUNTED | attributes.GAP_PEER | attributes.GAP_ERROR
    return _table(
        ("attribute", "known at", "what it tells"),
        (
            *((f"`{name}`", "start", said) for name, said in (attributes.COMMON | start).items()),
            *((f"`{name}`", "end", said) for name, said in end.items()),
        ),
    )


def send_span() -> str:
    """Every attribute of a record's span."""
    told = attributes.COMMON | attributes.SEND
    return _table(("attribute", "what it tells"), ((f"`{n}`", said) for n, said in told.items()))


def _default(setting: config.Setting) -> str:
    value = setting.default
    if setting.name == "socket_options":
        return "`TCP_NODELAY`"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"`{value:_}`"
    if value is selectors.DefaultSelector:  # which class that is depends on the machine
        return "`DefaultSelector`"
    if isinstance(value, type):
        return f"`{value.__name__}`"
    shown = repr(value)
    return f"`{type(value).__name__}`" if shown.startswith("<") else f"`{shown}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def check_rules() -> str:
    """What `outlast check` asks."""
    return _table(checks.RULES_HEAD, checks.rules())


def check_gaps() -> str:
    """How long failures can last, by Kafka's default clocks."""
    return _table(checks.GAPS_HEAD, checks.gaps())


def drill_exits() -> str:
    """What a drill's exit code says."""
    rows = ((str(code), verdict, told) for code, verdict, told in drill_result.exit_codes())
    return _table(("exit code", "verdict", "meaning"), rows)


def transaction_states() -> str:
    """The state machine of transactions."""
    return f"```mermaid\n{transaction_state.diagram()}\n```"


def coordinator_codes() -> str:
    """What a coordinator's codes do."""
    rows = (
        (str(j.error_code), j.name, j.verdict.name, j.cause.value if j.cause else "none")
        for j in txn_verdict.table()
    )
    rest = ("", "all others", txn_verdict.judge_coordinator(1).verdict.name, "none")
    verdicts = [(f"{v.name}", v.meaning) for v in txn_verdict.TxnVerdict]
    return "\n\n".join(
        (
            _table(("verdict", "meaning"), verdicts),
            _table(("code", "name", "verdict", "cause of the gap"), [*rows, rest]),
        )
    )


def exception_classes() -> str:
    """Every exception of outlast."""
    return _table(("exception", "is also", "when"), exceptions.tree())


def failure_kinds() -> str:
    """Every kind of failure that no broker's code tells."""
    return _table(("`kind`", "is also", "meaning"), exceptions.kinds())


def design_figures() -> str:
    """What a failover costs in other designs, as the simulator measures it."""
    return _table(designs.HEAD, designs.figures())


def design_phases() -> str:
    """Whose time that is."""
    return _table(designs.PHASES_HEAD, designs.phases())


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "files": ("architecture.md", files),
    "verdicts": ("failure-semantics.md", verdicts),
    "settings": ("settings.md", settings),
    "variables": ("swap.md", variables),
    "differences": ("compatibility.md", differences),
    "faults": ("testing.md", faults),
    "metrics": ("observability.md", metrics),
    "otel metrics": ("observability.md", otel_metrics),
    "gap span": ("observability.md", gap_span),
    "send span": ("observability.md", send_span),
    "dashboard": ("observability.md", dashboard.overview),
    "alerts": ("observability.md", alerts.runbook),
    "check-gaps": ("check.md", check_gaps),
    "checks": ("check.md", check_rules),
    "drill exits": ("drill.md", drill_exits),
    "transaction states": ("transactions.md", transaction_states),
    "coordinator codes": ("transactions.md", coordinator_codes),
    "commands": ("reference/commands.md", commands.reference),
    "designs": ("explanation/designs.md", design_figures),
    "design phases": ("explanation/designs.md", design_phases),
    "exceptions": ("reference/exceptions.md", exception_classes),
    "failure kinds": ("reference/exceptions.md", failure_kinds),
}
FILES: dict[Path, Callable[[], str]] = {  # that are made whole
    dashboard.PATH: dashboard.text,
    alerts.PATH: alerts.text,
}


def rewritten(name: str, text: str) -> str:
    """The page with this table made anew."""
    _, make = TABLES[name]
    begin, end = f"<!-- table: {name} (make docs) -->", "<!-- end -->"
    made, count = _between(name).subn(lambda _: f"{begin}\n{make()}\n{end}", text)
    assert count == 1, f"the page needs one pair of marks {begin} … {end}"
    return made


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- table: {name} .*?-->.*?<!-- end -->", re.DOTALL)


if __name__ == "__main__":
    for name, (page, _) in TABLES.items():
        path = FOLDER / page
        path.write_text(rewritten(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    for path, made in FILES.items():
        path.write_text(made(), encoding="utf-8")
