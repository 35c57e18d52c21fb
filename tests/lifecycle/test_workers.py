"""Servers that fork workers from a process that has made the producer: gunicorn, Celery."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outlast.testing.server import ClusterServer
from tests.real.kafka_cluster import until
from tests.tcp.stories import calm_cluster

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

GUNICORN = """
import os, sys
from outlast import KafkaProducer

producer = KafkaProducer(
    bootstrap_servers=os.environ["BOOTSTRAP"], metrics_registry=None, linger_ms=60_000
)
producer.send("t", b"parent")

def app(environ, start_response):
    if environ["PATH_INFO"] == "/wait":
        producer.send("t", environ["QUERY_STRING"].encode()).add_callback(print)
        producer.flush(10)
    else:  # it is delivered when the worker ends
        producer.send("t", environ["QUERY_STRING"].encode())
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]
"""
CELERY = """
import os
from celery import Celery
from celery.signals import worker_process_shutdown
from outlast import KafkaProducer

folder = os.environ["FOLDER"]
app = Celery(broker="filesystem://", backend=f"file://{folder}/results")
app.conf.broker_transport_options = {
    "data_folder_in": f"{folder}/queue", "data_folder_out": f"{folder}/queue",
    "control_folder": f"{folder}/control",
}
producer = KafkaProducer(
    bootstrap_servers=os.environ["BOOTSTRAP"], metrics_registry=None, linger_ms=200
)
if os.environ.get("WORKER"):
    producer.send("t", b"parent")

@app.task
def send(text):
    future = producer.send("t", text.encode())
    return [future.get(timeout=10).offset, os.getpid()]

@app.task
def leave(text):
    producer.send("t", text.encode())

@worker_process_shutdown.connect
def close(**_):
    producer.close(timeout=5)
"""


@contextmanager
def started(folder: Path, server: ClusterServer, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A server of the name's; SIGTERM ends it."""
    log = (folder / "log").open("w")
    environment = {
        **os.environ,
        "BOOTSTRAP": server.bootstrap,
        "FOLDER": str(folder),
        "WORKER": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }
    with log, subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *command],
        cwd=folder, env=environment, stdout=log, stderr=log, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def counts(server: ClusterServer) -> Counter[bytes | None]:
    return Counter(record.value for record in server.records("t", 0))


def producer_ids(server: ClusterServer) -> set[int]:
    return server.call(
        lambda cluster, _: {
            share.producer_id
            for request in cluster.request_log
            if request.api_key == 0
            for share in request.partitions
            if share.topic == "t"
        }
    )


def test_gunicorn_with_a_preloaded_application(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(GUNICORN)
    with calm_cluster(1) as server:
        command = ("gunicorn", "application:app", "--preload", "--workers", "2")
        workers: set[int] = set()
        with started(tmp_path, server, *command, "--bind", "127.0.0.1:0") as gunicorn:
            log = tmp_path / "log"
            until(lambda: log.read_text().count("Booting worker") == 2, "workers")
            found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
            assert found is not None
            while len(workers) < 2:
                query = f"{found[0]}/wait?{len(workers)}"
                workers.add(int(urllib.request.urlopen(query, timeout=20).read()))
            urllib.request.urlopen(f"{found[0]}/leave?left", timeout=20).read()
        assert gunicorn.returncode == 0, log.read_text()
        assert "Traceback" not in log.read_text()
        told = counts(server)
        assert told.pop(b"0") >= 1
        assert told.pop(b"1") >= 1
        assert told == {b"parent": 1, b"left": 1}
        assert len(producer_ids(server)) == 3  # two workers' and their parent's
        assert gunicorn.pid not in workers


def test_celery_prefork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks.py").write_text(CELERY)
    for name in ("queue", "control", "results"):
        (tmp_path / name).mkdir()
    with calm_cluster(1) as server:
        log = tmp_path / "log"
        options = ("--pool", "prefork", "--concurrency", "2", "--loglevel", "INFO")
        client = (
            "import tasks\n"
            "done = [tasks.send.delay(f'task {n}') for n in range(20)]\n"
            "done.append(tasks.leave.delay('left'))\n"
            "print([r.get(timeout=30) for r in done])\n"
        )
        with started(tmp_path, server, "celery", "-A", "tasks", "worker", *options) as celery:
            until(lambda: " ready." in log.read_text(), "the worker", 30)
            environment = {**os.environ, "BOOTSTRAP": server.bootstrap, "FOLDER": str(tmp_path)}
            environment["PYTHONPATH"] = (
                str(tmp_path) + os.pathsep + environment.get("PYTHONPATH", "")
            )
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", client],
                env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr + log.read_text()
        assert celery.returncode == 0, log.read_text()
        expected = {b"parent": 1, b"left": 1, **{b"task %d" % n: 1 for n in range(20)}}
        assert counts(server) == expected, log.read_text()
        assert len(producer_ids(server)) in (2, 3)  # one worker may have had all tasks
