"""What `outlast check` knows of a cluster and of a producer: data, read elsewhere.

Rules: plain values. A setting that could not be read is missing, and `unread` says why; nobody
guesses here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.engine.intake import RECORD_OVERHEAD_BYTES
from outlast.engine.settings import Settings

USUAL_RECORD_BYTES = 1_000  # taken for a record's size where nobody says it


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker: where clients are told to find it, and its settings."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
    unreachable: str = ""  # why no connection to its advertised address came about
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition as metadata shows it. `leader` is −1 while nobody leads."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic and its settings."""

    name: str
    partitions: tuple[Partition, ...]
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def replication(self) -> int:
        """Replicas of the partition that has the fewest."""
        return min((len(partition.replicas) for partition in self.partitions), default=0)

    def number(self, name: str) -> int | None:
        """A setting that is a whole number; None if it was not read."""
        return _whole(self.configs.get(name))


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Address:
    """A bootstrap address: how many hosts its name stands for, and why none of them answered."""

    name: str
    hosts: int
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster as an administrator with our rights sees it."""

    cluster_id: str | None
    brokers: tuple[Broker, ...]
    topics: tuple[Topic, ...]
    missing_topics: tuple[str, ...] = ()  # asked for by name, and not there
    voters: tuple[int, ...] | None = None  # of the KRaft quorum; None: not read, or ZooKeeper
    controller: int | None = None  # the node of the active controller, if it could be read
    addresses: tuple[Address, ...] = ()
    unread: tuple[Unread, ...] = ()

    def texts(self, name: str) -> dict[int, str]:
        """A broker setting by node, of those that told it."""
        return {b.node_id: b.configs[name] for b in self.brokers if name in b.configs}

    def numbers(self, name: str) -> dict[int, int]:
        """A broker setting that is a whole number, by node."""
        found = {node: _whole(text) for node, text in self.texts(name).items()}
        return {node: number for node, number in found.items() if number is not None}

    @property
    def node_ids(self) -> frozenset[int]:
        """Of the brokers that are listed."""
        return frozenset(broker.node_id for broker in self.brokers)

    @property
    def kraft(self) -> bool | None:
        """KRaft or ZooKeeper; None if no broker told its settings."""
        if self.voters or any(self.texts("process.roles").values()):
            return True
        return False if any(broker.configs for broker in self.brokers) else None

    @property
    def controllers_apart(self) -> bool:
        """No broker is also a controller, as far as we can see."""
        if self.voters:
            return not self.node_ids & set(self.voters)
        roles = self.texts("process.roles").values()
        return bool(roles) and not any("controller" in text for text in roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A producer's settings, checked, and where those that are not defaults come from."""

    values: Mapping[str, Any]  # by kafka-python's names
    settings: Settings  # the engine's share, in seconds and bytes
    sources: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()  # names that were given and are no settings of this producer
    rate_bytes_per_s: float | None = None  # of the buffer, by a running producer's health()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast records come, in bytes of the send buffer: size and what a record costs beside."""

    bytes_per_s: float
    said: str  # as a reader would say it
    record_bytes: int | None = None

    @classmethod
    def of(cls, *, records: float | None, data_bytes: float | None, record_bytes: int) -> Rate:
        """From records per second, or from bytes of data per second."""
        per_s = records if records is not None else (data_bytes or 0.0) / record_bytes
        what = (
            f"{records:,.0f} records/s of {record_bytes:,} bytes"
            if records is not None
            else f"{data_bytes:,.0f} bytes/s in records of {record_bytes:,} bytes"
        )
        charged = per_s * (record_bytes + RECORD_OVERHEAD_BYTES)
        return cls(bytes_per_s=charged, said=what, record_bytes=record_bytes)


def named(topics: Iterable[Topic]) -> tuple[str, ...]:
    """The names of topics, sorted."""
    return tuple(sorted(topic.name for topic in topics))


def partitions(topics: Iterable[Topic]) -> Iterator[tuple[str, int, Partition]]:
    """Every partition with its topic's name and its number."""
    for topic in topics:
        for number, partition in enumerate(topic.partitions):
            yield topic.name, number, partition


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
