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
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from outlast.observe.metrics import METRICS
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
    print(json.dumps({"pid": os.getpid(), "acked": acked}), flush=True)

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


# what files show after each step: records acked, batches by the histogram, its sum
HELD = """
import json, os, sys
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from outlast.engine.messages import BufferLevel, RecordsSettled
from outlast.observe.prometheus import PrometheusObserver

observer = PrometheusObserver(CollectorRegistry())

def batch(at_s, acked, age_s):
    observer([RecordsSettled(at_s, "t", 0, acked, 1, age_s)])

def show():
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=os.environ["PROMETHEUS_MULTIPROC_DIR"])
    names = {
        "acked": ("outlast_records_total", {"topic": "t", "result": "acked"}),
        "failed": ("outlast_records_total", {"topic": "t", "result": "failed"}),
        "batches": ("outlast_send_duration_seconds_count", {"topic": "t"}),
        "quick": ("outlast_send_duration_seconds_bucket", {"topic": "t", "le": "0.005"}),
        "seconds": ("outlast_send_duration_seconds_sum", {"topic": "t"}),
    }
    print(json.dumps([registry.get_sample_value(*it) for it in names.values()]), flush=True)

batch(5.0, 10, 0.004)
show()  # the first is there at once
batch(5.05, 20, 0.25)
batch(5.06, 30, 90.0)
show()  # what follows is held
observer([BufferLevel(5.1, 1, 2, None)])
show()  # and written with the next fact that is due, whatever it tells of
batch(5.15, 40, 500.0)
if os.fork() == 0:
    observer.close()
    os._exit(0)
os.wait()
show()  # a child leaves it to its parent
observer.close()
show()  # and nothing is held any more
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_batches_are_put_together_before_they_are_written_and_none_is_missed(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELD],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    first, most = [10, 1, 1, 1, 0.004], [60, 3, 3, 1, pytest.approx(90.254)]
    assert shown == [first, first, most, most, [100, 4, 4, 1, pytest.approx(590.254)]]
