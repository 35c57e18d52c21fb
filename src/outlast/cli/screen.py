"""What a demo shows while it runs: a live panel on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from outlast.cli.live_screen import LiveScreen
from outlast.cli.load import Load
from outlast.cli.tables import PHASE_STYLES
from outlast.engine.messages import Gap

REFRESH_S = 0.25
STATUS_S = 2.0
PAUSE_S = 1.0  # a longer one between acks is told
HISTORY = 24  # refreshes
BARS = " ▁▂▃▄▅▆▇█"


class Screen(LiveScreen):
    """Shows a load's progress while the caller waits.

    Args:
        gaps: gives the gaps so far.
        leaders: gives each partition's leader, by partition.
        limit_s: waiting ends by then, counted from the start, whatever it waits for.
    """

    def __init__(
        self,
        console: Console,
        load: Load,
        topic: str,
        gaps: Callable[[], list[Gap]],
        leaders: Callable[[], list[int]],
        limit_s: float,
    ) -> None:
        super().__init__(console, STATUS_S)
        self.done: list[tuple[float, str]] = []  # when, in monotonic seconds, and what
        self._load = load
        self._topic = topic
        self._gaps = gaps
        self._leaders = leaders
        self._limit_s = limit_s
        self._acked = [0] * len(load.sent)
        self._history: list[deque[int]] = [deque(maxlen=HISTORY) for _ in load.sent]

    def do(self, text: str) -> None:
        """Tell what is done to the cluster now, and remember it."""
        self.done.append((time.monotonic(), text))
        self.say(text)

    def wait(self, at_least_s: float, until: Callable[[], bool] = lambda: True) -> None:
        """Show progress for so long, and until the condition holds or time is up."""
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < at_least_s or not until():
            if self._elapsed_s() > self._limit_s:
                return
            time.sleep(REFRESH_S)
            self._refresh()

    def _refresh(self) -> None:
        for partition, acked in enumerate(map(len, self._load.acknowledged.values())):
            self._history[partition].append(acked - self._acked[partition])
            self._acked[partition] = acked
        self._show(self._panel, self._counts)

    def _counts(self) -> str:
        sent, acked = sum(self._load.sent), sum(self._acked)
        waiting = sent - acked - len(self._load.failures)
        return f"acknowledged {acked:,} · waiting {waiting:,} · failed {len(self._load.failures):,}"

    def _panel(self) -> RenderableType:
        open_gaps = {gap.partition: gap for gap in self._gaps() if gap.phase is not None}
        table = Table.grid(padding=(0, 2))
        scale = (len(BARS) // 2) / (self._load.rate * REFRESH_S)  # the steady rate: half a bar
        for partition, leader in enumerate(self._leaders()):
            history = self._history[partition]
            bars = "".join(BARS[min(round(count * scale), len(BARS) - 1)] for count in history)
            table.add_row(
                f"{self._topic}-{partition}",
                f"node {leader}" if leader >= 0 else "no leader",
                f"{self._acked[partition]:,}",
                Text(f"{bars:>{HISTORY}}"[-HISTORY:], "cyan"),
                self._state(partition, open_gaps.get(partition)),
            )
        return Group("", table, Text(self._counts(), "dim"))

    def _state(self, partition: int, gap: Gap | None) -> Text:
        if gap is not None and gap.phase is not None:
            return Text(f"gap {gap.duration_s:.1f} s {gap.phase.value}", PHASE_STYLES[gap.phase])
        last_ack_s = self._load.last_ack_s[partition]
        pause_s = time.monotonic() - (last_ack_s or self.begin_s)
        if pause_s > PAUSE_S:
            return Text(f"no ack for {pause_s:.1f} s", "yellow")
        return Text("accepting", "green")
