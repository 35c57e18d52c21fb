"""examples/gunicorn_workers.py: what was answered with 202 is in the log after the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from outlast.testing import FAST, MockCluster
from tests.examples.programs import command, server, until, values

COMMAND = [*command("gunicorn_workers.py"), "--bind", "127.0.0.1:0"]
# Longer than a producer that nobody closes goes on at exit without an outcome.
SLOW_ELECTION = replace(FAST, detect_s=1.5)


def producer_ids(cluster: MockCluster) -> set[int]:
    return {share.producer_id for request in cluster.requests(0) for share in request.partitions}


class Clicks:
    """Clicks on numbered pages, by eight users. Each has a connection of its own, so that both
    workers have some.
    """

    def __init__(self, address: str) -> None:
        self.taken: list[int] = []
        self._host = urlsplit(address).netloc
        self._numbers: Iterator[int] = count()

    def send(self, many: int) -> None:
        def click(number: int) -> None:
            with closing(HTTPConnection(self._host, timeout=20)) as connection:
                connection.request("GET", f"/{number}")
                if connection.getresponse().status == 202:
                    self.taken.append(number)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(click, [next(self._numbers) for _ in range(many)]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("preload", [True, False])
def test_a_server_that_ends_amidst_a_failover_loses_nothing(preload: bool, tmp_path: Path) -> None:
    words = [word for word in COMMAND if preload or word != "--preload"]
    log = tmp_path / "log"
    with MockCluster(topics={"clicks": 6}, settings=SLOW_ELECTION) as cluster:
        with server(cluster, log, *words) as (address, process):
            clicks = Clicks(address)
            for _ in range(50):
                clicks.send(20)
                if len(producer_ids(cluster)) == 2:  # both workers have sent
                    break
            leader = cluster.leader("clicks", 0)
            assert leader is not None
            cluster.kill(leader)
            before = len(clicks.taken)
            clicks.send(200)
            assert len(clicks.taken) == before + 200  # nobody waited for the leader
            process.send_signal(signal.SIGTERM)
            until(lambda: process.poll() is not None, "the end", 30)
        assert len(producer_ids(cluster)) >= 2
        assert values(cluster, "clicks") == {b"/%d" % number: 1 for number in clicks.taken}
        assert "not delivered" not in log.read_text()
