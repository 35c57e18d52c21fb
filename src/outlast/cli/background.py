"""What runs beside a drill's main thread, from `start` to `stop`."""

from __future__ import annotations

import threading


class Background:
    """A thread of its own. Subclasses say in `_run` what it does, until `_stopping` is set."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> str | None:
        """End, also if it never began; what could not be done about it, in a sentence, or None."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        return None

    def _run(self) -> None:
        raise NotImplementedError
