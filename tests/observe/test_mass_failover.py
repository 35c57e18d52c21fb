"""Six hundred partitions lose a leader, one topic with the longest name Kafka allows: what is told
of it has a bound.
"""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from outlast.engine.messages import GapOpened
from outlast.observe.log import LogObserver
from outlast.observe.prometheus import PrometheusObserver
from tests.sim.stories import load, simulation

LONGEST = "n" * 249
TOPICS = {LONGEST: 200, "orders": 200, "users": 200}

pytestmark = pytest.mark.virtual


def test_it_is_a_dozen_lines_and_one_page(caplog: pytest.LogCaptureFixture) -> None:
    sim = simulation(1, topics=TOPICS)
    load(sim, interval_s=0.3, count=5)
    sim.at(1.0, lambda: sim.kill(1))
    sim.run_until(sim.all_settled)
    gaps = sum(isinstance(fact, GapOpened) for fact in sim.facts)
    assert gaps >= 200  # of the 600, all that node 1 led

    registry = CollectorRegistry()
    observers: list[LogObserver | PrometheusObserver] = [
        LogObserver(),
        PrometheusObserver(registry),
    ]
    with caplog.at_level(logging.INFO, "outlast"):
        for fact in sim.facts:
            for observer in observers:
                observer([fact])
        for observer in observers:
            observer.close()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) <= 16
    assert max(map(len, lines)) < 1500
    told = [record for record in caplog.records if "take no records since" in record.getMessage()]
    assert told

    page = generate_latest(registry).decode()
    counted = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "outlast_gaps_total"
    ]
    assert sum(counted) == gaps
    assert page.count(LONGEST) < 10 * TOPICS[LONGEST]
