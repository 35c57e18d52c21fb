"""What 20 000 records are told while answers come later than the time-outs, or not at all."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from outlast import DeliveryError, Outcome
from outlast.testing.faults import CutAfter, CutBefore, LoseResponse, Slow
from outlast.testing.server import ClusterServer
from tests.real.kafka_cluster import until
from tests.tcp.stories import PRODUCE, TOPIC, calm_cluster, warm_producer

RECORDS = 20_000
PARTITIONS = 6
LATE_S = 1.5  # requests left in closed connections are taken within
REQUEST_TIMEOUT_S, DELIVERY_TIMEOUT_S = 0.5, 1.0


class Trouble:
    """Every so often another fault, of one request of one node, while it is entered."""

    def __init__(self, server: ClusterServer, seed: int) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trouble")

    def _run(self) -> None:
        while not self._over.wait(self._rng.uniform(0.04, 0.2)):
            fault = self._rng.choice(
                [
                    Slow(delay_s=self._rng.uniform(0.3, 2.5), times=1, api=PRODUCE),
                    LoseResponse(times=1, api=PRODUCE),
                    CutAfter(times=1, api=PRODUCE),
                    CutBefore(times=1, api=PRODUCE),
                ]
            )
            fault.node = self._rng.choice([1, 2, 3])
            self._server.call(lambda cluster, _, fault=fault: cluster.faults.append(fault))

    def __enter__(self) -> Trouble:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._server.call(lambda cluster, _: cluster.faults.clear())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_outcome_is_false(seed: int) -> None:
    timeouts = {
        "request_timeout_ms": int(REQUEST_TIMEOUT_S * 1000),
        "delivery_timeout_ms": int(DELIVERY_TIMEOUT_S * 1000),
        "silence_timeout_ms": 400,
        "linger_ms": 0,
        "batch_size": 4000,
    }
    with (
        calm_cluster(PARTITIONS, late_s=LATE_S, request_log_limit=400_000) as server,
        warm_producer(server, PARTITIONS, **timeouts) as producer,
    ):
        futures = []
        with Trouble(server, seed):
            for number in range(RECORDS):
                value = b"%d" % number
                future = producer.send(TOPIC, value, partition=number % PARTITIONS)
                futures.append((future, number % PARTITIONS, value))
                if number % 20 == 19:
                    time.sleep(0.01)  # 2 000 records a second
        producer.flush(timeout=30)
        served = time.monotonic()
        until(lambda: time.monotonic() > served + LATE_S + 0.5, "late requests are taken")
        logs = {p: {r.offset: r.value for r in server.records(TOPIC, p)} for p in range(PARTITIONS)}
    copies = [Counter(log.values()) for log in logs.values()]
    told: Counter[str] = Counter()
    for future, partition, value in futures:
        assert future.is_done
        if future.succeeded():
            told["acknowledged"] += 1
            assert logs[partition][future.value.offset] == value
            assert copies[partition][value] == 1
            continue
        error = future.exception
        assert isinstance(error, DeliveryError)
        told[error.outcome.value] += 1
        if error.outcome is Outcome.UNKNOWN:
            assert copies[partition][value] <= 1
        else:
            assert copies[partition][value] == 0, error
    in_log = sum(copies[p][v] for f, p, v in futures if not f.succeeded())
    print(f"\n{dict(told)}; of those told unknown {in_log} are in a log")
    assert told["acknowledged"] > 1000
    assert told["unknown"] > 10
    assert told["never sent"] > 10
    assert in_log > 0, "no record told unknown is in a log: nothing was in doubt"
