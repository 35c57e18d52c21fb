"""Multiprocess mode with real workers: forked by one parent, each with a producer, one killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from outlast.engine.messages import RecordsSettled
from outlast.observe import multiprocess
from outlast.observe.metrics import METRICS
from outlast.observe.prometheus import PrometheusObserver
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.server import ClusterServer

LATE_S = 20.0
WORKERS, PARTITIONS, DETECT_S = 3, 2, 5.0
SECONDS = "outlast_partition_gap_seconds_total"

# as an application server with preloading does it: import, fork, and a producer in each worker
SERVER = """
import json, os, signal, sys, threading
from outlast import KafkaProducer

def worker(number):
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    acked = 0
    with KafkaProducer(bootstrap_servers=sys.argv[1], delivery_timeout_ms=60_000 + number) as p:
        futures = []
        while not stopped.wait(0.02):
            futures += [p.send("orders", b"x", partition=n) for n in range(int(sys.argv[2]))]
        acked = sum(future.get(20).offset >= 0 for future in futures)
    told = json.dumps({"pid": os.getpid(), "acked": acked}) + "\\n"
    os.write(1, told.encode())  # at one go: print() does not if PYTHONUNBUFFERED is set

for number in range(int(sys.argv[3])):
    if os.fork() == 0:
        worker(number)
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


class Workers:
    def __init__(self, folder: Path, server: ClusterServer) -> None:
        self.folder = folder
        self.server = server
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, server.bootstrap, str(PARTITIONS), str(WORKERS)],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, name: str, **labels: str) -> float:
        """What the endpoint of any worker would show."""
        value = self.registry().get_sample_value(name, labels)
        return -1.0 if value is None else value

    def registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self.folder))
        return registry

    def pids(self) -> list[int]:
        """Of those that have metrics."""
        names = self.folder.glob("counter_*.db")
        return sorted(int(path.stem.removeprefix("counter_")) for path in names)

    def stop(self) -> dict[int, int]:
        """Let the living end; acknowledged records of each."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        output, _ = self.process.communicate(timeout=60)
        return {told["pid"]: told["acked"] for told in map(json.loads, output.splitlines())}


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LATE_S
    while not condition():
        assert time.monotonic() < deadline_s, "this did not come about in time"
        time.sleep(0.05)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    cluster = MockCluster(3, settings=ClusterSettings(detect_s=DETECT_S), rng=random.Random(1))
    with ClusterServer(cluster) as server:
        server.create_topic("orders", PARTITIONS)
        workers = Workers(tmp_path, server)
        try:
            yield workers
        finally:
            for pid in workers.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            workers.process.kill()
            workers.process.communicate()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_workers_add_up_also_when_one_is_killed_in_the_midst_of_a_gap(workers: Workers) -> None:
    acked = {"topic": "orders", "result": "acked"}
    wait_for(lambda: len(workers.pids()) == WORKERS)
    wait_for(lambda: workers("outlast_records_total", **acked) > 50)
    assert workers("outlast_delivery_timeout_seconds") == 60.0  # the least
    limit_bytes = WORKERS * 33_554_432
    wait_for(lambda: workers("outlast_buffer_limit_bytes") == limit_bytes)
    for partition in range(PARTITIONS):
        assert workers(SECONDS, topic="orders", partition=str(partition)) == 0.0

    leader, _ = workers.server.leader("orders", 0)
    hit = [p for p in range(PARTITIONS) if workers.server.leader("orders", p)[0] == leader]
    workers.server.kill(leader)
    wait_for(lambda: workers("outlast_open_gaps", topic="orders") == WORKERS * len(hit))
    assert workers("outlast_partition_gap_phase", topic="orders", partition="0") in (2, 3)
    one_s = workers(SECONDS, topic="orders", partition="0")
    wait_for(lambda: workers(SECONDS, topic="orders", partition="0") > one_s)  # it advances

    killed = workers.pids()[0]
    os.kill(killed, signal.SIGKILL)
    assert workers("outlast_open_gaps", topic="orders") == WORKERS * len(hit)
    mark_process_dead(killed, path=str(workers.folder))  # what the server is told to do
    living = (WORKERS - 1) * len(hit)
    assert workers("outlast_open_gaps", topic="orders") == living
    assert workers("outlast_buffer_limit_bytes") == (WORKERS - 1) * 33_554_432

    wait_for(lambda: workers("outlast_open_gaps", topic="orders") == 0)
    assert workers("outlast_open_gap_seconds", topic="orders") == 0.0
    durations = sum(
        workers("outlast_gap_duration_seconds_count", topic="orders", cause=cause)
        for cause in METRICS["outlast_gap_duration_seconds"].closed["cause"]
        if workers("outlast_gap_duration_seconds_count", topic="orders", cause=cause) > 0
    )
    assert durations == living
    before = workers("outlast_records_total", **acked)
    wait_for(lambda: workers("outlast_records_total", **acked) > before)

    told = workers.stop()
    assert killed not in told
    assert len(told) == WORKERS - 1
    shown = workers("outlast_records_total", **acked)
    assert shown >= sum(told.values()) > 0  # and what the killed one had counted
    own = {s.labels.get("pid") for page in workers.registry().collect() for s in page.samples}
    assert own == {None}  # no series of a process


# what files show after each step: records acked and failed, batches by the histogram, its sum
HELD = """
import json, os, sys, time
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
import outlast.observers  # as every producer does: metrics are held over forks then
from outlast.engine.messages import RecordsSettled
from outlast.observe import multiprocess
from outlast.observe.prometheus import PrometheusObserver

observer = PrometheusObserver(CollectorRegistry())

def batch(acked, age_s):
    observer([RecordsSettled(5.0, "t", 0, acked, 1, age_s)])

def shown():
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=os.environ["PROMETHEUS_MULTIPROC_DIR"])
    names = {
        "acked": ("outlast_records_total", {"topic": "t", "result": "acked"}),
        "failed": ("outlast_records_total", {"topic": "t", "result": "failed"}),
        "batches": ("outlast_send_duration_seconds_count", {"topic": "t"}),
        "quick": ("outlast_send_duration_seconds_bucket", {"topic": "t", "le": "0.005"}),
        "seconds": ("outlast_send_duration_seconds_sum", {"topic": "t"}),
    }
    return [registry.get_sample_value(*it) for it in names.values()]

def show():
    print(json.dumps(shown()), flush=True)

batch(10, 0.004)
batch(20, 0.25)
batch(30, 90.0)
deadline_s = time.monotonic() + 20
while shown()[2] != 3 and time.monotonic() < deadline_s:
    time.sleep(0.01)
show()  # no other fact came
multiprocess.WRITE_EVERY_S = 3600.0
batch(40, 500.0)
show()  # what follows is held
if os.fork() == 0:
    batch(7, 0.5)
    observer.close()
    os._exit(0)
os.wait()
show()  # a child leaves it to its parent, and tells its own
observer.close()
show()  # and nothing is held any more
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_batches_are_put_together_before_they_are_written_and_none_is_missed(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HELD],  # Python warns of forks beside threads
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    most = [60, 3, 3, 1, pytest.approx(90.254)]
    childs = [67, 4, 4, 1, pytest.approx(90.754)]
    assert shown == [most, most, childs, [107, 5, 5, 1, pytest.approx(590.754)]]


# --- its objects in this process, where they keep their numbers in memory ---

ACKED = {"topic": "orders", "result": "acked"}
BATCH = RecordsSettled(1.0, "orders", 0, 5, 0, 0.004)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    return CollectorRegistry()


def test_producers_with_labels_of_their_own_count_side_by_side_and_lose_nothing(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocess, "WRITE_EVERY_S", 1e-6)  # in the midst of counting
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    teams = {
        team: PrometheusObserver(registry, own_labels={"team": team}) for team in ("a", "b", "c")
    }

    def count(observer: PrometheusObserver) -> None:
        for topic in range(1000):
            observer([BATCH, RecordsSettled(1.0, f"topic-{topic % 50}", 0, 1, 0, 0.1)])

    try:
        with ThreadPoolExecutor(len(teams)) as pool:
            list(pool.map(count, teams.values()))
    finally:
        sys.setswitchinterval(interval_s)
    for team, observer in teams.items():
        observer.close()
        assert registry.get_sample_value("outlast_records_total", {**ACKED, "team": team}) == 5000
        labels = {"topic": "orders", "team": team}
        assert registry.get_sample_value("outlast_send_duration_seconds_count", labels) == 1000


def test_a_write_that_fails_is_raised_for_the_next_batch(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer = PrometheusObserver(registry)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Counter, "inc", full)

    def raises() -> bool:
        try:
            observer([BATCH])
        except OSError as error:
            return "No space" in str(error)
        return False

    assert not raises()
    wait_for(raises)


def test_without_the_private_names_of_prometheus_client_batches_are_written_one_by_one(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bare:
        """A histogram with nothing but what is documented."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._real = args[0] if not args[1:] else Histogram(*args, **options)
            self.collect, self.describe = self._real.collect, self._real.describe
            self.observe = self._real.observe

        def labels(self, **labels: str) -> Bare:
            return Bare(self._real.labels(**labels))

    monkeypatch.setattr(multiprocess, "Histogram", Bare)
    observer = PrometheusObserver(registry)
    for _ in range(3):
        observer([BATCH])
    count = "outlast_send_duration_seconds_count"
    assert registry.get_sample_value(count, {"topic": "orders"}) == 3
    observer.close()
    assert registry.get_sample_value(count, {"topic": "orders"}) == 3
    assert registry.get_sample_value("outlast_records_total", ACKED) == 15
