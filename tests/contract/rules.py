"""The table of docs/contract.md: what brokers answer, rule by rule. The tests hold both worlds to
it, so a row that is not true fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
EQUAL = "equal"
_SECTION = re.compile(r"^## .*`tests/contract/(test_\w+)\.py`", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. `mock` is `EQUAL` where the mock answers as a real broker does."""

    module: str  # the file with its test
    text: str
    real: str
    mock: str
    note: str  # facts of docs/kafka-facts.md; why the mock differs

    def answer_of(self, kind: str) -> str:
        """The answer of 'mock' or 'real'."""
        return self.real if kind == "real" or self.mock == EQUAL else self.mock


def rules() -> Iterator[Rule]:
    """Every row of the page."""
    parts = _SECTION.split(PAGE.read_text(encoding="utf-8"))
    for module, text in zip(parts[1::2], parts[2::2], strict=True):
        rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
        for row in rows:
            told, real, mock, note = (cell.strip() for cell in row.strip("|").split(" | "))
            yield Rule(module, told, real.strip("`"), mock.strip("`"), note)


RULES = {rule.text: rule for rule in rules()}
