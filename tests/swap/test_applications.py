"""Published packages that use kafka-python's producer, swapped and not edited, through a failover.

Each runs in a process of its own under `outlast run`. In the middle of what it sends the leader is
killed; all that it sent must be in the log, once and in order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dill
import pytest

from outlast.testing import MockCluster
from tests.swap.processes import RUN, environment

COUNT = 40  # records of each application

# kafka-logging-handler: a handler of `logging`, which sends from a thread of its own.
LOGGING = f"""\
import logging, sys
from kafka_logger.handlers import KafkaLoggingHandler

handler = KafkaLoggingHandler(
    sys.argv[1].split(","), "events", security_protocol="PLAINTEXT", flush_interval=0.05
)
log = logging.getLogger("app")
log.setLevel(logging.INFO)
log.addHandler(handler)
for number in range({COUNT}):
    if number == {COUNT} // 2:
        print("half", flush=True)
        sys.stdin.readline()
    log.info("line %d", number)
handler.flush()
print(type(handler.producer).__module__, len(handler.producer.gaps()))
"""

# kq: a job queue, which takes a producer of the application's and insists on its class.
JOBS = f"""\
import math, sys
from kafka import KafkaProducer
from kq import Queue

queue = Queue("events", KafkaProducer(bootstrap_servers=sys.argv[1]))
for number in range({COUNT}):
    if number == {COUNT} // 2:
        print("half", flush=True)
        sys.stdin.readline()
    queue.enqueue(math.factorial, number)
print(type(queue.producer).__module__, len(queue.producer.gaps()))
"""

# kafka-manager: producer, consumer and admin client behind one object.
MANAGER = f"""\
import sys
from kafka_manager.kafka_manager import KafkaManager

manager = KafkaManager(sys.argv[1].split(","))
assert manager.connect_admin_client() is not None
assert manager.start_producer()
producer = manager.producer_client._producer
for number in range({COUNT}):
    if number == {COUNT} // 2:
        print("half", flush=True)
        sys.stdin.readline()
    manager.send_message("events", {{"number": number}})
manager.close_admin_client()
assert manager.stop_producer()
print(type(producer).__module__, len(producer.gaps()))
"""


def log_line(value: bytes) -> Any:
    return json.loads(value)["args"]


def job(value: bytes) -> Any:
    found = dill.loads(value)
    return found.func.__name__, found.args


APPLICATIONS: dict[str, tuple[str, Callable[[bytes], Any], Callable[[int], Any]]] = {
    "kafka-logging-handler": (LOGGING, log_line, lambda number: [str(number)]),
    "kq": (JOBS, job, lambda number: ("factorial", (number,))),
    "kafka-manager": (MANAGER, json.loads, lambda number: {"number": number}),
}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_its_records_outlast_a_failover(name: str, tmp_path: Path) -> None:
    code, read, sent = APPLICATIONS[name]
    with MockCluster(topics=["events"]) as cluster:
        application = subprocess.Popen(
            [*RUN, "-c", code, cluster.bootstrap_servers],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert application.stdout is not None
        for line in application.stdout:
            if line == "half\n":
                break
        leader = cluster.leader("events", 0)
        assert leader is not None
        cluster.kill(leader)
        shown, errors = application.communicate("go\n", timeout=60)
        assert application.returncode == 0, errors
        module, gaps = shown.splitlines()[-1].split()
        found = [read(record.value or b"") for record in cluster.records("events", 0)]
    assert module == "outlast.producer"
    assert int(gaps) >= 1
    assert found == [sent(number) for number in range(COUNT)]
