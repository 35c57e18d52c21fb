"""Drills for tests: run on mock clusters over TCP, with a spy on every request the brokers read."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from outlast.cli.app import app
from outlast.testing import MockCluster

WRITING = {
    0,
    19,
    20,
    37,
    43,
    45,
}  # Produce, Create-, DeleteTopics, CreatePartitions, elect, reassign


@dataclass
class Spy:
    """What was asked of a cluster: (API key, every text in the request)."""

    asked: list[tuple[int, set[str]]] = field(default_factory=list)

    def texts(self, apis: set[int] | None = None) -> set[str]:
        """All texts in requests of these APIs, or of all."""
        return {text for api, texts in self.asked if apis is None or api in apis for text in texts}

    def apis(self) -> set[int]:
        return {api for api, _ in self.asked}


@contextmanager
def spied(cluster: MockCluster) -> Iterator[Spy]:
    """Notes each request before it is served."""
    spy = Spy()

    def noting(serve: Callable[..., Any]) -> Callable[..., Any]:
        def noted(core: Any, node: Any, exchange: Any, now: float) -> Any:
            spy.asked.append((exchange.record.api_key, set(_texts(exchange.request.to_dict()))))
            return serve(core, node, exchange, now)

        return noted

    def wrap(core: Any, _now: float) -> None:
        for key, handler in core.handlers.items():
            core.handlers[key] = replace(handler, serve=noting(handler.serve))

    before = cluster.call(lambda core, _: dict(core.handlers))
    cluster.call(wrap)
    try:
        yield spy
    finally:
        cluster.call(lambda core, _: core.handlers.update(before))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
    elif value is not None and not isinstance(value, (int, float, bytes)):
        yield str(value)


def drill(cluster: MockCluster | None, *arguments: str, columns: int = 80) -> Result:
    """`outlast drill` in this process."""
    where = ["--bootstrap", cluster.bootstrap_servers] if cluster else []
    return CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1"}).invoke(
        app, ["drill", *where, *arguments]
    )


@contextmanager
def meanwhile(cluster: MockCluster, act: Callable[[str], None]) -> Iterator[None]:
    """`act(topic)` on another thread, as soon as a drill's topic holds records of all partitions.
    What it raises is raised here.
    """
    raised: list[BaseException] = []
    over = threading.Event()
    before = {partition.topic for partition in cluster.partitions()}

    def run() -> None:
        try:
            cluster.wait_until(lambda: over.is_set() or bool(written(cluster, before)))
            if not over.is_set():
                act(written(cluster, before))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if raised:
        raise raised[0]


def written(cluster: MockCluster, before: set[str]) -> str:
    """The new topic of which every partition holds three records; '' if there is none."""
    new = [p for p in cluster.partitions() if p.topic not in before]
    return new[0].topic if new and all(p.end_offset >= 3 for p in new) else ""


def told(file: Path) -> dict[str, Any]:
    """What a drill put into its JSON file."""
    found: dict[str, Any] = json.loads(file.read_text())
    return found
