"""A crash that no reset tells of, as when a machine is lost or a proxy holds the connection."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace

from outlast.testing import FAST, MockCluster


def test_connections_to_a_killed_node_fall_silent(make_bench):
    bench = make_bench(crash_resets=False)
    before = bench.connect(1)
    asked = bench.produce(before)
    bench.cluster.kill(1, bench.now)
    assert bench.cluster.listens(1)
    during = bench.connect(1)
    again = [bench.produce(connection) for connection in (before, during)]
    bench.run(5.0)
    assert [sent.answered_s for sent in (asked, *again)] == [None] * 3
    assert bench.closed == {}
    assert bench.cluster.leader("t", 0) == (2, 1), "the others notice as ever"
    assert bench.produced(bench.connect(2)).result[0] == 0


def test_they_are_reset_when_the_node_is_back(make_bench):
    bench = make_bench(crash_resets=False)
    kept, given_up = bench.connect(1), bench.connect(1)
    bench.cluster.kill(1, bench.now)
    during = bench.connect(1)
    bench.cluster.closed(given_up, bench.now)
    bench.cluster.start(1, bench.now)
    bench.run(1.0)
    assert {name: reset for name, (_, reset) in bench.closed.items()} == {kept: True, during: True}
    assert bench.produced(bench.connect(1)).result == (6, -1)


def test_a_controlled_stop_ends_its_connections_all_the_same(make_bench):
    bench = make_bench(crash_resets=False)
    connection = bench.connect(1)
    bench.cluster.stop(1, bench.now)
    bench.run(5.0)
    assert list(bench.closed) == [connection]
    assert not bench.cluster.listens(1)


def test_a_port_accepts_meanwhile_and_resets_later():
    settings = replace(FAST, crash_resets=False, startup_s=0.2)
    with MockCluster(settings=settings) as cluster:
        host, _, port = cluster.bootstrap_servers.split(",")[0].rpartition(":")
        cluster.kill(1)
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            cluster.start(1)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
