"""examples/outbox_relay.py: at least once, in order for each key, wherever it is interrupted."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from examples.outbox_relay import Relay, opened, put
from outlast import KafkaProducer
from outlast.testing import MockCluster
from tests.examples.programs import ROOT, command, surroundings, until

KEYS = 20


@contextmanager
def relaying(path: str, cluster: MockCluster) -> Iterator[None]:
    """A relay in a thread, as `main` makes it."""
    stop = threading.Event()
    settings = {"max_block_ms": 0, "metrics": None}

    def run() -> None:
        with closing(opened(path)) as database:
            producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)
            Relay(database, producer).run(stop)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def waiting(path: str) -> list[int]:
    with closing(opened(path)) as database:
        found = database.execute("SELECT id FROM outbox WHERE delivered_at IS NULL ORDER BY id")
        return [row[0] for row in found]


def order(path: str, numbers: range) -> None:
    """As the application does it: row n has the value n and one of the keys."""
    with closing(opened(path)) as database, database:
        for number in numbers:
            put(database, "orders", b"customer %d" % (number % KEYS), b"order %d" % number)


def by_key(cluster: MockCluster) -> dict[bytes, list[int]]:
    """What the logs have of each key, in order; 'order 7' is 7."""
    found: dict[bytes, list[int]] = {}
    for status in cluster.partitions("orders"):
        for record in cluster.records("orders", status.partition):
            number = int((record.value or b"").split()[-1])
            found.setdefault(record.key or b"", []).append(number)
    return found


def test_rows_pass_a_failover_once_and_in_order(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    with MockCluster(topics={"orders": 6}) as cluster, relaying(path, cluster):
        for start in range(0, 1000, 100):
            order(path, range(start, start + 100))
            if start == 300:
                leader = cluster.leader("orders", 0)
                assert leader is not None
                cluster.kill(leader)
            elif start == 600:
                cluster.wait_until(cluster.all_led)
                cluster.move_leader("orders", 1)
        until(lambda: not waiting(path), "all are marked")
        found = by_key(cluster)
    assert len(found) == KEYS
    assert all(numbers == list(range(numbers[0], 1000, KEYS)) for numbers in found.values())
    assert sum(map(len, found.values())) == 1000


def test_a_relay_that_is_killed_begins_again_where_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    words = command("outbox_relay.py")
    words[words.index("shop.db")] = path
    assert words[-2:] == ["--orders", "1000"]
    with MockCluster(topics={"orders": 6}) as cluster:
        program = {"cwd": ROOT, "env": surroundings(cluster), "stdout": subprocess.PIPE}
        with subprocess.Popen(words, **program) as killed:  # type: ignore[call-overload]
            until(lambda: sum(map(len, by_key(cluster).values())) > 300, "some are sent")
            leader = cluster.leader("orders", 0)
            assert leader is not None
            cluster.kill(leader)
            killed.kill()
        left = waiting(path)
        assert 0 < len(left) < 1000
        before = by_key(cluster)
        with subprocess.Popen(words[:-2], **program) as again:  # type: ignore[call-overload]
            until(lambda: not waiting(path), "all are marked")
            again.send_signal(signal.SIGTERM)
            assert again.communicate(timeout=30)[0] == b"0 rows wait for the next run\n"
        found = by_key(cluster)
    marked = set(range(1000)) - {row - 1 for row in left}  # the first row is order 0
    assert marked <= {number for numbers in before.values() for number in numbers}
    assert {number for numbers in found.values() for number in numbers} == set(range(1000))
    for key, numbers in found.items():
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers)), key
        assert numbers.count(numbers[0]) == 1
        assert len(numbers) - len(set(numbers)) <= 1, key  # of a key one is under way


def test_a_row_that_kafka_will_not_have_holds_up_its_key_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "shop.db")
    with closing(opened(path)) as database, database:
        put(database, "orders", b"bad", b"order 0" + b" " * 2_000_000)
        put(database, "orders", b"bad", b"order 1")
        put(database, "orders", b"good", b"order 2")
        put(database, "orders", b"good", b"order 3")
    with (
        caplog.at_level(logging.WARNING, "outbox"),
        MockCluster(topics={"orders": 6}) as cluster,
        relaying(path, cluster),
    ):
        until(lambda: waiting(path) == [1, 2], "the others pass")
        assert by_key(cluster) == {b"good": [2, 3]}
    assert "row 1 is tried again: MessageSizeTooLargeError" in caplog.text
    assert waiting(path) == [1, 2]
