"""Spans of open gaps are ended when the producer is closed, when the process exits, and once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

from outlast import KafkaProducer
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer
from tests.observe.spans import Recorded, wait_for


def test_close_ends_and_exports_the_span_of_an_open_gap() -> None:
    recorded = Recorded()
    with ClusterServer(MockCluster(1, rng=random.Random(1))) as server:
        server.create_topic("orders", 1, replication=1)
        producer = KafkaProducer(
            bootstrap_servers=server.bootstrap,
            metrics_registry=None,
            tracer_provider=recorded.provider,
        )
        producer.send("orders", b"v").get(10)
        server.kill(1)
        with recorded.tracer.start_as_current_span("request"):
            future = producer.send("orders", b"v")
        wait_for(producer.gaps)
        producer.close(0.1)
    (gap,) = recorded.named("partition_gap")
    (send,) = recorded.named("send")
    assert gap.attributes is not None
    assert gap.attributes["outlast.gap.ended_by"] == "closed"
    assert gap.attributes["outlast.gap.outcome"] == "abandoned"
    assert send.attributes is not None
    assert send.attributes["error.type"] == "closed"
    assert future.gaps == (1,)
    assert [link.context for link in send.links] == [gap.context]
    assert [link.context for link in gap.links] == [send.context]


# The producer stands before there is an SDK, as where it is made at import: exit handlers run last
# first, so one of the producer's that was registered then would come after the SDK has shut down.
# The child that is forked exits in the same way, and has no business with what its parent began.
PROGRAM = """
import logging, os, random, sys, threading
from outlast import KafkaProducer
from outlast.testing.cluster import MockCluster
from outlast.testing.server import ClusterServer

server = ClusterServer(MockCluster(1, rng=random.Random(1))).open()
server.create_topic("orders", 1, replication=1)
producer = KafkaProducer(bootstrap_servers=server.bootstrap, metrics_registry=None)
producer.send("orders", b"v").get(10)

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

class Exporter(SpanExporter):
    def export(self, spans):
        for span in spans:
            outcome = span.attributes.get("outlast.gap.outcome")
            os.write(1, f"{os.getpid()} {span.name} {outcome}\\n".encode())
        return SpanExportResult.SUCCESS

class GapTold(logging.Handler):
    def emit(self, record):
        if "takes no records" in record.getMessage():
            gap_told.set()

gap_told = threading.Event()
logging.getLogger("outlast").addHandler(GapTold())
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Exporter()))
trace.set_tracer_provider(provider)
server.kill(1)
with trace.get_tracer("app").start_as_current_span("request"):
    producer.send("orders", b"v")
assert gap_told.wait(20)
child = os.fork()
if child:
    os.write(1, f"{os.getpid()} parent\\n".encode())
    os.waitpid(child, 0)
    server.close()
sys.exit(3)
"""


def test_an_open_gap_is_exported_at_exit_and_not_by_a_forked_child() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    (parent,) = [line.split()[0] for line in lines if line.endswith(" parent")]
    gap, request = f"{parent} partition_gap orders abandoned", f"{parent} request None"
    told = Counter(line for line in lines if not line.endswith(" parent"))
    assert told == {gap: 1, request: 1}
