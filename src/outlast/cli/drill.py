"""`outlast drill`: what a real cluster's failovers do to its writers and readers, measured.

A topic of its own, one record to each of its partitions every tick, a reader beside the writer, an
administrator's eye on the leaders. Whoever runs it stops and kills brokers meanwhile, or has the
drill move its own leaders. Nothing else on the cluster is touched.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from kafka.errors import KafkaError, TopicAuthorizationFailedError
from rich.console import Console
from rich.text import Text

from outlast import KafkaProducer
from outlast.cli.drill_leaders import Mover, Watch
from outlast.cli.drill_ledger import Ledger
from outlast.cli.drill_plan import Plan
from outlast.cli.drill_report import page
from outlast.cli.drill_result import (
    EXIT_CODES,
    UNUSABLE,
    Budget,
    PartitionResult,
    Result,
    ended_with_ack,
)
from outlast.cli.drill_screen import Screen
from outlast.cli.drill_tables import length, ranges, show
from outlast.cli.drill_topic import (
    MARK,
    DrillError,
    administrator,
    consumer,
    delete,
    open_canary,
    told,
    unreadable,
)
from outlast.cli.drill_traffic import Reader, Writer
from outlast.cli.interrupts import heard_by
from outlast.cli.report import save, unwritable
from outlast.config import Config
from outlast.engine.messages import Gap, Stall
from outlast.errors import BlockedError, ConfigurationError

TICK_S = 0.05
RECORDS_PER_S = 2_000  # beyond that the tick becomes longer
REFRESH_S = 0.25
FIRST_S = 10.0  # for metadata, and for the first records to be acknowledged
AFTER_INTERRUPT_S = 5.0  # for records under way
READER_ANSWER_S, READER_METADATA_S = 1.0, 0.5  # it finds a new leader within about that
READ_S = 10.0  # for the reader to come to the end
SHOWN_SETTINGS = ("acks", "enable_idempotence", "delivery_timeout_ms", "buffer_memory")


def run(plan: Plan, *, json_file: str | None = None, report: Path | None = None) -> int:
    """Run a drill and show what it found; the process's exit code.

    Args:
        json_file: where all of it goes as JSON; '-': to stdout, and all else to stderr.
        report: where all of it goes as a page.
    """
    for name in ("outlast", "kafka"):
        logging.getLogger(name).addHandler(logging.NullHandler())  # the screen tells enough
    console = Console(highlight=False, stderr=json_file == "-")
    errors = Console(highlight=False, soft_wrap=True, stderr=True)
    try:
        config = Config(**plan.keywords)
        if config.values["acks"] == 0:
            raise DrillError("acks=0: nothing is acknowledged, so there is nothing to measure")
        if json_file not in (None, "-") and (why := unwritable(Path(str(json_file)))):
            raise DrillError(why)
        with _interrupts() as interrupts:
            result = _Drill(plan, config, console, interrupts).run()
    except (DrillError, ConfigurationError) as error:
        errors.print(Text(f"outlast drill: {error}", "red"))
        return UNUSABLE
    except KeyboardInterrupt:
        errors.print("outlast drill: ended before it had begun")
        return UNUSABLE
    show(console, result)
    saved = report is None or save(page(result), report, console)
    if json_file is not None:
        saved = _save_json(result, json_file, errors) and saved
    return EXIT_CODES[result.verdict] if saved else EXIT_CODES[result.verdict] or UNUSABLE


def _save_json(result: Result, file: str, errors: Console) -> bool:
    text = json.dumps(result.to_dict(), indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return True
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        errors.print(Text(f"outlast drill: no JSON was written to {file}: {error}", "red"))
        return False
    return True


class _Interrupts:
    """Ctrl-C and SIGTERM: before the drill's records flow they end it, then they are counted."""

    def __init__(self) -> None:
        self.count = 0
        self.counting = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if not self.counting:
            raise KeyboardInterrupt


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    handler = _Interrupts()
    with heard_by(handler):
        yield handler


class _Drill:
    """One run. Everything that it starts, it ends."""

    def __init__(
        self, plan: Plan, config: Config, console: Console, interrupts: _Interrupts
    ) -> None:
        self._plan = plan
        self._config = config
        self._console = console
        self._interrupts = interrupts
        self._id = secrets.token_hex(4)
        self._notes = [f"not a setting, ignored: {name}" for name in plan.ignored]
        self._gaps: dict[int, Gap] = {}
        self._stalls: dict[int, Stall] = {}
        self._resumed: dict[int, float] = {}  # by the gap's number: seconds after its begin
        self._begin_s = self._begin_unix_s = 0.0

    def run(self) -> Result:
        """All of it.

        Raises:
            DrillError: the cluster cannot be used.
            KeyboardInterrupt: before it had begun.
        """
        try:
            with ExitStack() as stack:
                result = self._run(stack)
        except KafkaError as error:
            raise DrillError(f"the cluster does not answer as it should: {told(error)}") from error
        return replace(result, notes=tuple(self._notes))

    def _run(self, stack: ExitStack) -> Result:
        plan, keywords = self._plan, self._plan.keywords
        admin = stack.enter_context(administrator(keywords))
        canary = open_canary(admin, keywords, plan.topic, plan.partitions, self._id)
        if canary.made:
            stack.callback(self._note_from, lambda: delete(keywords, canary))
        self._canary = canary
        self._tick_s = plan.tick_s or max(TICK_S, len(canary.partitions) / RECORDS_PER_S)
        self._ledger = Ledger(canary.partitions)
        self._watch = Watch(keywords, canary)
        self._watch.look_at_all(admin)
        mover = None
        if plan.move_every_s is not None:
            mover = Mover(keywords, canary, plan.move_every_s)
            mover.check(admin)
        reader = self._opened_reader(stack)
        self._producer = stack.enter_context(self._producing())
        writer = Writer(self._producer, canary, self._id, self._ledger, self._tick_s)
        self._warm_up(writer)
        self._announce()
        self._screen = stack.enter_context(
            Screen(self._console, canary.partitions, self._ledger, self._watch)
        )
        self._begin_s, self._begin_unix_s = time.monotonic(), time.time()
        self._ledger.begin(self._begin_s)
        self._interrupts.counting = True
        parts: list[Writer | Watch | Mover] = [writer, self._watch]
        parts += [mover] if mover else []
        for part in parts:
            stack.callback(part.stop)
            part.start()
        self._go_on()
        writer.stop()
        if mover:
            self._note_from(mover.stop)
            if mover.trouble:
                self._notes.append(f"--move-leaders met trouble: {mover.trouble}")
        self._settle(reader)
        self._watch.look_again()
        self._screen.refresh(self._gaps.values(), self._stalls.values())
        return self._result(mover.moves if mover else 0, reader)

    def _note_from(self, ask: Callable[[], str | None]) -> None:
        if note := ask():
            self._notes.append(note)

    # --- before the first record ------------------------------------------------------------------

    def _opened_reader(self, stack: ExitStack) -> Reader:
        try:
            kafka_consumer = stack.enter_context(
                consumer(self._plan.keywords, READER_ANSWER_S, READER_METADATA_S)
            )
            reader = Reader(kafka_consumer, self._canary, self._id, self._ledger)
            reader.check()
        except TopicAuthorizationFailedError:
            raise DrillError(unreadable(self._canary.topic)) from None
        except KafkaError as error:
            raise DrillError(f"cannot read {self._canary.topic}: {told(error)}") from None
        stack.callback(reader.stop)
        reader.start()
        return reader

    @contextmanager
    def _producing(self) -> Iterator[KafkaProducer]:
        own = {"max_block_ms": 0, "allow_auto_create_topics": False, "metrics": None}
        producer = KafkaProducer(**{"client_id": MARK, **self._plan.keywords, **own})
        try:
            yield producer
        finally:
            producer.close(timeout=0)

    def _warm_up(self, writer: Writer) -> None:
        """One record to each partition: connections, rights, a new topic's first refusals."""
        topic, deadline_s = self._canary.topic, time.monotonic() + FIRST_S
        while True:
            try:
                self._producer.partitions_for(topic)
                break
            except BlockedError:
                if time.monotonic() > deadline_s:
                    raise DrillError(f"the producer gets no metadata of {topic}") from None
                time.sleep(REFRESH_S / 5)
            except KafkaError as error:
                raise DrillError(f"the producer cannot use {topic}: {told(error)}") from None
        futures = {partition: writer.send(partition) for partition in self._canary.partitions}
        while any(not f.is_done for f in futures.values() if f) and time.monotonic() < deadline_s:
            time.sleep(REFRESH_S / 5)
        late = [partition for partition, f in futures.items() if not (f and f.is_done)]
        failed = [f.exception for f in futures.values() if f and f.is_done and f.exception]
        if failed:
            raise DrillError(f"{topic} does not take records: {told(failed[0])}")
        if len(late) == len(futures):
            causes = sorted({gap.cause.value for gap in self._producer.gaps()}) or ["no answer"]
            raise DrillError(
                f"{topic} takes no record within {FIRST_S:g} s ({', '.join(causes)}): "
                "the drill needs a cluster that works to begin with"
            )
        if late:
            self._notes.append(f"did not accept when the drill began: {ranges(late)}")

    def _announce(self) -> None:
        canary, plan = self._canary, self._plan
        count = len(canary.partitions)
        until = f"for {length(plan.for_s)}" if plan.for_s else "until Ctrl-C"
        self._console.print(f"topic {canary.topic}{', made for this drill' if canary.made else ''}")
        copies = min(len(leader.replicas) for leader in self._watch.leaders.values())
        self._console.print(
            f"{count} {'partition' if count == 1 else 'partitions'} on {len(canary.brokers)} "
            f"brokers, replication {copies}"
        )
        self._console.print(f"a record to each every {length(self._tick_s)}, {until}")

    # --- while they flow --------------------------------------------------------------------------

    def _go_on(self) -> None:
        end_s = self._begin_s + self._plan.for_s if self._plan.for_s else float("inf")
        left = "Ctrl-C ends it with the report"
        while not self._interrupts.count and (now := time.monotonic()) < end_s:
            if self._plan.for_s:
                left = f"{end_s - now:.0f} s to go · Ctrl-C ends it with the report"
            self._look(left)

    def _look(self, footer: str) -> None:
        self._gather()
        self._screen.footer(footer)
        self._screen.refresh(self._gaps.values(), self._stalls.values())
        time.sleep(REFRESH_S)

    def _gather(self) -> None:
        """The gaps and stalls since the drill began, and when reading resumed after each gap."""
        for gap in self._producer.gaps():
            if gap.begin_s + gap.duration_s >= self._begin_s:
                self._gaps[gap.number] = gap
        for stall in self._producer.stalls():
            if stall.begin_s + stall.duration_s >= self._begin_s:
                self._stalls[stall.number] = stall
        for gap in self._gaps.values():
            if gap.number not in self._resumed and ended_with_ack(gap):
                read_s = self._ledger.resumed_s(gap.partition, gap.begin_s + gap.duration_s)
                if read_s is not None:
                    self._resumed[gap.number] = read_s - gap.begin_s

    def _settle(self, reader: Reader) -> None:
        """Wait until every record has its outcome, and what was acknowledged is read. Records have
        a time-out of their own; after Ctrl-C it is a few seconds, after the second nothing.
        """
        patience_s = self._config.settings.delivery_timeout_s + AFTER_INTERRUPT_S
        self._wait_for(self._ledger.unsettled, "records without outcome", patience_s)
        if reader.trouble is None or self._ledger.unread():
            self._wait_for(self._ledger.unread, "records to be read", READ_S)
        self._gather()

    def _wait_for(self, count: Callable[[], int], what: str, patience_s: float) -> None:
        since_s = time.monotonic()
        while left := count():
            asked = self._interrupts.count
            limit_s = patience_s if not asked else min(patience_s, AFTER_INTERRUPT_S)
            if asked > 1 or time.monotonic() - since_s > limit_s:
                return
            self._look(f"waiting for {left:,} {what} · Ctrl-C ends it")

    # --- after the last one -----------------------------------------------------------------------

    def _result(self, moves: int, reader: Reader) -> Result:
        now, settings = time.monotonic(), self._config.settings
        if reader.trouble:
            self._notes.append(f"the reader is in trouble: {reader.trouble}")
        partitions = tuple(self._partition_result(p, now) for p in self._canary.partitions)
        budget = Budget(
            longest_wait_s=max(of.longest_wait_s for of in partitions),
            delivery_timeout_s=settings.delivery_timeout_s,
            buffer_bytes=settings.buffer_bytes,
            rate=self._plan.rate,
        )
        return Result(
            topic=self._canary.topic,
            made=self._canary.made,
            begin_s=self._begin_s,
            begin_unix_s=self._begin_unix_s,
            end_s=now,
            tick_s=self._tick_s,
            partitions=partitions,
            leader_changes=tuple(self._watch.changes),
            moves=moves,
            delivery=self._ledger.judge(),
            unread=self._ledger.unread(),
            failures=dict(self._ledger.failures),
            budget=budget,
            acked_per_s=tuple(self._ledger.acked_per_s()),
            settings={name: str(self._config.values[name]) for name in SHOWN_SETTINGS},
        )

    def _partition_result(self, partition: int, now: float) -> PartitionResult:
        of, oldest_s = self._ledger[partition], self._ledger.oldest_s(partition)
        gaps = [gap for gap in self._gaps.values() if gap.partition == partition]
        stalls = [stall for stall in self._stalls.values() if stall.partition == partition]
        return PartitionResult(
            partition=partition,
            sent=of.sent,
            acknowledged=of.acknowledged,
            failed=of.failed,
            unsettled=of.unsettled,
            longest_wait_s=max(of.longest_wait_s, 0.0 if oldest_s is None else now - oldest_s),
            longest_read_s=of.longest_read_s,
            gaps=tuple(gaps),
            stalls=tuple(stalls),
            resumed_s={
                gap.number: self._resumed[gap.number] for gap in gaps if gap.number in self._resumed
            },
        )
