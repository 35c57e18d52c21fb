"""Log lines: few, once per episode, bounded in crowds."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

from outlast.engine.gap import GapRecorder
from outlast.engine.messages import (
    Cause,
    Complaint,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    ConnectionOpened,
    Fact,
    LaneChanged,
    LaneReason,
    LeaderChanged,
    Loss,
    PartitionRestarted,
    RecordsSettled,
    Role,
    StallEnd,
    Throttled,
)
from outlast.engine.stall import StallRecorder
from outlast.observe.gap_lines import FOLD_S, SINGLE
from outlast.observe.log import EPISODE_S, LINES_PER_WINDOW, LogObserver
from outlast.observe.slow_lanes import QUIET_S

LATE = {"lane": "slow", "reason": "follower"}
Log = pytest.LogCaptureFixture


def refused(
    gaps: GapRecorder, partition: int, now: float, topic: str = "orders", node_id: int = 1
) -> list[Fact]:
    return gaps.refused(
        (topic, partition),
        cause=Cause.NOT_LEADER,
        trigger="NOT_LEADER_OR_FOLLOWER",
        sent_s=now - 0.5,
        leader=node_id,
        leader_epoch=7,
        last_ack_s=None,
        now=now,
    )


def accepted(gaps: GapRecorder, partition: int, now: float, topic: str = "orders") -> list[Fact]:
    return gaps.accepted((topic, partition), sent_s=now - 0.25, leader=2, leader_epoch=8, now=now)


def lost(at_s: float, loss: Loss = Loss.CLOSED, node_id: int = 1, unanswered: int = 3) -> Fact:
    connection = Connection(node_id, Role.OPEN, 4)
    return ConnectionLost(at_s, connection, "kafka-1:9092", loss, "reset by peer", unanswered)


def lines(log: Log) -> list[tuple[int, str]]:
    found = [(record.levelno, record.getMessage()) for record in log.records]
    log.clear()
    return found


@pytest.fixture(autouse=True)
def _level(caplog: Log) -> None:
    caplog.set_level(logging.INFO, logger="outlast")


def span_of(number: int) -> tuple[str, str]:
    return f"trace{number}", f"span{number}"


def test_a_gap_is_a_warning_and_its_end_an_information(caplog: Log) -> None:
    observe, gaps = LogObserver(span_of), GapRecorder(0.0)
    observe(refused(gaps, 3, now=10.0))
    observe(gaps.tick(11.0))
    ((level, text),) = lines(caplog)
    assert level == logging.WARNING
    assert text.startswith("orders-3 takes no records since 1970-01-01 ")
    assert text.endswith(
        "NOT_LEADER_OR_FOLLOWER from node 1 (epoch 7); records wait [gap 1, trace_id trace1]"
    )
    observe(accepted(gaps, 3, now=12.0))  # nothing else is open: told at once
    assert lines(caplog) == [
        (
            logging.INFO,
            "orders-3 takes records again, after 2.500 s: detecting 0.500, unavailable 0.000, "
            "reconnecting 1.750, resuming 0.250; node 1 → 2, epoch 7 → 8, attempts 2 [gap 1]",
        )
    ]


def test_a_gap_that_is_over_at_once_is_told_in_order(caplog: Log) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    for now in (10.0, 10.1):
        observe(refused(gaps, 3, now))
        observe(accepted(gaps, 3, now + 0.05))
    assert ["no records" in text for _, text in lines(caplog)] == [True, False, True, False]


def test_a_forked_child_leaves_its_parents_lines_alone(
    caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    observe(refused(gaps, 3, now=10.0))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    observe.close()
    assert lines(caplog) == []
    gaps = GapRecorder(0.0)
    observe(refused(gaps, 4, now=20.0))
    observe(accepted(gaps, 4, now=20.1))  # nothing else is open here
    assert [text.split()[0] for _, text in lines(caplog)] == ["orders-4", "orders-4"]


def test_an_opening_comes_before_its_end_also_where_the_end_joins_others(caplog: Log) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    observe(refused(gaps, 0, now=10.0))
    observe(refused(gaps, 1, now=10.0))
    observe(gaps.tick(11.0))
    lines(caplog)
    observe(accepted(gaps, 0, now=20.0))
    observe(refused(gaps, 2, now=20.1))
    observe(accepted(gaps, 2, now=20.2))
    observe([later(21.0)])
    assert [text.split(" since")[0].split(",")[0] for _, text in lines(caplog)] == [
        "orders-0 takes records again",
        "orders-2 takes no records",
        "orders-2 takes records again",
    ]


def test_the_trace_goes_with_the_line_as_attributes(caplog: Log) -> None:
    observe, gaps = LogObserver(span_of), GapRecorder(0.0)
    observe(refused(gaps, 3, now=10.0))
    observe(accepted(gaps, 3, now=12.0))
    for record in caplog.records:
        assert (record.trace_id, record.span_id) == ("trace1", "span1")  # type: ignore[attr-defined]
        assert (record.topic, record.partition, record.gap) == ("orders", 3, 1)  # type: ignore[attr-defined]
    assert len(caplog.records) == 2
    caplog.clear()
    observe = LogObserver(lambda _: None)  # no tracing
    observe(refused(gaps, 3, now=20.0))
    observe.close()
    assert caplog.records[0].trace_id is None  # type: ignore[attr-defined]
    assert "trace_id" not in caplog.records[0].getMessage()


def test_an_application_that_uses_the_same_attribute_gets_the_line(caplog: Log) -> None:
    usual = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = usual(*args, **kwargs)
        record.trace_id = "the request's"
        return record

    observe, gaps = LogObserver(span_of), GapRecorder(0.0)
    logging.setLogRecordFactory(factory)
    try:
        observe(refused(gaps, 3, now=10.0))
        observe.close()
    finally:
        logging.setLogRecordFactory(usual)
    ((_, text),) = lines(caplog)
    assert text.endswith("[gap 1, trace_id trace1]")


def test_a_mass_failover_is_one_line_at_its_begin_and_one_at_its_end(caplog: Log) -> None:
    observe, gaps = LogObserver(span_of), GapRecorder(0.0)
    many = [(f"topic{n % 3}", n) for n in range(412)]
    for n, tp in enumerate(many):
        observe(refused(gaps, tp[1], now=10.0 + n / 2000, topic=tp[0], node_id=1 + n % 2))
    assert lines(caplog) == []
    observe(gaps.tick(11.0))
    ((level, text),) = lines(caplog)
    assert level == logging.WARNING
    assert text.startswith(
        "412 partitions of 3 topics (topic0-0, topic0-3, topic0-6 and 409 more) take no records "
        "since 1970-01-01 "
    )
    assert text.endswith(
        ": NOT_LEADER_OR_FOLLOWER 412 from nodes 1, 2; records wait "
        "[gaps 1–412, first trace_id trace1]"
    )
    for n, tp in enumerate(many):
        observe(accepted(gaps, tp[1], now=12.0 + n / 2000, topic=tp[0]))
    ((level, text),) = lines(caplog)
    assert level == logging.INFO
    assert text == (
        "412 partitions of 3 topics (topic0-0, topic0-3, topic0-6 and 409 more) take records "
        "again, after 2.500 to 2.500 s; in the median detecting 0.500, unavailable 0.000, "
        "reconnecting 1.750, resuming 0.250 [gaps 1–412, first trace_id trace1]"
    )


def test_the_record_of_a_folded_line_tells_all_partitions(caplog: Log) -> None:
    observe, gaps = LogObserver(span_of), GapRecorder(0.0)
    for partition in range(5):
        observe(refused(gaps, partition, now=10.0))
    observe.close()
    (record,) = caplog.records
    assert record.partitions == [f"orders-{n}" for n in range(5)]  # type: ignore[attr-defined]
    assert record.trace_id == "trace1"  # type: ignore[attr-defined]
    assert record.getMessage().startswith("5 partitions of orders (orders-0, ")


def test_a_few_partitions_have_a_line_each(caplog: Log) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    for partition in range(SINGLE):
        observe(refused(gaps, partition, now=10.0))
    observe(gaps.tick(11.0))
    assert [text.split()[0] for _, text in lines(caplog)] == ["orders-0", "orders-1", "orders-2"]


def test_a_line_is_held_for_a_moment_only(caplog: Log) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    observe(refused(gaps, 0, now=10.0))
    observe([later(10.0 + FOLD_S - 0.01)])
    assert lines(caplog) == []
    observe([later(10.0 + FOLD_S)])
    assert len(lines(caplog)) == 1
    observe(refused(gaps, 1, now=20.0))
    observe(accepted(gaps, 0, now=20.1))  # the other is open: more may end now
    assert lines(caplog) == []
    observe([later(20.1 + FOLD_S)])
    assert [text.split(" since")[0].split(",")[0] for _, text in lines(caplog)] == [
        "orders-1 takes no records",
        "orders-0 takes records again",
    ]


def test_what_many_gaps_cost_is_one_line(caplog: Log) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    for partition in range(400):
        observe(refused(gaps, partition, now=10.0))
        gaps.joined(partition + 1)
    observe(refused(gaps, 999, now=10.0))  # and goes on
    for partition in range(400):
        observe(accepted(gaps, partition, now=12.0))
    observe([later(13.0)])
    lines(caplog)
    for number in range(1, 401):
        observe(gaps.settled(number, "expired", 10, 130.0))
    observe(gaps.tick(131.0))
    ((level, text),) = lines(caplog)
    assert level == logging.WARNING
    assert text == (
        "400 partitions of orders (orders-0, orders-1, orders-2 and 397 more): records that met "
        "the gaps were not all delivered: 4000 expired, 0 delivered [gaps 1–400]"
    )


def test_a_mass_stall_is_one_line_at_its_begin_and_one_at_its_end(caplog: Log) -> None:
    observe, stalls = LogObserver(), StallRecorder(0.0)
    for n in range(100):
        late = {"lane": "slow", "reason": "follower" if n < 90 else "leader"}
        observe(stalls.alive(("orders", n), node_id=2, **late, sent_s=10.0, now=11.0))
    observe(stalls.tick(12.0))
    for n in reversed(range(100)):
        observe(stalls.end(("orders", n), StallEnd.ACK, 12.5))
    begin, end = lines(caplog)
    assert begin[0] == logging.WARNING
    assert begin[1].startswith("100 partitions of orders (orders-0, orders-1, orders-2 and 97 mo")
    assert begin[1].endswith(
        ": their leaders live and have refused nothing, yet acknowledge nothing (a follower is "
        "late for 90, the leader is slow for 10) [stalls 1–100]"
    )
    assert end == (
        logging.INFO,
        "100 partitions of orders (orders-0, orders-1, orders-2 and 97 more) are acknowledged "
        "again, after 2.500 to 2.500 s [stalls 1–100]",
    )


def test_lines_are_bounded_also_where_gaps_come_one_by_one(caplog: Log) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    for n in range(100):
        observe(refused(gaps, n, now=10.0 + n * 0.3))
        observe(gaps.tick(10.29 + n * 0.3))
    told = lines(caplog)
    assert LINES_PER_WINDOW <= len(told) <= 4 * LINES_PER_WINDOW
    assert any("lines like this were left out" in text for _, text in told)


def test_records_that_a_gap_cost_are_a_warning(caplog: Log) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    observe(refused(gaps, 3, now=10.0))
    gaps.joined(1)
    gaps.joined(1)
    observe(gaps.settled(1, "expired", 40, 11.0))
    observe(accepted(gaps, 3, now=12.0))
    lines(caplog)
    observe(gaps.settled(1, "delivered", 2, 13.0))
    ((level, text),) = lines(caplog)
    assert level == logging.WARNING
    assert text.endswith("not all delivered: 40 expired, 2 delivered [gap 1]")


def test_a_gap_without_an_ack_says_so(caplog: Log) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    observe(refused(gaps, 3, now=10.0))
    observe(gaps.leader_usable(("orders", 3), leader=2, leader_epoch=8, now=11.0))
    observe(refused(gaps, 3, now=20.0))
    observe(gaps.close(21.0))
    assert [text.split(",")[0] for _, text in lines(caplog)[1::2]] == [
        "orders-3 has a usable leader again",
        "orders-3 is watched no longer (closed)",
    ]


def test_a_stall_is_a_warning_and_its_end_an_information(caplog: Log) -> None:
    observe, stalls = LogObserver(), StallRecorder(0.0)
    tp = ("orders", 3)
    observe(stalls.alive(tp, node_id=2, **LATE, sent_s=10.0, now=11.0))
    observe(stalls.tick(11.5))
    observe(stalls.tick(12.0))
    ((level, text),) = lines(caplog)
    assert level == logging.WARNING
    assert text.startswith("orders-3 stalls since 1970-01-01 ")
    assert "its leader, node 2, lives" in text
    assert text.endswith("(a follower is late; slow lane) [stall 1]")
    observe(stalls.end(tp, StallEnd.ACK, 12.5))
    assert lines(caplog) == [
        (logging.INFO, "orders-3 is acknowledged again, after 2.500 s [stall 1]")
    ]
    ends = (StallEnd.GAP, StallEnd.IDLE, StallEnd.CLOSED)
    for n, reason in enumerate(ends):
        why = {"lane": "open", "reason": "leader"}
        observe(stalls.alive(tp, node_id=2, **why, sent_s=20.0 * n, now=20.0 * n + 1))
        observe(stalls.end(tp, reason, 20.0 * n + 3))
    told = lines(caplog)
    assert "(it is slow; open lane)" in told[0][1]
    assert [text for _, text in told[1::2]] == [
        "orders-3 stalls no longer, it is rejected, after 1.000 s [stall 2]",
        "orders-3 stalls no longer, nothing waits for it, after 3.000 s [stall 3]",
        "orders-3 is watched no longer (closed), after 3.000 s [stall 4]",
    ]


def test_a_repeated_loss_is_one_line_per_episode(caplog: Log) -> None:
    observe = LogObserver()
    for n in range(50):
        observe([lost(n * 1.0)])
    observe([lost(1.0, Loss.REFUSED), lost(1.0, node_id=2)])
    assert [text for _, text in lines(caplog)] == [
        "connection 1/open#4 to kafka-1:9092 closed: reset by peer, 3 requests unanswered",
        "connection 1/open#4 to kafka-1:9092 refused: reset by peer, 3 requests unanswered",
        "connection 2/open#4 to kafka-1:9092 closed: reset by peer, 3 requests unanswered",
    ]
    observe([lost(EPISODE_S)])
    ((_, text),) = lines(caplog)
    assert text.endswith("(49 times more before)")


def test_levels_of_losses(caplog: Log) -> None:
    observe = LogObserver()
    observe([lost(1.0, Loss.AUTHENTICATION), lost(1.0, Loss.BAD_BYTES)])
    assert [level for level, _ in lines(caplog)] == [logging.ERROR, logging.WARNING]
    observe([lost(1.0, Loss.CLOSED, unanswered=0)])  # an idle connection: brokers do that
    assert lines(caplog) == []
    observe([lost(2.0, Loss.CLOSED, unanswered=1)])  # and it does not hide a real one
    assert [level for level, _ in lines(caplog)] == [logging.WARNING]


def test_complaints_are_told_once_per_episode(caplog: Log) -> None:
    observe = LogObserver()
    observe([Complaint(at, "error", "no broker can be reached") for at in (1.0, 2.0, 3.0)])
    observe([Complaint(1.0, "warning", "retry_wait raised")])
    assert lines(caplog) == [
        (logging.ERROR, "no broker can be reached"),
        (logging.WARNING, "retry_wait raised"),
    ]


def test_what_is_remembered_is_bounded() -> None:
    observe = LogObserver()
    observe([Complaint(1.0, "warning", f"odd thing {n}") for n in range(10_000)])
    assert repr(observe) == "<LogObserver episodes=256>"


def test_a_pause_for_a_quota_is_told_once_per_episode_and_connection(caplog: Log) -> None:
    observe = LogObserver()
    for n in range(50):
        observe([Throttled(n * 1.0, Connection(2, Role.OPEN, n), 3.944)])
    observe([Throttled(50.0, Connection(2, Role.CONTROL, 1), 0.5)])
    assert lines(caplog) == [
        (
            logging.WARNING,
            "node 2 wants a pause of 3.944 s on connection 2/open#0, for a quota: "
            "nothing is sent over it meanwhile",
        ),
        (
            logging.WARNING,
            "node 2 wants a pause of 0.500 s on connection 2/control#1, for a quota: "
            "nothing is sent over it meanwhile",
        ),
    ]
    observe([Throttled(EPISODE_S, Connection(2, Role.OPEN, 99), 3.944)])
    ((_, text),) = lines(caplog)
    assert text.endswith("(49 times more before)")


def slow(at_s: float, partition: int, reason: LaneReason, node_id: int = 2) -> Fact:
    return LaneChanged(at_s, "orders", partition, node_id, Role.SLOW, reason)


def back(at_s: float, partition: int, reason: LaneReason = LaneReason.USUAL) -> Fact:
    return LaneChanged(at_s, "orders", partition, 2, Role.OPEN, reason)


def later(at_s: float) -> Fact:
    return RecordsSettled(at_s, "orders", 99, 5, 0, 0.1)


def test_partitions_that_take_the_slow_lane_together_are_one_line_and_so_is_the_end(
    caplog: Log,
) -> None:
    observe = LogObserver()
    for n in range(200):
        observe([slow(10.0, n, LaneReason.STUCK if n % 2 else LaneReason.SUSPECT)])
        observe([slow(10.1, n, LaneReason.STUCK)])  # a suspect is no more than that at first
    assert lines(caplog) == []
    observe([later(10.5)])
    assert lines(caplog) == [
        (
            logging.WARNING,
            "node 2: a follower is late; 200 partitions in the slow lane (orders-0, orders-1, "
            "orders-2 and 197 more), the others go on over a connection of their own",
        )
    ]
    observe([slow(12.0, 200, LaneReason.SUSPECT), later(12.5)])
    observe([back(19.0 + n / 1000, n) for n in range(201)])
    observe([later(19.5), later(19.2 + QUIET_S)])
    assert lines(caplog) == []
    observe([later(19.3 + QUIET_S)])
    assert lines(caplog) == [
        (
            logging.INFO,
            "node 2: nothing is in the slow lane any more, after 9.200 s; 201 partitions at most",
        )
    ]
    observe([later(60.0)])
    assert lines(caplog) == []


def test_a_follower_that_is_late_now_and_then_makes_one_episode(caplog: Log) -> None:
    observe = LogObserver()
    for at_s in range(100):
        observe([slow(at_s, 3, LaneReason.STUCK), later(at_s + 0.3), back(at_s + 0.5, 3)])
    observe([later(99.5 + QUIET_S + 0.1)])
    assert [text for _, text in lines(caplog)] == [
        "node 2: a follower is late; 1 partition in the slow lane (orders-3), the others go on "
        "over a connection of their own",
        "node 2: nothing is in the slow lane any more, after 99.500 s; 1 partition at most",
    ]


def test_every_broker_has_an_episode_of_its_own_and_a_move_ends_it(caplog: Log) -> None:
    observe = LogObserver()
    observe([slow(1.0, 3, LaneReason.FOLLOWER_DOWN, 1), slow(1.0, 4, LaneReason.STUCK, 2)])
    observe([later(2.0)])
    told = [text for _, text in lines(caplog)]
    assert told[0].startswith(
        "node 1: a follower is out of reach; 1 partition in the slow lane (orders-3)"
    )
    assert told[1].startswith("node 2: a follower is late; 1 partition in the slow lane (orders-4)")
    observe([back(3.0, 4, LaneReason.MOVED), slow(3.0, 4, LaneReason.FOLLOWER_DOWN, 1)])
    observe([later(3.1 + QUIET_S)])
    ((_, text),) = lines(caplog)
    assert text.startswith("node 2: nothing is in the slow lane any more, after 2.000 s; 1 ")
    observe([slow(11.0, 3, LaneReason.STUCK, 5), slow(12.0, 4, LaneReason.STUCK, 5)])
    observe([later(12.1 + QUIET_S)])  # nothing told of their leaving node 1
    assert [text.partition(";")[0] for _, text in lines(caplog)] == [
        "node 5: a follower is late",
        "node 1: nothing is in the slow lane any more, after 11.000 s",
    ]


def test_the_most_is_the_most_at_a_time(caplog: Log) -> None:
    observe = LogObserver()
    observe([slow(1.0, n, LaneReason.STUCK) for n in range(3)])
    observe([back(1.1, 0), back(1.1, 1), slow(1.2, 7, LaneReason.STUCK), later(2.0)])
    observe([back(3.0, 2), back(3.0, 7), later(3.1 + QUIET_S)])
    begin, end = (text for _, text in lines(caplog))
    assert "; 4 partitions in the slow lane (orders-0, orders-1, orders-2 and 1 more)" in begin
    assert end.endswith("after 2.000 s; 3 partitions at most")


def test_a_slow_connection_that_nobody_uses_ends_the_episode(caplog: Log) -> None:
    observe, connection = LogObserver(), Connection(2, Role.SLOW, 7)
    observe([slow(1.0, 3, LaneReason.STUCK)])  # and then nothing is written to it
    observe([ConnectionOpened(1.1, connection, "kafka-2:9092", 0.01), later(2.0)])
    assert len(lines(caplog)) == 1
    observe([ConnectionClosed(5.0, connection)])
    observe([ConnectionOpened(5.0 + QUIET_S / 2, connection, "kafka-2:9092", 0.01)])
    observe([later(5.1 + QUIET_S)])
    assert lines(caplog) == []  # it was only made anew
    observe([ConnectionClosed(30.0, connection), later(30.1 + QUIET_S)])
    assert [text for _, text in lines(caplog)] == [
        "node 2: nothing is in the slow lane any more, after 29.000 s; 1 partition at most"
    ]
    observe([back(50.0, 3), back(50.0, 3)])  # of no interest any more
    observe([slow(60.0, 3, LaneReason.STUCK), later(61.0)])
    assert len(lines(caplog)) == 1


def test_close_tells_of_slow_lanes_that_were_about_to_be_told(caplog: Log) -> None:
    observe = LogObserver()
    observe([slow(1.0, 3, LaneReason.STUCK)])
    observe.close()
    assert [level for level, _ in lines(caplog)] == [logging.WARNING]
    observe.close()
    assert lines(caplog) == []


def test_episodes_of_many_brokers_are_bounded(caplog: Log) -> None:
    observe = LogObserver()
    observe([slow(1.0, n, LaneReason.STUCK, node_id=n) for n in range(100)])
    observe([later(2.0)])
    assert len(lines(caplog)) == LINES_PER_WINDOW


def test_restarts_are_told_and_batches_and_leaders_are_not(caplog: Log) -> None:
    observe = LogObserver()
    observe([RecordsSettled(1.0, "orders", 3, 5, 0, 0.1)])
    observe([LeaderChanged(1.0, "orders", 3, 1, 7, 2, 8, by_hint=True)])
    assert lines(caplog) == []
    caplog.set_level(logging.DEBUG, logger="outlast")
    observe([LeaderChanged(1.0, "orders", 3, 1, 7, 2, 8, by_hint=True)])
    observe([PartitionRestarted(1.0, "orders", 3, 4000, 1, "expired")])
    assert lines(caplog) == [
        (logging.DEBUG, "orders-3: leader 1 → 2, epoch 7 → 8, told by a hint"),
        (
            logging.INFO,
            "orders-3 numbers from 0 again under producer id 4000, epoch 1: expired",
        ),
    ]
