"""The command line: one file per command. `main` runs all but `run`, which comes before it, in
`_outlast_command.py`.

Rule: nothing is imported before it is needed, so that a missing extra is one clear line and
`outlast --help` is quick.
"""

from __future__ import annotations

import contextlib
import io
import sys

EXTRA = frozenset({"typer", "rich", "jinja2"})


def main() -> None:
    """Run the command that the arguments name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError):  # a terminal that knows no arrows gets a "?"
                stream.reconfigure(errors="replace")
    try:
        import rich  # noqa: F401  (typer does without, the commands do not)

        from outlast.cli.app import app

        app()
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        sys.exit(
            f"outlast: its commands need {error.name}, which is not installed. "
            "Install them with: pip install 'outlast[cli]'. "
            "`outlast run` and `outlast path` need nothing."
        )
