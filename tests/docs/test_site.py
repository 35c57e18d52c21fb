"""The site finds what its pages name: pages in the nav, sections, commands and options. mkdocs
itself, which `make docs` runs, says the same and more.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from docs import pages
from outlast.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs"
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
NOT_IN_NAV = {f"decisions/{path.name}" for path in (FOLDER / "decisions").glob("*.md")}
DOCUMENTS = sorted(FOLDER.rglob("*.md"))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_page_has_one_place_in_the_nav() -> None:
    named = re.findall(r": (\S+\.md)$", NAV, re.MULTILINE)
    there = {page.relative_to(FOLDER).as_posix() for page in DOCUMENTS} | pages.BROUGHT.keys()
    assert len(named) == len(set(named))
    assert set(named) | NOT_IN_NAV == there


def test_the_nav_has_four_parts() -> None:
    parts = re.findall(r"^  - (\S+):$", NAV, re.MULTILINE)
    assert parts == ["Tutorial", "How-to", "Explanation", "Reference"]


def anchors(page: Path) -> set[str]:
    """What a link may name behind #, as mkdocs makes it of the headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(text_of(page)), re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        found.add(re.sub(r"[-\s]+", "-", words.strip().lower()))
    return found


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_sections_are_named_as_on_the_site(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b_c` (d)\n\n```bash\n# no heading\n```\n\n## [E](f.md), g\n")
    assert anchors(page) == {"a-b_c-d", "e-g"}


def test_links_to_sections_lead_to_one() -> None:
    dead = [
        f"{page.relative_to(FOLDER)}: {target}#{anchor}"
        for page in DOCUMENTS
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", text_of(page))
        if anchor not in anchors((page.parent / target) if target else page)
    ]
    assert dead == []


@pytest.mark.parametrize(
    ("name", "text", "on_the_site"),
    [
        ("drill.md", "[a](../benchmarks/README.md#b)", "[a](benchmarks.md#b)"),
        ("how-to/workers.md", "[a](../../CHANGELOG.md)", "[a](../changelog.md)"),
        ("how-to/workers.md", "[a](../lifecycle.md#fork)", "[a](../lifecycle.md#fork)"),
        ("changelog.md", "[a](docs/swap.md)", "[a](swap.md)"),
        ("field-cases.md", "[`a`](../tests/field/oracles.py)", "`a`"),
        ("index.md", "![a](report.png) [b](#c) [d](https://e.f)", None),
    ],
)
def test_links_out_of_the_folder_are_the_sites(
    name: str, text: str, on_the_site: str | None
) -> None:
    assert pages.relinked(text, name) == (on_the_site or text)


def test_long_names_in_tables_may_break() -> None:
    cell = "<td><code>outlast_gap_duration_seconds</code></td>"
    broken = "<td><code>outlast_<wbr>gap_<wbr>duration_<wbr>seconds</code></td>"
    assert pages.on_page_content(f"{cell}\n<code>outlast_gap_duration_seconds</code>") == (
        f"{broken}\n<code>outlast_gap_duration_seconds</code>"
    )


def told_commands() -> Iterator[tuple[str, str]]:
    """Page and arguments of each `outlast …` in a block of code."""
    for page in DOCUMENTS:
        flags = re.MULTILINE | re.DOTALL
        for block in re.findall(r"^```(?:console|bash)\n(.*?)^```$", text_of(page), flags):
            whole = block.replace("\\\n", "")
            for line in re.findall(r"^(?:\$ )?(outlast [^|#>\n]*)", whole, re.MULTILINE):
                yield page.name, line


def test_commands_and_options_that_pages_name_are_there() -> None:
    group = typer.main.get_group(app)
    told = list(told_commands())
    assert len(told) > 20
    for page, line in told:
        words = shlex.split(line)[1:]
        if words[0].startswith("-") or words[0] == "run":  # what comes then is another program's
            continue
        command = group.commands.get(words[0])
        assert command is not None, f"{page}: {line}"
        known = {
            name for option in command.params for name in (*option.opts, *option.secondary_opts)
        }
        named = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert named <= known, f"{page}: {line}"
