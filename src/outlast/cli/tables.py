"""Gaps and stalls as a table that fits 80 columns: two lines each, times in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from outlast.engine.messages import Gap, GapOutcome, Phase, Stall

PHASE_STYLES = {
    Phase.DETECTING: "yellow",
    Phase.UNAVAILABLE: "red",
    Phase.RECONNECTING: "magenta",
    Phase.RESUMING: "cyan",
}
HEADINGS = {
    Phase.DETECTING: "detect",
    Phase.UNAVAILABLE: "unavail",
    Phase.RECONNECTING: "reconn",
    Phase.RESUMING: "resume",
}
LEGEND = (
    "Times in ms. Whose time a gap was: detecting, until the first refusal; unavailable, the "
    "cluster's; reconnecting, ours; resuming, until the ack. A stall is no gap: nothing was "
    "refused, but acks=all waits: for a dead follower until the cluster gives it up, or for a slow "
    "leader. In the slow lane, a connection of their own, such partitions hold up no others."
)

_OUTCOME_STYLES = {
    GapOutcome.ABSORBED: "green",
    GapOutcome.REPORTED: "bold red",
    GapOutcome.ABANDONED: "yellow",
}


def gap_table(
    gaps: Sequence[Gap],
    stalls: Sequence[Stall],
    topic: str,
    partitions: Sequence[int],
    start_s: float,
    *,
    bare: bool = False,
) -> Table:
    """A row for every gap and stall, by partition, and one for each partition without.

    Args:
        start_s: the moment, on the gaps' monotonic clock, from which *began* counts.
        bare: name a partition by its number alone: the topic's name is too long, and told above.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("partition\n[dim]cause[/]", no_wrap=True)
    for name in ("began", "length"):
        table.add_column(name, justify="right", no_wrap=True)
    for phase, heading in HEADINGS.items():
        table.add_column(heading, justify="right", no_wrap=True, style=PHASE_STYLES[phase])
    table.add_column("leader\n[dim]epoch[/]", no_wrap=True)
    table.add_column("outcome\n[dim]attempts[/]", no_wrap=True)
    for partition in partitions:
        name = str(partition) if bare else f"{topic}-{partition}"
        both: list[Gap | Stall] = [*gaps, *stalls]
        own = [it for it in both if (it.topic, it.partition) == (topic, partition)]
        for it in sorted(own, key=lambda it: it.begin_s):
            row = _cells(it, start_s) if isinstance(it, Gap) else _stall_cells(it, start_s)
            table.add_row(_two(name, _why(it)), *row)
        if not own:
            table.add_row(name, *[""] * 7, Text("no gap", "dim"))
    return table


def _cells(gap: Gap, start_s: float) -> list[Text | str]:
    outcome = gap.outcome.value if gap.outcome else "open" if gap.phase else "unsettled"
    style = _OUTCOME_STYLES.get(gap.outcome, "yellow") if gap.outcome else "yellow"
    return [
        _ms(gap.begin_s - start_s),
        Text(_ms(gap.duration_s), "bold"),
        *(_ms(getattr(gap, f"{phase.value}_s")) for phase in Phase),
        _two(
            f"{_node(gap.old_leader)} → {_node(gap.new_leader)}",
            f"{_node(gap.old_leader_epoch)} → {_node(gap.new_leader_epoch)}",
        ),
        Text.assemble((outcome, style), "\n", (f"{gap.attempts:,}", "dim")),
    ]


def _stall_cells(stall: Stall, start_s: float) -> list[Text | str]:
    return [
        _ms(stall.begin_s - start_s),
        Text(_ms(stall.duration_s), "bold"),
        *[""] * len(Phase),
        _two(_node(stall.node_id), f"{stall.lane} lane"),
        Text("waited" if stall.ended_by else "open", "dim" if stall.ended_by else "yellow"),
    ]


def _why(it: Gap | Stall) -> str:
    return it.cause.value if isinstance(it, Gap) else f"stall: {it.reason}"


def _two(above: str, below: str) -> Text:
    return Text.assemble(above, "\n", (below, "dim"))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}"


def _node(number: int) -> str:
    return "–" if number < 0 else str(number)
