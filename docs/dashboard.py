"""What the Grafana dashboard shows. `make docs` writes it to src/outlast/dashboards/outlast.json.

Rules: a gap of a second is seen at any scrape interval, so pictures are drawn from counters, and a
gauge only tells of now. What came in one step of a picture is the counter less what it was a step
before: each second and record is seen once, in whole numbers, and nothing is smeared over four
scrapes as `rate` does. (A counter that went back, since a process began anew, counts as no step.)
The counters that this is asked of begin at 0; only the histogram's are born with a gap.
"""

from __future__ import annotations

import json
from pathlib import Path

from docs import grafana
from docs.grafana import Panel, Query

PATH = Path(__file__).parents[1] / "src" / "outlast" / "dashboards" / "outlast.json"

JOB = 'job=~"$job"'
TOPIC = f'{JOB}, topic=~"$topic"'

PHASES = {"detecting": "yellow", "unavailable": "red", "reconnecting": "purple", "resuming": "blue"}
FATES = {"delivered": "green", "expired": "red", "failed": "dark-red", "refused": "orange"}
ALARMS = ((None, "green"), (1, "red"))


def step(counter: str, by: str) -> str:
    """What the counter grew by in one step of the picture."""
    return f"sum by ({by}) (clamp_min({counter} - {counter} offset $__interval, 0))"


def step_from_birth(counter: str, by: str) -> str:
    """The same of a counter that may have been born with its first value."""
    before = f"({counter} offset $__interval or {counter} * 0)"
    return f"sum by ({by}) (clamp_min({counter} - {before}, 0))"


def over_range(*counters: str) -> str:
    """What the counters grew by in the dashboard's time range, to a whole number."""
    grown = " or ".join(f"increase({counter}[$__range])" for counter in counters)
    return f"round(sum({grown}))"


FAILED = f'outlast_records_total{{{TOPIC}, result="failed"}}'
REFUSED = f'outlast_gap_records_total{{{TOPIC}, fate="refused"}}'
GAP = f"outlast_partition_gap_seconds_total{{{TOPIC}}}"
STALLED = f"outlast_partition_stalled_seconds_total{{{TOPIC}}}"
DURATIONS = f"outlast_gap_duration_seconds_bucket{{{TOPIC}}}"
LATENCY = f"outlast_send_duration_seconds_bucket{{{TOPIC}}}"
REFRESH = f"outlast_metadata_refresh_duration_seconds_bucket{{{JOB}}}"

# one row for each partition that had a gap or a stall in the time range, and for no other
TIMELINE = f"""\
max by (topic, partition) (
  2 * ({GAP} - {GAP} offset $__interval > bool 0)
  + ({STALLED} - {STALLED} offset $__interval > bool 0)
)
and on (topic, partition) (
  increase({GAP}[$__range] @ end()) > 0
  or increase({STALLED}[$__range] @ end()) > 0
)"""


def now() -> list[Panel]:
    """The line of numbers on top."""
    return [
        grafana.stat(
            "Open gaps",
            "Partitions that take no records now.",
            Query(f"sum(outlast_open_gaps{{{TOPIC}}})", instant=True),
            unit="none",
            thresholds=ALARMS,
        ),
        grafana.stat(
            "Longest open gap",
            "How long the worst of them has lasted so far. Records fail when they have waited for "
            "the retry budget (delivery_timeout_ms).",
            Query(f"max(outlast_open_gap_seconds{{{TOPIC}}})", instant=True),
            unit="s",
            thresholds=((None, "green"), (12, "orange"), (30, "red")),
        ),
        grafana.stat(
            "Retry budget",
            "How long a record may wait before it is reported as failed: the smallest "
            "delivery_timeout_ms among the producers.",
            Query(f"min(outlast_delivery_timeout_seconds{{{JOB}}})", instant=True),
            unit="s",
        ),
        grafana.stat(
            "Buffer headroom",
            "How long the fullest buffer lasts if nothing leaves it, at the present rate. More "
            "than an hour is shown as an hour.",
            Query(f"clamp_max(min(outlast_buffer_headroom_seconds{{{JOB}}}), 3600)", instant=True),
            unit="s",
            thresholds=((None, "red"), (10, "orange"), (30, "green")),
        ),
        grafana.stat(
            "Records absorbed",
            "Records in the time range that met a gap and were delivered all the same.",
            Query(
                over_range(f'outlast_gap_records_total{{{TOPIC}, fate="delivered"}}'), instant=True
            ),
            unit="short",
        ),
        grafana.stat(
            "Records reported lost",
            "Records in the time range that failed, or that send() refused because of a gap: their "
            "senders were told so.",
            Query(over_range(FAILED, REFUSED), instant=True),
            unit="short",
            thresholds=ALARMS,
        ),
    ]


def when() -> list[Panel]:
    """Gaps and stalls over time."""
    return [
        grafana.state_timeline(
            "Gaps and stalls per partition",
            "One row for each partition that had a gap or a stall in the time range; none, if none "
            "had. In a gap its records are rejected; in a stall its leader lives and rejects "
            "nothing, but acknowledges nothing either.",
            Query(TIMELINE, "{{topic}}-{{partition}}"),
            width=24,
            height=11,
            mappings={
                0: ("accepting", "green"),
                1: ("stall", "orange"),
                2: ("gap", "red"),
                3: ("gap and stall", "dark-red"),
            },
        ),
        grafana.bars(
            "Gap seconds by phase",
            "Whose time gaps took: detecting (until the first signal), unavailable (the cluster "
            "had no leader that accepts), reconnecting (ours), resuming (until the ack). Counted "
            "when a gap is over, summed over partitions.",
            Query(step(f"outlast_gap_seconds_total{{{TOPIC}}}", "phase"), "{{phase}}"),
            unit="s",
            width=12,
            colours=PHASES,
        ),
        grafana.heatmap(
            "How long gaps lasted",
            "Gaps that ended with an ack, by their duration. Points are single gaps: each leads to "
            "its trace.",
            Query(step_from_birth(DURATIONS, "le"), "{{le}}", format="heatmap", exemplar=True),
            unit="s",
            width=12,
        ),
        grafana.steps(
            "Open gaps",
            "Partitions that took no records when they were looked at. Gaps shorter than the "
            "scrape interval are mostly missed here: the timeline above has them all.",
            Query(f"sum by (topic) (outlast_open_gaps{{{TOPIC}}})", "{{topic}}"),
            unit="none",
            width=8,
        ),
        grafana.bars(
            "Leader changes",
            "Partitions whose leader, or its epoch, changed under the producers.",
            Query(step(f"outlast_leader_changes_total{{{TOPIC}}}", "topic"), "{{topic}}"),
            unit="none",
            width=8,
        ),
        grafana.points(
            "Gaps with their traces",
            "The 95th percentile of the gaps that ended in each step, and single ones as "
            "exemplars: click one for its trace. Needs Prometheus with exemplar storage, and the "
            "label trace_id mapped to a trace store in Grafana's data source.",
            Query(
                f"histogram_quantile(0.95, {step_from_birth(DURATIONS, 'le')})",
                "95 %",
                exemplar=True,
            ),
            unit="s",
            width=8,
        ),
    ]


def records() -> list[Panel]:
    """What became of records."""
    return [
        grafana.bars(
            "Absorbed and reported records",
            "What became of records that met a gap: delivered late, or reported to their senders "
            "as expired (delivery_timeout_ms), failed, or refused by send() for want of room.",
            Query(step(f"outlast_gap_records_total{{{TOPIC}}}", "fate"), "{{fate}}"),
            unit="short",
            width=12,
            colours=FATES,
        ),
        grafana.bars(
            "Gaps by cause and outcome",
            "Gaps whose records are all settled: absorbed (all delivered), reported (some failed) "
            "or abandoned (no end was seen), by the first signal.",
            Query(
                f"{step(f'outlast_gaps_total{{{TOPIC}}}', 'cause, outcome')} > 0",
                "{{cause}}, {{outcome}}",
            ),
            unit="none",
            width=12,
        ),
        grafana.bars(
            "Verdicts",
            "What answers that accepted nothing, and lost connections, meant for their batches.",
            Query(
                f"{step_from_birth(f'outlast_verdicts_total{{{TOPIC}}}', 'verdict, error')} > 0",
                "{{verdict}}: {{error}}",
            ),
            unit="none",
            width=12,
        ),
        grafana.lines(
            "Records settled",
            "Records acknowledged and failed per second.",
            Query(
                f"sum by (result) (rate(outlast_records_total{{{TOPIC}}}[$__rate_interval]))",
                "{{result}}",
            ),
            unit="cps",
            width=12,
            colours={"acked": "green", "failed": "red"},
        ),
    ]


def room() -> list[Panel]:
    """How much longer a gap could be absorbed."""
    return [
        grafana.lines(
            "Buffer headroom",
            "How long each buffer lasts if nothing leaves it, at the present rate. More than an "
            "hour is shown as an hour.",
            Query(
                f"clamp_max(outlast_buffer_headroom_seconds{{{JOB}}}, 3600)", "{{job}} {{instance}}"
            ),
            unit="s",
            width=8,
        ),
        grafana.lines(
            "Buffer in use",
            "Bytes of records without outcome, and how many there may be (buffer_memory).",
            Query(f"sum by (job) (outlast_buffer_bytes{{{JOB}}})", "{{job}}: in use"),
            Query(f"sum by (job) (outlast_buffer_limit_bytes{{{JOB}}})", "{{job}}: limit"),
            unit="bytes",
            width=8,
        ),
        grafana.lines(
            "Senders blocked",
            "Threads that wait in send(), on average: for room in the buffer, for their "
            "partition's share of it, or for metadata.",
            Query(
                "sum by (reason) "
                f"(rate(outlast_send_blocked_seconds_total{{{JOB}}}[$__rate_interval]))",
                "{{reason}}",
            ),
            unit="none",
            width=8,
        ),
    ]


def delivery() -> list[Panel]:
    """The usual way of records, and the table of last gaps."""
    quantiles = (0.5, 0.95, 0.99)
    return [
        grafana.lines(
            "Delivery latency",
            "From send() to the ack, retries included: of the oldest record of each batch.",
            *(
                Query(
                    f"histogram_quantile({q}, sum by (le) (rate({LATENCY}[$__rate_interval])))",
                    f"{q * 100:g} %",
                )
                for q in quantiles
            ),
            unit="s",
            width=12,
        ),
        grafana.table(
            "Last gap of each partition",
            "When it began and how long it lasted.",
            *(
                Query(
                    f"max by (topic, partition, job, instance) ({name}{{{TOPIC}}}){factor}",
                    instant=True,
                    format="table",
                )
                for name, factor in (
                    ("outlast_partition_last_gap_start_time_seconds", " * 1000"),
                    ("outlast_partition_last_gap_duration_seconds", ""),
                )
            ),
            unit="none",
            width=12,
            overrides=[
                grafana.override("began", "unit", "dateTimeAsIso"),
                grafana.override("lasted", "unit", "s"),
            ],
            transformations=[
                {"id": "merge", "options": {}},
                {
                    "id": "organize",
                    "options": {
                        "excludeByName": {"Time": True},
                        "indexByName": {},
                        "renameByName": {"Value #A": "began", "Value #B": "lasted"},
                    },
                },
                {
                    "id": "sortBy",
                    "options": {"fields": {}, "sort": [{"desc": True, "field": "began"}]},
                },
            ],
        ),
    ]


def underneath() -> list[Panel]:
    """What failovers are made of."""
    return [
        grafana.lines(
            "Metadata refresh",
            "How long metadata requests took, and how many failed per second.",
            Query(
                f"histogram_quantile(0.95, sum by (le) (rate({REFRESH}[$__rate_interval])))", "95 %"
            ),
            Query(
                "sum(rate(outlast_metadata_refresh_duration_seconds_count"
                f'{{{JOB}, result="failed"}}[$__rate_interval]))',
                "failed per second",
            ),
            unit="s",
            width=8,
            overrides=[grafana.override("failed per second", "unit", "cps")],
        ),
        grafana.bars(
            "Partition restarts",
            "Partitions that number their records from 0 again under the next producer epoch: "
            "records expired or were refused, or the topic is another one.",
            Query(step(f"outlast_partition_restarts_total{{{TOPIC}}}", "reason"), "{{reason}}"),
            unit="none",
            width=8,
        ),
        grafana.lines(
            "Connections",
            "Open connections to brokers, by what they are for. The slow lane is in use while a "
            "broker waits for a late follower.",
            Query(f"sum by (role) (outlast_connections{{{JOB}}})", "{{role}}"),
            unit="none",
            width=8,
        ),
    ]


SECTIONS = [
    ("", now()),
    ("When partitions took no records", when()),
    ("What became of the records", records()),
    ("Room for the next gap", room()),
    ("Delivery", delivery()),
    ("Underneath", underneath()),
]


def panels() -> list[Panel]:
    """Every panel."""
    return [panel for _, section in SECTIONS for panel in section]


def text() -> str:
    """The dashboard's JSON, as `outlast dashboard` prints it."""
    dashboard = {
        "annotations": {"list": []},
        "description": "Failovers of Kafka partitions as the producers of outlast see them.",
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": [],
        "panels": grafana.flowed(SECTIONS),
        "refresh": "30s",
        "schemaVersion": grafana.SCHEMA_VERSION,
        "tags": ["kafka", "outlast"],
        "templating": {
            "list": [
                grafana.data_source_variable("Data source"),
                grafana.label_variable("job", "Job", "label_values(outlast_records_total, job)"),
                grafana.label_variable(
                    "topic", "Topic", f"label_values(outlast_records_total{{{JOB}}}, topic)"
                ),
            ]
        },
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": "outlast: failovers as producers see them",
        "uid": "outlast-failovers",
        "weekStart": "",
    }
    return json.dumps(dashboard, indent=1) + "\n"


def overview() -> str:
    """What the dashboard shows, for the document."""
    return "\n".join(
        f"* {f'**{title}**: ' if title else '**On top**: '}"
        + ", ".join(panel.title for panel in section)
        for title, section in SECTIONS
    )
