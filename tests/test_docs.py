"""What the documents say is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import tables

FOLDER = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize("name", tables.TABLES)
def test_the_table_is_made_from_the_code(name: str) -> None:
    page, _ = tables.TABLES[name]
    text = (FOLDER / page).read_text(encoding="utf-8")
    assert tables.rewritten(name, text) == text, "run `make docs`"


@pytest.mark.parametrize("path", tables.FILES, ids=lambda path: path.name)
def test_the_file_is_made_from_the_code(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == tables.FILES[path](), "run `make docs`"


def test_a_table_that_says_something_else_is_found() -> None:
    text = (FOLDER / "failure-semantics.md").read_text(encoding="utf-8")
    false = text.replace("| 19 | NOT_ENOUGH_REPLICAS | RETRY |", "| 19 | NOT_ENOUGH_REPLICAS | X |")
    assert false != text
    assert tables.rewritten("verdicts", false) == text


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*FOLDER.parent.glob("*.md"), *FOLDER.rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
