"""docs/field-cases.md names tests that exist, and every field case that has a test."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CASES = 62
PAGE = (TESTS.parent / "docs" / "field-cases.md").read_text(encoding="utf-8")


def named() -> list[tuple[str, str]]:
    return re.findall(r"`([a-z_]+/test_\w+\.py)(?:::([\w:]+))?`", PAGE)


def test_what_the_table_names_exists() -> None:
    assert len(named()) >= 30
    for path, test in named():
        assert (TESTS / path).exists(), path
        text = (TESTS / path).read_text(encoding="utf-8")
        for part in filter(None, test.split("::")):
            found = re.search(rf"^ *(class|def|async def) {part}\b", text, re.MULTILINE)
            assert found, f"{path}::{test}"


def test_every_case_with_a_test_has_its_row() -> None:
    rows = re.findall(r"^\| (B\d\d) ", PAGE, re.MULTILINE)
    assert len(rows) == len(set(rows)) == CASES
    for file in (TESTS / "field").glob("test_b*.py"):
        for case in re.findall(r"def test_(b\d\d)_", file.read_text(encoding="utf-8")):
            assert case.upper() in rows, f"{file.name} tests {case}, which has no row"
