"""The commands and their options. What a command does is in the file of its name."""

from __future__ import annotations

import os
from ast import literal_eval
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from outlast.cli.streams import standard_streams


class Commands(TyperGroup):
    """All commands, help included: none of them shows a traceback because of a closed pipe."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the one that the arguments name."""
        with standard_streams():
            return super().main(*args, **kwargs)


app = typer.Typer(
    cls=Commands,
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


def _to_be_written(path: Path | None) -> Path | None:
    """Better told before a run than after it."""
    if path is not None:
        from outlast.cli.report import unwritable

        if why := unwritable(path):
            raise typer.BadParameter(why)
    return path


Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        callback=_to_be_written,
        help="Put what was found there, too, as one HTML page.",
    ),
]


# What `check` and `drill` are told of the producer, the cluster and the application.
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers", "--bootstrap", metavar="HOST:PORT,…", help="Where the cluster is."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the producer; may be repeated."),
]
ConfigFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Its settings: JSON, or lines NAME=VALUE.")
]
EnvPrefix = Annotated[
    str | None, typer.Option(metavar="PREFIX", help="Its settings: variables PREFIXNAME=VALUE.")
]
Rate = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="What is sent: records/s, 5000, or bytes/s, 2MB."),
]
RecordBytes = Annotated[
    int | None, typer.Option(min=1, help="Size of a record, for --rate. Else 1000.")
]


@app.command()
def demo(
    rate: Annotated[
        int, typer.Option(min=1, max=2000, help="Records per second and partition.")
    ] = 300,
    seed: Annotated[int, typer.Option(help="Of the mock cluster's chances.")] = 1,
    report: Report = None,
) -> None:
    """Kill a leader under load and see the gaps: nothing to install, nothing to start.

    Starts a 3-broker mock cluster in this process, writes to six partitions, moves a leader, kills
    a leader and lets it come back, reads everything back and tells what the failover cost.
    Exit code 1 if a record was lost, duplicated or out of order.
    """
    from outlast.cli.demo import run

    raise typer.Exit(run(rate=rate, seed=seed, report=report))


def _seeds(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    try:
        seeds = int(first), int(last if colon else first)
    except ValueError:
        seeds = (1, 0)
    if not 0 <= seeds[0] <= seeds[1]:
        raise typer.BadParameter(f"{text!r} is no range of seeds; write the first and last, 1:5000")
    return seeds


@app.command()
def simulate(
    seeds: Annotated[
        str, typer.Option(metavar="FIRST:LAST", help="The runs to make, both ends included.")
    ] = "1:1000",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Replay this run alone and tell its story.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print every step.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to share the runs.")] = 1,
    transactions: Annotated[
        bool, typer.Option("--transactions", help="The load are transactions.")
    ] = False,
) -> None:
    """Thousands of failovers a minute on a virtual clock, replayable by seed.

    Each seed draws a cluster, a network, a producer's settings, a load and accidents, and lets the
    real engine and the mock cluster play it. Afterwards the logs are compared with what was told of
    every record, and with --transactions what a reader of committed data sees with what was told
    of every transaction. Exit code 1 if a record was lost, doubled, out of order, or told wrongly,
    a transaction visible that should not be, or in part, or if anything did not settle after all
    was healed.
    """
    from outlast.cli.simulate import run_one, run_range

    if seed is not None:
        raise typer.Exit(run_one(seed, trace=trace, transactions=transactions))
    if trace:
        raise typer.BadParameter("--trace prints one run: choose it with --seed")
    first, last = _seeds(seeds)
    raise typer.Exit(run_range(first, last, jobs=jobs, transactions=transactions))


def _topics(texts: list[str]) -> dict[str, int]:
    topics = {}
    for text in texts:
        name, _, partitions = text.partition(":")
        if not (partitions or "1").isdecimal():
            raise typer.BadParameter(f"{text!r} is no topic; write NAME:PARTITIONS, orders:6")
        topics[name] = int(partitions or 1)
    return topics


def _settings(texts: list[str]) -> dict[str, object]:
    values = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            values[name] = literal_eval(value)
        except (ValueError, SyntaxError):
            raise typer.BadParameter(
                f"{text!r} is no setting; write NAME=VALUE, the value as in Python: detect_s=3, "
                "auto_create_topics=True"
            ) from None
    return values


@app.command()
def cluster(
    nodes: Annotated[int, typer.Option(min=1, max=99, help="Brokers.")] = 3,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:PARTITIONS", help="A topic to begin with; may be repeated."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65_000, help="Of node 1; the others get the next ones. 0: any free ones."
        ),
    ] = 9092,
    host: Annotated[str, typer.Option(help="The address to listen on, and to tell.")] = "127.0.0.1",
    design: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Its clocks and its way to keep records: fast (the default), kraft, majority, "
            "detached, queue or hosted.",
        ),
    ] = None,
    kraft: Annotated[
        bool,
        typer.Option(
            "--kraft", help="--design kraft: as slow as a real cluster, 8 to 12 s to an election."
        ),
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A field of ClusterSettings; may be repeated."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the cluster's chances.")] = 1,
    prompt: Annotated[
        bool, typer.Option(help="Take commands from the terminal, or from a pipe until its end.")
    ] = True,
) -> None:
    """A mock Kafka cluster on TCP ports, for any client, with a prompt to upset it.

    Kill, stop, silence and start its nodes, move leaders, make requests fail: `help` at the
    prompt tells how. Exit code 1 if a port is in use, or a command from a pipe could not be obeyed.
    """
    from outlast.cli.cluster import run, settings
    from outlast.testing import MockCluster

    if kraft and design not in (None, "kraft"):
        raise typer.BadParameter(f"--kraft is --design kraft, and there is --design {design}")
    try:
        mock = MockCluster(
            nodes,
            topics=_topics(topic or []),
            settings=settings("kraft" if kraft else design or "fast", _settings(setting or [])),
            seed=seed,
            host=host,
            first_port=port or None,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        raise typer.Exit(run(mock, prompt=prompt))
    except OSError as error:
        typer.echo(f"outlast: {error.strerror}; choose others with --port", err=True)
        raise typer.Exit(1) from None


@app.command()
def dashboard(
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Print alert rules for Prometheus instead.")
    ] = False,
) -> None:
    """Print a Grafana dashboard for the metrics of outlast: outlast dashboard > outlast.json

    Gaps and stalls of each partition, whose time they took, what became of the records, and how
    much longer the buffer lasts. With --alerts: rules that tell of it. More in
    docs/observability.md.
    """
    from outlast.cli.dashboard import run

    raise typer.Exit(run(alerts=alerts))


@app.command()
def check(
    bootstrap_servers: Bootstrap = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Look at this topic; may be repeated. Else at all.")
    ] = None,
    setting: Settings = None,
    config: ConfigFile = None,
    env_prefix: EnvPrefix = None,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL|-", help="A running producer: its health().to_dict() as JSON."
        ),
    ] = None,
    rate: Rate = None,
    record_bytes: RecordBytes = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Warnings, and what cannot be read, count too.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds to wait for an answer.")
    ] = 10.0,
) -> None:
    """Does this producer outlast what can happen to this cluster? Changes nothing.

    Reads the settings of brokers, topics and producer, and tells how long
    each kind of failure can last, whether records survive it, and what to
    set instead. docs/check.md has all the rules.

    Exit code 0 if there is no error, 1 with --strict if there is a warning,
    2 if there is an error, 3 if the cluster could not be asked.
    """
    from outlast.cli.check import quieten, rate as load, run
    from outlast.cli.check_settings import SettingsError, gather

    quieten()
    try:
        producer = gather(
            health=health,
            file=config,
            environment=os.environ,
            prefix=env_prefix,
            keywords=setting or [],
            bootstrap=bootstrap_servers,
        )
        given = None if rate is None else load(rate, record_bytes)
    except (SettingsError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(
        run(producer, topics=topic, load=given, json=json, strict=strict, timeout_s=timeout)
    )


@app.command()
def drill(
    bootstrap_servers: Bootstrap = None,
    setting: Settings = None,
    config: ConfigFile = None,
    env_prefix: EnvPrefix = None,
    topic: Annotated[
        str | None,
        typer.Option(help="Write to this one: empty, or a drill's. Else one is made and deleted."),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Of the topic that is made. Else 2 for each broker."),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="60s, 10m, 2h. Else until Ctrl-C.")
    ] = None,
    tick: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="A record to each partition so often. Else 50ms."),
    ] = None,
    move_leaders: Annotated[
        bool, typer.Option("--move-leaders", help="Move the topic's leaders, some at a time.")
    ] = False,
    move_every: Annotated[str, typer.Option(metavar="TIME", help="How often that is.")] = "5s",
    rate: Rate = None,
    record_bytes: RecordBytes = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Put all of it there as JSON.")
    ] = None,
    report: Report = None,
) -> None:
    """Measure what failovers of a cluster do to those who write and read.

    Writes a record to each partition of a topic of its own every tick and
    reads it back, while you stop, kill and start brokers (or --move-leaders
    moves its own). Shows gaps and stalls as they come, and at the end whose
    time they were, when reading went on, and whether the retry budget
    outlasts the longest. Touches no other topic. More in docs/drill.md.

    Exit code 0: all absorbed. 1: senders were told of failures, or what was
    acknowledged is not in the log as promised. 2: it could not be run.
    3: ended before all was known.
    """
    from outlast.cli.drill import run
    from outlast.cli.drill_plan import plan

    made = plan(
        bootstrap_servers=bootstrap_servers,
        settings=setting or [],
        config=config,
        env_prefix=env_prefix,
        topic=topic,
        partitions=partitions,
        duration=duration,
        tick=tick,
        move_every=move_every if move_leaders else None,
        rate=rate,
        record_bytes=record_bytes,
    )
    raise typer.Exit(run(made, json_file=json, report=report))


# These two are here to be listed: _outlast_command.py, which comes first, takes them itself.


@app.command(
    "run",
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
)
def run_swapped(context: typer.Context) -> None:
    """Run an application as python would, with its kafka.KafkaProducer swapped for outlast's.

    outlast run app.py, outlast run -m module; docs/swap.md tells more.
    """
    from _outlast_command import run

    run(context.args)


@app.command()
def path() -> None:
    """Print the folder to put first on PYTHONPATH where somebody else starts Python."""
    from _outlast_command import FOLDER

    typer.echo(FOLDER)
