"""`outlast cluster`: the mock cluster on TCP ports, for any client, with a prompt to upset it.

On a terminal it asks for commands; from a pipe it takes them line by line, repeats them, and ends
when the pipe does. Without a prompt it serves until it is interrupted.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from outlast.cli.interrupts import heard_by
from outlast.cli.prompt import Prompt, PromptError, Quit
from outlast.testing import DESIGNS, ClusterSettings, MockCluster

PROMPT = "outlast> "


def settings(design: str, chosen: dict[str, Any]) -> ClusterSettings:
    """The cluster's settings: a preset, and on top of it what was chosen by name.

    Raises:
        ValueError: there is no such preset or setting, or it does not allow the value.
    """
    if design not in DESIGNS:
        raise ValueError(f"there is no design {design!r}; there are: {', '.join(DESIGNS)}")
    known = [field.name for field in fields(ClusterSettings)]
    for name in chosen:
        if name not in known:
            raise ValueError(f"there is no setting {name!r}; there are: {', '.join(known)}")
    return replace(DESIGNS[design], **chosen)


def run(cluster: MockCluster, *, prompt: bool) -> int:
    """Serve, and obey; the process's exit code. It is 1 if a line of a pipe could not be obeyed.

    Raises:
        OSError: a port is in use.
    """
    console = Console(highlight=False, soft_wrap=True)
    errors = Console(highlight=False, soft_wrap=True, stderr=True)
    with cluster:
        console.print(f"bootstrap servers: {cluster.bootstrap_servers}")
        with contextlib.suppress(KeyboardInterrupt), heard_by():
            if not prompt:
                threading.Event().wait()
            return _talk(Prompt(cluster), console, errors)
    return 0


def _talk(prompt: Prompt, console: Console, errors: Console) -> int:
    interactive = sys.stdin.isatty()
    if interactive:
        console.print(Text("'help' lists the commands, Ctrl-D ends the cluster", "dim"))
    obeyed = True
    with contextlib.suppress(Quit, EOFError):
        for line in _typed() if interactive else _piped(console):
            obeyed &= _obey(prompt, line, console, errors)
    return 0 if obeyed or interactive else 1


def _obey(prompt: Prompt, line: str, console: Console, errors: Console) -> bool:
    try:
        shown = prompt.obey(line)
    except PromptError as error:
        errors.print(Text(str(error), "red"))
        return False
    if shown is not None:
        console.print(shown)
    return True


def _typed() -> Iterator[str]:
    """Lines until Ctrl-D, which raises EOFError."""
    with contextlib.suppress(ImportError):  # history and editing, where the platform has it
        import readline  # noqa: F401
    while True:
        yield input(PROMPT)


def _piped(console: Console) -> Iterator[str]:
    line = None
    for line in sys.stdin:
        if line.strip():
            console.print(Text(PROMPT + line.strip(), "dim"))
        yield line
    if line is None:
        console.print("there was nothing to read; --no-prompt serves until it is interrupted")
