"""`outlast demo`: a failover under load, in this process, and what it did.

The producer is used as any application would use it; the cluster is told what to do from outside;
the judge is kafka-python's consumer.
"""

from __future__ import annotations

import logging
import random

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast import KafkaProducer
from outlast.cli.load import Load
from outlast.cli.screen import Screen
from outlast.cli.tables import LEGEND, gap_table
from outlast.cli.verify import Delivery, ReadBackError, compare, read_back
from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.server import ClusterServer

TOPIC = "orders"
PARTITIONS = range(6)
ELECTION_S = 3.0  # a dead node is given up after that (Kafka's default: 9 s)
STORY_LIMIT_S = 25.0  # the demo ends in under 40 s, whatever happens
FLUSH_S = 5.0
READ_S = 8.0


def run(rate: int, seed: int) -> int:
    """Run the demo and print what it found; the process's exit code."""
    for name in ("outlast", "kafka"):
        logging.getLogger(name).addHandler(logging.NullHandler())  # the screen tells enough
    console = Console(highlight=False)
    cluster = MockCluster(3, settings=ClusterSettings(detect_s=ELECTION_S), rng=random.Random(seed))
    with ClusterServer(cluster) as server:
        server.create_topic(TOPIC, len(PARTITIONS))
        producer = KafkaProducer(bootstrap_servers=server.bootstrap)
        load = Load(producer.send, TOPIC, len(PARTITIONS), rate)
        try:
            start_s = _play(console, server, producer, load, rate)
        except BaseException:
            producer.close(timeout=0)
            raise
        producer.close(timeout=FLUSH_S)
        gaps, stalls = producer.gaps(), producer.stalls()
        try:
            read = read_back(server.bootstrap, TOPIC, PARTITIONS, READ_S)
        except ReadBackError as error:
            console.print(f"No verdict: {error}", style="bold red")
            return 1
    delivery = compare(load.acknowledged, read)
    _report(console, gap_table(gaps, stalls, TOPIC, PARTITIONS, start_s), load, delivery)
    return 0 if delivery else 1


def _play(
    console: Console, server: ClusterServer, producer: KafkaProducer, load: Load, rate: int
) -> float:
    """The story, from the first record to the last ack; when it began, in monotonic seconds."""

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
        screen.say(f"the leader of {TOPIC}-0 moves from node {old} to node {new}")
        server.move_leader(TOPIC, 0, new)
        screen.wait(3.0, healthy)

        victim = leaders()[1]
        led = [f"{TOPIC}-{p}" for p, leader in enumerate(leaders()) if leader == victim]
        screen.say(f"node {victim} is killed; it leads {', '.join(led)}")
        server.kill(victim)
        screen.wait(ELECTION_S + 2.0, lambda: victim not in leaders() and healthy())

        screen.say(f"node {victim} comes back")
        server.start(victim)
        screen.wait(3.0, healthy)

        load.stop()
        screen.say("the last records are waited for, and everything is read back")
        producer.flush(timeout=FLUSH_S)
        return screen.start_s


def _report(console: Console, table: Table, load: Load, delivery: Delivery) -> None:
    console.print()
    console.print(table)
    console.print(Text(LEGEND, "dim"))
    console.print()
    console.print(
        f"sent {sum(load.sent):,} · acknowledged {delivery.acknowledged:,} · "
        f"failed {len(load.failures):,}"
    )
    console.print(str(delivery), style="bold green" if delivery else "bold red")
