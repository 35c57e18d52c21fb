"""Leaders that say nothing, or little, over real sockets: silent, slow, or behind a dead link."""

from __future__ import annotations

import socket
import sys
import threading
import time

import pytest

from outlast.engine.messages import Cause, GapEnd, GapOutcome
from outlast.io.sockets import retransmits
from outlast.testing.faults import Slow
from outlast.testing.server import Peer, deafen
from tests.real.kafka_cluster import until
from tests.real.load import CLEAN, Ledger, Load, account
from tests.tcp.stories import (
    PRODUCE,
    TOPIC,
    calm_cluster,
    connections_made,
    copies_on_the_wire,
    log_of,
    produce_connections,
    visible_s,
    warm_producer,
)

SILENCE_S = 1.0  # the default of silence_timeout_ms
RATE = 50  # records/s on each partition
on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has socket filters and tells TCP_INFO"
)


def first_ack_after(ledger: Ledger, partition: int, at_s: float) -> float:
    return min(ack.at_s for ack in ledger.acks[partition].values() if ack.at_s > at_s)


class TestSilentLeader:
    """The process hangs: its sockets stay open, and connects to it succeed (A25)."""

    @pytest.mark.parametrize(
        "detect_s", [0.0, 3.0, pytest.param(9.0, marks=pytest.mark.slow)], ids=lambda s: f"{s:g}s"
    )
    def test_the_new_leader_is_followed_and_nothing_is_lost_when_the_old_wakes(
        self, detect_s: float
    ) -> None:
        with calm_cluster(detect_s=detect_s) as server, warm_producer(server) as producer:
            victim, old_epoch = server.leader(TOPIC, 0)
            led = [p for p in range(3) if server.leader(TOPIC, p)[0] == victim]
            with Load(producer, TOPIC, 3, RATE) as load:
                begun_s = time.monotonic()
                until(lambda: load.flowing_since(begun_s + 0.5), "records flow")
                paused_s = time.monotonic()
                server.pause(victim)
                until(
                    lambda: load.flowing_since(paused_s + detect_s + 2.0),
                    "records flow again",
                    timeout_s=detect_s + 10.0,
                )
                server.resume(victim)
                resumed_s = time.monotonic()
                until(lambda: load.flowing_since(resumed_s + 1.0), "records flow on")
                ledger = load.stop()
            assert str(account(ledger, log_of(server))) == CLEAN
            assert sorted({gap.partition for gap in producer.gaps()}) == led
            for partition in led:
                [gap] = [gap for gap in producer.gaps() if gap.partition == partition]
                assert gap.cause is Cause.SILENT
                assert gap.outcome is GapOutcome.ABSORBED
                assert gap.ended_by is GapEnd.ACK
                back_s = first_ack_after(ledger, partition, paused_s + 0.1)
                assert gap.begin_s + gap.duration_s == pytest.approx(back_s, abs=0.05)
                seen_s = visible_s(server, partition)
                assert seen_s is not None
                assert server.leader(TOPIC, partition)[1] > old_epoch
                print(
                    f"\nback {back_s - paused_s:.3f} s after the silence began, "
                    f"{back_s - seen_s:.3f} s after the new leader was visible; "
                    f"gap {gap.duration_s:.3f} s"
                )
                if detect_s == 0.0:
                    assert gap.duration_s <= SILENCE_S + 0.6
                    assert back_s - paused_s <= SILENCE_S + 0.6
                else:
                    assert back_s - seen_s <= 0.3


class TestSlowLeader:
    @pytest.mark.slow
    def test_it_is_left_alone(self) -> None:
        """Answers 800 ms late until that is usual, then 3 s late; the probes as late."""
        with (
            calm_cluster(1) as server,
            warm_producer(server, 1, max_in_flight_requests_per_connection=1) as producer,
        ):
            leader, _ = server.leader(TOPIC, 0)
            slow = Slow(node=leader, delay_s=0.8)
            slower = Slow(node=leader, delay_s=3.0)
            server.call(lambda cluster, _: cluster.faults.append(slow))
            with Load(producer, TOPIC, 1, RATE) as load:
                until(lambda: slow.used > 16, "late answers are usual", timeout_s=40.0)
                server.call(lambda cluster, _: cluster.faults.__setitem__(0, slower))
                until(lambda: slower.used > 1, "an answer is later yet", timeout_s=40.0)
                server.call(lambda cluster, _: cluster.faults.clear())
                ledger = load.stop()
            assert str(account(ledger, log_of(server, 1))) == CLEAN
            assert producer.gaps() == []
            assert copies_on_the_wire(server) == 0
            assert len(produce_connections(server)) == 1

    def test_a_callback_that_takes_3_s_is_not_the_leaders_silence(self) -> None:
        """Answers of other leaders come meanwhile, and are read before anybody is given up."""
        held = threading.Event()

        def hold(_: object) -> None:
            time.sleep(3.0)  # the application's own code, on the network thread
            held.set()

        with (
            calm_cluster() as server,
            warm_producer(server, request_timeout_ms=2000) as producer,
        ):
            late = Slow(node=server.leader(TOPIC, 1)[0], api=PRODUCE, delay_s=0.2)
            server.call(lambda cluster, _: cluster.faults.append(late))
            connections = connections_made(server)
            with Load(producer, TOPIC, 3, RATE) as load:
                begun_s = time.monotonic()
                until(lambda: load.flowing_since(begun_s + 0.5), "records flow")
                producer.send(TOPIC, b"-1", partition=0).add_callback(hold)
                assert held.wait(10)
                back_s = time.monotonic()
                until(lambda: load.flowing_since(back_s + 0.3), "records flow again")
                ledger = load.stop()
            assert ledger.unsettled == 0
            assert ledger.failures == {}
            assert producer.gaps() == []
            assert producer.stalls() == []
            assert copies_on_the_wire(server) == 0
            assert connections_made(server) == connections, "a node was probed"


def back_on_a_new_connection_s(**keywords: int) -> float:
    """The connection to one leader goes deaf under load: how long until its acks come again."""
    with calm_cluster() as server, warm_producer(server, **keywords) as producer:
        leader, epoch = server.leader(TOPIC, 0)
        with Load(producer, TOPIC, 3, RATE) as load:
            begun_s = time.monotonic()
            until(lambda: load.flowing_since(begun_s + 0.5), "records flow")
            [peer] = produce_connections(server, leader)
            deaf_s = time.monotonic()
            server.call(lambda _cluster, _now: deafen(peer))
            until(lambda: load.ledger.last_ack_s(0) > deaf_s + 0.1, "acks again", timeout_s=20.0)
            flows_s = time.monotonic()
            until(lambda: load.flowing_since(flows_s + 0.3), "records flow")
            ledger = load.stop()
        back_s = first_ack_after(ledger, 0, deaf_s + 0.1) - deaf_s
        print(f"\nback after {back_s:.3f} s")
        assert server.leader(TOPIC, 0) == (leader, epoch)
        assert len(produce_connections(server, leader)) == 2
        assert str(account(ledger, log_of(server))) == CLEAN
        return back_s


@on_linux
class TestDeadLink:
    """One connection swallows everything, both ways; its node is healthy and answers on others."""

    @pytest.mark.parametrize("silence_ms", [1000, 250])
    def test_back_in_2500_ms(self, silence_ms: int) -> None:
        """With 250 ms the first probe is answered before the kernel has sent anything twice."""
        assert back_on_a_new_connection_s(silence_timeout_ms=silence_ms) <= 2.5

    def test_where_the_kernel_tells_nothing_the_request_time_out_decides(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outlast.io.kafka_net.retransmits", lambda _: None)
        back_s = back_on_a_new_connection_s(request_timeout_ms=3000)
        assert 2.8 <= back_s <= 3.5

    def test_the_kernel_tells_of_its_retransmits(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            accepted, address = listener.accept()
        with client, accepted:
            client.sendall(b"heard")
            assert accepted.recv(16) == b"heard"
            assert retransmits(client) == 0
            deafen(Peer(1, accepted, address))
            client.sendall(b"not heard")
            until(lambda: (retransmits(client) or 0) >= 2, "two retransmits", timeout_s=3.0)
