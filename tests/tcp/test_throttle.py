"""A broker that holds a client to its quota (KIP-219): it answers, and then reads nothing for a
while. That is no failure of anybody: no gap, no stall, no time-out, and nobody else notices.
"""

from __future__ import annotations

import time
from itertools import pairwise

from outlast.testing.cluster import MockCluster
from outlast.testing.faults import Throttle
from outlast.testing.request_log import RequestRecord
from outlast.testing.server import ClusterServer
from tests.real.kafka_cluster import until
from tests.tcp.senders import Senders, assert_all_delivered, assert_unharmed
from tests.tcp.stories import (
    PRODUCE,
    calm_cluster,
    connections_made,
    copies_on_the_wire,
    produce_connections,
    warm_producer,
)

NODE = 1  # leads partition 0 alone
ON_ITS_WAY_S = 0.2  # a request may leave before the producer has read that it must not
RATE = 100.0
# Longer than a busy machine may stand still, shorter than what throttling adds up to.
PATIENCE_MS = 2500


def throttle(server: ClusterServer, fault: Throttle) -> None:
    server.call(lambda cluster, _: cluster.faults.append(fault))


def produce_requests(server: ClusterServer, node_id: int) -> list[RequestRecord]:
    def read(cluster: MockCluster, _: float) -> list[RequestRecord]:
        return [r for r in cluster.request_log if (r.api_key, r.node_id) == (PRODUCE, node_id)]

    return server.call(read)


def deaf_times(requests: list[RequestRecord], throttle_s: float) -> list[tuple[float, float]]:
    """When the connection was not read: from an answer until the next request was taken, where
    that took as long as the throttle says.
    """
    times = []
    for answered, taken in pairwise(requests):
        assert answered.answered_at_s is not None
        assert taken.served_at_s is not None
        if taken.served_at_s - answered.answered_at_s >= throttle_s - 0.01:
            times.append((answered.answered_at_s, taken.served_at_s))
    return times


def test_a_quota_of_one_broker_holds_up_its_partition_only() -> None:
    throttle_s = 4.0
    with (
        calm_cluster() as server,
        warm_producer(server, silence_timeout_ms=PATIENCE_MS) as producer,
    ):
        assert server.leader("t", 0)[0] == NODE
        connections = connections_made(server)
        with Senders(producer, 3, rate=RATE, value_bytes=1000) as senders:
            senders.until_flowing(range(3))
            begin_s = time.monotonic()
            fault = Throttle(node=NODE, api=PRODUCE, throttle_s=throttle_s, times=1)
            throttle(server, fault)
            until(lambda: fault.used, "an answer tells of the quota")
            told_s = time.monotonic()
            end_s = senders.until_past(told_s + throttle_s)
            [account] = senders.accounts[:1]
            quiet_s = told_s + ON_ITS_WAY_S + senders.lag_s
            assert account.acked_in(quiet_s, told_s + throttle_s - 0.2) == 0
            senders.until_flowing(range(3))
            senders.stop()
        [(deaf_s, heard_s)] = deaf_times(produce_requests(server, NODE), throttle_s)
        sent_meanwhile = [
            r.received_at_s - deaf_s
            for r in produce_requests(server, NODE)
            if deaf_s + ON_ITS_WAY_S < r.received_at_s < deaf_s + throttle_s
        ]
        assert sent_meanwhile == []
        assert min(a for _, a in account.acks if a > quiet_s) < heard_s + 0.3 + senders.lag_s
        assert_unharmed(senders, [1, 2], RATE, begin_s, end_s)
        assert_all_delivered(server, senders)
        assert [gap for gap in producer.gaps() if gap.begin_s > begin_s] == []
        assert [stall for stall in producer.stalls() if stall.begin_s > begin_s] == []
        assert connections_made(server) == connections, "nobody was probed or connected anew"
        assert copies_on_the_wire(server) == 0


def test_b84_throttled_time_does_not_count_against_the_request_time_out() -> None:
    """Each of six answers, some to requests that were under way together, is followed by 800 ms
    of deafness: far more than the request time-out in all.
    """
    throttle_s = 0.8
    with (
        calm_cluster() as server,
        warm_producer(
            server, silence_timeout_ms=PATIENCE_MS, request_timeout_ms=PATIENCE_MS
        ) as producer,
    ):
        with Senders(producer, 3, rate=RATE, value_bytes=20_000) as senders:  # a batch each
            senders.until_flowing(range(3))
            begin_s = time.monotonic()
            fault = Throttle(node=NODE, api=PRODUCE, throttle_s=throttle_s, times=6)
            throttle(server, fault)
            until(lambda: fault.used == 6, "six answers tell of the quota")
            end_s = time.monotonic()
            senders.until_flowing(range(3))
            senders.stop()
        requests = produce_requests(server, NODE)
        deaf = deaf_times(requests, throttle_s)
        assert len(deaf) == 6
        for deaf_s, _ in deaf:
            for request in requests:
                passed_s = request.received_at_s - deaf_s
                assert not ON_ITS_WAY_S < passed_s < throttle_s, passed_s
        assert_unharmed(senders, [1, 2], RATE, begin_s, end_s)
        assert_all_delivered(server, senders)
        assert [gap for gap in producer.gaps() if gap.begin_s > begin_s] == []
        assert [stall for stall in producer.stalls() if stall.begin_s > begin_s] == []
        assert len(produce_connections(server, NODE)) == 1
        assert copies_on_the_wire(server) == 0
