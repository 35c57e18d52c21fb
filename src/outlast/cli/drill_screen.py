"""What a drill shows while it runs: a live table on a terminal, lines of what happens in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from outlast.cli.drill_leaders import Watch
from outlast.cli.drill_ledger import Ledger
from outlast.cli.drill_tables import changed, length, named, node
from outlast.cli.live_screen import LiveScreen
from outlast.cli.tables import PHASE_STYLES
from outlast.engine.messages import Gap, Stall

STATUS_S = 10.0
PAUSE_S = 1.0  # a longer one between two acks is told
FRAME_ROWS = 7  # of the panel, beside the partitions
FEWEST_ROWS = 3


class Screen(LiveScreen):
    """Shows how the partitions do: call `refresh` often."""

    def __init__(
        self, console: Console, partitions: Sequence[int], ledger: Ledger, watch: Watch
    ) -> None:
        super().__init__(console, STATUS_S)
        self._partitions = partitions
        self._ledger = ledger
        self._watch = watch
        self._gaps: dict[int, Gap] = {}
        self._stalls: dict[int, Stall] = {}
        self._changes_told = 0
        self._footer = ""

    def footer(self, text: str) -> None:
        """What stands under the table."""
        self._footer = text

    def refresh(self, gaps: Iterable[Gap], stalls: Iterable[Stall]) -> None:
        """Show these gaps and stalls, of the whole drill so far; tell what is new."""
        self._tell_changes()
        self._tell_gaps({gap.number: gap for gap in gaps})
        self._tell_stalls({stall.number: stall for stall in stalls})
        self._show(self._panel, self._counts)

    # --- lines ------------------------------------------------------------------------------------

    def _tell_changes(self) -> None:
        new = self._watch.changes[self._changes_told :]
        self._changes_told += len(new)
        if new:
            self.say(changed(new))

    def _tell_gaps(self, gaps: dict[int, Gap]) -> None:
        opened = [gap for number, gap in gaps.items() if number not in self._gaps]
        for cause, leader in sorted({(gap.cause.value, gap.old_leader) for gap in opened}):
            of = [g.partition for g in opened if (g.cause.value, g.old_leader) == (cause, leader)]
            self.say(f"gap: {named(of)} ({cause}, leader {node(leader)})")
        ended = [g for n, g in gaps.items() if g.ended_by and not _over(self._gaps.get(n))]
        if ended:
            longest_s = max(gap.duration_s for gap in ended)
            over = f"gap over: {named([gap.partition for gap in ended])}"
            self.say(f"{over} after {'at most ' if len(ended) > 1 else ''}{length(longest_s)}")
        self._gaps = gaps

    def _tell_stalls(self, stalls: dict[int, Stall]) -> None:
        opened = [stall for number, stall in stalls.items() if number not in self._stalls]
        for reason in sorted({stall.reason for stall in opened}):
            of = [stall.partition for stall in opened if stall.reason == reason]
            self.say(f"stall: {named(of)} (for a {reason})")
        ended = [s for n, s in stalls.items() if s.ended_by and not _over(self._stalls.get(n))]
        if ended:
            longest_s = max(stall.duration_s for stall in ended)
            over = f"stall over: {named([stall.partition for stall in ended])}"
            self.say(f"{over} after {'at most ' if len(ended) > 1 else ''}{length(longest_s)}")
        self._stalls = stalls

    # --- the panel --------------------------------------------------------------------------------

    def _panel(self) -> RenderableType:
        gaps = {gap.partition: gap for gap in self._gaps.values() if gap.ended_by is None}
        stalls = {it.partition: it for it in self._stalls.values() if it.ended_by is None}
        rows = max(FEWEST_ROWS, self._console.height - FRAME_ROWS)
        troubled = [p for p in self._partitions if p in gaps or p in stalls]
        others = [p for p in self._partitions if p not in gaps and p not in stalls]
        shown = sorted([*troubled, *others][:rows])
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("partition", justify="right")
        table.add_column("leader")
        table.add_column("now")
        for name in ("acked", "gaps", "longest", "read"):
            table.add_column(name, justify="right")
        for partition in shown:
            table.add_row(*self._row(partition, gaps.get(partition), stalls.get(partition)))
        hidden = len(self._partitions) - len(shown)
        more = f"and {hidden} more partitions · " if hidden else ""
        return Group("", table, Text(f"{more}{self._counts()}", "dim"), Text(self._footer, "dim"))

    def _row(self, partition: int, gap: Gap | None, stall: Stall | None) -> list[Text | str]:
        of, now = self._ledger[partition], time.monotonic()
        leader = self._watch.leaders.get(partition)
        own = [gap for gap in self._gaps.values() if gap.partition == partition]
        longest_s = max((gap.duration_s for gap in own), default=0.0)
        unread_s = now - (of.last_read_s or self.begin_s)
        return [
            str(partition),
            node(leader.node_id if leader else -1),
            self._state(partition, gap, stall),
            f"{of.acknowledged:,}",
            str(len(own) or ""),
            length(longest_s) if own else "",
            Text(f"{unread_s:.1f} s ago", "yellow" if unread_s > PAUSE_S else "dim"),
        ]

    def _state(self, partition: int, gap: Gap | None, stall: Stall | None) -> Text:
        if gap is not None and gap.phase is not None:
            return Text(f"gap {length(gap.duration_s)} {gap.phase.value}", PHASE_STYLES[gap.phase])
        if stall is not None:
            return Text(f"stall {length(stall.duration_s)} ({stall.reason})", "yellow")
        oldest_s = self._ledger.oldest_s(partition)
        waits_s = 0.0 if oldest_s is None else time.monotonic() - oldest_s
        if waits_s > PAUSE_S:
            return Text(f"no ack for {length(waits_s)}", "yellow")
        return Text("accepting", "green")

    def _counts(self) -> str:
        parts = [self._ledger[partition] for partition in self._partitions]
        acked, failed = sum(of.acknowledged for of in parts), sum(of.failed for of in parts)
        waiting = sum(of.unsettled for of in parts)
        open_gaps = sum(gap.ended_by is None for gap in self._gaps.values())
        open_stalls = sum(stall.ended_by is None for stall in self._stalls.values())
        return (
            f"acknowledged {acked:,} · waiting {waiting:,} · failed {failed:,} · "
            f"open gaps {open_gaps} · stalls {open_stalls}"
        )


def _over(seen: Gap | Stall | None) -> bool:
    """Whether it had ended when it was looked at the last time."""
    return seen is not None and seen.ended_by is not None
