"""A program ends without closing its producer."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from outlast.io.process import EXIT_IDLE_S, EXIT_LONGEST_S
from outlast.testing.faults import PRODUCE, Slow
from outlast.testing.server import ClusterServer
from tests.facade.conftest import new_topic
from tests.lifecycle.programs import PREAMBLE, go_on, run
from tests.tcp.stories import calm_cluster

PYTHON_S = 1.0  # for the interpreter's own end, on a busy machine


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with calm_cluster(1) as server:
        yield server


def values(server: ClusterServer, topic: str) -> list[bytes | None]:
    return [record.value for record in server.records(topic, 0)]


SEND_1000 = """
topic = sys.argv[2]
producer = made(linger_ms=1000)
for n in range(1000): producer.send(topic, b"%d" % n)
"""
WAYS = {
    "return": ("", 0),
    "exit": ("sys.exit(3)", 3),
    "exception": ("raise ArithmeticError('mine')", 1),
    "handler of SIGTERM": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)",
        7,
    ),
    "handler closes": (
        "signal.signal(signal.SIGTERM, lambda *_: (producer.close(), sys.exit(7)))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)",
        7,
    ),
    "dropped": ("del producer", 0),
    "another thread sends on": (
        "threading.Thread(target=lambda: [producer.send(topic, b'%d' % n)"
        " for n in range(1000, 1500)]).start()",
        0,
    ),
    "a thread of our own loop": (
        "producer.send(topic, b'1000').add_callback(lambda _: producer.send(topic, b'1001'))",
        0,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_b66_what_was_sent_is_delivered_at_exit(server: ClusterServer, way: str) -> None:
    topic = new_topic(server)
    end, code = WAYS[way]
    ended = run(SEND_1000 + end, server.bootstrap, topic)
    assert ended.code == code, ended.err
    if way == "exception":
        assert ended.err.splitlines()[-1] == "ArithmeticError: mine"
        assert ended.err.count("Traceback") == 1
    else:
        assert ended.err == ""
    stored = values(server, topic)
    assert stored[:1000] == [b"%d" % n for n in range(1000)]
    if way == "another thread sends on":
        assert len(stored) == 1500


def test_b66_an_exit_handler_of_the_application_may_still_send(server: ClusterServer) -> None:
    topic = new_topic(server)
    program = SEND_1000 + (
        "atexit.register(lambda: [producer.send(topic, b'late %d' % n) for n in range(10)])"
    )
    ended = run(program, server.bootstrap, topic)
    assert (ended.code, ended.err) == (0, "")
    assert values(server, topic)[1000:] == [b"late %d" % n for n in range(10)]


LOST = re.compile(r"\b1000 records were not acknowledged")
SAY = "print('ready', flush=True)\nsys.exit(5)"


@pytest.mark.timed
@pytest.mark.parametrize("logging", ["", "logging.basicConfig(filename=sys.argv[3])\n"])
@pytest.mark.parametrize("how", ["killed", "silent"])
def test_b66_brokers_that_are_away_cost_a_second_and_stderr_says_what_is_lost(
    server: ClusterServer, tmp_path: Path, how: str, logging: str
) -> None:
    topic = new_topic(server)
    program = f"""{logging}
topic = sys.argv[2]
producer = made()
producer.send(topic, b"first").get(10)
print("up", flush=True)
sys.stdin.readline()
for n in range(1000): producer.send(topic, b"%d" % n)
{SAY}"""

    def away(process: Popen[str]) -> None:
        for node in (1, 2, 3):
            server.kill(node) if how == "killed" else server.pause(node)
        go_on(process)

    ended = run(program, server.bootstrap, topic, str(tmp_path / "log"), at={"up": away})
    assert ended.code == 5
    assert EXIT_IDLE_S <= ended.took_s < EXIT_IDLE_S + PYTHON_S
    assert LOST.search(ended.err), ended.err
    assert "Traceback" not in ended.err
    if logging:
        assert len(ended.err.splitlines()) == 1
        assert LOST.search((tmp_path / "log").read_text())


@pytest.mark.timed
def test_several_producers_share_the_second(server: ClusterServer) -> None:
    """Six of them cannot deliver, and one can, whichever is asked first."""
    topic = new_topic(server)
    program = f"""
topic = sys.argv[2]
stuck = [made() for _ in range(6)]
for producer in stuck: producer.send(sys.argv[3], b"first").get(10)
print("up", flush=True)
sys.stdin.readline()
for producer in stuck: producer.send(sys.argv[3], b"v")
good = made(linger_ms=60_000)
for n in range(10): good.send(topic, b"%d" % n)
stuck.append(made())
{SAY}"""
    dead = new_topic(server, replication=1)

    def kill(process: Popen[str]) -> None:
        server.kill(server.leader(dead, 0)[0])
        go_on(process)

    ended = run(program, server.bootstrap, topic, dead, at={"up": kill})
    assert ended.code == 5
    assert ended.took_s < EXIT_IDLE_S + 6 * 0.2 + PYTHON_S
    assert len(re.findall(r"^1 records were not acknowledged", ended.err, re.MULTILINE)) == 6
    assert values(server, topic) == [b"%d" % n for n in range(10)]


@pytest.mark.timed
def test_exit_waits_as_long_as_something_is_delivered(server: ClusterServer) -> None:
    """Each answer takes 0.3 s, and one batch is on its way at a time: more than a second in all."""
    topic = new_topic(server)
    server.call(lambda cluster, _: cluster.faults.append(Slow(0.3, api=PRODUCE)))
    program = f"""
topic = sys.argv[2]
producer = made(batch_size=0, max_in_flight_requests_per_connection=1)
for n in range(8): producer.send(topic, b"%d" % n)
{SAY}"""
    ended = run(program, server.bootstrap, topic)
    assert (ended.code, ended.err) == (5, "")
    assert 2 * EXIT_IDLE_S < ended.took_s < EXIT_LONGEST_S
    assert values(server, topic) == [b"%d" % n for n in range(8)]


def test_a_signal_without_handler_ends_it_at_once(server: ClusterServer) -> None:
    """Nothing of ours stands in its way; what was acknowledged is there, once."""
    topic = new_topic(server)
    program = """
topic = sys.argv[2]
producer = made(linger_ms=60_000)
for n in range(10): producer.send(topic, b"%d" % n)
producer.flush()
for n in range(10): producer.send(topic, b"never sent")
print("ready", flush=True)
time.sleep(30)"""
    ended = run(program, server.bootstrap, topic, at={"ready": lambda p: p.terminate()})
    assert ended.code == -signal.SIGTERM
    assert ended.took_s < PYTHON_S
    assert values(server, topic) == [b"%d" % n for n in range(10)]


CHILD = """
import multiprocessing

def work(bootstrap, topic, text):
    global producer  # stays until the end
    producer = KafkaProducer(bootstrap_servers=bootstrap, metrics_registry=None, linger_ms=60_000)
    for n in range(10): producer.send(topic, b"%s %d" % (text, n))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[3])
    process = context.Process(target=work, args=(bootstrap, sys.argv[2], b"child"))
    process.start()
    process.join(20)
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_deliver_at_their_end(
    server: ClusterServer, tmp_path: Path, way: str
) -> None:
    topic = new_topic(server)
    file = tmp_path / "application.py"  # a child that is not forked imports it
    file.write_text(PREAMBLE + CHILD)
    program = (
        "import runpy; sys.argv[0] = sys.argv[4]; runpy.run_path(sys.argv[4], None, '__main__')"
    )
    ended = run(program, server.bootstrap, topic, way, str(file))
    assert (ended.code, ended.err) == (0, "")
    assert values(server, topic) == [b"child %d" % n for n in range(10)]
