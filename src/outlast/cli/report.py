"""A run as one HTML page: gaps and stalls of every partition over time, for someone on call.

A command gathers a `Run`, plain data, and `write` makes the page. The page needs nothing but
itself: style, script and drawing are inside, it asks no network for anything, and says so to the
browser (by a Content-Security-Policy that lets no script run but its own). Without script it is
complete all the same; script adds details under the pointer and by keyboard, zoom and sorting.

What is told in words is made in `report_words`, what is drawn where in `report_page`; the form is
in `templates/`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console

from outlast.cli.report_page import Page
from outlast.cli.verify import Delivery
from outlast.engine.messages import Gap, Stall

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was done or happened, such as "node 2 is killed"."""

    at_s: float  # monotonic
    text: str


@dataclass(frozen=True, slots=True)
class Records:
    """What became of the records that were sent."""

    sent: int
    acknowledged: int
    failed: int  # told to their sender


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a page tells. Times are seconds of the clock that gaps and stalls have."""

    title: str
    begin_s: float
    begin_unix_s: float  # the same moment on the wall clock
    end_s: float
    partitions: Sequence[TopicPartition]  # a row each; those of gaps and stalls are added
    gaps: Sequence[Gap]
    stalls: Sequence[Stall] = ()
    acked: Sequence[int] = ()  # records acknowledged in each step since `begin_s`
    acked_step_s: float = 1.0
    resumed: Mapping[TopicPartition, Sequence[float]] = field(default_factory=dict)  # reading did
    marks: Sequence[Mark] = ()
    records: Records | None = None
    delivery: Delivery | None = None  # None: nothing was read back, so nothing is said of loss
    delivery_timeout_s: float | None = None  # how long a record is retried
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


def unwritable(path: Path) -> str | None:
    """Why no report can be written there, for the user; None if one can. To be asked before a run.

    Nothing is changed: a file that is there keeps its contents until `write`.
    """
    existed = path.exists()
    if existed and not path.is_file() and not path.is_dir():
        return None  # a pipe or a device: whoever reads it must not see it opened and closed
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        return f"no report can be written to {path}: {error.strerror}"
    return None


def write(run: Run, path: Path) -> None:
    """Make the page and put it there, in place of what was there.

    Raises:
        OSError: the file could not be written.
    """
    path.write_text(render(run), encoding="utf-8", errors="backslashreplace")


def save(run: Run, path: Path, console: Console) -> bool:
    """`write` at the end of a command: tell where the page is, or why there is none."""
    try:
        write(run, path)
    except OSError as error:
        console.print(f"No report was written to {path}: {error.strerror}", style="bold red")
        return False
    console.print(f"The report is in {path}")
    return True


def render(run: Run) -> str:
    """The page."""
    script, style = _template("report.js"), _template("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        page=Page(run),
        script=Markup(script),  # noqa: S704 - ours, and nothing of the run is in it
        style=Markup(style),  # noqa: S704 - likewise
        script_hash=f"sha256-{digest}",
    )


def _template(name: str) -> str:
    return (resources.files("outlast.cli") / "templates" / name).read_text(encoding="utf-8")
