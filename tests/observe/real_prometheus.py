"""A real Prometheus for a test: scrapes one page each second, keeps exemplars, judges alerts."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

SCRAPE_S = 1.0
JOB = "shop"
Json = dict[str, Any]

_CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: {job}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class PromqlError(Exception):
    """Prometheus did not like the expression."""


class RealPrometheus:
    """Use it as a context manager.

    Args:
        folder: for its configuration, data and log.
        port: of the page with the metrics, on this host.
        rules: text of a file of alert rules.
    """

    def __init__(self, folder: Path, port: int, rules: str) -> None:
        (folder / "rules.yml").write_text(rules, encoding="utf-8")
        config = _CONFIG.format(rules=folder / "rules.yml", job=JOB, port=port)
        (folder / "prometheus.yml").write_text(config, encoding="utf-8")
        self._folder = folder
        self._url = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RealPrometheus:
        for _ in range(3):  # somebody else may take the port first
            self._start()
            if self._is_ready():
                return self
            self._stop()
        raise AssertionError(f"Prometheus does not start:\n{self._log().read_text()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._url = f"http://{address}"
        command = [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={address}",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        ]
        with self._log().open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def _log(self) -> Path:
        return self._folder / "prometheus.log"

    def _is_ready(self) -> bool:
        assert self._process is not None
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s and self._process.poll() is None:
            if self._answers():
                return True
            time.sleep(0.05)
        return False

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except HTTPError as error:  # it is there, and not ready
            error.close()
        except (URLError, ConnectionError):
            pass
        return False

    def _stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # --- questions ------------------------------------------------------------------------------

    def query(self, expr: str, at_s: float) -> list[Json]:
        """Its value at this moment (seconds since 1970)."""
        return list(self._ask("query", query=expr, time=at_s)["result"])

    def query_range(self, expr: str, begin_s: float, end_s: float, step_s: float) -> list[Json]:
        """Its values from here to there."""
        asked = {"query": expr, "start": begin_s, "end": end_s, "step": step_s}
        return list(self._ask("query_range", **asked)["result"])

    def exemplars(self, expr: str, begin_s: float, end_s: float) -> list[Json]:
        """The exemplars of all series that the expression names."""
        found = self._ask("query_exemplars", query=expr, start=begin_s, end=end_s)
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def values(self, expr: str, begin_s: float, end_s: float) -> list[str]:
        """The values of the variable `label_values(expr, label)`."""
        selector, label = expr.rsplit(", ", 1)
        asked = {"match[]": selector, "start": begin_s, "end": end_s}
        return list(self._ask(f"label/{label}/values", **asked))

    def rules(self) -> list[Json]:
        """Every rule with its health and state."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def until(self, condition: Callable[[], object], limit_s: float = 20.0) -> None:
        """Wait for it."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not in time: {condition}"
            time.sleep(0.05)

    def _ask(self, what: str, **parameters: object) -> Any:
        url = f"{self._url}/api/v1/{what}?{urlencode(parameters)}"
        try:
            with urlopen(url, timeout=10) as answer:
                said = json.load(answer)
        except HTTPError as error:
            with error:
                said = json.load(error)
        if said["status"] != "success":
            raise PromqlError(f"{said['error']} in {parameters.get('query')}")
        return said["data"]
