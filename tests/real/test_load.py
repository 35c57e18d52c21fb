"""The account can fail: each kind of damage to a log is told apart. Needs no Kafka."""

from __future__ import annotations

import pytest

from tests.real.load import CLEAN, Account, Ack, AckGap, Entry, Ledger, account, turn


def told(acked: dict[int, int], failed: tuple[int, ...] = ()) -> Ledger:
    """A ledger of partition 0: counter → offset of each ack, and counters that failed."""
    ledger = Ledger()
    ledger.sent[0] = [float(counter) for counter in range(len(acked) + len(failed))]
    for counter, offset in acked.items():
        ledger.acked(0, counter, offset)
    for counter in failed:
        ledger.failed(0, counter, TimeoutError())
    return ledger


def log(*counters: int, epochs: tuple[int, ...] = ()) -> dict[int, list[Entry]]:
    return {
        0: [
            Entry(offset, epochs[offset] if epochs else 0, counter)
            for offset, counter in enumerate(counters)
        ]
    }


def test_a_good_log_is_clean() -> None:
    assert str(account(told({0: 0, 1: 1, 2: 2}), log(0, 1, 2))) == CLEAN


@pytest.mark.parametrize(
    ("ledger", "found", "damage"),
    [
        (told({0: 0, 1: 1, 2: 2}), log(0, 1), {"lost": [(0, 2)], "misplaced": [(0, 2)]}),
        (told({0: 0, 1: 1}), log(0, 1, 1), {"duplicated": [(0, 1)]}),
        (told({0: 0, 1: 2, 2: 1}), log(0, 2, 1), {"out_of_order": [(0, 1)]}),
        (told({0: 1, 1: 1}), log(0, 1), {"misplaced": [(0, 0)]}),
        (told({0: 0}, failed=(1,)), log(0), {"failed": [(0, 1)]}),
    ],
    ids=["lost", "duplicated", "out of order", "misplaced", "failed"],
)
def test_each_damage_is_told(
    ledger: Ledger, found: dict[int, list[Entry]], damage: dict[str, list[tuple[int, int]]]
) -> None:
    assert account(ledger, found) == Account(**damage)
    assert str(account(ledger, found)) != CLEAN


def test_a_future_without_an_end_or_with_two_is_told() -> None:
    ledger = told({0: 0})
    ledger.sent[0].append(1.0)
    ledger.failed(0, 0, TimeoutError())
    found = account(ledger, log(0))
    assert found.settled_twice == [(0, 0)]
    ledger = told({0: 0})
    ledger.sent[0].append(1.0)
    assert account(ledger, log(0)).unsettled == 1


def test_the_log_tells_which_ack_was_the_new_leaders() -> None:
    ledger = told({0: 0, 1: 1, 2: 2, 3: 3})
    passage = turn(ledger, log(0, 1, 2, 3, epochs=(4, 4, 5, 5)), 0, new_epoch=5)
    assert passage.last_ack_s == ledger.acks[0][1].at_s
    assert passage.first_ack_s == ledger.acks[0][2].at_s


def test_the_longest_time_without_an_ack_counts_what_began_before_and_what_never_ended() -> None:
    ledger = Ledger(acks={0: {n: Ack(n, at_s) for n, at_s in enumerate((1.0, 5.0, 6.0, 9.0))}})
    assert ledger.longest_ack_gap(0, since_s=2.0, until_s=10.0) == AckGap(1.0, 5.0)
    assert ledger.longest_ack_gap(0, since_s=5.5, until_s=10.0) == AckGap(6.0, 9.0)
    assert ledger.longest_ack_gap(0, since_s=5.5, until_s=20.0) == AckGap(9.0, 20.0)
    assert ledger.longest_ack_gap(0, since_s=5.5, until_s=8.0) == AckGap(6.0, 8.0)
    assert ledger.longest_ack_gap(1, since_s=5.5, until_s=8.0) == AckGap(5.5, 8.0)


def test_the_longest_wait_is_a_record_s_from_its_sending_to_its_ack() -> None:
    acks = {0: Ack(0, 8.0), 1: Ack(1, 9.0), 2: Ack(2, 12.0)}
    ledger = Ledger(sent={0: [1.0, 4.0, 8.0, 9.0]}, acks={0: acks})
    assert ledger.longest_wait(0, since_s=0.0) == AckGap(1.0, 8.0)
    assert ledger.longest_wait(0, since_s=8.0) == AckGap(4.0, 9.0)
