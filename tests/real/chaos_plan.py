"""What is done to the cluster of a soak: a plan that follows from its seed, and the doing of it.

When a node is ready again does not follow from the seed. One step ends before the next begins,
though not always until all replicas are in sync; so partitions do lose their quorum, and get it
back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import tenacity
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from tests.real.kafka_cluster import RealCluster

KINDS = ("stop", "kill", "restart", "pause", "pause two", "move", "grow", "recreate")
MOST_PARTITIONS = 12


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done to the cluster."""

    kind: str
    node: int  # 1 … 3: whom it is done to
    other: int  # a second one, never the same
    calm: bool  # wait until all is in sync before
    pause_s: float  # before it
    hold_s: float  # between the doing and the undoing

    def __str__(self) -> str:
        whom = f" {self.node}" if self.kind in ("stop", "kill", "restart", "pause") else ""
        if self.kind == "pause two":
            whom = f" {self.node} {self.other}"
        calm = "all in sync, " if self.calm else ""
        return f"{self.kind}{whom} ({calm}after {self.pause_s:.1f} s, for {self.hold_s:.1f} s)"


def plan(seed: int) -> Iterator[Step]:
    """Steps without end. Every kind comes once before any comes again."""
    rng = random.Random(seed)
    while True:
        for kind in rng.sample(KINDS, len(KINDS)):
            node, other = rng.sample((1, 2, 3), 2)
            longest_s = 4.0 if kind == "pause two" else 12.0
            hold_s = rng.uniform(0.2, longest_s)
            yield Step(kind, node, other, rng.random() < 0.5, rng.uniform(0.5, 4.0), hold_s)


class Deeds:
    """Does the steps, and undoes them. Leaders of all topics move, also coordinators."""

    def __init__(
        self, cluster: RealCluster, safe: str, doomed: str, moved: Sequence[str], rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._safe = safe
        self._moved = (safe, *moved)
        self._doomed = doomed
        self._rng = rng
        self.done: list[Step] = []

    def do(self, step: Step) -> None:
        time.sleep(step.pause_s)
        if step.calm:
            self._cluster.wait_ready()
        getattr(self, f"_{step.kind.replace(' ', '_')}")(step)
        self.done.append(step)

    def _stop(self, step: Step) -> None:
        self._cluster.sigterm(step.node)
        process = self._cluster.nodes[step.node].process
        assert process is not None
        process.wait(timeout=90)
        time.sleep(step.hold_s)
        self._cluster.start(step.node)

    def _kill(self, step: Step) -> None:
        self._cluster.sigkill(step.node)
        time.sleep(step.hold_s)
        self._cluster.start(step.node)

    def _restart(self, step: Step) -> None:
        self._cluster.sigkill(step.node)
        self._cluster.start(step.node)

    def _pause(self, step: Step) -> None:
        self._cluster.sigstop(step.node)
        time.sleep(step.hold_s)
        self._cluster.sigcont(step.node)

    def _pause_two(self, step: Step) -> None:
        self._cluster.sigstop(step.node)
        self._cluster.sigstop(step.other)
        time.sleep(step.hold_s)
        self._cluster.sigcont(step.other)
        self._cluster.sigcont(step.node)

    def _move(self, step: Step) -> None:
        """Every leadership goes to a replica at random."""
        for _ in range(1 + int(step.hold_s) // 4):
            self._admin(self._move_leaders)
            time.sleep(1.0)

    def _move_leaders(self, admin: KafkaAdminClient) -> None:
        for topic in self._moved:
            places = [TopicPartition(topic, n) for n in self._cluster.topic(topic).partitions]
            replicas = {place: self._rng.sample((1, 2, 3), 3) for place in places}
            admin.alter_partition_reassignments(replicas)
            admin.elect_leaders(0, {topic: [p.partition for p in places]}, raise_errors=False)

    def _grow(self, _: Step) -> None:
        self._admin(self._add_partition)

    def _add_partition(self, admin: KafkaAdminClient) -> None:
        count = len(self._cluster.topic(self._safe).partitions)
        if count < MOST_PARTITIONS:
            admin.create_partitions({self._safe: count + 1})

    def _recreate(self, step: Step) -> None:
        self._cluster.wait_ready()
        self._cluster.delete_topic(self._doomed)
        time.sleep(step.hold_s / 3)
        self._cluster.create_topic(self._doomed, self._rng.randint(1, 4))

    def _admin(self, deed: Callable[[KafkaAdminClient], None]) -> None:
        """Try until it is done: the controller may just be elected."""

        def attempt() -> None:
            admin = KafkaAdminClient(bootstrap_servers=self._cluster.bootstrap)
            try:
                deed(admin)
            finally:
                admin.close()

        tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((KafkaError, OSError, AssertionError)),
            wait=tenacity.wait_fixed(0.5),
            stop=tenacity.stop_after_delay(60),
            reraise=True,
        )(attempt)
