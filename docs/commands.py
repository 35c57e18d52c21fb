"""The commands and their options, as the command line itself tells them, for docs/reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from outlast.cli.app import app


def reference() -> str:
    """A section for each command: what it does, and its options."""
    group: Any = typer.main.get_command(app)
    return "\n\n".join(
        part for name, command in group.commands.items() for part in _of(name, command)
    )


def _of(name: str, command: Any) -> Iterator[str]:
    yield f"### outlast {name}"
    for paragraph in command.help.split("\n\n"):
        yield _told(paragraph)
    rows = [_option(option) for option in command.params]
    if rows:
        yield "\n".join(("| option | default | what it does |", "| --- | --- | --- |", *rows))


def _told(paragraph: str) -> str:
    """One line, where the page may break it as it likes; documents that it names are links."""
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](../\1)", " ".join(paragraph.split()))


def _option(option: Any) -> str:
    names = " ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.metavar:
        names += f" `{option.metavar}`".replace("|", r"\|")
    default = "" if option.default in (None, False) else f"`{_shown(option)}`"
    return f"| {names} | {default} | {option.help} |"


def _shown(option: Any) -> str:
    return option.opts[0] if option.default is True else str(option.default)
