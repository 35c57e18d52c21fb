"""Field case B11: a producer that was made before the fork, in a worker.

What a child may expect is docs/failure-semantics.md; that it leaves descriptors, threads and locks
of the parent alone is tests/net/test_fork.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.field.test_b01_b37_tcp import served

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

APPLICATION = """
import json, multiprocessing, os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is the point
from outlast import KafkaProducer

bootstrap, way = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=500, metrics_registry=None)
producer.send("t", b"r1", partition=0).get(timeout=5)
producer.send("t", b"r2", partition=0)  # lingers
busy, over = threading.Event(), threading.Event()

def keep_busy():
    n = 0
    while not over.is_set():
        producer.send("busy", b"%d" % n, partition=0)
        n += 1
        busy.set()
        time.sleep(0.0005)
    told["sent"] = n

told = {}
thread = threading.Thread(target=keep_busy)
thread.start()
busy.wait()

def child():
    begin_s = time.monotonic()
    future = producer.send("t", b"c1", partition=0)
    took_s = time.monotonic() - begin_s
    producer.flush(timeout=5)
    assert future.succeeded() and took_s < 2.0, (future, took_s)

if way == "multiprocessing":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(10)
    told["child"] = process.exitcode
else:
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(3)
        if way == "_exit":
            os._exit(0)
        over.set()
        sys.exit(0)  # runs the exit handlers
    told["child"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
over.set()
thread.join()
producer.send("t", b"r3", partition=0).get(timeout=5)
producer.close(timeout=5)
print(json.dumps(told))
"""


@pytest.mark.parametrize("way", ["_exit", "normal exit", "multiprocessing"])
def test_b11_parent_and_worker_each_deliver_their_own_once(way: str) -> None:
    with served(topics={"t": 1, "busy": 1}) as server:
        done = subprocess.run(
            [sys.executable, "-c", APPLICATION, server.bootstrap, way],
            capture_output=True,
            text=True,
            timeout=40,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["child"] == 0, done.stderr
        assert Counter(r.value for r in server.records("t", 0)) == Counter(
            [b"r1", b"r2", b"c1", b"r3"]
        )
        busy = [int(r.value or b"") for r in server.records("busy", 0)]
        assert busy == list(range(told["sent"])), "the child sent what was the parent's"
