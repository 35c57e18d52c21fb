"""The figures of docs/explanation/designs.md: its own first program, run for every design.

So the page shows what was run, and `tests/test_docs.py` fails when the simulator says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from outlast.testing import DESIGNS

PAGE = Path(__file__).parent / "explanation" / "designs.md"
NAMES = {
    "kraft": "Kafka",
    "majority": "majority write",
    "detached": "detached storage",
    "queue": "queue-shaped",
    "hosted": "hosted",
}
HEAD = (
    "design",
    "an ack takes",
    "leader killed",
    "leader stands still",
    "leader stopped in order",
    "its neighbour meanwhile",
    "a follower killed",
    "records without a key",
)
PHASES_HEAD = ("design", "trouble", "gap", "detecting", "unavailable", "reconnecting", "resuming")
SHORT_S = 0.05  # what is shorter is not worth a figure here, and changes with every millisecond


@cache
def program() -> dict[str, Any]:
    """What the first program of the page defines."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found, f"{PAGE} has no program"
    names: dict[str, Any] = {}
    exec(compile(found[1], str(PAGE), "exec"), names)  # noqa: S102  (our own page)
    return names


def figures() -> Iterable[tuple[str, ...]]:
    """Each design in a row: how long writers wait."""
    story, gap_s, stall_s, pause_s = (
        program()[name] for name in ("story", "gap_s", "stall_s", "pause_s")
    )
    for design, name in NAMES.items():
        usual = story(design, "killed").ledger.entries[:20]
        yield (
            f"{name} (`{design}`)",
            f"{1000 * median(entry.settled_at - entry.taken_at for entry in usual):.0f} ms",
            *(_said(gap_s(story(design, t), 0)) for t in ("killed", "still", "stopped")),
            _said(stall_s(story(design, "killed"), 1)),
            _said(stall_s(story(design, "follower"), 0)),
            _said(pause_s(story(design, "killed", keyed=False))),
        )


def phases() -> Iterable[tuple[str, ...]]:
    """Each gap in a row, and whose time it was."""
    story = program()["story"]
    for design, name in NAMES.items():
        for trouble, said in (("killed", "killed"), ("still", "stands still")):
            (gap,) = story(design, trouble).gaps(0, "orders")
            parts = gap.detecting_s, gap.unavailable_s, gap.reconnecting_s, gap.resuming_s
            yield name, said, _said(gap.duration_s), *map(_said, parts)


def _said(seconds: float) -> str:
    if seconds == 0:
        return "–"
    return f"{seconds:.1f} s" if seconds >= SHORT_S else f"< {SHORT_S} s"


assert set(NAMES) == set(DESIGNS) - {"fast"}, "a design without figures"
