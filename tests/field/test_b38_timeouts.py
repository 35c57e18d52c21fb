"""Field cases of section 3: time-outs and unknown outcomes (B38 to B41)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from outlast import KafkaProducer
from outlast.engine.messages import Outcome
from outlast.testing.faults import Freeze, LoseRequest, SlowFollower
from outlast.testing.server import ClusterServer
from tests.facade.conftest import make_cluster, new_topic  # noqa: F401 - a fixture
from tests.field.oracles import D, c1, c3, logs_of, o3, o4, o5, o11
from tests.field.wire import PRODUCE
from tests.sim.stories import CALM


class TestB38:
    """Close while the last request is never answered."""

    @pytest.mark.parametrize("times", [1, None], ids=["one is lost", "all are lost"])
    def test_b38_close_does_not_wait_for_an_answer_that_cannot_come(
        self,
        make_cluster: Callable[..., ClusterServer],  # noqa: F811
        times: int | None,
    ) -> None:
        cluster = make_cluster(nodes=1)
        topic = new_topic(cluster)
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            metrics_registry=None,
            request_timeout_ms=500,
            delivery_timeout_ms=1200,
        )
        producer.send(topic, b"first", partition=0).get(5)
        lost = LoseRequest(api=PRODUCE, times=times)
        cluster.call(lambda mock, _: mock.faults.append(lost))
        settled_s: list[float] = []
        future = producer.send(topic, b"last", partition=0)
        future.add_both(lambda _: settled_s.append(time.monotonic()))
        producer.close(timeout=30)
        closed_s = time.monotonic()
        assert lost.used > 0
        assert future.is_done
        assert future.succeeded() is (times == 1)
        if times is None:
            assert future.exception.outcome is Outcome.UNKNOWN
        assert closed_s - settled_s[0] <= 1.5


def test_b40_a_broker_frozen_for_8_s_is_written_to_at_once_after_it() -> None:
    """Some of what was sent meanwhile fails as unknown, and the thaw appends it once at most."""
    sim = c1(40, delivery_timeout_ms=3000)
    sim.send_every(0, 0.01, 1400)
    frozen = Freeze(node=1, after_s=2.0, until_s=10.0)
    sim.fault(frozen)
    sim.run_until(sim.all_settled, 60.0)
    sim.check()
    entries, logs = sim.ledger.entries, logs_of(sim)
    o3(entries, {**D, "delivery_timeout_ms": 3000})
    o4(entries, logs)
    o5(entries, logs)
    told = {e.outcome for e in entries if 1.9 < e.sent_at < 6.5}
    assert told >= {Outcome.UNKNOWN.value, Outcome.NEVER_SENT.value}
    after = [e for e in entries if e.sent_at >= 10.0]
    assert {e.outcome for e in after} == {"acked"}
    assert max(e.settled_at - e.sent_at for e in after) < 1.0
    o11(sim)


class TestB41:
    """A planned move to a follower that is behind: what acks='all' is the default for."""

    @staticmethod
    def story(**options):
        loses = replace(CALM, unclean_election=True, fetch_backoff_p=0.0)
        sim = c3(41, 1, cluster=loses, **options)
        sim.send_every(0, 0.005, 600)
        sim.fault(SlowFollower(node=2, delay_s=1.0, until_s=2.0))
        sim.at(2.0 - 1e-6, lambda: sim.move_leader(0, 2, deny_s=0.0))
        sim.run_until(sim.all_settled, 60.0)
        sim.run_for(12.0)
        held = {record.value for record in sim.cluster.records("t", 0)}
        return [e for e in sim.ledger.entries if e.outcome == "acked" and e.value not in held]

    def test_b41_acks_1_loses_what_it_acknowledged(self) -> None:
        assert self.story(acks=1, enable_idempotence=False)

    def test_b41_the_default_loses_nothing(self) -> None:
        assert not self.story()
