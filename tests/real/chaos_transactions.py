"""The soak's two transactional applications, and the judge of what a reader of committed data sees.

The *source* writes transactions to `in`, and aborts some of them. The *mill* reads what is
committed there, writes what it makes of each record to `out`, and commits how far it has read with
the same transaction. Each is one thread that does as docs/transactions.md says.

Now and then a second producer of the same transactional id appears: before a transaction, within
it, or while it is committed. From then on the first one must be fenced, and that is final; the
application goes on with the second. Nobody else may ever be fenced, but for a producer whose first
question for an epoch may have been left behind in a connection (its answer took long).

A value begins with the number of its transaction. Its *fate* is what the application was told.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition
from kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from outlast import Gap, KafkaProducer, Stall
from tests.real.committed import PARTITIONS, Values, consumer, ends, places, seen

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
IN_DOUBT = "may have been committed"
ABORTED_P = 0.15  # of transactions, by the application
SECOND_P = 0.02  # of transactions meet a second producer
SECOND_WHEN = ("before", "within", "during")
RECORDS_MAX = 30  # of a transaction
EACH_S = 0.1  # between two transactions of the source
AT_ONCE_S = 1.0  # an answer that took longer may have been the second one
CALL_S = 180.0  # that long a call is made again
DRAIN_S = 150.0
END_S = 2 * CALL_S


@dataclass(slots=True)
class Made:
    """One transaction, and what was told of it."""

    number: int
    sent: int = 0
    fate: str = UNKNOWN
    in_doubt: bool = False

    def __str__(self) -> str:
        return f"transaction {self.number} ({self.fate}, {self.sent} records)"


class Application(ABC):
    """One thread of transactions under one id.

    Args:
        bootstrap: of the cluster.
        name: of the application, and in its transactional id.
        topic: where it writes.
        stopping: when this is set it comes to its end.
    """

    def __init__(
        self, bootstrap: Sequence[str], name: str, topic: str, stopping: threading.Event, seed: str
    ) -> None:
        self.name = name
        self.topic = topic
        self.transactional_id = f"{topic}-{name}"
        self.stopping = stopping
        self.rng = random.Random(f"{seed}-{name}")
        self.made: list[Made] = []
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.gaps: list[Gap] = []
        self.stalls: list[Stall] = []
        self.charges = 0
        self.thread = threading.Thread(target=self._run, name=f"chaos-{name}", daemon=True)
        self._bootstrap = list(bootstrap)
        self._producer: Any = None
        self._took_over_s = 0.0  # how long that took the present producer
        self._second: Any = None  # it has the id, or is about to

    # --- what each does in its own way ----------------------------------------------------------

    @abstractmethod
    def prepare(self) -> Sequence[Any] | None:
        """What the next transaction is made of; None if there is no more."""

    @abstractmethod
    def write(self, producer: Any, made: Made, what: Sequence[Any]) -> list[Any]:
        """Send it, and return the futures."""

    def ended(self, made: Made, what: Sequence[Any]) -> None:  # noqa: B027 (not all do anything)
        """It has its fate."""

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._producer = self._new()
            while (what := self.prepare()) is not None:
                if what:
                    self._transaction(what)
            self._leave(self._producer)
        except Exception:
            self.faults.append(f"it ended: {traceback.format_exc()}")

    def _new(self) -> Any:
        """A producer that has taken the id over."""
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id=f"chaos-{self.name}",
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.rng.choice((8_000, 60_000)),
            max_block_ms=self.rng.choice((1_500, 10_000)),
            linger_ms=self.rng.choice((0, 5)),
        )
        begin_s = time.monotonic()
        self.until_done(producer.init_transactions)
        self._took_over_s = time.monotonic() - begin_s
        return producer

    def _leave(self, producer: Any) -> None:
        self.gaps += producer.gaps()
        self.stalls += producer.stalls()
        self.charges += producer.health().buffer_bytes
        producer.close(timeout=60)

    def _transaction(self, what: Sequence[Any]) -> None:
        made = Made(len(self.made))
        self.made.append(made)
        meets = self._second is None and self.rng.random() < SECOND_P
        second = self.rng.choice(SECOND_WHEN) if meets else ""
        expected = self._second is not None or second in ("before", "within")
        try:
            if second == "before":
                self._second = self._new()
            self._attempt(made, what, second)
        except ProducerFencedError as error:
            self._doubt(made, error)
            self._fenced()
        else:
            if expected and made.fate == COMMITTED:
                self.faults.append(f"{made} was committed after a second producer had the id")
        self.counts[made.fate] += 1
        self.ended(made, what)

    def _attempt(self, made: Made, what: Sequence[Any], second: str) -> None:
        self._producer.begin_transaction()
        try:
            futures = self.write(self._producer, made, what)
            if second == "within":
                self._second = self._new()
            if second == "during" or self.rng.random() >= ABORTED_P:
                with self._meeting() if second == "during" else contextlib.nullcontext():
                    self.until_done(self._producer.commit_transaction)
                made.fate = COMMITTED
                if not all(future.succeeded() for future in futures):
                    self.faults.append(f"{made}: not all its records were acknowledged")
                return
        except (ProducerFencedError, IllegalStateError):
            raise
        except KafkaError as error:
            self.counts["timed out" if "transaction_timeout_ms" in str(error) else "failed"] += 1
            self._doubt(made, error)
        self._abort(made)

    def _abort(self, made: Made) -> None:
        try:
            self.until_done(self._producer.abort_transaction)
        except (ProducerFencedError, IllegalStateError):
            raise
        except KafkaError:
            self.counts["left to the time-out"] += 1
            self.until_done(self._producer.init_transactions)
        if not made.in_doubt:
            made.fate = ABORTED

    def _doubt(self, made: Made, error: Exception) -> None:
        made.in_doubt |= IN_DOUBT in str(error)
        made.fate = UNKNOWN if made.in_doubt else ABORTED

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        """A second producer takes the id over while this one does something."""
        made: list[Any] = []
        thread = threading.Thread(target=lambda: made.append(self._new()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()
            self._second = made[0]

    def _fenced(self) -> None:
        """This one is done with: go on with the second one, or, where there is none, a new one."""
        if self._second is not None:
            self.counts["fenced"] += 1
        elif self._took_over_s > AT_ONCE_S:
            self.counts["fenced by its own first question"] += 1
        else:
            self.faults.append("fenced, and there was no second producer")
        old, self._producer, self._second = self._producer, self._second, None
        with contextlib.suppress(ProducerFencedError):
            old.begin_transaction()
            self.faults.append("begin_transaction() worked after it was fenced")
        self._leave(old)
        if self._producer is None:
            self._producer = self._new()

    def until_done(self, call: Callable[[], Any]) -> None:
        """What was asked of the coordinator goes on: the same call again learns how it ended."""
        give_up_s = time.monotonic() + CALL_S
        while True:
            try:
                call()
            except KafkaTimeoutError:  # noqa: PERF203 - it waits anyway
                self.counts["calls timed out"] += 1
                if time.monotonic() > give_up_s:
                    raise
            else:
                return

    # --- the judge ------------------------------------------------------------------------------

    def findings(self, seen: Values) -> Iterator[str]:
        """What a reader of committed data sees of it that it should not, or does not see."""
        found: Counter[bytes] = Counter()
        by_transaction: Counter[int] = Counter()
        for partition, values in enumerate(seen):
            last = (-1, -1)
            for value in values:
                number, place = (int(word) for word in value.split(b":", 2)[:2])
                found[value] += 1
                by_transaction[number] += 1
                if self.made[number].fate == ABORTED:
                    yield f"partition {partition}: {value[:40]!r} of {self.made[number]} is seen"
                if (number, place) <= last:
                    yield f"partition {partition}: {value[:40]!r} is seen behind {last}"
                last = number, place
        yield from (f"{value[:40]!r} is seen {n} times" for value, n in found.items() if n > 1)
        for made in self.made:
            count = by_transaction[made.number]
            if made.fate == COMMITTED and count != made.sent:
                yield f"{made}: {count} are seen"
            if made.fate == UNKNOWN and count not in (0, made.sent):
                yield f"{made}: {count} are seen, a part of it"

    def __str__(self) -> str:
        kinds = dict.fromkeys((COMMITTED, ABORTED, "fenced", UNKNOWN), 0) | self.counts
        told = " · ".join(f"{kind} {n}" for kind, n in kinds.items())
        return f"  {self.name}: {len(self.made)} transactions: {told}"


class Source(Application):
    """Writes transactions to `in`."""

    def prepare(self) -> Sequence[Any] | None:
        if self.stopping.wait(self.rng.expovariate(1 / EACH_S)):
            return None
        partitions = [self.rng.randrange(PARTITIONS) for _ in range(self.rng.randint(1, 30))]
        return sorted(partitions) if self.rng.random() < 0.3 else partitions

    def write(self, producer: Any, made: Made, what: Sequence[Any]) -> list[Any]:
        futures: list[Any] = []
        values: dict[int, list[bytes]] = {}
        for place, partition in enumerate(what):
            value = b"%d:%d:%s" % (made.number, place, self.rng.randbytes(20).hex().encode())
            values.setdefault(partition, []).append(value)
            made.sent += 1
        for partition, its in values.items():
            if self.rng.random() < 0.3:
                futures += producer.send_many(self.topic, its, partition=partition)
            else:
                futures += [producer.send(self.topic, v, partition=partition) for v in its]
            if self.rng.random() < 0.1:
                time.sleep(self.rng.expovariate(5))  # some take their time
        return futures


class Mill(Application):
    """Reads `in`, writes `out`."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        topic: str,
        source: Source,
        stopping: threading.Event,
        seed: str,
    ) -> None:
        super().__init__(bootstrap, "mill", topic, stopping, seed)
        self.read_to = dict.fromkeys(places(source.topic), 0)  # with what is committed
        self.group = f"{topic}-readers"
        self._source = source
        self._consumer: Any = None
        self._give_up_s = 0.0

    def prepare(self) -> Sequence[Any] | None:
        while True:
            drained = self._drained()
            records = self._read(lambda it: it.poll(timeout_ms=200, max_records=RECORDS_MAX))
            if records:
                return [record for its in records.values() for record in its]
            if drained:
                self._consumer.close()
                return None

    def _drained(self) -> bool:
        """Whether all has been read that there will ever be."""
        if not self.stopping.is_set() or self._source.thread.is_alive():
            self._give_up_s = time.monotonic() + DRAIN_S
            return False
        end = ends(self._bootstrap, self._source.topic)
        here = self._read(lambda it: {place: it.position(place) for place in end})
        if time.monotonic() > self._give_up_s:
            raise TimeoutError(f"read to {here}, not to {end}")
        return all(here[place] >= offset for place, offset in end.items())

    def _read(self, call: Callable[[Any], Any]) -> Any:
        """What the consumer gives; it may be another one, at the same place."""
        give_up_s = time.monotonic() + CALL_S
        while True:
            try:
                if self._consumer is None:
                    self._consumer = consumer(self._bootstrap, self._source.topic, self.group)
                    self._rewind()
                return call(self._consumer)
            except KafkaError:  # noqa: PERF203 - it waits anyway
                if time.monotonic() > give_up_s:
                    raise
                self.counts["readings failed"] += 1
                if self._consumer is not None:
                    self._consumer.close()
                self._consumer = None
                time.sleep(0.2)

    def _rewind(self) -> None:
        for place, offset in self.read_to.items():
            self._consumer.seek(place, offset)

    def write(self, producer: Any, made: Made, what: Sequence[Any]) -> list[Any]:
        made.sent = len(what)
        futures = [
            producer.send(
                self.topic,
                b"%d:%d:%s" % (made.number, place, record.value),
                partition=record.partition,
            )
            for place, record in enumerate(what)
        ]
        offsets = {p: OffsetAndMetadata(at, "", -1) for p, at in _after(what).items()}
        group = self._consumer.group_metadata()
        self.until_done(lambda: producer.send_offsets_to_transaction(offsets, group))
        return futures

    def ended(self, made: Made, what: Sequence[Any]) -> None:
        if made.fate == COMMITTED:
            self.read_to |= _after(what)
            return
        if made.fate == UNKNOWN:
            self.read_to = self._read(lambda it: {p: it.committed(p) or 0 for p in self.read_to})
        self._rewind()


def applications(
    bootstrap: Sequence[str], topics: tuple[str, str], stopping: threading.Event, seed: int
) -> tuple[Source, Mill]:
    """The two, not yet started."""
    source = Source(bootstrap, "source", topics[0], stopping, str(seed))
    return source, Mill(bootstrap, topics[1], source, stopping, str(seed))


def _after(records: Sequence[Any]) -> dict[TopicPartition, int]:
    return {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}


# --- the judge of both ---------------------------------------------------------------------------


def came_out_once(taken: Values, given: Values) -> Iterator[str]:
    """Whether all that went in came out, once and in order."""
    for partition, (wanted, got) in enumerate(zip(taken, given, strict=True)):
        came_out = [value.split(b":", 2)[2] for value in got]
        if came_out != wanted:
            pairs = enumerate(zip(came_out, wanted, strict=False))
            at = next((n for n, (one, other) in pairs if one != other), -1)
            yield (
                f"partition {partition}: {len(wanted)} went in, {len(came_out)} came out; they "
                f"differ at {at}: {came_out[at : at + 2]} for {wanted[at : at + 2]}"
            )


def judge(bootstrap: Sequence[str], source: Source, mill: Mill, timeout_s: float) -> Iterator[str]:
    """All that is wrong with the two."""
    taken, given = (seen(bootstrap, it.topic, timeout_s) for it in (source, mill))
    for it, values in ((source, taken), (mill, given)):
        yield from (f"{it.name}: {fault}" for fault in [*it.faults, *it.findings(values)])
    yield from came_out_once(taken, given)
    with contextlib.closing(consumer(bootstrap, source.topic, mill.group)) as reader:
        group = {place: reader.committed(place) or 0 for place in places(source.topic)}
    if group != mill.read_to:
        yield f"the group is at {group}, the mill committed {mill.read_to}"
