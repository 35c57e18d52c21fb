"""An outbox: rows that an application wrote with its business data, relayed to Kafka in order.

    outlast cluster --topic orders:6                # in another terminal
    python examples/outbox_relay.py shop.db --orders 1000    # writes these rows first; end: Ctrl-C

An application cannot commit to a database and to Kafka at once. So it writes what is to be sent
into a table, in the transaction that makes it true (`put` below), and this relay, one for each
database, does the rest:

* **At least once.** A row is marked as delivered when Kafka has acknowledged it, and not before. A
  relay that is killed begins again with the rows that are not marked; the last may be sent twice.
* **In order for each key.** Of a key's rows one at a time is under way, whatever fails and is sent
  again. Other keys go on beside it: a row a round trip is a key's speed, not the relay's.
* **Nobody waits for another.** A key whose partition is held up, or whose row Kafka will not have,
  stays where it is and is tried again; the log says which row it is.

What a killed relay's host had sent already may be appended late, behind rows that the next relay
sent. Only a `transactional_id` shuts that out.

`OUTLAST_BOOTSTRAP_SERVERS` names the brokers, localhost:9092 if it is not set.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sqlite3
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from kafka.errors import KafkaError

from outlast import BlockedError, KafkaProducer

POLL_S = 0.1  # how late a new row may be seen
RETRY_S = 0.5
READ_MAX = 1000  # rows read at once
HELD_MAX = 50_000  # rows in memory
CLOSE_S = 10.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    delivered_at REAL
);
CREATE INDEX IF NOT EXISTS outbox_waiting ON outbox (id) WHERE delivered_at IS NULL;
"""

log = logging.getLogger("outbox")


class Row(NamedTuple):
    """What is to be sent."""

    id: int
    topic: str
    key: bytes
    value: bytes


Settled = tuple[Row, Exception | None]


def opened(path: str) -> sqlite3.Connection:
    """The database, with an outbox in it. Readers and the one writer do not wait for each other."""
    database = sqlite3.connect(path, timeout=30)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(SCHEMA)
    return database


def put(database: sqlite3.Connection, topic: str, key: bytes, value: bytes) -> None:
    """For the application: within the transaction that it is about, and which it commits."""
    database.execute("INSERT INTO outbox (topic, key, value) VALUES (?, ?, ?)", (topic, key, value))


class Relay:
    """Reads rows, sends them, marks them. All state that matters is in the table."""

    def __init__(self, database: sqlite3.Connection, producer: KafkaProducer) -> None:
        self._database = database
        self._producer = producer
        self._lines: dict[tuple[str, bytes], deque[Row]] = {}  # the first of each is under way
        self._held = 0  # rows in all lines
        self._read_to = 0
        self._settled: SimpleQueue[Settled] = SimpleQueue()  # filled on the producer's thread
        self._again: deque[tuple[float, Row]] = deque()  # when, oldest first

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set. Closing the producer settles what is under way; marked, too."""
        while not stop.is_set():
            self._read()
            self._mark(self._outcomes(POLL_S))
            self._try_again()
        self._producer.close(CLOSE_S)
        self._mark(self._outcomes(0))

    def _read(self) -> None:
        """SQLite has one writer at a time, so that ids are committed in their order, and nothing is
        ever committed below `_read_to`. Where that is not so, another column must tell the order.
        """
        wanted = min(READ_MAX, HELD_MAX - self._held)
        found = self._database.execute(
            "SELECT id, topic, key, value FROM outbox"
            " WHERE delivered_at IS NULL AND id > ? ORDER BY id LIMIT ?",
            (self._read_to, wanted),
        ).fetchall()
        for row in map(Row._make, found):
            self._read_to = row.id
            self._held += 1
            line = self._lines.setdefault((row.topic, row.key), deque())
            line.append(row)
            if len(line) == 1:
                self._send(row)

    def _send(self, row: Row) -> None:
        try:
            future = self._producer.send(row.topic, row.value, row.key)
        except (KafkaError, ValueError) as error:  # it was not taken
            self._settled.put((row, error))
            return
        future.add_callback(lambda _: self._settled.put((row, None)))
        future.add_errback(lambda error: self._settled.put((row, error)))

    def _outcomes(self, wait_s: float) -> list[Settled]:
        """What is settled by now. Waits for the first one, since there is nothing else to do."""
        outcomes: list[Settled] = []
        with suppress(Empty):
            if wait_s:
                outcomes.append(self._settled.get(timeout=wait_s))
            while True:
                outcomes.append(self._settled.get_nowait())
        return outcomes

    def _mark(self, outcomes: list[Settled]) -> None:
        """Written down first: only then is the key's next row sent."""
        delivered = [row for row, error in outcomes if error is None]
        if delivered:
            marks = [(time.time(), row.id) for row in delivered]
            with self._database:
                self._database.executemany("UPDATE outbox SET delivered_at = ? WHERE id = ?", marks)
        for row in delivered:
            line = self._lines[row.topic, row.key]
            line.popleft()
            self._held -= 1
            if line:
                self._send(line[0])
            else:
                del self._lines[row.topic, row.key]
        for row, error in outcomes:
            if error is not None:
                blocked = isinstance(error, BlockedError)  # no room, or no metadata yet: many are
                level = logging.DEBUG if blocked else logging.WARNING
                log.log(level, "row %d is tried again: %s: %s", row.id, type(error).__name__, error)
                self._again.append((time.monotonic() + RETRY_S, row))

    def _try_again(self) -> None:
        while self._again and self._again[0][0] <= time.monotonic():
            self._send(self._again.popleft()[1])


def main() -> None:
    """Relay until SIGINT or SIGTERM."""
    arguments = argparse.ArgumentParser(description="Relays an outbox in SQLite to Kafka.")
    arguments.add_argument("database")
    arguments.add_argument("--orders", type=int, default=0, help="write so many rows first")
    chosen = arguments.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    database = opened(chosen.database)
    with database:
        for number in range(chosen.orders):
            put(database, "orders", b"customer %d" % (number % 50), b"order %d" % number)

    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    # Nothing is ever waited for in send(): what finds no room, or no metadata yet, is tried again.
    Relay(database, KafkaProducer(max_block_ms=0, metrics=None)).run(stop)
    waiting = database.execute("SELECT count(*) FROM outbox WHERE delivered_at IS NULL").fetchone()
    print(f"{waiting[0]} rows wait for the next run")


if __name__ == "__main__":
    main()
