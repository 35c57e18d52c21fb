"""`outlast.testing.MockCluster`: what its users are promised, over TCP."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

import outlast.testing
from outlast import KafkaProducer
from outlast.testing import CutAfter, Error, MockCluster
from outlast.testing.cluster_settings import FAST

PRODUCE = 0


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(nodes=3, topics={"orders": 3}) as it:
        yield it


def send(cluster: MockCluster, count: int = 1, partition: int = 0) -> list[int]:
    """Send with a producer of its own; the offsets."""
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        sent = [producer.send("orders", b"%d" % i, partition=partition) for i in range(count)]
        return [future.get(timeout=20).offset for future in sent]


def connects(cluster: MockCluster, node_id: int) -> bool:
    host, _, port = cluster.bootstrap_servers.split(",")[node_id - 1].partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionError:
        return False
    return True


def test_records_are_there_to_read(cluster: MockCluster) -> None:
    assert send(cluster, 3) == [0, 1, 2]
    assert [(r.offset, r.value) for r in cluster.records("orders", 0)] == [
        (0, b"0"),
        (1, b"1"),
        (2, b"2"),
    ]
    assert [p.end_offset for p in cluster.partitions("orders")] == [3, 0, 0]
    assert cluster.records("orders", 1) == []


def test_a_killed_node_refuses_and_its_partitions_get_another_leader(cluster: MockCluster) -> None:
    assert [cluster.leader("orders", p) for p in range(3)] == [1, 2, 3]
    cluster.kill(1)
    assert cluster.nodes() == {1: "down", 2: "up", 3: "up"}
    assert not connects(cluster, 1)
    assert not cluster.all_led()
    cluster.wait_until(cluster.all_led)
    assert cluster.leader("orders", 0) == 2
    assert not cluster.healthy()
    cluster.start(1)
    cluster.wait_until(cluster.healthy)
    assert connects(cluster, 1)
    assert send(cluster) == [0]


def test_a_paused_node_accepts_and_says_nothing(cluster: MockCluster) -> None:
    cluster.pause(2)
    assert cluster.nodes()[2] == "paused"
    assert connects(cluster, 2)
    cluster.wait_until(lambda: cluster.leader("orders", 1) == 3)
    cluster.resume(2)
    cluster.wait_until(cluster.healthy)


def test_a_stopped_node_hands_over_at_once(cluster: MockCluster) -> None:
    cluster.stop(3)
    assert cluster.nodes()[3] == "stopping"
    assert cluster.leader("orders", 2) == 1
    cluster.wait_until(lambda: cluster.nodes()[3] == "down")


def test_leaders_move_to_the_next_or_to_the_one_that_is_named(cluster: MockCluster) -> None:
    assert cluster.move_leader("orders", 0) == cluster.leader("orders", 0) == 2
    assert cluster.move_leader("orders", 0, 1) == cluster.leader("orders", 0) == 1
    assert cluster.move_leader("orders", 2) == 1


def test_without_another_replica_nothing_moves() -> None:
    with MockCluster(nodes=1, topics=["t"]) as cluster:
        with pytest.raises(ValueError, match="t-0 has no other in-sync replica; it has 1"):
            cluster.move_leader("t", 0)
        cluster.kill(1)
        cluster.wait_until(lambda: cluster.leader("t", 0) is None)


def test_topics_come_grow_and_go(cluster: MockCluster) -> None:
    cluster.create_topic("events", 2, replication=2, min_isr=2)
    assert [p.replicas for p in cluster.partitions("events")] == [(1, 2), (2, 3)]
    cluster.add_partitions("events", 3)
    assert len(cluster.partitions("events")) == 3
    cluster.delete_topic("events")
    with pytest.raises(ValueError, match="no topic 'events'; there is orders"):
        cluster.partitions("events")


def test_a_fault_strikes_as_often_as_it_says_and_heal_ends_all(cluster: MockCluster) -> None:
    refusal = Error(6, topic="orders", partition=0, times=2)
    cluster.faults += [refusal, CutAfter(api=PRODUCE, times=1)]
    assert send(cluster) == [0]
    assert refusal.used == 2
    cluster.kill(1)
    cluster.pause(2)
    cluster.heal()
    assert cluster.faults == []
    cluster.wait_until(cluster.healthy)


def test_requests_are_noted_down(cluster: MockCluster) -> None:
    send(cluster)
    (produce,) = cluster.requests(PRODUCE)
    assert produce.node_id == 1
    assert [(p.topic, p.partition, p.count) for p in produce.partitions] == [("orders", 0, 1)]
    assert len(cluster.requests()) > 1
    assert produce.received_at_s <= cluster.now_s()
    assert cluster.unread() == 0
    assert cluster.call(lambda core, _now: core.leader("orders", 0)) == (1, 0)


@pytest.mark.parametrize("verb", ["kill", "stop", "start", "pause", "resume"])
def test_a_node_that_does_not_exist_is_named(cluster: MockCluster, verb: str) -> None:
    with pytest.raises(ValueError, match="no node 4; the cluster has 1, 2, 3"):
        getattr(cluster, verb)(4)


def test_so_are_topics_and_partitions(cluster: MockCluster) -> None:
    with pytest.raises(ValueError, match="no topic 'order'; there is orders"):
        cluster.leader("order", 0)
    with pytest.raises(ValueError, match="orders has no partition 3; it has 0 to 2"):
        cluster.records("orders", 3)
    with pytest.raises(ValueError, match="orders has no partition 3"):
        cluster.move_leader("orders", 3)
    with pytest.raises(ValueError, match="no topic 'x'"):
        cluster.delete_topic("x")
    with pytest.raises(ValueError, match="no topic 'x'"):
        cluster.add_partitions("x", 3)
    with pytest.raises(ValueError, match="topic 'orders' exists"):
        cluster.create_topic("orders")
    with pytest.raises(TypeError, match="topics is 'orders'"):
        MockCluster(topics="orders")
    with pytest.raises(ValueError, match="at least one"):
        MockCluster(nodes=0)


def test_a_wait_in_vain_tells_the_state_of_things(cluster: MockCluster) -> None:
    cluster.kill(2)
    with pytest.raises(TimeoutError, match=r"healthy did not come true within 0 s; .* 2: 'down'"):
        cluster.wait_until(cluster.healthy, timeout_s=0)


def test_before_it_opens_and_after_it_closes() -> None:
    cluster = MockCluster()
    with pytest.raises(RuntimeError, match="no ports yet"):
        _ = cluster.bootstrap_servers
    with cluster:
        port = int(cluster.bootstrap_servers.split(",")[0].split(":")[1])
    with pytest.raises(RuntimeError, match="is not open"):
        cluster.kill(1)
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_ports_may_be_chosen_and_are_not_shared() -> None:
    with MockCluster(nodes=1) as other:
        taken = int(other.bootstrap_servers.split(":")[1])
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{taken} for node 1"):
            MockCluster(nodes=1, first_port=taken).open()
    with MockCluster(nodes=1, first_port=taken, topics=["orders"], settings=FAST) as cluster:
        assert cluster.bootstrap_servers == f"127.0.0.1:{taken}"
        cluster.kill(1)
        cluster.start(1)
        cluster.wait_until(cluster.healthy)
        assert send(cluster) == [0]


def test_every_public_name_is_there_and_no_other() -> None:
    for name in outlast.testing.__all__:
        assert getattr(outlast.testing, name).__doc__, name
        assert name in dir(outlast.testing)
    with pytest.raises(AttributeError, match="no attribute 'Eror'"):
        _ = outlast.testing.Eror


def test_the_mock_cluster_comes_without_the_simulator() -> None:
    code = (
        "import sys; from outlast.testing import MockCluster, Error;"
        "sys.exit('outlast.testing.simulation' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
