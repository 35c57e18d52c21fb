"""A headless Chromium for tests, spoken to over two pipes: no port, no driver, no library.

The DevTools protocol, one JSON message per command, each ended by a zero byte: the browser reads
them from descriptor 3 and answers on descriptor 4 (`--remote-debugging-pipe`).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ANSWER_S = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # where tests run as root there is none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


PLACE_PIPES = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(it), fcntl.F_DUPFD, 10) for it in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""  # where the browser looks for them; two pipes may come as 4 and 3, so not one after the other


def executable() -> str | None:
    """The browser's path, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Chromium:
    """One browser with one page. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._rest = b""
        self._target: str | None = None  # the page, once there is one
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Chromium:
        read_by_it, self._to = os.pipe()
        self._from, written_by_it = os.pipe()
        browser = executable()
        assert browser is not None
        place = [sys.executable, "-ISc", PLACE_PIPES, str(read_by_it), str(written_by_it)]
        self._process = subprocess.Popen(
            [*place, browser, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"],
            pass_fds=(read_by_it, written_by_it),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_it)
        os.close(written_by_it)
        try:
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
            self._target = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._ask(f"{domain}.enable")
            self._ask("Performance.enable", timeDomain="threadTicks")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._target = None
                self._ask("Browser.close")
                self._process.wait(ANSWER_S)
        finally:
            self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    # --- what a person would do -----------------------------------------------------------------

    def open(self, path: Path) -> None:
        """Show a file, and wait until it is loaded."""
        self.events.clear()
        self._ask("Page.navigate", url=path.as_uri())
        self._until("Page.loadEventFired")

    def window(self, width: int, height: int = 800, *, touch: bool = False) -> None:
        """Give the window this size in pixels."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )

    def media(self, *, scheme: str = "light", kind: str = "screen") -> None:
        """Light or dark, on a screen or on paper."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._ask("Emulation.setEmulatedMedia", media=kind, features=features)

    def scripts(self, on: bool) -> None:
        """Let pages opened from now on run their scripts, or not."""
        self._ask("Emulation.setScriptExecutionDisabled", value=not on)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the pointer there."""
        self._mouse("mouseMoved", x, y)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button there."""
        self.drag((x, y), (x, y))

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the left button at one place and release it at another."""
        self._mouse("mouseMoved", *begin)
        self._mouse("mousePressed", *begin, button="left", clickCount=1)
        if end != begin:
            for part in (0.5, 1.0):
                x, y = (a + (b - a) * part for a, b in zip(begin, end, strict=True))
                self._mouse("mouseMoved", x, y, buttons=1)
        self._mouse("mouseReleased", *end, button="left", clickCount=1)

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        """Press and release a key, by its DOM name."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
        arguments = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self._ask("Input.dispatchKeyEvent", type="keyDown", **arguments, **text)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **arguments)

    # --- what a person would see ----------------------------------------------------------------

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions that nobody caught."""
        found = []
        for event in self.events:
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(told["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and told["entry"]["level"] != "verbose":
                found.append(told["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(json.dumps(told["args"]))
        return found

    def requests(self) -> list[str]:
        """Everything that the page asked for, itself included."""
        asked = (e for e in self.events if e["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]

    def dialogs(self) -> list[str]:
        """What the page asked or told the user in a dialog."""
        asked = (e for e in self.events if e["method"] == "Page.javascriptDialogOpening")
        return [event["params"]["message"] for event in asked]

    def cpu_s(self) -> float:
        """Seconds of processor time that the page's thread has taken since it was opened."""
        metrics = self._ask("Performance.getMetrics")["metrics"]
        value: float = next(it["value"] for it in metrics if it["name"] == "TaskDuration")
        return value

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page, or of the window."""
        answer = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, path: Path) -> None:
        """The page on A4."""
        answer = self._ask(
            "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    # --- the protocol ---------------------------------------------------------------------------

    def _ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._target:
            message["sessionId"] = self._target
        os.write(self._to, json.dumps(message).encode() + b"\0")
        number = self._number
        while True:
            heard = self._hear()
            if heard.get("id") == number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                answer: dict[str, Any] = heard["result"]
                return answer

    def _until(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self._hear()

    def _hear(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            more = os.read(self._from, 1 << 20)
            assert more, "Chromium has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(message)
        if "method" in heard:
            self.events.append(heard)
        return heard
