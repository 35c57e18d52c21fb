"""What screens have in common: lines with the time, and on a terminal a panel below them."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

Shown = TypeVar("Shown", bound="LiveScreen")


class LiveScreen:
    """The common part. Use it as a context manager.

    Args:
        status_every_s: without a terminal, the counts are told so often.

    Attributes:
        begin_s: when it was made, in monotonic seconds.
    """

    def __init__(self, console: Console, status_every_s: float) -> None:
        self.begin_s = time.monotonic()
        self._console = console
        self._status_every_s = status_every_s
        self._status_s = self.begin_s
        self._live = (
            Live(console=console, auto_refresh=False, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self: Shown) -> Shown:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Tell what happens now."""
        self._console.print(Text.assemble((f"{self._elapsed_s():6.1f} s  ", "dim"), text))

    def _show(self, panel: Callable[[], RenderableType], counts: Callable[[], str]) -> None:
        """The panel; without a terminal the counts, now and then."""
        if self._live:
            self._live.update(panel(), refresh=True)
        elif time.monotonic() - self._status_s >= self._status_every_s:
            self._status_s = time.monotonic()
            self.say(counts())

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.begin_s
