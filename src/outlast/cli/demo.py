"""`outlast demo`: a failover under load, in this process, and what it did.

The producer is used as any application would use it; the cluster is told what to do from outside;
the judge is kafka-python's consumer.
"""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast import KafkaProducer
from outlast.cli.load import ACKED_STEP_S, Load
from outlast.cli.screen import Screen
from outlast.cli.tables import LEGEND, gap_table
from outlast.cli.verify import Delivery, ReadBackError, compare, read_back
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.server import ClusterServer

if TYPE_CHECKING:
    from outlast.cli.report import Run

TOPIC = "orders"
PARTITIONS = range(6)
ELECTION_S = 3.0  # a dead node is given up after that (Kafka's default: 9 s)
STORY_LIMIT_S = 25.0  # the demo ends in under 40 s, whatever happens
SETTINGS_SHOWN = ("acks", "enable_idempotence", "delivery_timeout_ms", "request_timeout_ms")
FLUSH_S = 5.0
READ_S = 8.0


def run(rate: int, seed: int, report: Path | None = None) -> int:
    """Run the demo and print what it found; the process's exit code.

    Args:
        report: write an HTML page there, too.
    """
    for name in ("outlast", "kafka"):
        logging.getLogger(name).addHandler(logging.NullHandler())  # the screen tells enough
    console = Console(highlight=False)
    cluster = MockCluster(3, settings=ClusterSettings(detect_s=ELECTION_S), rng=random.Random(seed))
    with ClusterServer(cluster) as server:
        server.create_topic(TOPIC, len(PARTITIONS))
        producer = KafkaProducer(bootstrap_servers=server.bootstrap)
        load = Load(producer.send, TOPIC, len(PARTITIONS), rate)
        try:
            screen = _play(console, server, producer, load, rate)
        except BaseException:
            producer.close(timeout=0)
            raise
        end_s = time.monotonic()
        producer.close(timeout=FLUSH_S)
        gaps, stalls = producer.gaps(), producer.stalls()
        delivery, doubt = None, ""
        try:
            read = read_back(server.bootstrap, TOPIC, PARTITIONS, READ_S)
            delivery = compare(load.acknowledged, read)
        except ReadBackError as error:
            doubt = f"No verdict: {error}"
    if delivery is None:
        console.print(doubt, style="bold red")
    else:
        _print(console, gap_table(gaps, stalls, TOPIC, PARTITIONS, screen.begin_s), load, delivery)
    if report is not None:
        from outlast.cli.report import save  # jinja2 is needed for nothing else here

        found = _found(producer, load, screen, end_s, delivery, doubt)
        if not save(found, report, console):
            return 1
    return 0 if delivery else 1


def _play(
    console: Console, server: ClusterServer, producer: KafkaProducer, load: Load, rate: int
) -> Screen:
    """The story, from the first record to the last ack."""

    def leaders() -> list[int]:
        return server.call(
            lambda cluster, _: [cluster.leader(TOPIC, partition)[0] for partition in PARTITIONS]
        )

    def healthy() -> bool:
        """Every partition has had an ack after the last failure was over."""
        no_gap = all(gap.phase is None for gap in producer.gaps())
        return no_gap and max(load.last_ack_s) - min(load.last_ack_s) < 1.0

    with Screen(console, load, TOPIC, producer.gaps, leaders, STORY_LIMIT_S) as screen:
        screen.say(f"3 brokers; {rate} records/s to each of {len(PARTITIONS)} partitions")
        load.start()
        screen.wait(3.0, healthy)

        old = leaders()[0]
        new = old % 3 + 1
        screen.do(f"the leader of {TOPIC}-0 moves from node {old} to node {new}")
        server.move_leader(TOPIC, 0, new)
        screen.wait(3.0, healthy)

        victim = leaders()[1]
        led = [f"{TOPIC}-{p}" for p, leader in enumerate(leaders()) if leader == victim]
        screen.do(f"node {victim} is killed; it leads {', '.join(led)}")
        server.kill(victim)
        screen.wait(ELECTION_S + 2.0, lambda: victim not in leaders() and healthy())

        screen.do(f"node {victim} comes back")
        server.start(victim)
        screen.wait(3.0, healthy)

        load.stop()
        screen.say("the last records are waited for, and everything is read back")
        producer.flush(timeout=FLUSH_S)
        return screen


def _print(console: Console, table: Table, load: Load, delivery: Delivery) -> None:
    console.print()
    console.print(table)
    console.print(Text(LEGEND, "dim"))
    console.print()
    console.print(
        f"sent {sum(load.sent):,} · acknowledged {delivery.acknowledged:,} · "
        f"failed {len(load.failures):,}"
    )
    console.print(str(delivery), style="bold green" if delivery else "bold red")


def _found(
    producer: KafkaProducer,
    load: Load,
    screen: Screen,
    end_s: float,
    delivery: Delivery | None,
    doubt: str,
) -> Run:
    from outlast.cli.report import Mark, Records, Run

    acknowledged = sum(map(len, load.acknowledged.values()))
    return Run(
        title="outlast demo",
        begin_s=screen.begin_s,
        begin_unix_s=time.time() - time.monotonic() + screen.begin_s,
        end_s=end_s,
        partitions=[(TOPIC, partition) for partition in PARTITIONS],
        gaps=producer.gaps(),
        stalls=producer.stalls(),
        acked=load.acked,
        acked_step_s=ACKED_STEP_S,
        marks=[Mark(at_s, text) for at_s, text in screen.done],
        records=Records(sum(load.sent), acknowledged, len(load.failures)),
        delivery=delivery,
        delivery_timeout_s=producer.config["delivery_timeout_ms"] / 1000,
        settings={
            "cluster": f"3 mock brokers; a dead one is given up after {ELECTION_S} s",
            "load": f"{load.rate:,} records/s to each partition",
            **{name: str(producer.config[name]) for name in SETTINGS_SHOWN},
        },
        notes=[doubt] if doubt else [],
    )
