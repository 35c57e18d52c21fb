"""The parts of a drill, each alone: the ledger, the results and their exit codes, the tables, the
live screen, the moves.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from kafka import TopicPartition
from rich.console import Console

from outlast.cli import drill_ledger, drill_screen
from outlast.cli.check_view import Rate
from outlast.cli.drill_leaders import Leader, LeaderChange, Watch, rotated
from outlast.cli.drill_ledger import Ledger
from outlast.cli.drill_plan import seconds
from outlast.cli.drill_report import page
from outlast.cli.drill_result import (
    EXIT_CODES,
    Budget,
    PartitionResult,
    Result,
    Verdict,
)
from outlast.cli.drill_screen import Screen
from outlast.cli.drill_tables import changed, length, named, ranges, show, size
from outlast.cli.drill_topic import MARK, Canary, DrillError, open_canary, told
from outlast.cli.drill_traffic import Reader
from outlast.cli.shares import client_s
from outlast.cli.verify import Delivery, encode
from outlast.engine.messages import Gap, GapOutcome, Phase, Stall
from tests.cli.test_tables import gap, stall

# --- the ledger -----------------------------------------------------------------------------------


def ledger_of(*acked: int) -> Ledger:
    """One partition with records 0, 1 … acknowledged at these offsets, a second apart."""
    ledger = Ledger((0,))
    for number, offset in enumerate(acked):
        assert ledger.send(0, float(number)) == number
        ledger.acked(0, number, offset, number + 0.5)
    return ledger


def test_what_is_read_once_and_in_order_is_fine() -> None:
    ledger = ledger_of(0, 1, 2)
    for number in range(3):
        ledger.read(0, number, number, number + 0.75)
    assert ledger.judge() == Delivery(3, 0, 0, 0, 0)
    assert (ledger.unsettled(), ledger.unread()) == (0, 0)
    assert (ledger[0].longest_wait_s, ledger[0].longest_read_s) == (0.5, 0.75)


def test_lost_is_what_the_reader_has_passed() -> None:
    ledger = ledger_of(0, 1, 2)
    ledger.read(0, 0, 0, 9.0)
    assert ledger.judge().lost == 0
    assert ledger.unread() == 2
    ledger.read(0, 2, 2, 9.0)
    assert ledger.judge().lost == 1
    assert ledger.unread() == 0


def test_copies_and_order_and_offsets() -> None:
    ledger = ledger_of(0, 1, 2)
    for number, offset in ((0, 0), (2, 1), (1, 2), (2, 3)):
        ledger.read(0, number, offset, 9.0)
    assert ledger.judge() == Delivery(3, lost=0, misplaced=2, duplicated=1, out_of_order=1)


def test_where_no_offset_was_told_the_order_of_sending_says_what_is_lost() -> None:
    ledger = ledger_of(-1, -1, -1)
    ledger.read(0, 0, 7, 9.0)
    assert (ledger.judge(), ledger.unread()) == (Delivery(3, 0, 0, 0, 0), 2)
    ledger.read(0, 2, 8, 9.0)
    assert (ledger.judge(), ledger.unread()) == (Delivery(3, 1, 0, 0, 0), 0)


def test_a_record_may_be_read_before_it_is_acknowledged_and_after_it_failed() -> None:
    ledger = Ledger((0,))
    first, second = ledger.send(0, 0.0), ledger.send(0, 0.0)
    ledger.read(0, first, 0, 1.0)
    ledger.acked(0, first, 0, 2.0)
    ledger.fail(0, second, "KafkaTimeoutError", 3.0)
    ledger.read(0, second, 1, 4.0)
    assert ledger.judge() == Delivery(1, 0, 0, 0, 0)
    assert ledger.failures == {"KafkaTimeoutError": 1}
    assert ledger[0].longest_wait_s == 3.0


def test_reading_resumed_with_the_first_record_that_was_acknowledged_after_the_gap() -> None:
    ledger = ledger_of(0, 1, 2)  # acknowledged at 0.5, 1.5, 2.5
    for number in range(3):
        ledger.read(0, number, number, 10.0 + number)
    assert ledger.resumed_s(0, 1.5) == 11.0
    assert ledger.resumed_s(0, 1.6) == 12.0
    assert ledger.resumed_s(0, 2.6) is None


def test_the_start_does_not_count() -> None:
    ledger = ledger_of(0)
    ledger.begin(10.0)
    assert ledger[0].longest_wait_s == 0
    number = ledger.send(0, 10.0)
    ledger.acked(0, number, 1, 12.5)
    assert ledger.acked_per_s() == [0, 0, 1]


def test_old_stories_are_forgotten_and_still_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill_ledger, "_SWEEP_RECORDS", 10)
    ledger = Ledger((0,))
    for number in range(1000):
        assert ledger.send(0, float(number)) == number
        ledger.acked(0, number, number, float(number))
        if number % 100 != 50:
            ledger.read(0, number, number, float(number))
    assert len(ledger[0].stories) < 200
    assert ledger.judge() == Delivery(1000, 10, 0, 0, 0)
    ledger.read(0, 0, 1001, 2000.0)
    assert ledger.judge().duplicated == 1


def test_the_oldest_that_waits() -> None:
    ledger = ledger_of(0)
    assert ledger.oldest_s(0) is None
    ledger.send(0, 5.0)
    ledger.send(0, 6.0)
    assert ledger.oldest_s(0) == 5.0


# --- results --------------------------------------------------------------------------------------

CLEAN = Delivery(10, 0, 0, 0, 0)


def partition(number: int, **changes: Any) -> PartitionResult:
    values: dict[str, Any] = {
        "partition": number,
        "sent": 10,
        "acknowledged": 10,
        "failed": 0,
        "unsettled": 0,
        "longest_wait_s": 0.02,
        "longest_read_s": 0.03,
        "gaps": (),
        "stalls": (),
        "resumed_s": {},
    }
    return PartitionResult(**{**values, **changes})


def result(*partitions: PartitionResult, **changes: Any) -> Result:
    longest_s = max(of.longest_wait_s for of in partitions)
    values: dict[str, Any] = {
        "topic": "outlast-drill-1a2b3c4d",
        "made": True,
        "begin_s": 100.0,
        "begin_unix_s": 1_700_000_000.0,
        "end_s": 160.0,
        "tick_s": 0.05,
        "partitions": partitions,
        "leader_changes": (LeaderChange(112.0, 1, 1, 3, 11),),
        "moves": 0,
        "delivery": CLEAN,
        "unread": 0,
        "failures": {},
        "budget": Budget(
            longest_wait_s=longest_s, delivery_timeout_s=120.0, buffer_bytes=2**25, rate=None
        ),
        "acked_per_s": (10, 10),
        "settings": {"acks": "-1"},
    }
    return Result(**{**values, **changes})


@pytest.mark.parametrize(
    ("found", "verdict", "code"),
    [
        (result(partition(0)), Verdict.ABSORBED, 0),
        (result(partition(0, gaps=(gap(0),))), Verdict.ABSORBED, 0),
        (result(partition(0, failed=1, acknowledged=9)), Verdict.REPORTED, 1),
        (result(partition(0), delivery=Delivery(10, 1, 0, 0, 0)), Verdict.BROKEN, 1),
        (result(partition(0), delivery=Delivery(10, 0, 0, 1, 0)), Verdict.BROKEN, 1),
        (result(partition(0, unsettled=1, acknowledged=9)), Verdict.UNDECIDED, 3),
        (result(partition(0), unread=1), Verdict.UNDECIDED, 3),
        (result(partition(0, failed=1, unsettled=1)), Verdict.REPORTED, 1),
    ],
)
def test_the_verdict_is_the_worst_that_is_true(found: Result, verdict: Verdict, code: int) -> None:
    assert found.verdict is verdict
    assert EXIT_CODES[verdict] == found.to_dict()["exit_code"] == code


def test_the_client_has_what_the_cluster_has_not() -> None:
    unasked = gap(0, duration_s=10.0, cluster_s_min=7.0, cluster_s_max=9.0, resuming_s=0.0)
    assert client_s(unasked) == (1, 3)
    least, most = client_s(gap(0, duration_s=1.0, cluster_s_min=0.0, cluster_s_max=1.5))
    assert (least, most) == (0.0, 1.0)
    waited = gap(0, duration_s=10.0, cluster_s_min=7.0, cluster_s_max=8.0, resuming_s=1.5)
    assert client_s(waited) == (0.5, 3), "what is under way may wait for a follower"


def test_the_budget() -> None:
    budget = Budget(longest_wait_s=10.0, delivery_timeout_s=8.0, buffer_bytes=1000, rate=None)
    assert budget.margin_s == -2.0
    assert budget.buffer_bytes_per_s == 100.0
    assert budget.buffer_margin_s is None
    at_rate = replace(budget, rate=Rate(bytes_per_s=50.0, said="few"))
    assert at_rate.buffer_margin_s == 10.0
    assert replace(budget, longest_wait_s=0.0).buffer_bytes_per_s is None


# --- tables ---------------------------------------------------------------------------------------


def shown(found: Result, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(console, found)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


LONG = gap(3, number=1, cluster_s_min=10.5, cluster_s_max=12.3)


@pytest.mark.parametrize("width", [80, 140])
def test_everything_is_told_within_the_width(width: int) -> None:
    found = result(
        partition(0),
        partition(1),
        partition(
            3,
            gaps=(LONG, replace(LONG, number=2, duration_s=1.0)),
            stalls=(stall(3),),
            resumed_s={1: 13.25},
            longest_wait_s=12.5,
        ),
        notes=("did not accept when the drill began: 7",),
    )
    text = shown(found, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "3 gaps 2 12,346 10,500–12,300 0–1,846 13,250 12,500 absorbed" in lines
    assert "stall 1 3,002" in lines
    assert "no gap and no stall: partitions 0–1" in lines
    assert "did not accept when the drill began: 7" in lines
    whole = " ".join(lines)
    assert "outlasts the longest wait, 12.5 s, by 107.5 s" in whole
    assert "lasts as long at up to 2.6 MiB/s" in whole


def test_failures_and_what_is_open_are_told() -> None:
    text = " ".join(
        shown(
            result(
                partition(0, failed=2, acknowledged=8),
                failures={"KafkaTimeoutError": 2},
                unread=3,
                delivery=Delivery(8, 0, 1, 0, 0),
            )
        ).split()
    )
    assert "2 failed (2 KafkaTimeoutError)" in text
    assert "3 acknowledged but not read yet" in text
    assert "did not outlast everything" in text
    assert "Broken: acknowledged records are not in the log as promised." in text
    waiting = " ".join(shown(result(partition(0, unsettled=1, acknowledged=9))).split())
    assert "1 without outcome yet" in waiting
    assert "outlasts" not in waiting.split("buffer")[0]


def test_with_six_hundred_partitions_the_worst_are_shown() -> None:
    many = [
        partition(number, gaps=(gap(number, number=number, duration_s=number / 100),),
                  longest_wait_s=number / 100)
        for number in range(600)
    ]  # fmt: skip
    text = shown(result(*many))
    assert "and 576 more; all of them are in --json and --report" in text
    assert "The 24 longest of 600 gaps and stalls:" in text
    assert text.count("\n") < 120
    rows = re.findall(r"^ +(\d+) gap ", text, re.MULTILINE)
    assert rows == [str(number) for number in range(576, 600)]


@pytest.mark.parametrize(
    ("numbers", "text"), [([3], "3"), ([0, 1, 2, 5, 7, 8], "0–2, 5, 7–8"), ([], "")]
)
def test_ranges(numbers: Sequence[int], text: str) -> None:
    assert ranges(numbers) == named(numbers) == text


def test_many_names_become_a_number() -> None:
    assert named(range(0, 200, 2)) == "100 partitions"


def test_leaders_that_change_together_are_told_together() -> None:
    one, two, three = (LeaderChange(1.0, p, old, new, 4) for p, old, new in
                       ((0, 1, 2), (1, 1, 2), (2, 3, -1)))  # fmt: skip
    assert changed([one, three, two]) == "leader of 0–1: 1 → 2, of 2: 3 → none"
    many = [LeaderChange(1.0, p, p, p + 1, 4) for p in range(6)]
    assert changed(many) == "other leaders of 0–5"


def test_units() -> None:
    assert [length(s) for s in (0.0305, 9.25, 600.0)] == ["30 ms", "9.2 s", "10.0 min"]
    assert [size(b) for b in (10, 2048, 5 * 2**20, 3 * 2**30)] == [
        "10 B",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]


def test_times_as_people_write_them() -> None:
    written = [seconds(text) for text in ("90", "90s", "500ms", "1.5m", "2h", None)]
    assert written == [90, 90, 0.5, 90, 7200, None]
    for text in ("", "s", "1d", "-1s", "nan", "inf", "1 s s"):
        with pytest.raises(typer.BadParameter, match="is no time"):
            seconds(text)


def test_an_error_is_told_in_one_line() -> None:
    class BrokerError(Exception):
        pass

    assert told(BrokerError("[Error 29] BrokerError: no")) == "BrokerError: no"
    assert told(BrokerError("Request 'very long' failed with response 'x'.")) == "BrokerError"
    assert told(BrokerError("closed")) == "BrokerError: closed"


def test_the_page_has_what_was_found() -> None:
    at_once = (LeaderChange(112.0, 1, 1, 3, 11), LeaderChange(112.0, 2, 1, 3, 4))
    found = result(partition(3, gaps=(LONG,), resumed_s={1: 13.25}), leader_changes=at_once)
    run = page(found)
    assert run.resumed == {(found.topic, 3): [LONG.begin_s + 13.25]}
    assert [mark.text for mark in run.marks] == ["leader of 1–2: 1 → 3"]
    assert (run.delivery, run.delivery_timeout_s) == (CLEAN, 120.0)


# --- the live screen ------------------------------------------------------------------------------


def screen(
    width: int, terminal: bool, partitions: tuple[int, ...] = (0, 1)
) -> tuple[Screen, Watch, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, width=width, height=20, force_terminal=terminal, no_color=True)
    watch = Watch({}, Canary("t", partitions, (1, 2), made=True))
    watch.leaders = {p: Leader(1, 0, (1, 2), (1, 2)) for p in partitions}
    return Screen(console, partitions, Ledger(partitions), watch), watch, file


OPEN_GAP = gap(0, phase=Phase.UNAVAILABLE, ended_by=None, outcome=None, duration_s=3.2)
OPEN_STALL = stall(1, ended_by=None)


@pytest.mark.parametrize("width", [80, 140])
def test_the_panel_shows_leaders_gaps_and_stalls(width: int) -> None:
    shows, _, file = screen(width, terminal=True)
    with shows:
        shows.footer("9 s to go")
        shows.refresh([OPEN_GAP], [OPEN_STALL])
    text = file.getvalue()
    assert "gap 3.2 s unavailable" in text
    assert "stall 3.0 s (follower)" in text
    assert "open gaps 1 · stalls 1" in text
    assert "9 s to go" in text
    assert "…" not in text


def test_of_many_partitions_the_troubled_are_shown() -> None:
    shows, _, file = screen(80, terminal=True, partitions=tuple(range(100)))
    with shows:
        shows.refresh([replace(OPEN_GAP, partition=99)], [])
    text = file.getvalue()
    assert "gap 3.2 s unavailable" in text
    assert "and 87 more partitions" in text


def told_lines(
    steps: Sequence[tuple[Sequence[Gap], Sequence[Stall]]], changes: Sequence[LeaderChange] = ()
) -> list[str]:
    shows, watch, file = screen(80, terminal=False)
    watch.changes += changes
    with shows:
        for gaps, stalls in steps:
            shows.refresh(gaps, stalls)
    return [line.split(" s  ", 1)[1] for line in file.getvalue().splitlines()]


def test_without_a_terminal_what_happens_is_told_once_in_lines() -> None:
    over = replace(OPEN_GAP, ended_by=LONG.ended_by, phase=None, outcome=GapOutcome.ABSORBED)
    calm = replace(OPEN_STALL, ended_by=stall(1).ended_by)
    changes = [LeaderChange(1.0, 0, 1, 2, 4), LeaderChange(1.0, 1, 1, 2, 4)]
    assert told_lines(
        [
            ([OPEN_GAP], [OPEN_STALL]),
            ([OPEN_GAP], [OPEN_STALL]),
            ([over], [calm]),
            ([over], [calm]),
        ],
        changes,
    ) == [
        "leader of 0–1: 1 → 2",
        "gap: 0 (not_enough_replicas, leader 1)",
        "stall: 1 (for a follower)",
        "gap over: 0 after 3.2 s",
        "stall over: 1 after 3.0 s",
    ]


def test_what_began_and_ended_between_two_looks_is_told_too() -> None:
    gaps = [gap(0, number=1), gap(1, number=2, duration_s=0.02)]
    assert told_lines([(gaps, [stall(1)]), (gaps, [stall(1)])]) == [
        "gap: 0–1 (not_enough_replicas, leader 1)",
        "gap over: 0–1 after at most 12.3 s",
        "stall: 1 (for a follower)",
        "stall over: 1 after 3.0 s",
    ]


def test_a_pipe_hears_from_time_to_time_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill_screen, "STATUS_S", 0.0)
    assert told_lines([([], [])]) == [
        "acknowledged 0 · waiting 0 · failed 0 · open gaps 0 · stalls 0"
    ]


# --- moves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leader", "order"),
    [
        (Leader(1, 0, (1, 2, 3), (1, 2, 3)), (2, 3, 1)),
        (Leader(2, 0, (2, 3, 1), (1, 2, 3)), (3, 1, 2)),
        (Leader(3, 0, (1, 2, 3), (1, 2, 3)), (1, 2, 3)),
        (Leader(2, 0, (1, 2, 3), (2, 1)), (1, 2, 3)),
        (Leader(1, 0, (1, 2, 3), (1,)), None),
        (Leader(-1, 0, (1, 2, 3), (1, 2)), None),
        (Leader(1, 0, (1,), (1,)), None),
    ],
)
def test_the_next_in_sync_replica_leads(leader: Leader, order: tuple[int, ...] | None) -> None:
    assert rotated(leader) == order


# --- the reader -----------------------------------------------------------------------------------


class Shelf:
    """As much of a consumer as the reader needs."""

    def __init__(self, *records: tuple[int, list[tuple[str, bytes]], bytes]) -> None:
        self._records = [
            SimpleNamespace(offset=offset, headers=headers, value=value)
            for offset, headers, value in records
        ]

    def assign(self, _partitions: object) -> None: ...

    def seek(self, _partition: object, _offset: int) -> None: ...

    def poll(self, timeout_ms: int) -> dict[TopicPartition, Any]:
        assert timeout_ms > 0
        return {TopicPartition("t", 0): self._records}


def test_of_two_drills_on_one_topic_each_reads_its_own() -> None:
    ledger = ledger_of(5)
    shelf: Any = Shelf(
        (4, [(MARK, b"other")], encode(0)), (5, [(MARK, b"own")], encode(0)), (6, [], b"foreign")
    )
    Reader(shelf, Canary("t", (0,), (1,), made=True), "own", ledger).check()
    assert ledger[0].position == 6
    assert ledger.judge() == Delivery(1, 0, 0, 0, 0)


# --- a topic that is given, as brokers with ACLs describe it --------------------------------------


class Described:
    """As much of an admin client as the look at a given topic needs."""

    def __init__(self, **topic: Any) -> None:
        self._topic = {
            "error_code": 0,
            "is_internal": False,
            "authorized_operations": ["READ", "WRITE", "DESCRIBE"],
            "partitions": [{"partition_index": 0, "leader_id": 1}],
            **topic,
        }

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": 1}]}

    def describe_topics(self, _names: list[str]) -> list[dict[str, Any]]:
        return [self._topic]


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ({"authorized_operations": ["READ", "DESCRIBE"]}, "the user needs Write on it"),
        ({"authorized_operations": ["DESCRIBE"]}, "the user needs Read and Write on it"),
        ({"is_internal": True}, "is Kafka's own topic"),
        ({"partitions": [{"partition_index": 4, "leader_id": -1}]}, "no leader for canary-4"),
        ({"error_code": 5}, "cannot be used: LeaderNotAvailableError"),
    ],
)
def test_a_topic_that_cannot_be_used(topic: dict[str, Any], message: str) -> None:
    admin: Any = Described(**topic)
    with pytest.raises(DrillError, match=message):
        open_canary(admin, {}, "canary", None, "1a2b3c4d")


class Refusing:
    """An admin client of a cluster where no topic can be made."""

    def __init__(self, error_code: int, error_message: str | None) -> None:
        self._answer = {"error_code": error_code, "error_message": error_message}

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": 1}, {"broker_id": 3}]}

    def create_topics(self, _topics: object, *, raise_errors: bool) -> dict[str, Any]:
        assert not raise_errors
        return {"topics": [self._answer]}


@pytest.mark.parametrize(
    ("code", "told_why", "message"),
    [
        (38, "only 2 are up.", "only 2 are up; wait until all brokers are up, or name one that is"),
        (38, None, "InvalidReplicationFactorError; wait until"),
        (44, "a policy forbids it", "a policy forbids it; name one that is there with --topic"),
        (29, None, "the user needs Create on topics"),
    ],
)
def test_a_topic_that_cannot_be_made(code: int, told_why: str | None, message: str) -> None:
    admin: Any = Refusing(code, told_why)
    with pytest.raises(DrillError, match=message):
        open_canary(admin, {}, None, 1, "1a2b3c4d")
