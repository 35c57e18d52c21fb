"""The list of kafka-python's tests, and what is printed of a run (which itself needs an export)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upstream.run import Outcome, listed, main, table


def test_the_list_is_whole() -> None:
    tests = listed()
    assert sum(test.count for test in tests) == 65
    assert sum(test.count for test in tests if test.needs_broker) == 17
    assert {test.file.split("/")[1] for test in tests} == {"producer", "integration"}


def test_the_table_counts_what_passed_of_what_is_listed() -> None:
    tests = [test for test in listed() if test.file.endswith(("acks.py", "test_producer.py"))]
    both = [test.test.rpartition("::")[2] for test in tests]
    theirs = Outcome({tests[0].file: both}, {}, "")
    ours = Outcome({tests[0].file: both[:1]}, {tests[0].file: both[1:]}, "")
    assert [line.split()[-2:] for line in table(tests, [theirs, ours]).splitlines()[1:]] == [
        ["2/2", "1/2"],
        ["2/2", "1/2"],
    ]


def test_what_is_no_export_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "not an export of kafka-python" in capsys.readouterr().err
