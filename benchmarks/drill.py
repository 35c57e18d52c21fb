"""How true is what `outlast drill` tells? Held against the brokers, on a real cluster of three.

While a drill runs, a broker that leads a third of its topic is stopped in order (SIGTERM), killed
(SIGKILL), or silenced and woken again (SIGSTOP, SIGCONT). The truth is what an administrator on the
other brokers sees, asked every 10 ms on plain sockets: when they name the new leader of each
partition, and when they no longer count on the broker as a replica. Compared with it, per
partition: where the drill's gap begins and ends, its phases, the bounds of the cluster's share,
when its stalls end, and when its reader had records again.

One JSON line per run, then a table.

    python -m benchmarks.drill --runs 3
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.real.kafka_cluster import RealCluster

PARTITIONS = 6
TICK = "20ms"
BEFORE_S = 3.0  # of steady records before the signal
AFTER_S = 3.0  # of them after the truth is known; and after the broker was woken
WARM_UP_S = 8.0
ELECTED_S = 40.0
ENDED_S = 60.0
SLACK_S = 0.03  # the administrator looks every 10 ms, and asks two brokers
PHASES = ("detecting", "unavailable", "reconnecting", "resuming")
EVENTS = {"sigterm": "SIGTERM", "sigkill": "SIGKILL", "sigstop": "SIGSTOP, SIGCONT"}


@dataclass(slots=True)
class Run:
    """One drill. Lists have a figure for each partition; times are milliseconds."""

    event: str
    victim: int
    verdict: str = ""
    led: int = 0  # partitions that the broker led
    followed: int = 0
    gaps: int = 0  # of led ones; more than one each would be too many
    strange_gaps: int = 0  # of partitions that it did not lead
    elected_ms: list[float] = field(default_factory=list)  # signal → others name the new leader
    gap_ms: list[float] = field(default_factory=list)
    begin_ms: list[float] = field(default_factory=list)  # signal → the gap's begin
    over_ms: list[float] = field(default_factory=list)  # others name the leader → the gap's end
    within: int = 0  # gaps whose bounds of the cluster's share hold the truth
    read_ms: list[float] = field(default_factory=list)  # the gap's end → its records were read
    detecting_ms: list[float] = field(default_factory=list)
    unavailable_ms: list[float] = field(default_factory=list)
    reconnecting_ms: list[float] = field(default_factory=list)
    resuming_ms: list[float] = field(default_factory=list)
    stalls: int = 0
    stall_ms: list[float] = field(default_factory=list)
    stall_over_ms: list[float] = field(default_factory=list)  # not counted on → the stall's end


class Drill:
    """`outlast drill` as a user runs it, until `end`."""

    def __init__(self, cluster: RealCluster, topic: str, file: Path) -> None:
        self._file = file
        where = ["--bootstrap-servers", ",".join(cluster.bootstrap), "--topic", topic]
        command = [sys.executable, "-c", "from outlast.cli import main; main()", "drill", *where]
        self._process = subprocess.Popen(
            [*command, "--tick", TICK, "--json", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._said: list[str] = []

    def wait_begun(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            if "a record to each every" in line:
                return
        raise AssertionError("".join(self._said))

    def end(self) -> dict[str, Any]:
        """Interrupt it; what it found."""
        self._process.send_signal(signal.SIGINT)
        rest, _ = self._process.communicate(timeout=ENDED_S)
        assert self._process.returncode in (0, 1, 3), "".join(self._said) + rest
        found: dict[str, Any] = json.loads(self._file.read_text())
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(cluster: RealCluster, event: str, number: int, folder: Path) -> Run:
    """One drill, one signal."""
    topic = f"drill-{event}-{number}"
    cluster.heal()
    cluster.create_topic(topic, PARTITIONS)
    others = sorted(set(cluster.nodes) - {cluster.controller()})
    run = Run(event, others[number % len(others)])
    drill = Drill(cluster, topic, folder / f"{topic}.json")
    try:
        drill.wait_begun()
        time.sleep(BEFORE_S)
        before = cluster.topic(topic).partitions
        led = {p: view.leader_epoch for p, view in before.items() if view.leader == run.victim}
        followed = [p for p in before if p not in led]
        with cluster.watch(topic, without=[run.victim]) as watch:
            signal_s = time.monotonic()
            getattr(cluster, event)(run.victim)
            elected = {
                p: watch.wait_leader_change(p, newer_than=epoch, timeout_s=ELECTED_S).at_s
                for p, epoch in led.items()
            }
            given_up = {p: watch.wait_out_of_sync(p, run.victim, ELECTED_S) for p in followed}
            time.sleep(AFTER_S)
            if event == "sigstop":
                cluster.sigcont(run.victim)
                time.sleep(AFTER_S)
        found = drill.end()
    finally:
        drill.kill()
    compare(run, found, signal_s, elected, given_up)
    cluster.heal()
    cluster.delete_topic(topic)
    return run


def compare(
    run: Run,
    found: Mapping[str, Any],
    signal_s: float,
    elected: Mapping[int, float],
    given_up: Mapping[int, float],
) -> None:
    """Hold what the drill found against what the other brokers told."""
    run.verdict, run.led, run.followed = found["verdict"], len(elected), len(given_up)
    for partition in found["partitions"]:
        index = partition["partition"]
        gaps = [gap for gap in partition["gaps"] if gap["begin_s"] > signal_s - 1.0]
        if index in elected:
            run.gaps += len(gaps)
            run.elected_ms.append(_ms(elected[index] - signal_s))
            if gaps:
                _compare_gap(run, gaps[0], signal_s, elected[index])
        else:
            run.strange_gaps += len(gaps)
        for stall in partition["stalls"]:
            if index in given_up and stall["begin_s"] > signal_s - 1.0:
                run.stalls += 1
                run.stall_ms.append(_ms(stall["duration_s"]))
                end_s = stall["begin_s"] + stall["duration_s"]
                run.stall_over_ms.append(_ms(end_s - given_up[index]))


def _compare_gap(run: Run, gap: Mapping[str, Any], signal_s: float, elected_s: float) -> None:
    run.gap_ms.append(_ms(gap["duration_s"]))
    run.begin_ms.append(_ms(gap["begin_s"] - signal_s))
    run.over_ms.append(_ms(gap["begin_s"] + gap["duration_s"] - elected_s))
    for phase in PHASES:
        getattr(run, f"{phase}_ms").append(_ms(gap[f"{phase}_s"]))
    clusters_s = max(0.0, elected_s - gap["begin_s"])
    least_s, most_s = gap["cluster_s_min"] - SLACK_S, gap["cluster_s_max"] + SLACK_S
    run.within += least_s <= clusters_s <= most_s
    if gap["reading_resumed_s"] is not None:
        run.read_ms.append(_ms(gap["reading_resumed_s"] - gap["duration_s"]))


def table(runs: Iterable[Run]) -> str:
    """As Markdown: a column for each event, medians with the smallest and the largest."""
    by_event = {event: [run for run in runs if run.event == event] for event in EVENTS}
    by_event = {event: own for event, own in by_event.items() if own}
    lines = [
        "| ms | " + " | ".join(EVENTS[event] for event in by_event) + " |",
        "| --- |" + " --- |" * len(by_event),
    ]
    for row, name in (
        ("signal → others name the new leader", "elected_ms"),
        ("signal → the gap's begin", "begin_ms"),
        ("**gap**", "gap_ms"),
        *((f"· {phase}", f"{phase}_ms") for phase in PHASES),
        ("others name the leader → the gap's end", "over_ms"),
        ("the gap's end → its records were read", "read_ms"),
        ("stall", "stall_ms"),
        ("others give the broker up → the stall's end", "stall_over_ms"),
    ):
        cells = [
            _spread([v for run in own for v in getattr(run, name)]) for own in by_event.values()
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    cells = [f"{sum(r.within for r in own)} of {sum(len(r.gap_ms) for r in own)}"
             for own in by_event.values()]  # fmt: skip
    lines.append(f"| the truth is within the bounds of the cluster's share | {' | '.join(cells)} |")
    cells = [f"{sum(r.gaps for r in own)} for {sum(r.led for r in own)}"
             for own in by_event.values()]  # fmt: skip
    lines.append(f"| gaps for partitions led | {' | '.join(cells)} |")
    cells = [str(sum(r.strange_gaps for r in own)) for own in by_event.values()]
    lines.append(f"| gaps of other partitions | {' | '.join(cells)} |")
    cells = [f"{sum(r.stalls for r in own)} for {sum(r.followed for r in own)}"
             for own in by_event.values()]  # fmt: skip
    lines.append(f"| stalls for partitions followed | {' | '.join(cells)} |")
    cells = [", ".join(sorted({run.verdict for run in own})) for own in by_event.values()]
    lines.append(f"| verdict | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(figures: list[float]) -> str:
    if not figures:
        return "–"
    return f"{statistics.median(figures):,.0f} ({min(figures):,.0f}–{max(figures):,.0f})"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--events", type=lambda text: text.split(","), default=list(EVENTS), help="of all three"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each event")
    options = parser.parse_args(arguments)
    if unknown := set(options.events) - set(EVENTS):
        parser.error(f"--events: {', '.join(sorted(unknown))}; known are {', '.join(EVENTS)}")
    return options


def warm_up(cluster: RealCluster, folder: Path) -> None:
    """A drill without an event: the brokers' machine code is made."""
    cluster.create_topic("warm-up", PARTITIONS)
    drill = Drill(cluster, "warm-up", folder / "warm-up.json")
    try:
        drill.wait_begun()
        time.sleep(WARM_UP_S)
        drill.end()
    finally:
        drill.kill()
    cluster.delete_topic("warm-up")


def main() -> None:
    options = parse()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cluster = RealCluster(folder / "kafka")
        try:
            cluster.open()
            warm_up(cluster, folder)
            for number in range(options.runs):
                for event in options.events:
                    runs.append(measure(cluster, event, number, folder))
                    print(json.dumps(asdict(runs[-1])), flush=True)
        finally:
            cluster.close()
    print(table(runs), file=sys.stderr)


if __name__ == "__main__":
    main()
