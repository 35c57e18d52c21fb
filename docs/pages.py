"""What mkdocs does beside its own work: two pages from outside of docs/, links out of it, and long
names in tables.

The pages are also read where they lie, in a checkout: links lead to files. On the site a link to a
file that is no page of it becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs"
BROUGHT = {"changelog.md": ROOT / "CHANGELOG.md", "benchmarks.md": ROOT / "benchmarks/README.md"}
CODE_IN_CELL = re.compile(r"(?<=<code>)[^<\n]{12,}(?=</code>[^\n]*</td>)")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Two files from elsewhere are pages, too."""
    from mkdocs.structure.files import File

    for name, source in BROUGHT.items():
        files.append(File.generated(config, name, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """The page as the site has it."""
    return relinked(markdown, page.file.src_uri)


def relinked(markdown: str, name: str) -> str:
    """A page's text with its links as the site wants them; `name` is the page's place there."""
    source = BROUGHT.get(name, FOLDER / name)

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        place = place_of((source.parent / target).resolve())
        if place is None:
            return text
        return f"[{text}]({os.path.relpath(place, PurePosixPath(name).parent)}{anchor or ''})"

    return LINK.sub(link, markdown)


def on_page_content(html: str, **_: object) -> str:
    """Long names in tables may break behind their parts, and nowhere else (site.css)."""
    return CODE_IN_CELL.sub(lambda found: re.sub(r"(?<=[_.(])(?=\w)", "<wbr>", found[0]), html)


def place_of(path: Path) -> str | None:
    """Where on the site a file is; None: nowhere."""
    for name, source in BROUGHT.items():
        if path == source:
            return name
    return path.relative_to(FOLDER).as_posix() if path.is_relative_to(FOLDER) else None
