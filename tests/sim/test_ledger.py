"""The ledger finds what it is there to find: one test for each lie."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outlast.testing.ledger import ACKED, NEVER_SENT, NOT_ACCEPTED, UNKNOWN, Ledger


@dataclass
class Record:
    offset: int
    value: bytes
    key: bytes | None = None


class Run:
    """A ledger with three records of t-0, taken in order, and a log to fill."""

    def __init__(self, count: int = 3) -> None:
        self.ledger = Ledger("Replay: this")
        self.entries = [self.ledger.sending("t", float(i)) for i in range(count)]
        self.log: list[Record] = []
        for entry in self.entries:
            self.ledger.taken(entry, 0, entry.sent_at)

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.log.append(Record(len(self.log), self.entries[number].value))

    def ack(self, *numbers: int, shift: int = 0) -> None:
        for number in numbers:
            self.ledger.acked(self.entries[number], number + shift, 9.0)

    def findings(self, **options):
        return self.ledger.judge(lambda *_: self.log, [("t", 0)], **options).findings


def good() -> Run:
    run = Run()
    run.write(0, 1, 2)
    run.ack(0, 1, 2)
    return run


def test_a_truthful_run_has_no_findings():
    assert good().findings() == []


def test_every_finding_tells_how_to_replay_the_run():
    run = good()
    run.log.pop()
    [finding] = run.findings()
    assert finding.endswith("Replay: this")
    assert "record 2" in finding


def test_lost():
    run = good()
    run.log.pop()
    verdict = run.ledger.judge(lambda *_: run.log, [("t", 0)])
    assert (verdict.lost, verdict.acked) == (1, 3)
    assert "is in no log" in verdict.findings[0]
    assert run.findings(acks_survive=False) == []


def test_duplicated():
    run = good()
    run.write(2)
    verdict = run.ledger.judge(lambda *_: run.log, [("t", 0)])
    assert verdict.duplicated == 1
    assert run.findings(exactly_once=False) == []


def test_out_of_order():
    run = Run()
    run.write(0, 2, 1)
    run.ledger.acked(run.entries[0], 0, 9.0)
    run.ledger.acked(run.entries[2], 1, 9.0)
    run.ledger.acked(run.entries[1], 2, 9.0)
    verdict = run.ledger.judge(lambda *_: run.log, [("t", 0)])
    assert verdict.out_of_order == 1
    assert run.findings(in_order=False) == []


def test_without_idempotence_only_first_copies_of_what_was_acknowledged_have_a_place():
    run = Run()
    run.write(0, 2, 0, 1)
    run.ledger.acked(run.entries[0], 0, 9.0)
    run.ledger.acked(run.entries[2], 1, 9.0)
    run.ledger.failed(run.entries[1], UNKNOWN, 9.0)
    assert run.findings(exactly_once=False) == []
    assert len(run.findings(exactly_once=True)) == 3


def test_another_offset_than_was_told():
    run = Run()
    run.write(0, 1, 2)
    run.ack(0, 1, 2, shift=1)
    assert len(run.findings()) == 3


def test_an_offset_that_was_not_told():
    run = Run(1)
    run.write(0)
    run.ledger.acked(run.entries[0], -1, 9.0)
    assert len(run.findings()) == 1
    assert run.findings(offsets_told=False) == []


def test_never_settled_and_settled_twice():
    run = Run()
    run.write(0, 1, 2)
    run.ack(0, 1, 1)
    assert [f.split(") ")[1].split(".")[0] for f in run.findings()] == [
        "was settled 2 times",
        "was settled never",
    ]


@pytest.mark.parametrize("outcome", [NEVER_SENT, NOT_ACCEPTED])
def test_a_failure_that_is_in_the_log_after_all(outcome):
    run = Run(1)
    run.ledger.failed(run.entries[0], outcome, 9.0)
    assert run.findings() == []
    run.write(0)
    assert "yet it is at [0]" in run.findings()[0]


def test_a_refused_send_that_is_in_the_log():
    ledger = Ledger()
    entry = ledger.sending("t", 0.0)
    ledger.refused(entry, 1.0)
    log = [Record(0, entry.value)]
    assert ledger.judge(lambda *_: [], [("t", 0)]).findings == []
    assert any("told 'refused'" in f for f in ledger.judge(lambda *_: log, [("t", 0)]).findings)


def test_unknown_may_be_there_or_not_but_not_twice():
    for copies, findings in ((0, 0), (1, 0), (2, 1)):
        run = Run(1)
        run.ledger.failed(run.entries[0], UNKNOWN, 9.0)
        run.write(*[0] * copies)
        assert len(run.findings()) == findings, copies


def test_a_record_that_nobody_sent_or_another_key():
    run = good()
    run.log.append(Record(3, b"stranger"))
    run.log[0].key = b"k"
    assert len(run.findings()) == 2


def test_only_the_first_word_about_a_record_counts():
    run = Run(1)
    run.ack(0)
    run.ledger.failed(run.entries[0], UNKNOWN, 9.5)
    assert run.entries[0].outcome == ACKED
    assert run.ledger.unsettled() == []
