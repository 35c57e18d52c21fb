"""Dashboard and alerts on a real Prometheus that scrapes producers through a failover.

A node of a mock cluster is killed under the load of two producers: a patient one, whose records are
all absorbed, and one whose budget and buffer are too small. Every expression is asked as Grafana
would ask it, and what the pictures show is compared with what the producers tell of themselves.
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.errors import KafkaError
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from docs.alerts import ALERTS
from outlast import KafkaProducer, dashboards
from outlast.engine.messages import Gap, GapEnd, Phase, Stall
from outlast.observe.metrics import METRICS, PARTITION_GAP_PHASE, Kind, Metric
from outlast.testing import MockCluster
from outlast.testing.cluster import ClusterSettings
from tests.demands import need
from tests.observe.real_prometheus import JOB, SCRAPE_S, PromqlError, RealPrometheus

Json = dict[str, Any]
CALM = ClusterSettings(detect_s=2.5, fetch_backoff_p=0.0, deny_p=0.0, creation_deny_p=0.0)
FIRING = 'ALERTS{{alertname="{name}", alertstate="firing"}}'
PATIENT, IMPATIENT, QUIET = "orders", "payments", "quiet"
LEADER_FIRST = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]  # of the first two; the third is on a node alone
VICTIM, UNHARMED = 1, 2
PARTITIONS = len(LEADER_FIRST)
IMPATIENT_SETTINGS = {
    "delivery_timeout_ms": 1000,
    "request_timeout_ms": 600,
    "buffer_memory": 64 * 1024,
    "max_block_ms": 300,
}

_loaded = json.loads(dashboards.dashboard())
PANELS: list[Json] = [panel for panel in _loaded["panels"] if panel["type"] != "row"]
VARIABLES: list[Json] = _loaded["templating"]["list"]
TARGETS = {
    f"{number}: {panel['title']} {target['refId']}": target
    for number, panel in enumerate(PANELS, 1)
    for target in panel["targets"]
}


class Errors(logging.Handler):
    """Keeps them: an observer that raises is dropped, and nothing else would tell."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter().format(record))


class Load(threading.Thread):
    """Sends to each partition in turn, at an even pace, until stopped."""

    def __init__(self, producer: KafkaProducer, topic: str, value: bytes) -> None:
        super().__init__(daemon=True)
        self._producer, self._topic, self._value = producer, topic, value
        self._over = threading.Event()
        self.futures: list[Any] = []
        self.refused = 0

    def run(self) -> None:
        partition = 0
        while not self._over.wait(0.02):
            try:
                sent = self._producer.send(self._topic, self._value, partition=partition)
                self.futures.append(sent)
            except KafkaError:
                self.refused += 1
            partition = (partition + 1) % PARTITIONS

    def stop(self) -> None:
        self._over.set()
        self.join(10)

    @property
    def settled(self) -> bool:
        return all(future.is_done for future in self.futures)

    @property
    def failed(self) -> int:
        return sum(future.failed() for future in self.futures)


@dataclass(kw_only=True)
class Failover:
    """What there is to look at, and the truth about it. Times are seconds since 1970."""

    prometheus: RealPrometheus
    begin_s: float
    end_s: float
    gaps: list[Gap] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    failed: int
    refused: int
    trace_ids: set[str]
    page: bytes

    def ask(self, target: Json) -> list[Json]:
        """As Grafana does for a picture of this time range, a step for each scrape."""
        range_s = math.ceil(self.end_s - self.begin_s)
        expr = target["expr"]
        for name, value in (
            ("$__rate_interval", f"{4 * SCRAPE_S:g}s"),
            ("$__interval", f"{SCRAPE_S:g}s"),
            ("$__range", f"{range_s}s"),
            ("$job", JOB),
            ("$topic", ".*"),
        ):
            expr = expr.replace(name, value)
        assert "$" not in expr
        if target["instant"]:
            return self.prometheus.query(expr, self.end_s)
        return self.prometheus.query_range(expr, self.begin_s, self.end_s, SCRAPE_S)

    def sums(self, title: str, label: str) -> dict[str, float]:
        """What a picture's bars add up to, by the label."""
        [panel] = [panel for panel in PANELS if panel["title"] == title]
        return {
            series["metric"][label]: sum(float(value) for _, value in series["values"])
            for series in self.ask(panel["targets"][0])
        }

    def number(self, title: str) -> float:
        """What a stat shows."""
        panel = next(p for p in PANELS if p["title"] == title and p["type"] == "stat")
        [one] = self.ask(panel["targets"][0])
        return float(one["value"][1])


@pytest.fixture(scope="module")
def failover(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failover]:
    need("prometheus", "prometheus", "promtool")
    registry, exporter, provider = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    errors, logger = Errors(), logging.getLogger("outlast")
    with ExitStack() as stack:
        logger.addHandler(errors)
        stack.callback(logger.removeHandler, errors)
        page, thread = start_http_server(0, "127.0.0.1", registry)
        stack.callback(thread.join)
        stack.callback(page.server_close)
        stack.callback(page.shutdown)
        folder = tmp_path_factory.mktemp("prometheus")
        prometheus = stack.enter_context(
            RealPrometheus(folder, page.server_port, dashboards.alerts())
        )
        cluster = stack.enter_context(MockCluster(settings=CALM))
        for topic in (PATIENT, IMPATIENT):
            cluster.create_topic(topic, PARTITIONS, assignment=LEADER_FIRST)
        cluster.create_topic(QUIET, assignment=[[UNHARMED]])
        producers = [
            stack.enter_context(
                KafkaProducer(
                    bootstrap_servers=cluster.bootstrap_servers,
                    metrics_registry=registry,
                    tracer_provider=provider,
                    **settings,
                )
            )
            for settings in ({}, IMPATIENT_SETTINGS)
        ]
        patient = Load(producers[0], PATIENT, b"x" * 100)
        impatient = Load(producers[1], IMPATIENT, b"x" * 4096)
        begin_s = time.time()
        _play(cluster, prometheus, producers, [patient, impatient])
        assert patient.failed == patient.refused == 0
        assert impatient.failed
        assert not errors.texts, "\n".join(errors.texts)
        yield Failover(
            prometheus=prometheus,
            begin_s=begin_s,
            end_s=time.time(),
            gaps=[gap for producer in producers for gap in producer.gaps()],
            stalls=[stall for producer in producers for stall in producer.stalls()],
            failed=impatient.failed,
            refused=impatient.refused,
            trace_ids={
                f"{span.context.trace_id:032x}"
                for span in exporter.get_finished_spans()
                if span.context
            },
            page=generate_latest(registry),
        )


def _play(
    cluster: MockCluster,
    prometheus: RealPrometheus,
    producers: list[KafkaProducer],
    loads: list[Load],
) -> None:
    """Load, two scrapes, a killed leader, all is settled and seen."""

    def scraped_since(at_s: float) -> bool:
        found = prometheus.query(f'timestamp(up{{job="{JOB}"}})', time.time())
        return bool(found) and float(found[0]["value"][1]) > at_s

    def scrapes(count: int) -> None:
        at_s = time.time() + (count - 1) * SCRAPE_S
        prometheus.until(lambda: scraped_since(at_s))

    producers[0].send(QUIET, b"x").get(10)
    for load in loads:
        load.start()
    prometheus.until(lambda: all(any(f.is_done for f in load.futures) for load in loads))
    scrapes(2)
    cluster.kill(VICTIM)
    prometheus.until(cluster.all_led)
    prometheus.until(
        lambda: (
            all(not producer.health().open_gaps for producer in producers)
            and all(not producer.health().open_stalls for producer in producers)
        )
    )
    for load in loads:
        load.stop()
    prometheus.until(lambda: all(load.settled for load in loads))
    prometheus.until(lambda: all(gap.outcome for p in producers for gap in p.gaps()))
    scrapes(2)
    near, lost = (FIRING.format(name=f"Outlast{n}") for n in ("GapNearRetryBudget", "RecordsLost"))
    prometheus.until(lambda: prometheus.query(lost, time.time()))
    prometheus.until(lambda: not prometheus.query(near, time.time()))


# --- every expression -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
def test_the_expression_says_something(failover: Failover, name: str) -> None:
    found = failover.ask(TARGETS[name])
    points = [point for series in found for point in series.get("values", [series.get("value")])]
    assert [value for _, value in points if value != "NaN"], found


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_the_example_of_a_metric_says_something(failover: Failover, metric: Metric) -> None:
    assert metric.name in metric.example or metric.kind is Kind.HISTOGRAM
    found = failover.prometheus.query(metric.example, failover.end_s)
    if metric is not PARTITION_GAP_PHASE:  # none is open any more
        assert found


def test_the_variables_have_values(failover: Failover) -> None:
    values = {
        variable["name"]: failover.prometheus.values(
            variable["query"]["query"]
            .removeprefix("label_values(")
            .removesuffix(")")
            .replace("$job", JOB),
            failover.begin_s,
            failover.end_s,
        )
        for variable in VARIABLES
        if variable["type"] == "query"
    }
    assert values == {"job": [JOB], "topic": [PATIENT, IMPATIENT, QUIET]}


def test_exemplars_lead_to_the_traces_of_gaps(failover: Failover) -> None:
    for target in TARGETS.values():
        if target["exemplar"]:
            expr = target["expr"].replace("$__interval", "1s")
            expr = expr.replace("$job", JOB).replace("$topic", ".*")
            found = failover.prometheus.exemplars(expr, failover.begin_s, failover.end_s)
            assert found
            assert {one["labels"]["trace_id"] for one in found} <= failover.trace_ids


def test_an_expression_that_is_wrong_is_found(failover: Failover) -> None:
    with pytest.raises(PromqlError, match="parse error"):
        failover.ask({"expr": "sum(outlast_open_gaps", "instant": True})
    assert failover.ask({"expr": "outlast_open_gap", "instant": True}) == []


def test_the_page_is_as_prometheus_likes_it(failover: Failover) -> None:
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=failover.page, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# --- the pictures are true ------------------------------------------------------------------------


def test_the_timeline_shows_each_gap_and_stall_and_no_other_row(failover: Failover) -> None:
    [target] = [t for name, t in TARGETS.items() if "per partition A" in name and "stalls" in name]
    rows = {
        (series["metric"]["topic"], int(series["metric"]["partition"])): [
            int(float(value)) for _, value in series["values"]
        ]
        for series in failover.ask(target)
    }
    happened: dict[tuple[str, int], set[int]] = {}
    lasted_s: dict[tuple[str, int], float] = {}
    for state, events in ((2, failover.gaps), (1, failover.stalls)):
        for event in events:
            tp = event.topic, event.partition
            happened.setdefault(tp, set()).add(state)
            lasted_s[tp] = lasted_s.get(tp, 0.0) + event.duration_s
    assert any(2 in states for states in happened.values())
    assert any(1 in states for states in happened.values())
    assert rows.keys() == happened.keys()
    for tp, states in rows.items():
        seen = {bit for state in states for bit in (1, 2) if state & bit}
        assert seen == happened[tp]
        coloured_s = SCRAPE_S * sum(state > 0 for state in states)
        assert abs(coloured_s - lasted_s[tp]) <= 2 * SCRAPE_S + 0.5


def test_the_bars_add_up_to_what_the_producers_tell(failover: Failover) -> None:
    gaps = failover.gaps
    phases = failover.sums("Gap seconds by phase", "phase")
    assert phases == pytest.approx(
        {phase.value: sum(getattr(gap, f"{phase.value}_s") for gap in gaps) for phase in Phase}
    )
    fates = failover.sums("Absorbed and reported records", "fate")
    assert fates == {
        fate: sum(getattr(gap, f"records_{fate}") for gap in gaps)
        for fate in ("delivered", "expired", "failed", "refused")
    }
    assert fates["delivered"]
    assert fates["expired"]
    lasted = failover.sums("How long gaps lasted", "le")
    ended = [gap.duration_s for gap in gaps if gap.ended_by is GapEnd.ACK]
    assert lasted["+Inf"] == len(ended) > 0
    assert lasted["3.0"] == sum(duration_s <= 3.0 for duration_s in ended)
    assert failover.sums("Gaps by cause and outcome", "outcome").keys() == {
        "absorbed",
        "reported",
    }
    assert failover.sums("Leader changes", "topic")[PATIENT] > 0
    assert failover.sums("Verdicts", "verdict")


def test_the_numbers_on_top_are_true(failover: Failover) -> None:
    assert failover.number("Open gaps") == 0
    assert failover.number("Longest open gap") == 0
    assert failover.number("Retry budget") == IMPATIENT_SETTINGS["delivery_timeout_ms"] / 1000
    lost = failover.failed + failover.refused
    # increase() guesses what lies beyond the first and the last scrape
    assert failover.number("Records reported lost") == pytest.approx(lost, rel=0.5)
    assert failover.number("Records absorbed") > 0


# --- the rules ------------------------------------------------------------------------------------


def test_every_rule_is_in_health_and_those_fire_that_should(failover: Failover) -> None:
    rules = {rule["name"]: rule for rule in failover.prometheus.rules()}
    assert rules.keys() == {alert.name for alert in ALERTS}
    for rule in rules.values():
        assert (rule["health"], rule.get("lastError")) == ("ok", None)
    firing = {name: rule["alerts"] for name, rule in rules.items() if rule["state"] == "firing"}
    [lost] = firing.pop("OutlastRecordsLost")
    assert lost["labels"]["topic"] == IMPATIENT
    assert firing.keys() <= {"OutlastPartitionRestarts", "OutlastSendersBlocked"}


def test_an_alert_fires_while_the_gap_is_open_and_recovers(failover: Failover) -> None:
    firing = FIRING.format(name="OutlastGapNearRetryBudget")
    ask = failover.prometheus.query_range
    fired = ask(firing, failover.begin_s, failover.end_s, SCRAPE_S)
    assert {series["metric"]["topic"] for series in fired} >= {IMPATIENT}
    assert failover.prometheus.query(firing, failover.end_s) == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_the_query_of_an_alert_says_something(failover: Failover, alert: Any) -> None:
    found = failover.prometheus.query(alert.query, failover.end_s)
    assert [one for one in found if one["value"][1] != "NaN"], alert.query
