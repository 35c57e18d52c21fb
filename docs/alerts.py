"""The alert rules and what to do about each. `make docs` writes them to
src/outlast/dashboards/alerts.yml and to docs/observability.md.

Rules: an alert's query is worth looking at without its condition, so the two are kept apart; it
keeps the labels job and instance where they tell whom to ask. Durations come from gauges that count
seconds, so that nothing waits for a `for` as well. Windows suit scrape intervals up to a minute.
Thresholds sit on Kafka's own clocks and may be changed: they are meant as a beginning.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).parents[1] / "src" / "outlast" / "dashboards" / "alerts.yml"
PAGE = "docs/observability.md"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One rule.

    Args:
        query: the value that is watched, in PromQL.
        condition: when the value is bad: a comparison.
        only_if: what must hold for the same process, too; or nothing.
        for_: how long it must be bad.
        summary, description: Prometheus' templates.
        meaning, remedy: for the runbook.
    """

    name: str
    severity: str
    query: str
    condition: str
    only_if: str = ""
    for_: str = "0s"
    summary: str
    description: str
    meaning: str
    remedy: str

    @property
    def expr(self) -> str:
        """The rule's expression."""
        also = f"\nand on (job, instance) {self.only_if}" if self.only_if else ""
        return f"{self.query}\n{self.condition}{also}"

    @property
    def anchor(self) -> str:
        """Of its heading in the document."""
        return f"{PAGE}#{self.name.lower()}"


ALERTS = (
    Alert(
        name="OutlastGapOpenTooLong",
        severity="warning",
        query="max by (job, instance, topic) (outlast_open_gap_seconds)",
        condition="> 30",
        summary="{{ $labels.topic }} has a partition that takes no records",
        description="A partition of {{ $labels.topic }} has rejected the records of "
        "{{ $labels.instance }} for {{ $value | humanizeDuration }}. A failover with Kafka's usual "
        "settings is over in 12 s.",
        meaning="A partition has accepted nothing for half a minute: longer than a KRaft cluster "
        "takes to give a dead broker up (9 to 12 s) and to elect. Records wait in the buffer.",
        remedy="`producer.health()` and the log name the partition, the cause and the error codes; "
        "`outlast_partition_gap_phase` tells whose time passes. *Unavailable* is the cluster's: no "
        "leader, or fewer in-sync replicas than `min.insync.replicas`. *Reconnecting* is the "
        "network's between this host and the new leader.",
    ),
    Alert(
        name="OutlastGapNearRetryBudget",
        severity="critical",
        query="max by (job, instance, topic) (outlast_open_gap_seconds)\n"
        "  / on (job, instance) group_left ()\n"
        "min by (job, instance) (outlast_delivery_timeout_seconds)",
        condition="> 0.75",
        only_if="outlast_buffer_bytes > 0",
        summary="Records for {{ $labels.topic }} are about to fail",
        description="A gap of {{ $labels.topic }} has used {{ $value | humanizePercentage }} of "
        "delivery_timeout_ms at {{ $labels.instance }}. When it is used up, records that wait "
        "are reported as failed.",
        meaning="Records wait, and those that came first have used three quarters of the time that "
        "`delivery_timeout_ms` gives them. Nothing is lost yet.",
        remedy="Bring the partition's leader back. If senders can send again what failed, have "
        "them ready; else a larger `delivery_timeout_ms` (needs a restart, and room in the buffer) "
        "or `on_undelivered` keeps the records. `outlast check` tells what this cluster's worst "
        "gap is and whether the budget outlasts it.",
    ),
    Alert(
        name="OutlastRecordsLost",
        severity="critical",
        query="sum by (job, topic) (\n"
        '  increase(outlast_records_total{result="failed"}[5m])\n'
        '  or increase(outlast_gap_records_total{fate="refused"}[5m])\n'
        ")",
        condition="> 0",
        summary="Records for {{ $labels.topic }} were reported as failed",
        description='About {{ $value | printf "%.0f" }} records of {{ $labels.job }} for '
        "{{ $labels.topic }} failed in the last 5 minutes: their senders were told so.",
        meaning="Futures of records failed, or `send()` raised because of a gap. outlast has done "
        "what it could: unless the application sends them again, they are lost.",
        remedy="The log and the futures' exceptions (`outlast.DeliveryError`) tell for each "
        "whether it was never sent, not accepted, or may have been written; `on_undelivered` gets "
        "the records themselves. The panel *Verdicts* shows what the brokers answered.",
    ),
    Alert(
        name="OutlastLeadersChangeOften",
        severity="warning",
        query="max by (job, topic) (\n"
        "  sum by (job, instance, topic) (increase(outlast_leader_changes_total[1h]))\n"
        "  / count by (job, instance, topic) (outlast_partition_gap_seconds_total)\n"
        ")",
        condition="> 4",
        summary="Leaders of {{ $labels.topic }} do not come to rest",
        description="Each partition of {{ $labels.topic }} changed its leader "
        '{{ $value | printf "%.1f" }} times in the last hour, on average. A rolling restart of the '
        "cluster makes three.",
        meaning="Each change is a short gap for its partition. A rolling restart moves a leader "
        "away and back; more than four changes an hour for each partition are something else.",
        remedy="Look for brokers that restart, are fenced (their session times out under load or "
        "garbage collection), or for something that elects preferred leaders over and over.",
    ),
    Alert(
        name="OutlastBufferAboutToFill",
        severity="critical",
        query="min by (job, instance) (outlast_buffer_headroom_seconds)",
        condition="< 10",
        only_if="outlast_buffer_bytes / outlast_buffer_limit_bytes > 0.5",
        summary="The send buffer of {{ $labels.instance }} is about to fill",
        description="The send buffer of {{ $labels.instance }} ({{ $labels.job }}) is more than "
        "half full and, at the present rate, lasts for another {{ $value | humanizeDuration }} if "
        "nothing leaves it. Then send() blocks.",
        meaning="More than half of `buffer_memory` is taken, and the rest is less than ten seconds "
        "of records. When it is full, `send()` blocks for up to `max_block_ms` and then raises.",
        remedy="If a gap or a stall is open, see there: records wait for it. If none is, the "
        "cluster takes less than the application makes: look at the delivery latency and at "
        "`outlast_throttle_seconds_total`. A larger `buffer_memory` buys time.",
    ),
    Alert(
        name="OutlastSendersBlocked",
        severity="warning",
        query="sum by (job, instance, reason) (rate(outlast_send_blocked_seconds_total[2m]))",
        condition="> 0.1",
        summary="Threads of {{ $labels.instance }} wait in send()",
        description='On average {{ $value | printf "%.1f" }} threads of {{ $labels.instance }} '
        "({{ $labels.job }}) waited in send() during the last 2 minutes, for {{ $labels.reason }}.",
        meaning="The application's threads wait in `send()`: for room in the buffer (`memory`), "
        "for the share of it that a partition with a gap may take (`share`), or for a topic's "
        "metadata (`metadata`).",
        remedy="`memory`: see OutlastBufferAboutToFill. `share`: only records for partitions that "
        "are held up wait; `producer.health().held_up` names them. `metadata`: the topic does not "
        "exist, or no broker can be reached. A thread that must not wait sets `max_block_ms=0`.",
    ),
    Alert(
        name="OutlastPartitionRestarts",
        severity="warning",
        query="sum by (job, topic, reason) (increase(outlast_partition_restarts_total[15m]))",
        condition="> 0",
        summary="Partitions of {{ $labels.topic }} number their records anew",
        description='About {{ $value | printf "%.0f" }} times in the last 15 minutes a partition '
        "of {{ $labels.topic }} began a new numbering at {{ $labels.job }}: {{ $labels.reason }}.",
        meaning="A partition took its next producer epoch and numbers from 0 again. The rest of "
        "its records are delivered in order, but something happened to those before: they "
        "`expired`, were `refused` by the broker, could not be put in sequence (`resequence`), or "
        "the topic is a new one of the old name, or its leader began as if it were (`recreated`).",
        remedy="`expired` and `refused` come with failed records: see OutlastRecordsLost. "
        "`resequence` says that a broker no longer knew this producer: retention took all its "
        "records, or an election was unclean; if it was, compare the topic with what was sent.",
    ),
    Alert(
        name="OutlastMetadataRefreshFailing",
        severity="warning",
        query="sum by (job, instance)\n"
        '  (rate(outlast_metadata_refresh_duration_seconds_count{result="failed"}[5m]))\n'
        "/ sum by (job, instance)\n"
        "  (rate(outlast_metadata_refresh_duration_seconds_count[5m]))",
        condition="> 0.5",
        for_="1m",
        summary="{{ $labels.instance }} cannot learn where leaders are",
        description="{{ $value | humanizePercentage }} of the metadata requests of "
        "{{ $labels.instance }} ({{ $labels.job }}) failed in the last 5 minutes: the next "
        "failover would not be noticed in time.",
        meaning="Most questions after the leaders come to nothing. Records go on to the leaders "
        "known so far; after the next failover nobody would tell where to.",
        remedy="The log names the addresses and the reason. Are enough brokers up? Do their "
        "`advertised.listeners` lead to them from this host? Do `bootstrap_servers` name more than "
        "one of them?",
    ),
)


def text(alerts: Iterable[Alert] = ALERTS) -> str:
    """The rule file, as `outlast dashboard --alerts` prints it."""
    lines = [
        "# Alert rules for producers of outlast: name it under rule_files in prometheus.yml.",
        f"# What each means and what to do about it: {PAGE}, section Alerts.",
        "groups:",
        "  - name: outlast",
        "    rules:",
    ]
    for alert in alerts:
        lines += [
            f"      - alert: {alert.name}",
            "        expr: |",
            *(f"          {line}" for line in alert.expr.splitlines()),
            f"        for: {alert.for_}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
            f"          description: {_quoted(alert.description)}",
            f"          runbook: {_quoted(alert.anchor)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text)  # every JSON string is one of YAML


def runbook() -> str:
    """The alerts' sections of the document."""
    return "\n\n".join(
        f"### {alert.name}\n\n{_filled(alert.meaning)}\n\n```promql\n{alert.query}\n```\n\n"
        + _filled(f"A *{alert.severity}* {_when(alert)}. {alert.remedy}")
        for alert in ALERTS
    )


def _when(alert: Alert) -> str:
    lasting = f" for {alert.for_}" if alert.for_ != "0s" else ""
    also = f", and `{alert.only_if}` in the same process" if alert.only_if else ""
    return f"when this is `{alert.condition}`{lasting}{also}"


def _filled(text: str) -> str:
    return textwrap.fill(text, 104, break_long_words=False, break_on_hyphens=False)
