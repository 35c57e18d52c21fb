"""What a failover costs each client: five ways to lose a leader, on a real cluster and on the mock.

A leader is moved away, stopped in order, killed, or silenced (and woken when all have recovered);
or all brokers crash and come back. Each client is a process of its own. Where the cluster itself
takes seconds, several clients witness the event at once, on partitions of their own that are placed
alike: what the cluster does is then the same for all of them.

    python -m benchmarks.failover --events sigterm,sigkill --rounds 5
    python -m benchmarks.failover --tables runs.jsonl

One JSON line per client and event. The tables, in Markdown, are made from such lines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import steady, summary
from benchmarks.clients import CLIENTS, Load
from benchmarks.scenarios import Target
from benchmarks.summary import Run
from benchmarks.three_nodes import Cluster, Move, opened, victim_of, watching
from tests.real.kafka_cluster import until
from tests.real.load import Ledger, Log, account, read_back
from tests.real.metadata import Watch

MIN_ISR = 2
BEFORE_S = 3.0  # of steady acks before the event
AFTER_S = 3.0  # of steady acks after it, and after a silenced broker was woken
ELECTED_S = 60.0
RECOVERY_S = 100.0  # a client without acks for that long after the cluster's recovery is given up
DOWN_S = 3.0  # all brokers
WARM_UP_S = 10.0  # of load once, before the first event: the brokers' machine code is made
EVENTS = {
    "move": "leader moved",
    "sigterm": "SIGTERM",
    "sigkill": "SIGKILL",
    "sigstop": "SIGSTOP, SIGCONT",
    "all-down": "all down, all up",
}
KINDS = {"real": "Kafka", "mock": "mock"}
TOGETHER = "outlast,java/kafka-python,confluent-kafka,aiokafka"
# Two clients keep three brokers on two cores so busy that these hand leaderships over more slowly:
# after SIGTERM outlast's gap was 91 ms alone and 220 ms beside Java. Seconds hide that.
ALONE = "outlast/java/kafka-python/confluent-kafka/aiokafka"
BRIEF = ("move", "sigterm")
TIMES = {"gap_ms": "gap, ms", "over_ms": "over, ms", "others_gap_ms": "gap elsewhere, ms"}
COUNTS = {
    "lost": "lost",
    "duplicated": "duplicated",
    "out_of_order": "out of order",
    "failed": "failed",
    "unsettled": "unsettled",
}
TARGETS = (
    Target("gap", "Kafka, SIGTERM", "gap_ms", at_most=1.0, against="java"),
    Target("over, ms", "Kafka, SIGKILL", "over_ms", at_most=100),
    Target("over, ms", "Kafka, SIGSTOP, SIGCONT", "over_ms", at_most=300),
    Target("over less send→ack, ms", "mock, leader moved", "over_less_usual_ms", at_most=10),
)


@dataclass(slots=True)
class Scene:
    """One event and those who witness it."""

    cluster: Cluster
    event: str
    topic: str
    victim: int
    clients: Sequence[str]
    options: argparse.Namespace
    producing: dict[str, steady.Producing] = field(default_factory=dict)
    at_s: float = 0.0  # monotonic: when it happened
    up_s: float = 0.0  # when acks could come from a new leader: then, or when brokers were started
    end_s: float = 0.0  # when nobody looked any more
    epochs: dict[int, int] = field(default_factory=dict)  # of the leaders before
    watch: Watch | None = None

    def load(self, client: str) -> Load:
        count = self.options.partitions
        first = self.clients.index(client) * count
        rate = self.options.rate * count
        return Load(
            self.topic, count, rate, tick_s=self.options.tick_ms / 1000, first_partition=first
        )

    def assignment(self) -> dict[int, list[int]]:
        """The replicas of all partitions, leader first: every client's are placed alike."""
        nodes = sorted(self.cluster.nodes)
        turned = [nodes[i:] + nodes[:i] for i in range(len(nodes))]
        return {
            p: turned[place % len(turned)]
            for client in self.clients
            for place, p in enumerate(self.load(client).indexes)
        }

    def led(self) -> list[int]:
        """The partitions that lose their leader."""
        everything = self.event == "all-down"
        replicas = self.assignment()
        return [p for p, nodes in replicas.items() if everything or nodes[0] == self.victim]

    def wait_flowing(self, since_s: float, timeout_s: float) -> None:
        """Until every client has acks on every partition that came after that moment."""
        own = self.producing.values()
        until(lambda: steady.flowing_since(since_s, own), "every partition has acks", timeout_s)


# --- what happens ---------------------------------------------------------------------------------


def happen(scene: Scene) -> None:
    """Have the event under a steady load, and wait until all have recovered, or are given up."""
    with contextlib.ExitStack() as stack:
        move = stack.enter_context(_prepared_move(scene)) if scene.event == "move" else None
        steady.wait_steady(BEFORE_S, scene.producing.values())
        views = scene.cluster.topic(scene.topic).partitions
        scene.epochs = {p: views[p].leader_epoch for p in scene.led()}
        if scene.event == "all-down":
            _all_down(scene)
            scene.epochs = dict.fromkeys(scene.epochs, -1)  # a leader may come back as it was
        without = [scene.victim] if scene.event.startswith("sig") else []
        watch = watching(scene.cluster, scene.topic, without=without, min_isr=MIN_ISR)
        scene.watch = stack.enter_context(watch)
        if scene.event == "all-down":
            scene.up_s = time.monotonic()
            for node_id in scene.cluster.nodes:
                scene.cluster.start(node_id)
        else:
            scene.at_s = scene.up_s = time.monotonic()
            move.elect() if move else getattr(scene.cluster, scene.event)(scene.victim)
        _recover(scene, scene.watch)
        scene.end_s = time.monotonic()


@contextlib.contextmanager
def _prepared_move(scene: Scene) -> Iterator[Move]:
    replicas = scene.assignment()
    orders = {p: replicas[p][1:] + replicas[p][:1] for p in scene.led()}
    with contextlib.closing(Move(scene.cluster, scene.topic, orders)) as move:
        yield move


def _all_down(scene: Scene) -> None:
    scene.at_s = time.monotonic()
    for node_id in scene.cluster.nodes:
        scene.cluster.sigkill(node_id)
    time.sleep(DOWN_S)


def _recover(scene: Scene, watch: Watch) -> None:
    elected_s = max(
        watch.wait_leader_change(p, newer_than=epoch, timeout_s=ELECTED_S).at_s
        for p, epoch in scene.epochs.items()
    )
    with contextlib.suppress(AssertionError):  # given up: its gap ends where we stop looking
        if scene.event == "sigstop":
            scene.wait_flowing(elected_s, RECOVERY_S)
            scene.cluster.sigcont(scene.victim)
            elected_s = time.monotonic()
        scene.wait_flowing(elected_s + AFTER_S, RECOVERY_S)


# --- what came of it ------------------------------------------------------------------------------


def witness(scene: Scene) -> list[Run]:
    """Have the event with all of the scene's clients; a line for each."""
    cluster = scene.cluster
    cluster.heal()
    cluster.create_topic(scene.topic, assignment=scene.assignment(), min_isr=MIN_ISR)
    bootstrap = ",".join(cluster.bootstrap)
    try:
        for client in scene.clients:
            scene.producing[client] = steady.start(client, bootstrap, scene.load(client))
        happen(scene)
        with ThreadPoolExecutor() as pool:
            ledgers = list(pool.map(lambda producing: producing.stop(), scene.producing.values()))
    finally:
        for producing in scene.producing.values():
            producing.end()
    cluster.heal()
    log = read_back(cluster.bootstrap, scene.topic, RECOVERY_S)
    cluster.delete_topic(scene.topic)
    return [
        {"client": client, **figures(scene, scene.load(client).indexes, ledger, log)}
        for client, ledger in zip(scene.clients, ledgers, strict=True)
    ]


def figures(scene: Scene, own: Iterable[int], ledger: Ledger, log: Log) -> Run:
    """What one client made of it. Times are milliseconds."""
    assert scene.watch is not None
    led = [p for p in own if p in scene.epochs]
    seen = {
        p: scene.watch.wait_leader_change(p, newer_than=scene.epochs[p], timeout_s=0) for p in led
    }
    found = account(ledger, log)
    gaps = {p: ledger.longest_ack_gap(p, scene.at_s, scene.end_s).duration_s for p in ledger.sent}
    others = [gap for p, gap in gaps.items() if p not in led]
    over_ms = _longest_over(scene, led, ledger, log)
    usual = steady.usual(ledger, scene.at_s)
    times = {
        "gap_ms": _ms(max(gaps[p] for p in led)),
        "others_gap_ms": _ms(max(others)) if others else None,
        "over_ms": over_ms,
        "over_less_usual_ms": None if over_ms is None else round(over_ms - usual["usual_ms"], 1),
        "elected_ms": _ms(max(seen[p].at_s for p in led) - scene.at_s),
        **usual,
    }
    return {
        **{name: figure for name, figure in times.items() if figure is not None},
        "sent": sum(map(len, ledger.sent.values())),
        "lost": len(found.lost),
        "duplicated": len(found.duplicated),
        "out_of_order": len(found.out_of_order),
        "failed": len(found.failed),
        "unsettled": found.unsettled,
    }


def _longest_over(scene: Scene, led: Iterable[int], ledger: Ledger, log: Log) -> float | None:
    """From the first sight of the new leader to its first ack; None: it never came."""
    assert scene.watch is not None
    overs = []
    for partition in led:
        acks = ledger.acks.get(partition, {})
        by_new = [
            (acks[entry.counter].at_s, entry.leader_epoch)
            for entry in log[partition]
            if entry.leader_epoch > scene.epochs[partition]
            and entry.counter in acks
            and acks[entry.counter].at_s > scene.up_s
        ]
        if not by_new:
            return None
        first_s, epoch = min(by_new)
        leader = scene.watch.wait_leader_change(partition, newer_than=epoch - 1, timeout_s=0)
        overs.append(first_s - leader.at_s)
    return _ms(max(overs))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


# --- tables ---------------------------------------------------------------------------------------


def tables(lines: Sequence[Run]) -> str:
    """Markdown: for each kind of cluster a row for each event and client; then the targets."""
    clients = list(dict.fromkeys(line["client"] for line in lines))
    parts = []
    for title in KINDS.values():
        rows = [
            row
            for event in EVENTS.values()
            for client in clients
            if (row := _row(lines, f"{title}, {event}", client))
        ]
        if rows:
            head = ["", "client", *TIMES.values(), *COUNTS.values()]
            parts.append(_markdown(head, rows))
    verdicts = [summary.verdict(target, lines) for target in TARGETS]
    rows = [
        [v.target.words, v.target.variant, v.against, v.wanted, v.found, f"**{v.word}**"]
        for v in verdicts
    ]
    parts.append(_markdown(["outlast", "where", "against", "wanted", "found", ""], rows))
    return "\n\n".join(parts)


def _row(lines: Sequence[Run], variant: str, client: str) -> list[str]:
    runs = [x for x in lines if (x["variant"], x["client"]) == (variant, client)]
    if not runs:
        return []
    counts = [str(sum(run[what] for run in runs)) for what in COUNTS]
    return [variant, client, *(_spread(runs, metric) for metric in TIMES), *counts]


def _spread(runs: Sequence[Run], metric: str) -> str:
    """Median, smallest, largest; and how many of the runs have no such figure."""
    came = [run[metric] for run in runs if metric in run]
    if not came:
        return "–"
    never = f", {len(runs) - len(came)} never" if len(came) < len(runs) else ""
    return summary.Spread.of(came).shown("{:,.0f}".format) + never


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


# --- the whole of it ------------------------------------------------------------------------------


def warm_up(cluster: Cluster, options: argparse.Namespace) -> None:
    """Load without an event, not measured."""
    scene = Scene(cluster, "warm-up", "warm-up", 0, ["kafka-python"], options)
    cluster.create_topic(scene.topic, assignment=scene.assignment(), min_isr=MIN_ISR)
    load = scene.load("kafka-python")
    scene.producing["it"] = steady.start("kafka-python", ",".join(cluster.bootstrap), load)
    try:
        scene.wait_flowing(time.monotonic() + WARM_UP_S, 60.0)
        scene.producing["it"].stop()
    finally:
        scene.producing["it"].end()
    cluster.delete_topic(scene.topic)


def measure(kind: str, options: argparse.Namespace) -> Iterator[Run]:
    """All rounds on one kind of cluster: a line for each event and client."""
    with opened(kind) as cluster:
        if kind == "real":
            warm_up(cluster, options)
        for number in range(options.rounds):
            for event in options.events:
                groups = options.groups or grouped(ALONE if event in BRIEF else TOGETHER)
                first = number % len(groups)  # in turned order
                for place, group in enumerate(groups[first:] + groups[:first]):
                    cluster.heal()
                    victim = victim_of(cluster, options.kill, number)
                    topic = f"{event}-{number}-{place}"
                    scene = Scene(cluster, event, topic, victim, group, options)
                    variant = f"{KINDS[kind]}, {EVENTS[event]}"
                    head = {"variant": variant, "run": number, "victim": victim}
                    for line in witness(scene):
                        yield {**head, "beside": ",".join(group), **line}


def grouped(text: str) -> list[list[str]]:
    """Clients by group, from a,b/c,d."""
    return [group.split(",") for group in text.split("/")]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*CLIENTS, steady.JAVA]
    parser.add_argument(
        "--groups",
        type=grouped,
        default=[],
        help="clients that witness an event together, such as a,b/c,d of "
        f"{', '.join(names)} ({TOGETHER}; {' and '.join(BRIEF)}: each alone)",
    )
    parser.add_argument("--clusters", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--events", type=lambda text: text.split(","), default=list(EVENTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=3, help="of each client")
    steady.add_options(parser)
    parser.add_argument("--tick-ms", type=float, default=10, help="between bursts of what is due")
    parser.add_argument("--tables", type=Path, help="make them from these lines, measure nothing")
    options = parser.parse_args(arguments)
    for name, given, known in (
        ("--clusters", options.clusters, KINDS),
        ("--events", options.events, EVENTS),
        ("--groups", [client for group in options.groups for client in group], names),
    ):
        if unknown := set(given) - set(known):
            parser.error(f"{name}: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    return options


def main() -> None:
    options = parse()
    if options.tables:
        lines = [json.loads(line) for line in options.tables.read_text("utf-8").splitlines()]
        print(tables(lines))
        return
    lines = []
    for kind in options.clusters:
        for line in measure(kind, options):
            lines.append(line)
            print(json.dumps(line), flush=True)
    print(tables(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
