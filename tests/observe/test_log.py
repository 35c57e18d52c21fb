"""Log lines: few, once per episode, bounded in crowds."""

from __future__ import annotations

import logging

import pytest

from outlast.engine.gap import GapRecorder
from outlast.engine.messages import (
    Cause,
    Complaint,
    Connection,
    ConnectionLost,
    Fact,
    LeaderChanged,
    Loss,
    PartitionRestarted,
    RecordsSettled,
    Role,
    StallEnd,
)
from outlast.engine.stall import StallRecorder
from outlast.observe.log import EPISODE_S, LINES_PER_WINDOW, WINDOW_S, LogObserver

Log = pytest.LogCaptureFixture


def refused(gaps: GapRecorder, partition: int, now: float) -> list[Fact]:
    return gaps.refused(
        ("orders", partition),
        cause=Cause.NOT_LEADER,
        trigger="NOT_LEADER_OR_FOLLOWER",
        sent_s=now - 0.5,
        leader=1,
        leader_epoch=7,
        last_ack_s=None,
        now=now,
    )


def accepted(gaps: GapRecorder, partition: int, now: float) -> list[Fact]:
    return gaps.accepted(
        ("orders", partition), sent_s=now - 0.25, leader=2, leader_epoch=8, now=now
    )


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


def test_a_gap_is_a_warning_and_its_end_an_information(caplog: Log) -> None:
    observe, gaps = LogObserver(lambda number: f"trace{number}"), GapRecorder(0.0)
    observe(refused(gaps, 3, now=10.0))
    ((level, text),) = lines(caplog)
    assert level == logging.WARNING
    assert text.startswith("orders-3 takes no records since 1970-01-01 ")
    assert text.endswith(
        "NOT_LEADER_OR_FOLLOWER from node 1 (epoch 7); records wait [gap 1, trace_id trace1]"
    )
    observe(gaps.tick(11.0))
    observe(accepted(gaps, 3, now=12.0))
    assert lines(caplog) == [
        (
            logging.INFO,
            "orders-3 takes records again, after 2.500 s: detecting 0.500, unavailable 0.000, "
            "reconnecting 1.750, resuming 0.250; node 1 → 2, epoch 7 → 8, attempts 2 [gap 1]",
        )
    ]


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
    observe(stalls.alive(tp, node_id=2, sent_s=10.0, now=11.0))
    ((level, text),) = lines(caplog)
    assert level == logging.WARNING
    assert text.startswith("orders-3 stalls since 1970-01-01 ")
    assert "its leader, node 2, lives" in text
    assert text.endswith("[stall 1]")
    observe(stalls.tick(12.0))
    observe(stalls.end(tp, StallEnd.ACK, 12.5))
    assert lines(caplog) == [
        (logging.INFO, "orders-3 is acknowledged again, after 2.500 s [stall 1]")
    ]
    ends = (StallEnd.GAP, StallEnd.IDLE, StallEnd.CLOSED)
    for n, reason in enumerate(ends):
        observe(stalls.alive(tp, node_id=2, sent_s=20.0 * n, now=20.0 * n + 1))
        observe(stalls.end(tp, reason, 20.0 * n + 3))
    assert [text for _, text in lines(caplog)[1::2]] == [
        "orders-3 stalls no longer, it is rejected, after 1.000 s [stall 2]",
        "orders-3 stalls no longer, nothing waits for it, after 3.000 s [stall 3]",
        "orders-3 is watched no longer (closed), after 3.000 s [stall 4]",
    ]


def test_a_crowd_of_gaps_is_bounded_and_the_rest_counted(caplog: Log) -> None:
    observe, gaps = LogObserver(), GapRecorder(0.0)
    for partition in range(100):
        observe(refused(gaps, partition, now=10.0))
    assert len(lines(caplog)) == LINES_PER_WINDOW
    observe(refused(gaps, 100, now=10.0 + WINDOW_S))
    ((_, text),) = lines(caplog)
    assert text.endswith(f"({100 - LINES_PER_WINDOW} lines like this were left out)")


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
