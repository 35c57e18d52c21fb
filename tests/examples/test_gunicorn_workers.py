"""examples/gunicorn_workers.py: what was answered with 202 is in the log after the end."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from outlast.testing import MockCluster
from tests.examples.programs import command, server, until, values

COUNT = 300
EACH_ITS_CONNECTION = httpx.Limits(max_keepalive_connections=0)  # so that both workers have some
COMMAND = [*command("gunicorn_workers.py"), "--bind", "127.0.0.1:0"]


def producer_ids(cluster: MockCluster) -> set[int]:
    return {share.producer_id for request in cluster.requests(0) for share in request.partitions}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("preload", [True, False])
def test_workers_lose_nothing_in_a_failover_nor_at_their_end(preload: bool, tmp_path: Path) -> None:
    words = [word for word in COMMAND if preload or word != "--preload"]
    with MockCluster(topics={"clicks": 6}) as cluster:
        log = tmp_path / "log"
        with (
            server(cluster, log, *words) as (address, process),
            ThreadPoolExecutor(8) as threads,
            httpx.Client(base_url=address, timeout=20, limits=EACH_ITS_CONNECTION) as client,
        ):

            def click(number: int) -> int:
                if number == COUNT // 2:
                    leader = cluster.leader("clicks", 0)
                    assert leader is not None
                    cluster.kill(leader)
                return client.get(f"/{number}").status_code

            statuses = list(threads.map(click, range(COUNT)))
            sent = [number for number, status in enumerate(statuses) if status == 202]
            assert len(sent) >= COUNT * 0.9  # some may have come before any broker was reached
            more = iter(range(COUNT, 10 * COUNT))
            while len(producer_ids(cluster)) < 2:  # until both workers had one
                sent += [n for n in [next(more)] if click(n) == 202]
            cluster.wait_until(cluster.all_led)
            leader = cluster.leader("clicks", 1)
            assert leader is not None
            cluster.start(next(n for n, state in cluster.nodes().items() if state == "down"))
            cluster.wait_until(cluster.healthy)
            cluster.kill(leader)  # and at once the server is to end
            sent += [n for n in [next(more) for _ in range(20)] if click(n) == 202]
            process.send_signal(signal.SIGTERM)
            until(lambda: process.poll() is not None, "the end", 30)
        assert values(cluster, "clicks") == {b"/%d" % number: 1 for number in sent}
        assert "not delivered" not in log.read_text()
