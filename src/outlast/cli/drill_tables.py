"""What a drill found, as text that fits 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.cli.drill_leaders import LeaderChange
from outlast.cli.drill_result import PartitionResult, Result, Verdict
from outlast.cli.shares import client_s, cluster_s
from outlast.cli.tables import LEGEND, gap_table
from outlast.engine.messages import Gap, Stall

LONGEST_NAMES = 40
WAYS_SHOWN = 4
SHOWN = 24  # gaps and stalls one by one, the longest; and partitions in a table, the worst

EXPLAINED = (
    "Times in ms. Of the worst gap: the cluster's and the client's share, known within bounds; and "
    "from its begin until a reader had the record that ended it. Wait: the longest from a record's "
    "sending to its ack."
)
_COLUMNS = ("", "worst", "cluster's", "client's", "read again", "wait")
_STYLES = {"absorbed": "green", "reported": "bold red", "open": "yellow", "waited": "dim"}
_VERDICTS = {
    Verdict.ABSORBED: ("All absorbed: no sender was told of a failure.", "bold green"),
    Verdict.REPORTED: ("Reported: senders were told that records failed.", "bold red"),
    Verdict.BROKEN: ("Broken: acknowledged records are not in the log as promised.", "bold red"),
    Verdict.UNDECIDED: ("Undecided: it ended before every record had an outcome.", "bold yellow"),
}


def show(console: Console, result: Result) -> None:
    """Print all of it."""
    eventful = [partition for partition in result.partitions if partition.eventful]
    console.print()
    if eventful:
        console.print(partition_table(worst(eventful)))
        console.print(Text(EXPLAINED, "dim"))
    if len(eventful) > SHOWN:
        more = len(eventful) - SHOWN
        console.print(f"and {more} more; all of them are in --json and --report")
    _show_each(console, result)
    calm = [of.partition for of in result.partitions if not of.eventful]
    if calm:
        console.print(
            f"\nno gap and no stall: {'partition' if len(calm) == 1 else 'partitions'} "
            f"{ranges(calm)}"
        )
    console.print()
    console.print(_facts(result))
    for note in result.notes:
        console.print(Text(note, "yellow"))
    text, style = _VERDICTS[result.verdict]
    console.print()
    console.print(Text(text, style))


def worst(partitions: Iterable[PartitionResult]) -> list[PartitionResult]:
    """Those that waited longest, by number."""
    ranked = sorted(partitions, key=lambda of: (-of.failed, -of.longest_wait_s))
    return sorted(ranked[:SHOWN], key=lambda of: of.partition)


def partition_table(partitions: Sequence[PartitionResult]) -> Table:
    """A line for the gaps of each partition, and one for its stalls."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("partition", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for of in partitions:
        told = [_ms(of.longest_wait_s), Text(of.outcome, _STYLES.get(of.outcome, ""))]
        lines = [line for line in (_gaps_line(of), _stalls_line(of)) if line]
        for number, line in enumerate(lines or [["", "", "", "", "", ""]]):
            first = number == 0
            table.add_row(str(of.partition) if first else "", *line, *(told if first else ["", ""]))
    return table


def _gaps_line(of: PartitionResult) -> list[str] | None:
    gap = of.worst
    if gap is None:
        return None
    resumed_s = of.resumed_s.get(gap.number)
    return [
        "gap" if len(of.gaps) == 1 else "gaps",
        str(len(of.gaps)),
        _ms(gap.duration_s),
        _between(*cluster_s(gap)),
        _between(*client_s(gap)),
        "" if resumed_s is None else _ms(resumed_s),
    ]


def _stalls_line(of: PartitionResult) -> list[str] | None:
    if not of.stalls:
        return None
    kind = "stall" if len(of.stalls) == 1 else "stalls"
    return [kind, str(len(of.stalls)), _ms(of.longest_stall_s), "", "", ""]


def _between(least_s: float, most_s: float) -> str:
    low, high = _ms(least_s), _ms(most_s)
    return low if low == high else f"{low}–{high}"


def _show_each(console: Console, result: Result) -> None:
    both: list[Gap | Stall] = [*result.gaps, *result.stalls]
    if not both:
        return
    longest = sorted(both, key=lambda it: -it.duration_s)[:SHOWN]
    if len(both) > SHOWN:
        console.print(f"\nThe {SHOWN} longest of {len(both)} gaps and stalls:")
    else:
        console.print()
    gaps = [gap for gap in result.gaps if gap in longest]
    stalls = [stall for stall in result.stalls if stall in longest]
    partitions = sorted({it.partition for it in longest})
    console.print(gap_table(gaps, stalls, result.topic, partitions, result.begin_s, bare=True))
    console.print(Text(LEGEND, "dim"))


def _facts(result: Result) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("writers", _sent(result))
    table.add_row("readers", _read(result))
    table.add_row("leaders", _leaders(result))
    table.add_row("retries", _retries(result))
    table.add_row("buffer", _buffer(result))
    return table


def _sent(result: Result) -> Text:
    counts = [f"{result.total('sent'):,} sent", f"{result.total('acknowledged'):,} acknowledged"]
    failed, unsettled = result.total("failed"), result.total("unsettled")
    text = Text(" · ".join([*counts, f"{failed:,} failed"]))
    if failed:
        text.append(
            f" ({', '.join(f'{n:,} {name}' for name, n in result.failures.items())})", "red"
        )
    if unsettled:
        text.append(f" · {unsettled:,} without outcome yet", "yellow")
    return text


def _read(result: Result) -> Text:
    text = Text(str(result.delivery), "" if result.delivery else "bold red")
    longest_s = max((of.longest_read_s for of in result.partitions), default=0.0)
    text.append(f" · at most {length(longest_s)} from send to read", "default not bold")
    if result.unread:
        text.append(f" · {result.unread:,} acknowledged but not read yet", "yellow")
    return text


def _leaders(result: Result) -> str:
    changes = len(result.leader_changes)
    times = "no change" if not changes else "1 change" if changes == 1 else f"{changes} changes"
    return times + (f" seen; the drill itself moved {result.moves}" if result.moves else " seen")


def _retries(result: Result) -> Text:
    budget = result.budget
    setting = f"delivery_timeout_ms={budget.delivery_timeout_s * 1000:.0f}"
    wait = f"the longest wait, {length(budget.longest_wait_s)}"
    if result.total("failed"):
        return Text(f"{setting} did not outlast everything: {wait}", "red")
    if result.total("unsettled"):
        return Text(f"{setting}; {wait}, goes on", "yellow")
    if budget.margin_s <= 0:
        return Text(f"{setting} does not outlast {wait}", "red")
    return Text(f"{setting} outlasts {wait}, by {length(budget.margin_s)}")


def _buffer(result: Result) -> Text:
    budget = result.budget
    setting = f"buffer_memory={budget.buffer_bytes}"
    if budget.rate is not None and budget.buffer_margin_s is not None:
        if budget.buffer_margin_s <= 0:
            lasts_s = budget.buffer_bytes / budget.rate.bytes_per_s
            return Text(f"{setting} is full after {length(lasts_s)} of {budget.rate.said}", "red")
        return Text(
            f"{setting} outlasts it by {length(budget.buffer_margin_s)} at {budget.rate.said}"
        )
    if budget.buffer_bytes_per_s is None:
        return Text(f"{setting}; nothing waited")
    return Text(
        f"{setting} lasts as long at up to {size(budget.buffer_bytes_per_s)}/s; at half of that "
        "where others deliver meanwhile"
    )


def ranges(numbers: Sequence[int]) -> str:
    """Such as 0–3, 7, 9–11."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in parts)


def named(numbers: Sequence[int]) -> str:
    """The partitions, or how many they are."""
    text = ranges(numbers)
    return text if len(text) <= LONGEST_NAMES else f"{len(set(numbers))} partitions"


def changed(changes: Sequence[LeaderChange]) -> str:
    """Changes of leaders that were seen together, such as: leader of 0–2: 1 → 2, of 3: 1 → 3."""
    ways = sorted({(change.old, change.new) for change in changes})
    if len(ways) > WAYS_SHOWN:
        return f"other leaders of {named([change.partition for change in changes])}"
    told = [
        f"of {named([c.partition for c in changes if (c.old, c.new) == (old, new)])}: "
        f"{node(old)} → {node(new)}"
        for old, new in ways
    ]
    return f"leader {', '.join(told)}"


def node(number: int) -> str:
    """A broker's number, or that there is none."""
    return "none" if number < 0 else str(number)


def length(seconds: float) -> str:
    """A time with a unit that suits it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min"


def size(count: float) -> str:
    """Bytes with a unit that suits them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}"
