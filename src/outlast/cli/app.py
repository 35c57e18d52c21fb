"""The commands and their options. What a command does is in the file of its name."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

app = typer.Typer(
    help="A Kafka producer whose sends outlast a failover, and which tells what the failover did.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outlast {version('outlast')}")
        raise typer.Exit


@app.callback()
def _outlast(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None: ...


@app.command()
def demo(
    rate: Annotated[
        int, typer.Option(min=1, max=2000, help="Records per second and partition.")
    ] = 300,
    seed: Annotated[int, typer.Option(help="Of the mock cluster's chances.")] = 1,
) -> None:
    """Kill a leader under load and see the gaps: nothing to install, nothing to start.

    Starts a 3-broker mock cluster in this process, writes to six partitions, moves a leader, kills
    a leader and lets it come back, reads everything back and tells what the failover cost.
    Exit code 1 if a record was lost, duplicated or out of order.
    """
    from outlast.cli.demo import run

    raise typer.Exit(run(rate=rate, seed=seed))
