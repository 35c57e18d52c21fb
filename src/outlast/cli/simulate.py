"""`outlast simulate`: random failovers on a virtual clock, thousands a minute, and a verdict.

Every seed is a world of its own: a cluster, a network, a producer, a load and accidents (see
`testing.swarm`, and `testing.txn_swarm` where the load are transactions). What a seed found can be
seen again with the same number on any machine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from outlast.cli.interrupts import heard_by, left_to_parent
from outlast.testing.swarm import Report, run_seed
from outlast.testing.txn_swarm import TxnReport, run_transactions

CHUNK = 10  # seeds that a worker takes at once
FINDINGS_SHOWN = 10
TALE_LINES = 200  # the last ones: what went wrong is seldom at the beginning
CLIENT_SHARE = (
    "The client's share of a gap over a leader change: from the new leader's first showing in any "
    "broker's metadata to the ack. Denials and pauses of brokers after that moment, and late "
    "followers, are still in it."
)


@dataclass
class Summary:
    """What many seeds gave together."""

    seeds: int = 0
    failovers: int = 0
    elections: int = 0
    records: int = 0
    stalls: int = 0
    virtual_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    gaps: Counter[str] = field(default_factory=Counter)
    accidents: Counter[str] = field(default_factory=Counter)
    client_s: list[float] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)  # of transactions
    raised: Counter[str] = field(default_factory=Counter)  # by their calls
    coordinator_gaps: int = 0
    failed: list[Report] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """One seed more."""
        self.seeds += 1
        self.failovers += report.failovers
        self.elections += report.elections
        self.records += report.records
        self.stalls += report.stalls
        self.virtual_s += report.virtual_s
        self.outcomes += report.outcomes
        self.gaps += report.gaps
        self.accidents += report.accidents
        self.client_s += report.client_s
        if isinstance(report, TxnReport):
            self.endings += report.endings
            self.raised += report.raised
            self.coordinator_gaps += report.coordinator_gaps
        if report.findings:
            self.failed.append(report)

    def client_share_ms(self, share: float) -> float | None:
        """A quantile of the client's shares; None if there was no such gap."""
        if not self.client_s:
            return None
        ranked = sorted(self.client_s)
        return ranked[min(int(share * len(ranked)), len(ranked) - 1)] * 1000


def run_range(first: int, last: int, *, jobs: int, transactions: bool = False) -> int:
    """Run all seeds from `first` to `last`; the process's exit code."""
    run = run_transactions if transactions else run_seed
    console = Console(highlight=False)
    summary, begun_s = Summary(), time.perf_counter()
    seeds = range(first, last + 1)
    with _progress(console) as progress, _reports(run, seeds, jobs) as reports:
        bar = progress.add_task("", total=len(seeds))
        for report in reports:
            summary.add(report)
            if report.findings:
                progress.console.print(f"seed {report.seed}: {report.findings[0]}", style="red")
            progress.update(bar, advance=1, description=f"{summary.failovers:,} failovers")
    _show(console, summary, time.perf_counter() - begun_s)
    if not summary.failed:
        return 0
    worst = summary.failed[0]
    console.print(f"\nThe story of seed {worst.seed}:", style="bold")
    _tell(console, run(worst.seed, trace=True))
    return 1


def run_one(seed: int, *, trace: bool, transactions: bool = False) -> int:
    """Replay one seed, with every step if `trace`; the process's exit code."""
    console = Console(highlight=False, soft_wrap=True)
    report = (run_transactions if transactions else run_seed)(seed, trace=True)
    if trace:
        for line in report.trace:
            console.out(line)
    if report.findings and not trace:
        _tell(console, report)
    else:
        console.out(str(report))
    return 1 if report.findings else 0


@contextmanager
def _reports(
    run: Callable[[int], Report], seeds: Iterable[int], jobs: int
) -> Iterator[Iterable[Report]]:
    if jobs == 1:
        yield map(run, seeds)
        return
    with heard_by(), ProcessPoolExecutor(jobs, initializer=left_to_parent) as pool:
        try:
            yield pool.map(run, seeds, chunksize=CHUNK)
        except KeyboardInterrupt:  # what workers are at takes seconds, and nobody wants it any more
            for worker in active_children():
                worker.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def _show(console: Console, summary: Summary, took_s: float) -> None:
    per_minute = summary.failovers / took_s * 60
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row(
        "seeds", f"{summary.seeds:,} in {took_s:.1f} s ({summary.virtual_s:,.0f} virtual)"
    )
    table.add_row("failovers", f"{summary.failovers:,} ({per_minute:,.0f} a minute)")
    table.add_row("", f"leader changes that a record met, of {summary.elections:,} in all")
    if summary.endings:
        table.add_row("transactions", f"{summary.endings.total():,}: {_counts(summary.endings)}")
        table.add_row("calls raised", _counts(summary.raised))
        table.add_row("coordinators", f"{summary.coordinator_gaps:,} gaps in which none answered")
    table.add_row("records", f"{summary.records:,}: {_counts(summary.outcomes)}")
    table.add_row("accidents", _counts(summary.accidents))
    table.add_row("gaps", f"{summary.gaps.total():,}: {_counts(summary.gaps)}")
    table.add_row("stalls", f"{summary.stalls:,}")
    shares = [summary.client_share_ms(share) for share in (0.5, 0.99, 1.0)]
    if shares[0] is not None:
        p50, p99, longest = shares
        table.add_row("client's share", f"p50 {p50:,.0f} · p99 {p99:,.0f} · max {longest:,.0f} ms")
    console.print(table)
    console.print(Text(CLIENT_SHARE, "dim"))
    if summary.failed:
        found = ", ".join(str(report.seed) for report in summary.failed[:FINDINGS_SHOWN])
        console.print(f"{len(summary.failed)} seeds found something: {found}", style="bold red")
    else:
        halves = "or in halves " if summary.endings else ""
        console.print(
            f"Nothing lost, doubled, out of order {halves}or told wrongly.", style="bold green"
        )


def _counts(counts: Counter[str]) -> str:
    return " · ".join(f"{name} {count:,}" for name, count in counts.most_common()) or "none"


def _tell(console: Console, report: Report) -> None:
    left_out = len(report.tale) - TALE_LINES
    if left_out > 0:
        which = "--transactions " if isinstance(report, TxnReport) else ""
        again = f"{which}--seed {report.seed} --trace"
        console.out(f"… {left_out:,} earlier lines; {again} has every step")
    for line in report.tale[-TALE_LINES:]:
        console.out(line)
    console.out(str(report))
