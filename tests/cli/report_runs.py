"""Made-up runs for reports: a leader dies at 9 s, others stall, leaders move before and after."""

from __future__ import annotations

from typing import Any

from outlast.cli.report import Mark, Records, Run
from outlast.cli.verify import Delivery
from outlast.engine.messages import Cause, Gap, GapEnd, GapOutcome, Phase, Stall, StallEnd

BEGIN_S = 1000.0  # monotonic; every `begin` below counts from it
BEGIN_UNIX_S = 1_796_000_000.0  # 30 November 2026, 00:53:20 UTC


def plain(text: str) -> str:
    """With usual spaces between numbers and units."""
    return text.replace("\u00a0", " ")


def gap(topic: str, partition: int, begin: float, length: float, **changes: Any) -> Gap:
    """4 % detecting, 90 % unavailable, 4 % reconnecting, 2 % resuming; the client's: 5 to 10 %."""
    values: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "number": 1,
        "cause": Cause.CONNECTION_LOST,
        "trigger": "CONNECTION_CLOSED",
        "begin_s": BEGIN_S + begin,
        "begin_unix_s": BEGIN_UNIX_S + begin,
        "duration_s": length,
        "phase": None,
        "detecting_s": length * 0.04,
        "unavailable_s": length * 0.9,
        "reconnecting_s": length * 0.04,
        "resuming_s": length * 0.02,
        "cluster_s_min": length * 0.9,
        "cluster_s_max": length * 0.95,
        "attempts": 14,
        "errors": ("CONNECTION_CLOSED", "CONNECTION_REFUSED", "CONNECTION_REFUSED"),
        "old_leader": 2,
        "old_leader_epoch": 4,
        "new_leader": 3,
        "new_leader_epoch": 5,
        "ended_by": GapEnd.ACK,
        "outcome": GapOutcome.ABSORBED,
        "records_delivered": 1126,
    }
    return Gap(**{**values, **changes})


def open_gap(topic: str, partition: int, begin: float, length: float) -> Gap:
    return gap(
        topic,
        partition,
        begin,
        length,
        phase=Phase.UNAVAILABLE,
        ended_by=None,
        outcome=None,
        unavailable_s=length * 0.96,
        reconnecting_s=0.0,
        resuming_s=0.0,
        new_leader=-1,
        new_leader_epoch=-1,
        records_delivered=0,
    )


def stall(topic: str, partition: int, begin: float, length: float, **changes: Any) -> Stall:
    values: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "number": 1,
        "node_id": 1,
        "lane": "slow",
        "reason": "follower",
        "begin_s": BEGIN_S + begin,
        "begin_unix_s": BEGIN_UNIX_S + begin,
        "duration_s": length,
        "ended_by": StallEnd.ACK,
    }
    return Stall(**{**values, **changes})


def run(count: int = 6, *, loud: int | None = None, **changes: Any) -> Run:
    """20 seconds, in three topics if there are many partitions; `loud` of them have events."""
    topics = ["orders"] if count <= 6 else ["audit", "orders", "payments.settled"]
    named = [(topics[p * len(topics) // count], p) for p in range(count)]
    gaps, stalls = [], []
    for topic, p in named[:loud]:
        if p % 3 == 0:
            gaps.append(gap(topic, p, 9.0 + p % 7 * 0.01, 3.1 + p % 11 * 0.03))
        else:
            at = 3.0 if p % 3 == 1 else 15.0
            gaps.append(gap(topic, p, at, 0.03, cause=Cause.NOT_LEADER))
            stalls.append(stall(topic, p, 9.0, 3.0 + p % 5 * 0.02))
    rates = [0 if 9 <= second / 2 < 12 else 300 * count for second in range(40)]
    sent = 6000 * count
    values: dict[str, Any] = {
        "title": "outlast demo",
        "begin_s": BEGIN_S,
        "begin_unix_s": BEGIN_UNIX_S,
        "end_s": BEGIN_S + 20.0,
        "partitions": named,
        "gaps": gaps,
        "stalls": stalls,
        "acked": [rate // 2 for rate in rates],
        "acked_step_s": 0.5,
        "marks": [Mark(BEGIN_S + 9.0, "node 2 is killed; it leads orders-0, orders-3")],
        "records": Records(sent, sent, 0),
        "delivery": Delivery(sent, 0, 0, 0, 0),
        "delivery_timeout_s": 120.0,
        "settings": {"acks": "all"},
    }
    return Run(**{**values, **changes})


def events(it: Run) -> list[Gap | Stall]:
    """Gaps and stalls, by their begin."""
    both: list[Gap | Stall] = [*it.gaps, *it.stalls]
    return sorted(both, key=lambda event: event.begin_s)


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "\"'><svg onload=alert(3)>",
    "{{ 7 * 7 }}",
    "\u202egnp.exe",
    "long-" * 40,
)


def hostile() -> Run:
    """Everything that a user or a cluster names is an attack."""
    every = range(len(HOSTILE))
    return run(
        title=HOSTILE[0],
        partitions=[(HOSTILE[p], p) for p in every],
        gaps=[
            gap(HOSTILE[p], p, 2.0 + p, 1.0 + p, errors=(HOSTILE[p],), trigger=HOSTILE[p])
            for p in every
        ],
        stalls=[stall(HOSTILE[p], p, 12.0, 2.0, lane=HOSTILE[p], reason=HOSTILE[p]) for p in every],
        marks=[Mark(BEGIN_S + 1 + p, HOSTILE[p]) for p in every],
        resumed={(HOSTILE[p], p): [BEGIN_S + 19.0] for p in every},
        notes=[*HOSTILE, "half a pair: \ud800"],
        settings={name: name for name in HOSTILE},
    )
