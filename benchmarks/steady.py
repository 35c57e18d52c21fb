"""A steady load by any client, in a process of its own, and what the application was told.

Clients in Python are those of `clients.py`; the Java producer is `java/SteadyProducer.java`, run
with the jars of the cluster. Settings: acks=all and idempotent; all else, linger included, is each
client's default. When a record was sent, and when the application was told what became of it, are
moments of the host's one monotonic clock, in whatever process.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from benchmarks.clients import CLIENTS, Load, Settings
from tests.real.kafka_cluster import bound_to_this_process, until
from tests.real.kafka_jars import fetch
from tests.real.load import Ack, Ledger

USUAL_S = 2.0  # of steady acks tell how it usually goes
QUICK_S = 0.1  # from a record to its ack, where nothing is wrong
STEADY_S = 30.0  # for that long quick acks are waited for
NO_ACK = (-1.0, 0.0)
FLUSH_S = 90.0  # what has not been told by then stays unsettled
JAVA = "java"  # as a client's name
JAVA_SOURCE = Path(__file__).parent / "java" / "SteadyProducer.java"
JAVA_OPTIONS = [
    "-Xmx192m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # as the brokers: a process of half a minute compiles too much else
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every program with a load and a victim asks for."""
    parser.add_argument("--rate", type=float, default=500, help="records/s on each partition")
    parser.add_argument(
        "--kill",
        choices=["bystander", "controller"],
        default="bystander",
        help="a broker that is not the active controller (each in its turn), or the one that is",
    )


def usual(ledger: Ledger, before_s: float) -> dict[str, float]:
    """Rate of acks and median time from send to ack, in the last seconds before a moment."""
    took = [
        ack.at_s - ledger.sent[partition][counter]
        for partition, acks in ledger.acks.items()
        for counter, ack in acks.items()
        if before_s - USUAL_S < ack.at_s <= before_s
    ]
    return {
        "records_per_s": round(len(took) / USUAL_S),
        "usual_ms": round(statistics.median(took) * 1000, 1),
    }


# --- the producing process of a client in Python --------------------------------------------------


def produce(client: str, bootstrap: str, load: Load, pipe: Connection) -> None:
    """Produce until told to stop, answering meanwhile when the newest acks came."""
    ledger = Ledger(sent={partition: [] for partition in load.indexes})
    stop = threading.Event()

    def work() -> None:
        producer = CLIENTS[client](Settings(bootstrap))
        producer.pace(load, ledger, stop.is_set)
        try:
            producer.flush(FLUSH_S)
        except Exception as error:  # what is not told by now is unsettled
            print(f"{client}: flush: {error!r}", file=sys.stderr)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while pipe.recv() == "last acks":
        if not thread.is_alive():
            raise SystemExit(f"{client} ended early")  # it said why; the other side sees the end
        pipe.send([_newest(ledger, partition) for partition in load.indexes])
    stop.set()
    thread.join(FLUSH_S * 1.5)
    pipe.send(ledger)


def _newest(ledger: Ledger, partition: int) -> tuple[float, float]:
    acks = ledger.acks.get(partition)
    if not acks:
        return NO_ACK
    while True:
        try:
            counter = next(reversed(acks))
            break
        except RuntimeError:  # the producer's thread has just put one in
            continue
    return acks[counter].at_s, acks[counter].at_s - ledger.sent[partition][counter]


# --- the measuring process's view of it -----------------------------------------------------------


class Producing(Protocol):
    """A producing process."""

    def last_acks(self) -> list[tuple[float, float]]:
        """Of each partition's newest ack: when it came, and how long after the record was sent."""
        ...

    def stop(self) -> Ledger:
        """Have it send no more and flush; what the application was told by then."""
        ...

    def end(self) -> None:
        """Kill it if it still runs."""
        ...


def flowing_since(at_s: float, producing: Iterable[Producing]) -> bool:
    """Whether every partition has an ack that came after `at_s`."""
    return all(ack_s > at_s for one in producing for ack_s, _ in one.last_acks())


def wait_steady(seconds: float, producing: Collection[Producing]) -> None:
    """Until acks have come quickly for so long on every partition: connections are made, machine
    code is made, and the machine is not too busy. If it stays busy, `usual` will tell.
    """
    late_s = time.monotonic()

    def steady() -> bool:
        nonlocal late_s
        now = time.monotonic()
        newest = [ack for one in producing for ack in one.last_acks()]
        if any(now - ack_s > QUICK_S or wait_s > QUICK_S for ack_s, wait_s in newest):
            late_s = now
        return now - late_s > seconds

    with contextlib.suppress(AssertionError):
        until(steady, "acks come quickly", STEADY_S)
    until(lambda: flowing_since(late_s, producing), "every partition has acks")


def start(client: str, bootstrap: str, load: Load) -> Producing:
    """Begin to produce. The client is `JAVA` or one of `clients.py`."""
    if client == JAVA:
        return JavaProducing(bootstrap, load)
    return PythonProducing(client, bootstrap, load)


class PythonProducing:
    def __init__(self, client: str, bootstrap: str, load: Load) -> None:
        self._pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=produce, args=(client, bootstrap, load, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def last_acks(self) -> list[tuple[float, float]]:
        self._pipe.send("last acks")
        told: list[tuple[float, float]] = self._pipe.recv()
        return told

    def stop(self) -> Ledger:
        self._pipe.send("stop")
        ledger: Ledger = self._pipe.recv()
        self._process.join(20)
        return ledger

    def end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


class JavaProducing:
    def __init__(self, bootstrap: str, load: Load) -> None:
        self._load = load
        command = [*bound_to_this_process(), "java", *JAVA_OPTIONS]
        command += ["-cp", f"{java_classes()}:{fetch()}/*", JAVA_SOURCE.stem]
        command += [bootstrap, load.topic, str(load.first_partition), str(load.partitions)]
        command += [str(load.records_per_s), str(load.tick_s), str(FLUSH_S)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        early_s = time.monotonic()
        (its_s,) = map(float, self._line().split())
        assert early_s <= its_s <= time.monotonic(), "Java's clock is not this process's"

    def last_acks(self) -> list[tuple[float, float]]:
        self._say("last acks")
        times = list(map(float, self._line().split()))
        return list(zip(times[::2], times[1::2], strict=True))

    def stop(self) -> Ledger:
        self._say("stop")
        ledger = Ledger(sent={partition: [] for partition in self._load.indexes})
        while (line := self._line()) != "end\n":
            words = line.split(" ", 4)
            partition, counter = int(words[0]), int(words[1])
            ledger.sent[partition].append(float(words[2]))
            if words[3] == "acked":
                offset, _, at_s = words[4].partition(" ")
                acks = ledger.acks.setdefault(partition, {})
                acks[counter] = Ack(int(offset), float(at_s))
            elif words[3] == "failed":
                ledger.failed(partition, counter, RuntimeError(words[4].strip()))
        self._process.wait(20)
        return ledger

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("java ended early")  # it said why
        return line


@functools.cache
def java_classes() -> Path:
    """The folder with the Java producer's classes, compiled once in the life of this process."""
    if shutil.which("javac") is None:
        raise SystemExit("no javac on the path: the Java client needs a JDK, not only a JRE")
    folder = Path(tempfile.mkdtemp(prefix="steady-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run(
        ["javac", "-cp", f"{fetch()}/*", "-d", str(folder), str(JAVA_SOURCE)], check=True
    )
    return folder
