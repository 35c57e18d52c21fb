"""B75: after gevent's monkey.patch_all() the I/O thread is a greenlet; waits let others go on."""

from __future__ import annotations

import json

import pytest

from tests.lifecycle.programs import run
from tests.tcp.stories import TOPIC, calm_cluster

APPLICATION = """
order = sys.argv[2]
import gevent, json
assert gevent.monkey.is_module_patched("threading")
producer = made()
worst_s = 0.0

def watch():
    global worst_s
    while True:
        due_s = time.monotonic() + 0.01
        gevent.sleep(0.01)
        worst_s = max(worst_s, time.monotonic() - due_s)

def work(number):
    for n in range(20):
        futures.append(producer.send("t", b"%d %d" % (number, n), partition=number % 3))
        gevent.sleep(0)

futures = []
gevent.spawn(watch)
gevent.joinall([gevent.spawn(work, n) for n in range(250)], raise_error=True)
producer.flush(20)
assert all(future.succeeded() for future in futures)

# one greenlet waits for a topic that is not there, the others go on
patient = made(max_block_ms=500, allow_auto_create_topics=False)
def wait():
    try:
        patient.send("nowhere", b"v")
    except Exception as error:
        return type(error).__name__
waits = gevent.spawn(wait)
worst_while_waiting_s, worst_s = worst_s, 0.0
assert waits.get(timeout=5) == "BlockedError"
patient.close()
print(json.dumps([worst_while_waiting_s, worst_s]))
for n in range(10): producer.send("last", b"%d" % n, partition=0)
"""
PATCH = "import gevent.monkey; gevent.monkey.patch_all()\n"


@pytest.mark.timed
@pytest.mark.parametrize("order", ["first", "last"])
def test_b75_greenlets_send_and_none_is_held_up(order: str) -> None:
    with calm_cluster(3) as server:
        server.create_topic("last", 1)
        first, last = (PATCH, "") if order == "first" else ("", PATCH)
        ended = run(last + APPLICATION, server.bootstrap, order, first=first)
        assert (ended.code, ended.err) == (0, "")
        worst_s = json.loads(ended.out)
        assert max(worst_s) < 0.2
        stored = [record.value for p in range(3) for record in server.records(TOPIC, p)]
        expected = [b"%d %d" % (number, n) for number in range(250) for n in range(20)]
        assert sorted(stored) == sorted(expected)
        assert [r.value for r in server.records("last", 0)] == [b"%d" % n for n in range(10)]
