"""What the report says: the worst thing first, and no more than is known."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.cli import report_words as words
from outlast.cli.report import Records
from outlast.cli.shares import client_s, cluster_s
from outlast.cli.verify import Delivery
from outlast.engine.messages import GapEnd, GapOutcome
from tests.cli.report_runs import gap, open_gap, plain, run, stall

STATES = {
    "Promise broken": "bad",
    "Gap open": "bad",
    "Records failed": "bad",
    "No end seen": "warning",
    "Not settled": "warning",
    "Stall open": "warning",
    "Absorbed": "good",
    "No gap": "good",
}
ONE = [gap("orders", 3, 9, 3.262)]
NONE: dict[str, Any] = {"gaps": [], "stalls": []}
PAUSED = "orders-3 stopped accepting"
ABANDONED: dict[str, Any] = {"outcome": GapOutcome.ABANDONED, "ended_by": GapEnd.ABANDONED}
COSTLY = gap("orders", 4, 9, 2, outcome=GapOutcome.REPORTED, records_expired=1_000)
TWO_OPEN = [open_gap("orders", 1, 8, 12), open_gap("orders", 2, 8, 11)]
WAITS = "No gap, but orders-1 waited 18 s for an ack"


@pytest.mark.parametrize(
    ("changes", "word", "sentence"),
    [
        ({"gaps": ONE}, "Absorbed", f"{PAUSED} for 3.26 s, and no record was lost."),
        (
            {},
            "Absorbed",
            "All 6 partitions stopped accepting for up to 3.19 s, and no record was lost.",
        ),
        (
            {"gaps": ONE, "delivery": None},
            "Absorbed",
            f"{PAUSED} for 3.26 s, and every record that met it was delivered.",
        ),
        (
            {"gaps": ONE, "records": Records(100, 90, 0)},
            "Not settled",
            f"{PAUSED} for 3.26 s, and some records are still under way.",
        ),
        (
            {"gaps": [gap("orders", 3, 9, 3.262, outcome=None)]},
            "Not settled",
            f"{PAUSED} for 3.26 s, and some records are still under way.",
        ),
        (
            {"gaps": [gap("orders", 3, 9, 3, **ABANDONED)]},
            "No end seen",
            f"{PAUSED}, and no end was seen of it.",
        ),
        (
            {"gaps": [*ONE, COSTLY]},
            "Records failed",
            "2 of 6 partitions stopped accepting for up to 3.26 s, and 1,000 records failed.",
        ),
        (
            {**NONE, "records": Records(10, 9, 1)},
            "Records failed",
            "No gap, but 1 record failed.",
        ),
        (
            {"gaps": [*ONE, open_gap("orders", 1, 8, 12)]},
            "Gap open",
            "orders-1 does not accept records, for 12 s so far.",
        ),
        (
            {"gaps": TWO_OPEN, "records": Records(9, 5, 2)},
            "Gap open",
            "2 of 6 partitions do not accept records, for 12 s so far, and 2 records failed.",
        ),
        (
            {"delivery": Delivery(100, 2, 0, 1, 0), "gaps": TWO_OPEN},
            "Promise broken",
            "2 acknowledged records are lost, 1 is there twice.",
        ),
        (
            {"delivery": Delivery(100, 0, 0, 0, 1)},
            "Promise broken",
            "1 acknowledged record is out of order.",
        ),
        (
            {"gaps": []},
            "No gap",
            "No gap, but 4 of 6 partitions waited up to 3.08 s for an ack.",
        ),
        (
            {"gaps": [], "stalls": [stall("orders", p, 2, 18) for p in range(6)]},
            "No gap",
            "No gap, but all 6 partitions waited up to 18 s for an ack.",
        ),
        (
            {"gaps": [], "stalls": [stall("orders", 1, 2, 18, ended_by=None)]},
            "Stall open",
            f"{WAITS}, and some still wait.",
        ),
        (NONE, "No gap", "No partition stopped accepting."),
        (
            {**NONE, "records": Records(10, 9, 0)},
            "Not settled",
            "No gap, but some records are still under way.",
        ),
    ],
)
def test_the_headline_says_the_worst_and_no_more_than_is_known(
    changes: dict[str, Any], word: str, sentence: str
) -> None:
    found = words.headline(run(**changes), partitions=6)
    assert (found.state, found.word, plain(found.sentence)) == (STATES[word], word, sentence)


def test_a_name_does_not_turn_the_sentence_round() -> None:
    turned = run(gaps=[gap("\u202egnp.exe", 0, 9, 3)])
    assert words.headline(turned, 6).sentence.startswith("\ufffdgnp.exe-0 stopped accepting")


def test_below_it_stands_why_whose_time_and_how_long_records_are_retried() -> None:
    assert plain(words.headline(run(gaps=ONE), 6).more) == (
        "Longest on orders-3: the connection to the leader was lost; node 3 took over from node 2. "
        "The cluster’s share of it was 2.94 to 3.10 s, the client’s 98 to 326 ms. "
        "Records are retried for 2 min, 37 times as long. "
        "4 partitions stalled for up to 3.08 s: nothing was refused, but a follower was late."
    )


@pytest.mark.parametrize(
    ("it", "end"),
    [
        (open_gap("orders", 1, 8, 12), "for 2 min: 108 s of it are left."),
        (gap("orders", 1, 0, 121), "for 2 min: not long enough for it."),
        (gap("orders", 1, 0, 100), "for 2 min, 20 s longer than that."),
    ],
)
def test_the_retry_budget_is_held_against_the_longest_gap(it: Any, end: str) -> None:
    more = plain(words.headline(run(gaps=[it], stalls=[]), 6).more)
    assert more.endswith(f"Records are retried {end}")


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0.0, "0 ms"),
        (0.000_4, "0.4 ms"),
        (0.004_25, "4.2 ms"),
        (0.009_96, "10 ms"),
        (0.999_4, "999 ms"),
        (0.999_6, "1.00 s"),
        (3.262, "3.26 s"),
        (9.996, "10 s"),
        (31.34, "31.3 s"),
        (119.96, "2 min"),
        (123.0, "2 min 3 s"),
        (3599.6, "1 h"),
        (5400, "1 h 30 min"),
    ],
)
def test_times_have_the_digits_that_count(value_s: float, text: str) -> None:
    assert plain(words.seconds(value_s)) == text


@pytest.mark.parametrize(
    ("least_s", "most_s", "text"),
    [
        (0.0, 0.0, "0 ms"),
        (0.0, 0.012, "at most 12 ms"),
        (3.24, 3.26, "3.24 to 3.26 s"),
        (3.261, 3.262, "3.26 s"),
        (0.5, 1.5, "500 ms to 1.50 s"),
        (61.5, 139.0, "61.5 s to 2 min 19 s"),
    ],
)
def test_a_range_says_its_unit_once_where_that_is_clear(
    least_s: float, most_s: float, text: str
) -> None:
    assert plain(words.between(least_s, most_s)) == text


def test_of_an_open_gap_nobody_knows_yet_whose_time_it_is() -> None:
    it = open_gap("orders", 1, 8, 12)
    assert cluster_s(it) == (0.0, 12)
    assert client_s(it) == (0.0, 12)
