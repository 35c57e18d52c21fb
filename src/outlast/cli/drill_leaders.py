"""Who leads the canary's partitions, as an administrator sees it; and moving them, if asked to.

`Watch` asks for metadata several times a second, on connections of its own: what the producer
believes is not asked. `Mover` gives a partition its replicas in another order and has the first one
elected, which is what administrators' tools do; at the end it puts the order back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, for_code

from outlast.cli.background import Background
from outlast.cli.drill_topic import Canary, DrillError, administrator, told

LOOK_EVERY_S = 0.25
LOOK_CONNECT_S = 2.0
KNOWN_S = 10.0
LOOK_ANSWER_S = 1.0  # a silent broker is asked no longer, then another one
PREFERRED = 0
NOT_ALLOWED, NOT_NEEDED = (29, 31), 84


@dataclass(frozen=True, slots=True)
class Leader:
    """A partition in a metadata answer; leader −1: there is none."""

    node_id: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """Another leader, or the same at another epoch, first seen at that time (monotonic)."""

    at_s: float
    partition: int
    old: int
    new: int
    epoch: int


class Watch(Background):
    """Looks at the leaders between `start` and `stop`.

    Attributes:
        leaders: what was seen last.
        changes: what was seen to change, oldest first.
    """

    def __init__(self, keywords: Mapping[str, Any], canary: Canary) -> None:
        super().__init__("drill-watch")
        self._keywords = keywords
        self._topic = canary.topic
        self._partitions = canary.partitions
        self.leaders: dict[int, Leader] = {}
        self.changes: list[LeaderChange] = []

    def __repr__(self) -> str:
        return f"<Watch {len(self.leaders)} partitions, {len(self.changes)} changes>"

    def look(self, admin: KafkaAdminClient) -> None:
        """Ask once."""
        self._note(leaders(admin, self._topic), time.monotonic())

    def look_at_all(self, admin: KafkaAdminClient) -> None:
        """Ask until every partition is known: brokers learn of a new topic one by one.

        Raises:
            DrillError: they do not know it for long.
        """
        deadline_s = time.monotonic() + KNOWN_S
        while set(self._partitions) - set(self.leaders):
            self.look(admin)
            if time.monotonic() > deadline_s:
                raise DrillError(f"brokers do not know {self._topic}, which is there")
            time.sleep(LOOK_EVERY_S / 10)

    def look_again(self) -> None:
        """End looking, with a last look if anybody answers: whoever waits for records is told of
        a new leader before an administrator is.
        """
        self.stop()
        with (
            contextlib.suppress(DrillError, KafkaError),
            administrator(self._keywords, LOOK_ANSWER_S, LOOK_CONNECT_S) as admin,
        ):
            self.look(admin)

    def _run(self) -> None:
        while not self._stopping.is_set():
            with (
                contextlib.suppress(DrillError),
                administrator(self._keywords, LOOK_ANSWER_S, LOOK_CONNECT_S) as admin,
            ):
                self._keep_looking(admin)
            self._stopping.wait(LOOK_EVERY_S)  # no broker answered: the partitions tell

    def _keep_looking(self, admin: KafkaAdminClient) -> None:
        """Until it fails three times in a row; after a failure it asks another broker."""
        failures = 0
        while failures < 3 and not self._stopping.wait(LOOK_EVERY_S):
            failures += 1
            with contextlib.suppress(KafkaError):
                self.look(admin)
                failures = 0

    def _note(self, seen: dict[int, Leader], now: float) -> None:
        for partition, leader in seen.items():
            before = self.leaders.get(partition)
            if before is not None:
                if leader.epoch < before.epoch:  # a broker that lags
                    continue
                if (leader.node_id, leader.epoch) != (before.node_id, before.epoch):
                    self.changes.append(
                        LeaderChange(now, partition, before.node_id, leader.node_id, leader.epoch)
                    )
            self.leaders[partition] = leader


def leaders(admin: KafkaAdminClient, topic: str) -> dict[int, Leader]:
    """The partitions of a topic as some broker sees them now."""
    (found,) = admin.describe_topics([topic])
    return {
        part["partition_index"]: Leader(
            part["leader_id"],
            part.get("leader_epoch", -1),
            tuple(part["replica_nodes"]),
            tuple(part["isr_nodes"]),
        )
        for part in found["partitions"]
    }


class Mover(Background):
    """Moves as many leaders as there are brokers, every so many seconds, in turn.

    Attributes:
        moves: how many partitions were given another leader.
        trouble: why the last round moved nothing, in words; None if it did.
    """

    def __init__(self, keywords: Mapping[str, Any], canary: Canary, every_s: float) -> None:
        super().__init__("drill-mover")
        self._keywords = keywords
        self._canary = canary
        self._every_s = every_s
        self._next = 0
        self._original: dict[int, tuple[int, ...]] = {}
        self.moves = 0
        self.trouble: str | None = None

    def __repr__(self) -> str:
        return f"<Mover {self.moves} moves>"

    def check(self, admin: KafkaAdminClient) -> None:
        """Whether leaders may be moved, asked by an election of the first replicas.

        Raises:
            DrillError: there is no second replica, or the user may not.
        """
        seen = leaders(admin, self._canary.topic)
        if not any(len(leader.replicas) > 1 for leader in seen.values()):
            raise DrillError(f"--move-leaders: {self._canary.topic} has one replica only")
        try:
            told_ = admin.elect_leaders(
                PREFERRED, {self._canary.topic: list(self._canary.partitions)}, raise_errors=False
            )
        except KafkaError as error:
            raise DrillError(f"--move-leaders: the brokers cannot do it: {told(error)}") from None
        codes = {getattr(told_, "error_code", 0)}
        codes |= {p.error_code for r in told_.replica_election_results for p in r.partition_result}
        if codes & set(NOT_ALLOWED):
            raise DrillError("--move-leaders is not allowed: the user needs Alter on the cluster")

    def stop(self) -> str | None:
        """End moving, and put the replicas' order back if the topic stays; None, or a sentence
        that tells why that could not be done.
        """
        super().stop()
        if self._canary.made or not self._original:
            return None
        try:
            with administrator(self._keywords) as admin:
                self._reorder(admin, self._original)
        except (KafkaError, DrillError) as error:
            return f"the replicas of {self._canary.topic} keep another order: {told(error)}"
        return None

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._keep_moving()

    def _keep_moving(self) -> None:
        """With one client, until it fails: a new one finds another controller."""
        try:
            with administrator(self._keywords) as admin:
                while not self._stopping.wait(self._every_s):
                    self._move(admin)
        except (KafkaError, DrillError) as error:
            self.trouble = told(error)
            self._stopping.wait(self._every_s)

    def _move(self, admin: KafkaAdminClient) -> None:
        partitions = self._canary.partitions
        count = min(len(partitions), len(self._canary.brokers))
        seen = leaders(admin, self._canary.topic)
        wanted = {}
        for step in range(count):
            partition = partitions[(self._next + step) % len(partitions)]
            leader = seen.get(partition)
            order = leader and rotated(leader)
            if leader and order:
                self._original.setdefault(partition, leader.replicas)
                wanted[partition] = order
        self._next += count
        if wanted:
            self.moves += self._reorder(admin, wanted)
            self.trouble = None

    def _reorder(self, admin: KafkaAdminClient, wanted: Mapping[int, tuple[int, ...]]) -> int:
        topic = self._canary.topic
        answers = admin.alter_partition_reassignments(
            {TopicPartition(topic, partition): list(order) for partition, order in wanted.items()}
        )
        for error in filter(None, answers.values()):
            raise error(f"{topic}: the replicas' order was not changed")
        result = admin.elect_leaders(PREFERRED, {topic: list(wanted)}, raise_errors=False)
        codes = [p.error_code for r in result.replica_election_results for p in r.partition_result]
        for code in codes:
            if code not in (0, NOT_NEEDED):
                raise for_code(code)(f"{topic}: the first replica was not elected")
        return codes.count(0)


def rotated(leader: Leader) -> tuple[int, ...] | None:
    """The replicas, turned so that the next one in sync after the leader is first; None: there is
    no other.
    """
    if leader.node_id not in leader.replicas:
        return None
    at = leader.replicas.index(leader.node_id)
    for first in range(at + 1, at + len(leader.replicas)):
        turned = tuple(
            leader.replicas[(first + step) % len(leader.replicas)]
            for step in range(len(leader.replicas))
        )
        if turned[0] in leader.in_sync:
            return turned
    return None
