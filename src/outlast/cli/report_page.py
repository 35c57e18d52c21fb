"""What a report draws where: rows, bars, ticks and the curve, in seconds since the run's begin.

Rule: positions are handed on in seconds, never in pixels; the style sheet divides them by the span
that is shown, so that the page fits any width, and zoom changes two numbers. Only a phase's share
of its bar is a percentage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from outlast.cli import report_words as words
from outlast.cli.shares import client_s, cluster_s
from outlast.engine.messages import Gap, Phase, Stall, place_name

if TYPE_CHECKING:
    from outlast.cli.report import Run, TopicPartition

FOLD_ROWS = 40  # with more, the partitions without gap or stall are folded away
CLOSE_ROWS, DENSE_ROWS = 24, 120
TICKS = 8
EVENTS = 3000  # gaps and stalls that a page shows: a browser is slow with many more
CURVE_POINTS = 2000
PEAK = 3  # times the usual rate: more is cut off
SCALES = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


_Named = tuple[str, Gap | Stall]  # with its entry's anchor


@dataclass(frozen=True, slots=True)
class Bar:
    """A gap or stall in its partition's row; its entry in the table tells the rest."""

    anchor: str  # of the entry
    kind: str  # 'gap' or 'stall'
    label: str
    begin_s: float
    length_s: float
    is_open: bool
    parts: tuple[tuple[str, float], ...]  # phase and its percentage, in order


@dataclass(frozen=True, slots=True)
class Row:
    """A partition."""

    topic: str
    partition: int
    bars: tuple[Bar, ...]
    resumed_s: tuple[float, ...]  # when reading gave records again

    @property
    def longest_s(self) -> float:
        """Its longest gap or stall."""
        return max((bar.length_s for bar in self.bars), default=0.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """A field of an entry: what is read first, what explains it, what it is sorted by."""

    text: str
    more: str = ""
    value: float | str = ""
    look: str = ""  # a class


@dataclass(frozen=True, slots=True)
class Entry:
    """A gap or stall in the table."""

    anchor: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """A gap, or all of them, as shares of one whole: phases above, whose time it was below."""

    label: str
    total_s: float
    phases: tuple[tuple[str, float], ...]
    owners: tuple[tuple[str, str, float], ...]  # class, name, seconds


class Page:
    """What the template asks for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seconds = words.seconds
        self.phases = {phase.value: said for phase, said in words.PHASES.items()}
        self._both: list[_Named] = [
            *((f"gap-{number}", gap) for number, gap in enumerate(run.gaps, 1)),
            *((f"stall-{number}", stall) for number, stall in enumerate(run.stalls, 1)),
        ]
        self._both.sort(key=lambda named: -named[1].duration_s)
        self.left_out = len(self._both[EVENTS:])
        del self._both[EVENTS:]
        ends = [it.begin_s + it.duration_s - run.begin_s for _, it in self._both]
        self.from_s = min([0.0, *(it.begin_s - run.begin_s for _, it in self._both)])
        self.to_s = max([run.end_s - run.begin_s, self.from_s + 0.001, *ends])
        self._of: dict[TopicPartition, list[_Named]] = defaultdict(list)
        for anchor, it in sorted(self._both, key=lambda named: named[1].begin_s):
            self._of[it.topic, it.partition].append((anchor, it))
        self.headline = words.headline(run, len(self.rows))

    # --- the head -------------------------------------------------------------------------------

    @property
    def when(self) -> str:
        """Day, time and length of the run."""
        lasted = words.seconds(self.run.end_s - self.run.begin_s)
        return f"{_utc(self.run.begin_unix_s):%d %B %Y, %H:%M:%S} UTC, {lasted}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What else must be known."""
        if not self.left_out:
            return tuple(self.run.notes)
        count = self.left_out + len(self._both)
        return (
            *self.run.notes,
            f"Of {count:,} gaps and stalls the {EVENTS:,} longest are shown; all are counted in "
            "the figures and shares.",
        )

    @cached_property
    def figures(self) -> tuple[tuple[str, str, str], ...]:
        """What it comes to: name, value, explanation."""
        run, found = self.run, []
        if run.gaps:
            worst = max(run.gaps, key=lambda gap: gap.duration_s)
            found.append(("Longest gap", words.seconds(worst.duration_s), words.name(worst)))
        if ended := [gap for gap in run.gaps if gap.ended_by]:
            ours = max(ended, key=lambda gap: client_s(gap)[1])
            share = words.between(*client_s(ours))
            found.append(("Client’s share, at worst", share, words.name(ours)))
        if run.stalls:
            stall = max(run.stalls, key=lambda stall: stall.duration_s)
            found.append(("Longest stall", words.seconds(stall.duration_s), words.name(stall)))
        if run.records:
            of = f"of {run.records.sent:,} sent; {run.records.failed:,} failed"
            found.append(("Acknowledged", f"{run.records.acknowledged:,}", of))
        if run.delivery:
            found.append(("Lost, doubled, out of order", "0", "read back and compared"))
        elif run.delivery is not None:
            told = f"{run.delivery.lost:,} lost"
            found.append(("Broken promises", told, str(run.delivery)))
        return tuple(found)

    @property
    def letters(self) -> int:
        """Of the longest name of a partition."""
        return max((len(place_name(row.topic, row.partition)) for row in self.rows), default=0)

    # --- the timeline ---------------------------------------------------------------------------

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every partition, in order."""
        named = sorted({*self.run.partitions, *self._of})
        return tuple(self._row(tp) for tp in named)

    @property
    def loud_rows(self) -> tuple[Row, ...]:
        """Those to be shown at once."""
        return tuple(row for row in self.rows if row.bars or not self._folds)

    @property
    def quiet_rows(self) -> tuple[Row, ...]:
        """Those that are folded away: nothing happened there."""
        return tuple(row for row in self.rows if self._folds and not row.bars)

    @property
    def _folds(self) -> bool:
        return len(self.rows) > FOLD_ROWS

    @property
    def density(self) -> str:
        """How high a row is."""
        shown = len(self.loud_rows)
        return "dense" if shown > DENSE_ROWS else "close" if shown > CLOSE_ROWS else "roomy"

    def _row(self, tp: TopicPartition) -> Row:
        resumed = (at_s - self.run.begin_s for at_s in self.run.resumed.get(tp, ()))
        bars = (self._bar(anchor, it) for anchor, it in self._of.get(tp, ()))
        return Row(*tp, tuple(bars), tuple(resumed))

    def _bar(self, anchor: str, it: Gap | Stall) -> Bar:
        parts: tuple[tuple[str, float], ...] = ()
        if isinstance(it, Gap):
            lengths = [(phase.value, _phase_s(it, phase)) for phase in Phase]
            total_s = sum(length_s for _, length_s in lengths) or 1.0
            parts = tuple((p, length_s / total_s * 100) for p, length_s in lengths if length_s)
        kind = "gap" if isinstance(it, Gap) else "stall"
        return Bar(
            anchor=anchor,
            kind=kind,
            label=f"{kind} of {words.name(it)}, {words.seconds(it.duration_s)}",
            begin_s=it.begin_s - self.run.begin_s,
            length_s=it.duration_s,
            is_open=it.ended_by is None,
            parts=parts,
        )

    @property
    def ticks(self) -> Iterator[tuple[float, str]]:
        """Moments of the axis, and what is written there. `report.js` does the same when zoomed."""
        least_s = (self.to_s - self.from_s) / TICKS * (1 - 1e-6)  # whatever a float made of it
        if least_s > 1:
            step_s: float = next((s for s in STEPS_S if s >= least_s), STEPS_S[-1])
        else:
            power = 10.0 ** floor(log10(least_s))
            step_s = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least_s)
        for number in range(ceil(self.from_s / step_s), floor(self.to_s / step_s) + 1):
            yield number * step_s, _tick_text(number * step_s, step_s)

    @property
    def marks(self) -> tuple[tuple[int, float, str], ...]:
        """Number, moment and text of what was done."""
        ordered = sorted(self.run.marks, key=lambda mark: mark.at_s)
        return tuple(
            (number, mark.at_s - self.run.begin_s, mark.text)
            for number, mark in enumerate(ordered, 1)
        )

    # --- the rate -------------------------------------------------------------------------------

    @cached_property
    def rates(self) -> tuple[tuple[float, float], ...]:
        """Moment and records per second, in the middle of each whole step."""
        step_s = self.run.acked_step_s
        whole = floor((self.run.end_s - self.run.begin_s) / step_s + 1e-6)
        acked = self.run.acked[:whole]
        at_once = max(1, ceil(len(acked) / CURVE_POINTS))
        width_s = step_s * at_once
        return tuple(
            ((number + 0.5) * width_s, sum(acked[number * at_once :][:at_once]) / width_s)
            for number in range(len(acked) // at_once)
        )

    @cached_property
    def rate_top(self) -> float:
        """The scale's upper end: a round number.

        What waited goes out at once after a gap, at many times the usual rate: that peak is cut off
        (and told, see `rate_peak`), so that the usual rate remains to be seen.
        """
        ranked = sorted(rate for _, rate in self.rates) or [0.0]
        usual, most = ranked[len(ranked) // 2], ranked[-1]
        top = 2 * usual if usual and most > PEAK * usual else most or 1.0
        power = 10.0 ** floor(log10(top))
        return next(power * factor for factor in SCALES if power * factor >= top * (1 - 1e-9))

    @property
    def rate_peak(self) -> float | None:
        """The highest rate, if the scale does not reach it."""
        most = max((rate for _, rate in self.rates), default=0.0)
        return most if most > self.rate_top else None

    @property
    def rate_path(self) -> str:
        """The curve as SVG: x in seconds, y downwards from the top."""
        return " ".join(
            f"{'L' if number else 'M'}{at_s:.4g},{self.rate_top - rate:.5g}"
            for number, (at_s, rate) in enumerate(self.rates)
        )

    # --- whose time it was, and the table ---------------------------------------------------------

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """The longest gap, and all together if there are more."""
        gaps = [gap for gap in self.run.gaps if gap.duration_s > 0]
        if not gaps:
            return ()
        worst = max(gaps, key=lambda gap: gap.duration_s)
        shares = [_share(f"Longest gap, {words.name(worst)}", [worst])]
        if len(gaps) > 1:
            shares.append(_share(f"All {len(gaps):,} gaps together", gaps))
        return tuple(shares)

    @property
    def long(self) -> bool:
        """The table is better read in a window of its own."""
        return len(self._both) > FOLD_ROWS

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Heading and explanation."""
        return (
            ("Partition", "and the first signal"),
            ("Began", "since the start"),
            ("Length", ""),
            *((phase.value.capitalize(), words.PHASES[phase]) for phase in Phase),
            ("Cluster’s share", "and the client’s: a range, since neither side sees all"),
            ("Leader", "and its epoch"),
            ("Attempts", "and what they met"),
            ("Outcome", "of the records that met it"),
            *([("Read again", "after writing went on")] if self.run.resumed else []),
        )

    @property
    def entries(self) -> Iterator[Entry]:
        """Gaps and stalls, the longest first."""
        for anchor, it in self._both:
            yield Entry(anchor, tuple(self._cells(it)))

    def _cells(self, it: Gap | Stall) -> Iterator[Cell]:
        begin_s = it.begin_s - self.run.begin_s
        said = (
            words.CAUSES[it.cause]
            if isinstance(it, Gap)
            else words.REASONS.get(it.reason, it.reason)
        )
        yield Cell(words.name(it), said, f"{it.topic}\0{it.partition:010}", "wide")
        yield Cell(f"{begin_s:.3f} s", f"{_utc(it.begin_unix_s):%H:%M:%S.%f}"[:-3], begin_s)
        so_far = "so far" if it.ended_by is None else ""
        yield Cell(words.seconds(it.duration_s), so_far, it.duration_s, "length")
        for phase in Phase:
            length_s = _phase_s(it, phase) if isinstance(it, Gap) else 0.0
            yield Cell(words.seconds(length_s) if length_s else "", "", length_s, phase.value)
        if isinstance(it, Gap):
            yield from self._gap_cells(it)
        else:
            yield Cell("")
            yield Cell(words.node(it.node_id), f"{it.lane} lane", it.node_id)
            yield Cell("")
            yield Cell(words.outcome(it), "", words.outcome(it), words.outcome(it))
        if self.run.resumed:
            yield self._read_again(it)

    def _gap_cells(self, gap: Gap) -> Iterator[Cell]:
        if gap.ended_by is None:
            yield Cell("not known yet", "", -1.0)
        else:
            yield Cell(
                words.between(*cluster_s(gap)),
                f"client’s {words.between(*client_s(gap))}",
                cluster_s(gap)[1],
            )
        yield Cell(
            f"{words.node(gap.old_leader)} → {words.node(gap.new_leader)}",
            f"{words.node(gap.old_leader_epoch)} → {words.node(gap.new_leader_epoch)}",
            gap.old_leader,
        )
        yield Cell(f"{gap.attempts:,}", "\n".join(_counted(gap.errors)), gap.attempts)
        fates = {
            "delivered": gap.records_delivered,
            "expired": gap.records_expired,
            "failed": gap.records_failed,
            "refused": gap.records_refused,
        }
        told = ", ".join(f"{count:,} {fate}" for fate, count in fates.items() if count)
        yield Cell(words.outcome(gap), told, words.outcome(gap), words.outcome(gap))

    def _read_again(self, it: Gap | Stall) -> Cell:
        """When reading went on, counted from when writing did."""
        own = (other.begin_s for _, other in self._of[it.topic, it.partition])
        later = (begin_s for begin_s in own if begin_s > it.begin_s)
        until_s = min(later, default=float("inf"))
        moments = self.run.resumed.get((it.topic, it.partition), ())
        at_s = min((at_s for at_s in moments if it.begin_s < at_s < until_s), default=None)
        if at_s is None:
            return Cell("", "", float("inf"))
        after_s = at_s - it.begin_s - it.duration_s
        return Cell(f"{'−' if after_s < 0 else '+'}{words.seconds(abs(after_s))}", "", after_s)


def _phase_s(gap: Gap, phase: Phase) -> float:
    length_s: float = getattr(gap, f"{phase.value}_s")
    return max(length_s, 0.0)


def _share(label: str, gaps: Sequence[Gap]) -> Share:
    least_s = sum(cluster_s(gap)[0] for gap in gaps)
    most_s = sum(cluster_s(gap)[1] for gap in gaps)
    total_s = sum(gap.duration_s for gap in gaps)
    owners = (
        ("cluster", "the cluster’s", least_s),
        ("either", "either’s", most_s - least_s),
        ("client", "the client’s", total_s - most_s),
    )
    phases = ((phase.value, sum(_phase_s(gap, phase) for gap in gaps)) for phase in Phase)
    return Share(label, total_s, tuple(phases), owners)


def _counted(errors: Sequence[str]) -> Iterator[str]:
    """Neighbours that are the same are told once."""
    run = 0
    for number, error in enumerate(errors):
        run += 1
        if errors[number + 1 : number + 2] != (error,):
            yield f"{error}\u00a0×\u00a0{run}" if run > 1 else error
            run = 0


def _tick_text(at_s: float, step_s: float) -> str:
    if step_s < 1:
        return f"{at_s:.{max(0, ceil(-log10(step_s) - 1e-9))}f} s"
    if step_s < 60 and at_s < 120:
        return f"{at_s:.0f} s"
    whole_min, over_s = divmod(round(at_s), 60)
    if at_s < 3600:
        return f"{whole_min}:{over_s:02}"
    return f"{whole_min // 60}:{whole_min % 60:02}:{over_s:02}"


def _utc(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, timezone.utc)
